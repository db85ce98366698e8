"""Helpers for tests of the front end: parse kernels without a runtime for types given as text, and interpret the IR."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blocknb.errors import KernelError
from blocknb.frontend.parse import ArgType, Constant, parse
from blocknb.frontend.source import Source
from blocknb.ir.core import Func
from blocknb.ir.interp import run
from blocknb.ir.text import print_func
from blocknb.ir.verify import verify
from blocknb.language import types as t
from blocknb.language.types import Pointer, Tile


class kernel:
    """A minimal kernel for the front end: an object with a `source`."""

    def __init__(self, function: Any):
        self.source = Source(function)


def kind(text: str) -> ArgType:
    """ "*f32" is a pointer, "i32" a scalar."""
    if text.startswith("*"):
        return ArgType(Tile(Pointer(t.BY_SHORT[text[1:]])), 16)
    return ArgType(Tile(t.BY_SHORT[text]))


def ir(k: kernel, **arguments: Any) -> Func:
    """The verified IR; strings are types, everything else is a constant."""
    func = parse(k.source, {n: kind(a) if isinstance(a, str) else Constant(a) for n, a in arguments.items()}, {})
    verify(func)
    return func


def text(k: kernel, **arguments: Any) -> str:
    """The body of the IR text, one op per line, without ids and indentation."""
    lines = print_func(ir(k, **arguments), ids=False).splitlines()[1:-1]
    return "\n".join(line.strip() for line in lines)


def argument(k: kernel, name: str, value: Any) -> Any:
    parameter = next(p for p in k.source.parameters if p.name == name)
    if isinstance(value, np.ndarray):
        return ArgType(Tile(Pointer(t.from_numpy(value.dtype))), 16)
    if isinstance(value, np.generic) and not parameter.constexpr:
        return ArgType(Tile(t.from_numpy(value.dtype)))
    if parameter.constexpr or not isinstance(value, (int, float)):
        return Constant(value)
    return ArgType(Tile(t.literal_dtype(value)))


def launch(k: kernel, grid: Any, **arguments: Any) -> Func:
    """Parses for these arguments, verifies, and interprets; arrays are changed in place."""
    kinds = {name: argument(k, name, value) for name, value in arguments.items()}
    func = parse(k.source, kinds, {})
    verify(func)
    run(func, [arguments[h.name] for h in func.hints], grid)
    return func


def evaluate(k: kernel, dtype: Any, shape: Any = (), **arguments: Any) -> np.ndarray:
    """Runs a kernel and returns its parameter `out`, an array of this dtype and shape."""
    out = np.zeros(shape or (1,), dtype)
    launch(k, 1, out=out, **arguments)
    return out if shape else out[0]


def failure(k: kernel, error: type[KernelError], **arguments: Any) -> KernelError:
    """The error that parsing for these arguments raises."""
    with pytest.raises(error) as caught:
        ir(k, **arguments)
    return caught.value


def place(k: kernel, found: KernelError) -> tuple[int, str]:
    """(line within the definition, the text under the carets) of an error."""
    loc = found.loc
    assert loc is not None
    line = k.source.lines[loc.line - k.source.first_line]
    end = loc.end_column if loc.end_line == loc.line else len(line.rstrip())
    return loc.line - k.source.first_line, line[loc.column : end]
