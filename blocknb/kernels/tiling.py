"""Helpers of the matrix-product kernels: the program swizzle, and the epilogue that they apply to a tile before its store."""

from __future__ import annotations

import blocknb
import blocknb.language as bl
from blocknb.kernels.shapes import TileShape

#: Activations by name; gelu is the approximation by tanh (Hendrycks, Gimpel 2016), leaky_relu has the slope 0.01.
ACTIVATIONS = ("", "relu", "leaky_relu", "silu", "gelu")
#: The eviction policy of an operand that a launch reads once. The L2 cache then replaces its lines first. Lines that other kernels have
#: written stay, and no load waits until one of them is in memory. The size of the L2 cache does not matter. Launches took turns over fp16
#: weights of 8 to 80 MB on an H200 with 60 MB of L2. 1 and 16 rows took 0.95 to 1.04 times as long with it, and at most as long from 48 MB
#: on.
STREAMED = "evict_first"


def programs(m: int, n: int, t: TileShape) -> int:
    """The number of programs for an (m, n) result: one per tile, in pairs below each other if they share a cluster."""
    return t.cluster * blocknb.cdiv(m, t.cluster * t.m) * blocknb.cdiv(n, t.n)


@blocknb.kernel
def place(program, m, n, BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, GROUP: bl.constexpr):
    """The row and column of a program's tile, counted in tiles.

    The programs of GROUP rows of tiles go column by column, so that programs that run together share rows and columns in the L2 cache.
    """
    width = GROUP * bl.cdiv(n, BLOCK_N)
    first = program // width * GROUP
    rows = min(bl.cdiv(m, BLOCK_M) - first, GROUP)
    return first + (program % width) % rows, (program % width) // rows


@blocknb.kernel
def place_of_pair(
    program, m, n, BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, GROUP: bl.constexpr, CLUSTER: bl.constexpr
):
    """The row and column of a program's tile as by `place`; with a CLUSTER of 2, programs 2i and 2i + 1 have tiles below each other."""
    if CLUSTER == 1:
        tile_m, tile_n = place(program, m, n, BLOCK_M, BLOCK_N, GROUP)
    else:
        pair, tile_n = place(program // CLUSTER, m, n, CLUSTER * BLOCK_M, BLOCK_N, GROUP // CLUSTER)
        tile_m = pair * CLUSTER + program % CLUSTER
    return tile_m, tile_n


@blocknb.kernel
def operand_descriptor(x, rows, columns, step, ROWS: bl.constexpr, COLUMNS: bl.constexpr, TRANS: bl.constexpr):
    """The descriptor of the blocks of a matrix of `rows` by `columns`. With TRANS, memory holds the transposed matrix."""
    if TRANS:
        blocks = bl.make_tensor_descriptor(x, [columns, rows], [step, 1], [COLUMNS, ROWS])
    else:
        blocks = bl.make_tensor_descriptor(x, [rows, columns], [step, 1], [ROWS, COLUMNS])
    return blocks


@blocknb.kernel
def finish(
    total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW: bl.constexpr, ACTIVATION: bl.constexpr,
    TRANSPOSED: bl.constexpr = False,
):  # fmt: skip
    """activation(total * a_scale * b_scale + bias). A scale is per matrix, or with BY_ROW per row of a and column of b.

    TRANSPOSED: total is the transposed tile.
    """
    if a_scale is not None:
        if BY_ROW:
            left = bl.load(a_scale + rows, mask=rows < m, other=0.0)
            right = bl.load(b_scale + columns, mask=columns < n, other=0.0)
            if TRANSPOSED:
                total = total * left[None, :] * right[:, None]
            else:
                total = total * left[:, None] * right[None, :]
        else:
            total = total * (bl.load(a_scale) * bl.load(b_scale))
    if bias is not None:
        added = bl.load(bias + columns, mask=columns < n, other=0.0).to(total.dtype)
        total += added[:, None] if TRANSPOSED else added[None, :]
    if ACTIVATION == "relu":
        total = bl.where(total < 0, 0.0, total)  # NaN stays
    elif ACTIVATION == "leaky_relu":
        total = bl.where(total >= 0, total, 0.01 * total)
    elif ACTIVATION == "silu":
        total = total * bl.sigmoid(total)
    elif ACTIVATION == "gelu":
        total = total * bl.sigmoid(1.5957691216057308 * total * (1.0 + 0.044715 * total * total))
    return total
