"""The objects that all parts of the GPU code generator share for one kernel: its facts, its text and its registers."""

from __future__ import annotations

from blocknb.analysis import affine
from blocknb.codegen.gpu.addresses import AccessAddresses
from blocknb.codegen.gpu.buffers import Buffers
from blocknb.codegen.gpu.interface import LaunchInterface
from blocknb.codegen.gpu.lookahead import Lookahead
from blocknb.codegen.gpu.loops import OpenLoops
from blocknb.codegen.gpu.registers import Registers
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.gpu.threads import Threads
from blocknb.codegen.text import DebugInfo
from blocknb.ir.core import Func, definitions, uses
from blocknb.passes.support.emission import Emission
from blocknb.target import Target


class KernelContext:
    """The facts about a memory-level Func, the plans for it, and the objects that hold the text as it is written."""

    def __init__(self, func: Func, target: Target):
        self.func, self.target = func, target
        self.facts, self.defs, self.users = affine.analyze(func), definitions(func), uses(func)
        self.emission = Emission(func)
        streamed = frozenset(self.emission.in_pieces)
        self.text = TextWriter(DebugInfo(func.name, func.loc, "DebugDirectivesOnly", None))
        self.threads, self.interface, self.loops = Threads(self.text, func), LaunchInterface(func), OpenLoops()
        refetched = streamed | self.emission.packed.keys()
        self.registers = Registers(self.text, self.facts, self.defs, streamed, refetched, target.capability >= 80)
        self.buffers, self.lookahead = Buffers(self.text, self.threads), Lookahead(self.users)
        self.addresses = AccessAddresses(self.registers, self.facts, self.defs)


class KernelPart:
    """The base class of the parts of the code generator. The objects that they share are attributes of each part."""

    def __init__(self, context: KernelContext):
        self.func, self.target = context.func, context.target
        self.facts, self.defs, self.users = context.facts, context.defs, context.users
        self.text, self.threads, self.registers = context.text, context.threads, context.registers
        self.buffers, self.addresses, self.lookahead = context.buffers, context.addresses, context.lookahead
        self.interface, self.loops = context.interface, context.loops
