"""One block while it is emitted: its nodes in order, and when each value is read for the last time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blocknb.codegen.cpu.dataflow import Dataflow, identity
from blocknb.codegen.cpu.fusion import FusionGraph, FusionNode
from blocknb.codegen.cpu.lowering import Targets
from blocknb.ir.core import Block, Op, Value, walk


class BlockScope:
    """A block that is being emitted. `now` is the index of the current node. `prefetches` has the loads that a node prefetches for."""

    def __init__(self, block: Block, graph: FusionGraph, targets: Targets | None = None):
        self.graph, self.targets = graph, targets or {}
        self.nodes = graph.order()
        self.now = -1
        self.local = {*block.args, *(r for op in block.ops for r in op.results)}
        self.when: dict[Op, int] = {}  # the index of the node in which an op is emitted
        rank = self._ranks()
        for op in block.ops:
            at = rank.get(graph.node_of.get(op), len(self.nodes))  # type: ignore[arg-type]
            for inner in (op, *(o for b in op.blocks for o in walk(b))):
                self.when[inner] = at
        self.prefetches: Mapping[FusionNode, Sequence[Op]] = {}
        self.prefetched_at: dict[Value, int] = {}  # when a prefetch reads the address of a load once more

    def _ranks(self) -> dict[FusionNode, int]:
        return {node: i for i, node in enumerate(self.nodes)}

    def set_prefetches(self, program: Dataflow, prefetches: Mapping[FusionNode, Sequence[Op]]) -> None:
        """Takes the prefetches of each node. The values that their addresses are made of stay alive until then."""
        self.prefetches, rank = prefetches, self._ranks()
        for node, loads in prefetches.items():
            for op in loads:
                for leaf, _ in program.leaves(op.args[0], identity(op.args[0].type.shape)):
                    self.prefetched_at[leaf] = max(self.prefetched_at.get(leaf, -1), rank[node])

    @property
    def current_op(self) -> Op | None:
        """The op that is being emitted; the last one when the block ends, None if it has none."""
        nodes = self.nodes[: self.now + 1]
        return nodes[-1].ops[-1] if nodes else None

    def last_use(self, program: Dataflow, value: Value) -> int:
        """The index of the last node that reads a value, -1 if none does."""
        uses = program.uses.get(value, ())
        return max([self.prefetched_at.get(value, -1), *(self.when.get(use.op, -1) for use in uses)])
