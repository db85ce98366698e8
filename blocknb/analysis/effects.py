"""Side effects of an op and of the blocks nested in it: the memory it reads and writes, and the accesses that it orders.

The op table states the effects of each op. This module adds what depends on the single op. Examples are a product that reads an operand
from shared memory, a volatile load, and a loop that may not terminate. The array behind a pointer is not known here, but in `affine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blocknb.ir.core import Op, Value, is_volatile
from blocknb.language.ops import MASK_AT, OPS
from blocknb.language.types import Buffer

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Effects:
    """`reads`, `writes`: the memories that the op touches, of "global" and "shared". `orders`: accesses must not move across the op (a
    barrier, a volatile load, assembly). `may_hang`: a `while` may not terminate."""

    reads: frozenset[str] = NOTHING
    writes: frozenset[str] = NOTHING
    orders: bool = False
    may_hang: bool = False

    def __or__(self, other: Effects) -> Effects:
        reads, writes = self.reads | other.reads, self.writes | other.writes
        return Effects(reads, writes, self.orders or other.orders, self.may_hang or other.may_hang)

    def conflicts(self, other: Effects) -> bool:
        """Whether two ops must keep their order: both touch one memory and one of them writes, or one orders the accesses of the other."""
        if (self.orders and (other.reads or other.writes or other.orders)) or (
            other.orders and (self.reads or self.writes)
        ):
            return True
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)


def effects(op: Op) -> Effects:
    """The effects of an op, including those of its nested blocks."""
    spec = OPS[op.name]
    reads, writes = {spec.reads} - {""}, {spec.writes} - {""}
    if "reads_buffers" in spec.traits and any(isinstance(arg.type, Buffer) for arg in op.args):
        reads.add("shared")
    orders = op.name == "barrier" or is_volatile(op) or (op.name == "asm" and not op.attrs["pure"])
    found = Effects(frozenset(reads), frozenset(writes), orders, op.name == "while")
    for block in op.blocks:
        for inner in block.ops:
            found |= effects(inner)
    return found


def global_operands(op: Op) -> tuple[Value, ...]:
    """The operands of a global access, pointer first. They exclude the shared buffer of a copy and the one that takes an atomic's
    result."""
    return op.args[1:] if isinstance(op.args[0].type, Buffer) else op.args


def mask_of(op: Op) -> Value | None:
    """The mask of a load, store or atomic."""
    position = MASK_AT.get(op.name)
    args = global_operands(op)
    return args[position] if position is not None and len(args) > position else None


def orders(op: Op) -> tuple[bool, bool]:
    """Whether an atomic acquires (later accesses stay after it) and releases (earlier accesses stay before it). The pass `memory_order`
    must have set its `sem`."""
    sem = op.attrs["sem"]
    return sem in ("acquire", "acq_rel"), sem in ("release", "acq_rel")


def result_is_used(op: Op, users: Mapping[Value, object]) -> bool:
    """Whether an op uses the result of an atomic. An atomic that returns its result through shared memory has none in the IR."""
    return not op.results or bool(users.get(op.result))


def has_side_effects(op: Op) -> bool:
    """Whether dead code elimination must keep the op even if its results are unused."""
    found = effects(op)
    return bool(found.writes) or found.orders or found.may_hang
