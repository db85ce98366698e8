"""Kernels that show NaNs and the sign of a zero (maximum, minimum, clamp, and their reductions), with expected results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as tl

FLOATS = ("float16", "bfloat16", "float32", "float64")
EIGHT = ("float8_e4m3fn", "float8_e5m2")
KINDS = {name: getattr(ml_dtypes, name) for name in ("bfloat16", *EIGHT)}


@blocknb.kernel
def pairs(x, y, out, n, BLOCK: tl.constexpr):
    """Nine results of pairs, as tiles and as scalars; also with a constant."""
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    zero = tl.zeros((BLOCK,), tl.float32).to(a.dtype)
    tl.store(out + at, tl.maximum(a, b))
    tl.store(out + BLOCK + at, tl.minimum(a, b))
    tl.store(out + 2 * BLOCK + at, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 3 * BLOCK + at, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 4 * BLOCK + at, tl.maximum(a, zero))
    tl.store(out + 5 * BLOCK + at, tl.minimum(zero, a))
    tl.store(out + 6 * BLOCK + at, tl.maximum(-zero, a))
    tl.store(out + 7 * BLOCK + at, tl.minimum(a, -zero))
    tl.store(out + 8 * BLOCK + at, tl.maximum(a, zero, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 9 * BLOCK + at, tl.minimum(-zero, a, propagate_nan=tl.PropagateNan.ALL))
    for j in range(n):
        s, t, one = tl.load(x + j), tl.load(y + j), 10 * BLOCK + j
        tl.store(out + one, tl.maximum(s, t))
        tl.store(out + BLOCK + one, tl.minimum(s, t))
        tl.store(out + 2 * BLOCK + one, tl.maximum(s, t, propagate_nan=tl.PropagateNan.ALL))
        tl.store(out + 3 * BLOCK + one, tl.minimum(s, t, propagate_nan=tl.PropagateNan.ALL))


@blocknb.kernel
def rows(x, top, low, first, last, best, worst, flat, M: tl.constexpr, N: tl.constexpr):
    """Extrema and their indices along either axis; the results of both are concatenated."""
    r, c = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + r[:, None] * N + c[None, :])
    tl.store(top + r, tl.max(v, 1))
    tl.store(top + M + c, tl.max(v, 0))
    tl.store(low + r, tl.min(v, 1))
    tl.store(low + M + c, tl.min(v, 0))
    tl.store(first + r, tl.argmax(v, 1))
    tl.store(first + M + c, tl.argmax(v, 0))
    tl.store(last + r, tl.argmin(v, 1))
    tl.store(last + M + c, tl.argmin(v, 0))
    value, _ = tl.max(v, 1, return_indices=True)
    tl.store(best + r, value)
    value, _ = tl.min(v, 0, return_indices=True, return_indices_tie_break_left=False)
    tl.store(worst + c, value)
    for j in tl.static_range(4):  # rows of one program, as they are usually reduced
        row = tl.load(x + j * N + c)
        tl.store(flat + j, tl.max(row, 0))
        tl.store(flat + 4 + j, tl.min(row, 0))


def kind(dtype: str) -> np.dtype:
    return np.dtype(KINDS.get(dtype, dtype))


def extreme(a: Any, b: Any, largest: bool, nan: bool) -> Any:
    """One pair, by IEEE 754-2019: maximum and minimum if `nan`, else maximumNumber and minimumNumber."""
    x, y = float(a), float(b)
    if x != x or y != y:
        return a if (x != x) == nan else b
    if x == y == 0:
        return a if np.signbit(np.float64(x)) != largest else b
    return a if (x > y) == largest else b


def special(dtype: str) -> np.ndarray:
    nan = np.array([np.nan, -np.nan])
    return np.concatenate([np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 240.0, -240.0]), nan]).astype(kind(dtype))


def of_pairs(dtype: str, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    values = special(dtype)
    a, b = (v.ravel() for v in np.meshgrid(values, values))
    order, block = rng.permutation(len(a)), 128
    a, b = (np.concatenate([v[order], rng.choice(values, block - len(a))]) for v in (a, b))
    zero = np.zeros(1, a.dtype)[0]

    def row(x: np.ndarray, y: np.ndarray, largest: bool, nan: bool) -> np.ndarray:
        return np.array([extreme(p, q, largest, nan) for p, q in zip(x, y, strict=True)], a.dtype)

    same, minus = np.full(block, zero), np.full(block, -zero)
    made = [row(a, b, largest, nan) for nan in (False, True) for largest in (True, False)]
    fixed = [row(a, same, True, False), row(same, a, False, False), row(minus, a, True, False)]
    fixed += [row(a, minus, False, False), row(a, same, True, True), row(minus, a, False, True)]
    arguments = {"x": a, "y": b, "out": np.full(14 * block, 7, a.dtype), "n": block, "BLOCK": block}
    return arguments, {"out": np.concatenate([*made, *fixed, *made])}


def of_rows(dtype: str, rng: np.random.Generator, m: int, n: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Rows of few distinct values, so that there are ties; some have only NaN, one kind of zero, both zeros, or -inf and NaN."""
    own = kind(dtype)
    x = rng.choice(special(dtype), (m, n))
    sets = (
        [np.nan],
        [-0.0],
        [0.0],
        [0.0, -0.0],
        [-np.inf, np.nan],
        [np.inf, np.nan],
        [-0.0, -1.0],
        [0.0, 1.0, np.nan, -0.0],
    )
    sets += ([-0.0] * 40 + [0.0], [0.0] * 40 + [-0.0], [-0.0, np.nan], [0.0, -np.nan])
    for i, choice in enumerate(sets[: m - 2]):
        x[i + 2] = rng.choice(np.array(choice), n).astype(own)
    wide = np.dtype(np.float32) if own.itemsize < 4 else own
    poison = {"top": m + n, "low": m + n, "best": m, "worst": n, "flat": 8}
    arguments: dict[str, Any] = {"x": x.reshape(-1).copy()}
    arguments |= {name: np.full(size, 7, wide) for name, size in poison.items()}
    arguments |= {name: np.full(m + n, 7, np.int32) for name in ("first", "last")} | {"M": m, "N": n}
    lines = [*x, *x.T]
    whole = {largest: np.array([_row(v, largest)[0] for v in lines], wide) for largest in (True, False)}
    place = {largest: np.array([_row(v, largest)[1] for v in lines], np.int32) for largest in (True, False)}
    wanted = {"top": whole[True], "low": whole[False], "first": place[True], "last": place[False]}
    wanted["flat"] = np.concatenate([whole[True][:4], whole[False][:4]])
    wanted["best"] = np.array([v[i] for v, i in zip(x, place[True], strict=False)], wide)
    return arguments, wanted


def _row(values: np.ndarray, largest: bool) -> tuple[Any, int]:
    """The extremum, and the index of its first occurrence; NaNs are ignored, unless all are NaN."""
    found = values[0]
    for v in values[1:]:
        found = extreme(found, v, largest, False)
    numbers = values.astype(np.float64)
    same = np.isnan(numbers) if np.isnan(float(found)) else numbers == float(found)
    return found, int(np.argmax(same))
