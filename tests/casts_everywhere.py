"""Kernels with every kind of cast, critical inputs, and expected results in exact Python integers."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as tl

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NARROW = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")


@blocknb.kernel
def from_float(x, n, i1, i2, i4, i8, u1, u2, u4, u8, truth, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    """Casts tiles by `to`, with a constant in lanes beyond n; casts by a store; and casts scalars."""
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=OTHER)
    tl.store(i1 + at, v.to(tl.int8))
    tl.store(i2 + at, v.to(tl.int16))
    tl.store(i4 + at, v.to(tl.int32))
    tl.store(i8 + at, v.to(tl.int64))
    tl.store(u1 + at, v.to(tl.uint8))
    tl.store(u2 + at, v.to(tl.uint16))
    tl.store(u4 + at, v.to(tl.uint32))
    tl.store(u8 + at, v.to(tl.uint64))
    tl.store(truth + at, v.to(tl.int1).to(tl.int8))
    to = at + BLOCK
    tl.store(i1 + to, v)
    tl.store(i2 + to, v)
    tl.store(i4 + to, v)
    tl.store(i8 + to, v)
    tl.store(u1 + to, v)
    tl.store(u2 + to, v)
    tl.store(u4 + to, v)
    tl.store(u8 + to, v)
    tl.store(truth + to, (v != 0).to(tl.int8))
    for j in range(n):
        s, one = tl.load(x + j), 2 * BLOCK + j
        tl.store(i1 + one, s.to(tl.int8))
        tl.store(i2 + one, s.to(tl.int16))
        tl.store(i4 + one, s.to(tl.int32))
        tl.store(i8 + one, s.to(tl.int64))
        tl.store(u1 + one, s.to(tl.uint8))
        tl.store(u2 + one, s.to(tl.uint16))
        tl.store(u4 + one, s.to(tl.uint32))
        tl.store(u8 + one, s.to(tl.uint64))
        tl.store(truth + one, s.to(tl.int1).to(tl.int8))


@blocknb.kernel
def from_constants(i1, i2, i4, i8, u1, u2, u4, u8, truth, VALUES: tl.constexpr, DTYPE: tl.constexpr):
    for j in tl.static_range(len(VALUES)):
        s = tl.full((2,), VALUES[j], DTYPE)
        at = tl.arange(0, 2) * len(VALUES) + j
        tl.store(i1 + at, s.to(tl.int8))
        tl.store(i2 + at, s.to(tl.int16))
        tl.store(i4 + at, s.to(tl.int32))
        tl.store(i8 + at, s.to(tl.int64))
        tl.store(u1 + at, s.to(tl.uint8))
        tl.store(u2 + at, s.to(tl.uint16))
        tl.store(u4 + at, s.to(tl.uint32))
        tl.store(u8 + at, s.to(tl.uint64))
        tl.store(truth + at, s.to(tl.int1).to(tl.int8))


def specials(dtype: str) -> np.ndarray:
    """Zeros, halves, the limits of each integer with their neighbours, infinities, NaNs, subnormal and huge numbers; of one sign each."""
    kind = np.dtype(NARROW.get(dtype, dtype))
    sizes = [0.0, 0.5, 0.999, 1.0, 1.5, 2.5, 300.0, 65504.0, 1e20, 1e300, 3.4e38, math.inf, math.nan]
    sizes += [2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    with np.errstate(all="ignore"):
        found = np.array(sizes).astype(kind)
    bits = np.dtype(f"u{kind.itemsize}")
    one, most = bits.type(1), np.array(math.inf if kind.itemsize > 1 else 400.0).astype(kind).view(bits)
    patterns = found.view(bits)
    inner = patterns[(patterns > 0) & (patterns < most)]
    patterns = np.unique(np.concatenate([patterns, inner - one, inner + one, np.array([1, 2, 3], bits)]))
    sign = bits.type(1 << kind.itemsize * 8 - 1)
    return np.concatenate([patterns, patterns | sign]).view(kind)


def cast_exactly(x: np.ndarray, integer: str) -> np.ndarray:
    """The reference: each number truncated and clamped; NaN becomes 0."""
    limits = np.iinfo(integer)

    def one(value: float) -> int:
        if math.isnan(value):
            return 0
        return int(limits.max if value >= limits.max else limits.min if value <= limits.min else math.trunc(value))

    with np.errstate(invalid="ignore"):
        return np.array([one(float(v)) for v in x], integer)


def outputs(count: int) -> dict[str, np.ndarray]:
    """Poisoned arrays for the results of each dtype."""
    names = [("i" if name[0] == "i" else "u") + str(np.dtype(name).itemsize) for name in INTEGERS]
    made = {short: np.full(count, 93, name) for short, name in zip(names, INTEGERS, strict=True)}
    return made | {"truth": np.full(count, 93, np.int8)}


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    """The expected contents of each array of `outputs`."""
    made = {short: cast_exactly(x, array.dtype.name) for short, array in outputs(0).items() if short != "truth"}
    return made | {"truth": np.array([float(v) != 0 for v in x], np.int8)}


def of_lanes(x: np.ndarray, other: float, block: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Arguments of `from_float`, and the expected results."""
    n = len(x)
    arguments = {"x": x, "n": n, **outputs(3 * block), "OTHER": other, "BLOCK": block}
    with np.errstate(all="ignore"):
        padded = np.concatenate([x, np.full(block - n, other).astype(x.dtype)])
    wanted = {}
    for name, row in expected(padded).items():
        wanted[name] = np.concatenate([row, row, row[:n], arguments[name][2 * block + n :]])
    return arguments, wanted


def of_constants(x: np.ndarray, dtype: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Arguments of `from_constants`, and the expected results."""
    values = tuple(float(v) for v in x)
    wanted = {name: np.concatenate([row, row]) for name, row in expected(x).items()}
    return {**outputs(2 * len(x)), "VALUES": values, "DTYPE": dtype}, wanted
