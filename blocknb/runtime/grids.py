"""The grid of a launch, recorded without a reference to an array, so that the launch can be repeated.

A grid function is usually a lambda that reads sizes, and often arrays (`x.numel()`), from the enclosing function or cell. The launch
records what the function reads: numbers by value, arrays by weak reference, functions in the same way. A repetition computes the grid
from these values, even if the user has reassigned the names since.
"""

from __future__ import annotations

import builtins
import operator
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.language.types import DType

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type, types.ModuleType, np.generic, np.dtype, DType)

Thaw = Callable[[], Any]


class ArrayFreed(Exception):
    """An array that the grid function reads no longer exists."""


@dataclass(frozen=True, eq=False)
class GridSnapshot:
    """`given()` returns the grid of the launch: numbers, or a function of the arguments if `computed`. Raises ArrayFreed."""

    given: Thaw
    computed: bool = False


def keep_grid(grid: Any) -> GridSnapshot | None:
    """Returns the snapshot of a grid, or None if it reads an object that cannot be kept."""
    if callable(grid):
        thaw = _freeze(grid)
        return None if thaw is None else GridSnapshot(thaw, computed=True)
    try:
        sizes = tuple(map(operator.index, grid)) if isinstance(grid, (tuple, list)) else operator.index(grid)
    except TypeError:
        return None
    return GridSnapshot(lambda: sizes)


def _freeze(value: Any, inside: frozenset[int] = frozenset()) -> Thaw | None:
    """Returns a function that restores a value without a reference to arrays, or None. `inside` are the ids of the enclosing functions."""
    if isinstance(value, _PLAIN) or type(value).__module__ == "ml_dtypes":
        return lambda: value
    if isinstance(value, types.BuiltinFunctionType):
        return (lambda: value) if value.__self__ is None or isinstance(value.__self__, types.ModuleType) else None
    if isinstance(value, (tuple, list)):
        parts = [_freeze(part, inside) for part in value]
        return None if None in parts else lambda: type(value)(part() for part in parts if part)
    if isinstance(value, types.FunctionType):
        return None if id(value) in inside else _freeze_function(value, inside | {id(value)})
    if isinstance(value, types.MethodType):
        owner, function = _freeze(value.__self__, inside), _freeze(value.__func__, inside)
        return None if owner is None or function is None else lambda: types.MethodType(function(), owner())
    try:
        reference = weakref.ref(value)
    except TypeError:
        return None

    def alive() -> Any:
        if (found := reference()) is None:
            raise ArrayFreed
        return found

    return alive


def _freeze_function(function: types.FunctionType, inside: frozenset[int]) -> Thaw | None:
    held = function.__closure__ or function.__defaults__ or function.__kwdefaults__
    if function.__module__ != "__main__" and not held:
        return lambda: function  # a module's function without captured values
    try:
        cells = [_freeze(cell.cell_contents, inside) for cell in function.__closure__ or ()]
    except ValueError:  # a cell that is still empty
        return None
    # The names of a module do not change. A cell may reassign the names of a notebook at any time.
    home = function.__globals__ if function.__module__ != "__main__" else None
    read = [n for n in _names(function.__code__) if n in function.__globals__] if home is None else []
    known = _freeze_all({name: function.__globals__[name] for name in read}, inside)
    defaults, keywords = _freeze(function.__defaults__, inside), _freeze_all(function.__kwdefaults__ or {}, inside)
    if None in cells or known is None or defaults is None or keywords is None:
        return None
    code, name, module = function.__code__, function.__name__, function.__module__

    def thaw() -> Any:
        names = home
        if names is None:
            names = {"__builtins__": builtins, "__name__": module, **{n: value() for n, value in known.items()}}
        closure = tuple(types.CellType(content()) for content in cells if content)
        again = types.FunctionType(code, names, name, defaults(), closure)
        again.__kwdefaults__ = {n: value() for n, value in keywords.items()} or None
        return again

    return thaw


def _freeze_all(values: Mapping[str, Any], inside: frozenset[int]) -> dict[str, Thaw] | None:
    found = {name: _freeze(value, inside) for name, value in values.items()}
    return None if None in found.values() else {name: value for name, value in found.items() if value}


def _names(code: types.CodeType) -> set[str]:
    """The names that a function and the functions inside it may look up."""
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))
