"""Every racy kernel of the corpus is found on a GPU, and no right one is accused. `--full` runs each 50 times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from races import plain_races, right_kernels, synchronization_races
from races.corpus import RACY, RIGHT, check, launch
from races.lane_kernels import APART, COLLIDING
from races.test_uninitialized import masked_without_other, shift

import blocknb
from blocknb import kernels
from blocknb.runtime.launch_context import enforced
from blocknb.testing import uninitialized

cupy = pytest.importorskip("cupy")
assert plain_races and synchronization_races and right_kernels
#: Kernels whose arrays share memory, which a copy to the device would separate.
SHARE = ("arrays_that_overlap", "neighbouring_views", "interleaved_views")


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> int:
    return 50 if request.config.getoption("--full") else 3


def on_device(x: np.ndarray) -> Any:
    """A copy of an array on the device."""
    return cupy.asarray(np.ascontiguousarray(x))


@pytest.mark.parametrize("name", [name for name in RACY if name not in SHARE])
def test_a_race_is_found_on_a_gpu(name, runs):
    for _ in range(runs):
        check(RACY[name], launch(RACY[name], on_device))


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in SHARE])
def test_a_right_kernel_is_not_accused_on_a_gpu(name, runs):
    for _ in range(runs):
        assert launch(RIGHT[name], on_device) is None


def test_views_of_one_array_share_their_cells(runs):
    base = cupy.arange(80, dtype=cupy.float32)
    case = RACY["arrays_that_overlap"]
    with pytest.raises(blocknb.RaceError) as caught:
        case.kernel[case.grid](x=base[:64], view=base[16:], B=16, checked="race")
    check(case, caught.value)
    pairs = cupy.zeros((64, 2), cupy.float32)
    right_kernels.interleaved_views[(4,)](pairs[:, 0], pairs[:, 1], B=16, checked="race")
    right_kernels.neighbouring_views[(4,)](base[:64], cupy.zeros(64, cupy.float32), B=16, checked="race")


@pytest.mark.parametrize("kernel", COLLIDING, ids=lambda kernel: kernel.__name__)
def test_lanes_that_store_different_values_to_one_element_are_an_error_on_a_gpu(kernel):
    given, element = COLLIDING[kernel]
    with pytest.raises(blocknb.RaceError, match="store different values to element") as caught:
        kernel[(1,)](**moved(given), checked="race")
    assert (caught.value.array, caught.value.index) == ("out", element)


@pytest.mark.parametrize("kernel", APART, ids=lambda kernel: kernel.__name__)
def test_lanes_that_agree_are_right_on_a_gpu(kernel):
    kernel[(1,)](**moved(APART[kernel]), checked="race")


def moved(given: dict[str, Any]) -> dict[str, Any]:
    return {name: on_device(value) if isinstance(value, np.ndarray) else value for name, value in given.items()}


def test_elements_that_nothing_has_written_are_found_on_a_gpu():
    x, out = uninitialized(cupy.empty(100, cupy.float32)), cupy.zeros(128, cupy.float32)
    shift[(4,)](cupy.ones(100, cupy.float32), x, 60, B=32, checked="init")
    shift[(4,)](x, out, 60, B=32, checked="init")
    with pytest.raises(blocknb.UninitializedError, match="element 60 of `x`") as caught:
        shift[(4,)](x, out, 100, B=32, checked="all")
    assert caught.value.program == (1, 0, 0)
    x[60:] = 0
    shift[(4,)](x, out, 100, B=32, checked="all")
    with pytest.raises(blocknb.UninitializedError, match="a value that no load gave"):
        masked_without_other[(4,)](x, out, 100, B=32, checked="init")


def test_a_checked_launch_has_the_results_of_an_unchecked_one():
    a, b, c, d = (cupy.random.rand(256, 256, dtype=cupy.float32).astype(cupy.float16) for _ in range(4))
    kernels.matmul(a, b, c)
    enforced["checked"] = "race"
    try:
        kernels.matmul(a, b, d)
    finally:
        enforced.clear()
    cupy.testing.assert_allclose(c, d, rtol=1e-2, atol=1e-2)
