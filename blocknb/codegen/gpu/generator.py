"""Makes the objects that write one kernel, and gives each only the ones that it uses.

`generate` is the entry of the GPU code generator.
"""

from __future__ import annotations

from blocknb.analysis import affine
from blocknb.codegen.gpu.addresses import AccessAddresses
from blocknb.codegen.gpu.assembly import InlineAssembly
from blocknb.codegen.gpu.async_copies import AsyncCopies, PostponedCopies, moving_addresses
from blocknb.codegen.gpu.atomics import Atomics
from blocknb.codegen.gpu.blocks import BlockLowering
from blocknb.codegen.gpu.buffers import Buffers
from blocknb.codegen.gpu.control import ControlFlowLowering
from blocknb.codegen.gpu.fma_dot import FmaDot
from blocknb.codegen.gpu.interface import LaunchInterface
from blocknb.codegen.gpu.lazy_ops import LazyOps
from blocknb.codegen.gpu.lookahead import Lookahead
from blocknb.codegen.gpu.loop_values import UnsetSums, WordCarrying
from blocknb.codegen.gpu.loops import OpenLoops
from blocknb.codegen.gpu.math import ElementwiseMath
from blocknb.codegen.gpu.mbarrier_lowering import Mbarriers
from blocknb.codegen.gpu.memory import GlobalMemory
from blocknb.codegen.gpu.mma import MatrixProducts
from blocknb.codegen.gpu.mma_state import MmaState
from blocknb.codegen.gpu.module import GpuModule, finished
from blocknb.codegen.gpu.moves import Moves
from blocknb.codegen.gpu.phis import Phis
from blocknb.codegen.gpu.piece_loops import PieceLoops
from blocknb.codegen.gpu.reductions import Combiner, Reductions
from blocknb.codegen.gpu.registers import Registers
from blocknb.codegen.gpu.registry import Lower, table
from blocknb.codegen.gpu.rematerialization import RematerializationPlan, Rematerializer
from blocknb.codegen.gpu.reports import ReportLowering
from blocknb.codegen.gpu.roles import RoleLowering
from blocknb.codegen.gpu.scan import Scans
from blocknb.codegen.gpu.shared_memory import SharedMemory
from blocknb.codegen.gpu.sinking import StoreSinking
from blocknb.codegen.gpu.strip_mining import StripMining
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.gpu.threads import Threads
from blocknb.codegen.gpu.tma import TensorCopies, TensorMapMaker
from blocknb.codegen.gpu.warp_shuffles import WarpShuffles
from blocknb.codegen.gpu.wgmma import WgmmaDot
from blocknb.codegen.text import DebugInfo
from blocknb.errors import CompilerBug
from blocknb.ir.core import Func, definitions, uses
from blocknb.language import types as t
from blocknb.target import Target


def generate(func: Func, target: Target) -> GpuModule:
    """LLVM text of a memory-level Func. Raises CompilerBug for IR of another level."""
    if func.level != "memory":
        raise CompilerBug(f"GPU code is generated from memory IR, not {func.level} IR", func.loc)
    return KernelGenerator(func, target).module()


class KernelGenerator:
    """Writes one kernel: `blocks` lowers its ops, which write lines to `text` and name their results in `registers`."""

    def __init__(self, func: Func, target: Target):
        facts, defs, users = affine.analyze(func), definitions(func), uses(func)
        strip_mining = StripMining(func, facts, defs)
        sinking = StoreSinking(func, facts, users, strip_mining.values)
        plan = RematerializationPlan(func, facts, users, strip_mining.values)

        text = TextWriter(DebugInfo(func.name, func.loc, "DebugDirectivesOnly", None))
        threads, interface, loops, state = Threads(text, func), LaunchInterface(func), OpenLoops(), MmaState()
        refetched = strip_mining.values | plan.loads
        registers = Registers(text, facts, defs, strip_mining.values, refetched, target.capability >= 80)
        buffers, phis = Buffers(text, threads), Phis(text, registers)
        addresses, lookahead = AccessAddresses(registers, facts, defs), Lookahead(users)
        postponed = PostponedCopies(text, lookahead)
        pieces = PieceLoops(text, registers, loops, strip_mining, func)
        math = ElementwiseMath(text, func, target, strip_mining.values)
        combiner = Combiner(registers, math)
        memory = GlobalMemory(text, threads, registers, addresses, pieces, sinking, facts)
        barriers = Mbarriers(text, threads, registers, buffers, defs, func)
        wgmma = WgmmaDot(text, threads, registers, buffers, phis, state, defs)
        remake = Rematerializer(text, registers, plan)
        carrying, unset = WordCarrying(facts, defs, users, strip_mining.values), UnsetSums(func, defs, users)

        lowerings: dict[str, Lower] = {}
        self.blocks = BlockLowering(
            text,
            registers,
            lookahead,
            loops,
            postponed,
            lowerings,
            LazyOps(text, threads, registers, loops, math, interface, moving_addresses(func, defs)),
            memory,
            WarpShuffles(text, threads, registers),
            sinking.values | plan.values | plan.after,
        )
        lower_block = self.blocks.block
        lowerings |= table(
            memory,
            barriers,
            wgmma,
            ControlFlowLowering(text, registers, phis, loops, state, carrying, unset, lower_block, defs, users),
            RoleLowering(text, threads, registers, lower_block),
            SharedMemory(text, threads, registers, buffers, lookahead, target),
            AsyncCopies(text, threads, registers, buffers, addresses, postponed, facts),
            TensorMapMaker(registers, interface, func.params, defs, users),
            TensorCopies(text, threads, registers, buffers, barriers),
            Atomics(text, threads, registers, buffers, addresses, facts, users, target),
            ReportLowering(text, threads, registers, interface),
            Reductions(text, registers, combiner, pieces, remake, target.capability >= 80),
            Scans(text, registers, combiner),
            Moves(text, threads, registers, buffers),
            MatrixProducts(text, registers, postponed, wgmma, FmaDot(text, registers, buffers)),
            InlineAssembly(text, registers),
        )
        self.func, self.text, self.registers = func, text, registers
        self.threads, self.interface, self.strip_mining = threads, interface, strip_mining

    def module(self) -> GpuModule:
        """Writes the kernel."""
        for value, hint in zip(self.func.params, self.func.hints, strict=True):
            value.name = value.name or hint.name
        for i, value in enumerate(self.func.params):
            name = self.text.emit(f"trunc i8 %p{i} to i1") if value.type.dtype == t.int1 else f"%p{i}"
            self.registers.set(value, [name])
        self.blocks.block(self.func.body)
        self.text.do("ret void")
        return finished(self.func, self.text, self.threads, self.interface, self.strip_mining)
