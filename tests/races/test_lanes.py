"""Two lanes that store different values to one address in one store are an error."""

from __future__ import annotations

import pytest

import blocknb
from races.lane_kernels import APART, COLLIDING


def arguments(given):
    return {name: value.copy() if hasattr(value, "copy") else value for name, value in given.items()}


@pytest.mark.parametrize("kernel", COLLIDING, ids=lambda kernel: kernel.__name__)
def test_lanes_that_store_different_values_to_one_element_are_an_error(kernel):
    given, element = COLLIDING[kernel]
    with pytest.raises(blocknb.RaceError, match="store different values to element") as caught:
        kernel[(1,)](**arguments(given), checked="race")
    assert caught.value.index == element
    assert caught.value.array == "out"
    assert caught.value.program == caught.value.other_program == (0, 0, 0)


@pytest.mark.parametrize("kernel", APART, ids=lambda kernel: kernel.__name__)
def test_equal_values_and_other_addresses_are_right(kernel):
    kernel[(1,)](**arguments(APART[kernel]), checked="race")


def test_a_race_between_programs_is_reported_before_lanes():
    with pytest.raises(blocknb.RaceError, match="both store to element 0 of `out`"):
        next(iter(COLLIDING))[(2,)](**arguments(COLLIDING[next(iter(COLLIDING))][0]), checked="race")
