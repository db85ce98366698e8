"""Ranges of global memory that accesses touch, to prove that two accesses touch different elements, in one iteration of a loop or across.

An `AccessRange` is the linear form of a pointer tile. It has an offset from its base, and the least and the largest distance of an element
from that offset. Two ranges from one base are apart if the difference of their offsets is a known number that is large enough. A range from
an earlier iteration has moved on by a known step. Compilers call this a strong single-index-variable dependence test (Goff, Kennedy &
Tseng, "Practical dependence testing", PLDI 1991).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from blocknb.analysis import affine
from blocknb.analysis.linear_forms import DIM, ITERATION, VALUE, Form, Symbol
from blocknb.ir.core import Op, Value, walk


@dataclass(frozen=True)
class AccessRange:
    """The elements from `offset + low` to `offset + high`, counted from `base`. `step`: the access belongs to any earlier iteration of a
    loop, in which the offset grows by this number of elements per iteration. None: to the same iteration."""

    base: Value
    offset: Form
    low: int
    high: int
    step: int | None = None

    def is_disjoint(self, later: AccessRange) -> bool:
        """Whether a later access, of the current iteration, touches none of these elements."""
        if self.base is not later.base:
            return False
        if (distance := (later.offset - self.offset).constant) is None:
            return False
        if self.step is None:
            return distance + later.low > self.high or distance + later.high < self.low
        if self.step > 0:
            return distance + self.step + later.low > self.high
        return distance + self.step + later.high < self.low

    def in_next_iteration(self, loop: Op, made: Collection[Value]) -> AccessRange | None:
        """The range as a later iteration of a loop sees it. `made` are the values that the loop's blocks make. None if its distance
        from the later iteration's ranges is unknown."""
        inner = {op.id for block in loop.blocks for op in walk(block)}
        varying = [m for m in self.offset.terms if any(_varies(s, loop, made, inner) for s in m)]
        if self.base in made or not varying:
            return None if self.base in made else self
        symbols = [s for m in varying for s in m]
        if len(symbols) != 1 or symbols[0].kind != ITERATION or symbols[0].value.id != loop.id:
            return None
        return replace(self, step=self.offset.terms[varying[0]])


def _varies(symbol: Symbol, loop: Op, made: Collection[Value], inner: Collection[int]) -> bool:
    """Whether a symbol may have another value in another iteration of a loop."""
    if symbol.kind == VALUE:
        return symbol.value in made
    return symbol.value.id == loop.id or symbol.value.id in inner


def range_of(facts: affine.Facts, pointer: Value) -> AccessRange | None:
    """The range of a pointer or of a tile of pointers; None if its strides are no known numbers."""
    form, base = facts.form(pointer), facts.base(pointer)
    if form is None or base is None:
        return None
    low = high = 0
    for axis, extent in enumerate(pointer.type.shape):
        stride = facts.stride(pointer, axis) if extent > 1 else 0
        if not isinstance(stride, int):
            return None
        reach = stride * (extent - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    offset = form.only(lambda monomial: not any(s.kind == DIM for s in monomial))
    if not all(s.is_uniform for s in offset.symbols()):
        return None
    return AccessRange(base, offset, low, high)
