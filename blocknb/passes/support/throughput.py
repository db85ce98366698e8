"""A model of how long an SM works on a program of a kernel that holds rows, for decisions that trade instructions for registers.

A program waits for its rows, then computes. While one program computes, another one can wait, so `k` resident programs overlap. One program
takes `max(memory, compute, (memory + compute) / k)` of an SM's time. The three terms stand for an SM that is limited by bandwidth, by
instructions, or by programs that wait (Little's law). The last term falls with each further program, until one of the others is larger.

The unit is an issue slot of one thread. The constants are ratios of data sheets, and stay near these values from A100 to H200.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import global_operands
from blocknb.analysis.residency import MOST_REGISTERS, resident
from blocknb.ir.core import Func, Op, Value
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS, named
from blocknb.passes.pipelining.backward_slice import sources
from blocknb.target import Target

#: Issue slots in the time in which memory delivers a byte. An H100 SXM has 132 SMs at 1.7 GHz. An SM issues 128 lanes per cycle, and its
#: share of 3.35 TB/s is 15 bytes per cycle. An A100 has 10 slots, and an H200 6.
SLOTS_PER_BYTE = 8
SPECIAL = (
    8  # issue slots of a special function: 16 lanes per cycle (CUDA C++ Programming Guide, arithmetic instructions)
)
#: Registers for addresses, scalars and predicates, and temporaries as a part of the rows that are held. In softmax, norms and cross entropy
#: on sm_90a, ptxas used 46 to 56 registers for 32 held ones. It used 77 to 96 for 64, and 160 to 173 for 128.
OTHERS, TEMPORARY = 16, 1 / 4
IN_FLIGHT = 8  # registers of a row that is used as it arrives, such as weights: two accesses of 16 bytes
SPECIALS, ACCESSES = named("special_unit"), named("access")


@dataclass(frozen=True)
class Throughput:
    """The resources and the time of a program of a kernel. It takes `registers` per thread, of which `spilled` do not fit, and an SM holds
    `programs` of them. `memory` and `instructions` are issue slots per thread."""

    registers: int
    spilled: int
    programs: int
    memory: int
    instructions: int

    @property
    def time(self) -> float:
        """The time of an SM per program, in issue slots per thread."""
        return max(self.memory, self.instructions, (self.memory + self.instructions) / self.programs)


def throughput(func: Func, target: Target, held: int, arriving: int, moved: int, instructions: int) -> Throughput:
    """The throughput of a kernel, from four numbers per thread. They are the registers that hold rows, the registers of rows that are used
    as they arrive, the bytes of memory traffic, and the instructions.

    Values that exceed the registers of a thread are spilled: a store and a load each, which the L1 cache serves."""
    together = func.attrs.get("programs", 1)
    warps = func.attrs["num_warps"] * together
    most = min(MOST_REGISTERS, target.registers // (target.warp_size * warps))
    wanted = OTHERS + held + round(held * TEMPORARY) + IN_FLIGHT * arriving
    spilled = max(0, wanted - most)
    ctas = resident(target, warps, min(wanted, most), func.attrs.get("shared_bytes", 0))
    return Throughput(wanted, spilled, max(1, ctas) * together, SLOTS_PER_BYTE * moved, instructions + 2 * spilled)


def issue_slots(ops: Iterable[Op]) -> int:
    """The issue slots of a thread for some ops on tiles. Shapes, constants and addresses, of which an access needs one, take none."""
    found = 0
    for op in ops:
        if op.name == "reduce":
            found += op.args[0].type.layout.num_registers if op.args[0].type.shape else 0
        elif OPS[op.name].kind == "elementwise" and op.result.type.shape and op.result.type.dtype.is_float:
            special = op.name in SPECIALS and not op.attrs.get("normal")
            found += op.result.type.layout.num_registers * (SPECIAL if special else 1)
    return found


def moved_bytes(func: Func, facts: Facts) -> int:
    """The bytes per thread of accesses whose place depends on the program. Programs share all others, so a cache serves these."""

    def is_own(pointer: Value) -> bool:
        makers = (facts.definition.get(x) for x in reachable([pointer], lambda x: sources(facts, x)))
        return any(op is not None and op.name == "program_id" for op in makers)

    found = 0
    for op in func.ops():
        if op.name in ACCESSES and (pointer := global_operands(op)[0]).type.shape and is_own(pointer):
            found += pointer.type.layout.num_registers * pointer.type.dtype.element.bytes
    return found
