"""Helpers for tests of semantics: one launch, computed by the interpreter and by CPU code, which must agree.

Kernels check the expected types themselves, with `tl.static_assert(x.dtype == tl.int32)`; the tests compare the numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case, copied, poison
from support import assert_close

from blocknb.errors import KernelError
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.ir.text import print_func
from blocknb.ir.verify import verify


def tile_ir(k: Any, **arguments: Any) -> Func:
    """The tile IR of a launch with these arguments, verified."""
    func = Case(k.__name__, k, dict, dict).parse(arguments)
    verify(func)
    return func


def ops(k: Any, **arguments: Any) -> str:
    """The IR as text, for tests that look for an op."""
    return print_func(tile_ir(k, **arguments), ids=False)


def result(
    k: Any, dtype: Any, shape: Any = (1,), grid: Any = (1,), tolerance: float | None = None, **arguments: Any
) -> np.ndarray:
    """The array `out` after a launch. It starts as poison; other arrays among the arguments are copied."""
    grid = (grid,) if isinstance(grid, int) else tuple(grid)
    found = []
    for way in (interpret, lambda k, grid, given: k[grid](**given)):
        given = {"out": poison(shape, dtype), **{name: copied(value) for name, value in arguments.items()}}
        way(k, grid, given)
        found.append(given["out"])
    interpreted, native = found
    assert_close(native, interpreted, tolerance)
    return native


def interpret(k: Any, grid: Any, given: dict[str, Any]) -> None:
    func = tile_ir(k, **given)
    interp.run(func, [given[hint.name] for hint in func.hints], grid)


def value(k: Any, dtype: Any, **arguments: Any) -> Any:
    """The one number that a launch stores."""
    return result(k, dtype, **arguments)[0].item()


def refused(k: Any, dtype: Any = np.float32, **arguments: Any) -> KernelError:
    """The error of a launch with an array of this dtype for `out`; its place must be in the source of a kernel."""
    with pytest.raises(KernelError) as caught:
        tile_ir(k, out=np.zeros(16, dtype), **arguments)
    assert caught.value.loc is not None
    return caught.value
