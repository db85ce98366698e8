"""Reads the mask of an access as an upper and a lower bound for each axis of the tile.

The module compares linear forms, so the side of a term does not matter: `inner < k - step * 64` and `step * 64 + inner < k` are the same
bound. The bound of an axis is a uniform form r with `index + r < 0` (upper) or `index + r >= 0` (lower).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blocknb.analysis import ranges
from blocknb.analysis.linear_forms import VALUE, Form
from blocknb.ir.core import Op, Value
from blocknb.language.ops import PRESERVING

if TYPE_CHECKING:
    from blocknb.analysis.affine import Facts

NOT_BOUNDS = "its mask is not the bounds of an array"


@dataclass
class Bounds:
    """The bounds by axis: r of `index + r < 0` (upper) and of `index + r >= 0` (lower). Each form of `uniform` must also be negative."""

    upper: dict[int, Form] = field(default_factory=dict)
    lower: dict[int, Form] = field(default_factory=dict)
    uniform: list[Form] = field(default_factory=list)


def bounds_of(facts: Facts, mask: Value | None) -> Bounds | str:
    """The bounds that a mask states, or the reason why it is not a set of bounds (a phrase for a note)."""
    found = Bounds()
    for condition in _conditions(facts, mask, _same(mask)) if mask is not None else ():
        if isinstance(condition, str):
            return condition
        if (why := _enter(found, condition)) is not None:
            return why
    return found


def _same(mask: Value) -> dict[int, int]:
    return {i: i for i in range(len(mask.type.shape))}


def _enter(found: Bounds, negative: Form) -> str | None:
    """Adds the condition that a form is negative."""
    axes = {a for s in negative.symbols() for a in s.axes if a >= 0}
    if not axes:
        found.uniform.append(negative)
        return None
    if len(axes) != 1:
        return NOT_BOUNDS
    (axis,) = axes
    cut = negative.split(axis)
    if cut is None or cut[0].constant not in (1, -1):
        return NOT_BOUNDS
    rest = cut[1]
    table = found.upper
    if cut[0].constant == -1:  # -index + rest < 0, which is index - rest - 1 >= 0
        table, rest = found.lower, -rest - Form.of(1)
    if table.setdefault(axis, rest) != rest:
        return "its mask bounds an axis twice"
    return None


def _conditions(facts: Facts, mask: Value, axes: Mapping[int, int]) -> Iterator[Form | str]:
    """The forms that a mask requires to be negative, in the axes of the access. `axes` maps the axes of this mask to those."""
    if facts.truth(mask):
        return
    op = facts.definition.get(mask)
    if op is None:
        yield NOT_BOUNDS
        return
    match op.name:
        case "and":
            for part in op.args:
                yield from _conditions(facts, part, axes)
        case name if name in PRESERVING and name != "part":
            inner = _inner_axes(op)
            if inner is None:
                yield NOT_BOUNDS
            else:
                yield from _conditions(facts, op.args[0], {i: axes[a] for i, a in inner.items() if a in axes})
        case "cmp":
            yield from _compared(facts, op, axes)
        case _:
            yield NOT_BOUNDS


def _inner_axes(op: Op) -> dict[int, int] | None:
    """Maps each axis of a shape op's operand (except those of size one) to its axis of the result; None if the op splits or merges axes."""
    old, new = op.args[0].type.shape, op.result.type.shape
    moving = [i for i, n in enumerate(old) if n > 1]
    match op.name:
        case "splat":
            return {}
        case "expand_dims":
            return {i: i + (i >= op.attrs["axis"]) for i in moving}
        case "trans":
            return {axis: i for i, axis in enumerate(op.attrs["perm"]) if axis in moving}
        case "reshape":
            there = [i for i, n in enumerate(new) if n > 1]
            same = [old[i] for i in moving] == [new[i] for i in there]
            return dict(zip(moving, there, strict=True)) if same else None
    return {i: i for i in moving}


def _compared(facts: Facts, op: Op, axes: Mapping[int, int]) -> Iterator[Form | str]:
    a, b = op.args
    pred = op.attrs["pred"]
    if not a.type.dtype.is_integer or a.type.dtype.kind == "bool" or pred in ("eq", "ne"):
        yield NOT_BOUNDS
        return
    small, large = (a, b) if pred in ("lt", "le") else (b, a)
    x, y = facts.integer(small), facts.integer(large) + Form.of(pred in ("le", "ge"))
    negatives = [x - y]
    if a.type.dtype.kind == "uint":
        if ranges.interval(facts, y, large.type.shape)[1] > 1 << a.type.dtype.bits - 1:
            yield NOT_BOUNDS
            return
        # This is 0 <= x < y in one comparison: a negative number, read as unsigned, is larger than any size.
        x = _signed(facts, x)
        negatives = [x - y, -x - Form.of(1)]
    for form in negatives:
        if all(axis in axes for s in form.symbols() for axis in s.axes if axis >= 0):
            yield form.renamed(axes)
        else:
            yield NOT_BOUNDS


def _signed(facts: Facts, form: Form) -> Form:
    """The form before a cast to the unsigned type of the same width; the form itself if it is not such a cast."""
    ((monomial, coefficient),) = form.terms.items() if len(form.terms) == 1 else (((), 0),)
    if coefficient != 1 or len(monomial) != 1 or monomial[0].kind != VALUE:
        return form
    (symbol,) = monomial
    op = facts.definition.get(symbol.value)
    if op is None or op.name != "cast":
        return form
    source, dtype = op.args[0].type.dtype, op.result.type.dtype
    inner = facts.form(op.args[0])
    if inner is None or source.kind != "int" or source.bits != dtype.bits:
        return form
    return inner.renamed(dict(enumerate(symbol.axes)))
