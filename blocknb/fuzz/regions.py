"""Generates compound statements and memory accesses: loops, branches, in-place updates, atomics, early returns."""

from __future__ import annotations

import math
from collections.abc import Callable

from blocknb.fuzz import accesses, patterns
from blocknb.fuzz import tree as t
from blocknb.fuzz.dtypes import is_float
from blocknb.fuzz.expressions import Shape, binary, broadcast, cast, compare, condition, expression, zeros
from blocknb.fuzz.state import State, pointer
from blocknb.fuzz.tree import SyntaxNode, Type, arange, int32, literal, number, offset, op, var


def region(g: State) -> None:
    g.budget = g.r.randrange(2, 9)
    kinds: dict[Callable[[State], None], float] = {
        loop: 3,
        chunks: 2,
        branch: 2,
        while_loop: 0.7,
        in_place: 1.2,
        atomic: 0.8,
        early_return: 0.3,
        stored_and_loaded: 0.8,
        plain: 2,
        **patterns.REGIONS,
    }
    g.weighted(kinds)(g)


def _shape(g: State) -> Shape:
    return () if g.chance(0.15) else g.pick(accesses.shapes(g))


def plain(g: State) -> None:
    g.let(expression(g, g.dtype(), _shape(g), 3))


def update(g: State, names: list[SyntaxNode], depth: int = 2) -> None:
    """Assigns a name again, with the same type."""
    target = g.pick(names)
    type = target.type
    if g.chance(0.7):
        syms = "+-*" if is_float(type.dtype) else "+-*^"
        other = expression(g, type.dtype, type.shape, depth - 1)
        value = cast(binary(g.pick(syms[:2] + syms), target, other), type.dtype)
    else:
        value = expression(g, type.dtype, type.shape, depth)
    if value.type.shape != type.shape:
        value = broadcast(value, type.shape)
    g.assign(target, value)


def carried(g: State) -> list[SyntaxNode]:
    """One or two new names that a loop or branch may assign; one may be a scalar."""
    found = []
    for _ in range(g.r.randrange(1, 3)):
        dtype, shape = g.dtype(), _shape(g)
        start = zeros(dtype, shape) if g.chance(0.4) else expression(g, dtype, shape, 1)
        if is_float(dtype) and start.op == "full":
            start = zeros(dtype, shape)
        found.append(g.let(start, "acc"))
    return found


def bounds(g: State) -> tuple[SyntaxNode, SyntaxNode, SyntaxNode, int]:
    """The lower bound, upper bound and step of a loop, and its largest number of iterations."""
    iterations = [g.pick((0, 1, 2, 3, 4, 5)) for _ in range(g.launches)]
    kind = g.weighted({"run time": 4, "loaded": 1, "constant": 2, "down": 1, "stepped": 1, "offset": 1})
    if kind == "constant":
        return int32(0), int32(iterations[0]), int32(1), iterations[0]
    if kind == "loaded":
        array = accesses.input_array(g, "i32", g.programs)
        count = op("load", "i32", (), offset(pointer(array), accesses.linear_program(g)))
        return int32(0), binary("&", count, literal(3)), int32(1), 3
    if kind == "down":
        high = g.scalar("i32", iterations, "n")
        return high, int32(0), int32(-1), max(iterations)
    if kind == "stepped":
        step = g.pick((2, 3, 16))
        high = g.scalar("i32", [count * step - (g.r.randrange(step) if count else 0) for count in iterations], "n")
        by = int32(step) if g.chance(0.5) else g.scalar("i32", [step] * g.launches, "n")
        return int32(0), high, by, max(iterations)
    if kind == "offset":
        low = g.scalar("i32", [g.r.randrange(-4, 5) for _ in iterations], "n")
        return low, binary("+", low, g.scalar("i32", iterations, "n")), int32(1), max(iterations)
    return int32(0), g.scalar("i32", iterations, "n"), int32(1), max(iterations)


def loop(g: State, nested: bool = False) -> None:
    """A loop with few iterations that carries one or two names."""
    names = carried(g)
    low, high, step, iterations = bounds(g)
    constant = low.op == high.op == step.op == "literal"
    flavour = g.weighted({"range": 4, "tl.range": 2, "tl.static_range": 2 if constant else 0})
    options = {"num_stages": g.pick((1, 2, 3, 4))} if flavour == "tl.range" and g.chance(0.7) else {}
    index = g.name("j")
    moving = _moving_pointer(g, iterations) if g.chance(0.25) else None
    with g.block() as body:
        if flavour == "tl.static_range":
            g.let(op("splat", "i32", (), var(index, Type("i32"))))
        else:
            g.scope[-1].append((index, Type("i32")))
        if moving is not None:
            name, array, size = moving
            place = name if name.type.shape else offset(name, accesses.iota(g, (size,)))
            g.let(op("load", array.dtype, (size,), place))
            g.assign(name, offset(name, literal(size)))
        if g.chance(0.3):
            g.let(expression(g, g.dtype(), _shape(g), 2))
        for name in names:
            update(g, [name], 2)
        if not nested and g.chance(0.2):
            inner_branch(g, names)
        elif not nested and g.chance(0.15):
            loop(g, True)
    g.emit(t.For(index, low, high, step, tuple(body), flavour, options))


def _moving_pointer(g: State, iterations: int) -> tuple[SyntaxNode, t.Array, int]:
    """A pointer that a loop carries along an array, one tile per iteration."""
    size = g.pick((16, 32, 64))
    array = accesses.input_array(g, g.dtype(), size * max(iterations, 1))
    place = accesses.iota(g, (size,)) if g.chance(0.5) else literal(0)
    name = g.let(offset(pointer(array), place), "p")
    return name, array, size


def inner_branch(g: State, names: list[SyntaxNode]) -> None:
    c = condition(g, (), 2)
    with g.block() as then:
        update(g, names)
    other: list = []
    if g.chance(0.5):
        with g.block() as other:
            update(g, names)
    g.emit(t.If(c, tuple(then), tuple(other)))


def branch(g: State) -> None:
    """An if on a run-time scalar that assigns names and sometimes stores."""
    names = carried(g)
    inner_branch(g, names)
    if g.chance(0.3):
        c = condition(g, (), 1)
        with g.block() as then:
            accesses.store(g, expression(g, g.dtype(), _shape(g), 1))
        g.emit(t.If(c, tuple(then)))


def while_loop(g: State) -> None:
    names = carried(g)
    limit = g.scalar("i32", [g.r.randrange(0, 9) for _ in range(g.launches)], "n")
    counter = g.let(number(0), "w", True)
    with g.block() as body:
        for name in names:
            update(g, [name])
        g.assign(counter, binary("+", counter, literal(g.pick((1, 2, 3)))))
    g.emit(t.While(compare("<", counter, limit), tuple(body)))


def chunks(g: State) -> None:
    """A loop over a row in tiles: sums and extremes of the in-bounds elements, or a store of each tile."""
    block = g.pick((16, 32, 64, 128))
    most = g.r.randrange(1, 4 * block)
    size = g.count_up_to(most)
    dtype = g.dtype()
    stride = most + g.pick((0, 0, 1, 8))
    array = accesses.input_array(g, dtype, stride * (g.programs - 1) + most)
    row = binary("*", accesses.linear_program(g), literal(stride))
    names = [g.let(zeros(d, s), "acc") for d, s in ((g.dtype(), (block,)), (g.dtype(), ()))]
    target = g.array(g.dtype(), array.size, "poison", True, "o") if g.chance(0.5) else None
    start = g.name("j")
    with g.block() as body:
        at = g.let(binary("+", var(start, Type("i32")), arange(block)), "i", True)
        mask = g.let(compare("<", at, size), "m", True)
        index = binary("+", row, at)
        other = accesses.other_value(g, dtype, (block,), mask)
        g.let(op("load", dtype, (block,), offset(pointer(array), index), mask, *other))
        for name in names:
            update(g, [name])
        if target is not None:
            value = expression(g, target.dtype if is_float(target.dtype) else g.dtype(), (block,), 2)
            g.emit(t.StoreStatement(offset(pointer(target), index), cast(value, target.dtype), mask))
    g.emit(t.For(start, int32(0), size, int32(block), tuple(body), g.pick(("range", "tl.range"))))


def in_place(g: State) -> None:
    """Loads a tile, computes, and stores the result to the same place."""
    shape = _shape(g) or (64,)
    dtype = g.dtype()
    array = g.array(dtype, math.prod(shape) * g.programs, "small", True, "u")
    where = g.let(offset(pointer(array), accesses.own_indices(g, shape)), "p", True)
    mask = condition(g, shape, 1) if g.chance(0.4) else None
    value = g.let(op("load", dtype, shape, where, *([] if mask is None else [mask])))
    new = cast(binary(g.pick("+-*"), value, expression(g, dtype, shape, 2)), dtype)
    g.emit(t.Barrier(False))
    g.emit(t.StoreStatement(where, new, condition(g, shape, 1) if g.chance(0.3) else mask))


def stored_and_loaded(g: State) -> None:
    """Stores a tile, waits at a barrier, and loads it in another order."""
    shape = _shape(g) or (64,)
    dtype, size = g.dtype(), math.prod(shape)
    array = g.array(dtype, size * g.programs, "poison", True, "u")
    start = binary("*", accesses.linear_program(g), literal(size))

    def place() -> SyntaxNode:
        return offset(pointer(array), binary("+", start, accesses.permuted(g, shape)))

    g.emit(t.StoreStatement(place(), expression(g, dtype, shape, 2)))
    g.emit(t.Barrier(g.chance(0.5)))
    g.let(op("load", dtype, shape, place()))
    g.emit(t.Barrier(False))


def atomic(g: State) -> None:
    """A commutative integer atomic, so that the order of programs does not matter."""
    shape = _shape(g)
    dtype, kind = g.pick(("i32", "i32", "i64", "u32")), g.pick(("add", "add", "max", "min", "and", "or", "xor"))
    array = g.array(dtype, g.pick((1, 8, 64)), "small", True, "a")
    limit = 1 << (array.size.bit_length() - 1)
    index = binary("&", expression(g, "i32", shape, 1), literal(limit - 1)) if shape else number(g.r.randrange(limit))
    mask = condition(g, shape, 1) if g.chance(0.4) else None
    g.emit(t.Atomic(kind, offset(pointer(array), index), expression(g, dtype, shape, 2), mask))


def early_return(g: State) -> None:
    with g.block() as body:
        if g.chance(0.5):
            accesses.store(g, expression(g, g.dtype(), _shape(g), 1))
        g.emit(t.Return())
    g.emit(t.If(condition(g, (), 2), tuple(body)))
