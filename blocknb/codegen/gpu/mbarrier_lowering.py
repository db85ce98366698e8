"""Lowers mbarriers, at which threads wait for bytes that the TMA engine copies and for each other (PTX ISA: mbarrier).

Addresses have 32 bits. The offset of an mbarrier is an immediate of the instruction; an index is scaled to bytes once.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.gpu import warp_specialization
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.ir.core import Op, Value, walk
from blocknb.language.bulk import Barriers

SLEEP = 10_000_000  # ns that a thread may sleep before it tests an mbarrier again
#: The address of the same place in the shared memory of the other CTA of a cluster of two.
PEER = (
    "{ .reg .b32 peer; mov.u32 peer, %cluster_ctarank; xor.b32 peer, peer, 1; mapa.shared::cluster.u32 $0, $1, peer; }"
)
Instruction = tuple[str, Sequence[str], str]  # inline PTX, its operands and their constraints, one letter each


class Mbarriers(OpLowering):
    """Lowers the ops on mbarriers."""

    def address(self, barriers: Value, index: Value) -> tuple[str, int]:
        """The address of an mbarrier as a name and a constant."""
        made, text = self.defs.get(index), self.text
        if made is not None and made.name == "const":
            return self.buffers.base(), self.buffers.offsets[barriers] + Barriers.EACH * made.attrs["value"]
        number = self.registers.reg(index)

        def indexed() -> str:
            distance = text.emit(f"shl nuw nsw i32 {number}, {Barriers.EACH.bit_length() - 1}")
            return text.emit(f"add i32 {self.buffers.base()}, {distance}")

        return text.in_block(("mbarrier", number), indexed), self.buffers.offsets[barriers]

    def by_one(self, *instructions: Instruction, each: bool = False) -> None:
        """Opens a branch that one thread takes: the only one of its role, the first of the consumer group, or the first of `each` warp."""
        text, alone = self.text, self.threads.alone
        doing, done = text.new_label("one"), text.new_label("all")
        if not alone:
            who = "%lane" if each else "%tid" if self.threads.in_consumer else self.threads.index_in_cta()
            first = text.once(("first", who), lambda: text.emit(f"icmp eq i32 {who}, 0"))
            text.do(f"br i1 {first}, label %{doing}, label %{done}")
            text.start(doing)
        for ptx, operands, constraints in instructions:
            text.asm(ptx, [*constraints, "~{memory}"], operands)
        if not alone:
            text.do(f"br label %{done}")
            text.start(done)

    @lowers("mbarriers")
    def mbarriers(self, op: Op) -> None:
        """Initializes mbarriers."""
        if op is next(x for x in self.func.body.ops if x.name == "mbarriers"):
            self.prefetch_maps()
        start, count = op.attrs["offset"], op.attrs["arrivals"] * op.attrs.get("cluster", 1)
        self.buffers.offsets[op.result] = start
        places = [start + Barriers.EACH * i for i in range(op.attrs["stages"])]
        lines = [f"mbarrier.init.shared::cta.b64 [$0+{place}], {count};" for place in places]
        self.by_one((" ".join([*lines, "fence.mbarrier_init.release.cluster;"]), [f"i32 {self.buffers.base()}"], "r"))

    def prefetch_maps(self) -> None:
        """The producer's first thread prefetches its tensor maps while another one initializes mbarriers. Otherwise the first copy would
        wait for the map."""
        found = warp_specialization.find(self.func)
        if found is None:
            return
        text = self.text
        own, others = text.new_label("maps"), text.new_label("fetched")
        first = text.emit(f"icmp eq i32 {self.threads.index_in_cta()}, {32 * found.attrs['warps'][0]}")
        text.do(f"br i1 {first}, label %{own}, label %{others}")
        text.start(own)
        copies = (op for op in walk(found.blocks[1]) if op.name == "copy_bulk")
        for map in dict.fromkeys(self.registers.reg(op.args[1]) for op in copies):
            text.asm("prefetch.tensormap [$0];", ["l", "~{memory}"], [f"ptr {map}"])
        text.do(f"br label %{others}")
        text.start(others)

    @lowers("expect")
    def expect(self, op: Op) -> None:
        """One thread arrives and announces the bytes that copies will write (expect_tx)."""
        where, distance = self.address(*op.args)
        ptx = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0+{distance}], {op.attrs['bytes']};"
        self.by_one((ptx, [f"i32 {where}"], "r"))

    @lowers("await")
    def wait(self, op: Op) -> None:
        """Every thread waits for the phase, after which it may read the copied bytes."""
        where, distance = self.address(*op.args[:2])
        test = f"mbarrier.try_wait.parity.shared::cta.b64 over, [$0+{distance}], $1, {SLEEP};"
        ptx = f"{{ .reg .pred over; again: {test} @over bra done; bra again; done: }}"
        operands = [f"i32 {where}", f"i32 {self.registers.reg(op.args[2])}"]
        self.text.asm(ptx, ["r", "r", "~{memory}"], operands, convergent=True)

    @lowers("arrive")
    def arrive(self, op: Op) -> None:
        """One lane of a warp arrives after all lanes have reached this point."""
        text = self.text
        where, distance = self.address(*op.args[:2])
        condition = self.registers.reg(op.args[2]) if len(op.args) > 2 else ""
        if not self.threads.alone:
            self.threads.warp_barrier()
            first = text.once(("first lane",), lambda: text.emit("icmp eq i32 %lane, 0"))
            condition = text.both(condition, first)
        ptx = f"mbarrier.arrive.shared::cta.b64 _, [$0+{distance}];"
        text.asm(ptx, ["r", "~{memory}"], [f"i32 {where}"], on=condition)
        if self.of_cluster(op):
            far = text.emit(f'call i32 asm "{PEER}", "=r,r"(i32 {text.emit(f"add i32 {where}, {distance}")})')
            # Consumers have only read the stage, so nothing has to be made visible: `.release.cluster` would wait for all memory.
            ptx = "mbarrier.arrive.shared::cluster.b64 _, [$0];"
            text.asm(ptx, ["r", "~{memory}"], [f"i32 {far}"], on=condition)

    def of_cluster(self, op: Op) -> bool:
        """Whether the warps of both CTAs of a cluster arrive at the mbarriers of an op."""
        return bool(self.defs[op.args[0]].attrs.get("cluster"))
