"""Strip mining: a tile that does not fit the registers is computed in pieces, each just before its consumer uses it.

A thread has at most 255 registers. A tile of 2^16 elements in 4 warps needs 512 per thread; ptxas would spill them and take many seconds.
Such a tile is *streamed*: the code generator emits nothing where its loads and its arithmetic stand (`emit="in_pieces"`). A consumer, which
is a store or a reduction, goes through the tile's registers piece by piece. It emits the loads and the arithmetic of a piece before it uses
the piece. Its attribute `piece` is the number of registers of a piece. If a tile has two consumers, the kernel loads it twice. The second
load hits a cache, as the reload of a spilled register would.

So the loads move down to the consumer. They pass no write, because two arguments may be the same array, and no barrier of the user. Only
the last consumer may store between the loads of pieces: to another array, or to the elements that were loaded. The term is that of Allen
and Kennedy, "Optimizing Compilers for Modern Architectures" (2001).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blocknb.analysis import affine
from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import effects, global_operands
from blocknb.ir.core import Block, Func, Op, Users, Value, blocks, is_volatile, uses
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS, TERMINATORS, WRITES
from blocknb.language.types import Pointer, Tile
from blocknb.layouts.convert import plan
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.emission import IN_PIECES, RENAMING, made_for, with_attributes
from blocknb.target import Target
from blocknb.trace import Notes

REPEATS = 4  # times that streamed ops may be emitted on average

CONSUMERS = ("store", "reduce")  # their lowerings take a tile in pieces (`piece_loops`)

Stores = Mapping[Value | None, Sequence[Op]]


def applies(func: Func, target: Target) -> bool:
    """Whether a load takes more than half of a thread's registers."""
    return any(op.name == "load" and is_big(op.result, registers(func) // 2) for op in func.ops())


@gpu_pass(optional=True, applies=applies)
def strip_mining(func: Func, target: Target, notes: Notes) -> Func:
    """Computes a tile that exceeds the registers piece by piece where it is used

    When: a tile needs more registers than a thread can use, or more than half of them with a single consumer. The consumers are stores and
    reductions.

    What: the loads and the arithmetic of the tile are emitted where a consumer needs them, a piece of registers at a time. They are a loop
    if the pieces differ only in their addresses. If a tile has several consumers, each loads it again.

    Why: a tile of 65536 elements in 4 warps needs 512 registers per thread, of 255. Otherwise ptxas spills it to memory, register by
    register.

    Limits: a load never moves past a write to global memory, an atomic or a barrier of the kernel. On average an op is
    emitted at most four times. A note says which tiles do not fit and stay.

    Before:

        %x = load %p : tile<65536xf32, #a>
        %y = mul %x, %two : tile<65536xf32, #a>
        %s = reduce %x {axis=0} add : f32
        store %q, %y
        store %t, %s

    After:

        %x = load %p {emit="in_pieces"} : tile<65536xf32, #a>
        %y = mul %x, %two {emit="in_pieces"} : tile<65536xf32, #a>
        %s = reduce %x {axis=0, piece=64} add : f32
        store %q, %y {piece=64}
        store %t, %s
    """
    facts, limit = affine.analyze(func), registers(func)
    found = streamed(func, facts)
    defs = {op.result: op for op in func.ops() if op.results and op.results[0] in found}
    consumers = [op for op in func.ops() if op.name in CONSUMERS]
    for op in func.ops():
        if op.name != "load" or not is_big(op.result, limit // 2 if op.result in found else limit - 1):
            continue
        text = f"{op.result.type.layout.num_registers} registers a thread, of {limit}"
        if op.result in found:
            times = sum(op.result in made_for(consumer, defs) for consumer in consumers)
            often = f"{times} times, " if times > 1 else ""
            notes(op, f"{text}: loaded {often}{piece_of(func)} registers at a time, where it is used")
        else:
            advice = "memory holds the rest; more warps (num_warps) or a smaller block fit"
            notes(op, f"{text}: does not fit, and {advice}", "missed")
    added: dict[Op, Mapping[str, Any]] = {op: {"emit": IN_PIECES} for op in defs.values()}
    added |= {op: {"piece": piece_of(func)} for op in consumers if not found.isdisjoint(op.args)}
    return with_attributes(func, added) if found else func


def registers(func: Func) -> int:
    """How many 32-bit registers a thread may have (one of the 256 that the hardware counts stays unused)."""
    return min(256, 65536 // (32 * func.attrs["num_warps"]))


def piece_of(func: Func) -> int:
    """How many registers are computed at a time: two operands of this size leave half of the registers free."""
    return max(1, registers(func) // 4)


def is_big(value: Value, held: int) -> bool:
    """Whether a thread's part of a tile takes more than `held` registers."""
    kind = value.type
    if not isinstance(kind, Tile) or not kind.shape:
        return False
    words = 2 if kind.dtype.bits == 64 and not isinstance(kind.dtype, Pointer) else 1
    return kind.layout.num_registers * words > held


def streamed(func: Func, facts: Facts) -> frozenset[Value]:
    """The values of a memory-level Func that are made piece by piece."""
    limit = registers(func)
    if not any(op.name == "load" and is_big(op.result, limit // 2) for op in func.ops()):
        return frozenset()
    users, stores = uses(func), _stored(func, facts)
    return frozenset().union(*(_in_block(block, facts, users, stores, limit) for block in blocks(func.body)))


def _stored(func: Func, facts: Facts) -> Stores:
    """The accesses that write each array; None stands for an unknown array."""
    found: dict[Value | None, list[Op]] = {}
    for op in func.ops():
        if op.name in WRITES:
            found.setdefault(facts.root(global_operands(op)[0]), []).append(op)
        elif op.name == "asm":
            for pointer in (x for x in op.args if x.type.is_pointer):
                found.setdefault(facts.root(pointer), []).append(op)
    return found


def _in_block(block: Block, facts: Facts, users: Users, stores: Stores, limit: int) -> frozenset[Value]:
    """The streamed values of a block."""
    for held, repeats in ((limit // 2, 1), (limit, REPEATS)):
        found = _streamable(block, facts, users, stores, held)
        emitted = sum(len(made_for(op, found)) for op in block.ops if op.name in CONSUMERS)
        if any(op.name == "load" for op in found.values()) and emitted <= repeats * len(found):
            return frozenset(found)
    return frozenset()


def _streamable(block: Block, facts: Facts, users: Users, stores: Stores, held: int) -> dict[Value, Op]:
    """The values that take more than `held` registers and may be streamed, with their ops."""
    place = {op: i for i, op in enumerate(block.ops)}
    found = {op.result: op for op in block.ops if len(op.results) == 1 and _may_stream(op, held)}
    found = {v: op for v, op in found.items() if op.name != "load" or _only_updated_in_place(op, facts, stores)}
    changed = True
    while changed:
        fine = {v: op for v, op in found.items() if all(_takes(user, place, found) for user, _ in users.get(v, ()))}
        fine = {
            v: op
            for v, op in fine.items()
            if op.name != "load" or _may_move(op, block, place, fine, facts, users, stores)
        }
        changed, found = len(fine) < len(found), fine
    return found


def _may_stream(op: Op, held: int) -> bool:
    """Whether an op's registers can be made one by one, wherever that is."""
    if not is_big(op.result, held):
        return False
    if op.name == "load":
        return not is_volatile(op)
    if op.name == "convert":
        kind = op.result.type
        return plan(op.args[0].type.layout, op.attrs["layout"], max(8, kind.dtype.bits)).registers is not None
    # A streamed `inside` would repeat its 64-bit comparisons for each consumer.
    return OPS[op.name].kind in ("source", "shape", "elementwise") and op.name != "inside"


def _takes(user: Op, place: Mapping[Op, int], found: Mapping[Value, Op]) -> bool:
    """Whether an op can take an operand in pieces."""
    return user in place and (user.name in (*CONSUMERS, "load") or any(r in found for r in user.results))


def _may_move(
    load: Op,
    block: Block,
    place: Mapping[Op, int],
    found: Mapping[Value, Op],
    facts: Facts,
    users: Users,
    stores: Stores,
) -> bool:
    """Whether a load may happen as late as its last consumer."""

    def computed(value: Value) -> list[Value]:
        return [result for user, _ in users.get(value, ()) for result in user.results if result in found]

    moved = reachable([load.result], computed)
    last = max(place.get(user, 0) for value in moved for user in (load, *(x for x, _ in users.get(value, ()))))
    # In a loop the pointers differ in the next iteration. Barriers may keep its accesses apart from this one's.
    guarded = block.ops[-1].name in TERMINATORS and facts.root(load.args[0]) in stores
    return all(_may_pass(op, guarded) for op in block.ops[place[load] + 1 : last]) and (
        _may_load_at(load, block.ops[last], facts, found)
    )


def _may_pass(op: Op, guarded: bool) -> bool:
    """Whether a load may move past an op."""
    if op.name == "barrier":
        return op.origin == "barriers" and not guarded
    found = effects(op)
    return not (found.orders or found.may_hang or "global" in found.writes)


def _may_load_at(load: Op, consumer: Op, facts: Facts, found: Mapping[Value, Op]) -> bool:
    """Whether a load may happen in the pieces of its last consumer."""
    if consumer.name != "store":
        return _may_pass(consumer, True)
    if facts.root(consumer.args[0]) is not facts.root(load.args[0]):
        return True
    # Each stored element is computed from the one that was loaded from there, and from none that another piece loads.
    return _is_own(load, consumer, facts) and not any(found[v].name in RENAMING for v in made_for(consumer, found))


def _is_own(load: Op, op: Op, facts: Facts) -> bool:
    """Whether an op stores to the loaded addresses element by element, and each address has one thread and one element."""
    pointer = load.args[0]
    if op.name != "store" or op.args[0] is not pointer:
        return False
    if len(pointer.type.shape) != 1 or pointer.type.layout.is_replicated:
        return False
    stride = facts.stride(pointer, 0)
    return isinstance(stride, int) and stride != 0


def _only_updated_in_place(load: Op, facts: Facts, stores: Stores) -> bool:
    """Whether the kernel writes what is loaded nowhere but into the very same elements."""
    root = facts.root(load.args[0])
    return root is not None and all(_is_own(load, op, facts) for op in (*stores.get(root, ()), *stores.get(None, ())))
