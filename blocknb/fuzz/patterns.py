"""Generates typical pieces of kernels: block pointers, descriptors, products in a loop, aliases, atomics, selected pointers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from blocknb.fuzz import accesses, dtypes, helpers
from blocknb.fuzz import tree as t
from blocknb.fuzz.expressions import Shape, binary, both, cast, compare, condition, expression, zeros
from blocknb.fuzz.state import State, pointer
from blocknb.fuzz.tree import SyntaxNode, Type, arange, expand, int32, literal, number, offset, op, var

BLOCKS: tuple[Shape, ...] = ((16,), (64,), (128,), (16, 16), (8, 32), (32, 16), (4, 64), (16, 64))


def _sizes(g: State, values: list[int]) -> list[SyntaxNode]:
    """Sizes as arguments or as literals."""
    return [g.scalar("i32", [v] * g.launches, "t") if v != 1 and g.chance(0.4) else int32(v) for v in values]


def _block_pointer(dtype: str, block: Shape, *args: SyntaxNode, descriptor: bool = False) -> SyntaxNode:
    return SyntaxNode("block_pointer", Type(dtype, block, True), args, {"block": block, "descriptor": descriptor})


def block_pointer(g: State) -> None:
    """Loads blocks of an array by a block pointer that moves along its last axis; sometimes another block pointer stores them."""
    block, dtype, iterations = g.pick(BLOCKS), g.dtype(), g.r.randrange(0, 4)
    rank, count = len(block), g.programs
    counts = [count, max(iterations, 1)][-rank:]
    shape = [n * k - g.r.randrange(0, n) for n, k in zip(block, counts, strict=True)]
    strides = [shape[1] + g.pick((0, 1, 8)), 1] if rank == 2 else [1]
    if rank == 2 and g.chance(0.3):
        strides = [1, shape[0] + g.pick((0, 3))]
    size = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    array = accesses.input_array(g, dtype, size)
    start = [binary("*", accesses.linear_program(g), literal(block[0])), int32(0)][-rank:]
    if g.chance(0.2):
        start[-1] = int32(-g.r.randrange(1, 5))
    args = (pointer(array), *_sizes(g, shape), *_sizes(g, strides), *start)
    base = g.let(_block_pointer(dtype, block, *args), "p")
    access = {"check": tuple(range(rank)), "padding": g.chance(0.5)}
    total = g.let(zeros(dtype, block), "acc")
    with g.block() as body:
        got = g.let(op("load", dtype, block, base, **access))
        g.assign(total, cast(binary(g.pick("+-"), total, got), dtype))
        step = tuple(int32(0 if i < rank - 1 else block[-1]) for i in range(rank))
        g.assign(base, SyntaxNode("advance", base.type, (base, *step)))
    g.emit(t.For(g.name("j"), int32(0), g.count_up_to(iterations), int32(1), tuple(body)))
    if g.chance(0.6):
        _store_block(g, total, block)


def _store_block(g: State, value: SyntaxNode, block: Shape) -> None:
    """Stores a block to elements that no other program stores to, clipped at the end of the array."""
    rank, count = len(block), g.programs
    dtype = g.dtype()
    shape = [block[0] * count - g.r.randrange(0, block[0]), *(n - g.r.randrange(0, n) for n in block[1:])]
    strides = [shape[1], 1] if rank == 2 else [1]
    array = g.array(dtype, shape[0] * strides[0], "poison", True, "o")
    start = [binary("*", accesses.linear_program(g), literal(block[0])), *(int32(0) for _ in block[1:])]
    target = _block_pointer(dtype, block, pointer(array), *_sizes(g, shape), *_sizes(g, strides), *start)
    g.emit(t.StoreStatement(target, cast(value, dtype), None, {"check": tuple(range(rank))}))


def descriptor(g: State) -> None:
    """Loads and stores blocks of an array through tensor descriptors."""
    block: Shape = g.pick(((16, 16), (8, 32), (32, 32), (16, 64)))
    dtype = g.pick(("f32", "f16", "bf16", "i32", "i8", "u8", "i16"))
    if block[1] * dtypes.bits(dtype) < 128:
        block = (16, 16)
    shape = [block[0] * g.programs - g.r.randrange(0, block[0]), block[1] * 2 - g.r.randrange(0, block[1])]
    loaded = _described(g, dtype, shape, block, "x", "small")
    row = binary("*", accesses.linear_program(g), literal(block[0]))
    first, second = (op("descriptor_load", dtype, block, loaded, row, int32(column)) for column in (0, block[1]))
    value = g.let(cast(binary("+", first, second), dtype))
    if g.chance(0.6):
        kind = g.pick(("f32", "f16", "i32", "i8"))
        target = _described(g, kind, shape, block, "o", "poison")
        attrs = {"check": (0, 1), "offsets": (row, int32(g.pick((0, block[1]))))}
        g.emit(t.StoreStatement(target, cast(value, kind), None, attrs))


def _described(g: State, dtype: str, shape: list[int], block: Shape, prefix: str, fill: str) -> SyntaxNode:
    """The descriptor of a new array, whose rows begin at multiples of 16 bytes."""
    aligned = 16 * 8 // dtypes.bits(dtype)
    stride = -(-shape[1] // aligned) * aligned
    array = replace(g.array(dtype, shape[0] * stride, fill, fill == "poison", prefix), offset=0)
    g.arguments[-1] = array
    args = (pointer(array), *_sizes(g, shape), *_sizes(g, [stride]), int32(1))
    return g.let(_block_pointer(dtype, block, *args, descriptor=True), "d")


def product(g: State) -> None:
    """A matrix product in a loop over K with partial tiles, and an epilogue."""
    m, n, k = g.pick((16, 32, 64)), g.pick((16, 32, 64)), g.pick((16, 32, 64))
    kind = g.weighted({"f16": 4, "bf16": 2, "f32": 2, "i8": 1.5, "e4nv": 0.5})
    if kind in ("i8", "e4nv"):
        k = max(k, 32)
    out = "i32" if kind == "i8" else "f32"
    rows, columns = m * g.programs - g.r.randrange(0, m), n - g.r.randrange(0, n)
    most = k * g.r.randrange(1, 4) - g.r.randrange(0, k)
    a, b = g.array(kind, rows * most), g.array(kind, most * columns)
    depth = g.count_up_to(most)
    i = binary("+", binary("*", accesses.linear_program(g), literal(m)), arange(m))
    i, j, q = g.let(i, "i", True), g.let(arange(n), "i", True), arange(k)
    total = g.let(zeros(out, (m, n)), "acc")
    start, transposed = g.name("j"), g.chance(0.3)
    options = {"num_stages": g.pick((1, 2, 3, 4))} if g.chance(0.5) else {}
    with g.block() as body:
        at = g.let(binary("+", var(start, Type("i32")), q), "i", True)
        left = binary("+", binary("*", _column(i), literal(most)), _row(at))
        right = binary("+", binary("*", _column(at), literal(columns)), _row(j))
        inside = both(compare("<", _column(i), literal(rows)), compare("<", _row(at), depth))
        within = both(compare("<", _column(at), depth), compare("<", _row(j), literal(columns)))
        zero = [] if kind == "e4nv" or g.chance(0.3) else [literal(0.0 if dtypes.is_float(kind) else 0)]
        x = op("load", kind, (m, k), offset(pointer(a), left), inside, *zero)
        if transposed:  # B is contiguous along K
            right = binary("+", binary("*", _column(j), literal(most)), _row(at))
            within = both(compare("<", _column(j), literal(columns)), compare("<", _row(at), depth))
        y = op("load", kind, (n, k) if transposed else (k, n), offset(pointer(b), right), within, *zero)
        if transposed:
            y = op("trans", kind, (k, n), y, perm=(1, 0), name=g.pick(("permute", "trans")))
        x = g.let(x)
        if g.chance(0.3) and kind != "e4nv":
            x = g.let(cast(binary("*", x, literal(2)), kind))
        precision = g.pick(("ieee", "tf32", "tf32x3")) if kind == "f32" else ""
        found = op("dot", out, (m, n), x, y, total, precision=precision)
        if g.chance(0.2):
            found = binary("+", total, op("dot", out, (m, n), x, y, precision=precision))
        g.assign(total, found)
    g.emit(t.For(start, int32(0), depth, int32(k), tuple(body), "tl.range" if options else "range", options))
    if g.chance(0.4):
        total = g.let(cast(binary(g.pick("+*-"), total, expression(g, out, g.pick(((m, n), (1, n), (m, 1))), 1)), out))
    target = g.array(g.pick((out, "f16", "f32")), rows * columns, "poison", True, "o")
    place = binary("+", binary("*", _column(i), literal(columns)), _row(j))
    mask = both(compare("<", _column(i), literal(rows)), compare("<", _row(j), literal(columns)))
    g.emit(t.StoreStatement(offset(pointer(target), place), cast(total, target.dtype), mask))


def _column(node: SyntaxNode) -> SyntaxNode:
    return expand(node, 1)


def _row(node: SyntaxNode) -> SyntaxNode:
    return expand(node, 0)


def aliased(g: State) -> None:
    """Two arguments that view overlapping parts of one array, so that loads of one see stores to the other."""
    n, dtype = g.pick((16, 32, 64, 128)), g.dtype()
    shift = g.pick((0, 1, 3, 8, n // 2))
    room = n + shift
    base = g.array(dtype, room * g.programs, "small", True, "u")
    view = t.Array(g.name("u"), dtype, room * g.programs - shift, "", shift, base.name, True)
    g.arguments.append(view)
    place = binary("+", binary("*", accesses.linear_program(g), literal(room)), arange(n))
    before = g.let(op("load", dtype, (n,), offset(pointer(base), place)))
    g.emit(t.Barrier(False))
    new = cast(binary(g.pick("+-*"), before, expression(g, dtype, (n,), 1)), dtype)
    g.emit(t.StoreStatement(offset(pointer(view), place), new, condition(g, (n,), 1) if g.chance(0.4) else None))
    g.emit(t.Barrier(False))
    g.let(op("load", dtype, (n,), offset(pointer(base), place)))
    g.emit(t.Barrier(False))


def own_atomic(g: State) -> None:
    """An atomic on elements that no other lane accesses, so that its result is determined."""
    shape = g.pick(((), (16,), (64,), (8, 8)))
    kind = g.pick(("add", "max", "min", "xchg", "cas", "and", "or", "xor"))
    dtype = g.pick(("i32", "u32", "i64", "u64", *(("f32", "f64") if kind in ("add", "xchg") else ())))
    array = g.array(dtype, math.prod(shape) * g.programs, "small", True, "a")
    place = accesses.own_indices(g, shape)
    value = expression(g, dtype, shape, 2)
    name = g.name("old")
    cas = number(g.pick((0, 1, 2, 3)), dtype, shape) if kind == "cas" else None
    mask = condition(g, shape, 1) if cas is None and g.chance(0.4) else None
    g.emit(t.Atomic(kind, offset(pointer(array), place), value, mask, name, cas))
    g.scope[-1].append((name, Type(dtype, shape)))
    g.emit(t.Barrier(False))


def chosen_pointer(g: State) -> None:
    """Loads through a pointer selected from two arrays, by a scalar or lane by lane."""
    shape, dtype = g.pick(((16,), (64,), (16, 16))), g.dtype()
    size = math.prod(shape) + 8
    first, second = g.array(dtype, size), g.array(dtype, size)
    kind = g.weighted({"ternary": 2, "if": 2, "where": 1})
    mask = accesses.masks(g, shape)
    if kind == "where":
        places = [offset(pointer(a), accesses.inside(g, shape, size)) for a in (first, second)]
        address = SyntaxNode("pointer_where", places[0].type, (condition(g, shape, 1), *places))
    else:
        c = condition(g, (), 2)
        if kind == "ternary":
            chosen = g.let(SyntaxNode("ternary", pointer(first).type, (c, pointer(first), pointer(second))), "p", True)
        else:
            chosen = g.let(offset(pointer(first), literal(0)), "p", True)
            with g.block() as body:
                g.assign(chosen, offset(pointer(second), literal(g.r.randrange(3))))
            g.emit(t.If(c, tuple(body)))
        address = offset(chosen, accesses.inside(g, shape, size - 3))
    g.let(op("load", dtype, shape, address, *([] if mask is None else [mask])))


def optional(g: State) -> None:
    """An argument that may be None, and a constexpr flag."""
    shape = g.pick(((16,), (64,), (128,)))
    dtype = g.dtype()
    value = g.let(expression(g, dtype, shape, 1), "acc")
    if g.chance(0.5):
        array = g.array(dtype, shape[0], prefix="x")
        if g.chance(0.4):
            g.arguments[-1] = t.Scalar(array.name, "none", (None,))
        test = op("not_none", "i1", (), name=array.name)
        other = op("load", dtype, shape, offset(pointer(array), arange(shape[0])))
    else:
        flag = g.scalar("i1", [g.chance(0.5)], "flag", constexpr=True)
        test = op("is_set", "i1", (), name=flag.attrs["name"])
        other = expression(g, dtype, shape, 1)
    with g.block() as then:
        g.assign(value, cast(binary("+", value, other), dtype))
    g.emit(t.If(test, tuple(then)))


def helper_calls(g: State) -> None:
    """Calls a helper with several results, a default or an early return."""
    shape = g.pick(((), (16,), (64,)))
    helpers.several(g, g.dtype(), g.dtype(), shape)


def high_half(g: State) -> None:
    dtype, shape = g.pick(("i32", "u32", "i64", "u64")), g.pick(((16,), (64,), ()))
    g.let(op("umulhi", dtype, shape, expression(g, dtype, shape, 1), expression(g, dtype, shape, 1), ct=dtype))


def random_bits(g: State) -> None:
    """Random numbers of Philox, whose bits are specified."""
    shape = g.pick(((16,), (64,), (8, 16)))
    seed = g.scalar("i32", [g.r.randrange(2, 10**6) for _ in range(g.launches)], "t")
    g.let(op("randint", "u32", shape, seed, accesses.permuted(g, shape)))


def quotient(g: State) -> None:
    """A cdiv of an argument and a constant, and a loop with that many iterations."""
    size = g.scalar("i32", [g.r.randrange(0, 100) for _ in range(g.launches)], "n")
    g.let(op("cdiv", "i32", (), size, literal(g.pick((2, 7, 16))), ct="i32"))


def largest(g: State) -> None:
    dtype, size = g.dtype(), g.pick((16, 32, 64))
    k = g.pick((1, 2, 8, 16))
    found = op("topk", dtype, (size, k), expression(g, dtype, (size, 16), 1), axis=1, k=k)
    g.let(SyntaxNode("cast", found.type, (found,)))


def promised(g: State) -> None:
    """A load whose index has true hints (multiple_of, max_contiguous...)."""
    dtype, size, factor = g.dtype(), g.pick((16, 64, 128)), g.pick((4, 8, 16))
    array = accesses.input_array(g, dtype, size * factor * 2)
    start = g.scalar("i32", [factor * g.r.randrange(0, size) for _ in range(g.launches)], "t")
    start = op("promise", "i32", (), start, name="multiple_of", value=factor)
    place = op("promise", "i32", (size,), binary("+", start, arange(size)), name="max_contiguous", value=factor)
    g.let(op("load", dtype, (size,), offset(pointer(array), place)))


#: Weights of the patterns, relative to the regions of `regions`.
REGIONS: dict[Callable[[State], None], float] = {
    block_pointer: 0.8,
    descriptor: 0.5,
    product: 0.8,
    aliased: 0.4,
    own_atomic: 0.5,
    chosen_pointer: 0.5,
    optional: 0.5,
    helper_calls: 0.6,
    high_half: 0.2,
    largest: 0.2,
    random_bits: 0.3,
    quotient: 0.2,
    promised: 0.3,
}
