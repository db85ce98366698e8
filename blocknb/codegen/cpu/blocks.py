"""Blocks: one node of the fusion graph after another, scalars in registers and tiles in scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blocknb.codegen.cpu import row_prefetch
from blocknb.codegen.cpu.context import Emitter, KernelContext
from blocknb.codegen.cpu.fusion import FusionGraph, FusionNode
from blocknb.codegen.cpu.loop_nests import LoopNestEmitter
from blocknb.codegen.cpu.lowering import Targets, lowering_table
from blocknb.codegen.cpu.outlining import Outliner
from blocknb.codegen.cpu.placement import OutputPlacement
from blocknb.codegen.cpu.scopes import BlockScope
from blocknb.errors import Unsupported
from blocknb.ir.core import Block, Op, Value


class BlockEmitter(Emitter):
    """Emits blocks. `assumptions` has the pairs of arguments that fused nests assume not to overlap."""

    def __init__(self, context: KernelContext, nests: LoopNestEmitter, outliner: Outliner):
        super().__init__(context)
        self.nests, self.outliner, self.placement = nests, outliner, OutputPlacement(context)
        self.lowerings: dict[str, Callable[[Op], None]] = {}
        self.assumptions: dict[tuple[Value, Value], bool] = {}

    def register(self, *lowerings: object) -> None:
        """Takes the objects that lower single ops."""
        self.lowerings = lowering_table(*lowerings)

    def enter(self, block: Block, targets: Targets | None = None) -> None:
        """Emits the ops of a block, but not its terminator. Its buffers stay held until `leave`.

        `targets` has, for tiles that the block yields, the buffer that each should be made in (see `placement`).
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
        """Ends the innermost block and frees what it holds."""
        self.tiles.leave()

    def _scope(self, block: Block, targets: Targets | None) -> BlockScope:
        options, fuse = self.options, self.options.uses("fusion")
        graph = FusionGraph(self.program, block, self.addresses.contiguous, options.alias, self.assumptions, fuse)
        scope = BlockScope(block, graph, targets)
        if not options.alias and options.uses("row_prefetch"):
            scope.set_prefetches(self.program, row_prefetch.plan(self.program, self.addresses, scope.nodes))
        return scope

    def _read_later(self, scope: BlockScope, first: int) -> Iterator[Value]:
        """Scalars made by the nodes from `first` to the current one that later nodes read, or the block's end."""
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
        place = self.placement.place
        outputs = self.placement.outputs(node)
        nest = self.nests.plan(node.ops, node.shape, outputs, lambda v, axis: place(v, axis, node))
        for op in node.ops:
            if op.name == "reduce":
                self.placement.place_reduced(op, nest.axis, node)
        self.nests.emit(nest, self.tiles.scope.prefetches.get(node, ()))
