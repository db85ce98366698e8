"""Where the results of a loop nest are written: which buffer each value gets."""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.cpu import microkernel
from blocknb.codegen.cpu.buffers import ScratchBuffer, strides_along
from blocknb.codegen.cpu.context import Emitter
from blocknb.codegen.cpu.dataflow import identity
from blocknb.codegen.cpu.fusion import FusionNode
from blocknb.ir.core import Op, Value


class OutputPlacement(Emitter):
    """Gives the values that a node makes their buffers."""

    def outputs(self, node: FusionNode) -> list[Value]:
        """The values of a node that others need, those of reductions left out."""
        made = [r for op in node.ops if op.name != "reduce" for r in op.results]
        return [r for r in made if any(use.op not in node.ops for use in self.program.uses.get(r, ()))]

    def place(self, value: Value, loop: int | None, node: FusionNode) -> ScratchBuffer:
        """Gives a value made by a node its buffer; the node's vectors run along `loop`."""
        buffer = self._choose(value, loop, node)
        self.tiles.hold(value, buffer)
        return buffer

    def place_reduced(self, op: Op, loop: int | None, node: FusionNode) -> None:
        """Gives the tiles that a reduction makes their buffers."""
        axis = op.attrs["axis"]
        index = identity(op.args[0].type.shape)
        left = [i for i in index[:axis] + index[axis + 1 :] if i is not None]
        for result in op.results:
            if result.type.shape:
                self.place(result, left.index(loop) if loop in left else None, node)

    def _choose(self, value: Value, loop: int | None, node: FusionNode) -> ScratchBuffer:
        """The buffer for a value made by a node whose vectors run along `loop`.

        It is the buffer that the loop around carries it in (`targets`), if the old value is not needed any more; a buffer in the
        microkernel's order, if only dots read it; the buffer of an operand that is read here for the last time; or a new one.
        """
        scope, tiles = self.tiles.scope, self.tiles
        index = identity(value.type.shape)
        axis = index.index(loop) if loop is not None and loop in index else None
        strides = strides_along(value.type.shape, axis)
        # A reduction writes as it goes, before ops after it have read: its place may not be a tile that this node reads.
        reduced = self.program.definition[value].name == "reduce"
        reader: Sequence[Op] = () if reduced else node.ops
        if value in scope.targets:
            home, argument = scope.targets[value]
            if home.strides == strides and tiles.free_home(home, argument, reader):
                return home
        panel = None if reduced else microkernel.panel_for(self.program, self.options.machine, value, axis)
        if panel is not None:
            return tiles.allocate(value.type.shape, microkernel.packed_dtype(value.type.dtype), axis, panel, value)
        wanted = (value.type.dtype, value.type.shape, strides)
        for op in node.ops:
            for operand in op.args:
                buffer = tiles.take(operand, reader)
                if buffer is not None and (buffer.dtype, buffer.shape, buffer.strides) == wanted:
                    return buffer
        return tiles.allocate(value.type.shape, value.type.dtype, axis, None, value)
