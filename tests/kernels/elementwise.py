"""Elementwise kernels over every dtype, and conversions between dtypes."""

from __future__ import annotations

from math import erf

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def add(x, y, z, n, BLOCK: bl.constexpr):
    offsets = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    mask = offsets < n
    bl.store(z + offsets, bl.load(x + offsets, mask=mask) + bl.load(y + offsets, mask=mask), mask=mask)


N = 1008  # a multiple of 16, so that accesses are wide, but not of the block
for _dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):

    def _make(rng, dtype=_dtype):
        return {
            "x": normal(rng, N, dtype),
            "y": normal(rng, N, dtype),
            "z": poison(N + 100, dtype),
            "n": N,
            "BLOCK": 512,
        }

    def _reference(a):
        z = wide(a["z"])
        z[:N] = wide(a["x"] + a["y"])
        return {"z": z}

    case(f"add_{np.dtype(_dtype).name}", add, _make, _reference, grid=(2,))

for _dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):

    def _make(rng, dtype=_dtype):
        return {
            "x": integers(rng, N, dtype),
            "y": integers(rng, N, dtype),
            "z": poison(N + 100, dtype),
            "n": N,
            "BLOCK": 256,
        }

    def _reference(a):
        z = a["z"].copy()
        with np.errstate(over="ignore"):
            z[:N] = a["x"] + a["y"]
        return {"z": z}

    case(f"add_{np.dtype(_dtype).name}", add, _make, _reference, grid=(4,))


def _ragged_reference(a):
    z = wide(a["z"])
    z[: a["n"]] = wide(a["x"] + a["y"])[: a["n"]]
    return {"z": z}


case(
    "add_ragged", add,
    lambda rng: {"x": normal(rng, 1009)[1:], "y": normal(rng, 1008), "z": poison(1008, np.float32), "n": 1001, "BLOCK": 512},
    _ragged_reference, grid=(2,),
)  # fmt: skip


@blocknb.kernel
def integer_ops(x, y, quotient, remainder, bits, shifted, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    mask = i < n
    a = bl.load(x + i, mask=mask)
    b = bl.load(y + i, mask=mask, other=1)
    bl.store(quotient + i, a // b, mask=mask)
    bl.store(remainder + i, a % b, mask=mask)
    bl.store(bits + i, ((a & b) | ~a) ^ b, mask=mask)
    bl.store(shifted + i, (a >> 3) + (b << 2) - bl.where(a > b, a, -b), mask=mask)


for _dtype in (np.int32, np.uint32, np.int64):

    def _make(rng, dtype=_dtype):
        y = integers(rng, 300, dtype, 1, 1000) * rng.choice(
            [1, 1] if np.dtype(dtype).kind == "u" else [-1, 1], 300
        ).astype(dtype)
        return (
            {"x": integers(rng, 300, dtype), "y": y}
            | {k: poison(300, dtype) for k in ("quotient", "remainder", "bits", "shifted")}
            | {"n": 300, "BLOCK": 128}
        )

    def _reference(a):
        x, y = a["x"], a["y"]
        rest = np.fmod(x, y)
        with np.errstate(over="ignore"):
            shifted = (x >> 3) + (y << 2) - np.where(x > y, x, np.negative(y))
        return {"quotient": (x - rest) // y, "remainder": rest, "bits": ((x & y) | ~x) ^ y, "shifted": shifted}

    case(f"integer_ops_{np.dtype(_dtype).name}", integer_ops, _make, _reference, grid=(3,))


@blocknb.kernel
def functions(x, out, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    mask = i < n
    v = bl.load(x + i, mask=mask)
    p = bl.abs(v) + 0.25
    bl.store(out + 0 * n + i, bl.exp(v), mask=mask)
    bl.store(out + 1 * n + i, bl.exp2(v), mask=mask)
    bl.store(out + 2 * n + i, bl.log(p), mask=mask)
    bl.store(out + 3 * n + i, bl.log2(p), mask=mask)
    bl.store(out + 4 * n + i, bl.sqrt(p), mask=mask)
    bl.store(out + 5 * n + i, bl.rsqrt(p), mask=mask)
    bl.store(out + 6 * n + i, bl.sin(v), mask=mask)
    bl.store(out + 7 * n + i, bl.cos(v), mask=mask)
    bl.store(out + 8 * n + i, bl.tanh(v), mask=mask)
    bl.store(out + 9 * n + i, bl.erf(v), mask=mask)
    bl.store(out + 10 * n + i, bl.floor(v), mask=mask)
    bl.store(out + 11 * n + i, bl.ceil(v), mask=mask)
    bl.store(out + 12 * n + i, bl.fma(v, p, v), mask=mask)
    bl.store(out + 13 * n + i, bl.minimum(v, 0.5) - bl.maximum(-0.5, v), mask=mask)


def _functions_reference(a):
    v = wide(a["x"])
    p = np.abs(v) + 0.25
    rows = [
        np.exp(v),
        np.exp2(v),
        np.log(p),
        np.log2(p),
        np.sqrt(p),
        1 / np.sqrt(p),
        np.sin(v),
        np.cos(v),
        np.tanh(v),
        np.vectorize(erf)(v),
    ]
    rows += [np.floor(v), np.ceil(v), v * p + v, np.minimum(v, 0.5) - np.maximum(-0.5, v)]
    return {"out": np.concatenate(rows)}


for _dtype, _rtol in ((np.float32, 3e-6), (np.float64, 1e-13)):

    def _make(rng, dtype=_dtype):
        return {"x": normal(rng, 200, dtype) * dtype(3), "out": poison(14 * 200, dtype), "n": 200, "BLOCK": 128}

    case(
        f"functions_{np.dtype(_dtype).name}", functions, _make, _functions_reference, grid=(2,), rtol=_rtol, atol=_rtol
    )


@blocknb.kernel
def casts(x, half, brain, double, whole, byte, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    mask = i < n
    v = bl.load(x + i, mask=mask)
    bl.store(half + i, v.to(bl.float16), mask=mask)
    bl.store(brain + i, v.to(bl.bfloat16), mask=mask)
    bl.store(double + i, v.to(bl.float16).to(bl.float64) * 2, mask=mask)
    bl.store(whole + i, (v * 100).to(bl.int32), mask=mask)
    bl.store(byte + i, (v > 0).to(bl.uint8) + 1, mask=mask)


def _casts_make(rng):
    x = normal(rng, 100) * 10
    outs = {"half": np.float16, "brain": ml_dtypes.bfloat16, "double": np.float64, "whole": np.int32, "byte": np.uint8}
    return {"x": x} | {k: poison(100, d) for k, d in outs.items()} | {"n": 100, "BLOCK": 128}


def _casts_reference(a):
    x = a["x"]
    half = x.astype(np.float16)
    return {
        "half": half,
        "brain": x.astype(ml_dtypes.bfloat16),
        "double": wide(half) * 2,
        "whole": np.trunc(x * np.float32(100)),
        "byte": (x > 0) + 1,
    }


case("casts", casts, _casts_make, _casts_reference, rtol=0, atol=0)
