"""Translates loops: `for` over range and static_range, and `while`.

A loop carries each name that its body assigns and that has a value before the loop. The name becomes a block argument and keeps the
type of its initial value. Branches on constants may be dead, so the names that really change are known only after the visit. The front
end visits the body with all candidates carried. If some did not change, it visits the body again without them.
"""

from __future__ import annotations

import ast
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from blocknb.errors import Loc, SyntaxUnsupported, TypeMismatch
from blocknb.frontend.assignment import assign_target
from blocknb.frontend.calls import bind, signature
from blocknb.frontend.emitter import NUMBERS, Mismatch, describe
from blocknb.frontend.expressions import condition
from blocknb.frontend.merge import (
    Role,
    close,
    identical,
    is_integer,
    is_runtime,
    leaves,
    literal_fits,
    placed_leaves,
    rebuild,
    same_shape,
)
from blocknb.frontend.promotion import spelled
from blocknb.frontend.returns import contains_return
from blocknb.frontend.scope import Frame, Undefined, statement
from blocknb.frontend.shapes import constant_int
from blocknb.frontend.statements import is_constexpr
from blocknb.ir.core import Block, Value
from blocknb.language import types as t
from blocknb.language.declarations import BUILTINS
from blocknb.language.types import Tile

MAX_UNROLLED = 10_000
MAX_RETURNING = 64  # iterations; each nests in the one before
ROUNDS = 3


@statement(ast.For)
def visit_for(frame: Frame, node: ast.For, rest: deque) -> None:
    refuse_else(frame, node)
    iterator = node.iter
    if isinstance(iterator, ast.Call):
        function = frame.expr(iterator.func)
        if function is range or function is BUILTINS["range"]:
            run_time_loop(frame, node, *range_arguments(frame, iterator, "range"))
            return
        if function is BUILTINS["static_range"]:
            (lower, upper, step), _ = range_arguments(frame, iterator, "static_range")
            numbers = [static_bound(frame, iterator, x, i) for i, x in enumerate((lower, upper, step))]
            if numbers[2] == 0:
                raise Mismatch("the step of static_range is zero", "write a positive or a negative step")
            unroll(frame, node, range(*numbers), rest)
            return
    elements = frame.expr(iterator)
    if isinstance(elements, (tuple, range)):
        unroll(frame, node, elements, rest)
        return
    hint = "loop over range(...), tl.static_range(...) or a tuple of constants"
    if isinstance(elements, Value):
        hint = "operations work on whole tiles, and tl.sum(x, axis) or another reduction combines the elements of one"
        if elements.type.is_pointer:
            hint = f"load a tile with tl.load({ast.unparse(iterator)} + tl.arange(0, BLOCK)), and reduce it, for example by tl.sum"
    raise SyntaxUnsupported(
        f"a `for` over {describe(elements)} is not supported in a kernel", frame.loc(iterator), hint
    )


def refuse_else(frame: Frame, node: ast.For | ast.While) -> None:
    if node.orelse:
        raise SyntaxUnsupported(
            "`else` of a loop is not supported in a kernel",
            frame.loc(node.orelse[0]),
            "put the statements after the loop",
        )


def static_bound(frame: Frame, node: ast.Call, x: Any, position: int) -> int:
    """A bound of static_range. Index 0 is the start, 1 the end and 2 the step."""
    name = ("start", "end", "step")[position]
    try:
        return constant_int(frame, x, name, f"the {name} of static_range")
    except Mismatch as error:
        if node.args:
            error.loc = frame.loc(node.args[min(position, len(node.args) - 1)])
        raise


def range_arguments(frame: Frame, node: ast.Call, name: str) -> tuple[list[Any], dict[str, Any]]:
    """(lower, upper, step) and the hints of a range."""
    args = [frame.expr(a) for a in node.args]
    return range_bounds(name, args, {k.arg: frame.expr(k.value) for k in node.keywords if k.arg})


def range_bounds(name: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    bound = bind(name, signature(name)[0], args, kwargs)
    lower, upper, step = bound.pop("arg1"), bound.pop("arg2"), bound.pop("step")
    if upper is None:
        lower, upper = 0, lower
    return [lower, upper, 1 if step is None else step], bound


def unroll(frame: Frame, node: ast.For, elements: Iterable[Any], rest: deque[ast.stmt]) -> None:
    """Visits the body once per element; the loop variable is a constant."""
    items = list(itertools.islice(elements, MAX_UNROLLED + 1))
    if len(items) > MAX_UNROLLED:
        raise TypeMismatch(
            f"the loop unrolls to more than {MAX_UNROLLED} copies of its body",
            frame.loc(node.iter),
            "use range(...), which stays a loop",
        )
    if any(map(contains_return, node.body)) and not frame.loops:
        if len(items) > MAX_RETURNING:
            raise SyntaxUnsupported(
                f"a `return` in a loop that unrolls to more than {MAX_RETURNING} copies of its body",
                frame.loc(node),
                "count with a `while` whose condition ends it, and return after it",
            )
        rest.appendleft(RemainingIterations(node, items))
        return
    for element in items:
        assign_target(frame, node.target, element)
        frame.run(node.body)


class RemainingIterations(ast.stmt):
    """The remaining iterations of an unrolled loop, as a statement.

    A `return` under a run-time branch moves the following statements into the arms of that branch. This statement is among them.
    """

    _fields = ("loop",)

    def __init__(self, loop: ast.For, elements: Sequence[Any]):
        super().__init__()
        ast.copy_location(self, loop)
        self.loop, self.elements = loop, elements


@statement(RemainingIterations)
def visit_remaining_iterations(frame: Frame, iterations: RemainingIterations, rest: deque[ast.stmt]) -> None:
    if iterations.elements:
        assign_target(frame, iterations.loop.target, iterations.elements[0])
        rest.extendleft(
            reversed([*iterations.loop.body, RemainingIterations(iterations.loop, iterations.elements[1:])])
        )


# -- carried names -----------------------------------------------------------------------------------------------------------


def assigned_names(frame: Frame, body: Iterable[ast.stmt]) -> dict[str, bool]:
    """Names that the statements may assign, in order; True where not every assignment is that of a constexpr by annotation."""
    found: dict[str, bool] = {}
    constants = set()
    for root in body:
        for node in ast.walk(root):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and is_constexpr(frame, node.annotation)
            ):
                constants.add(id(node.target))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = found.get(node.id, False) or id(node) not in constants
    return found


def changeable(frame: Frame, assigned: Iterable[str], before: dict[str, Any], index: str | None = None) -> list[str]:
    """The assigned names that have a value before the loop, without the loop variable."""
    return frame.ordered(n for n in assigned if n in before and n != index and not isinstance(before[n], Undefined))


class Carried:
    """The names that a loop carries: their trees before the loop, the run-time leaves, and the block arguments of these.

    The loop carries the `MOVING` fields of a record, and of the others those in `fields`: (name, index of the leaf). An integer constant
    in such a field is int64, as where branches merge records.
    """

    def __init__(self, frame: Frame, names: Iterable[str], fields: Iterable[tuple[str, int]] = ()):
        self.frame, self.trees, self.fields = frame, {n: frame.names[n] for n in names}, set(fields)
        self.slots = [(n, leaf) for n, tree in self.trees.items() for leaf, carried in self.leaves(n, tree) if carried]
        self.initial = [
            frame.emit.number(leaf, t.int64)
            if carried is Role.FIXED and type(leaf) is int
            else frame.emit.runtime(leaf)
            for n, tree in self.trees.items()
            for leaf, carried in self.leaves(n, tree)
            if carried
        ]

    def leaves(self, name: str, tree: Any) -> Iterator[tuple[Any, Role | None]]:
        """The leaves of a name's tree, each with its role if the loop carries it, or None."""
        for index, (leaf, role) in enumerate(placed_leaves(tree)):
            carried = is_runtime(leaf) and (role != Role.FIXED or (name, index) in self.fields)
            yield leaf, role if carried else None

    def changed_fields(self, whole: bool) -> set[tuple[str, int]]:
        """The `fields`, and those that the body changed while the loop does not carry them; with `whole` all fields of these records."""
        found = set(self.fields)
        for name, tree in self.trees.items():
            now = self.frame.names[name]
            if not isinstance(now, Undefined) and same_shape(tree, now):
                pairs = zip(self.leaves(name, tree), leaves(now), strict=True)
                found |= {
                    (name, index)
                    for index, ((x, carried), y) in enumerate(pairs)
                    if carried is None and is_runtime(x) and not identical(x, y)
                }
        names = {name for name, _ in found} if whole else set()
        return found | {(name, index) for name in names for index, _ in enumerate(leaves(self.trees[name]))}

    def changed(self, names: Iterable[str]) -> list[str]:
        """The names whose value differs from that after the last `bind`."""
        return [n for n in names if not same_tree(self.bound[n], self.frame.names[n])]

    def fresh(self) -> list[Value]:
        return [Value(v.type, name) for v, (name, _) in zip(self.initial, self.slots, strict=True)]

    def bind(self, values: Iterable[Value]) -> None:
        """Binds the names to these values, one per run-time leaf."""
        values = iter(values)
        for name, tree in self.trees.items():
            self.frame.names[name] = rebuild(
                tree, iter([next(values) if carried else leaf for leaf, carried in self.leaves(name, tree)])
            )
        self.bound = dict(self.frame.names)

    def yielded(self) -> list[tuple[Any, Tile]]:
        """The values of the names at the end of the body, in the carried types. Raises TypeMismatch if a type changed."""
        found, initial = [], iter(self.initial)
        for name, tree in self.trees.items():
            now = self.frame.names[name]
            if isinstance(now, Undefined):
                raise TypeMismatch(f"`{name}` {now.why}", self.frame.loc(self.frame.where[name]), now.hint)
            if not same_shape(tree, now):
                self.changed_type(name, tree, now)
            for (before, carried), after in zip(self.leaves(name, tree), leaves(now), strict=True):
                if carried is None:
                    if not identical(before, after):
                        self.changed_type(name, before, after)
                    continue
                kind = next(initial).type
                if carried is Role.FIXED and kind.dtype == t.int64 and is_integer(after):
                    pass  # `close` widens it
                elif after.type != kind if isinstance(after, Value) else not fits(after, kind):
                    self.changed_type(name, Value(kind), after)
                found.append((after, kind))
        return found

    def changed_type(self, name: str, before: Any, after: Any) -> None:
        where = self.frame.where.get(name)
        raise changed_type(name, before, after, self.frame.loc(where) if where else None)


def changed_type(name: str, before: Any, after: Any, loc: Loc | None) -> TypeMismatch:
    hint = f"give `{name}` the same type before the loop as inside it"
    if (
        isinstance(after, Value)
        and isinstance(before, Value)
        and not after.type.is_pointer
        and not before.type.is_pointer
    ):
        dtype = spelled(after.type.dtype)
        if after.type.shape != before.type.shape or after.type.shape:
            hint = f"start it as a tile: {name} = tl.zeros({after.type.shape}, dtype={dtype})"
        else:
            hint = f"start it as tl.full((), ..., {dtype}), or cast what the loop assigns: .to({spelled(before.type.dtype)})"
    elif before is None:
        hint = f"give `{name}` a value before the loop; None cannot become one at run time"
    return TypeMismatch(
        f"`{name}` changes its type in the loop: {describe(before)} before it, {describe(after)} at the end of its body",
        loc,
        hint,
    )


def fits(x: Any, kind: Tile) -> bool:
    return isinstance(x, NUMBERS) and not kind.shape and not kind.is_pointer and literal_fits(kind.dtype, x)


def rounds(frame: Frame, before: dict[str, Any], possible: list[str], candidates: list[str]) -> Iterator[Carried]:
    """Yields the carried names for one visit of the body after the other, until the body changes these names and no others.

    The caller binds the names and visits the body. The last round carries all names that the earlier ones have carried or changed.
    """
    mark, fields = frame.emit.mark(), set[tuple[str, int]]()
    for round in range(ROUNDS):
        frame.names = dict(before)
        carried = Carried(frame, candidates, fields)
        yield carried
        changed, found = carried.changed(possible), carried.changed_fields(whole=round == ROUNDS - 2)
        if (changed == candidates and found == fields) or round == ROUNDS - 1:
            return
        frame.emit.rewind(mark)
        keep = {*changed, *(candidates if round == ROUNDS - 2 else ())}
        candidates, fields = [n for n in possible if n in keep], found


def same_tree(a: Any, b: Any) -> bool:
    return same_shape(a, b) and all(identical(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def forget_new_names(frame: Frame, before: dict[str, Any], assigned: Iterable[str], node: ast.stmt) -> None:
    """Makes the names that only the loop assigns undefined after it."""
    for name in assigned:
        if name not in before or isinstance(before[name], Undefined):
            frame.names[name] = Undefined(
                f"is assigned only inside the loop at line {node.lineno}, which may not run at all",
                f"assign `{name}` before the loop",
            )


# -- for ---------------------------------------------------------------------------------------------------------------------


def _loop_variable(frame: Frame, node: ast.For, bounds: list[Any]) -> str:
    """The name of a loop's variable. Raises SyntaxUnsupported for any other target, TypeMismatch for a step of zero."""
    if not isinstance(node.target, ast.Name):
        raise SyntaxUnsupported(
            "the loop variable must be a single name", frame.loc(node.target), "write `for i in range(...)`"
        )
    if frame.emit.constant(bounds[2]) == 0:
        raise TypeMismatch("the step of the range is zero", frame.loc(node.iter), "write a positive or a negative step")
    return node.target.id


def run_time_loop(frame: Frame, node: ast.For, bounds: list[Any], hints: dict[str, Any]) -> None:
    emit, index = frame.emit, _loop_variable(frame, node, bounds)
    lower, upper, step = loop_bounds(frame, bounds, node.iter)
    survives = used_outside(frame, node)
    before = dict(frame.names)
    if survives and (index not in before or not isinstance(before[index], Value) or before[index].type != lower.type):
        before[index] = frame.names[index] = lower
    assigned = assigned_names(frame, node.body)
    if survives:
        assigned[index] = True
    possible = changeable(frame, assigned, before) if survives else changeable(frame, assigned, before, index)
    for carried in rounds(frame, before, possible, [n for n in possible if assigned[n]]):
        counter = Value(lower.type, index)
        args = [counter, *carried.fresh()]
        carried.bind(args[1:])
        frame.assign(index, counter, node.target)
        emit.counters[counter] = 1
        block = visit_body(frame, node.body, args)
        divisor = emit.counters.pop(counter)
    body = close(emit, block.ops, carried.yielded(), args)
    attrs = loop_attrs(frame, hints, bounds)
    if divisor > 1 and emit.known.get(step, 1) % divisor == 0 and lower not in emit.known:
        # A promise that holds in every iteration holds in the first one.
        lower = emit.value("promise", lower, multiple_of=(divisor,))
    loop = emit.op("for", lower, upper, step, *carried.initial, blocks=(body,), **attrs)
    finish(frame, carried, loop.results, before, (*assigned, index), node)
    if not survives:
        frame.names[index] = before.get(
            index, Undefined(f"is the loop variable of the loop at line {node.lineno}", "use it inside the loop")
        )


def finish(
    frame: Frame,
    carried: Carried,
    results: Iterable[Value],
    before: dict[str, Any],
    assigned: Iterable[str],
    node: ast.stmt,
) -> None:
    """Sets the values of all names after a loop."""
    frame.names = dict(before)
    forget_new_names(frame, before, assigned, node)
    carried.bind(results)
    for value, (name, _) in zip(results, carried.slots, strict=True):
        value.name = value.name or name


def visit_body(frame: Frame, body: list[ast.stmt], args: Iterable[Value]) -> Block:
    frame.loops += 1
    try:
        with frame.emit.block(tuple(args)) as block:
            frame.run(body)
        return block.done
    finally:
        frame.loops -= 1


def loop_bounds(frame: Frame, bounds: list[Any], node: Any = None) -> list[Value]:
    """The three bounds as int32 scalars, or as int64 if one of them is int64. `node` is the call of range, for messages."""
    wide = False
    for i, x in enumerate(bounds):
        if (
            isinstance(x, bool)
            or not isinstance(x, (int, Value))
            or (isinstance(x, Value) and (x.type.shape or x.type.is_pointer or not x.type.dtype.is_integer))
        ):
            at = node.args[min(i, len(node.args) - 1)] if node is not None and node.args else node
            hint = "convert with .to(tl.int32), or use // instead of /"
            error = Mismatch(
                f"the bounds of a range must be integer scalars, not {describe(x)}", hint, ("arg1", "arg2", "step")[i]
            )
            error.loc = frame.loc(at) if at is not None else None
            raise error
        dtype = x.type.dtype if isinstance(x, Value) else t.literal_dtype(x)
        wide |= dtype.bits == 64 or dtype == t.uint32
    return [frame.emit.cast(x, t.int64 if wide else t.int32) for x in bounds]


def loop_attrs(frame: Frame, hints: dict[str, Any], bounds: list[Any]) -> dict[str, Any]:
    """The attributes `num_stages`, `warp_specialize`, and `unroll` or `unroll_factor` of a loop. Other hints are accepted and ignored."""
    attrs: dict[str, Any] = {}
    if (stages := hints.get("num_stages")) is not None:
        attrs["num_stages"] = constant_int(frame, stages, "num_stages")
    if frame.emit.constant(hints.get("warp_specialize")) in (True, 1):
        attrs["warp_specialize"] = (
            True  # the pass `warp_specialization` decides itself, and notes why it does not do this
        )
    if (factor := hints.get("loop_unroll_factor")) is not None:
        factor = constant_int(frame, factor, "loop_unroll_factor")
        constants = [frame.emit.constant(x) for x in bounds]
        if not any(isinstance(x, Value) for x in constants) and len(range(*constants)) <= factor:
            attrs["unroll"] = True
        elif factor > 1:
            attrs["unroll_factor"] = factor
    return attrs


def used_outside(frame: Frame, loop: ast.For) -> bool:
    """Whether the kernel reads the loop variable outside the loops that define it."""
    assert isinstance(loop.target, ast.Name)
    known, name = frame.source.survivors, loop.target.id
    if name not in known:
        known[name] = any(reads_outside(s, name) for s in frame.source.node.body)
    return known[name]


def reads_outside(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name():
            return node.id == name and isinstance(node.ctx, ast.Load)
        case ast.AugAssign(target=ast.Name(id=target)) if target == name:
            return True
        case ast.For(target=ast.Name(id=target)) if target == name:
            return reads_outside(node.iter, name)
    return any(reads_outside(child, name) for child in ast.iter_child_nodes(node))


# -- while -------------------------------------------------------------------------------------------------------------------


@statement(ast.While)
def visit_while(frame: Frame, node: ast.While, rest: list) -> None:
    refuse_else(frame, node)
    emit, before = frame.emit, dict(frame.names)
    assigned = assigned_names(frame, node.body)
    possible = changeable(frame, assigned, before)
    mark = emit.mark()
    for carried in rounds(frame, before, possible, [n for n in possible if assigned[n]]):
        args = carried.fresh()
        carried.bind(args)
        with emit.block(args) as opened:
            test = condition(frame, node.test)
            never = not isinstance(test, Value) and not test
            flag = test if isinstance(test, Value) else emit.number(test, t.int1)
            emit.op("condition", flag, *args)
        if never:
            emit.rewind(mark)
            frame.names = before
            return
        inner = carried.fresh()
        carried.bind(inner)
        block = visit_body(frame, node.body, inner)
    body = close(emit, block.ops, carried.yielded(), inner)
    loop = emit.op("while", *carried.initial, blocks=(opened.done, body))
    finish(frame, carried, loop.results, before, assigned, node)
