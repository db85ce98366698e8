"""Each function of the list, compiled with `backend="blocknb"`, gives the numbers that eager gives in float64."""

from __future__ import annotations

import pytest
import torch
from torch_functions import FUNCTIONS, arguments, in_double

import blocknb.torch


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_function_gives_the_numbers_of_eager_in_float64(name):
    function, shapes = FUNCTIONS[name]
    values = arguments(shapes)
    expected = function(*in_double(values))
    found = torch.compile(function, backend=blocknb.torch.backend, fullgraph=True)(*values)
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=2e-5, atol=2e-5)


def test_the_list_has_at_least_55_functions():
    assert len(FUNCTIONS) >= 55
