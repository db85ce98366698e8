"""Builds and rebuilds functions.

A `Builder` collects ops in the open block and infers their result types from the op table. It marks each op with the source line of the op
that it replaces (`at`), and with the running pass (`made_by`). So passes need no code for source links. Most passes use `rebuild`. It walks
a Func in program order and calls a function for each op, with the operands already replaced. The function returns NotImplemented to keep
the op. Otherwise it emits other ops and returns the values that replace the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from blocknb.errors import Loc
from blocknb.ir.core import EMPTY, Block, Func, Op, Value
from blocknb.language import ops as table
from blocknb.language.types import Tile

_origin: ContextVar[str] = ContextVar("origin", default="")


@contextmanager
def made_by(origin: str) -> Iterator[None]:
    """Sets the origin of new ops inside the `with`. The runner of passes uses it to name the pass."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def current_origin() -> str:
    """The name of the running pass, or "" outside the runner."""
    return _origin.get()


def revised(op: Op, **changes: Any) -> Op:
    """The op with changed fields and the running pass as its origin."""
    return op.replace(origin=current_origin(), **changes)


class Builder:
    """Emits ops into the innermost open block.

    `origin` is the origin of the ops, by default the pass that runs (`made_by`); `first_id` is the first free op id.
    """

    def __init__(self, origin: str | None = None, first_id: int = 0):
        self.origin, self.next_id = current_origin() if origin is None else origin, first_id
        self.loc: Loc | None = None
        self.was: tuple[int, ...] = ()
        self._open: list[list[Op]] = [[]]

    @contextmanager
    def at(self, op: Op | None = None, loc: Loc | None = None) -> Iterator[None]:
        """Ops that are emitted inside replace `op`: they get its place and its id as `was`. With `loc` they only get that place."""
        saved = self.loc, self.was
        self.loc, self.was = (op.loc, (op.id,)) if op is not None else (loc, ())
        try:
            yield
        finally:
            self.loc, self.was = saved

    def append(self, op: Op) -> Op:
        """Appends an existing op to the open block."""
        self._open[-1].append(op)
        return op

    def op(
        self,
        name: str,
        *args: Value,
        blocks: Sequence[Block] = (),
        results: Sequence[Value] | None = None,
        **attrs: Any,
    ) -> Op:
        """Emits an op, whose result types come from the op table. Raises table.TypeRule if the operands do not match."""
        types = table.infer(name, tuple(a.type for a in args), attrs)
        if results is None:
            results = tuple(Value(x) for x in types)
        made = Op(
            name,
            tuple(args),
            tuple(results),
            MappingProxyType(attrs) if attrs else EMPTY,
            tuple(blocks),
            self.loc,
            self.origin,
            self.next_id,
            self.was,
        )
        self.next_id += 1
        return self.append(made)

    def value(self, name: str, *args: Value, **attrs: Any) -> Value:
        """Emits an op with one result and returns it."""
        return self.op(name, *args, **attrs).result

    def const(self, value: Any, type: Tile | Any) -> Value:
        """A constant of a Tile type, or of a scalar dtype."""
        return self.value("const", value=value, type=type if isinstance(type, Tile) else Tile(type))

    @contextmanager
    def block(self, args: Sequence[Value] = ()) -> Iterator[OpenBlock]:
        """Opens a nested block; after the `with`, `.done` is the Block."""
        self._open.append([])
        opened = OpenBlock(tuple(args))
        try:
            yield opened
        finally:
            opened.done = Block(opened.args, tuple(self._open.pop()))

    def finish(self) -> tuple[Op, ...]:
        """The ops of the outermost block."""
        (ops,) = self._open
        return tuple(ops)


class OpenBlock:
    """A block under construction; `done` is set when the `with` that opened it ends."""

    def __init__(self, args: tuple[Value, ...]):
        self.args = args
        self.done: Block = Block(args, ())


class Rebuild:
    """One walk over a Func that builds a new one.

    `visit(op, rebuild)` is called for each op, outer before inner, with operands replaced. It returns NotImplemented to keep the op, whose
    blocks are then rebuilt in turn. Otherwise it emits ops through `rebuild.builder`, and returns the values that replace the results.
    `rebuild.block(block)` rebuilds a nested block for a visitor that handles blocks itself.
    """

    def __init__(self, func: Func, visit: Callable[[Op, Rebuild], Any], origin: str | None = None):
        self.func, self.visit = func, visit
        self.builder = Builder(origin, func.next_id)
        self.mapping: dict[Value, Value] = {}

    def get(self, value: Value) -> Value:
        """The new value for an old one."""
        return self.mapping.get(value, value)

    def run(self, **changes: Any) -> Func:
        self.ops(self.func.body.ops)
        return self.func.replace(body=Block(self.func.body.args, self.builder.finish()), **changes)

    def ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.one(op)

    def one(self, op: Op) -> None:
        mapping, builder = self.mapping, self.builder
        args = tuple([mapping.get(a, a) for a in op.args])
        current = op if args == op.args else op.replace(args=args)
        saved = builder.loc, builder.was  # inlined `builder.at(op)`, which would take a tenth of the time of all passes
        builder.loc, builder.was = op.loc, (op.id,)
        try:
            replaced = self.visit(current, self)
        finally:
            builder.loc, builder.was = saved
        if replaced is NotImplemented:
            self.keep(current)
            return
        for old, new in zip(op.results, replaced or (), strict=True):
            if old is not new:
                mapping[old] = new
                if not new.name:
                    new.name = old.name

    def keep(self, op: Op) -> Op:
        """Appends the op itself, with its blocks rebuilt; its results keep their identity."""
        if op.blocks:
            blocks = tuple(self.block(b) for b in op.blocks)
            if any(b is not old for b, old in zip(blocks, op.blocks, strict=True)):
                op = op.replace(blocks=blocks)
        return self.builder.append(op)

    def block(self, block: Block, args: Sequence[Value] | None = None) -> Block:
        """Rebuilds a nested block. `args`, if given, replace the old block arguments."""
        if args is not None:
            self.mapping.update((old, new) for old, new in zip(block.args, args, strict=True) if old is not new)
        with self.builder.block(block.args if args is None else args) as opened:
            self.ops(block.ops)
        new = opened.done
        if (
            new.args == block.args
            and len(new.ops) == len(block.ops)
            and all(a is b for a, b in zip(new.ops, block.ops, strict=True))
        ):
            return block
        return new


def rebuild(func: Func, visit: Callable[[Op, Rebuild], Any], origin: str | None = None, **changes: Any) -> Func:
    """Rebuilds `func` by calling `visit` for every op; see Rebuild. `changes` are fields of the new Func."""
    return Rebuild(func, visit, origin).run(**changes)


def clone(block: Block, builder: Builder, mapping: MutableMapping[Value, Value]) -> None:
    """Emits copies of a block's ops with fresh results and ids. `mapping` replaces free values, and gains the fresh results."""
    for op in block.ops:
        emit_copy(op, builder, mapping)


def emit_copy(op: Op, builder: Builder, mapping: MutableMapping[Value, Value]) -> Op:
    """Emits a copy of one op with its blocks. `mapping` replaces operands, and gains the fresh results."""
    blocks = []
    for inner in op.blocks:
        args = tuple(Value(a.type, a.name) for a in inner.args)
        mapping.update(zip(inner.args, args, strict=True))
        with builder.block(args) as opened:
            clone(inner, builder, mapping)
        blocks.append(opened.done)
    results = tuple(Value(r.type, r.name) for r in op.results)
    mapping.update(zip(op.results, results, strict=True))
    made = Op(
        op.name,
        tuple(mapping.get(a, a) for a in op.args),
        results,
        op.attrs,
        tuple(blocks),
        op.loc,
        builder.origin,
        builder.next_id,
        (op.id,),
    )
    builder.next_id += 1
    return builder.append(made)
