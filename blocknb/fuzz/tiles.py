"""Generates random ops on whole tiles with a given result shape: shape ops, reductions, scans, sorting, gathers, products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from blocknb.fuzz import dtypes, helpers
from blocknb.fuzz.dtypes import FLOATS, INTEGERS, bits, is_float
from blocknb.fuzz.expressions import Shape, binary, cast, expression, production
from blocknb.fuzz.state import MAX_ELEMENTS, State
from blocknb.fuzz.tree import SyntaxNode, Type, literal, op


@production("tile op")
def tile_op(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode | None:
    """An op on whole tiles with the result `shape`, of `dtype` or another dtype; None if no op fits."""
    if dtype in dtypes.FLOAT8:
        return None
    able = {make: weight for weight, fits, make in OPS if fits(shape)}
    return g.weighted(able)(g, dtype, shape, depth)


def axis_of(g: State, shape: Shape) -> int:
    return g.r.randrange(len(shape))


def _inner(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    return expression(g, dtype, shape, depth - 1)


def factored(g: State, size: int) -> Shape:
    """Sizes, powers of two, of a tile with `size` elements."""
    power, rank = size.bit_length() - 1, g.r.randrange(1, 4)
    cuts = sorted(g.r.randrange(power + 1) for _ in range(rank - 1))
    edges = [0, *cuts, power]
    return tuple(1 << (b - a) for a, b in itertools.pairwise(edges))


def _reshape(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    return op("reshape", dtype, shape, _inner(g, dtype, factored(g, math.prod(shape)), depth), shape=shape)


def _trans(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    perm = list(range(len(shape)))
    g.r.shuffle(perm)
    source = [0] * len(shape)
    for i, p in enumerate(perm):
        source[p] = shape[i]
    inner = _inner(g, dtype, tuple(source), depth)
    return op("trans", dtype, shape, inner, perm=tuple(perm), name=g.pick(("permute", "trans")))


def _broadcast(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    axis = axis_of(g, shape)
    if g.chance(0.2):
        return op("splat", dtype, shape, _inner(g, dtype, (), depth))
    return op("broadcast", dtype, shape, _inner(g, dtype, (*shape[:axis], 1, *shape[axis + 1 :]), depth))


def _expand(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode | None:
    axis = shape.index(1)
    rest = (*shape[:axis], *shape[axis + 1 :])
    if not rest:
        return None
    return op("expand", dtype, shape, _inner(g, dtype, rest, depth), axis=axis, call=g.chance(0.3))


def _join(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    return op("join", dtype, shape, *(_inner(g, dtype, shape[:-1], depth) for _ in range(2)))


def _interleave(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    half = (*shape[:-1], shape[-1] // 2)
    return op("interleave", dtype, shape, *(_inner(g, dtype, half, depth) for _ in range(2)))


def _cat(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    half = (shape[0] // 2, *shape[1:])
    return op("cat", dtype, shape, *(_inner(g, dtype, half, depth) for _ in range(2)))


def _split(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    both = SyntaxNode("split", (Type(dtype, shape), Type(dtype, shape)), (_inner(g, dtype, (*shape, 2), depth),))
    return g.pick(g.lets(both))


def _flip(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    return op("flip", dtype, shape, _inner(g, dtype, shape, depth), axis=axis_of(g, shape))


def _xor_shuffle(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode | None:
    axis = axis_of(g, shape)
    if shape[axis] == 1:
        return None
    mask = 1 << g.r.randrange(shape[axis].bit_length() - 1)
    return op("xor_shuffle", dtype, shape, _inner(g, dtype, shape, depth), axis=axis, mask=mask)


def _longer(g: State, shape: Shape, most: int = 64) -> tuple[int, Shape]:
    """An axis to reduce, and the shape including it."""
    axis = g.r.randrange(len(shape) + 1)
    room = min(most, MAX_ELEMENTS // math.prod(shape))
    size = 1 << g.r.randrange(room.bit_length())
    return axis, (*shape[:axis], size, *shape[axis:])


def reduced_shape(source: Shape, axis: int | None, keep: bool) -> Shape:
    """The shape of a reduction along an axis, or along all axes."""
    if axis is None:
        return tuple(1 for _ in source) if keep else ()
    if keep:
        return tuple(1 if i == axis else n for i, n in enumerate(source))
    return (*source[:axis], *source[axis + 1 :])


def reduction(g: State, dtype: str, source: Shape, axis: int | None, keep: bool, depth: int) -> SyntaxNode:
    """A reduction of a random tile, of `dtype` where the op allows it."""
    if is_float(dtype):
        name = g.weighted({"sum": 3, "max": 2, "min": 2})
    else:
        name = g.weighted({"sum": 3, "max": 2, "min": 2, "xor_sum": 1, "reduce_or": 0.7, "argmax": 1.0, "argmin": 1.0})
    kind = dtype
    if name in ("argmax", "argmin"):
        kind = g.dtype()
        axis = 0 if axis is None else axis
    elif g.chance(0.2):
        kind = g.dtype(INTEGERS) if name in ("xor_sum", "reduce_or") else g.dtype()
    if kind == "i1":
        kind = "i32"
    ct = kind
    if name in ("sum", "xor_sum", "reduce_or") and not is_float(kind) and bits(kind) < 32:
        ct = "u32" if dtypes.is_unsigned(kind) else "i32"
    inner = expression(g, kind, source, depth - 1)
    if name == "sum" and g.chance(0.1):
        inner, ct = cast(inner, "i1"), "u32"  # a sum of truth values is unsigned, as in Triton
    result = reduced_shape(source, axis, keep)
    out = "i32" if name in ("argmax", "argmin") else ct
    attrs = {"name": name, "axis": axis, "keep": keep, "ct": ct, "method": g.chance(0.2)}
    found = op("reduce", out, result, inner, **attrs)
    return found if out == dtype and bits(kind) >= 32 else op("cast", dtype, result, found)


def _reduce(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    axis, source = _longer(g, shape)
    return reduction(g, dtype, source, axis, False, depth)


def _reduce_all(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    """Reduces a tile to a scalar, and broadcasts it to another tile."""
    source = shape if math.prod(shape) > 1 else (64,)
    axis = 0 if len(source) == 1 and g.chance(0.5) else None
    found = reduction(g, dtype, source, axis, False, depth)
    if found.type.shape:  # argmax of several axes leaves some of them
        found = op("cast", dtype, (), op("reduce", dtype, (), found, name="max", axis=None, ct=dtype))
    other = expression(g, dtype, shape, depth - 1)
    return cast(binary(g.pick("+-*"), *((other, found) if g.chance(0.7) else (found, other))), dtype)


def _keep(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    axis = axis_of(g, shape)
    found = reduction(g, dtype, shape, axis, True, depth)
    return cast(binary(g.pick("+-"), expression(g, dtype, shape, depth - 1), found), dtype)


def _extreme(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    axis, source = _longer(g, shape)
    kind = g.dtype() if dtype == "i1" else dtype
    types = (Type("f32" if kind == "bf16" else kind, shape), Type("i32", shape))
    inner = expression(g, kind, source, depth - 1)
    value, index = g.lets(SyntaxNode("extreme", types, (inner,), {"name": g.pick(("max", "min")), "axis": axis}))
    if g.chance(0.5):
        return cast(index, kind)
    return SyntaxNode("cast", Type(kind, shape), (value,)) if bits(kind) < 32 else value


def _combined(g: State, dtype: str) -> str:
    return dtype if dtype in INTEGERS else g.pick(("i32", "i64", "u32", "i32"))


def _combine(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    axis, source = _longer(g, shape, 32)
    kind = _combined(g, dtype)
    attrs = {"axis": axis, "keep": False}
    if g.chance(0.4):
        other = g.pick(("i32", kind))
        helper = helpers.pair_combiner(g, kind, other, True)
        types = (Type(kind, shape), Type(other, shape))
        inner = (expression(g, kind, source, depth - 1), expression(g, other, source, depth - 1))
        return g.pick(g.lets(SyntaxNode("combine", types, inner, attrs | {"helper": helper.name})))
    helper = helpers.combiner(g, kind, True)
    return op("combine", kind, shape, expression(g, kind, source, depth - 1), **attrs, helper=helper.name)


def _scan(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    name = g.weighted({"cumsum": 4, "cumprod": 1})
    kind = g.dtype(FLOATS if is_float(dtype) else INTEGERS) if g.chance(0.2) or dtype == "i1" else dtype
    ct = ("u32" if dtypes.is_unsigned(kind) else "i32") if not is_float(kind) and bits(kind) < 32 else kind
    attrs = {"name": name, "axis": axis_of(g, shape), "reverse": g.chance(0.3), "ct": ct}
    inner = _inner(g, kind, shape, depth)
    if name == "cumprod" and is_float(kind):
        positive = op("compare", "i1", shape, inner, literal(0.5), sym=">", ct=kind)
        inner = op("where", kind, shape, positive, literal(-1.0), literal(1.0), ct=kind)
        inner = SyntaxNode("cast", inner.type, (inner,))
    return op("cast", kind, shape, op("scan", ct, shape, inner, **attrs))


def _combine_scan(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    kind, axis = _combined(g, dtype), axis_of(g, shape)
    attrs = {"axis": axis, "reverse": g.chance(0.3)}
    if g.chance(0.4):
        other = g.pick(("i32", kind, kind))
        helper = helpers.pair_combiner(g, kind, other, False)
        inner = (_inner(g, kind, shape, depth), _inner(g, other, shape, depth))
        types = (Type(kind, shape), Type(other, shape))
        return g.pick(g.lets(SyntaxNode("combine_scan", types, inner, attrs | {"helper": helper.name})))
    helper = helpers.combiner(g, kind, False)
    return op("combine_scan", kind, shape, _inner(g, kind, shape, depth), **attrs, helper=helper.name)


def _sort(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    kind = dtype if dtype != "i1" else "i32"
    return op("sort", kind, shape, _inner(g, kind, shape, depth), axis=len(shape) - 1, descending=g.chance(0.4))


def _gather(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    axis = axis_of(g, shape)
    room = max(1, min(64, MAX_ELEMENTS // (math.prod(shape) // shape[axis])))
    size = 1 << g.r.randrange(room.bit_length())
    kind = g.pick(("i32", "i32", "u8", "i64", "i16"))
    index = binary("&", expression(g, kind, shape, 1), literal(min(size, 128) - 1))
    source = _inner(g, dtype, (*shape[:axis], size, *shape[axis + 1 :]), depth)
    return op("gather", dtype, shape, source, index, axis=axis)


def _histogram(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    count = g.pick((16, 64, 128))
    inner = binary("&", expression(g, "i32", (count,), 1), literal(shape[0] - 1))
    return op("histogram", "i32", shape, inner, bins=shape[0])


def _dot(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    """A matrix product of this shape, with small numbers."""
    kind = g.weighted({"f16": 3, "bf16": 2, "f32": 3, "i8": 1.5, "e4nv": 0.5, "f64": 0.3})
    inner = 32 if kind in ("i8", "e4nv") else g.pick((16, 32))
    out = {"i8": "i32", "f64": "f64"}.get(kind, "f32")
    precision = g.pick(("ieee", "tf32", "tf32x3", "ieee")) if kind == "f32" else ""
    a = expression(g, kind, (*shape[:-2], shape[-2], inner), min(depth - 1, 1))
    b = expression(g, kind, (*shape[:-2], inner, shape[-1]), min(depth - 1, 1))
    acc = [expression(g, out, shape, depth - 1)] if g.chance(0.3) else []
    return op("dot", out, shape, a, b, *acc, precision=precision)


#: The ops with their weights, a test whether a shape can be its result, and the function that makes it.
OPS: tuple[tuple[float, Callable[[Shape], bool], Callable[[State, str, Shape, int], SyntaxNode | None]], ...] = (
    (1.0, lambda s: math.prod(s) > 1, _reshape),
    (1.0, lambda s: len(s) > 1, _trans),
    (0.7, lambda s: True, _broadcast),
    (0.7, lambda s: 1 in s, _expand),
    (0.7, lambda s: s[-1] == 2 and len(s) > 1, _join),
    (0.7, lambda s: math.prod(s) * 2 <= MAX_ELEMENTS, _split),
    (0.7, lambda s: s[-1] > 1, _interleave),
    (0.5, lambda s: s[0] > 1, _cat),
    (0.6, lambda s: True, _flip),
    (0.3, lambda s: max(s) > 1, _xor_shuffle),
    (4.0, lambda s: math.prod(s) * 2 <= MAX_ELEMENTS, _reduce),
    (2.0, lambda s: True, _reduce_all),
    (1.5, lambda s: True, _keep),
    (0.7, lambda s: math.prod(s) * 2 <= MAX_ELEMENTS, _extreme),
    (0.8, lambda s: math.prod(s) * 2 <= MAX_ELEMENTS, _combine),
    (1.5, lambda s: True, _scan),
    (0.8, lambda s: True, _combine_scan),
    (0.5, lambda s: s[-1] <= 64, _sort),
    (1.0, lambda s: True, _gather),
    (0.4, lambda s: len(s) == 1 and s[0] > 1, _histogram),
    (1.0, lambda s: len(s) == 2 and min(s) >= 16 and math.prod(s) <= 1024, _dot),
    (0.3, lambda s: len(s) == 3 and min(s[1:]) >= 16, _dot),
)
