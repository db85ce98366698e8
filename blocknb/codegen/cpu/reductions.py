"""Reductions inside the loops of a group.

Along the vector loop each of the unrolled vectors has an accumulator; at the end of the row they are combined, then the lanes, by
halves. Along another loop the result itself is the accumulator, in scratch. Sums, products, extrema and bitwise operations start
from their identity; any other combine function starts from the first element, with a select. Sums of fp16 and bf16 are kept in
fp32 and rounded at the end. For a maximum of floats see `extrema`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blocknb.codegen.cpu import memory
from blocknb.codegen.cpu.elementwise import combine, machine_extremum
from blocknb.codegen.cpu.extrema import Extremes
from blocknb.codegen.cpu.fusion import identity
from blocknb.codegen.scalar_math import casts, narrow_floats
from blocknb.codegen.scalar_math.register_types import NARROW, SIZES, constant, register_type
from blocknb.codegen.text import vector_type
from blocknb.ir.core import Op, Value
from blocknb.language.types import DType

if TYPE_CHECKING:
    from blocknb.codegen.cpu.loop_nests import Group
    from blocknb.codegen.cpu.vectors import Body


#: The combine block of argmax and argmin (`frontend.numeric`), arguments 0 to 3, each op with the numbers of its operands.
INTEGER_WINS = (
    "cmp better 0 2", "cmp eq 0 2", "cmp lt 1 3", "and  5 6", "or  4 7", "select  8 0 2", "select  8 1 3", "yield  9 10",
)  # fmt: skip
FLOAT_WINS = (
    "cmp better 0 2", "cmp eq 0 2", "cmp ne 2 2", "cmp eq 0 0", "and  6 7", "or  4 8", "or  5 6", "cmp lt 1 3", "and  10 11",
    "or  9 12", "select  13 0 2", "select  13 1 3", "yield  14 15",
)  # fmt: skip
REGISTER = 16  # bytes of the smallest vector register


def plain_combine(op: Op) -> Op | None:
    """The one operation of a combine block such as (a, b) -> a + b, if it is that simple."""
    block = op.blocks[0]
    if len(op.args) != 1 or len(block.ops) != 2:
        return None
    inner, end = block.ops
    if end.args != inner.results or set(inner.args) != set(block.args):
        return None
    return inner if inner.name in ("add", "mul", "max", "min", "and", "or", "xor") else None


def identity_of_places(op: Op) -> tuple[float | int, int] | None:
    """What leaves (value, place) pairs alone, where the block is that of argmax or argmin with ties broken to the left, else None:
    the worst value at the last place, of floats a NaN."""
    block = op.blocks[0]
    if len(op.args) != 2 or block.ops[0].name != "cmp":
        return None
    numbers = {value: i for i, value in enumerate(block.args)}
    steps = []
    for inner in block.ops:
        steps.append(" ".join([inner.name, inner.attrs.get("pred", ""), *(str(numbers.get(a)) for a in inner.args)]))
        numbers.update({result: len(numbers) for result in inner.results})
    (value, place), predicate = (v.type.dtype for v in op.args), block.ops[0].attrs["pred"]
    wins = FLOAT_WINS if value.is_float else INTEGER_WINS
    if (
        place.kind != "int"
        or predicate not in ("gt", "lt")
        or steps != [step.replace("better", predicate) for step in wins]
    ):
        return None
    low = -(1 << value.bits - 1) if value.is_signed else 0
    worst = math.nan if value.is_float else low if predicate == "gt" else low + (1 << value.bits) - 1
    return worst, (1 << place.bits - 1) - 1


def identity_of(op: Op, dtype: DType) -> float | int | None:
    """What leaves every operand of a plain combination alone."""
    nan = op.attrs.get("nan")
    low, high = (
        (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.is_signed else (0, (1 << dtype.bits) - 1)
    )
    match op.name:
        case "add":
            return -0.0 if dtype.is_float else 0
        case "mul":
            return 1
        case "or" | "xor":
            return 0
        case "and":
            return True if dtype.bits == 1 else -1
        case "max" | "min" if dtype.is_float:
            # Where NaNs lose, a NaN is the identity, and a row of NaNs alone stays one.
            return math.nan if not nan else -math.inf if op.name == "max" else math.inf
        case "max":
            return low
        case "min":
            return high
    return None


class Reduction:
    """One reduce op in a group."""

    def __init__(self, group: Group, op: Op):
        self.group, self.op, self.code = group, op, group.code
        self.dtypes = [v.type.dtype for v in op.args]
        shape = op.args[0].type.shape
        self.loop = identity(shape)[op.attrs["axis"]]
        plain = plain_combine(op)
        self.start = identity_of(plain, self.dtypes[0]) if plain else None
        self.wide = plain is not None and plain.name == "add" and self.dtypes[0].name in NARROW
        self.places = identity_of_places(op)
        self.extremes: Extremes | None = None
        if (
            plain
            and plain.name in ("max", "min")
            and self.dtypes[0].is_float
            and self.inner
            and not plain.attrs.get("nan")
        ):
            self.extremes = Extremes(self.code, plain.name, self.dtypes[0])
        self.slots: list[list[str]] = []
        self.rest: tuple[str, str] | None = (
            None  # whether elements at the end of the row were left out (an i1), and what each of them is
        )

    @property
    def can_unroll(self) -> bool:
        return self.start is not None or self.places is not None or not self.inner

    @property
    def inner(self) -> bool:
        return self.loop is not None and self.loop == self.group.axis

    def _combine(self, a: list[str], b: list[str], width: int) -> list[str]:
        if self.wide:
            return [self.code.binary("fadd", a[0], b[0], "float", width)]
        return combine(self.code, self.op.blocks[0], [*a, *b], width)

    @property
    def _elements(self) -> list[str]:
        """The LLVM types of the accumulators along the vectors."""
        return self.extremes.elements if self.extremes else [register_type(d) for d in self.dtypes]

    def _merged(self, a: list[str], b: list[str], width: int) -> list[str]:
        return self.extremes.merged(a, b, width) if self.extremes else self._combine(a, b, width)

    def _zero(self, dtype: Any, width: int) -> str:
        return constant(self.start if self.start is not None else 0, dtype, width)

    # -- around the loops ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before all loops."""
        w, g = self.code.w, self.group
        if self.inner:
            types = [vector_type(e, g.width) for e in self._elements]
            self.slots = [[w.slot(ty, "sum") for ty in types] for _ in range(g.unroll)]
        elif not self.op.results[0].type.shape:
            self.slots = [[w.slot(register_type(d)) for d in self.dtypes]]

    def start_row(self) -> None:
        if not self.inner:
            return
        for slots in self.slots:
            for slot, element, start in zip(slots, self._elements, self._starts(), strict=True):
                self.code.w.do(f"store {vector_type(element, self.group.width)} {start}, ptr {slot}")

    def _starts(self) -> list[str]:
        """What the accumulators along the vectors hold before the first element."""
        width = self.group.width
        if self.places:
            return [constant(x, d, width) for x, d in zip(self.places, self.dtypes, strict=True)]
        return self.extremes.starts(width) if self.extremes else [self._zero(d, width) for d in self.dtypes]

    def end_row(self) -> None:
        """Combines the accumulators and the lanes of a row."""
        if not self.inner:
            return
        width = self.group.width
        sets = [
            [self._read(slot, e, width) for slot, e in zip(slots, self._elements, strict=True)] for slots in self.slots
        ]
        while len(sets) > 1:
            sets = [self._merged(a, b, width) for a, b in zip(sets[::2], sets[1::2], strict=True)]
        total, told = sets[0], None
        if self.extremes:
            told, total = self.extremes.told(total, width), total[:1]
        lanes, least = width, REGISTER // SIZES[self._elements[0]]
        while width > 1:
            width //= 2
            have, lanes = lanes, max(lanes // 2, min(lanes, least))
            # Half a register is no faster than a whole one, whose lanes from `width` on do not matter any more.
            parts = [range(lanes), range(lanes, have) if lanes < have else [i ^ width for i in range(lanes)]]
            low, high = ([self._lanes(v, d, have, p) for v, d in zip(total, self.dtypes, strict=True)] for p in parts)
            if self.extremes:
                total = [machine_extremum(self.code, self.extremes.name, low[0], high[0], self._elements[0], lanes)]
            else:
                total = self._combine(low, high, lanes)
        if lanes > 1:
            total = [self._lanes(v, d, lanes, [0]) for v, d in zip(total, self.dtypes, strict=True)]
        if self.extremes and told:
            total = [self.extremes.result(total[0], told)]
        if self.rest is not None:
            skipped, value = self.rest
            element = register_type(self.dtypes[0])
            total = [self.code.select(skipped, self._combine(total, [value], 1)[0], total[0], element, 1)]
        if self.wide:
            total = [narrow_floats.rounded(self.code, total[0], self.dtypes[0], 1)]
        self._finish(total)

    def takes_at_once(self, value: str) -> str:
        """Whether combining with this scalar any number of times is combining with it once, as an i1."""
        twice, element = self._combine([value], [value], 1)[0], register_type(self.dtypes[0])
        return self.code.w.value(f"{'fcmp ueq' if self.dtypes[0].is_float else 'icmp eq'} {element} {twice}, {value}")

    def _read(self, slot: str, element: str, width: int) -> str:
        return self.code.w.value(f"load {vector_type(element, width)}, ptr {slot}")

    def _lanes(self, vector: str, dtype: Any, have: int, chosen: Sequence[int]) -> str:
        """Some of the lanes of a vector of `have`."""
        if chosen == range(have):
            return vector
        ty = vector_type(register_type(dtype), have)
        if len(chosen) == 1:
            return self.code.w.value(f"extractelement {ty} {vector}, i64 {chosen[0]}")
        lanes = ", ".join(f"i32 {i}" for i in chosen)
        return self.code.w.value(f"shufflevector {ty} {vector}, {ty} poison, <{len(chosen)} x i32> <{lanes}>")

    def _finish(self, total: list[str]) -> None:
        e, c = self.group.e, self.code
        for result, value in zip(self.op.results, total, strict=True):
            if not result.type.shape:
                e.scalars[result] = value
                continue
            place, buffer = self._place(result, None)
            c.w.do(f"store {buffer.element} {casts.to_scratch(c, value, buffer.dtype, 1)}, ptr {place}")

    def done(self) -> None:
        """After all loops."""
        if self.inner:
            return
        for result in self.op.results:
            if not result.type.shape:  # an axis of size one: the loop ran once and left its value in a slot
                e = self.group.e
                e.scalars[result] = self._read(
                    self.slots[0][self.op.results.index(result)], register_type(result.type.dtype), 1
                )

    # -- inside ----------------------------------------------------------------------------------------------------------

    def add(self, body: Body) -> None:
        """Takes one vector of the operands."""
        values = [body.value(v) for v in self.op.args]
        if not self.inner:
            self._add_outer(body, values)
            return
        width, slots = body.width, self.slots[body.number]
        old = [self._read(slot, e, width) for slot, e in zip(slots, self._elements, strict=True)]
        new = self.extremes.taken(old, values[0], width) if self.extremes else self._combine(old, values, width)
        if self.start is None and self.places is None:
            new = self._unless_first(body.position, new, values, width)
        for slot, element, value in zip(slots, self._elements, new, strict=True):
            self.code.w.do(f"store {vector_type(element, width)} {value}, ptr {slot}")

    def _unless_first(self, counter: str, new: list[str], first: list[str], width: int) -> list[str]:
        c = self.code
        is_first = c.splat(c.w.value(f"icmp eq i64 {counter}, 0"), "i1", width)
        return [
            c.select(is_first, f, n, register_type(d), width) for f, n, d in zip(first, new, self.dtypes, strict=True)
        ]

    def _place(self, result: Value, body: Body | None) -> tuple[str, memory.Buffer]:
        """The pointer to the element of a result for the current counters (and the first lane of a body)."""
        c, e, g = self.code, self.group.e, self.group
        buffer = e.buffers[result]
        axis = self.op.attrs["axis"]
        index = identity(self.op.args[0].type.shape)
        index = index[:axis] + index[axis + 1 :]
        offset = "0"
        for loop, stride in zip(index, buffer.strides, strict=True):
            if loop is None or not stride:
                continue
            counter = body.position if body is not None and loop == g.axis else g.counters[loop]
            offset = c.binary("add", offset, c.binary("mul", counter, str(stride), "i64", 1), "i64", 1)
        return c.w.value(f"getelementptr inbounds {buffer.element}, ptr {e.buffer_base(buffer)}, i64 {offset}"), buffer

    def _add_outer(self, body: Body, values: list[str]) -> None:
        c, g, width = self.code, self.group, body.width
        if not self.op.results[0].type.shape:
            for slot, dtype, value in zip(self.slots[0], self.dtypes, values, strict=True):
                c.w.do(f"store {register_type(dtype)} {value}, ptr {slot}")
            return
        places = [self._place(r, body) for r in self.op.results]
        if self.loop is not None:
            old = []
            for (place, buffer), _ in zip(places, self.dtypes, strict=True):
                raw = memory.load_vector(c, place, buffer.element, width, SIZES[buffer.element])
                old.append(casts.from_scratch(c, raw, buffer.dtype, width))
            new = self._combine(old, values, width)
            values = self._unless_first(g.counters[self.loop], new, values, width)
            if self.wide:
                last = c.w.value(f"icmp eq i64 {g.counters[self.loop]}, {g.shape[self.loop] - 1}")
                rounded = narrow_floats.rounded(c, values[0], self.dtypes[0], width)
                values = [c.select(c.splat(last, "i1", width), rounded, values[0], "float", width)]
        for (place, buffer), value in zip(places, values, strict=True):
            memory.store_vector(
                c, place, casts.to_scratch(c, value, buffer.dtype, width), buffer.element, width, SIZES[buffer.element]
            )
