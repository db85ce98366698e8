"""The entry of the GPU code generator: makes the parts that write one kernel, and runs them."""

from __future__ import annotations

from blocknb.codegen.gpu.assembly import InlineAssembly
from blocknb.codegen.gpu.async_copies import AsyncCopies, PostponedCopies, moving_addresses
from blocknb.codegen.gpu.atomics import Atomics
from blocknb.codegen.gpu.blocks import BlockLowering
from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.control import ControlFlowLowering
from blocknb.codegen.gpu.lazy_ops import LazyOps
from blocknb.codegen.gpu.math import ElementwiseMath
from blocknb.codegen.gpu.mbarrier_lowering import Mbarriers
from blocknb.codegen.gpu.memory import GlobalMemory
from blocknb.codegen.gpu.mma import MatrixProducts
from blocknb.codegen.gpu.mma_state import MmaState
from blocknb.codegen.gpu.module import GpuModule, finished
from blocknb.codegen.gpu.moves import Moves
from blocknb.codegen.gpu.piece_loops import PieceLoops
from blocknb.codegen.gpu.reductions import Reductions
from blocknb.codegen.gpu.registry import Lower, table
from blocknb.codegen.gpu.rematerialization import Rematerializer
from blocknb.codegen.gpu.reports import ReportLowering
from blocknb.codegen.gpu.roles import RoleLowering
from blocknb.codegen.gpu.scan import Scans
from blocknb.codegen.gpu.shadow import ShadowCalls
from blocknb.codegen.gpu.shared_memory import SharedMemory
from blocknb.codegen.gpu.tma import TensorCopies, TensorMapMaker
from blocknb.codegen.gpu.wgmma import WgmmaDot
from blocknb.errors import CompilerBug
from blocknb.ir.core import Func
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
        self.context = context = KernelContext(func, target)
        text, registers, emission = context.text, context.registers, context.emission
        self.text, self.registers = text, registers
        state, postponed, pieces = MmaState(), PostponedCopies(text, context.lookahead), PieceLoops(context)
        math, memory = ElementwiseMath(context), GlobalMemory(context, pieces)
        barriers, wgmma, scans = Mbarriers(context), WgmmaDot(context, state), Scans(context, math)

        lowerings: dict[str, Lower] = {}
        lazy = LazyOps(context, math, moving_addresses(func, context.defs))
        sunk = emission.at_use.keys() | emission.rematerialized.keys()
        self.blocks = BlockLowering(context, lowerings, postponed, lazy, memory, sunk)
        lowerings |= table(
            memory,
            barriers,
            wgmma,
            ControlFlowLowering(context, state, self.blocks.block),
            RoleLowering(context, self.blocks.block),
            SharedMemory(context),
            AsyncCopies(context, postponed),
            TensorMapMaker(context),
            TensorCopies(context, barriers),
            Atomics(context),
            ReportLowering(context),
            ShadowCalls(context),
            scans,
            Reductions(context, math, pieces, Rematerializer(text, registers, emission), scans),
            Moves(context),
            MatrixProducts(context, postponed, wgmma),
            InlineAssembly(context),
        )

    def module(self) -> GpuModule:
        """Writes the kernel."""
        for value, hint in zip(self.context.func.params, self.context.func.hints, strict=True):
            value.name = value.name or hint.name
        for i, value in enumerate(self.context.func.params):
            name = self.text.emit(f"trunc i8 %p{i} to i1") if value.type.dtype == t.int1 else f"%p{i}"
            self.registers.set(value, [name])
        self.blocks.block(self.context.func.body)
        self.text.do("ret void")
        return finished(self.context)
