"""Lowers warp specialization: the consumer warps compute, and a thread of another warp copies for them.

The warps of the consumers come first. The producer is one elected thread, so its loops need no test of the thread's index.
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.ir.core import Block, Op


class RoleLowering(OpLowering):
    """Lowers the op that gives warps their roles, and the numbers of CTAs and consumer groups. `lower_block` lowers the ops of a block."""

    def __init__(self, context: KernelContext, lower_block: Callable[[Block], None]):
        super().__init__(context)
        self.lower_block = lower_block

    @lowers("consumer_group_id")
    def consumer_group_id(self, op: Op) -> None:
        """The number of the consumer group."""
        self.registers.set(op.result, [self.threads.consumer_group()])

    @lowers("cta_id", "num_ctas")
    def cta(self, op: Op) -> None:
        """The number of the CTA, or how many there are."""
        self.registers.set(op.result, [self.threads.special("ctaid.x" if op.name == "cta_id" else "nctaid.x")])

    @lowers("program_id", "num_programs")
    def program(self, op: Op) -> None:
        """The program's place along an axis of the grid, or how many programs there are."""
        self.registers.set(op.result, [self.threads.place(op.name, op.attrs["axis"])])

    @lowers("roles")
    def roles(self, op: Op) -> None:
        """Branches on the number of the warp to the code of its role."""
        (consumers, producer), (warps, more), registers = op.blocks, op.attrs["warps"], op.attrs.get("registers")
        text = self.text
        self.cluster_barrier()  # no CTA uses the other one's mbarriers before they are initialized
        labels = [text.new_label(x) for x in ("consumer", "producer", "done")]
        warp = self.threads.uniform("%warp.raw")
        text.do(f"br i1 {text.emit(f'icmp ult i32 {warp}, {warps}')}, label %{labels[0]}, label %{labels[1]}")
        text.start(labels[0])
        self.reallocate(registers, 0)
        text.open_chunk()
        self.threads.in_consumer = True
        self.lower_block(consumers)
        self.threads.in_consumer = False
        text.do(f"br label %{labels[2]}")
        text.open_chunk()
        text.start(labels[1])
        self.reallocate(registers, 1)
        self.produce(producer, warp if more > 1 else "", warps, labels[2])
        text.open_chunk()
        text.start(labels[2])
        self.cluster_barrier()  # no CTA ends while the other one may use its mbarriers

    def cluster_barrier(self) -> None:
        """Waits for all threads of a cluster, if there is one."""
        if self.func.attrs.get("cluster"):
            ptx = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
            self.text.asm(ptx, ["~{memory}"], [], convergent=True)

    def reallocate(self, registers: tuple[int, int] | None, role: int) -> None:
        """Raises or lowers the registers per thread of a role (PTX ISA: setmaxnreg)."""
        if registers is not None:
            way, who = (("inc", "the consumers"), ("dec", "the producer"))[role]
            ptx = f"setmaxnreg.{way}.sync.aligned.u32 {registers[role]}; // from here: {who}"
            self.text.asm(ptx, ["~{memory}"], [], convergent=True)

    def produce(self, block: Block, warp: str, first: int, done: str) -> None:
        """Writes the code of the producer, for one elected thread."""
        text = self.text
        both = text.call("{i32, i1}", "llvm.nvvm.elect.sync", ("i32", "-1"))
        elected = text.emit(f"extractvalue {{i32, i1}} {both}, 1")
        if warp:
            elected = text.emit(f"and i1 {elected}, {text.emit(f'icmp eq i32 {warp}, {first}')}")
        label = text.new_label("copy")
        text.do(f"br i1 {elected}, label %{label}, label %{done}")
        text.start(label)
        text.open_chunk()
        self.threads.alone = True
        self.lower_block(block)
        self.threads.alone = False
        text.do(f"br label %{done}")
