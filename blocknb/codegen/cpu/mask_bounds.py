"""Loop bounds from masks: the loop covers the row, not the padded tile.

Tiles are powers of two and rows are not, so up to half of a tile is padding. Masked loads fill it with one value (`other`). Elementwise ops
compute one value from one value, so all padding of a tile is equal. A loop over a row therefore stops where the last mask ends (`end`), and
the code computes the padding once, as a scalar. A reduction includes the padding once, if further copies would not change its result (zero,
for a sum). Otherwise the loop runs to the end of the tile. A tile in scratch stays unwritten beyond `end`, and a node that reads further
writes it first (`fill_read`).
"""

from __future__ import annotations

from collections.abc import Mapping

from blocknb.codegen.cpu import redzones
from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.context import VersionContext, VersionPart
from blocknb.codegen.cpu.dataflow import PLAIN_ACCESSES, Index, identity
from blocknb.codegen.cpu.elementwise import elementwise
from blocknb.codegen.cpu.nests import LoopNest
from blocknb.codegen.cpu.reductions import Reduction
from blocknb.codegen.cpu.tiles import TileTail
from blocknb.codegen.cpu.uniformity import Prefix, Stored, Strided, Uniform, Uniformity, UniformityAnalysis
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import SIZES, constant, register_type
from blocknb.codegen.text import vector_type
from blocknb.ir.core import Op, Value
from blocknb.language.ops import OPS

MOST = 8  # results of a loop nest, each of which takes code of its own
VECTORS = 4  # a row of fewer is not worth it


class MaskBounds(VersionPart):
    """The part of a row beyond all masks. `masks` has the mask of each access; `counts` are the positions at which masks end."""

    def __init__(
        self,
        context: VersionContext,
        nest: LoopNest,
        forms: UniformityAnalysis,
        masks: Mapping[Op, Uniformity | None],
        reductions: Mapping[Op, Reduction],
    ):
        super().__init__(context)
        self.nest, self.forms, self.masks, self.reductions = nest, forms, masks, reductions
        self.counts: list[str] = []
        self._uniform: dict[tuple[Value, Index], bool] = {}
        self._values: dict[tuple[Value, Index], str] = {}
        self._slots: dict[Value, tuple[str, str]] = {}
        self.end = ""

    def find(self) -> bool:
        """Whether the row may end early, because the padding of each tile is one value. If so, computes `end`."""
        nest = self.nest
        if len(nest.shape) != 1 or nest.size < VECTORS * nest.width:
            return False
        if not 0 < len(nest.outputs) + len(self.reductions) <= MOST:
            return False
        if not all(map(self._may_end, nest.ops)):
            return False
        if any(buffer.panel or not self._is_uniform(v, identity(v.type.shape)) for v, buffer in nest.outputs):
            return False
        if not self.counts:
            return False
        self._finish()
        return True

    # -- whether the row may end early ------------------------------------------------------------------------------------

    def _may_end(self, op: Op) -> bool:
        """Whether an op has no effect of its own in the padding."""
        if op.name in PLAIN_ACCESSES:
            if op.name == "load" and isinstance(self._loaded_once(op), Uniform):
                return True
            mask = self.masks.get(op)
            if not isinstance(mask, Prefix):
                return False
            self.counts.append(mask.count)
            return op.name == "store" or all(self._is_uniform(a, identity(a.type.shape)) for a in op.args[2:])
        if op.name == "reduce":
            reduction = self.reductions[op]
            plain = reduction.inner and reduction.kind.start is not None
            return plain and self._is_uniform(op.args[0], identity(op.args[0].type.shape))
        return OPS[op.name].kind == "elementwise"

    def _loaded_once(self, op: Op) -> object:
        return self.forms.memo.get((op.result, identity(op.result.type.shape)))

    def _is_uniform(self, value: Value, index: Index) -> bool:
        key = (value, index)
        if key not in self._uniform:
            self._uniform[key] = self._find_uniform(value, index)
        return self._uniform[key]

    def _find_uniform(self, value: Value, index: Index) -> bool:
        program = self.forms.program
        match self.forms.of(value, index):
            case Uniform():
                return True
            case Prefix(count):
                self.counts.append(count)
                return True
            case Strided():
                return False
            case Stored():
                tail = self.tiles.tails.get(self._leaf(value))
                if tail is not None:
                    self.counts.append(tail.end)
                return tail is not None
        if program.view_of(value) is not None:
            return self._is_uniform(program.definition[value].args[0], program.operand_index(value, index))
        op = program.definition[value]
        if op.name == "load":
            return True  # `_may_end` has looked at it
        return OPS[op.name].kind == "elementwise" and all(self._is_uniform(a, i) for a, i in self._operands(op, index))

    def _operands(self, op: Op, index: Index) -> list[tuple[Value, Index]]:
        recomputed = self.forms.program.recomputed(op.result)
        return [(a, (index if recomputed else identity(a.type.shape)) if a.type.shape else ()) for a in op.args]

    # -- the end of the row, and the values beyond it ---------------------------------------------------------------------

    def _finish(self) -> None:
        """Computes where the row ends: after whole vectors, or at the end of the tile if a reduction cannot take the tail at once."""
        c, nest = self.code, self.nest
        size = str(nest.size)
        end = c.i64_most(c.i64_least(c.i64_most(*dict.fromkeys(self.counts)), size), "0")
        end = c.i64("add", end, str(nest.width - 1))
        end = c.i64("and", end, str(-nest.width))
        self.end = c.w.guarded(c.w.value(f"icmp slt i64 {end}, {size}"), "i64", size, lambda: self._compute_tails(end))

    def _compute_tails(self, end: str) -> str:
        """The end of the row. Also computes the values beyond it, unless the row is as long as its tile and would wait for them."""
        c, nest = self.code, self.nest
        wanted = [op.args[0] for op in self.reductions] + [v for v, _ in nest.outputs]
        values = {v: self._of(v, identity(v.type.shape)) for v in dict.fromkeys(wanted)}
        for op, reduction in self.reductions.items():
            end = c.select(reduction.is_idempotent(values[op.args[0]]), end, str(nest.size), "i64", 1)
        for v, text in values.items():
            element = register_type(v.type.dtype)
            self._slots[v] = (element, c.w.slot(element))
            c.w.do(f"store {element} {text}, ptr {self._slots[v][1]}")
        return end

    def value(self, value: Value) -> str:
        """The value of an operand of a reduction, or of a result, in the padding."""
        element, slot = self._slots[value]
        return self.code.w.value(f"load {element}, ptr {slot}")

    def _of(self, value: Value, index: Index) -> str:
        key = (value, index)
        if key not in self._values:
            self._values[key] = self._make(value, index)
        return self._values[key]

    def _make(self, value: Value, index: Index) -> str:
        program = self.forms.program
        match self.forms.of(value, index):
            case Uniform(text):
                return text
            case Prefix():
                return "false"
            case Stored():
                return self.tiles.tails[self._leaf(value)].value
        if program.view_of(value) is not None:
            return self._of(program.definition[value].args[0], program.operand_index(value, index))
        op = program.definition[value]
        if op.name == "load":
            if len(op.args) <= 2:
                return constant(0, value.type.dtype)
            return self._of(op.args[2], identity(op.args[2].type.shape))
        return elementwise(self.code, op, [self._of(a, i) for a, i in self._operands(op, index)], 1)

    def leave(self) -> None:
        """After the loops: hands the tails to the reductions, and notes which tails of results are not written. Redzones poison those."""
        nest, tiles, types = self.nest, self.tiles, self.scalars.types
        skipped = self.code.w.value(f"icmp slt i64 {self.end}, {nest.size}")
        for op, reduction in self.reductions.items():
            reduction.tail = (skipped, self.value(op.args[0]))
        for value, buffer in nest.outputs:
            tail = TileTail(self.end, self.value(value), nest.width)
            if self.options.redzones:
                self.fill(buffer, tail, str(nest.size), poison=True)
            # A copy goes into another op's buffer, whose readers are not known here.
            copied = tiles.buffers.get(value) is not buffer
            if copied or not self._read_by_rows(value, nest.shape):
                self.fill(buffer, tail, str(nest.size))
            else:
                types[tail.end], types[tail.value] = "i64", register_type(value.type.dtype)
                tiles.tails[value] = tail

    def _leaf(self, value: Value) -> Value:
        """The stored tile that a value is a view of."""
        while value not in self.tiles.buffers:
            value = self.program.definition[value].args[0]
        return value

    def _read_by_rows(self, value: Value, shape: tuple[int, ...]) -> bool:
        """Whether only loop nests of this block read a tile, at the index at which it is written."""
        graph = self.tiles.scope.graph
        nodes = [(graph.node_of.get(use.op), use.at) for use in self.program.uses.get(value, ())]
        return all(node is not None and node.shape == shape and at == identity(value.type.shape) for node, at in nodes)

    def fill(self, buffer: ScratchBuffer, tail: TileTail, stop: str, poison: bool = False) -> None:
        """Writes the padding of a buffer, or a poison, from the end of its row up to `stop`, in whole vectors.

        The vectors are as wide as the writer's, not the reader's. The writer's width divides both the tile's size and the position at which
        the loop starts, so no store reaches beyond the tile.
        """
        c, element, width = self.code, buffer.element, tail.width
        scalar = redzones.poison(element) if poison else casts.to_scratch(c, tail.value, buffer.dtype, 1)
        vector = c.splat(scalar, element, width)
        base = self.tiles.base(buffer)
        with c.w.counted(tail.end, stop, width, "rest") as position:
            place = c.w.value(f"getelementptr inbounds {element}, ptr {base}, i64 {position}")
            c.w.do(f"store {vector_type(element, width)} {vector}, ptr {place}, align {SIZES[element]}")

    def fill_read(self, stop: str) -> None:
        """Before the loops of a row: writes the tails that the row will read and that are not written yet."""
        program, tiles, members = self.program, self.tiles, self.nest.members
        read = {leaf for op in self.nest.ops for leaf, _, _ in program.reads(op)}
        read |= {leaf for v, _ in self.nest.outputs for leaf, _ in program.leaves(v, identity(v.type.shape))}
        for value in [v for v in tiles.buffers if v in tiles.tails and v in read and v not in members]:
            if tiles.tails[value].end != stop:
                self.fill(tiles.buffers[value], tiles.tails[value], stop)
