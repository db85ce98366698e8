"""The IR: Value, Op, Block, Func. Immutable, structured SSA.

One `Op` class represents every operation at every level. The op table (`blocknb.language.ops`) defines the meaning of each name. A pass
is a function from Func to Func, so a snapshot of the IR is a reference, and the compiler can keep every stage. Two properties make
snapshots comparable. An op has an `id` that survives a rebuild, and `was`, the ids that it replaces or copies. A rebuilt op keeps its
result Values unless their type changes. A Value does not refer to its op; call `definitions(func)` for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from blocknb.errors import Loc

EMPTY: Mapping[str, Any] = MappingProxyType({})
LEVELS = ("tile", "distributed", "memory")


class Value:
    """One SSA value: a type (Tile or Buffer) and a name hint for printing. Compared by identity."""

    __slots__ = ("name", "type")

    def __init__(self, type: Any, name: str = ""):
        self.type, self.name = type, name

    def __repr__(self) -> str:
        return f"%{self.name or hex(id(self))[-4:]}: {self.type}"


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation.

    `args` and `results` are Values, and `blocks` is nested code. `attrs` is a read-only mapping of plain Python values (int, float, str,
    bool, tuples, Layout). `loc` is the place in the source, and `origin` the pass that made the op ("parse" for the front end). `id` is
    unique in the Func, and `was` has the ids that this op replaces or copies.
    """

    name: str
    args: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    blocks: tuple[Block, ...] = ()
    loc: Loc | None = None
    origin: str = ""
    id: int = -1
    was: tuple[int, ...] = ()

    @property
    def result(self) -> Value:
        (value,) = self.results
        return value

    def replace(self, **changes: Any) -> Op:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A list of ops with block arguments. The last op of a nested block is its terminator (`yield` or `condition`)."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]

    @property
    def terminator(self) -> Op:
        return self.ops[-1]


@dataclass(frozen=True, slots=True)
class Hint:
    """The compile-time knowledge about a parameter.

    It consists of the name, a divisor of the value (for a pointer, of the address in bytes), and the bounds that the author promises.
    """

    name: str
    divisibility: int = 1
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, eq=False)
class Func:
    """A kernel for one signature. `level` is tile, distributed or memory; `attrs` hold num_warps, num_stages, shared_bytes and so on.

    `hints` has one Hint per parameter. A Func of the tile level does not mention threads. Program ids are results of the `program_id`
    op, so passes can change the map from programs to CTAs without changing the body.
    """

    name: str
    params: tuple[Value, ...]
    body: Block
    level: str = "tile"
    attrs: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    hints: tuple[Hint, ...] = ()
    loc: Loc | None = None

    def __repr__(self) -> str:
        return f"<Func {self.name}: {self.level} IR, {sum(1 for _ in self.ops())} ops>"

    def replace(self, **changes: Any) -> Func:
        return replace(self, **changes)

    def with_attrs(self, **attrs: Any) -> Func:
        return replace(self, attrs=MappingProxyType({**self.attrs, **attrs}))

    @cached_property
    def next_id(self) -> int:
        """The first free op id."""
        return 1 + max((op.id for op in walk(self.body)), default=-1)

    def ops(self) -> Iterator[Op]:
        return walk(self.body)


def walk(block: Block) -> Iterator[Op]:
    """All ops of a block and its nested blocks in program order, outer ops before inner ones."""
    for op in block.ops:
        yield op
        for inner in op.blocks:
            yield from walk(inner)


def blocks(block: Block) -> Iterator[Block]:
    """A block and its nested blocks, outer blocks before inner ones."""
    yield block
    for op in walk(block):
        yield from op.blocks


def within(op: Op) -> Iterator[Op]:
    """An op and its nested ops, in program order."""
    yield op
    for block in op.blocks:
        yield from walk(block)


def operands(op: Op) -> Iterator[Value]:
    """The operands of an op and its nested ops."""
    for inner in within(op):
        yield from inner.args


def definitions(func: Func) -> dict[Value, Op]:
    """The defining op of each op result. Parameters and block arguments are not included."""
    return {value: op for op in func.ops() for value in op.results}


def block_arguments(func: Func) -> dict[Value, tuple[Op, int, int]]:
    """Each block argument of a nested block -> (the op that holds the block, the block's index, the argument's index)."""
    found = {}
    for op in func.ops():
        for b, block in enumerate(op.blocks):
            for i, value in enumerate(block.args):
                found[value] = (op, b, i)
    return found


Users = Mapping[Value, Sequence[tuple[Op, int]]]  # as `uses` finds them


def uses(func: Func) -> dict[Value, list[tuple[Op, int]]]:
    """Every use of a value: the op and the operand's index."""
    found: dict[Value, list[tuple[Op, int]]] = {}
    for op in func.ops():
        for i, value in enumerate(op.args):
            found.setdefault(value, []).append((op, i))
    return found


def is_volatile(op: Op) -> bool:
    """Whether a load reads memory where it stands, because other programs may change it: a volatile load, or one that bypasses the caches
    (`cache_modifier=".cv"`)."""
    return bool(op.attrs.get("volatile")) or (op.name == "load" and op.attrs.get("cache") == ".cv")
