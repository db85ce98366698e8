"""Lifts a function of scalars to tiles (vectorization by if-conversion): each op is emitted once for all elements.

A branch on an element becomes a `select` between both arms. The *path* of an op is the mask of the elements that reach it, and it
masks the loads. A loop runs until its last element leaves; elements that have left keep their values. An arm that is long, or that
contains a loop or a load, stays under a branch, which is taken if any element needs it. Values that do not depend on the elements stay
scalars, and branches on them stay branches. With the shape () each arm becomes straight code. The combine functions of reductions lose
their branches in this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.errors import TypeMismatch
from blocknb.frontend.emitter import Emitter
from blocknb.frontend.merge import close
from blocknb.ir.core import Block, Op, Value, walk
from blocknb.language import types as t
from blocknb.language.ops import LOOPS, OPS, STRUCTURED, TERMINATORS
from blocknb.language.types import Tile

LONG = 24  # an arm with this many ops gets a branch
Path = Value | None  # None: every element


def branches(ops: Sequence[Op]) -> bool:
    """Whether the ops of a scalar function contain control flow."""
    return any(op.name in STRUCTURED for op in ops)


def loops(ops: Sequence[Op]) -> bool:
    return any(inner.name == "load" or inner.name in LOOPS for op in ops for inner in walk(Block((), (op,))))


class Lift:
    """Emits scalar ops for tiles of a shape. `at` maps each scalar value to its tile or scalar."""

    def __init__(self, emit: Emitter, shape: tuple[int, ...], at: dict[Value, Value], where: str):
        self.emit, self.shape, self.at, self.where = emit, shape, dict(at), where
        self.varying = set(at.values()) if not shape else set()

    def ops(self, ops: Sequence[Op], path: Path = None) -> None:
        saved = self.emit.loc
        for op in ops:
            self.emit.loc = op.loc
            self.one(op, path)
        self.emit.loc = saved

    def get(self, value: Value) -> Value:
        return self.at.get(value, value)

    def varies(self, value: Value) -> bool:
        """Whether a value currently differs between elements."""
        return value in self.varying or (bool(self.shape) and value.type.shape == self.shape)

    def tile(self, value: Value) -> Value:
        """A value as a tile of the shape."""
        value = self.get(value)
        return value if value.type.shape == self.shape else self.emit.broadcast(value, self.shape)

    def define(self, old: Value, new: Value) -> None:
        self.at[old] = new
        new.name = new.name or old.name

    def refuse(self, op: Op, what: str, hint: str) -> TypeMismatch:
        return TypeMismatch(f"{what} in {self.where}", op.loc, hint)

    # -- straight ops

    def one(self, op: Op, path: Path) -> None:
        match op.name:
            case name if name in TERMINATORS:
                return
            case "if":
                self.branch(op, path)
            case "while":
                self.repeat(op, path)
            case "for":
                self.count(op, path)
            case "load":
                self.load(op, path)
            case _:
                self.straight(op, path)

    def straight(self, op: Op, path: Path) -> None:
        args = [self.get(a) for a in op.args]
        kind, varying = OPS[op.name].kind, any(map(self.varies, args))
        effect = kind in ("memory", "control") or (kind == "assembly" and not op.attrs["pure"])
        if effect or (op.blocks and varying) or (varying and kind not in ("elementwise", "assembly")):
            what = f"`{op.name}`" if effect else f"`{op.name}` of an element"
            raise self.refuse(op, what, "the function computes scalars from scalars, element by element")
        if not varying:
            if op.name == "const":
                self.define(op.result, self.emit.number(op.attrs["value"], op.result.type.dtype, op.result.type.shape))
                return
            made = self.emit.op(op.name, *args, blocks=op.blocks, **op.attrs)
        else:
            made = self.emit.op(op.name, *map(self.tile, op.args), **op.attrs)
            self.varying.update(made.results if not self.shape else ())
        for old, new in zip(op.results, made.results, strict=True):
            self.define(old, new)

    def load(self, op: Op, path: Path) -> None:
        """A load, masked by its path."""
        pointer, *rest = (self.get(a) for a in op.args)
        if path is None and not any(map(self.varies, (pointer, *rest))):
            made = self.emit.op("load", pointer, *rest, **op.attrs)
        else:
            mask = path if not rest else self.both(path, self.tile(rest[0]))
            masks = [] if mask is None else [mask]
            made = self.emit.op("load", self.tile(pointer), *masks, *map(self.tile, rest[1:]), **op.attrs)
        self.define(op.result, made.result)

    # -- masks

    def both(self, path: Path, condition: Value) -> Value:
        return condition if path is None else self.emit.value("and", path, condition)

    def any(self, mask: Value) -> Value:
        """Whether a mask holds anywhere."""
        emit = self.emit
        if not mask.type.shape:
            return mask
        flat = emit.value("reshape", mask, shape=(mask.type.size,)) if len(mask.type.shape) > 1 else mask
        args = Value(Tile(t.int1), "a"), Value(Tile(t.int1), "b")
        with emit.block(args) as block:
            emit.op("yield", emit.value("or", *args))
        return emit.op("reduce", flat, blocks=(block.done,), axis=0).result

    # -- branches

    def branch(self, op: Op, path: Path) -> None:
        condition = self.get(op.args[0])
        if not self.varies(condition) and self.shape:
            self.plain_branch(op, condition, path)
            return
        arms = []
        for block, test in zip(op.blocks, (condition, self.emit.value("not", condition)), strict=True):
            arms.append(self.arm(block, self.both(path, test)))
        for result, then, other in zip(op.results, *arms, strict=True):
            self.define(result, self.emit.value("select", condition, then, other))
            self.varying.update([self.at[result]] if not self.shape else [])

    def arm(self, block: Block, path: Value) -> list[Value]:
        """The values of an arm: straight code, or code under a branch that skips the arm if no element needs it."""
        yielded = block.terminator.args
        if not self.shape or not (loops(block.ops) or sum(1 for _ in walk(block)) > LONG):
            self.ops(block.ops, path)
            return [self.tile(v) for v in yielded]
        with self.emit.block() as opened:
            self.ops(block.ops, path)
            values = [self.tile(v) for v in yielded]
        types = tuple(v.type for v in values)
        if any(kind.is_pointer for kind in types):  # no other pointer can be yielded
            raise self.refuse(
                block.terminator, "a pointer made in a branch that loads or loops", "branch on the offset instead"
            )
        blocks = [
            close(self.emit, opened.done.ops, [(v, v.type) for v in values]),
            close(self.emit, (), [(False if kind.dtype.kind == "bool" else 0, kind) for kind in types]),
        ]
        return list(self.emit.op("if", self.any(path), blocks=blocks, types=types).results)

    def plain_branch(self, op: Op, condition: Value, path: Path) -> None:
        """A branch on a scalar condition, which all elements take together."""
        arms, yields = [], []
        for block in op.blocks:
            with self.emit.block() as opened:
                self.ops(block.ops, path)
            arms.append(opened.done.ops)
            yields.append([self.get(v) for v in block.terminator.args])
        wide = [any(map(self.varies, pair)) for pair in zip(*yields, strict=True)]
        blocks = []
        for ops, values in zip(arms, yields, strict=True):
            with self.emit.block() as opened:
                for inner in ops:
                    self.emit.append(inner)
                self.emit.op("yield", *(self.tile(v) if w else v for v, w in zip(values, wide, strict=True)))
            blocks.append(opened.done)
        types = tuple(v.type for v in blocks[0].terminator.args)
        for old, new in zip(op.results, self.emit.op("if", condition, blocks=blocks, types=types).results, strict=True):
            self.define(old, new)

    # -- loops

    def repeat(self, op: Op, path: Path) -> None:
        """A `while`, which carries its values and the mask of the elements that are still in it."""
        before, after = op.blocks

        def test(carried: Sequence[Value], active: Value) -> tuple[Value, list[Value]]:
            self.at.update(zip(before.args, carried, strict=True))
            self.ops(before.ops, active)
            go_on, *rest = before.terminator.args
            return self.tile(go_on), [self.tile(v) for v in rest]

        def body(carried: Sequence[Value], active: Value) -> list[Value]:
            self.at.update(zip(after.args, carried, strict=True))
            self.ops(after.ops, active)
            return [self.tile(v) for v in after.terminator.args]

        for old, new in zip(op.results, self.while_any([self.tile(a) for a in op.args], path, test, body), strict=True):
            self.define(old, new)

    def while_any(self, initial: Sequence[Value], path: Path, test: Any, body: Any) -> Sequence[Value]:
        emit, mask = self.emit, Tile(t.int1, self.shape)
        start = emit.number(True, t.int1, self.shape) if path is None else path
        kinds = [*(v.type for v in initial), mask]
        args = [Value(kind) for kind in kinds]
        with emit.block(args) as first:
            holds, values = test(args[:-1], args[-1])
            active = emit.value("and", args[-1], holds)
            kept = [self.chosen(args[-1], new, old) for new, old in zip(values, args[:-1], strict=True)]
            emit.op("condition", self.any(active), *kept, active)
        inner = [Value(kind) for kind in kinds]
        with emit.block(inner) as second:
            changed = body(inner[:-1], inner[-1])
            kept = [self.chosen(inner[-1], new, old) for new, old in zip(changed, inner[:-1], strict=True)]
            emit.op("yield", *kept, inner[-1])
        return emit.op("while", *initial, start, blocks=(first.done, second.done)).results[:-1]

    def chosen(self, mask: Value, new: Value, old: Value) -> Value:
        return new if new is old else self.emit.value("select", mask, new, old)

    def count(self, op: Op, path: Path) -> None:
        """A `for`. If its bounds are scalars, it stays a `for`; otherwise it becomes a `while` that carries the index."""
        (block,), emit = op.blocks, self.emit
        bounds = [self.get(a) for a in op.args[:3]]
        if not any(map(self.varies, bounds)):
            initial = [self.tile(a) for a in op.args[3:]]
            args = [Value(block.args[0].type, block.args[0].name), *(Value(v.type) for v in initial)]
            self.at.update(zip(block.args, args, strict=True))
            with emit.block(args) as opened:
                self.ops(block.ops, path)
                emit.op("yield", *map(self.tile, block.terminator.args))
            attrs = {**op.attrs}
            results: Sequence[Value] = emit.op("for", *bounds, *initial, blocks=(opened.done,), **attrs).results
        else:
            lower, upper, step = (self.tile(a) for a in op.args[:3])
            zero = emit.number(0, step.type.dtype, self.shape)
            rising = emit.value("cmp", step, zero, pred="gt")

            def test(carried: Sequence[Value], active: Value) -> tuple[Value, list[Value]]:
                below, above = (emit.value("cmp", carried[0], upper, pred=pred) for pred in ("lt", "gt"))
                falls = emit.value("and", emit.value("not", rising), above)
                return emit.value("or", emit.value("and", rising, below), falls), list(carried)

            def body(carried: Sequence[Value], active: Value) -> list[Value]:
                self.at.update(zip(block.args, carried, strict=True))
                self.ops(block.ops, active)
                following = emit.value("add", carried[0], step)
                return [following, *(self.tile(v) for v in block.terminator.args)]

            results = self.while_any([lower, *(self.tile(a) for a in op.args[3:])], path, test, body)[1:]
        for old, new in zip(op.results, results, strict=True):
            self.define(old, new)
