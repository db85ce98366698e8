"""Matrix multiplication in blocks that tensor descriptors describe, which a GPU with a tensor memory accelerator (TMA) copies by itself.

There are three strategies. `matmul_descriptor_kernel` makes descriptors of plain arrays in the kernel: one program per tile, and the
compiler makes the grid persistent and specializes the warps. The host can also pass the descriptors. A third kernel takes those, runs as
many programs as there are multiprocessors, and loops over the tiles itself, as kernels for Triton do. Batches add an axis. A transposed
operand is described as it is stored, and the kernel transposes its blocks.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb import TensorDescriptor
from blocknb.kernels.operands import Blocks, MatmulProblem
from blocknb.kernels.shapes import TileShape
from blocknb.kernels.strides import device
from blocknb.kernels.tiling import STREAMED, finish, operand_descriptor, place, place_of_pair, programs


@blocknb.kernel
def matmul_descriptor_kernel(
    a, b, c, m, n, k, a_step, b_step, c_step,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32", SWAPPED: bl.constexpr = False, c_column=None,
    CLUSTER: bl.constexpr = 1, KEEP_B: bl.constexpr = "",
):  # fmt: skip
    """Computes one tile per program. SWAPPED computes the transposed result, b.T @ a.T. With `c_column`, the distance of neighbours in a
    row of c, the result is stored by pointers, for arrays that no descriptor describes. KEEP_B is the eviction policy of b.

    Hopper's wgmma takes the first operand from registers. So SWAPPED lets a 32-bit operand b be stored along either axis.
    """
    a_blocks = operand_descriptor(a, m, k, a_step, BLOCK_M, BLOCK_K, TRANS_A)
    b_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, BLOCK_N, TRANS_B)
    tile_m, tile_n = place_of_pair(bl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP, CLUSTER)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    total = bl.zeros((BLOCK_N, BLOCK_M) if SWAPPED else (BLOCK_M, BLOCK_N), SUM)
    for inner in range(0, k, BLOCK_K):
        x = a_blocks.load([inner, row]).T if TRANS_A else a_blocks.load([row, inner])
        if TRANS_B:
            y = b_blocks.load([column, inner], eviction_policy=KEEP_B).T
        else:
            y = b_blocks.load([inner, column], eviction_policy=KEEP_B)
        if SWAPPED:
            total = bl.dot(y.T, x.T, total, input_precision=PRECISION, out_dtype=SUM)
        else:
            total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
    rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION, SWAPPED)
    total = total.to(c.dtype.element_ty)
    total = total.T if SWAPPED else total
    if c_column is None:
        c_blocks = bl.make_tensor_descriptor(c, [m, n], [c_step, 1], [BLOCK_M, BLOCK_N])
        c_blocks.store([row, column], total)
    else:
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        bl.store(c + rows[:, None].to(bl.int64) * c_step + columns[None, :].to(bl.int64) * c_column, total, mask=inside)


@blocknb.kernel
def matmul_batch_kernel(
    a, b, c, batch, m, n, k, a_batch, a_step, b_batch, b_step, c_batch, c_step,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32",
):  # fmt: skip
    """Computes a batch: the second axis of the grid counts the products."""
    if TRANS_A:
        a_blocks = bl.make_tensor_descriptor(a, [batch, k, m], [a_batch, a_step, 1], [1, BLOCK_K, BLOCK_M])
    else:
        a_blocks = bl.make_tensor_descriptor(a, [batch, m, k], [a_batch, a_step, 1], [1, BLOCK_M, BLOCK_K])
    if TRANS_B:
        b_blocks = bl.make_tensor_descriptor(b, [batch, n, k], [b_batch, b_step, 1], [1, BLOCK_N, BLOCK_K])
    else:
        b_blocks = bl.make_tensor_descriptor(b, [batch, k, n], [b_batch, b_step, 1], [1, BLOCK_K, BLOCK_N])
    tile_m, tile_n = place(bl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    row, column, z = tile_m * BLOCK_M, tile_n * BLOCK_N, bl.program_id(1)
    total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
    for inner in range(0, k, BLOCK_K):
        if TRANS_A:
            x = a_blocks.load([z, inner, row]).reshape(BLOCK_K, BLOCK_M).T
        else:
            x = a_blocks.load([z, row, inner]).reshape(BLOCK_M, BLOCK_K)
        if TRANS_B:
            y = b_blocks.load([z, column, inner]).reshape(BLOCK_N, BLOCK_K).T
        else:
            y = b_blocks.load([z, inner, column]).reshape(BLOCK_K, BLOCK_N)
        total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
    rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    c_tile = c + z.to(bl.int64) * c_batch + rows[:, None].to(bl.int64) * c_step + columns[None, :]
    bl.store(c_tile, total.to(c.dtype.element_ty), mask=inside)  # a two-dimensional store can be split into subtiles


@blocknb.kernel
def matmul_host_descriptor_kernel(
    a, b, c, m, n, k,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32",
):  # fmt: skip
    """Computes one tile per program. a, b and c are descriptors with blocks of these sizes (of the stored array if it is transposed)."""
    tile_m, tile_n = place(bl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
    for inner in range(0, k, BLOCK_K):
        x = a.load([inner, row]).T if TRANS_A else a.load([row, inner])
        y = b.load([column, inner]).T if TRANS_B else b.load([inner, column])
        total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
    rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    c.store([row, column], total.to(c.dtype))


@blocknb.kernel
def matmul_persistent_kernel(
    a, b, c, m, n, k,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    PROGRAMS: bl.constexpr, EPILOGUE_SUBTILES: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32",
):  # fmt: skip
    """Loops over tiles: PROGRAMS programs share them. EPILOGUE_SUBTILES stores a tile in two parts, which takes less shared memory."""
    steps, stored = bl.cdiv(k, BLOCK_K), bl.program_id(0) - PROGRAMS
    tiles = bl.cdiv(m, BLOCK_M) * bl.cdiv(n, BLOCK_N)
    for tile in bl.range(bl.program_id(0), tiles, PROGRAMS, flatten=True):
        tile_m, tile_n = place(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
        for step in range(steps):
            inner = step * BLOCK_K
            x = a.load([inner, row]).T if TRANS_A else a.load([row, inner])
            y = b.load([column, inner]).T if TRANS_B else b.load([inner, column])
            total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
        stored += PROGRAMS  # the index of the stores has its own variable, so that the next loads need not wait for these stores
        tile_m, tile_n = place(stored, m, n, BLOCK_M, BLOCK_N, GROUP)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
        total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
        if EPILOGUE_SUBTILES:
            halves = bl.permute(bl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = bl.split(halves)
            c.store([row, column], left.to(c.dtype))
            c.store([row, column + BLOCK_N // 2], right.to(c.dtype))
        else:
            c.store([row, column], total.to(c.dtype))


#: Where the descriptors are made: in the kernel, on the host, or on the host for a persistent kernel.
STRATEGIES = ("kernel", "host", "persistent")


def arguments(p: MatmulProblem) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and named arguments of `matmul_descriptor_kernel` or `matmul_batch_kernel`, without tile and options.

    The named arguments are also those of the other kernels, but for `c_column`, which is there if no descriptor describes the result.
    """
    assert not isinstance(p.operand_blocks, str)
    left, right = p.operand_blocks
    named = {
        "TRANS_A": left.transposed,
        "TRANS_B": right.transposed,
        "SUM": getattr(bl, p.sum),
        "PRECISION": p.precision,
    }
    if p.batched:
        assert not isinstance(p.blocks, str)
        to = p.blocks[2]
        steps = (left.batch, left.step, right.batch, right.step, to.batch, to.step)
        return (p.a, p.b, p.out, p.batch, p.m, p.n, p.k, *steps), {**p.epilogue, **named}
    if isinstance(p.blocks, str):
        named["c_column"] = p.out_strides[2]
    return (p.a, p.b, p.out, p.m, p.n, p.k, left.step, right.step, p.out_strides[1]), {**p.epilogue, **named}


def matmul_descriptors(
    a: Any, b: Any, out: Any = None, *, tile: tuple[int, ...] | TileShape | None = None, group: int = 8,
    num_warps: int | None = None, num_stages: int | None = None, strategy: str = "kernel", epilogue_subtiles: bool = False, **rest: Any,
) -> Any:  # fmt: skip
    """Computes out = a @ b through tensor descriptors; arguments as for `matmul`. `strategy` is one of STRATEGIES. Returns `out`.

    Raises ValueError for arrays that cannot be described (see `operands.described`), and for batches unless the kernel makes the
    descriptors.
    """
    p = MatmulProblem.of(a, b, out, **rest)
    if p.empty:
        return p.out
    if isinstance(p.blocks, str):
        raise ValueError(f"{p.blocks}: no tensor descriptor describes it; matmul and matmul_pointers take any strides")
    strategies = STRATEGIES[:1] if p.batched else STRATEGIES
    if strategy not in strategies:
        raise ValueError(f"no strategy {strategy!r}{' for batches' * p.batched}; there are {', '.join(strategies)}")
    return by_descriptors(p, p.tile(tile, num_warps, num_stages), group, strategy, epilogue_subtiles)


def by_descriptors(
    p: MatmulProblem,
    t: TileShape,
    group: int,
    strategy: str = "kernel",
    epilogue_subtiles: bool = False,
    swapped: bool = False,
) -> Any:
    """Computes a non-empty product of described operands with these tiles; returns its result. `swapped` computes the transposed result.

    Batches and the other strategies than "kernel" need a result that is described, too.
    """
    tiles = blocknb.cdiv(p.m, t.m) * blocknb.cdiv(p.n, t.n)
    given, named = arguments(p)
    named |= {"BLOCK_M": t.m, "BLOCK_N": t.n, "BLOCK_K": t.k, "GROUP": group, **t.options}
    if p.batched:
        matmul_batch_kernel[tiles, p.batch](*given, **named)
        return p.out
    if strategy == "kernel":
        keep = STREAMED if t.m >= p.m else ""
        matmul_descriptor_kernel[programs(p.m, p.n, t),](
            *given, **named, SWAPPED=swapped, CLUSTER=t.cluster, KEEP_B=keep
        )
        return p.out
    assert not isinstance(p.blocks, str)
    left, right, to = p.blocks
    epilogue_subtiles = epilogue_subtiles and strategy == "persistent"
    x = _descriptor(p.a, (p.m, p.k), (t.m, t.k), left)
    y = _descriptor(p.b, (p.k, p.n), (t.k, t.n), right)
    z = _descriptor(p.out, (p.m, p.n), (t.m, t.n // (1 + epilogue_subtiles)), to)
    if strategy == "host":
        matmul_host_descriptor_kernel[tiles,](x, y, z, p.m, p.n, p.k, **named)
    else:
        count = min(tiles, device(p.a).processors)
        matmul_persistent_kernel[count,](
            x, y, z, p.m, p.n, p.k, PROGRAMS=count, EPILOGUE_SUBTILES=epilogue_subtiles, **named
        )
    return p.out


def _descriptor(array: Any, shape: tuple[int, int], block: tuple[int, int], how: Blocks) -> Any:
    """Makes the host's descriptor of a matrix, or of the transposed matrix if memory holds that one."""
    order = -1 if how.transposed else 1
    return TensorDescriptor(array, list(shape[::order]), [how.step, 1], list(block[::order]))
