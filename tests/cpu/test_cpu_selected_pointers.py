"""Tiles of pointers into several arrays, in vectors of each machine."""

import numpy as np
import pytest
from bounds.test_selected_pointers import two_halves
from front import argument, parse
from native import TARGETS, compile_native, launch_native

from blocknb import AccessError


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_of_every_width_are_checked(target):
    """Pairs of two where a vector holds no more: fp64 with SSE2."""
    for dtype in (np.float64, np.int8):
        x, y, out = (np.arange(n).astype(dtype) for n in (32, 31, 64))
        arguments = {"x": x, "y": y, "out": out, "n": 32, "m": 31, "BLOCK": 64}
        func = parse(two_halves.source, {n: argument(two_halves, n, v) for n, v in arguments.items()}, {})
        native = compile_native(func, target)
        values = [arguments[hint.name] for hint in func.hints]
        launch_native(native, values, 1)
        np.testing.assert_array_equal(x, np.arange(0, 64, 2).astype(dtype))
        values = [(arguments | {"m": 32})[hint.name] for hint in func.hints]
        with pytest.raises(AccessError, match="element 31 of `y`"):
            launch_native(native, values, 1)
