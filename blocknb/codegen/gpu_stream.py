"""Tiles that are too big for registers: made piece by piece where they are consumed, and never whole.

A thread has 255 registers. A tile of 2^16 elements in 4 warps would take 512 of them, and ptxas works for many seconds on code that
is slow in the end. So a big tile that is loaded, computed with and then stored or reduced is *streamed*: nothing is emitted where its
ops stand, and each store or reduction asks for a piece of the registers at a time, which emits the loads and the arithmetic for just
that piece, at that place, and forgets them. A tile that two of them consume is loaded twice, the second time from a cache; spilled
registers would take the same way.

Loads thereby move down, and pass no write on their way: two arguments may be one array, and who loads it, stores into it and uses what
was loaded once more has loaded before the store. Nor do they pass a barrier that somebody wrote. Only the store that consumes them
last they meet piece by piece: into another array, or into the very elements that were loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import effects, global_operands
from blocknb.ir.core import Block, Func, Op, Value, uses
from blocknb.language.ops import ATOMICS, OPS
from blocknb.language.types import Pointer, Tile
from blocknb.layouts.convert import plan
from blocknb.trace import Notes

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

REPEATS = 4  # times that streamed ops may be emitted on average
CONSUMERS = ("store", "reduce")
RENAMING = ("broadcast", "expand_dims", "reshape", "trans", "convert")
T = TypeVar("T", int, tuple[int, ...])
Users = Mapping[Value, Sequence[tuple[Op, int]]]
Stores = Mapping[Value | None, Sequence[Op]]


def registers(func: Func) -> int:
    """How many registers of 32 bits a thread may have (one of the 256 that the machine counts stays unused)."""
    return min(256, 65536 // (32 * func.attrs["num_warps"]))


def piece_of(func: Func) -> int:
    """How many registers are made at a time: two operands of so many leave room for half as many again, twice."""
    return max(1, registers(func) // 4)


def is_big(value: Value, held: int) -> bool:
    """Whether a thread's part of a tile takes more than `held` registers."""
    kind = value.type
    if not isinstance(kind, Tile) or not kind.shape:
        return False
    words = 2 if kind.dtype.bits == 64 and not isinstance(kind.dtype, Pointer) else 1
    return kind.layout.num_registers * words > held


def streamed(func: Func, facts: Facts) -> frozenset[Value]:
    """The values of a memory-level Func that are made piece by piece: tiles that take half of a thread's registers and are consumed
    once, and tiles that take more than there are."""
    limit = registers(func)
    if not any(op.name == "load" and is_big(op.result, limit // 2) for op in func.ops()):
        return frozenset()
    users, stores = uses(func), _stored(func, facts)
    blocks = [func.body, *(block for op in func.ops() if op.name in ("for", "while", "if") for block in op.blocks)]
    return frozenset().union(*(_in_block(block, facts, users, stores, limit) for block in blocks))


def _stored(func: Func, facts: Facts) -> Stores:
    """The accesses that write each array, or one that is not known (None)."""
    found: dict[Value | None, list[Op]] = {}
    for op in func.ops():
        if op.name in ("store", *ATOMICS):
            found.setdefault(facts.root(global_operands(op)[0]), []).append(op)
        elif op.name == "asm":
            for pointer in (x for x in op.args if x.type.is_pointer):
                found.setdefault(facts.root(pointer), []).append(op)
    return found


def _in_block(block: Block, facts: Facts, users: Users, stores: Stores, limit: int) -> frozenset[Value]:
    for held, repeats in ((limit // 2, 1), (limit, REPEATS)):
        found = _streamable(block, facts, users, stores, held)
        emitted = sum(len(_made_for(op, found)) for op in block.ops if op.name in CONSUMERS)
        if any(op.name == "load" for op in found.values()) and emitted <= repeats * len(found):
            return frozenset(found)
    return frozenset()


def _streamable(block: Block, facts: Facts, users: Users, stores: Stores, held: int) -> dict[Value, Op]:
    """The values that take more than `held` registers and may be streamed, with their ops."""
    place = {op: i for i, op in enumerate(block.ops)}
    found = {op.result: op for op in block.ops if len(op.results) == 1 and _may_stream(op, held)}
    found = {v: op for v, op in found.items() if op.name != "load" or _is_apart(op, facts, stores)}
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
        return not op.attrs.get("volatile")
    if op.name == "convert":
        kind = op.result.type
        return plan(op.args[0].type.layout, op.attrs["layout"], max(8, kind.dtype.bits)).registers is not None
    return OPS[op.name].pure and op.name not in ("dot", "flip", "gather", "local_load", "inside", "part")


def _takes(user: Op, place: Mapping[Op, int], found: Mapping[Value, Op]) -> bool:
    """Whether an op can do with pieces of an operand."""
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
    last, todo, seen = place[load], [load.result], {load.result}
    while todo:
        for user, _ in users.get(todo.pop(), ()):
            last = max(last, place.get(user, last))
            todo += [r for r in user.results if r in found and r not in seen]
            seen.update(user.results)
    # In a loop the same pointers are other ones in the next trip, from which barriers may keep this one's apart.
    guarded = block.ops[-1].name in ("yield", "condition") and facts.root(load.args[0]) in stores
    return all(_may_pass(op, guarded) for op in block.ops[place[load] + 1 : last]) and (
        _meets(load, block.ops[last], facts, found)
    )


def _may_pass(op: Op, guarded: bool) -> bool:
    if op.name == "barrier":
        return op.origin == "barriers" and not guarded
    found = effects(op)
    return not (found.orders or found.may_hang or "global" in found.writes)


def _meets(load: Op, consumer: Op, facts: Facts, found: Mapping[Value, Op]) -> bool:
    """Whether a load may happen in the pieces of its last consumer."""
    if consumer.name != "store":
        return _may_pass(consumer, True)
    if facts.root(consumer.args[0]) is not facts.root(load.args[0]):
        return True
    # Each element that is stored is made of the one that was loaded from there, and of none that another piece loads.
    return _is_own(load, consumer, facts) and not any(found[v].name in RENAMING for v in _made_for(consumer, found))


def _is_own(load: Op, op: Op, facts: Facts) -> bool:
    """Whether an op stores to the same addresses element by element, each of one thread, and of one element."""
    pointer = load.args[0]
    if op.name != "store" or op.args[0] is not pointer:
        return False
    if len(pointer.type.shape) != 1 or pointer.type.layout.is_replicated:
        return False
    stride = facts.stride(pointer, 0)
    return isinstance(stride, int) and stride != 0


def _is_apart(load: Op, facts: Facts, stores: Stores) -> bool:
    """Whether nothing in the kernel writes what is loaded, but into the very same elements."""
    root = facts.root(load.args[0])
    return root is not None and all(_is_own(load, op, facts) for op in (*stores.get(root, ()), *stores.get(None, ())))


def _made_for(consumer: Op, found: Mapping[Value, Op]) -> set[Value]:
    """The streamed values that are emitted for one consumer."""
    made: set[Value] = set()
    todo = list(consumer.args)
    while todo:
        value = todo.pop()
        if value in found and value not in made:
            made.add(value)
            todo += found[value].args
    return made


# -- emitting


@contextmanager
def forgetting(g: Generator) -> Iterator[None]:
    """What is emitted inside of streamed values is forgotten at the end."""
    g.scopes.append([])
    try:
        yield
    finally:
        g.forget()


def in_pieces(g: Generator, op: Op, registers: Sequence[T], emit: Callable[[Sequence[T]], None]) -> None:
    """Emits a consumer that needs no result: `emit` for the registers (or accesses, tuples of them) of each piece.

    One by one if all operands are held, else in pieces; and where the pieces differ in nothing but the place in the tile, in a loop.
    """
    if not any(value in g.streamed for value in op.args):
        for register in registers:
            emit([register])
        return
    per = registers[0]
    count = max(1, piece_of(g.func) // (len(per) if isinstance(per, tuple) else 1))
    if not has_equal_pieces(g, op):
        for start in range(0, len(registers), count):
            with forgetting(g):
                emit(registers[start : start + count])
        return
    with loop(g, op, 0, []):
        emit(registers[:count])


def has_equal_pieces(g: Generator, op: Op) -> bool:
    """Whether a piece becomes the next one by adding to the index: all that is streamed for `op` lies alike, in a tile of rank one,
    and is made of indices, scalars and loads."""
    made = _made_for(op, g.defs_of_streamed)
    layouts = {v.type.layout for v in made}
    if len(layouts) != 1 or len((layout := next(iter(layouts))).shape) != 1:
        return False
    bases = [*layout.reg, *layout.lane, *layout.warp]
    if any(a & b for i, a in enumerate(bases) for b in bases[:i]) or len(layout.reg) < piece_of(g.func).bit_length():
        return False
    operands = {x for v in made for x in g.defs_of_streamed[v].args} | set(op.args)
    return all(not x.type.shape or x in made for x in operands) and not any(
        g.defs_of_streamed[v].name in RENAMING for v in made
    )


@contextmanager
def loop(g: Generator, op: Op, first: int, carried: Sequence[tuple[str, str]]) -> Iterator[Loop]:
    """A loop over the pieces of `op` from number `first`. `carried` are the types and initial values of what goes through the loop."""
    values = _made_for(op, g.defs_of_streamed)
    made = Loop(g, values, first, carried)
    with anew(g, values), forgetting(g):
        made.begin()
        yield made
        made.end()


@contextmanager
def anew(g: Generator, made: set[Value]) -> Iterator[None]:
    """What is known of streamed values before is not known inside: a load that is held asked for addresses that others make in pieces."""
    tables: tuple[dict[Value, Any], ...] = (g.registers, g.words)
    known = [table[value] for value in made for table in tables if value in table]
    before = [dict(names) for names in known]
    for names in known:
        names.clear()
    yield
    for names, old in zip(known, before, strict=True):
        names.update(old)


class Loop:
    """A loop while it is emitted: `values` are the carried ones, first as they come in, and after `leave` as they go on."""

    def __init__(self, g: Generator, made: set[Value], first: int, carried: Sequence[tuple[str, str]]):
        self.g, self.first, self.carried = g, first, carried
        layout = next(iter(made)).type.layout
        self.bases = layout.reg[piece_of(g.func).bit_length() - 1 :]
        self.counter, self.values = g.name(), [g.name() for _ in carried]
        self.following: Sequence[str] = ()

    def begin(self) -> None:
        g = self.g
        self.before, self.head, self.done = g.label, g.new_label("piece"), g.new_label("pieces.done")
        g.do(f"br label %{self.head}")
        g.start(self.head)
        self.sink, self.phis = g.sink, len(g.sink)
        g.offset = g.xor_bits((self.counter, self.bases))

    def leave(self, following: Sequence[str]) -> None:
        """What the carried values are in the next piece, and after the loop."""
        self.following = following

    def end(self) -> None:
        g, pieces = self.g, 1 << len(self.bases)
        g.offset = ""
        after = g.emit(f"add i32 {self.counter}, 1")
        more = g.emit(f"icmp ult i32 {after}, {pieces}")
        g.do(f"br i1 {more}, label %{self.head}, label %{self.done}")
        rows = [(self.counter, "i32", str(self.first), after)]
        rows += [(x, t, i, f) for x, (t, i), f in zip(self.values, self.carried, self.following, strict=True)]
        self.sink[self.phis : self.phis] = [
            f"  {name} = phi {kind} [ {initial}, %{self.before} ], [ {following}, %{g.label} ]"
            for name, kind, initial, following in rows
        ]
        g.start(self.done)


def explain(g: Generator, notes: Notes) -> None:
    """Says of every big tile that is loaded how it fits into registers, or that it does not."""
    limit = registers(g.func)
    for op in g.func.ops():
        if op.name != "load" or not is_big(op.result, limit // 2 if op.result in g.streamed else limit):
            continue
        text = f"{op.result.type.layout.num_registers} registers a thread, of {limit}"
        if op.result in g.streamed:
            times = sum(
                op.result in _made_for(consumer, g.defs_of_streamed)
                for consumer in g.func.ops()
                if consumer.name in CONSUMERS
            )
            often = (
                f"{times} times, piece by piece where it is used" if times > 1 else "piece by piece where it is used"
            )
            notes(op, f"{text}: loaded {often}")
        else:
            notes(
                op,
                f"{text}: does not fit, and memory holds the rest; more warps (num_warps) or a smaller block fit",
                "missed",
            )
