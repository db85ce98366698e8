"""Merges the values that two arms, or two iterations of a loop, give to the same names.

A name may hold a tree: nested tuples or records of leaves, where a leaf is a run-time Value or a constant. Only leaves that differ
become results of an `if` or carried values of a loop, as phi nodes in SSA do. The tree is rebuilt around them. A closed block can be
reopened, so that it converts its constants to run-time values before it yields them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from blocknb.frontend.emitter import NUMBERS, Emitter, Mismatch, describe
from blocknb.frontend.records import RecordValue
from blocknb.ir.core import Block, Op, Value
from blocknb.language import types as t
from blocknb.language.constants import like
from blocknb.language.types import Tile


class Disagreement(Exception):
    """Two values of a name that cannot be merged. The text describes both: "fp32 and int32"."""


def unequal_arms(why: Exception) -> Mismatch:
    """The error for a conditional expression whose arms cannot be merged."""
    return Mismatch(
        f"the arms of the conditional expression are {why}",
        "convert both to the same type with .to(...) or tl.full(...)",
    ).in_triton("Ternary expression with dynamic condition has inconsistent types")


#: The value of a name, or of a function's result, at the end of an arm after which nothing reads it.
NEVER = object()


class Role(Enum):
    """The position of a leaf: outside records, in a record field that loops usually change, or in another record field."""

    PLAIN = 0
    MOVING = 1
    FIXED = 2


def leaves(tree: Any) -> Iterator[Any]:
    return (leaf for leaf, _ in placed_leaves(tree))


def placed_leaves(tree: Any, role: Role = Role.PLAIN) -> Iterator[tuple[Any, Role]]:
    """The leaves in order, each with its role."""
    if isinstance(tree, tuple):
        for branch in tree:
            yield from placed_leaves(branch, role)
    elif isinstance(tree, RecordValue):
        for name, branch in zip(tree.TREES, tree.branches, strict=True):
            yield from placed_leaves(branch, Role.MOVING if name in tree.MOVING else Role.FIXED)
    else:
        yield tree, role


def rebuild(tree: Any, replaced: Iterator[Any]) -> Any:
    """The same tree with leaves taken from an iterator, in order."""
    if isinstance(tree, tuple):
        return like(tree, (rebuild(branch, replaced) for branch in tree))
    if isinstance(tree, RecordValue):
        return tree.rebuilt(rebuild(tree.branches, replaced))
    return next(replaced)


def same_shape(a: Any, b: Any) -> bool:
    if isinstance(a, RecordValue) and isinstance(b, RecordValue):
        return a.constants == b.constants and same_shape(a.branches, b.branches)
    if isinstance(a, (tuple, RecordValue)) or isinstance(b, (tuple, RecordValue)):
        return isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) and all(map(same_shape, a, b))
    return True


def identical(a: Any, b: Any) -> bool:
    """Whether two leaves are the same Value or equal constants of the same type."""
    if a is b:
        return True
    if isinstance(a, Value) or isinstance(b, Value) or type(a) is not type(b):
        return False
    try:
        return bool(a == b)
    except Exception:  # an object that cannot be compared counts as different
        return False


def is_runtime(x: Any) -> bool:
    return isinstance(x, (Value, *NUMBERS))


def leaf_type(a: Any, b: Any, role: Role = Role.PLAIN) -> Tile:
    """The common type of two different leaves. For integers in records it is int64. Raises Disagreement."""
    if not (is_runtime(a) and is_runtime(b)):
        raise Disagreement(f"{describe(a)} and {describe(b)}")
    if role != Role.PLAIN and is_integer(a) and is_integer(b):
        same = isinstance(a, Value) and isinstance(b, Value) and a.type == b.type
        return a.type if same else Tile(t.int64)
    if isinstance(a, Value) and isinstance(b, Value):
        if a.type != b.type:
            raise Disagreement(f"{describe(a)} and {describe(b)}")
        return a.type
    if isinstance(a, Value) or isinstance(b, Value):
        value, literal = (a, b) if isinstance(a, Value) else (b, a)
        if value.type.shape or value.type.is_pointer or not literal_fits(value.type.dtype, literal):
            raise Disagreement(f"{describe(a)} and {describe(b)}")
        return value.type
    return _literal_type(a, b)


def _literal_type(a: Any, b: Any) -> Tile:
    """The common type of two literals. Raises Disagreement."""
    own = t.literal_dtype(a), t.literal_dtype(b)
    if own[0] == own[1]:
        return Tile(own[0])
    if t.float64 in own and t.float32 in own:
        return Tile(t.float64)
    if own[0].kind == own[1].kind == "int":
        return Tile(t.int64)
    raise Disagreement(f"{describe(a)} and {describe(b)}")


def is_integer(x: Any) -> bool:
    """Whether a leaf is an integer scalar or a Python int."""
    return isinstance(x, int) or (isinstance(x, Value) and not x.type.is_pointer and x.type.dtype.is_integer)


def literal_fits(dtype: Any, value: bool | int | float) -> bool:
    """Whether a Python number may silently become the dtype: the kinds agree, or it is an int for a float."""
    if isinstance(value, bool) or dtype.kind == "bool":
        return isinstance(value, bool) and dtype.kind == "bool"
    if isinstance(value, float):
        return dtype.is_float
    if dtype.is_float:
        return True
    low, high = (0, 2**dtype.bits) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1))
    return low <= value < high


def _types_made_in(ops: Sequence[Op], tree: Any) -> list[Tile | None]:
    """The types of the leaves that the ops of an arm define, which are not visible outside the arm. None for other leaves."""
    made = {value for op in ops for value in op.results}
    return [x.type if isinstance(x, Value) and x in made else None for x in leaves(tree)]


def _types_where_different(a: Any, b: Any) -> list[Tile | None]:
    """The common types of the leaves of two trees, None where they are identical. Raises Disagreement."""
    return [
        None if identical(x, y) else leaf_type(x, y, role)
        for (x, role), y in zip(placed_leaves(a), leaves(b), strict=True)
    ]


def _with_results(tree: Any, types: Sequence[Tile | None], results: Iterator[Value]) -> Any:
    """A tree whose leaves are results where they have a type."""
    found = [x if kind is None else next(results) for x, kind in zip(leaves(tree), types, strict=True)]
    return rebuild(tree, iter(found))


def merge_arms(
    emit: Emitter,
    test: Value,
    then_ops: Sequence[Op],
    then: Sequence[Any],
    else_ops: Sequence[Op],
    other: Sequence[Any],
) -> list[Any]:
    """Emits the `if` whose arms are the given ops, and returns the merged tree of each pair.

    A pair that cannot be merged becomes a Disagreement, which the caller reports or drops. NEVER merges with everything.
    """
    merged: list[Any] = []
    pairs: list[tuple[Any, Any]] = []
    types: list[Tile] = []
    for a, b in zip(then, other, strict=True):
        if a is NEVER or b is NEVER:
            tree, ops = (b, else_ops) if a is NEVER else (a, then_ops)
            found = _types_made_in(ops, tree)
            merged.append((tree, found))
            inner = [x for x, kind in zip(leaves(tree), found, strict=True) if kind is not None]
            pairs += [(NEVER, x) if a is NEVER else (x, NEVER) for x in inner]
            types += [x.type for x in inner]
            continue
        if not same_shape(a, b):
            merged.append(Disagreement(f"{describe(a)} and {describe(b)}"))
            continue
        try:
            found = _types_where_different(a, b)
        except Disagreement as error:
            merged.append(error)
            continue
        merged.append((a, found))
        for x, y, kind in zip(leaves(a), leaves(b), found, strict=True):
            if kind is not None:
                pairs.append((x, y))
                types.append(kind)
    blocks = [
        close(emit, ops, [(pair[i], kind) for pair, kind in zip(pairs, types, strict=True)])
        for i, ops in enumerate((then_ops, else_ops))
    ]
    results = iter(emit.op("if", test, blocks=blocks, types=tuple(types)).results)
    for i, entry in enumerate(merged):
        if isinstance(entry, tuple):
            tree, found = entry
            merged[i] = _with_results(tree, found, results)
    return merged


def close(emit: Emitter, ops: Sequence[Op], values: Sequence[tuple[Any, Tile]], args: Sequence[Value] = ()) -> Block:
    """A block of the given ops that yields the values. It converts constants to the given types."""
    with emit.block(args) as block:
        for op in ops:
            emit.append(op)
        emit.op("yield", *(converted(emit, x, kind) for x, kind in values))
    return block.done


def converted(emit: Emitter, x: Any, kind: Tile) -> Value:
    if x is NEVER and kind.is_pointer:
        return emit.cast(emit.number(0, t.int64, kind.shape), kind.dtype)
    if x is NEVER:
        x = emit.number(0, kind.dtype, kind.shape)
    if isinstance(x, Value):
        return x if x.type == kind else emit.cast(x, kind.dtype)
    return emit.number(x, kind.dtype, kind.shape)
