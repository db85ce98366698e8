"""Kernels that draw random numbers, and kernels that call libdevice by its various names."""

from __future__ import annotations

import math

import numpy as np

import blocknb
import blocknb.language as bl
from blocknb.language.extra import libdevice
from kernels.base import case, integers, normal, poison, wide

N = 200


@blocknb.kernel
def dropout(x, out, bits, n, p, seed, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    mask = i < n
    keep = bl.rand(seed, i) > p
    bl.store(out + i, bl.where(keep, bl.load(x + i, mask=mask) / (1 - p), 0.0), mask=mask)
    bl.store(bits + i, bl.randint(seed, i.to(bl.int64) << 20), mask=mask)


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al., SC 2011), on Python integers."""
    k0, k1 = key
    for _ in range(10):
        p, q = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = ((q >> 32) ^ counter[1] ^ k0, q & 0xFFFFFFFF, (p >> 32) ^ counter[3] ^ k1, p & 0xFFFFFFFF)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return counter[0]


def _dropout_reference(a):
    key = (a["seed"] & 0xFFFFFFFF, a["seed"] >> 32 & 0xFFFFFFFF)
    x = np.array([philox((i, 0, 0, 0), key) for i in range(N)], np.uint32).view(np.int32)
    uniform = np.where(x < 0, -x - 1, x).astype(np.float32) * np.float32(4.6566127342e-10)
    out, bits = wide(a["out"]), a["bits"].copy()
    out[:N] = np.where(uniform > np.float32(a["p"]), a["x"] / (1 - np.float32(a["p"])), 0)
    bits[:N] = [philox((i << 20 & 0xFFFFFFFF, i << 20 >> 32, 0, 0), key) for i in range(N)]
    return {"out": out, "bits": bits}


case(
    "dropout", dropout,
    lambda rng: {"x": normal(rng, N), "out": poison(N + 30, np.float32), "bits": poison(N + 30, np.uint32), "n": N, "p": 0.3,
                 "seed": int(rng.integers(0, 2**62)), "BLOCK": 128},
    _dropout_reference, grid=(2,),
)  # fmt: skip


@blocknb.kernel
def elementary(x, out, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    mask = i < n
    v = bl.load(x + i, mask=mask)
    p = bl.abs(v) + 0.25
    inside = v / (1.0 + bl.abs(v))
    bl.store(out + 0 * n + i, bl.math.pow(p, v), mask=mask)
    bl.store(out + 1 * n + i, bl.extra.cuda.libdevice.log1p(p), mask=mask)
    bl.store(out + 2 * n + i, bl.extra.libdevice.expm1(v), mask=mask)
    bl.store(out + 3 * n + i, libdevice.atan2(v, p), mask=mask)
    bl.store(out + 4 * n + i, libdevice.asin(inside), mask=mask)
    bl.store(out + 5 * n + i, libdevice.acos(inside), mask=mask)
    bl.store(out + 6 * n + i, libdevice.sinh(v), mask=mask)
    bl.store(out + 7 * n + i, libdevice.asinh(v) + libdevice.atanh(inside), mask=mask)
    bl.store(out + 8 * n + i, libdevice.log10(p), mask=mask)
    bl.store(out + 9 * n + i, libdevice.exp10(v), mask=mask)
    bl.store(out + 10 * n + i, libdevice.cbrt(v), mask=mask)
    bl.store(out + 11 * n + i, libdevice.hypot(v, p), mask=mask)
    bl.store(out + 12 * n + i, libdevice.tan(v), mask=mask)
    bl.store(out + 13 * n + i, libdevice.sinpi(v), mask=mask)


def _elementary_reference(a):
    v = wide(a["x"])
    p = np.abs(v) + 0.25
    inside = wide(a["x"] / (1 + np.abs(a["x"])))
    rows = [p**v, np.log1p(p), np.expm1(v), np.arctan2(v, p), np.arcsin(inside), np.arccos(inside), np.sinh(v)]
    rows += [
        np.arcsinh(v) + np.arctanh(inside),
        np.log10(p),
        10**v,
        np.cbrt(v),
        np.hypot(v, p),
        np.tan(v),
        np.sin(np.pi * v),
    ]
    return {"out": np.concatenate(rows)}


@blocknb.kernel
def special(x, out, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    mask = i < n
    v = bl.load(x + i, mask=mask)
    bl.store(out + 0 * n + i, libdevice.erfc(v), mask=mask)
    bl.store(out + 1 * n + i, libdevice.normcdf(v), mask=mask)
    bl.store(out + 2 * n + i, libdevice.erfinv(bl.erf(v)), mask=mask)
    bl.store(out + 3 * n + i, libdevice.tgamma(bl.abs(v) + 0.5), mask=mask)
    bl.store(out + 4 * n + i, libdevice.lgamma(v), mask=mask)
    bl.store(out + 5 * n + i, libdevice.j0(v * 5) + libdevice.jn(3, v * 5), mask=mask)
    bl.store(out + 6 * n + i, libdevice.cyl_bessel_i0(v), mask=mask)


def bessel(order, x):
    """J_n(x) as the integral of cos(n t - x sin t) over half a turn, by the trapezoidal rule, which converges exponentially here."""
    t = (np.arange(512) + 0.5) * np.pi / 512
    return np.cos(order * t - x[:, None] * np.sin(t)).mean(1)


def _special_reference(a):
    v = wide(a["x"])
    erfc = np.vectorize(math.erfc)
    t = (np.arange(512) + 0.5) * np.pi / 512
    rows = [
        erfc(v),
        erfc(-v / np.sqrt(2)) / 2,
        v,
        np.vectorize(math.gamma)(np.abs(v) + 0.5),
        np.vectorize(math.lgamma)(v),
    ]
    rows += [bessel(0, 5 * v) + bessel(3, 5 * v), np.exp(v[:, None] * np.cos(t)).mean(1)]
    return {"out": np.concatenate(rows)}


for _dtype, _rtol in ((np.float32, 5e-6), (np.float64, 2e-13)):

    def _make(rng, dtype=_dtype, rows=14):
        x = (normal(rng, N, dtype) * dtype(3)).clip(-8, 8)
        return {"x": x, "out": poison(rows * N, dtype), "n": N, "BLOCK": 128}

    name = np.dtype(_dtype).name
    case(f"elementary_{name}", elementary, _make, _elementary_reference, grid=(2,), rtol=_rtol, atol=_rtol)

    def _make_special(rng, dtype=_dtype):
        x = normal(rng, N, dtype).clip(-1.5, 1.5)
        x[np.abs(x) < 0.01] = 0.5
        return {"x": x, "out": poison(7 * N, dtype), "n": N, "BLOCK": 128}

    case(f"special_{name}", special, _make_special, _special_reference, grid=(2,), rtol=_rtol, atol=_rtol)


@blocknb.kernel
def exact(x, y, out, whole, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    mask = i < n
    a = bl.load(x + i, mask=mask)
    b = bl.load(y + i, mask=mask, other=1)
    bl.store(out + 0 * n + i, bl.div_rn(a, b), mask=mask)
    bl.store(out + 1 * n + i, libdevice.fmod(a, b), mask=mask)
    bl.store(out + 2 * n + i, libdevice.remainder(a, b), mask=mask)
    bl.store(out + 3 * n + i, libdevice.rint(a) + libdevice.trunc(b) - libdevice.round(a), mask=mask)
    bl.store(out + 4 * n + i, libdevice.copysign(a, b) + libdevice.nextafter(a, b), mask=mask)
    bl.store(out + 5 * n + i, libdevice.add_rz(a, b) + 0.0 * libdevice.mul_ru(a, b), mask=mask)
    bl.store(out + 6 * n + i, libdevice.ldexp(a, libdevice.ilogb(b)), mask=mask)
    bl.store(whole + 0 * n + i, libdevice.popc(libdevice.double_as_longlong(a)), mask=mask)
    bl.store(whole + 1 * n + i, libdevice.clz(libdevice.float_as_int(b)) + libdevice.isnan(a / (b - b)), mask=mask)
    bl.store(whole + 2 * n + i, libdevice.llrint(a * 100).to(bl.int32) + libdevice.float2int_rd(b), mask=mask)
    bl.store(whole + 3 * n + i, libdevice.mulhi(libdevice.float_as_int(a), libdevice.float_as_int(b)), mask=mask)


def toward_zero(x, y):
    """x + y rounded toward zero, from the exact error of the nearest sum."""
    s = x + y
    back = s - x
    error = (x - (s - back)) + (y - back)
    return np.where(np.sign(error) * np.sign(s) < 0, np.nextafter(s, np.zeros_like(s)), s)


def _exact_reference(a):
    x, y = a["x"], a["y"]
    remainder = np.array([math.remainder(p, q) for p, q in zip(x, y, strict=True)])
    rounded = np.copysign(np.floor(np.abs(x) + 0.5), x)
    whole = np.rint(x) + np.trunc(y) - rounded
    rows = [x / y, np.fmod(x, y), remainder, whole, np.copysign(x, y) + np.nextafter(x, y), toward_zero(x, y)]
    rows.append(np.ldexp(x, np.frexp(y)[1] - 1))
    single_x, single_y = x.astype(np.float32).view(np.int32), y.astype(np.float32).view(np.int32)
    leading = [32 - (int(v) & 0xFFFFFFFF).bit_length() for v in single_y]
    integers = [[int(v).bit_count() for v in wide(x).view(np.uint64)], np.array(leading) + (np.isnan(x / (y - y)) * 1)]
    integers += [np.rint(x * x.dtype.type(100)) + np.floor(y), (single_x.astype(np.int64) * single_y) >> 32]
    return {
        "out": np.concatenate([wide(np.asarray(r)) for r in rows]),
        "whole": np.concatenate(integers).astype(np.int64),
    }


for _dtype in (np.float32, np.float64):

    def _make_exact(rng, dtype=_dtype):
        x, y = normal(rng, N, dtype) * dtype(1000), normal(rng, N, dtype)
        y[y == 0] = 1
        return {"x": x, "y": y, "out": poison(7 * N, dtype), "whole": poison(4 * N, np.int32), "n": N, "BLOCK": 128}

    def _quiet(a):
        with np.errstate(all="ignore"):
            return _exact_reference(a)

    case(f"exact_{np.dtype(_dtype).name}", exact, _make_exact, _quiet, grid=(2,), rtol=0, atol=0)


@blocknb.kernel
def integer_functions(x, y, out, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    mask = i < n
    a = bl.load(x + i, mask=mask)
    b = bl.load(y + i, mask=mask)
    bl.store(out + 0 * n + i, bl.umulhi(a, b), mask=mask)
    bl.store(out + 1 * n + i, libdevice.brev(a), mask=mask)
    bl.store(out + 2 * n + i, libdevice.ffs(a) * 64 + libdevice.clz(b), mask=mask)


for _dtype in (np.int32, np.uint32, np.int64, np.uint64):

    def _make(rng, dtype=_dtype):
        return {
            "x": integers(rng, N, dtype),
            "y": integers(rng, N, dtype),
            "out": poison(3 * N, dtype),
            "n": N,
            "BLOCK": 128,
        }

    def _reference(a):
        width = a["x"].itemsize * 8
        mask = (1 << width) - 1
        x, y = ([int(v) & mask for v in a[k]] for k in "xy")
        rows = [[p * q >> width for p, q in zip(x, y, strict=True)], [int(f"{p:0{width}b}"[::-1], 2) for p in x]]
        rows.append([(p & -p).bit_length() * 64 + width - q.bit_length() for p, q in zip(x, y, strict=True)])
        return {"out": np.array(rows, np.uint64).reshape(-1).astype(a["x"].dtype)}

    case(f"integer_functions_{np.dtype(_dtype).name}", integer_functions, _make, _reference, grid=(2,))


@blocknb.kernel
def negated_extremes(x, most, least, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    rows, columns = bl.arange(0, ROWS), bl.arange(0, BLOCK)
    opposite = -bl.load(x + rows[:, None] * BLOCK + columns[None, :])
    bl.store(most + columns, bl.max(opposite, axis=0))
    bl.store(least + columns, bl.min(opposite, axis=0))


for _dtype in (np.int32, np.int16):  # as one thread compares three of them; worker.spell_negations says why
    case(
        f"negated_extremes_{np.dtype(_dtype).name}",
        negated_extremes,
        lambda rng, dtype=_dtype: {
            "x": integers(rng, (16, 256), dtype, -1000, 1000),
            "most": poison(256, dtype),
            "least": poison(256, dtype),
            "ROWS": 16,
            "BLOCK": 256,
        },
        lambda a: {"most": (-a["x"]).max(0), "least": (-a["x"]).min(0)},
    )
