"""Rows of the op table: constants and indices, shapes, moves along an axis, reductions, matrix products, inline assembly, layouts."""

from __future__ import annotations

import math

from blocknb.language import assembly
from blocknb.language import types as t
from blocknb.language.op_spec import op
from blocknb.language.rules import TypeRule, need
from blocknb.language.types import Buffer, Tile

DISTRIBUTED = ("distributed", "memory")


@op("source", attrs="value type", traits="uniform rematerializable host")
def const(types, attrs):
    """Makes a scalar, or a tile of equal elements, from a number that is known at compile time.

    Example:
        tl.full((2,), 3, tl.int32)  # [3, 3]
    """
    return (attrs["type"],)


@op("source", attrs="axis", traits="program_index")
def program_id(types, attrs):
    """Returns the index of the program along an axis of the grid.

    `axis` is 0, 1 or 2, known at compile time. The result is an int32 scalar.

    Example:
        pid = tl.program_id(0)
        pid  # 0
    """
    return (Tile(t.int32),)


@op("source", attrs="axis", traits="grid_size")
def num_programs(types, attrs):
    """Returns the number of programs along an axis of the grid.

    `axis` is 0, 1 or 2, known at compile time. The result is an int32 scalar.

    Example:
        tl.num_programs(0)  # 1
    """
    return (Tile(t.int32),)


@op("source", attrs="start end", traits="rematerializable")
def arange(types, attrs):
    """Returns the integers from `start` to `end`, without `end`.

    The result is int32, of shape (end - start,). That length is a power of two known at compile time; any other is an error.

    Example:
        tl.arange(0, 8)  # [0, 1, 2, 3, 4, 5, 6, 7]
        tl.arange(4, 8) * 2  # [8, 10, 12, 14]
    """
    n = attrs["end"] - attrs["start"]
    need(n > 0 and n & (n - 1) == 0, f"arange needs a power of two elements, not {n}")
    return (Tile(t.int32, (n,), attrs.get("layout")),)


@op("shape", operands="x", attrs="shape", traits="preserves_elements replicates uniform rematerializable")
def splat(types, attrs):
    """Repeats a scalar to a tile.

    Example:
        tl.arange(0, 4) + tl.load(i_ptr + 3)  # [3, 4, 5, 6]
    """
    need(types[0].is_scalar, f"splat takes a scalar, not {types[0]}")
    return (Tile(types[0].dtype, tuple(attrs["shape"]), attrs.get("layout")),)


@op("shape", operands="x", attrs="shape", traits="preserves_elements moves_data view replicates")
def broadcast(types, attrs):
    """Repeats the axes of size one until the tile has the given shape.

    Example:
        tl.broadcast_to(tl.arange(0, 2), (2, 2))  # [[0, 1], [0, 1]]
    """
    (x,), shape = types, tuple(attrs["shape"])
    need(len(x.shape) == len(shape), f"broadcast keeps the rank: {x.shape} to {shape}")
    need(all(n in (1, m) for n, m in zip(x.shape, shape, strict=True)), f"cannot broadcast {x.shape} to {shape}")
    return (Tile(x.dtype, shape, attrs.get("layout")),)


@op("shape", operands="x", attrs="axis", traits="preserves_elements moves_data view reshapes")
def expand_dims(types, attrs):
    """Inserts an axis of size one.

    `x[:, None]` is the same.

    Example:
        tl.expand_dims(tl.arange(0, 2), 1)  # [[0], [1]]
    """
    (x,), axis = types, attrs["axis"]
    need(0 <= axis <= len(x.shape), f"axis {axis} of rank {len(x.shape)}")
    layout = None if x.layout is None else x.layout.expand_dims(axis)
    return (Tile(x.dtype, (*x.shape[:axis], 1, *x.shape[axis:]), layout),)


@op("shape", operands="x", attrs="shape", traits="preserves_elements moves_data view reshapes")
def reshape(types, attrs):
    """Gives the tile another shape; the elements keep their row-major order.

    The number of elements stays, and the sizes are powers of two. The shape is one tuple or several arguments.

    Example:
        tl.reshape(tl.arange(0, 4), (2, 2))  # [[0, 1], [2, 3]]
    """
    (x,), shape = types, tuple(attrs["shape"])
    need(
        math.prod(shape) == x.size, f"cannot reshape {x.shape} to {shape}: {x.size} against {math.prod(shape)} elements"
    )
    return (Tile(x.dtype, shape, None if x.layout is None else x.layout.reshape(shape)),)


@op("shape", operands="x", attrs="perm", traits="preserves_elements moves_data view reshapes permutes")
def trans(types, attrs):
    """Permutes the axes of a tile.

    `dims` names every axis of the input once, as one tuple or several arguments. `x.T` is the same for two axes.

    Example:
        x = tl.reshape(tl.arange(0, 4), (2, 2))
        tl.trans(x)  # [[0, 2], [1, 3]]

    IR:
        Axis i of the result is axis perm[i] of x.
    """
    (x,), perm = types, tuple(attrs["perm"])
    need(sorted(perm) == list(range(len(x.shape))), f"{perm} does not permute the axes of {x.shape}")
    return (Tile(x.dtype, tuple(x.shape[i] for i in perm), None if x.layout is None else x.layout.trans(perm)),)


@op("move", operands="x", attrs="axis mask layout", traits="moves_data reads_buffers exchanges permutes")
def flip(types, attrs):
    """Reverses a tile along an axis.

    The result has the shape and the dtype of `x`.

    Example:
        tl.flip(tl.arange(0, 4))  # [3, 2, 1, 0]

    IR:
        Element i along the axis is element i ^ mask of x. A mask of size - 1 reverses the axis, a single bit swaps neighbors.
    """
    x, axis, mask = types[0], attrs["axis"], attrs["mask"]
    need(0 <= axis < len(x.shape), f"axis {axis} of rank {len(x.shape)}")
    need(0 <= mask < x.shape[axis], f"the mask {mask} of an axis of {x.shape[axis]}")
    return (Tile(x.dtype, x.shape, attrs["layout"]),) if isinstance(x, Buffer) else (x,)


@op("move", operands="x index", attrs="axis", traits="moves_data reads_buffers exchanges permutes")
def gather(types, attrs):
    """Takes elements along an axis by their indices.

    `index` is an integer tile of the rank of `src` and gives the shape of the result.

    Example:
        x = tl.arange(0, 4) * 10
        tl.gather(x, 3 - tl.arange(0, 4), 0)  # [30, 20, 10, 0]

    IR:
        Element i along the axis is element index[i] of x along it. The op takes an index modulo the size of the axis.
    """
    (x, index), axis = types, attrs["axis"]
    need(0 <= axis < len(x.shape), f"axis {axis} of rank {len(x.shape)}")
    need(index.dtype.is_integer and index.dtype.bits > 1, f"indices are integers, not {index.dtype}")
    others = [(a, b) for i, (a, b) in enumerate(zip(x.shape, index.shape, strict=False)) if i != axis]
    fits = len(x.shape) == len(index.shape) and all(a == b for a, b in others)
    need(fits, f"an index of {index.shape} along axis {axis} of {x.shape}")
    return (index.with_dtype(x.dtype),)


@op("reduce", operands="x...", attrs="axis keep layout piece rematerialize reverse scan", blocks=1)
def reduce(types, attrs):
    """Combines the elements along an axis.

    Example:
        tl.sum(tl.arange(0, 4), axis=0)  # 6

    IR:
        The block combines 2n scalars to n. With `keep`, the result holds one partial result for each warp along the axis. With `piece`,
        the reduction emits its operands, that number of registers at a time. With `rematerialize`, ops that have
        `emit="rematerialized"` are emitted once more after it. With `scan`, it is the first half of the scan of that number, in whose order
        (`reverse`) it combines.
    """
    axis, results = attrs["axis"], []
    for x in types:
        need(0 <= axis < len(x.shape), f"axis {axis} of rank {len(x.shape)}")
        keep = attrs.get("keep", 0)
        if keep:
            results.append(Tile(x.dtype, (*x.shape[:axis], keep, *x.shape[axis + 1 :]), attrs["layout"]))
        else:
            shape = x.shape[:axis] + x.shape[axis + 1 :]
            results.append(Tile(x.dtype, shape, None if x.layout is None or not shape else x.layout.slice(axis)))
    return tuple(results)


@op("reduce", operands="x...", attrs="axis reverse keep scan", blocks=1)
def scan(types, attrs):
    """Combines each element with all elements before it along an axis.

    Example:
        tl.cumsum(tl.arange(0, 4) + 1, 0)  # [1, 3, 6, 10]

    IR:
        The block combines 2n scalars to n. With `reverse`, each element is combined with all elements after it. With `keep`, n operands
        are followed by n tiles with the total of each warp along the axis; `scan` is the number that the reduction to them names.
    """
    for x in types:
        need(0 <= attrs["axis"] < len(x.shape), f"axis {attrs['axis']} of rank {len(x.shape)}")
    return tuple(types[: len(types) // 2] if attrs.get("keep") else types)


@op(
    "dot",
    operands="a b c",
    attrs="precision stacked instr layout warps registers in_flight transposed permuted_rows columns",
    traits="reads_buffers exchanges",
)
def dot(types, attrs):
    """Multiplies two matrices and adds a third.

    `input` is (M, K) and `other` is (K, N), or both are stacks, (B, M, K) and (B, K, N). They have one dtype. `acc` has the shape and the
    dtype of the result. Shapes that do not fit are an error.

    Example:
        x = tl.full((16, 16), 0.5, tl.float16)
        y = tl.full((16, 16), 2.0, tl.float16)
        tl.sum(tl.dot(x, y))  # 4096.0

    IR:
        `precision` of fp32 operands is tf32, tf32x3 or ieee. `stacked` is the number of matrices that lie below each other in A, B and
        the result, and are multiplied in pairs; without it, it is 1. A pass sets the others. `instr` is the tensor-core instruction.
        `warps` tells how many warps divide the rows and the columns of the result. `registers` marks a wgmma whose A is in registers.
        `in_flight` is the number of wgmma, this one included, that may be in flight after the op; until a `dot_wait` only other
        products may add to the result. `transposed` names the operands (0: a, 1: b) whose buffers hold their transposes.
        `permuted_rows` permutes the rows of A, see `layouts.wgmma.permuted_rows`. `columns` is the number of columns, the first ones,
        that a wgmma computes; no op uses the others.
    """
    a, b, c = types
    need(len(a.shape) == 2 == len(b.shape), f"dot takes matrices, not {a.shape} and {b.shape}")
    m, n = (x.shape[:: -1 if side in attrs.get("transposed", ()) else 1] for side, x in enumerate((a, b)))
    stacked = attrs.get("stacked", 1)
    need(m[1] * stacked == n[0] and not m[0] % stacked, f"dot of {m} and {n}: inner sizes differ")
    need(c.shape == (m[0], n[1]), f"the accumulator is {c.shape} for {m} times {n}")
    fp8 = all(x.dtype.is_fp8() and x.dtype != t.float8e4b15 for x in (a, b))
    need(fp8 or (a.dtype == b.dtype != t.float8e4b15), f"dot of {a.dtype} and {b.dtype}")
    return (c,)


@op("assembly", operands="x...", attrs="text constraints dtypes pure pack")
def asm(types, attrs):
    """Applies PTX to `pack` elements at a time.

    Each thread runs the text for the elements that it holds. Where several threads hold an element, each of them runs it.

    IR:
        The results are of `dtypes`. Unless `pure` is set, the op keeps its place among other effects.
    """
    return assembly.infer(types, attrs)


@op("distributed", operands="x", attrs="layout emit", levels=DISTRIBUTED, traits="preserves_elements moves_data")
def convert(types, attrs):
    """Gives a tile another layout."""
    return (types[0].with_layout(attrs["layout"]),)


@op("distributed", operands="x", attrs="axis index count", levels=DISTRIBUTED, traits="preserves_elements moves_data")
def part(types, attrs):
    """Takes one of several equal parts of a tile.

    IR:
        The tile is cut into `count` parts along `axis`. Each thread keeps the elements of part `index` that it holds.
    """
    x, axis, index, count = types[0], attrs["axis"], attrs["index"], attrs["count"]
    need(isinstance(x, Tile) and 0 <= axis < len(x.shape), f"axis {axis} of {x}")
    need(0 <= index < count and not x.shape[axis] % count, f"part {index} of {count} along axis {axis} of {x}")
    need(x.layout is not None, f"parts are of tiles with layouts, not of {x}")
    try:
        layout = x.layout.part(axis, count)
    except ValueError as error:
        raise TypeRule(str(error)) from None
    return (Tile(x.dtype, layout.shape, layout),)
