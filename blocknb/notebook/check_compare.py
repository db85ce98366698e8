"""Compares the two arrays of a `--check` that failed: `np.allclose(out, ref)`, `(out == ref).all()`, and the like.

The expression is parsed, and the two sides are evaluated again. The sentence tells which element is wrong first, how many are, the
largest error, and which program stored the element.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

#: Functions that compare two arrays, with their default tolerances (relative, absolute).
COMPARISONS = {
    "allclose": (1e-5, 1e-8),
    "isclose": (1e-5, 1e-8),
    "assert_allclose": (1e-7, 0.0),
    "assert_close": (1e-5, 1e-8),
    "array_equal": (0.0, 0.0),
    "assert_array_equal": (0.0, 0.0),
    "equal": (0.0, 0.0),
}
WRAPPERS = ("all", "bool", "item", "get")


@dataclass(frozen=True)
class Sides:
    """The two expressions that a check compares, as source, and the tolerances."""

    left: str
    right: str
    rtol: float
    atol: float


def sides(text: str, evaluate: Callable[[str], Any]) -> Sides | None:
    """The two sides of a comparison, or None if the expression is of another form."""
    node: ast.expr = ast.parse(text, mode="eval").body
    while isinstance(node, ast.Call) and _name(node.func) in WRAPPERS:
        if node.args:  # np.all(a == b)
            node = node.args[0]
        elif isinstance(node.func, ast.Attribute):  # (a == b).all()
            node = node.func.value
        else:
            return None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        return Sides(ast.unparse(node.left), ast.unparse(node.comparators[0]), 0.0, 0.0)
    if not isinstance(node, ast.Call) or _name(node.func) not in COMPARISONS:
        return None
    operands = [ast.unparse(arg) for arg in node.args]
    if isinstance(node.func, ast.Attribute) and len(operands) == 1:  # out.equal(ref)
        owner = ast.unparse(node.func.value)
        if not isinstance(evaluate(owner), ModuleType):
            operands.insert(0, owner)
    if len(operands) < 2:
        return None
    rtol, atol = COMPARISONS[_name(node.func)]
    given: dict[str, Any] = dict(zip(("rtol", "atol"), operands[2:4], strict=False))
    given |= {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg in ("rtol", "atol")}
    return Sides(
        operands[0],
        operands[1],
        float(evaluate(given["rtol"])) if "rtol" in given else rtol,
        float(evaluate(given["atol"])) if "atol" in given else atol,
    )


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@dataclass(frozen=True)
class WrongElement:
    """The first wrong element: the `side` whose array the kernel stored, its `index` in row-major order, and a sentence.
    `worst` is the index of the element with the largest error."""

    sides: Sides
    shape: tuple[int, ...]
    index: int
    text: str
    worst: int = -1


def compare(found: Sides, left: Any, right: Any) -> WrongElement | str | None:
    """The first element at which two arrays differ, or a sentence if their shapes do; None if they agree or are no arrays."""
    a, b = to_numpy(left), to_numpy(right)
    if a.dtype == object or b.dtype == object:
        return None
    try:
        x, y = np.broadcast_arrays(a, b)
    except ValueError:
        return f"`{found.left}` has the shape {a.shape}, and `{found.right}` {b.shape}"
    exact = x.dtype.kind in "iub" and y.dtype.kind in "iub"
    if exact:
        wrong, error = x != y, np.abs(x.astype(np.float64) - y.astype(np.float64))
    else:
        wide = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
        x, y = x.astype(wide), y.astype(wide)
        with np.errstate(all="ignore"):
            error = np.abs(x - y)
            wrong = ~((error <= found.atol + found.rtol * np.abs(y)) | (x == y))
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    index = int(np.argmax(wrong))
    finite = np.where(np.isfinite(error) & wrong, error, -1.0)
    largest = ""
    if finite.max() >= 0:
        at = int(np.argmax(finite))
        largest = f", the largest error is {finite.reshape(-1)[at]:.3g} at {spell(at, x.shape)}"
    nans = int(np.count_nonzero(np.isnan(x) & ~np.isnan(y))) if not exact else 0
    text = (
        f"`{found.left}`{spell(index, x.shape)} is {x.reshape(-1)[index]:.6g}, not {y.reshape(-1)[index]:.6g}: "
        f"{count} of {x.size} elements are wrong{largest}" + (f"; {nans} are NaN" if nans else "")
    )
    worst = int(np.argmax(np.where(wrong, np.where(np.isnan(error), np.inf, error), -1.0)))
    return WrongElement(found, x.shape, index, text, worst)


def spell(index: int, shape: tuple[int, ...]) -> str:
    """ "[3, 7]": an index in row-major order, by axis."""
    return f"[{', '.join(str(int(i)) for i in np.unravel_index(index, shape))}]" if shape else ""


def to_numpy(value: Any) -> np.ndarray:
    """An array or tensor of any library as a NumPy array on the host."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return value.float().numpy() if value.dtype.is_floating_point else value.numpy()
    if hasattr(value, "get") and hasattr(value, "dtype"):
        value = value.get()  # CuPy
    return np.asarray(value)


def argument_of(value: Any, given: Mapping[str, Any]) -> str | None:
    """The name of the argument of a launch that is this array, or shares its first element."""
    for name, argument in given.items():
        if argument is value:
            return name
    address = _address(value)
    for name, argument in given.items():
        if address is not None and _address(argument) == address and argument.shape == value.shape:
            return name
    return None


def _address(value: Any) -> int | None:
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    pointer = getattr(value, "data_ptr", None)
    if callable(pointer):
        return int(pointer())
    data = getattr(value, "data", None)
    return getattr(data, "ptr", None)
