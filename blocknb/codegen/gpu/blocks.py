"""Lowers blocks: calls the lowering of each op, and decides where basic blocks end."""

from __future__ import annotations

from collections.abc import Mapping, Set

from blocknb.codegen.gpu import scheduling
from blocknb.codegen.gpu.async_copies import PostponedCopies
from blocknb.codegen.gpu.context import KernelContext, KernelPart
from blocknb.codegen.gpu.element_types import memory_bits
from blocknb.codegen.gpu.lazy_ops import LazyOps
from blocknb.codegen.gpu.memory import GlobalMemory
from blocknb.codegen.gpu.registry import Lower
from blocknb.codegen.gpu.warp_shuffles import WarpShuffles
from blocknb.codegen.gpu.wgmma import ops_around_mma
from blocknb.errors import CompilerBug
from blocknb.ir.core import Block, Op, Value
from blocknb.language.ops import OPS
from blocknb.layouts.convert import plan_in_warps


class BlockLowering(KernelPart):
    """Lowers the ops of a block in turn. `lowerings` has the lowering of each op that is not lazy, by name. `sunk` are values that the
    generator computes at their use."""

    def __init__(
        self,
        context: KernelContext,
        lowerings: Mapping[str, Lower],
        postponed: PostponedCopies,
        lazy: LazyOps,
        memory: GlobalMemory,
        sunk: Set[Value],
    ):
        super().__init__(context)
        self.lowerings, self.postponed, self.lazy, self.memory, self.sunk = lowerings, postponed, lazy, memory, sunk
        self.shuffles = WarpShuffles(context)

    def block(self, block: Block) -> None:
        """Lowers a block. At its end the writer forgets its names, since later code may be reached on a path that does not define them."""
        text = self.text
        with text.scope():
            ops = ops_around_mma(block.ops)
            for position, op in enumerate(ops, 1):
                self.lookahead.move(ops, position)
                text.locate(op.loc)
                if text.accesses > scheduling.MANY_ACCESSES:
                    scheduling.split(text)
                    text.splits += 1
                self.postponed.flush_before(op)
                self.op(op)
                if barrier := op.attrs.get("scheduling_barrier"):
                    scheduling.split(text, "" if barrier in ("clock", "straight") else self.loops.varying_number(text))

    def op(self, op: Op) -> None:
        """Lowers an op. Pure ops without a lowering of their own are lazy."""
        if op.results and op.results[0] in self.registers.streamed:
            self.registers.defer(op, None, self.registers.unpack if op.name == "load" else self.lazy.compute)
            if op.name == "load":
                self.memory.stream(op)
        elif (lower := self.lowerings.get(op.name)) is not None:
            lower(op)
        elif op.name == "convert" and self.moves_lanes(op):
            self.shuffles.shuffle(op)
        elif op.results and op.results[0] in self.sunk:
            self.registers.defer(op, None, self.lazy.compute)
        elif OPS[op.name].pure:
            self.registers.defer(op, self.text.chunk_here(), self.lazy.compute)
        else:
            raise CompilerBug(f"no GPU code for {op.name}", op.loc)

    def moves_lanes(self, op: Op) -> bool:
        """Whether a conversion moves elements between lanes."""
        return (
            plan_in_warps(op.args[0].type.layout, op.attrs["layout"], memory_bits(op.result.type.dtype)).kind
            == "shuffle"
        )
