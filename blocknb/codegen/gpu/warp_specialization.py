"""Warp specialization: the threads and registers that a kernel needs for the roles of its warps.

The op `roles` makes the first warps of a CTA consumers, in one or more groups. The warps after them are the producer, which copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from blocknb.ir.core import Block, Func, Op, walk
from blocknb.layouts import wgmma

SHARED_OF_SM, OF_EACH = 228 << 10, 1 << 10  # bytes, and the bytes that each CTA takes in addition
SCHEDULERS = 4  # of an SM

REGISTERS = 1 << 14  # of each scheduler

SPARE = 40  # registers of a thread for other values than accumulators

MANY = 64  # accumulators of a thread from which on ptxas must be told to spare registers


def find(func: Func) -> Op | None:
    """The op that gives the warps roles, if there is one. It is in the body of the function."""
    return next((op for op in func.body.ops if op.name == "roles"), None)


def threads(func: Func) -> int:
    """How many threads a CTA has along its x axis."""
    found = find(func)
    return 32 * (func.attrs["num_warps"] if found is None else sum(found.attrs["warps"]))


def resident(func: Func, threads: int) -> int:
    """The number of CTAs of a kernel with roles that ptxas must leave room for on an SM; 0 for no request. It is two if they fit: one
    computes while the other begins or ends. If registers are reallocated, a CTA takes all registers of an SM, or half of them if a single
    warpgroup consumes. Small MMAs leave room without a request."""
    found = find(func)
    if found is None:
        return 0
    if found.attrs.get("registers"):
        return 2 if found.attrs["warps"][0] == wgmma.GROUP else 1
    if 2 * (func.attrs.get("shared_bytes", 0) + OF_EACH) > SHARED_OF_SM:
        return 1
    blocks = (block for op in walk(found.blocks[0]) if op.name == "for" for block in op.blocks)
    held = max((sum(map(held_by, own(block))) for block in blocks), default=0)
    together = -(-2 * threads // (32 * SCHEDULERS))  # warps of two CTAs that share a scheduler
    return 2 if MANY <= held <= REGISTERS // (32 * together) - SPARE else 1


def own(block: Block) -> Iterator[Op]:
    """The ops of a block and of the branches in it, but not of loops."""
    for op in block.ops:
        yield op
        for inner in op.blocks if op.name == "if" else ():
            yield from own(inner)


def held_by(op: Op) -> int:
    """Registers of a thread for accumulators, and for 8-bit operands that are widened before the MMA."""
    if op.name == "dot":
        return op.result.type.layout.num_registers
    if op.name == "local_load" and op.args[0].type.dtype.bits == 8:
        return op.result.type.layout.num_registers // 2
    return 0


def consumer_groups(func: Func) -> int:
    """How many consumer groups a CTA has."""
    found = find(func)
    return 1 if found is None else found.attrs.get("consumer_groups", 1)


def is_alone(func: Func) -> bool:
    """Whether a CTA's consumer groups have the registers of an SM for themselves, or take turns with its tensor cores."""
    found = find(func)
    return found is not None and bool(found.attrs.get("registers") or found.attrs.get("consumer_groups", 1) > 1)
