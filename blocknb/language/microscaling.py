"""Products of microscaled matrices, written in the language itself: decoding, scaling, and an ordinary `dot`.

The formats are those of the OCP Microscaling Formats specification 1.0: groups of elements along K share a scale, which is a power of
two. A scaled element is exact in bf16 if its exponent is in range, so the product uses bf16 tensor cores. fp16 has more mantissa bits
than bf16. Products with an fp16 matrix therefore use tf32, which holds both.
"""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.declarations import builtin
from blocknb.language.library import inline
from blocknb.language.moves import join
from blocknb.language.types import bfloat16, float32, uint8, uint16

# ruff: noqa: RUF005 (a kernel has no `*` inside a tuple)
# mypy: disable-error-code="operator,assignment"


@builtin
def dot_scaled(
    lhs,
    lhs_scale,
    lhs_format,
    rhs,
    rhs_scale,
    rhs_format,
    acc=None,
    fast_math=False,
    lhs_k_pack=True,
    rhs_k_pack=True,
    out_dtype=float32,
):
    """Multiplies two matrices in microscaling formats (+ acc), in fp32. lhs is [M, K] and rhs [K, N], or stacks of these.

    A format is "e2m1", "e4m3", "e5m2" (the fp8 dtypes, or uint8), "bf16" or "fp16". "e2m1" packs two elements per byte in uint8, the first
    in the lower half. They are neighbours along K, or along M or N if `lhs_k_pack` or `rhs_k_pack` is False. A scale is None, or a tile of
    uint8 codes, one for 32 elements along K. Its shape is [M, K // 32] for the left operand, and [N, K // 32] for the right one. A code
    means 2^(code - 127), and 255 means NaN. A scale of fp8e4nv applies to 16 elements.

    Elements are multiplied by their scale in bf16, or in fp32 if one operand is fp16. This is exact while the result is in range. An
    ordinary product of the scaled matrices follows.

    Example:
        ones = tl.full((16, 32), 0x38, tl.uint8)  # 1.0 in e4m3
        twos = tl.full((16, 1), 128, tl.uint8)  # 2^(128 - 127)
        product = tl.dot_scaled(ones, twos, "e4m3", tl.trans(ones), None, "e4m3")
        tl.max(tl.max(product, 0), 0)  # 64.0
    """


@inline
def _fp4(code):
    """The numbers of e2m1 codes (uint16, below 16) in bf16: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""
    size = code & 7
    # The bits stand where those of bf16 stand; 0 and 0.5, which have no leading one, are multiples of 0.5's pattern.
    bits = tl.where(size < 2, size * 0x3F00, (size << 6) + 0x3F00)
    return tl.cast(bits | ((code & 8) << 12), bfloat16, bitcast=True)


@inline
def _unpacked(x, axis):
    """Two elements a byte, the first in the lower half, side by side along an axis."""
    rank: constexpr = len(x.shape)
    wide = tl.cast(tl.cast(x, uint8, bitcast=True), uint16)
    both = join(_fp4(wide & 15), _fp4(wide >> 4))
    if axis == rank - 1:
        return tl.reshape(both, x.shape[: rank - 1] + (2 * x.shape[rank - 1],))
    turned = tl.permute(both, tuple(range(rank - 1)) + (rank, rank - 1))
    return tl.reshape(turned, x.shape[: rank - 2] + (2 * x.shape[rank - 2], x.shape[rank - 1]))


@inline
def _power(scale):
    """The powers of two of e8m0 codes (2^(code - 127), 255 is NaN) in bf16, whose exponent they are."""
    code = tl.cast(scale, uint16)
    bits = tl.where(code == 0, 0x40, tl.where(code == 255, 0x7FC0, code << 7))
    return tl.cast(bits, bfloat16, bitcast=True)


@inline
def _spread(scale, k):
    """Each scale repeated for its group along the last axis."""
    rank: constexpr = len(scale.shape)
    groups: constexpr = scale.shape[rank - 1]
    repeated = tl.broadcast_to(tl.expand_dims(scale, rank), scale.shape + (k // groups,))
    return tl.reshape(repeated, scale.shape[: rank - 1] + (k,))


@inline
def _decoded(x, scale, fp4, k_axis, packed_axis, dtype):
    """An operand as numbers in `dtype`, times its scales, whose groups lie along their own last axis."""
    rank: constexpr = len(x.shape)
    numbers = tl.cast(_unpacked(x, packed_axis) if fp4 else x, dtype)
    if scale is None:
        return numbers
    factors = tl.cast(_power(scale) if scale.dtype == uint8 else scale, dtype)
    spread = _spread(factors, numbers.shape[k_axis])
    return numbers * (spread if k_axis == rank - 1 else tl.trans(spread))


@inline
def _scaled_product(lhs, lhs_scale, lhs_fp4, rhs, rhs_scale, rhs_fp4, acc, lhs_packed, rhs_packed, half):
    """`dot_scaled`, when the front end has checked its arguments; fp8 comes as such. `half`: one operand is fp16."""
    rank: constexpr = len(lhs.shape)
    dtype: constexpr = float32 if half else bfloat16
    a = _decoded(lhs, lhs_scale, lhs_fp4, rank - 1, lhs_packed, dtype)
    b = _decoded(rhs, rhs_scale, rhs_fp4, rank - 2, rhs_packed, dtype)
    return tl.dot(a, b, acc, input_precision="tf32", out_dtype=float32)
