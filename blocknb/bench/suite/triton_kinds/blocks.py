"""A product with a matrix in block compressed sparse rows: `starts` (rows + 1,) and `columns` name the blocks of `values`."""

import triton
import triton.language as tl


@triton.jit
def _block_sparse(Values, B, C, Starts, Columns, N, K, BLOCK: tl.constexpr, BN: tl.constexpr):
    row, pid_n = tl.program_id(0), tl.program_id(1)
    rn = pid_n * BN + tl.arange(0, BN)
    inner = tl.arange(0, BLOCK)
    first, last = tl.load(Starts + row), tl.load(Starts + row + 1)
    acc = tl.zeros((BLOCK, BN), tl.float32)
    for i in range(first, last):
        column = tl.load(Columns + i)
        a = tl.load(Values + i * BLOCK * BLOCK + inner[:, None] * BLOCK + inner[None, :])
        b = tl.load(B + (column * BLOCK + inner)[:, None] * N + rn[None, :], mask=rn[None, :] < N, other=0.0)
        acc += tl.dot(a, b)
    tl.store(C + (row * BLOCK + inner)[:, None] * N + rn[None, :], acc.to(C.dtype.element_ty), mask=rn[None, :] < N)


def block_sparse(values, b, starts, columns, c, width=64):
    """C (M, N) = A B (K, N), with `values` (blocks, side, side) of A."""
    K, N = b.shape
    side = values.shape[1]
    grid = len(starts) - 1, triton.cdiv(N, width)
    _block_sparse[grid](values, b, c, starts, columns, N, K, BLOCK=side, BN=width)


@triton.jit
def _block_rows(
    Crow, Col, Values, B, C, N, stride_bk, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, TF32: tl.constexpr
):
    """As PyTorch's own kernel for BSR matrices: pointers of tiles, and a pointer to the indices that moves along a row of blocks."""
    row, column = tl.program_id(0), tl.program_id(1)
    offset = tl.load(Crow + row)
    count = tl.load(Crow + row + 1) - offset
    if count == 0:
        return
    rm, rk, rn = tl.arange(0, BM), tl.arange(0, BK), tl.arange(0, BN)
    values = Values + BM * BK * offset + rm[:, None] * BK + rk[None, :]
    dense = B + column * BN + rk[:, None] * stride_bk + rn[None, :]
    indices = Col + offset
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(count):
        at = tl.load(indices)
        block = tl.load(values)
        others = tl.load(dense + BK * stride_bk * at)
        acc += tl.dot(block, others, allow_tf32=TF32)
        values += BM * BK
        indices += 1
    out = C + (row * BM + rm)[:, None] * N + column * BN + rn[None, :]
    tl.store(out, acc.to(C.dtype.element_ty))


def block_rows(values, b, starts, columns, c, width=64, num_warps=4, num_stages=3):
    """As `block_sparse`; N is a multiple of `width`, and every row has a block."""
    N = b.shape[1]
    _, side, other = values.shape
    _block_rows[(len(starts) - 1, N // width)](
        starts,
        columns,
        values,
        b,
        c,
        N,
        N,
        BM=side,
        BK=other,
        BN=width,
        TF32=False,
        num_warps=num_warps,
        num_stages=num_stages,
    )
