"""Inverses of lower triangular matrices 1 + A, as chunked linear attention with the delta rule needs them: A is strictly lower.

Blocks of 16 are solved row by row; small products merge them. The arrays are (batch, T, heads, side): `side` rows of T make a matrix.
Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", NeurIPS 2024.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T"])
def _solve_16(A, Ai, T, H: tl.constexpr, BT: tl.constexpr):
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    A += (i_b * T * H + i_h) * BT
    Ai += (i_b * T * H + i_h) * 16
    offset = (i_t * 16) % BT
    o_i = tl.arange(0, 16)
    o_t = i_t * 16 + o_i
    b_A = tl.load(A + o_t[:, None] * (H * BT) + (o_i + offset)[None, :], mask=o_t[:, None] < T, other=0.0).to(
        tl.float32
    )
    b_A = -tl.where(o_i[:, None] > o_i[None, :], b_A, 0)
    for i in range(2, min(16, T - i_t * 16)):
        b_a = -tl.load(A + (i_t * 16 + i) * H * BT + o_i + offset)
        b_a = tl.where(o_i < i, b_a, 0.0)
        b_a = b_a + tl.sum(b_a[:, None] * b_A, 0)
        b_A = tl.where((o_i == i)[:, None], b_a, b_A)
    b_A += o_i[:, None] == o_i[None, :]
    tl.store(Ai + o_t[:, None] * (H * 16) + o_i[None, :], b_A.to(Ai.dtype.element_ty), mask=o_t[:, None] < T)


def solve_16(a, inverse, num_warps=1):
    """The inverses of all blocks of 16 on the diagonals, (batch, T, heads, 16)."""
    B, T, H, BT = a.shape
    _solve_16[(triton.cdiv(T, 16), B * H)](a, inverse, T, H=H, BT=BT, num_warps=num_warps)


@triton.jit
def _tile(A, o_t, o_i, H: tl.constexpr, BT: tl.constexpr, T, ROW: tl.constexpr, COLUMN: tl.constexpr):
    rows = o_t + ROW
    return tl.load(A + rows[:, None] * (H * BT) + (o_i + COLUMN)[None, :], mask=rows[:, None] < T, other=0.0).to(
        tl.float32
    )


@triton.jit
def _put(Ai, o_t, o_i, H: tl.constexpr, BT: tl.constexpr, T, ROW: tl.constexpr, COLUMN: tl.constexpr, tile):
    rows = o_t + ROW
    to = Ai + rows[:, None] * (H * BT) + (o_i + COLUMN)[None, :]
    tl.store(to, tile.to(Ai.dtype.element_ty), mask=rows[:, None] < T)


@triton.jit
def _solved(A, o_t, o_i, H: tl.constexpr, BT: tl.constexpr, T, first, AT: tl.constexpr):
    """The inverse of the block of 16 whose diagonal begins at row and column AT, without the ones of its diagonal's addition."""
    b = -tl.where(o_i[:, None] > o_i[None, :], _tile(A, o_t, o_i, H, BT, T, AT, AT), 0)
    for i in range(AT + 2, min(AT + 16, T - first)):
        row = -tl.load(A + (first + i) * H * BT + o_i + AT)
        row = tl.where(o_i < i - AT, row, 0.0)
        row += tl.sum(row[:, None] * b, 0)
        b = tl.where((o_i == i - AT)[:, None], row, b)
    return b + (o_i[:, None] == o_i[None, :])


@triton.jit(do_not_specialize=["T"])
def _merge_32(A, Ai, T, H: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr):
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    A += (i_b * T * H + i_h) * BT
    Ai += (i_b * T * H + i_h) * BT
    o_i = tl.arange(0, 16)
    first = i_t * BT
    o_t = first + o_i
    b_11 = _solved(A, o_t, o_i, H, BT, T, first, 0)
    b_22 = _solved(A, o_t, o_i, H, BT, T, first, 16)
    a_21 = _tile(A, o_t, o_i, H, BT, T, 16, 0)
    b_21 = -tl.dot(tl.dot(b_22, a_21, input_precision=PRECISION), b_11, input_precision=PRECISION)
    _put(Ai, o_t, o_i, H, BT, T, 0, 0, b_11)
    _put(Ai, o_t, o_i, H, BT, T, 16, 16, b_22)
    _put(Ai, o_t, o_i, H, BT, T, 16, 0, b_21)


@triton.jit(do_not_specialize=["T"])
def _merge_64(A, Ai, T, H: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr):
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    A += (i_b * T * H + i_h) * BT
    Ai += (i_b * T * H + i_h) * BT
    o_i = tl.arange(0, 16)
    first = i_t * BT
    o_t = first + o_i
    b_11 = _solved(A, o_t, o_i, H, BT, T, first, 0)
    b_22 = _solved(A, o_t, o_i, H, BT, T, first, 16)
    b_33 = _solved(A, o_t, o_i, H, BT, T, first, 32)
    b_44 = _solved(A, o_t, o_i, H, BT, T, first, 48)
    a_21 = _tile(A, o_t, o_i, H, BT, T, 16, 0)
    a_31 = _tile(A, o_t, o_i, H, BT, T, 32, 0)
    a_32 = _tile(A, o_t, o_i, H, BT, T, 32, 16)
    a_41 = _tile(A, o_t, o_i, H, BT, T, 48, 0)
    a_42 = _tile(A, o_t, o_i, H, BT, T, 48, 16)
    a_43 = _tile(A, o_t, o_i, H, BT, T, 48, 32)
    b_21 = -tl.dot(tl.dot(b_22, a_21, input_precision=PRECISION), b_11, input_precision=PRECISION)
    b_32 = -tl.dot(tl.dot(b_33, a_32, input_precision=PRECISION), b_22, input_precision=PRECISION)
    b_43 = -tl.dot(tl.dot(b_44, a_43, input_precision=PRECISION), b_33, input_precision=PRECISION)
    sum_31 = tl.dot(a_31, b_11, input_precision=PRECISION) + tl.dot(a_32, b_21, input_precision=PRECISION)
    b_31 = -tl.dot(b_33, sum_31, input_precision=PRECISION)
    sum_42 = tl.dot(a_42, b_22, input_precision=PRECISION) + tl.dot(a_43, b_32, input_precision=PRECISION)
    b_42 = -tl.dot(b_44, sum_42, input_precision=PRECISION)
    sum_41 = (
        tl.dot(a_41, b_11, input_precision=PRECISION)
        + tl.dot(a_42, b_21, input_precision=PRECISION)
        + tl.dot(a_43, b_31, input_precision=PRECISION)
    )
    b_41 = -tl.dot(b_44, sum_41, input_precision=PRECISION)
    _put(Ai, o_t, o_i, H, BT, T, 0, 0, b_11)
    _put(Ai, o_t, o_i, H, BT, T, 16, 16, b_22)
    _put(Ai, o_t, o_i, H, BT, T, 32, 32, b_33)
    _put(Ai, o_t, o_i, H, BT, T, 48, 48, b_44)
    _put(Ai, o_t, o_i, H, BT, T, 16, 0, b_21)
    _put(Ai, o_t, o_i, H, BT, T, 32, 0, b_31)
    _put(Ai, o_t, o_i, H, BT, T, 32, 16, b_32)
    _put(Ai, o_t, o_i, H, BT, T, 48, 0, b_41)
    _put(Ai, o_t, o_i, H, BT, T, 48, 16, b_42)
    _put(Ai, o_t, o_i, H, BT, T, 48, 32, b_43)


def merged(a, inverse, num_warps=4, precision="ieee"):
    """The inverses of all blocks of 32 or 64, below the diagonal and on it; `inverse` (batch, T, heads, side) has zeros above it."""
    B, T, H, BT = a.shape
    kernel = {32: _merge_32, 64: _merge_64}[BT]
    kernel[(triton.cdiv(T, BT), B * H)](a, inverse, T, H=H, BT=BT, PRECISION=precision, num_warps=num_warps)
