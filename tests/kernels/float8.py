"""8-bit floats: every pattern converted up, all kinds of numbers converted down, and other uses in kernels."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as bl
from blocknb.language.float8 import FORMATS
from blocknb.language.types import FLOAT8
from kernels.base import case, normal, poison, wide

# The front end and the passes go by their own arithmetic; the references by ml_dtypes, after one rounding to odd, or by the table.
ML_DTYPES = {
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    "fp8e5b16": ml_dtypes.float8_e5m2fnuz,
}


@blocknb.kernel
def widen(x, half, brain, single, double, KIND: bl.constexpr):
    i = bl.arange(0, 256)
    v = bl.load(x + i).to(KIND, bitcast=True)
    bl.store(half + i, v.to(bl.float16))
    bl.store(brain + i, v.to(bl.bfloat16))
    bl.store(single + i, v.to(bl.float32))
    bl.store(double + i, v)


def patterns(name: str) -> np.ndarray:
    """The number of each of the 256 patterns, in float64."""
    if name in ML_DTYPES:
        return np.arange(256, dtype=np.uint8).view(ML_DTYPES[name]).astype(np.float64)
    size = np.arange(128)
    exponent, fraction = size >> 3, size & 7
    values = np.ldexp(np.where(exponent > 0, 8.0, 0.0) + fraction, np.maximum(exponent, 1) - 18)
    return np.concatenate([values, -values])


OUTPUTS = {"half": np.float16, "brain": ml_dtypes.bfloat16, "single": np.float32, "double": np.float64}

for _kind in FLOAT8:

    def _make(rng, kind=_kind):
        outputs = {name: poison(256, dtype) for name, dtype in OUTPUTS.items()}
        return {"x": np.arange(256, dtype=np.uint8)} | outputs | {"KIND": kind}

    def _reference(a, kind=_kind):
        return dict.fromkeys(OUTPUTS, patterns(kind.name))

    case(f"widen_{_kind.name}", widen, _make, _reference, rtol=0, atol=0)


@blocknb.kernel
def narrow(x, out, cut, n, KIND: bl.constexpr, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    v = bl.load(x + i, mask=i < n)
    bl.store(out + i, v.to(KIND).to(bl.uint8, bitcast=True), mask=i < n)
    bl.store(cut + i, v.to(KIND, fp_downcast_rounding="rtz").to(bl.uint8, bitcast=True), mask=i < n)


def corners(rng: np.random.Generator, name: str) -> np.ndarray:
    """Numbers that test conversions, in float64: around every tie and every number, at both ends, and random ones."""
    values = np.unique(patterns(name)[np.isfinite(patterns(name))])
    middles = (values[1:] + values[:-1]) / 2
    at = np.concatenate([values, middles])
    single = at.astype(np.float32)
    near = [np.nextafter(single, np.float32(side)) for side in (-np.inf, np.inf)]
    far = rng.standard_normal(1000) * np.exp2(rng.integers(-30, 30, 1000))
    ends = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-45, 1e-40, 3e38, -3e38, values[-1] * 1.03, values[-1] * 1.2]
    return np.concatenate([at, *near, far, ends])


def nearest(x: np.ndarray, name: str) -> np.ndarray:
    """The pattern that each number is converted to."""
    kind = FORMATS[name]
    if name not in ML_DTYPES:
        return np.array([kind.encode(float(v)) for v in x.ravel()], np.uint8).reshape(x.shape)
    most = float(ml_dtypes.finfo(ML_DTYPES[name]).max)
    limited = np.clip(x.astype(np.float64), -most, most)
    with np.errstate(invalid="ignore"):
        single = limited.astype(np.float32)
    # Where fp32 is not exact, a step back from a tie that is none.
    single = np.where(np.abs(single) > np.abs(limited), np.nextafter(single, np.float32(0)), single)
    single = np.where(single == limited, single, (single.view(np.uint32) | 1).view(np.float32))
    bits = single.astype(ML_DTYPES[name]).view(np.uint8)
    return np.where(np.isnan(limited), np.uint8(kind.nan or 0), bits)


def toward_zero(x: np.ndarray, name: str) -> np.ndarray:
    """The pattern of the largest representable number that does not exceed each number."""
    kind = FORMATS[name]
    with np.errstate(invalid="ignore"):
        x = x.astype(np.float64)
    sizes = np.abs(patterns(name)[: kind.largest + 1])
    found = np.searchsorted(sizes, np.nan_to_num(np.abs(x), nan=0.0), side="right") - 1
    signed = np.where(np.signbit(x), found | 0x80, found)
    if kind.unsigned_zero:
        signed = np.where(found == 0, 0, signed)
    nan = kind.largest if kind.nan is None else kind.nan
    return np.where(np.isnan(x), nan, signed).astype(np.uint8)


def _narrow_case(kind, dtype, count, make_x):
    def make(rng):
        x = make_x(rng)
        n = len(x)
        return {"x": x, "out": poison(n, np.uint8), "cut": poison(n, np.uint8), "n": n, "KIND": kind, "BLOCK": count}

    def reference(a):
        return {"out": nearest(a["x"], kind.name), "cut": toward_zero(a["x"], kind.name)}

    programs = -(-len(make_x(np.random.default_rng(0))) // count)
    name = f"narrow_{np.dtype(dtype).name}_{kind.name}"
    case(name, narrow, make, reference, grid=(programs,), options={"num_warps": 8})


for _kind in FLOAT8:

    def _halves(rng):
        return rng.permutation(np.arange(65536, dtype=np.uint16))[:2048].view(np.float16)

    def _singles(rng, kind=_kind):
        return rng.permutation(corners(rng, kind.name)).astype(np.float32)

    def _doubles(rng, kind=_kind):
        x = corners(rng, kind.name)
        return rng.permutation(np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), [1e300, -1e-300]]))

    _narrow_case(_kind, np.float16, 2048, _halves)
    _narrow_case(_kind, np.float32, 1024, _singles)
    _narrow_case(_kind, np.float64, 1024, _doubles)


@blocknb.kernel
def recode(x, y, z, w, KIND: bl.constexpr, OTHER: bl.constexpr):
    """Conversions among 8-bit floats, from bf16, and from and to integers."""
    i = bl.arange(0, 256)
    v = bl.load(x + i).to(KIND, bitcast=True)
    bl.store(y + i, v.to(OTHER).to(bl.uint8, bitcast=True))
    bl.store(z + i, v.to(bl.bfloat16).to(KIND).to(bl.uint8, bitcast=True))
    whole = bl.where((v == v) & (bl.abs(v.to(bl.float32)) < 1e6), v, 0.0).to(bl.int32)
    bl.store(w + i, (whole + (i - 128).to(KIND).to(bl.int32)))


for _kind, _other in zip(FLOAT8, FLOAT8[1:] + FLOAT8[:1], strict=True):

    def _make(rng, kind=_kind, other=_other):
        outputs = {"y": poison(256, np.uint8), "z": poison(256, np.uint8), "w": poison(256, np.int32)}
        return {"x": np.arange(256, dtype=np.uint8)} | outputs | {"KIND": kind, "OTHER": other}

    def _reference(a, kind=_kind, other=_other):
        v = patterns(kind.name)
        counted = patterns(kind.name)[nearest(np.arange(-128.0, 128.0), kind.name)]
        whole = np.trunc(np.where(np.isfinite(v), v, 0)) + np.trunc(counted)
        return {"y": nearest(v, other.name), "z": nearest(v, kind.name), "w": whole}

    case(f"recode_{_kind.name}", recode, _make, _reference)


@blocknb.kernel
def handling(x, y, out, least, most, where, flags, n, BLOCK: bl.constexpr):
    """Loads, stores, selections, comparisons, signs and moves, without arithmetic."""
    i = bl.arange(0, BLOCK)
    a = bl.load(x + i, mask=i < n, other=1.5)
    b = bl.load(y + i, mask=i < n)
    chosen = bl.where(a > b, a, -b)
    bl.store(out + i, chosen)
    rows = bl.trans(bl.reshape(bl.maximum(a, b), (BLOCK // 8, 8)))
    left, right = bl.split(bl.reshape(rows, (BLOCK // 2, 2)))
    bl.store(out + BLOCK + i, bl.reshape(bl.join(right, left), (BLOCK,)))
    bl.store(out + 2 * BLOCK + i, bl.gather(bl.abs(a), BLOCK - 1 - i, 0))
    bl.store(out + 3 * BLOCK + i, bl.flip(bl.cat(left, right)))
    bl.store(out + 4 * BLOCK + i, bl.sort(a))
    bl.store(out + 5 * BLOCK + i, bl.full((BLOCK,), -0.75, a.dtype))
    bl.store(least, bl.min(a, 0))
    bl.store(most + bl.arange(0, 4), bl.max(bl.reshape(b, (4, BLOCK // 4)), 1))
    bl.store(where, bl.argmax(a, 0))
    bl.store(flags + i, (a <= b) | (a.to(bl.int1) & (a == 1.5)))


def _handling_reference(a):
    n, block = a["n"], a["BLOCK"]
    x, y = np.full(block, 1.5), np.zeros(block)
    x[:n], y[:n] = wide(a["x"])[:n], wide(a["y"])[:n]
    rows = np.maximum(x, y).reshape(block // 8, 8).T.reshape(block // 2, 2)
    left, right = rows[:, 0], rows[:, 1]
    parts = [
        np.where(x > y, x, -y),
        np.stack([right, left], 1).ravel(),
        np.abs(x)[::-1],
        np.concatenate([left, right])[::-1],
        np.sort(x),
        np.full(block, -0.75),
    ]
    flags = (x <= y) | (x == 1.5)
    return {
        "out": np.concatenate(parts),
        "least": np.array([x.min()]),
        "most": y.reshape(4, -1).max(1),
        "where": np.array([x.argmax()]),
        "flags": flags,
    }


for _name, _dtype in ML_DTYPES.items():

    def _make(rng, dtype=_dtype):
        block = 128
        x, y = normal(rng, block, dtype), normal(rng, block, dtype)
        outputs = {"out": poison(6 * block, dtype), "least": poison(1, np.float32), "most": poison(4, np.float32)}
        outputs |= {"where": poison(1, np.int32), "flags": poison(block, np.uint8)}
        return {"x": x, "y": y} | outputs | {"n": 100, "BLOCK": block}

    case(f"handling_{_name}", handling, _make, _handling_reference, rtol=0, atol=0)


@blocknb.kernel
def product(a, b, c, M: bl.constexpr, N: bl.constexpr, K: bl.constexpr, LEFT: bl.constexpr, RIGHT: bl.constexpr):
    m, n, k = bl.arange(0, M), bl.arange(0, N), bl.arange(0, K)
    left = bl.load(a + m[:, None] * K + k[None, :]).to(LEFT, bitcast=True)
    right = bl.load(b + k[:, None] * N + n[None, :]).to(RIGHT, bitcast=True)
    total = bl.full((M, N), 0.5, bl.float32)
    total = bl.dot(left, right, total, max_num_imprecise_acc=K, out_dtype=bl.float32)
    bl.store(c + m[:, None] * N + n[None, :], total)


def product_case(left, right, m=32, n=16, k=64, prefix="", rtol=2e-6, atol=2e-5, **rest):
    def make(rng):
        a = nearest(rng.standard_normal((m, k)), left.name)
        b = nearest(rng.standard_normal((k, n)), right.name)
        sizes = {"M": m, "N": n, "K": k, "LEFT": left, "RIGHT": right}
        return {"a": a, "b": b, "c": poison((m, n), np.float32)} | sizes

    def reference(x):
        return {"c": patterns(left.name)[x["a"]] @ patterns(right.name)[x["b"]] + 0.5}

    case(f"{prefix}product_{left.name}_{right.name}", product, make, reference, rtol=rtol, atol=atol, **rest)


for _left, _right in (*zip(FLOAT8, FLOAT8, strict=True), (FLOAT8[0], FLOAT8[1]), (FLOAT8[2], FLOAT8[1])):
    product_case(_left, _right)


@blocknb.kernel
def float8_views(x_desc, y_desc, x, y, z, w, rows, columns, R: bl.constexpr, C: bl.constexpr):
    """fp8 through host descriptors, device descriptors and block pointers; out-of-bounds elements are zero or NaN."""
    i, j = bl.program_id(0) * R, bl.program_id(1) * C
    y_desc.store([i, j], (x_desc.load([i, j]).to(bl.float32) * 2.0).to(y_desc.dtype))
    made = bl.make_tensor_descriptor(x, [rows, columns], [64, 1], [R, C], padding_option="nan")
    view = bl.make_block_ptr(y, (rows, columns), (64, 1), (i, j), (R, C), (1, 0))
    bl.store(view, made.load([i, j]), boundary_check=(0, 1))
    source = bl.make_block_ptr(x, (rows, columns), (64, 1), (0, 0), (R, C), (1, 0))
    source = bl.advance(source, (i - 3, j + 5))
    tile = bl.load(source, boundary_check=(0, 1), padding_option="zero")
    target = bl.make_tensor_descriptor(z, [rows, columns], [64, 1], [R, C])
    target.store([i, j], tile)
    transposed = bl.load(bl.make_block_ptr(x, (columns, rows), (1, 64), (j, i), (C, R), (0, 1)), boundary_check=(0, 1))
    product = bl.dot(x_desc.load([i, j]), transposed)
    at = bl.program_id(0) * bl.num_programs(1) + bl.program_id(1)
    padded = made.load([rows - 1, columns - 16]).to(bl.float32)
    bl.store(w + at * 2, bl.sum(product))
    bl.store(w + at * 2 + 1, bl.sum((padded != padded).to(bl.int32)))


def _views_make(rng, kind, programs):
    def array(values=None):
        whole = poison((40, 64), ML_DTYPES[kind.name])
        if values is not None:
            whole[:] = values
        return whole

    x = array(rng.integers(-8, 9, (40, 64)) / 4)
    y_all = array()
    rows, columns = 37, 48
    described = [blocknb.TensorDescriptor(a, (rows, columns), (64, 1), (16, 32)) for a in (x, array())]
    return {
        "x_desc": described[0], "y_desc": described[1], "x": x, "y": y_all, "z": array(),
        "w": poison(2 * programs, np.float32), "rows": rows, "columns": columns, "R": 16, "C": 32,
    }  # fmt: skip


def _views_reference(a):
    rows, columns, R, C = (a[n] for n in ("rows", "columns", "R", "C"))
    x = wide(a["x"])
    outputs = {name: np.full((40, 64), np.nan) for name in ("y_desc", "y", "z")}
    inside = (slice(rows), slice(columns))
    outputs["y_desc"][inside], outputs["y"][inside] = x[inside] * 2, x[inside]
    outputs["z"][inside] = 0
    outputs["z"][3:rows, : columns - 5] = x[: rows - 3, 5:columns]
    # The blocks of the last program columns begin where C begins anew, so the shift crosses into the next block's columns.
    sums = []
    for i in range(0, rows, R):
        for j in range(0, columns, C):
            block = np.zeros((R, C))
            part = x[i : min(i + R, rows), j : min(j + C, columns)]
            block[: part.shape[0], : part.shape[1]] = part
            sums += [(block @ block.T).sum(), R * C - 16]
    return outputs | {"w": np.array(sums)}


for _kind in FLOAT8:
    if _kind.name in ("fp8e4nv", "fp8e5"):
        case(
            f"float8_views_{_kind.name}",
            float8_views,
            lambda rng, kind=_kind: _views_make(rng, kind, 6),
            _views_reference,
            grid=(3, 2),
        )
