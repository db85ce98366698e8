"""Rows of the op table: constants and indices, shapes, moves along an axis, reductions, matrix products, inline assembly, layouts."""

from __future__ import annotations

from blocknb.language import assembly, rules
from blocknb.language.op_spec import Help, OpSpec, traits

DISTRIBUTED = ("distributed", "memory")

ROWS = (
    OpSpec(
        "const",
        "source",
        rules.const,
        Help(
            "Makes a scalar, or a tile of equal elements, from a number that is known at compile time.",
            example="tl.full((2,), 3, tl.int32)  # [3, 3]",
        ),
        attrs=("value", "type"),
        traits=traits("uniform rematerializable host"),
    ),
    OpSpec(
        "program_id",
        "source",
        rules.scalar_i32,
        Help(
            "Returns the index of the program along an axis of the grid.",
            "`axis` is 0, 1 or 2, known at compile time. The result is an int32 scalar.",
            "pid = tl.program_id(0)\npid  # 0",
        ),
        attrs=("axis",),
        traits=traits("program_index"),
    ),
    OpSpec(
        "num_programs",
        "source",
        rules.scalar_i32,
        Help(
            "Returns the number of programs along an axis of the grid.",
            "`axis` is 0, 1 or 2, known at compile time. The result is an int32 scalar.",
            "tl.num_programs(0)  # 1",
        ),
        attrs=("axis",),
        traits=traits("grid_size"),
    ),
    OpSpec(
        "arange",
        "source",
        rules.arange,
        Help(
            "Returns the integers from `start` to `end`, without `end`.",
            "The result is int32, of shape (end - start,). That length is a power of two known at compile time; any other is an error.",
            "tl.arange(0, 8)  # [0, 1, 2, 3, 4, 5, 6, 7]\ntl.arange(4, 8) * 2  # [8, 10, 12, 14]",
        ),
        attrs=("start", "end"),
        traits=traits("rematerializable"),
    ),
    OpSpec(
        "splat",
        "shape",
        rules.splat,
        Help("Repeats a scalar to a tile.", example="tl.arange(0, 4) + tl.load(i_ptr + 3)  # [3, 4, 5, 6]"),
        operands="x",
        attrs=("shape",),
        traits=traits("preserves_elements replicates uniform rematerializable"),
    ),
    OpSpec(
        "broadcast",
        "shape",
        rules.broadcast,
        Help(
            "Repeats the axes of size one until the tile has the given shape.",
            example="tl.broadcast_to(tl.arange(0, 2), (2, 2))  # [[0, 1], [0, 1]]",
        ),
        operands="x",
        attrs=("shape",),
        traits=traits("preserves_elements moves_data view replicates"),
    ),
    OpSpec(
        "expand_dims",
        "shape",
        rules.expand_dims,
        Help(
            "Inserts an axis of size one.",
            "`x[:, None]` is the same.",
            "tl.expand_dims(tl.arange(0, 2), 1)  # [[0], [1]]",
        ),
        operands="x",
        attrs=("axis",),
        traits=traits("preserves_elements moves_data view reshapes"),
    ),
    OpSpec(
        "reshape",
        "shape",
        rules.reshape,
        Help(
            "Gives the tile another shape; the elements keep their row-major order.",
            "The number of elements stays, and the sizes are powers of two. The shape is one tuple or several arguments.",
            "tl.reshape(tl.arange(0, 4), (2, 2))  # [[0, 1], [2, 3]]",
        ),
        operands="x",
        attrs=("shape",),
        traits=traits("preserves_elements moves_data view reshapes"),
    ),
    OpSpec(
        "trans",
        "shape",
        rules.trans,
        Help(
            "Permutes the axes of a tile.",
            "`dims` names every axis of the input once, as one tuple or several arguments. `x.T` is the same for two axes.",
            "x = tl.reshape(tl.arange(0, 4), (2, 2))\ntl.trans(x)  # [[0, 2], [1, 3]]",
            "Axis i of the result is axis perm[i] of x.",
        ),
        operands="x",
        attrs=("perm",),
        traits=traits("permutes preserves_elements moves_data view reshapes"),
    ),
    OpSpec(
        "flip",
        "move",
        rules.flip,
        Help(
            "Reverses a tile along an axis.",
            "The result has the shape and the dtype of `x`.",
            "tl.flip(tl.arange(0, 4))  # [3, 2, 1, 0]",
            "Element i along the axis is element i ^ mask of x. A mask of size - 1 reverses the axis, a single bit swaps neighbors.",
        ),
        operands="x",
        attrs=("axis", "mask", "layout"),
        traits=traits("permutes moves_data reads_buffers exchanges"),
    ),
    OpSpec(
        "gather",
        "move",
        rules.gather,
        Help(
            "Takes elements along an axis by their indices.",
            "`index` is an integer tile of the rank of `src` and gives the shape of the result.",
            "x = tl.arange(0, 4) * 10\ntl.gather(x, 3 - tl.arange(0, 4), 0)  # [30, 20, 10, 0]",
            "Element i along the axis is element index[i] of x along it. The op takes an index modulo the size of the axis.",
        ),
        operands="x index",
        attrs=("axis",),
        traits=traits("permutes moves_data reads_buffers exchanges"),
    ),
    OpSpec(
        "reduce",
        "reduce",
        rules.reduce,
        Help(
            "Combines the elements along an axis.",
            example="tl.sum(tl.arange(0, 4), axis=0)  # 6",
            ir="The block combines 2n scalars to n. With `keep`, the result holds one partial result for each warp along the axis.",
        ),
        operands="x...",
        attrs=("axis", "keep", "layout"),
        blocks=1,
    ),
    OpSpec(
        "scan",
        "reduce",
        rules.scan,
        Help(
            "Combines each element with all elements before it along an axis.",
            example="tl.cumsum(tl.arange(0, 4) + 1, 0)  # [1, 3, 6, 10]",
            ir="The block combines 2n scalars to n. With `reverse`, each element is combined with all elements after it.",
        ),
        operands="x...",
        attrs=("axis", "reverse"),
        blocks=1,
    ),
    OpSpec(
        "dot",
        "dot",
        rules.dot,
        Help(
            "Multiplies two matrices and adds a third.",
            "(M, K) times (K, N), or a stack of them, (B, M, K) times (B, K, N), of one dtype. `acc` has "
            "the shape and dtype of the result. Shapes that do not fit are an error.",
            "x = tl.full((16, 16), 0.5, tl.float16)\ny = tl.full((16, 16), 2.0, tl.float16)\n"
            "tl.sum(tl.dot(x, y))  # 4096.0",
            "`precision` of fp32 operands is tf32, tf32x3 or ieee. A pass sets the others. `instr` is the tensor-core instruction. `warps` "
            "tells how many warps divide the rows and the columns of the result. `registers` marks a wgmma whose A is in registers. "
            "`in_flight` is the number of wgmma, this one included, that may be in flight after the op; until a `dot_wait` only other "
            "products may add to the result. `transposed` names the operands (0: a, 1: b) whose buffers hold their transposes. "
            "`permuted_rows` permutes the rows of A, see `layouts.wgmma.permuted_rows`.",
        ),
        operands="a b c",
        attrs=("precision", "instr", "layout", "warps", "registers", "in_flight", "transposed", "permuted_rows"),
        traits=traits("reads_buffers exchanges"),
    ),
    OpSpec(
        "asm",
        "assembly",
        assembly.infer,
        Help(
            "Applies PTX to `pack` elements at a time.",
            "Each thread runs the text for the elements that it holds. Where several threads hold an element, each of them runs it.",
            ir="The results are of `dtypes`. Unless `pure` is set, the op keeps its place among other effects.",
        ),
        operands="x...",
        attrs=("text", "constraints", "dtypes", "pure", "pack"),
    ),
    OpSpec(
        "convert",
        "distributed",
        rules.convert,
        Help("Gives a tile another layout."),
        operands="x",
        attrs=("layout",),
        levels=DISTRIBUTED,
        traits=traits("preserves_elements moves_data"),
    ),
    OpSpec(
        "part",
        "distributed",
        rules.part,
        Help(
            "Takes one of several equal parts of a tile.",
            ir="The tile is cut into `count` parts along `axis`. Each thread keeps the elements of part `index` that it holds.",
        ),
        operands="x",
        attrs=("axis", "index", "count"),
        levels=DISTRIBUTED,
        traits=traits("preserves_elements moves_data"),
    ),
)
