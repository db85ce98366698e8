"""Kernels that divide by zero, shift by too many bits and convert extreme numbers, with the expected results."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as tl

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
KINDS = {name: getattr(ml_dtypes, name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}


def kind(dtype: str) -> np.dtype:
    return np.dtype(KINDS.get(dtype, dtype))


@blocknb.kernel
def arithmetic(x, y, out, n, BLOCK: tl.constexpr):
    """Quotients, remainders and shifts of pairs, as tiles and then as scalars."""
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, a // b)
    tl.store(out + BLOCK + at, a % b)
    tl.store(out + 2 * BLOCK + at, a << b)
    tl.store(out + 3 * BLOCK + at, a >> b)
    for j in range(n):
        s, t, one = tl.load(x + j), tl.load(y + j), 4 * BLOCK + j
        tl.store(out + one, s // t)
        tl.store(out + BLOCK + one, s % t)
        tl.store(out + 2 * BLOCK + one, s << t)
        tl.store(out + 3 * BLOCK + one, s >> t)


@blocknb.kernel
def by_constants(x, out, A: tl.constexpr, VALUES: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """The same with constants on the right, and on both sides."""
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at)
    c = tl.full((BLOCK,), A, DTYPE)
    for j in tl.static_range(len(VALUES)):
        b = tl.full((BLOCK,), VALUES[j], DTYPE)
        row = out + 8 * j * BLOCK + at
        tl.store(row, a // b)
        tl.store(row + BLOCK, a % b)
        tl.store(row + 2 * BLOCK, a << b)
        tl.store(row + 3 * BLOCK, a >> b)
        tl.store(row + 4 * BLOCK, c // b)
        tl.store(row + 5 * BLOCK, c % b)
        tl.store(row + 6 * BLOCK, c << b)
        tl.store(row + 7 * BLOCK, c >> b)


@blocknb.kernel
def store_as_floats(v, at, f2, b2, f4, f8, e4, e5):
    tl.store(f2 + at, v.to(tl.float16))
    tl.store(b2 + at, v.to(tl.bfloat16))
    tl.store(f4 + at, v.to(tl.float32))
    tl.store(f8 + at, v.to(tl.float64))
    tl.store(e4 + at, v.to(tl.float8e4nv))
    tl.store(e5 + at, v.to(tl.float8e5))


@blocknb.kernel
def conversions(x, n, f2, b2, f4, f8, e4, e5, BLOCK: tl.constexpr):
    """Any number as each float dtype, as tiles and as scalars."""
    at = tl.arange(0, BLOCK)
    store_as_floats(tl.load(x + at, mask=at < n, other=0), at, f2, b2, f4, f8, e4, e5)
    for j in range(n):
        store_as_floats(tl.load(x + j), BLOCK + j, f2, b2, f4, f8, e4, e5)


@blocknb.kernel
def of_constants(f2, b2, f4, f8, e4, e5, VALUES: tl.constexpr, DTYPE: tl.constexpr):
    for j in tl.static_range(len(VALUES)):
        v = tl.full((2,), VALUES[j], DTYPE)
        store_as_floats(v, tl.arange(0, 2) * len(VALUES) + j, f2, b2, f4, f8, e4, e5)


# -- integers ----------------------------------------------------------------------------------------------------------------


def computed(name: str, a: int, b: int, dtype: str) -> int:
    """Division by zero gives zero, too large results wrap, and oversized shifts give zero, as in NumPy and PTX."""
    limits = np.iinfo(dtype)
    bits = limits.bits
    count = b if 0 <= b < bits else bits  # a negative count is a large unsigned one
    match name:
        case "//":
            found = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        case "%":
            found = 0 if b == 0 else int(math.fmod(abs(a), 1)) or (abs(a) % abs(b)) * (-1 if a < 0 else 1)
        case "<<":
            found = a << count
        case ">>":
            found = a >> count
    wrapped = found & (1 << bits) - 1
    return wrapped - (1 << bits) if limits.min < 0 and wrapped >> bits - 1 else wrapped


def row(name: str, a: Any, b: Any, dtype: str) -> np.ndarray:
    pairs = zip((int(v) for v in a), (int(v) for v in b), strict=True)
    return np.array([computed(name, x, y, dtype) for x, y in pairs], dtype)


def special(dtype: str) -> list[int]:
    limits = np.iinfo(dtype)
    found = {
        0,
        1,
        2,
        3,
        7,
        limits.bits - 1,
        limits.bits,
        limits.bits + 1,
        32,
        33,
        63,
        64,
        65,
        100,
        limits.max,
        limits.max - 1,
    }
    found |= {limits.min, limits.min + 1, -1, -2, -7} if limits.min else set()
    return sorted(v for v in found if limits.min <= v <= limits.max)


def of_arithmetic(dtype: str, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    a, b = (v.ravel() for v in np.meshgrid(np.array(special(dtype), dtype), np.array(special(dtype), dtype)))
    block, order = 512, rng.permutation(len(a))
    limits = np.iinfo(dtype)
    more = rng.integers(limits.min, limits.max, (2, block - len(a)), dtype, endpoint=True)
    a, b = np.concatenate([a[order], more[0]]), np.concatenate([b[order], more[1]])
    n = 300
    whole = [row(name, a, b, dtype) for name in ("//", "%", "<<", ">>")]
    arguments = {"x": a, "y": b, "out": np.full(8 * block, 77, dtype), "n": n, "BLOCK": block}
    ones = [np.concatenate([r[:n], np.full(block - n, 77, dtype)]) for r in whole]
    return arguments, {"out": np.concatenate([*whole, *ones])}


def of_divisors(dtype: str, rng: np.random.Generator, own: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    values, block = special(dtype), 32
    a = rng.permutation(np.resize(np.array(values, dtype), block))
    constant = (values[0], values[-1], 1)[rng.integers(3)]
    chosen = [values[i] for i in rng.permutation(len(values))[:6]] + [0, np.iinfo(dtype).bits]
    chosen += [-1] if np.iinfo(dtype).min else []
    out = []
    for b in chosen:
        for left in (a, np.full(block, constant, dtype)):
            out += [row(name, left, [b] * block, dtype) for name in ("//", "%", "<<", ">>")]
    arguments = {"x": a, "out": np.full(8 * len(chosen) * block, 77, dtype), "A": constant, "VALUES": tuple(chosen)}
    return {**arguments, "DTYPE": own, "BLOCK": block}, {"out": np.concatenate(out)}


# -- floats ------------------------------------------------------------------------------------------------------------------


def nearest(value: Any, dtype: str) -> float:
    """The float nearest to an exact number, ties to even; beyond the largest one infinity, or in fp8 the largest."""
    if isinstance(value, float) and not math.isfinite(value):
        return math.copysign(largest(dtype), value) if value == value and dtype.startswith("float8") else value
    mantissa, least = {
        "float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074),
        "float8_e4m3fn": (4, -9), "float8_e5m2": (3, -16),
    }[dtype]  # fmt: skip
    exact = abs(Fraction(value))
    exponent = max((exact.numerator.bit_length() - exact.denominator.bit_length()) - mantissa - 1, least)
    while exact / Fraction(2) ** exponent >= 2**mantissa:
        exponent += 1
    rounded = round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent  # Python's round is to even
    size = (
        largest(dtype) if rounded > Fraction(largest(dtype)) and dtype.startswith("float8") else _float(rounded, dtype)
    )
    return math.copysign(size, value)


def _float(exact: Fraction, dtype: str) -> float:
    return math.inf if exact > Fraction(largest(dtype)) else float(exact)


def largest(dtype: str) -> float:
    return float(ml_dtypes.finfo(kind(dtype)).max)


def numbers(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Difficult numbers for rounding: midpoints of each format and their neighbours, limits, random ones."""
    own = kind(dtype)
    if own.kind in "iu":
        limits = np.iinfo(own)
        bits = [1 << k for k in range(limits.bits - 1)]
        hard = [(b << 1) + (b >> s) + d for b in bits for s in (2, 3, 7, 10, 23, 52) for d in (-1, 0, 1)]
        chosen = [
            v
            for v in {*hard, *(-v for v in hard), 0, limits.min, limits.max, limits.max - 1}
            if limits.min <= v <= limits.max
        ]
        return np.concatenate([rng.choice(np.array(chosen, own), 100), rng.integers(limits.min, limits.max, 100, own)])
    tops = [
        largest(d) * f
        for d in FLOATS
        for f in (1.0, 1 + 2.0**-9, 1 + 2.0**-5, 1.0624, 1.07, 1.125, 1.13)
        if largest(d) * f < 1e308
    ]
    hard = [2.0**k * (1 + 2.0**-s + d) for k in (-150, -149, -133, -25, -24, -16, -10, -9, 0, 1, 7) for s in (3, 4, 8, 9, 11, 12, 24, 25)
            for d in (0.0, 2.0**-40, -(2.0**-40))]  # fmt: skip
    sizes = np.array([0.0, *hard, *tops, math.inf, math.nan, 1e-310, 5e-324])
    with np.errstate(all="ignore"):
        found = np.concatenate([sizes, -sizes, rng.standard_normal(100) * 2.0 ** rng.integers(-30, 30, 100)]).astype(
            own
        )
    return rng.choice(found, 200, replace=False) if len(found) > 400 else found


def results(count: int) -> dict[str, np.ndarray]:
    return {
        name: np.full(count, 7).astype(kind(d))
        for name, d in zip(("f2", "b2", "f4", "f8", "e4", "e5"), FLOATS, strict=True)
    }


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    exact = [int(v) if x.dtype.kind in "iu" else float(v) for v in x]
    names = zip(("f2", "b2", "f4", "f8", "e4", "e5"), FLOATS, strict=True)
    return {
        name: x if x.dtype == kind(d) else np.array([nearest(v, d) for v in exact]).astype(kind(d)) for name, d in names
    }


def of_conversions(dtype: str, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    x, block = numbers(dtype, rng), 512
    n = len(x)
    arguments = {"x": x, "n": n, **results(2 * block), "BLOCK": block}
    padded = expected(np.concatenate([x, np.zeros(block - n, x.dtype)]))
    return arguments, {
        name: np.concatenate([found, found[:n], arguments[name][block + n :]]) for name, found in padded.items()
    }


def of_constant_conversions(
    dtype: str, rng: np.random.Generator, count: int, own: Any
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    x = rng.permutation(numbers(dtype, rng))[:count]
    if dtype.startswith("float8"):  # an infinity becomes the largest number of an fp8 format, as a constant, too
        x = x[~np.isinf(x.astype(np.float32))]
    values = tuple(int(v) if x.dtype.kind in "iu" else float(v) for v in x)
    wanted = {name: np.concatenate([found, found]) for name, found in expected(x).items()}
    return {**results(2 * len(x)), "VALUES": values, "DTYPE": own}, wanted
