"""Reductions inside the loops of a nest.

Along the vector loop, each of the unrolled vectors has an accumulator. At the end of the row the accumulators are combined, then the
lanes, by halves. Along another loop the result in scratch is itself the accumulator. Sums, products, extrema and bitwise operations
start from their identity. Any other combine function starts from the first element, with a select. Sums of fp16 and bf16 are kept in
fp32 and rounded at the end. `extrema` describes maxima of floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.context import VersionContext, VersionPart
from blocknb.codegen.cpu.dataflow import identity
from blocknb.codegen.cpu.elementwise import combine, machine_extremum
from blocknb.codegen.cpu.extrema import ExtremumAccumulators
from blocknb.codegen.cpu.nests import LoopNest
from blocknb.codegen.cpu.reduction_kinds import ReductionKind
from blocknb.codegen.cpu.vectors import VectorBody
from blocknb.codegen.scalar_math import casts, narrow_floats
from blocknb.codegen.scalar_math.register_types import SIZES, constant, register_type
from blocknb.codegen.text import vector_type
from blocknb.ir.core import Op, Value

REGISTER = 16  # bytes of the smallest vector register


class Reduction(VersionPart):
    """Emits one reduce op of a nest.

    `tail`: whether the loop left out padding at the end of the row (an i1), and the value of the padding.
    """

    def __init__(self, context: VersionContext, op: Op, nest: LoopNest):
        super().__init__(context)
        self.kind, self.nest = ReductionKind(op), nest
        self.extremes: ExtremumAccumulators | None = None
        if self.inner and self.kind.plain and self.kind.is_float_extremum():
            self.extremes = ExtremumAccumulators(self.code, self.kind.plain.name, self.kind.dtypes[0])
        self.slots: list[list[str]] = []
        self.tail: tuple[str, str] | None = None

    @property
    def inner(self) -> bool:
        """Whether it reduces along the vector loop."""
        return self.kind.inner(self.nest.axis)

    def _combine(self, a: list[str], b: list[str], width: int) -> list[str]:
        if self.kind.wide:
            return [self.code.binary("fadd", a[0], b[0], "float", width)]
        return combine(self.code, self.kind.op.blocks[0], [*a, *b], width)

    @property
    def _elements(self) -> list[str]:
        """The LLVM types of the accumulators along the vectors."""
        return self.extremes.elements if self.extremes else [register_type(d) for d in self.kind.dtypes]

    def _merged(self, a: list[str], b: list[str], width: int) -> list[str]:
        return self.extremes.merged(a, b, width) if self.extremes else self._combine(a, b, width)

    # -- around the loops ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before all loops."""
        w = self.code.w
        if self.inner:
            types = [vector_type(e, self.nest.width) for e in self._elements]
            self.slots = [[w.slot(ty, "sum") for ty in types] for _ in range(self.nest.unroll)]
        elif not self.kind.op.results[0].type.shape:
            self.slots = [[w.slot(register_type(d)) for d in self.kind.dtypes]]

    def start_row(self) -> None:
        """Before a row: sets the accumulators to their initial values."""
        if not self.inner:
            return
        for slots in self.slots:
            self._store(slots, self._starts(), self.nest.width)

    def _starts(self) -> list[str]:
        """The initial values of the accumulators along the vectors."""
        width = self.nest.width
        if self.kind.places:
            return [constant(x, d, width) for x, d in zip(self.kind.places, self.kind.dtypes, strict=True)]
        start = 0 if self.kind.start is None else self.kind.start
        return self.extremes.starts(width) if self.extremes else [constant(start, d, width) for d in self.kind.dtypes]

    def end_row(self) -> None:
        """Combines the accumulators and the lanes of a row."""
        if not self.inner:
            return
        width = self.nest.width
        sets = [self._load(slots, width) for slots in self.slots]
        while len(sets) > 1:
            sets = [self._merged(a, b, width) for a, b in zip(sets[::2], sets[1::2], strict=True)]
        total, found = sets[0], None
        if self.extremes:
            found, total = self.extremes.flags(total, width), total[:1]
        lanes, least = width, REGISTER // SIZES[self._elements[0]]
        while width > 1:
            width //= 2
            have, lanes = lanes, max(lanes // 2, min(lanes, least))
            # Half a register is no faster than a whole one, so lanes from `width` on stay, and are ignored.
            parts = [range(lanes), range(lanes, have) if lanes < have else [i ^ width for i in range(lanes)]]
            typed = list(zip(total, self.kind.dtypes, strict=True))
            low, high = ([self._lanes(v, d, have, p) for v, d in typed] for p in parts)
            if self.extremes:
                total = [machine_extremum(self.code, self.extremes.name, low[0], high[0], self._elements[0], lanes)]
            else:
                total = self._combine(low, high, lanes)
        if lanes > 1:
            total = [self._lanes(v, d, lanes, [0]) for v, d in zip(total, self.kind.dtypes, strict=True)]
        if self.extremes and found:
            total = [self.extremes.result(total[0], found)]
        if self.tail is not None:
            skipped, value = self.tail
            element = register_type(self.kind.dtypes[0])
            total = [self.code.select(skipped, self._combine(total, [value], 1)[0], total[0], element, 1)]
        if self.kind.wide:
            total = [narrow_floats.rounded(self.code, total[0], self.kind.dtypes[0], 1)]
        self._finish(total)

    def is_idempotent(self, value: str) -> str:
        """Whether combining with a scalar many times is the same as combining with it once, as an i1."""
        twice, element = self._combine([value], [value], 1)[0], register_type(self.kind.dtypes[0])
        equal = "fcmp ueq" if self.kind.dtypes[0].is_float else "icmp eq"
        return self.code.w.value(f"{equal} {element} {twice}, {value}")

    def _load(self, slots: list[str], width: int) -> list[str]:
        types = [vector_type(element, width) for element in self._elements]
        return [self.code.w.value(f"load {ty}, ptr {slot}") for slot, ty in zip(slots, types, strict=True)]

    def _store(self, slots: list[str], values: list[str], width: int) -> None:
        for slot, element, value in zip(slots, self._elements, values, strict=True):
            self.code.w.do(f"store {vector_type(element, width)} {value}, ptr {slot}")

    def _lanes(self, vector: str, dtype: Any, have: int, chosen: Sequence[int]) -> str:
        """Selects some lanes of a vector of `have` lanes."""
        if chosen == range(have):
            return vector
        ty = vector_type(register_type(dtype), have)
        if len(chosen) == 1:
            return self.code.w.value(f"extractelement {ty} {vector}, i64 {chosen[0]}")
        lanes = ", ".join(f"i32 {i}" for i in chosen)
        return self.code.w.value(f"shufflevector {ty} {vector}, {ty} poison, <{len(chosen)} x i32> <{lanes}>")

    def _finish(self, total: list[str]) -> None:
        c = self.code
        for result, value in zip(self.kind.op.results, total, strict=True):
            if not result.type.shape:
                self.scalars[result] = value
                continue
            place, buffer = self._place(result, None)
            c.w.do(f"store {buffer.element} {casts.to_scratch(c, value, buffer.dtype, 1)}, ptr {place}")

    def done(self) -> None:
        """After all loops."""
        if self.inner:
            return
        results = self.kind.op.results
        if not results[0].type.shape:  # an axis of size one: the loop stored its values in slots
            for result, value in zip(results, self._load(self.slots[0], 1), strict=True):
                self.scalars[result] = value

    # -- inside ----------------------------------------------------------------------------------------------------------

    def add(self, body: VectorBody) -> None:
        """Combines one vector of the operands."""
        values = [body.value(v) for v in self.kind.op.args]
        if not self.inner:
            self._add_outer(body, values)
            return
        width, slots = body.width, self.slots[body.number]
        old = self._load(slots, width)
        new = self.extremes.updated(old, values[0], width) if self.extremes else self._combine(old, values, width)
        if self.kind.start is None and self.kind.places is None:
            new = self._unless_first(body.position, new, values, width)
        self._store(slots, new, width)

    def _unless_first(self, counter: str, new: list[str], first: list[str], width: int) -> list[str]:
        c = self.code
        is_first = c.splat(c.w.value(f"icmp eq i64 {counter}, 0"), "i1", width)
        pairs = zip(first, new, self.kind.dtypes, strict=True)
        return [c.select(is_first, f, n, register_type(d), width) for f, n, d in pairs]

    def _place(self, result: Value, body: VectorBody | None) -> tuple[str, ScratchBuffer]:
        """The pointer to the element of a result for the current counters (and the first lane of a body)."""
        buffer, offset = self.tiles.buffers[result], "0"
        axis = self.kind.op.attrs["axis"]
        index = identity(self.kind.op.args[0].type.shape)
        index = index[:axis] + index[axis + 1 :]
        for loop, stride in zip(index, buffer.strides, strict=True):
            if loop is None or not stride:
                continue
            along = body is not None and loop == self.nest.axis
            counter = body.position if along and body is not None else self.nest.counters[loop]
            offset = self.code.add_scaled(offset, counter, stride)
        return self.tiles.element(buffer, offset), buffer

    def _add_outer(self, body: VectorBody, values: list[str]) -> None:
        c, nest, width = self.code, self.nest, body.width
        if not self.kind.op.results[0].type.shape:
            self._store(self.slots[0], values, 1)
            return
        places = [self._place(r, body) for r in self.kind.op.results]
        if self.kind.loop is not None:
            old = [self.tiles.read(buffer, place, width) for place, buffer in places]
            new = self._combine(old, values, width)
            values = self._unless_first(nest.counters[self.kind.loop], new, values, width)
            if self.kind.wide:
                last = c.w.value(f"icmp eq i64 {nest.counters[self.kind.loop]}, {nest.shape[self.kind.loop] - 1}")
                rounded = narrow_floats.rounded(c, values[0], self.kind.dtypes[0], width)
                values = [c.select(c.splat(last, "i1", width), rounded, values[0], "float", width)]
        for (place, buffer), value in zip(places, values, strict=True):
            self.tiles.write(buffer, place, value, width)
