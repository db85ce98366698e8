"""Microscaled products: all pairs of formats, all packings, and invalid arguments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import seeds
from frontend_helpers import failure, kernel, launch
from kernels import scaled

import blocknb
import blocknb.language as tl
from blocknb.errors import TypeMismatch

PAIRS = list(itertools.product(scaled.FORMATS, scaled.FORMATS))


def packings(left: str, right: str) -> list[tuple[bool, bool]]:
    ways = itertools.product(
        (True, False) if left == "e2m1" else (True,), (True, False) if right == "e2m1" else (True,)
    )
    return list(ways)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_every_pair_of_formats_and_packing_matches_numpy(left: str, right: str) -> None:
    """All by the interpreter, each pair once on the CPU."""
    rng, plain = seeds.rng(), kernel(scaled.scaled_product.source.function)
    for left_k, right_k in packings(left, right):
        for has in itertools.product((True, False), repeat=2):
            made = scaled.arguments(rng, left, right, left_k=left_k, right_k=right_k, scaled=has)
            launch(plain, 1, **made)
            np.testing.assert_allclose(made["c"], scaled.reference(made)["c"], rtol=1e-6, atol=1e-4)
    made["c"][:] = np.nan
    scaled.scaled_product[(1,)](**made)
    np.testing.assert_allclose(made["c"], scaled.reference(made)["c"], rtol=1e-5, atol=1e-3)


def test_batched_operands_and_fp8_dtypes_match_numpy() -> None:
    @blocknb.kernel
    def stacked(a, b, s, c):
        i, j = tl.arange(0, 2)[:, None, None], tl.arange(0, 16)[None, :, None]
        k, n = tl.arange(0, 32), tl.arange(0, 16)[None, None, :]
        x = tl.load(a + i * 512 + j * 32 + k[None, None, :]).to(tl.float8e4nv, bitcast=True)
        y = tl.load(b + i * 512 + k[None, :, None] * 16 + n).to(tl.float8e5, bitcast=True)
        scale = tl.load(s + i * 16 + j)
        tl.store(c + i * 256 + j * 16 + n, tl.dot_scaled(x, scale, "e4m3", y, None, "e5m2"))

    rng = seeds.rng()
    a = scaled.operand(rng, "e4m3", (2, 16, 32), 2)
    b = scaled.operand(rng, "e5m2", (2, 32, 16), 1)
    s, c = rng.integers(120, 130, (2, 16, 1), dtype=np.uint8), np.zeros((2, 16, 16), np.float32)
    stacked[(1,)](a, b, s, c)
    left = scaled.decoded(a, "e4m3", 2) * np.exp2(s.astype(float) - 127)
    np.testing.assert_allclose(c, left @ scaled.decoded(b, "e5m2", 1), rtol=1e-5, atol=1e-3)


def test_scales_at_the_ends_of_their_range_match_numpy() -> None:
    """2^-127 is no normal number in bf16, 255 is NaN, also with fast_math."""

    @blocknb.kernel
    def ends(codes, out, FAST: tl.constexpr):
        ones = tl.full((16, 32), 0x3F80, tl.uint16).to(tl.bfloat16, bitcast=True)
        left = tl.where(tl.arange(0, 32)[None, :] == 0, ones, 0.0)
        scale = tl.load(codes + tl.arange(0, 16))[:, None]
        found = tl.dot_scaled(left, scale, "bf16", tl.trans(ones), None, "bf16", fast_math=FAST)
        tl.store(out + tl.arange(0, 16), tl.max(found, 1))

    codes = np.array([0, 1, 2, 100, 126, 127, 128, 129, 200, 253, 254, 255, 130, 10, 20, 30], np.uint8)
    for fast in (False, True):
        out = np.zeros(16, np.float32)
        ends[(1,)](codes, out, FAST=fast)
        expected = np.where(codes == 255, np.nan, np.exp2(codes.astype(float) - 127))
        np.testing.assert_array_equal(out, expected.astype(np.float32))


@kernel
def unknown_format(x, s):
    a = tl.load(x + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
    tl.dot_scaled(a, None, "e3m4", a, None, "e4m3")


@kernel
def wrong_dtype(x, s):
    a = tl.load(x + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
    tl.dot_scaled(a, None, "bf16", a, None, "e4m3")


@kernel
def scale_transposed(x, s):
    a = tl.load(x + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
    scale = tl.load(s + tl.arange(0, 32))
    tl.dot_scaled(a, scale[:, None], "e4m3", a, scale[None, :], "e4m3")


@kernel
def different_k(x, s):
    a = tl.load(x + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
    tl.dot_scaled(a, None, "e2m1", a, None, "e4m3")


@kernel
def packed_fp8(x, s):
    a = tl.load(x + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
    tl.dot_scaled(a, None, "e4m3", a, None, "e4m3", rhs_k_pack=False)


@kernel
def half_result(x, s):
    a = tl.load(x + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
    tl.dot_scaled(a, None, "e4m3", a, None, "e4m3", out_dtype=tl.float16)


@pytest.mark.parametrize(
    ("k", "says", "hint"),
    [
        (unknown_format, "unknown format 'e3m4'", "e2m1, e4m3"),
        (wrong_dtype, "`lhs` is uint8, but its format is 'bf16'", "tl.bfloat16"),
        (scale_transposed, "`rhs_scale` has shape (1, 32), not (32, 1)", "do not transpose"),
        (different_k, "`lhs` has 64 elements along K, but `rhs` has 32", "share a byte"),
        (packed_fp8, "only e2m1 has two elements in one byte", "leave it out"),
        (half_result, "accumulates in fp32", "cast the result"),
    ],
)
def test_invalid_arguments_are_named(k, says, hint) -> None:
    error = failure(k, TypeMismatch, x="*u8", s="*u8")
    assert says in str(error)
    assert hint in str(error.hint)
