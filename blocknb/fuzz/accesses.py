"""Generates random loads and stores: in-bounds indices, masks, and outputs in which no two lanes store to the same element."""

from __future__ import annotations

import math
from typing import Any

from blocknb.fuzz import dtypes
from blocknb.fuzz import tree as t
from blocknb.fuzz.expressions import binary, both, cast, compare, condition, constant, expression, production, weak
from blocknb.fuzz.state import GridAxis, State, pointer
from blocknb.fuzz.tree import SyntaxNode, Type, arange, expand, literal, number, offset, op, var

Shape = tuple[int, ...]
FILLS = {"small": 6.0, "wide": 2.0, "special": 1.0}


def iota(g: State, shape: Shape) -> SyntaxNode:
    """0, 1, 2... in row-major order over a shape, int32."""
    if not shape:
        return number(0)
    if len(shape) == 1 or g.chance(0.3):
        flat = arange(math.prod(shape))
        return flat if len(shape) == 1 else op("reshape", "i32", shape, flat, shape=shape)
    total, stride = None, math.prod(shape)
    for axis, n in enumerate(shape):
        stride //= n
        part = arange(n)
        for other in range(len(shape)):
            if other != axis:
                part = expand(part, other)
        part = part if stride == 1 else binary("*", part, literal(stride))
        total = part if total is None else binary("+", total, part)
    assert total is not None
    return total if total.type.shape == shape else op("broadcast", "i32", shape, total)


def linear_program(g: State) -> SyntaxNode:
    """The linear number of the program, which starts at 0."""
    total = op("pid", "i32", (), axis=0)
    if g.chance(0.1):
        total = cast(total, "i64")
    stride = g.grid[0]
    for axis in range(1, len(g.grid)):
        total = binary("+", total, binary("*", op("pid", "i32", (), axis=axis), literal(stride)))
        stride *= g.grid[axis]
    return total


def permuted(g: State, shape: Shape) -> SyntaxNode:
    """A random permutation of the indices of a tile, as int32."""
    i, size = iota(g, shape), math.prod(shape)
    kind = g.weighted({"plain": 5, "reversed": 1, "xor": 1, "odd": 1}) if size > 1 else "plain"
    if kind == "reversed" and g.chance(0.3):  # a stride of -1 that is known only at run time
        return binary("+", binary("*", i, g.scalar("i32", [-1] * g.launches, "t")), literal(size - 1))
    if kind == "reversed":
        return binary("-", literal(size - 1), i)
    if kind == "xor":
        return binary("^", i, literal(g.r.randrange(size)))
    if kind == "odd":
        scaled = binary("*", i, literal(g.pick((3, 5, 7))))
        return binary("&", binary("+", scaled, literal(g.r.randrange(size))), literal(size - 1))
    return i


def own_indices(g: State, shape: Shape) -> SyntaxNode:
    """A tile of indices that no other program has."""
    program = linear_program(g)
    return binary("+", binary("*", program, literal(math.prod(shape))), permuted(g, shape)) if shape else program


def inside(g: State, shape: Shape, limit: int) -> SyntaxNode:
    """A tile of indices of a shape, in [0, limit), int32 or int64."""
    size = math.prod(shape)
    options = {"modulo": 1.0, "clamped": 0.7, "data": 1.0, "same": 0.3}
    if size <= limit:
        options |= {"permuted": 6.0, "strided": 1.0 if 2 * size <= limit else 0.0}
    if size * g.programs <= limit:
        options["program"] = 8.0
    kind = g.weighted(options)
    if kind == "program":
        return binary("+", binary("*", linear_program(g), literal(size)), permuted(g, shape))
    if kind == "permuted":
        return binary("+", permuted(g, shape), literal(g.r.randrange(limit - size + 1)))
    if kind == "strided":
        step = g.r.randrange(2, limit // size + 1) if limit // size > 2 else 2
        return binary("*", permuted(g, shape), literal(step))
    if kind == "modulo":
        scaled = binary("*", iota(g, shape), literal(g.pick((1, 1, 3, 8))))
        return binary("%", binary("+", scaled, linear_program(g)), literal(limit))
    if kind == "clamped":
        i = binary("-", binary("+", iota(g, shape), linear_program(g)), literal(g.r.randrange(5)))
        low = SyntaxNode("maximum", i.type, (i, literal(0)), {"ct": "i32"})
        return SyntaxNode("minimum", i.type, (low, literal(limit - 1)), {"ct": "i32"})
    if kind == "data":
        whole = expression(g, g.pick(("i32", "i64", "u8", "u32")), shape, 1)
        power = 1 << (min(limit, 256 if whole.type.dtype == "u8" else limit).bit_length() - 1)
        return binary("&", whole, literal(power - 1))
    return number(g.r.randrange(limit), "i32", shape)


def input_array(g: State, dtype: str, least: int) -> t.Array:
    """An array to load from, with at least `least` elements: an existing one or a new one."""
    old = [a for a in g.arguments if isinstance(a, t.Array) and a.dtype == dtype and not a.written and a.size >= least]
    if old and g.chance(0.7):
        return g.pick(old)
    size = max(1, least + g.pick((0, 0, 1, 5, 37)))
    return g.array(dtype, size, g.weighted(FILLS), prefix="x")


def masks(g: State, shape: Shape) -> SyntaxNode | None:
    """A mask that broadcasts to a shape, or None."""
    g.budget -= 3
    kind = g.weighted({"none": 4, "tile": 3, "iota": 2, "prefix": 1.5, "range": 0.5, "scalar": 0.4})
    if kind == "none":
        return None
    if kind == "iota" and shape:
        return compare("<", iota(g, shape), literal(g.r.randrange(math.prod(shape) + 1)))
    size = math.prod(shape)
    if kind == "prefix" and shape:  # up to or from a bound that may lie outside
        end = g.scalar("i32", [g.r.randrange(-5, size + 6) for _ in range(g.launches)], "t")
        return compare(g.pick(("<", "<", "<=", ">", ">=")), iota(g, shape), end)
    if kind == "range" and shape:  # tests a range by one unsigned comparison
        start = (
            literal(g.r.randrange(size)) if g.chance(0.6) else g.scalar("i32", [g.pick((2, 7, -9))] * g.launches, "t")
        )
        return compare("<", binary("-", cast(iota(g, shape), "u32"), start), literal(g.r.randrange(1, size + 1)))
    if kind == "scalar":
        return condition(g, (), 1)
    return condition(g, shape, 0)


def other_value(g: State, dtype: str, shape: Shape, mask: SyntaxNode | None) -> list[SyntaxNode]:
    """The `other` argument of a masked load: nothing, a number, or a tile."""
    if mask is None or g.chance(0.45) or dtype == "i1":
        return []
    if dtype in dtypes.FLOAT8:
        return [literal(0.0)]
    if dtypes.is_float(dtype) and g.chance(0.2):
        return [literal(g.pick((-math.inf, math.inf)))]
    kind = g.weighted({"weak": 4, "tile": 1, "scalar": 1})
    if kind == "weak":
        return [weak(g, dtype)]
    return [number(constant(g, dtype), dtype, shape if kind == "tile" else ())]


@production("load")
def load(g: State, dtype: str, shape: Shape) -> SyntaxNode:
    """A load of a tile from random places of an input."""
    g.loads -= 1
    if found := structured_load(g, dtype, shape):
        return found
    dtype = g.pick(dtypes.FLOAT8) if g.chance(0.03) else dtype
    size = math.prod(shape)
    array = input_array(g, dtype, g.pick((size, size * g.programs)))
    index = inside(g, shape, array.size)
    base = pointer(array)
    if g.chance(0.15) and not dtypes.is_unsigned(index.type.dtype):  # steps back from a pointer that moved forward
        shift = g.r.randrange(1, 9)
        base, index = offset(base, literal(shift)), binary("-", index, literal(shift))
    mask = masks(g, shape)
    if mask is not None and mask.type.shape == shape and g.chance(0.15):
        mask = g.let(mask)  # the addresses of masked lanes are out of bounds
        kind = index.type.dtype if index.type.dtype in ("i32", "i64") else "i64"
        far = number(g.pick((1 << 30, -(1 << 30))), kind, shape)
        index = op("where", kind, shape, mask, index, far, ct=kind)
    parts = [offset(base, index)] + ([] if mask is None else [mask, *other_value(g, dtype, shape, mask)])
    return op("load", dtype, shape, *parts, **hints(g))


def hints(g: State) -> dict[str, Any]:
    """Keyword arguments of a load that do not change its result."""
    caches = {"cache_modifier": ".ca"}, {"cache_modifier": ".cg"}
    return {"hints": g.pick((*caches, {"eviction_policy": "evict_last"}, {"volatile": True}))} if g.chance(0.06) else {}


def structured_shape(g: State) -> Shape:
    return tuple(a.block for a in g.axes if not a.row)


def position(g: State, axes: list[GridAxis], stride: int) -> tuple[SyntaxNode, SyntaxNode | None]:
    """The index of a tile along all axes, and the mask of in-bounds elements."""
    shape = structured_shape(g)
    tiles = [a for a in g.axes if not a.row]
    total, mask = None, None
    step = literal(stride)
    if len(axes) > 1 and stride != 1 and g.chance(0.3):
        step = g.scalar("i32", [stride] * g.launches, "t", g.chance(0.3))
    for axis in axes:
        i = var(axis.index, Type("i32", () if axis.row else (axis.block,)))
        m = None if axis.row else var(axis.mask, Type("i1", (axis.block,)))
        if not axis.row and len(shape) > 1:
            for other, a in enumerate(tiles):
                if a is not axis:
                    i = expand(i, other)
                    m = expand(m, other) if m is not None else None
        part = i if axis is axes[-1] else binary("*", i, step)
        total = part if total is None else binary("+", total, part)
        if m is not None:
            mask = m if mask is None else both(mask, m)
    assert total is not None
    return total, mask


def extent(axes: list[GridAxis], stride: int) -> int:
    """The number of elements of an array with these axes, whose rows are `stride` apart."""
    if len(axes) == 1:
        return axes[0].extent
    return (axes[0].extent - 1) * stride + axes[1].extent


def structured_load(g: State, dtype: str, shape: Shape) -> SyntaxNode | None:
    """A load of the tile that the axes describe, masked at their ends."""
    if shape != structured_shape(g) or not g.axes or g.chance(0.3):
        return None
    axes = g.axes[::-1] if len(g.axes) > 1 and not g.axes[0].row and g.chance(0.25) else g.axes
    stride = axes[-1].extent + g.pick((0, 0, 3, 8))
    array = input_array(g, dtype, extent(axes, stride))
    index, mask = position(g, axes, stride)
    parts = [offset(pointer(array), index)]
    if mask is not None:
        if g.chance(0.15):
            mask = both(mask, condition(g, shape, 1))
        parts += [mask, *other_value(g, dtype, shape, mask)]
    return op("load", dtype, shape, *parts)


def store(g: State, value: SyntaxNode) -> None:
    """Stores a value to elements that no other lane or program stores to."""
    shape = value.type.shape
    dtype = value.type.dtype if g.chance(0.6) else g.dtype()
    if dtype == "i1" and g.chance(0.5):
        dtype = "i8"
    if dtype in dtypes.INTEGERS and dtypes.is_float(value.type.dtype):
        value = cast(value, dtype)
    if shape and shape == structured_shape(g) and g.chance(0.6):
        stride = g.axes[-1].extent + g.pick((0, 0, 1, 8))
        array = g.array(dtype, extent(g.axes, stride), "poison", True, "o")
        index, mask = position(g, g.axes, stride)
    else:
        array = g.array(dtype, math.prod(shape) * g.programs, "poison", True, "o")
        index, mask = own_indices(g, shape), None
    if g.chance(0.25):
        extra = condition(g, shape, 1)
        mask = extra if mask is None else both(mask, extra)
    g.emit(t.StoreStatement(offset(pointer(array), index), value, mask))


def shapes(g: State) -> list[tuple[int, ...]]:
    """Useful shapes for values: those of the axes and of names in scope, and a few others."""
    own = structured_shape(g)
    seen = [type.shape for _, type in g.visible() if type.shape and not type.pointer]
    others = [(16,), (64,), (16, 16), (8, 16), (4, 2, 8), (32, 32), (2, 64), (128,)]
    return [own] * 6 + seen[-4:] + [g.pick(others)] if own else [*seen[-4:], g.pick(others), g.pick(others)]
