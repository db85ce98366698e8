"""Microscaled products: every format, both packings, scales of both kinds, none, and NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, normal, poison

FORMATS = {"e2m1": 4, "e4m3": 8, "e5m2": 8, "bf16": 16, "fp16": 16}  # bits
NUMBERS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
}


@blocknb.kernel
def scaled_product(
    a, a_scale, b, b_scale, c, M: bl.constexpr, N: bl.constexpr, K: bl.constexpr, LEFT: bl.constexpr, RIGHT: bl.constexpr,
    A_ROWS: bl.constexpr, A_COLUMNS: bl.constexpr, B_ROWS: bl.constexpr, B_COLUMNS: bl.constexpr, GROUP: bl.constexpr,
    LEFT_K: bl.constexpr, RIGHT_K: bl.constexpr,
):  # fmt: skip
    x = bl.load(a + bl.arange(0, A_ROWS)[:, None] * A_COLUMNS + bl.arange(0, A_COLUMNS)[None, :])
    y = bl.load(b + bl.arange(0, B_ROWS)[:, None] * B_COLUMNS + bl.arange(0, B_COLUMNS)[None, :])
    groups = bl.arange(0, K // GROUP)[None, :]
    x_scale = None
    if a_scale is not None:
        x_scale = bl.load(a_scale + bl.arange(0, M)[:, None] * (K // GROUP) + groups)
        if GROUP == 16:
            x_scale = x_scale.to(bl.float8e4nv, bitcast=True)
    y_scale = None
    if b_scale is not None:
        y_scale = bl.load(b_scale + bl.arange(0, N)[:, None] * (K // GROUP) + groups)
        if GROUP == 16:
            y_scale = y_scale.to(bl.float8e4nv, bitcast=True)
    place = bl.arange(0, M)[:, None] * N + bl.arange(0, N)[None, :]
    start = bl.full((M, N), 1.0, bl.float32)
    product = bl.dot_scaled(
        x, x_scale, LEFT, y, y_scale, RIGHT, start, lhs_k_pack=LEFT_K, rhs_k_pack=RIGHT_K, out_dtype=bl.float32
    )
    bl.store(c + place, product)


def operand(rng: np.random.Generator, kind: str, shape: tuple[int, int], axis: int) -> np.ndarray:
    """Random elements as bits; e2m1 is packed along an axis."""
    if kind == "e2m1":
        packed = list(shape)
        packed[axis] //= 2
        return rng.integers(0, 256, packed, dtype=np.uint8)
    return normal(rng, shape, NUMBERS[kind]).view(f"u{FORMATS[kind] // 8}")


def decoded(x: np.ndarray, kind: str, axis: int) -> np.ndarray:
    if kind == "e2m1":
        halves = [(part).view(ml_dtypes.float4_e2m1fn).astype(np.float64) for part in (x & 15, x >> 4)]
        shape = list(x.shape)
        shape[axis] *= 2
        return np.stack(halves, axis + 1).reshape(shape)
    return x.view(NUMBERS[kind]).astype(np.float64)


def scales(rng: np.random.Generator, lines: int, k: int, group: int) -> np.ndarray:
    if group == 16:
        return np.abs(normal(rng, (lines, k // group))).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return rng.integers(123, 131, (lines, k // group), dtype=np.uint8)


def factors(scale: np.ndarray | None, group: int) -> np.ndarray:
    if scale is None:
        return np.ones((1, 1))
    dtype = ml_dtypes.float8_e4m3fn if group == 16 else ml_dtypes.float8_e8m0fnu
    return np.repeat(scale.view(dtype).astype(np.float64), group, 1)


def arguments(rng, left, right, *, left_k=True, right_k=True, scaled=(True, True), group=32, m=16, n=32, k=64):
    a = operand(rng, left, (m, k), 1 if left_k else 0)
    b = operand(rng, right, (k, n), 0 if right_k else 1)
    sizes = {"A_ROWS": a.shape[0], "A_COLUMNS": a.shape[1], "B_ROWS": b.shape[0], "B_COLUMNS": b.shape[1]}
    kinds = {"LEFT": left, "RIGHT": right, "GROUP": group, "LEFT_K": left_k, "RIGHT_K": right_k}
    return {
        "a": a,
        "a_scale": scales(rng, m, k, group) if scaled[0] else None,
        "b": b,
        "b_scale": scales(rng, n, k, group) if scaled[1] else None,
        "c": poison((m, n), np.float32),
    } | {"M": m, "N": n, "K": k} | kinds | sizes  # fmt: skip


def reference(x):
    a = decoded(x["a"], x["LEFT"], 1 if x["LEFT_K"] else 0) * factors(x["a_scale"], x["GROUP"])
    b = decoded(x["b"], x["RIGHT"], 0 if x["RIGHT_K"] else 1) * factors(x["b_scale"], x["GROUP"]).T
    return {"c": a @ b + 1.0}


def scaled_case(name, left, right, nan=False, **options):
    def make(rng):
        made = arguments(rng, left, right, **options)
        if nan:
            made["a_scale"][3, 1] = made["b_scale"][5, 0] = 255
            made["a_scale"][4, 1] = 0
        return made

    case(f"scaled_{name}", scaled_product, make, reference, rtol=1e-5, atol=1e-3)


scaled_case("fp4_fp8", "e2m1", "e4m3")
scaled_case("fp8_fp4", "e5m2", "e2m1", scaled=(True, False))
scaled_case("fp4_across", "e2m1", "e2m1", left_k=False, right_k=False)
scaled_case("fp4_groups_of_16", "e2m1", "e2m1", group=16)
scaled_case("bf16_fp4", "bf16", "e2m1", scaled=(False, True), right_k=False)
scaled_case("fp16_fp8", "fp16", "e4m3", scaled=(False, True))
scaled_case("nan", "e4m3", "e5m2", nan=True)
