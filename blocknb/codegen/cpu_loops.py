"""A group of tile operations as one loop nest: rows outside, vectors inside.

The vector loop runs along the axis on which most bytes are contiguous. What is the same for a whole row, and every form of
`cpu_kinds`, is worked out before it. The vector loop then comes in two parts: up to the least bound of all masks, several vectors
an iteration and without any mask, and the rest one vector at a time with masks. Reductions along the loop keep an accumulator for
each of the several vectors; along another axis they accumulate in their result. Results are written to scratch only if another
loop needs them, after everything else in an iteration, so that a result may take the place of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from blocknb.codegen import cpu_memory as memory
from blocknb.codegen.cpu_elementwise import COSTS, elementwise
from blocknb.codegen.cpu_graph import Index, identity
from blocknb.codegen.cpu_kinds import VARYING, Kind, Kinds, Prefix, Progression, Stored, Uniform, Varying
from blocknb.codegen.cpu_memory import Buffer
from blocknb.codegen.cpu_ops import SIZES, Code, constant, memory_type, register_bits, register_type
from blocknb.codegen.cpu_reduce import Reduction
from blocknb.codegen.text import Writer, vector_type
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.types import Pointer

if TYPE_CHECKING:
    from blocknb.codegen.cpu_blocks import Emitter

Place = Callable[[Value, "int | None"], Buffer]
UNROLL_COST = 12  # vectors an iteration times the cost of one stay near this


@contextmanager
def counted(w: Writer, start: str, stop: str, step: int, hint: str = "i") -> Iterator[str]:
    """A loop of an i64 counter from start to stop, at least zero times; yields the counter's name."""
    slot = w.slot("i64", hint)
    head, body, done = (w.fresh(hint + s) for s in (".head", ".body", ".done"))
    w.do(f"store i64 {start}, ptr {slot}")
    w.place(head)
    counter = w.value(f"load i64, ptr {slot}")
    w.branch(w.value(f"icmp slt i64 {counter}, {stop}"), body, done)
    w.place(body)
    yield counter
    after = w.value(f"add nsw i64 {counter}, {step}")
    w.do(f"store i64 {after}, ptr {slot}")
    w.jump(head)
    w.place(done)


class Group:
    """Emits one group: `ops` in program order over loops of sizes `shape`.

    `outputs` are the values to be written to scratch; `place(value, axis)` gives each its buffer, which had better run along `axis`.
    """

    def __init__(
        self, emitter: Emitter, ops: Sequence[Op], shape: tuple[int, ...], outputs: Sequence[Value], place: Place
    ):
        self.e, self.code, self.program = emitter, emitter.code, emitter.program
        self.ops, self.shape = list(ops), shape
        self.members = {r for op in self.ops for r in op.results if op.name != "reduce"}
        self.axis = choose_axis(emitter, self.ops, shape, outputs)
        self.outputs = [(v, place(v, self.axis)) for v in outputs]
        self.size = shape[self.axis] if self.axis is not None else 1
        self.width = self._width()
        self.unroll = self._unroll()
        self.counters: dict[int, str] = {}
        self.reductions = {op: Reduction(self, op) for op in self.ops if op.name == "reduce"}

    def _width(self) -> int:
        bits = [8]
        for op in self.ops:
            bits += [
                register_bits(v.type.dtype)
                for v in (*op.results, *op.args[op.name == "store" :])
                if not isinstance(v.type.dtype, Pointer)
            ]
        bits += [register_bits(v.type.dtype) for v, _ in self.outputs]
        width = self.e.machine.vector_bytes * 8 // max(bits)
        panels = [b.panel[2] for _, b in self.outputs if b.panel]
        return min([width, self.size, *panels])

    def _unroll(self) -> int:
        if self.e.alias:
            return 1  # rarely used: arguments that overlap
        cost = sum(COSTS.get(op.name, 1) for op in self.ops) + len(self.outputs)
        if any(not r.can_unroll for r in (Reduction(self, op) for op in self.ops if op.name == "reduce")):
            return 1
        unroll = 4 if cost <= UNROLL_COST else 2 if cost <= 3 * UNROLL_COST else 1
        return max(1, min(unroll, self.size // self.width))

    # -- loops -----------------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        self._note()
        for r in self.reductions.values():
            r.prepare()
        self._outer([loop for loop in range(len(self.shape)) if loop != self.axis])
        for r in self.reductions.values():
            r.done()

    def _note(self) -> None:
        """Says how each access is made."""
        for op in self.ops:
            if op.name not in ("load", "store") or self.axis is None:
                continue
            index = identity(op.args[0].type.shape)
            axis = f"axis {index.index(self.axis)}" if len(index) > 1 else "the block"
            if self.axis in self.e.contiguous(op):
                lanes = f"vectors of {self.width} {op.args[0].type.dtype.element}"
                self.e.notes(op, f"{lanes} along {axis}{f', {self.unroll} at a time' if self.unroll > 1 else ''}")
            elif (op, self.axis) in self.e.uniform:
                self.e.notes(op, f"one element for all of {axis}")
            else:
                what = "gathered" if op.name == "load" else "scattered"
                self.e.notes(op, f"{what} lane by lane: neighbours along {axis} are no neighbours in memory", "missed")

    def _outer(self, loops: list[int]) -> None:
        if not loops:
            self._row()
            return
        with counted(self.code.w, "0", str(self.shape[loops[0]]), 1) as counter:
            self.counters[loops[0]] = counter
            self._outer(loops[1:])

    def _row(self) -> None:
        for r in self.reductions.values():
            r.start_row()
        kinds = self._kinds(speculate=True)
        if kinds.conditions:
            w = self.code.w
            fast, slow, done = w.fresh("straight"), w.fresh("wrapped"), w.fresh("row.done")
            holds = kinds.conditions[0]
            for condition in kinds.conditions[1:]:
                holds = self.code.binary("and", holds, condition, "i1", 1)
            w.branch(holds, fast, slow)
            w.place(fast)
            Row(self, kinds).emit()
            w.jump(done)
            w.place(slow)
            Row(self, self._kinds(speculate=False)).emit()
            w.place(done)
        else:
            Row(self, kinds).emit()
        for r in self.reductions.values():
            r.end_row()

    def _kinds(self, speculate: bool) -> Kinds:
        kinds = Kinds(
            self.program, self.code, self.axis, self.size, self.counters, self.e.scalar, self._leaf, speculate
        )
        for op in self.ops:
            with self.code.w.at(self.e.location(op)):
                for a in op.args:
                    kinds.of(a, identity(a.type.shape))
        for value, _ in self.outputs:
            kinds.of(value, identity(value.type.shape))
        return kinds

    def _leaf(self, value: Value, index: Index) -> Kind:
        """A stored tile: made in this very group, or in scratch."""
        if value in self.members:
            return VARYING
        return stored(self.e, value, index, self.axis, self.counters)


def stored(e: Emitter, value: Value, index: Index, axis: int | None, counters: dict[int, str]) -> Kind:
    """The kind of a tile in scratch."""
    buffer = e.buffers[value]
    base, step = place(e, buffer, index, axis, counters)
    if step:
        return Stored(base, step, buffer)
    raw = e.code.w.value(f"load {buffer.element}, ptr {base}")
    return Uniform(from_buffer(e.code, raw, buffer, value.type.dtype, 1))


def place(e: Emitter, buffer: Buffer, index: Index, axis: int | None, counters: dict[int, str]) -> tuple[str, int]:
    """The pointer to the element at position 0 of the row, and the stride along the row in elements."""
    c = e.code
    step, offset = 0, "0"
    for loop, stride in zip(index, buffer.strides, strict=True):
        if loop is None or not stride:
            continue
        if loop == axis:
            step += stride
        else:
            term = c.binary("mul", counters[loop], str(stride), "i64", 1)
            offset = term if offset == "0" else c.binary("add", offset, term, "i64", 1)
    return c.w.value(f"getelementptr inbounds {buffer.element}, ptr {e.buffer_base(buffer)}, i64 {offset}"), step


def from_buffer(c: Code, raw: str, buffer: Buffer, dtype: Any, width: int) -> str:
    """A register of `dtype` from what a buffer holds."""
    value = c.from_scratch(raw, buffer.dtype, width)
    return value if buffer.dtype == dtype or isinstance(dtype, Pointer) else c.cast(value, buffer.dtype, dtype, width)


def to_buffer(c: Code, value: str, buffer: Buffer, dtype: Any, width: int) -> str:
    if buffer.dtype != dtype and not isinstance(dtype, Pointer):
        value = c.cast(value, dtype, buffer.dtype, width)
    return c.to_scratch(value, buffer.dtype, width)


class Row:
    """The vector loops of one row, with the kinds that hold in it."""

    def __init__(self, group: Group, kinds: Kinds):
        self.group, self.kinds, self.code, self.e = group, kinds, group.code, group.e
        self.masks: dict[Op, Kind | None] = {}
        self.bounds: list[str] = []
        self.unsafe: dict[Op, str] = {}
        self.places: dict[Value, tuple[str, int]] = {}

    def emit(self) -> None:
        group, c = self.group, self.code
        for op in group.ops:
            if op.name in ("load", "store"):
                with c.w.at(self.e.location(op)):
                    self._prepare_access(op)
        for value, buffer in group.outputs:
            if buffer.panel is None:
                self.places[value] = place(self.e, buffer, identity(value.type.shape), group.axis, group.counters)
        full = self._full_part()
        step = group.width * group.unroll
        with counted(c.w, "0", full, step, "j") as position:
            for u in range(group.unroll):
                Body(self, c.binary("add", position, str(u * group.width), "i64", 1) if u else position, u, True).emit()
        if full != str(group.size):
            with counted(c.w, full, str(group.size), group.width, "tail") as position:
                Body(self, position, 0, False).emit()

    def _full_part(self) -> str:
        """How many positions, in whole iterations, no mask reaches into."""
        group, c = self.group, self.code
        bounds = [b for b in [*(p.count for p in self.kinds.prefixes()), *self.bounds] if b != str(group.size)]
        if not bounds:
            return str(group.size)
        least = str(group.size)
        for bound in bounds:
            least = c.intrinsic("smin", "i64", 1, least, bound)
        least = c.intrinsic("smax", "i64", 1, least, "0")
        return c.binary("and", least, str(-group.width * group.unroll), "i64", 1)

    def _prepare_access(self, op: Op) -> None:
        """Loads what is the same for the row, checks what can be checked once, notes the mask."""
        mask_at = 1 if op.name == "load" else 2
        mask = self.kind(op.args[mask_at]) if len(op.args) > mask_at else None
        pointers = self.kind(op.args[0])
        if isinstance(mask, Uniform) and mask.text == "true":
            mask = None
        if op.name == "load" and isinstance(pointers, Uniform) and (mask is None or isinstance(mask, Uniform)):
            other = self.kind(op.args[2]) if len(op.args) > 2 else None
            if other is None or isinstance(other, Uniform):
                value = memory.scalar_load(
                    self.e, op, pointers.text, mask.text if mask else None, other.text if other else None
                )
                self.kinds.memo[op.result, identity(op.result.type.shape)] = Uniform(value)
                return
        if isinstance(mask, Uniform):
            mask = self.kinds.as_prefix(mask)
            assert mask is not None
            self.bounds.append(mask.count)
        self.masks[op] = mask
        count = str(self.group.size)
        if isinstance(mask, Prefix):
            count = self.code.intrinsic("smin", "i64", 1, mask.count, count)
        if isinstance(pointers, Progression):
            if isinstance(mask, (Varying, Stored)):
                self.unsafe[op] = self.e.checks.row_outside(op, pointers.base, pointers.step, count)
            else:
                self.e.checks.row(op, pointers.base, pointers.step, count)
        else:
            self.unsafe[op] = "true"

    def kind(self, value: Value) -> Kind:
        return self.kinds.of(value, identity(value.type.shape))


class Body:
    """One vector of every value: `position` is the i64 position of its first lane, `full` that no prefix ends within it."""

    def __init__(self, row: Row, position: str, number: int, full: bool):
        self.row, self.group, self.code, self.e = row, row.group, row.code, row.e
        self.position, self.number, self.full, self.width = position, number, full, row.group.width
        self.memo: dict[tuple[Value, Index], str] = {}

    def emit(self) -> None:
        for op in self.group.ops:
            with self.code.w.at(self.e.location(op)):
                if op.name == "store":
                    self._store(op)
                elif op.name == "reduce":
                    self.group.reductions[op].add(self)
                else:
                    self.value(op.result)
        for value, buffer in self.group.outputs:
            self._output(value, buffer)

    # -- values ----------------------------------------------------------------------------------------------------------

    def value(self, value: Value) -> str:
        """A vector of a value of the group's shape."""
        return self.of(value, identity(value.type.shape))

    def of(self, value: Value, index: Index) -> str:
        key = (value, index)
        if key not in self.memo:
            self.memo[key] = self._of(value, index)
        return self.memo[key]

    def _of(self, value: Value, index: Index) -> str:
        c, dtype = self.code, value.type.dtype
        kind = self.row.kinds.of(value, index)
        match kind:
            case Uniform(text):
                return c.splat(text, register_type(dtype), self.width)
            case Progression(base, step):
                return self._progression(base, step, register_type(dtype))
            case Prefix(count):
                return constant(True, t.int1, self.width) if self.full else self._prefix(count)
            case Stored():
                return self._from_scratch(kind, dtype)
        program = self.group.program
        if program.view_of(value) is not None:
            return self.of(program.definition[value].args[0], program.operand_index(value, index))
        op = program.definition[value]
        if op.name == "load":
            return self._load(op)
        return elementwise(
            c,
            op,
            [self.of(a, index if program.recomputed(value) else identity(a.type.shape)) for a in op.args],
            self.width,
        )

    def _progression(self, base: str, step: int, element: str) -> str:
        c = self.code
        at = self.position if element == "i64" else c.convert("trunc", self.position, "i64", element, 1)
        if step != 1:
            at = c.binary("mul", at, str(step), element, 1)
        first = c.binary("add", base, at, element, 1)
        if self.width == 1:
            return first
        return c.binary(
            "add", c.splat(first, element, self.width), c.iota(element, self.width, step), element, self.width
        )

    def _prefix(self, count: str) -> str:
        """Lanes before the bound, compared in the narrowest integers that count the lanes."""
        c = self.code
        rest = c.binary("sub", count, self.position, "i64", 1)
        if self.width == 1:
            return c.w.value(f"icmp sgt i64 {rest}, 0")
        rest = c.intrinsic("smax", "i64", 1, c.intrinsic("smin", "i64", 1, rest, str(self.width)), "0")
        element = f"i{self.e.machine.vector_bytes * 8 // self.width}"
        if element not in ("i8", "i16", "i32", "i64"):
            element = "i32"
        lanes = c.splat(rest if element == "i64" else c.convert("trunc", rest, "i64", element, 1), element, self.width)
        return c.w.value(f"icmp ult {vector_type(element, self.width)} {c.iota(element, self.width)}, {lanes}")

    def _from_scratch(self, kind: Stored, dtype: Any) -> str:
        c, element = self.code, kind.buffer.element
        at = self.position if kind.step == 1 else c.binary("mul", self.position, str(kind.step), "i64", 1)
        place = c.w.value(f"getelementptr inbounds {element}, ptr {kind.base}, i64 {at}")
        if kind.step == 1 or self.width == 1:
            raw = memory.load_vector(c, place, element, self.width, SIZES[element])
        else:
            raw = memory.gather(
                c, self._lanes_from(place, kind.step * SIZES[element]), element, self.width, SIZES[element], None, None
            )
        return from_buffer(c, raw, kind.buffer, dtype, self.width)

    def _lanes_from(self, place: str, step: int) -> str:
        """Addresses place, place + step, ... in bytes."""
        c = self.code
        first = c.w.value(f"ptrtoint ptr {place} to i64")
        return c.binary("add", c.splat(first, "i64", self.width), c.iota("i64", self.width, step), "i64", self.width)

    # -- memory ----------------------------------------------------------------------------------------------------------

    def _mask(self, op: Op) -> str | None:
        """The mask of this vector; None if all lanes are on."""
        kind = self.row.masks.get(op)
        if kind is None or (isinstance(kind, Prefix) and (self.full or kind.count == str(self.group.size))):
            return None
        if isinstance(kind, Prefix):
            return self._prefix(kind.count)
        return self.value(op.args[1 if op.name == "load" else 2])

    def _contiguous(self, op: Op) -> Progression | None:
        """The addresses of an access, if its lanes are neighbours."""
        kind = self.row.kind(op.args[0])
        size = op.args[0].type.dtype.element.bytes
        return kind if isinstance(kind, Progression) and (kind.step == size or self.width == 1) else None

    def _first(self, op: Op) -> str:
        """The pointer to the first lane of neighbours."""
        kind, c = self._contiguous(op), self.code
        assert kind is not None
        at = c.binary("mul", self.position, str(kind.step), "i64", 1)
        return memory.pointer(c, c.binary("add", kind.base, at, "i64", 1))

    def _addresses(self, op: Op, mask: str | None) -> str | None:
        """Checks the lanes of an access if the row as a whole was not found safe; their addresses, None if they are neighbours."""
        c, unsafe = self.code, self.row.unsafe.get(op, "false")
        apart = self._contiguous(op) is None
        addresses = self.value(op.args[0]) if apart or unsafe != "false" else ""
        if unsafe == "true":
            self.e.checks.lanes(op, addresses, mask, self.width)
        elif unsafe != "false":
            memory.when(c, unsafe, lambda: self.e.checks.lanes(op, addresses, mask, self.width))
        return addresses if apart else None

    def _load(self, op: Op) -> str:
        c, dtype, mask, other = self.code, op.args[0].type.dtype.element, self._mask(op), None
        if len(op.args) > 2 and mask is not None:
            other = c.to_memory(self.value(op.args[2]), dtype, self.width)
        addresses = self._addresses(op, mask)
        if addresses is None:
            raw = memory.load_vector(c, self._first(op), memory_type(dtype), self.width, dtype.bytes, mask, other)
        else:
            raw = memory.gather(c, addresses, memory_type(dtype), self.width, dtype.bytes, mask, other)
        return c.from_memory(raw, dtype, self.width)

    def _store(self, op: Op) -> None:
        c, dtype, mask = self.code, op.args[0].type.dtype.element, self._mask(op)
        value = c.to_memory(self.value(op.args[1]), dtype, self.width)
        addresses = self._addresses(op, mask)
        if addresses is None:
            memory.store_vector(c, self._first(op), value, memory_type(dtype), self.width, dtype.bytes, mask)
        else:
            memory.scatter(c, addresses, value, memory_type(dtype), self.width, dtype.bytes, mask)

    def _output(self, value: Value, buffer: Buffer) -> None:
        c = self.code
        raw = to_buffer(c, self.value(value), buffer, value.type.dtype, self.width)
        element = buffer.element
        if buffer.panel is not None:
            place, step = self._panel_place(value, buffer)
        else:
            base, step = self.row.places[value]
            at = self.position if step == 1 else c.binary("mul", self.position, str(step), "i64", 1)
            place = c.w.value(f"getelementptr inbounds {element}, ptr {base}, i64 {at}")
        if step == 1 or self.width == 1:
            memory.store_vector(c, place, raw, element, self.width, SIZES[element])
        else:
            memory.scatter(
                c, self._lanes_from(place, step * SIZES[element]), raw, element, self.width, SIZES[element], None
            )

    def _panel_place(self, value: Value, buffer: Buffer) -> tuple[str, int]:
        """The place of the first lane in panels, and the stride of the lanes."""
        c = self.code
        assert buffer.panel is not None
        k_axis, n_axis, panel = buffer.panel
        index = identity(value.type.shape)

        def at(axis: int) -> str:
            loop = index[axis]
            return "0" if loop is None else self.position if loop == self.group.axis else self.group.counters[loop]

        k, n = at(k_axis), at(n_axis)
        shift = panel.bit_length() - 1
        whole = c.binary("mul", c.binary("lshr", n, str(shift), "i64", 1), str(buffer.shape[k_axis] * panel), "i64", 1)
        inside = c.binary(
            "add", c.binary("mul", k, str(panel), "i64", 1), c.binary("and", n, str(panel - 1), "i64", 1), "i64", 1
        )
        place = c.w.value(
            f"getelementptr inbounds {buffer.element}, ptr {self.e.buffer_base(buffer)}, i64 {c.binary('add', whole, inside, 'i64', 1)}"
        )
        return place, panel if index[k_axis] is not None and index[k_axis] == self.group.axis else 1


def choose_axis(e: Emitter, ops: Sequence[Op], shape: tuple[int, ...], extra: Sequence[Value]) -> int | None:
    """The loop along which most bytes are neighbours; the last one if there is no difference."""
    if not shape:
        return None

    def score(loop: int) -> tuple[float, int]:
        total = 0.0
        for op in ops:
            if op.name in ("load", "store") and loop in e.contiguous(op):
                total += op.args[0].type.dtype.element.bytes
            for a in op.args:
                total += e.scratch_contiguous(a, loop)
        return total * min(shape[loop], 8) + sum(e.scratch_contiguous(v, loop) for v in extra) * 8, loop

    return max(range(len(shape)), key=score)
