"""Reshapes of linear forms: axes are split and merged in row-major order.

A reshape cuts the old and the new axes into common pieces, from the innermost outwards. An old axis is the weighted sum of its pieces,
so substituting it is exact for any polynomial. The pieces of a new axis can be merged if their strides have the ratio of their weights.
A form that fits neither way has no form after the reshape.
"""

from __future__ import annotations

from typing import NamedTuple

from blocknb.analysis.linear_forms import DIM, Dim, Form

PIECES = 1000  # numbers from here on name pieces instead of axes


class Piece(NamedTuple):
    """A run of index bits: its size, and its place in the old and the new shape. A place is an axis, and the weight of one step."""

    size: int
    old: int
    old_weight: int
    new: int
    new_weight: int


def pieces(old: tuple[int, ...], new: tuple[int, ...]) -> list[Piece]:
    """The common pieces of two shapes of powers of two with equally many elements, innermost first; axes of size one have none."""
    found: list[Piece] = []
    a, b = len(old) - 1, len(new) - 1
    done_a, done_b = 1, 1
    while True:
        while a >= 0 and done_a == old[a]:
            a, done_a = a - 1, 1
        while b >= 0 and done_b == new[b]:
            b, done_b = b - 1, 1
        if a < 0 or b < 0:
            return found
        left, right = old[a] // done_a, new[b] // done_b
        size = min(left, right)
        found.append(Piece(size, a, done_a, b, done_b))
        done_a, done_b = done_a * size, done_b * size


def reshape(form: Form, old: tuple[int, ...], new: tuple[int, ...]) -> Form | None:
    """The form of the same elements in row-major order under another shape; None when it is none."""
    if not any(s.axes for s in form.symbols()):
        return form
    by_old: dict[int, list[int]] = {}
    by_new: dict[int, list[int]] = {}
    cut = pieces(old, new)
    for i, piece in enumerate(cut):
        by_old.setdefault(piece.old, []).append(PIECES + i)
        by_new.setdefault(piece.new, []).append(PIECES + i)
    torn = {axis for axis, parts in by_old.items() if len(parts) > 1}
    if any(s.kind != DIM and not torn.isdisjoint(s.axes) for s in form.symbols()):
        return None
    for axis in torn:
        form = form.replaced(Dim(axis), Form({(Dim(p),): cut[p - PIECES].old_weight for p in by_old[axis]}))
    form = form.renamed({p: p for p in range(PIECES, PIECES + len(cut))} | {a: parts[0] for a, parts in by_old.items()})
    names = {}
    for axis, parts in by_new.items():
        names[parts[0]] = axis
        if len(parts) > 1:
            merged = _merge(form, [(p, cut[p - PIECES].new_weight) for p in parts])
            if merged is None:
                return None
            form = merged
    return form.renamed(names)


def _merge(form: Form, parts: list[tuple[int, int]]) -> Form | None:
    """The pieces of one new axis (number, weight; the one of weight 1 first) merged into the first one."""
    strides, rest = [], form
    for number, weight in parts:
        if (cut := rest.split(number)) is None:
            return None
        part, rest = cut
        strides.append(part)
        if part != strides[0].scaled(weight) or any(p in s.axes for s in part.symbols() for p, _ in parts):
            return None
    return strides[0] * Form.symbol(Dim(parts[0][0])) + rest
