"""Rows end where their data does, not where their tile does.

Tiles are powers of two and rows are not, so up to half of a tile is what masked loads put there: one value, and what is computed from
one value is one value again. A loop over a row stops where the last mask does (`end`). The value that every element beyond has is
worked out once, as a scalar; a reduction takes it once, if taking it twice makes no difference (zero, for a sum), and else goes
on to the end of the tile. A tile in scratch is left unwritten beyond `end`, and whoever reads further writes it first (`fill`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from blocknb.codegen.cpu import memory, redzones
from blocknb.codegen.cpu.elementwise import elementwise
from blocknb.codegen.cpu.fusion import Index, identity
from blocknb.codegen.cpu.uniformity import Prefix, Progression, Stored, Uniform
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import SIZES, constant, register_type
from blocknb.codegen.scalar_math.structured import counted, guarded
from blocknb.codegen.text import vector_type
from blocknb.ir.core import Op, Value
from blocknb.language.ops import OPS

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter
    from blocknb.codegen.cpu.loop_nests import Row

MOST = 8  # results of a loop nest, each of which takes code of its own
VECTORS = 4  # a row of fewer is not worth it


class Rest(NamedTuple):
    """What a tile holds from position `end` (an i64) on: the scalar `value`. `end` is a multiple of `width`, or the tile's size."""

    end: str
    value: str
    width: int


class Padding:
    """The part of a row beyond all masks; `find` gives None where its elements may differ."""

    def __init__(self, row: Row):
        self.row, self.group, self.e, self.code = row, row.group, row.group.e, row.code
        self.counts: list[str] = []
        self._uniform: dict[tuple[Value, Index], bool] = {}
        self._values: dict[tuple[Value, Index], str] = {}
        self._slots: dict[Value, tuple[str, str]] = {}
        self.end = ""

    @staticmethod
    def find(row: Row) -> Padding | None:
        group = row.group
        if group.e.alias or "mask_bounds" in group.e.off:
            return None
        if len(group.shape) != 1 or not row.alone or group.size < VECTORS * group.width:
            return None
        if not 0 < len(group.outputs) + len(group.reductions) <= MOST:
            return None
        padding = Padding(row)
        if not all(map(padding._may_end, group.ops)):
            return None
        if any(buffer.panel or not padding._is_uniform(v, identity(v.type.shape)) for v, buffer in group.outputs):
            return None
        if not padding.counts:
            return None
        padding._finish()
        return padding

    # -- whether ---------------------------------------------------------------------------------------------------------

    def _may_end(self, op: Op) -> bool:
        """Whether an op does nothing of its own beyond the masks."""
        if op.name in ("load", "store"):
            if op.name == "load" and isinstance(self._known(op), Uniform):
                return True
            mask = self.row.masks.get(op)
            if not isinstance(mask, Prefix):
                return False
            self.counts.append(mask.count)
            return op.name == "store" or all(self._is_uniform(a, identity(a.type.shape)) for a in op.args[2:])
        if op.name == "reduce":
            reduction = self.group.reductions[op]
            plain = reduction.inner and reduction.start is not None
            return plain and self._is_uniform(op.args[0], identity(op.args[0].type.shape))
        return OPS[op.name].kind == "elementwise"

    def _known(self, op: Op) -> object:
        return self.row.kinds.memo.get((op.result, identity(op.result.type.shape)))

    def _is_uniform(self, value: Value, index: Index) -> bool:
        key = (value, index)
        if key not in self._uniform:
            self._uniform[key] = self._find_uniform(value, index)
        return self._uniform[key]

    def _find_uniform(self, value: Value, index: Index) -> bool:
        program = self.group.program
        match self.row.kinds.of(value, index):
            case Uniform():
                return True
            case Prefix(count):
                self.counts.append(count)
                return True
            case Progression():
                return False
            case Stored():
                rest = self.e.rests.get(_leaf(self.e, value))
                if rest is not None:
                    self.counts.append(rest.end)
                return rest is not None
        if program.view_of(value) is not None:
            return self._is_uniform(program.definition[value].args[0], program.operand_index(value, index))
        op = program.definition[value]
        if op.name == "load":
            return True  # `_may_end` has looked at it
        return OPS[op.name].kind == "elementwise" and all(self._is_uniform(a, i) for a, i in self._operands(op, index))

    def _operands(self, op: Op, index: Index) -> list[tuple[Value, Index]]:
        again = self.group.program.recomputed(op.result)
        return [(a, (index if again else identity(a.type.shape)) if a.type.shape else ()) for a in op.args]

    # -- what ------------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Works out where the row ends: after whole vectors, or at the end of the tile if a reduction cannot take the rest at once."""
        c, group = self.code, self.group
        size = str(group.size)
        end, *others = dict.fromkeys(self.counts)
        for other in others:
            end = c.intrinsic("smax", "i64", 1, end, other)
        end = c.intrinsic("smax", "i64", 1, c.intrinsic("smin", "i64", 1, end, size), "0")
        end = c.binary("add", end, str(group.width - 1), "i64", 1)
        end = c.binary("and", end, str(-group.width), "i64", 1)
        self.end = guarded(c.w, c.w.value(f"icmp slt i64 {end}, {size}"), "i64", size, lambda: self._work_out(end))

    def _work_out(self, end: str) -> str:
        """The end of the row, and what is beyond; not done for rows as long as their tile, which would wait for it."""
        c, group = self.code, self.group
        wanted = [op.args[0] for op in group.reductions] + [v for v, _ in group.outputs]
        values = {v: self._of(v, identity(v.type.shape)) for v in dict.fromkeys(wanted)}
        for op, reduction in group.reductions.items():
            end = c.select(reduction.takes_at_once(values[op.args[0]]), end, str(group.size), "i64", 1)
        for v, text in values.items():
            element = register_type(v.type.dtype)
            self._slots[v] = (element, c.w.slot(element))
            c.w.do(f"store {element} {text}, ptr {self._slots[v][1]}")
        return end

    def value(self, value: Value) -> str:
        """The scalar that an operand of a reduction, or a result, is beyond the end, if there is anything beyond."""
        element, slot = self._slots[value]
        return self.code.w.value(f"load {element}, ptr {slot}")

    def _of(self, value: Value, index: Index) -> str:
        key = (value, index)
        if key not in self._values:
            self._values[key] = self._make(value, index)
        return self._values[key]

    def _make(self, value: Value, index: Index) -> str:
        program = self.group.program
        match self.row.kinds.of(value, index):
            case Uniform(text):
                return text
            case Prefix():
                return "false"
            case Stored():
                return self.e.rests[_leaf(self.e, value)].value
        if program.view_of(value) is not None:
            return self._of(program.definition[value].args[0], program.operand_index(value, index))
        op = program.definition[value]
        if op.name == "load":
            return (
                self._of(op.args[2], identity(op.args[2].type.shape))
                if len(op.args) > 2
                else constant(0, value.type.dtype)
            )
        return elementwise(self.code, op, [self._of(a, i) for a, i in self._operands(op, index)], 1)

    def leave(self) -> None:
        """After the loops: tells the reductions what they have not seen, and readers of the results what is not written."""
        c, group = self.code, self.group
        skipped = c.w.value(f"icmp slt i64 {self.end}, {group.size}")
        for op, reduction in group.reductions.items():
            reduction.rest = (skipped, self.value(op.args[0]))
        types = self.e.scalars.types
        for value, buffer in group.outputs:
            rest = Rest(self.end, self.value(value), group.width)
            if self.e.build.redzones:
                fill(self.e, buffer, rest, str(group.size), poison=True)
            copied = (
                self.e.buffers.get(value) is not buffer
            )  # into another op's buffer, whose readers are not known here
            if copied or not _read_by_rows(self.e, value, group.shape):
                fill(self.e, buffer, rest, str(group.size))
            else:
                types[rest.end], types[rest.value] = "i64", register_type(value.type.dtype)
                self.e.rests[value] = rest


def _leaf(e: Emitter, value: Value) -> Value:
    """The stored tile that a value is a view of."""
    while value not in e.buffers:
        value = e.program.definition[value].args[0]
    return value


def _read_by_rows(e: Emitter, value: Value, shape: tuple[int, ...]) -> bool:
    """Whether only loop nests of this block read a tile, at the index at which it is written."""
    graph = e.scopes[-1].graph
    nodes = [(graph.node_of.get(use.op), use.at) for use in e.program.uses.get(value, ())]
    return all(node is not None and node.shape == shape and at == identity(value.type.shape) for node, at in nodes)


def fill(e: Emitter, buffer: memory.Buffer, rest: Rest, stop: str, poison: bool = False) -> None:
    """Writes what a buffer holds from the end of its row up to `stop`, or a poison, in whole vectors.

    The vectors are as wide as the writer's, whatever the reader's are. The writer's width divides both the tile's size and the
    position at which the loop starts, so no store reaches beyond the tile.
    """

    c = e.code
    element, width = buffer.element, rest.width
    scalar = redzones.poison(element) if poison else casts.to_scratch(c, rest.value, buffer.dtype, 1)
    vector = c.splat(scalar, element, width)
    base = e.buffer_base(buffer)
    with counted(c.w, rest.end, stop, width, "rest") as position:
        place = c.w.value(f"getelementptr inbounds {element}, ptr {base}, i64 {position}")
        c.w.do(f"store {vector_type(element, width)} {vector}, ptr {place}, align {SIZES[element]}")


def fill_read(row: Row, stop: str) -> None:
    """Before the loops of a row: writes what it will read and nobody has written."""
    group, e = row.group, row.group.e
    read = {leaf for op in group.ops for leaf, _, _ in e.program.needs(op)}
    read |= {leaf for v, _ in group.outputs for leaf, _ in e.program.leaves(v, identity(v.type.shape))}
    for value in [v for v in e.buffers if v in e.rests and v in read and v not in group.members]:
        if e.rests[value].end != stop:
            fill(e, e.buffers[value], e.rests[value], stop)
