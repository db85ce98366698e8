"""One vector of every value of a group: what stands in the innermost loop.

A `Body` makes vectors on demand and remembers them, so each value is worked out once an iteration. What is uniform is splatted, a
progression is its first lane plus a constant, a prefix mask is a comparison (or nothing, where the row says that it is full), and a
stored tile is read from scratch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blocknb.codegen.cpu import atomics, memory, nontemporal_stores
from blocknb.codegen.cpu.elementwise import elementwise
from blocknb.codegen.cpu.fusion import Index, identity
from blocknb.codegen.cpu.memory import Buffer
from blocknb.codegen.cpu.uniformity import Kind, Prefix, Progression, Stored, Uniform
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.register_types import SIZES, constant, memory_type, register_type
from blocknb.codegen.scalar_math.structured import when
from blocknb.codegen.text import vector_type
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.ops import ATOMICS
from blocknb.language.types import Pointer

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter
    from blocknb.codegen.cpu.loop_nests import Row


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


def from_buffer(c: InstructionBuilder, raw: str, buffer: Buffer, dtype: Any, width: int) -> str:
    """A register of `dtype` from what a buffer holds."""
    value = casts.from_scratch(c, raw, buffer.dtype, width)
    return (
        value
        if buffer.dtype == dtype or isinstance(dtype, Pointer)
        else casts.cast(c, value, buffer.dtype, dtype, width)
    )


def to_buffer(c: InstructionBuilder, value: str, buffer: Buffer, dtype: Any, width: int) -> str:
    if buffer.dtype != dtype and not isinstance(dtype, Pointer):
        value = casts.cast(c, value, dtype, buffer.dtype, width)
    return casts.to_scratch(c, value, buffer.dtype, width)


class Body:
    """One vector of every value: `position` is the i64 position of its first lane, `full` that no prefix ends within it; stores go
    past the cache if `streaming`."""

    def __init__(self, row: Row, position: str, number: int, full: bool, streaming: bool = False):
        self.streaming = streaming
        self.row, self.group, self.code, self.e = row, row.group, row.code, row.e
        self.position, self.number, self.full, self.width = position, number, full, row.group.width
        self.memo: dict[tuple[Value, Index], str] = {}

    def emit(self) -> None:
        if self.full:
            self.group.ahead.fetch(self)
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
        if op.name in ATOMICS:
            return self._atomic(op)
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
        self._owner(op)
        apart = self._contiguous(op) is None
        addresses = self.value(op.args[0]) if apart or unsafe != "false" else ""
        if unsafe == "true":
            self.e.checks.lanes(op, addresses, mask, self.width)
        elif unsafe != "false":
            when(c.w, unsafe, lambda: self.e.checks.lanes(op, addresses, mask, self.width))
        return addresses if apart else None

    def _owner(self, op: Op) -> None:
        """Tells `checks` the owners of the lanes, where the row has no single one."""
        guard = self.e.checks.guard(op)
        if guard is None or guard.carried is None:
            return
        kind = self.row.kind(guard.carried)
        register = (kind.text, 1) if isinstance(kind, Uniform) else (self.value(guard.carried), self.width)
        self.e.checks.owners[op] = register

    def _load(self, op: Op) -> str:
        c, dtype, mask, other = self.code, op.args[0].type.dtype.element, self._mask(op), None
        if len(op.args) > 2 and mask is not None:
            other = casts.to_memory(c, self.value(op.args[2]), dtype, self.width)
        addresses = self._addresses(op, mask)
        if addresses is None:
            volatile = bool(op.attrs.get("volatile"))
            raw = memory.load_vector(
                c, self._first(op), memory_type(dtype), self.width, dtype.bytes, mask, other, volatile
            )
        else:
            raw = memory.gather(c, addresses, memory_type(dtype), self.width, dtype.bytes, mask, other)
        if op.attrs.get("volatile"):
            c.w.do("fence acquire")  # keeps LLVM from merging the load with another one, or moving others across it
        return casts.from_memory(c, raw, dtype, self.width)

    def _store(self, op: Op) -> None:
        c, dtype, mask = self.code, op.args[0].type.dtype.element, self._mask(op)
        value = casts.to_memory(c, self.value(op.args[1]), dtype, self.width)
        addresses = self._addresses(op, mask)
        if addresses is None:
            element, align = memory_type(dtype), nontemporal_stores.UNIT if self.streaming else dtype.bytes
            memory.store_vector(c, self._first(op), value, element, self.width, align, mask, self.streaming)
        else:
            memory.scatter(c, addresses, value, memory_type(dtype), self.width, dtype.bytes, mask)

    def _atomic(self, op: Op) -> str:
        """One element: groups with atomics have vectors of one."""
        count = 2 if op.name == "atomic" else 3
        self._owner(op)
        address, *values = (self.value(a) for a in op.args[:count])
        mask = self.value(op.args[count]) if len(op.args) > count else None
        return atomics.update(self.e, op, address, values, mask)

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
