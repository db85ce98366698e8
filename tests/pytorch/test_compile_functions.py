"""Each function of the list, compiled with `backend="blocknb"`, gives the numbers that eager gives in float64."""

from __future__ import annotations

import pytest
import torch
from torch_functions import FUNCTIONS, arguments, in_double

import blocknb.torch

#: Functions like others of the list, or whose values and gradients a quick run checks in test_compile_training.py.
ALIKE = {
    "gelu_tanh", "mish", "elu", "hardswish", "leaky_relu", "mlp", "layer_norm", "rms_norm", "group_norm", "softmax",
    "cross_entropy", "swiglu",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in ALIKE else ()) for name in FUNCTIONS]
)
def test_a_compiled_function_gives_the_numbers_of_eager_in_float64(name):
    function, shapes = FUNCTIONS[name]
    values = arguments(shapes)
    expected = function(*in_double(values))
    found = torch.compile(function, backend=blocknb.torch.backend, fullgraph=True)(*values)
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=2e-5, atol=2e-5)


def test_the_list_has_at_least_55_functions():
    assert len(FUNCTIONS) >= 55
