"""Blocks: one node of the fusion graph after another, scalars in registers and tiles in scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from blocknb.codegen.cpu import microkernel, product_terms, row_prefetch, tile_prefetch
from blocknb.codegen.cpu.buffers import ScratchBuffer, strides_along
from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowering_table
from blocknb.codegen.cpu.dataflow import identity
from blocknb.codegen.cpu.fusion import FusionGraph, FusionNode
from blocknb.codegen.cpu.loop_nests import LoopNestEmitter
from blocknb.codegen.cpu.outlining import Outliner
from blocknb.codegen.cpu.tiles import BlockScope, Targets
from blocknb.errors import Unsupported
from blocknb.ir.core import Block, Op, Value


class BlockEmitter(VersionPart):
    """Emits blocks. `assumptions` has the pairs of arguments that fused nests assume not to overlap."""

    def __init__(self, context: VersionContext, nests: LoopNestEmitter, outliner: Outliner):
        super().__init__(context)
        self.nests, self.outliner = nests, outliner
        self.lowerings: dict[str, Callable[[Op], None]] = {}
        self.assumptions: dict[tuple[Value, Value], bool] = {}

    def register(self, *lowerings: object) -> None:
        """Registers the objects that lower single ops."""
        self.lowerings = lowering_table(*lowerings)

    def enter(self, block: Block, targets: Targets | None = None) -> None:
        """Emits the ops of a block, but not its terminator. Its buffers stay allocated until `leave`.

        `targets`: for each tile that the block yields, the preferred buffer (see `_choose`).
        """
        scope = self._scope(block, targets)
        self.tiles.scopes.append(scope)
        start = self.outliner.start(0)
        for i, node in enumerate(scope.nodes):
            scope.now = i
            self._node(node)
            self.tiles.free_temporaries()
            self.tiles.release()
            names = [self.scalars[value] for value in self._read_later(scope, start.node)]
            tails = [self.tiles.tails[value] for value in self.tiles.buffers if value in self.tiles.tails]
            names += [name for tail in tails for name in (tail.end, tail.value)]
            start = self.outliner.cut(start, i + 1, names)
        scope.now = len(scope.nodes)

    def leave(self) -> None:
        """Ends the innermost block and frees its buffers."""
        self.tiles.leave()

    def _scope(self, block: Block, targets: Targets | None) -> BlockScope:
        options, fuse = self.options, self.options.uses("fusion")
        graph = FusionGraph(self.program, block, self.addresses.contiguous, options.alias, self.assumptions, fuse)
        scope = BlockScope(block, graph, targets)
        if not options.alias and options.uses("row_prefetch"):
            rows = row_prefetch.plan(self.program, self.addresses, scope.nodes)
            taken = {op for ops in rows.values() for op in ops}
            tiles = tile_prefetch.plan(self.program, self.addresses, scope.nodes, block, taken)
            scope.set_prefetches(self.program, {**rows, **tiles})
        if options.uses("mask_bounds"):
            products = [op for op in block.ops if op.name == "dot"]
            scope.set_bounds(self.program, {op: product_terms.terms_of(self.program, op, block) for op in products})
        return scope

    def _read_later(self, scope: BlockScope, first: int) -> Iterator[Value]:
        """The scalars that nodes from `first` to the current one define, and that later nodes or the block's end read."""
        for node in scope.nodes[first : scope.now + 1]:
            for op in node.ops:
                for result in op.results:
                    if result in self.scalars and scope.last_use(self.program, result) > scope.now:
                        yield result

    def _node(self, node: FusionNode) -> None:
        if node.is_group:
            self._nest(node)
            return
        (op,) = node.ops
        with self.code.at(op):
            self._op(op)

    def _op(self, op: Op) -> None:
        lower = self.lowerings.get(op.name)
        if lower is None:
            raise Unsupported(f"the CPU backend cannot compile the operation `{op.name}`", op.loc)
        lower(op)

    def _nest(self, node: FusionNode) -> None:
        assert node.shape is not None
        outputs = self._outputs(node)
        nest = self.nests.plan(node.ops, node.shape, outputs, lambda v, axis: self._place(v, axis, node))
        for op in node.ops:
            if op.name == "reduce":
                self._place_reduced(op, nest.axis, node)
        self.nests.emit(nest, self.tiles.scope.prefetches.get(node, ()))

    # -- where the results of a loop nest are written ----------------------------------------------------------------------

    def _outputs(self, node: FusionNode) -> list[Value]:
        """The values of a node that other nodes read, without results of reductions."""
        made = [r for op in node.ops if op.name != "reduce" for r in op.results]
        return [r for r in made if any(use.op not in node.ops for use in self.program.uses.get(r, ()))]

    def _place(self, value: Value, loop: int | None, node: FusionNode) -> ScratchBuffer:
        """Assigns a buffer to a node's value; the node's vectors run along `loop`."""
        buffer = self._choose(value, loop, node)
        self.tiles.attach(value, buffer)
        return buffer

    def _place_reduced(self, op: Op, loop: int | None, node: FusionNode) -> None:
        """Assigns buffers to the tiles that a reduction computes."""
        axis = op.attrs["axis"]
        index = identity(op.args[0].type.shape)
        left = [i for i in index[:axis] + index[axis + 1 :] if i is not None]
        for result in op.results:
            if result.type.shape:
                self._place(result, left.index(loop) if loop in left else None, node)

    def _choose(self, value: Value, loop: int | None, node: FusionNode) -> ScratchBuffer:
        """Chooses the buffer for a value of a node whose vectors run along `loop`.

        The first candidate is the buffer of the enclosing loop's carried value (`targets`), if no later op reads the old value. The next
        one is a buffer in the microkernel's order, if only dots read the value. Then come the buffer of an operand whose last reader is
        this node, and a new buffer.
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
                buffer = tiles.reusable_buffer(operand, reader)
                if buffer is not None and (buffer.dtype, buffer.shape, buffer.strides) == wanted:
                    return buffer
        return tiles.allocate(value.type.shape, value.type.dtype, axis, None, value)
