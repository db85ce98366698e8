"""The evaluator's ops on whole tiles: shapes, reductions, scans, sorting and products, with error bounds for reordered sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blocknb.fuzz import dtypes, numbers
from blocknb.fuzz.dtypes import is_float, rounded, ulp
from blocknb.fuzz.numbers import Val, val

SHAPES: dict[str, Callable[[Val, dict[str, Any]], Val]] = {
    "reshape": lambda v, at: v.moved(lambda x: np.reshape(x, at["shape"])),
    "trans": lambda v, at: v.moved(lambda x: np.transpose(x, at["perm"])),
    "expand": lambda v, at: v.moved(lambda x: np.expand_dims(x, at["axis"])),
    "flip": lambda v, at: v.moved(lambda x: np.flip(x, at["axis"])),
    "xor_shuffle": lambda v, at: v.moved(lambda x: np.take(x, np.arange(x.shape[at["axis"]]) ^ at["mask"], at["axis"])),
}


#: The padding by sign and whether the elements are floats: the value that loses every comparison; numbers win against NaN.
EXTREMES: dict[tuple[int, bool], Any] = {
    (1, True): np.fmax,
    (-1, True): np.fmin,
    (1, False): np.maximum,
    (-1, False): np.minimum,
}


def broadcast(v: Val, shape: tuple[int, ...]) -> Val:
    return v.moved(lambda x: np.broadcast_to(x, shape))


def stacked(a: Val, b: Val, stack: Callable[[Sequence[np.ndarray]], np.ndarray]) -> Val:
    """Combines two tiles by a function of a pair of arrays."""
    err = None if a.err is None and b.err is None else stack([np.asarray(a.bound), np.asarray(b.bound)])
    return val(a.dtype, stack([a.data, b.data]), err)


def interleave(pair: Sequence[np.ndarray]) -> np.ndarray:
    joined = np.stack(pair, -1)
    return joined.reshape(*joined.shape[:-2], -1)


def grain(x: np.ndarray) -> np.ndarray:
    """The exponent of the lowest bit that is set in each number; large for zeros."""
    mantissa, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    low = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.where(whole == 0, 10_000, exponent - 53 + low)


def fits(dtype: str, size: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Whether sums of multiples of 2^least with magnitudes up to `size` are exact in any order."""
    digits = dtypes.FORMAT[dtype][0] + 1
    return (size == 0) | (size <= np.ldexp(1.0, np.clip(digits + least, -1000, 1000)))


def total(v: Val, axis: int, keep: bool, running: bool = False, reverse: bool = False) -> Val:
    """The sum along an axis, or the running sums; floats may be added in any order."""
    x = v.data
    if not is_float(v.dtype):
        found, err = integer_total(v, axis, keep, running, reverse, np.add)
        return val(v.dtype, found, err)

    def along(f: Any, y: np.ndarray) -> np.ndarray:
        if not running:
            return f.reduce(y, axis=axis, keepdims=keep)
        y = np.flip(y, axis) if reverse else y
        y = f.accumulate(y, axis=axis)
        return np.flip(y, axis) if reverse else y

    wide = x.astype(np.longdouble) if v.dtype == "f64" else x
    found = along(np.add, wide)
    size = along(np.add, np.abs(x))
    near = rounded(v.dtype, found)
    exact = fits(v.dtype, size, along(np.minimum, grain(x)))
    count = x.shape[axis] + 2
    spread = np.where(exact, 0.0, count * size * 2.0 ** -dtypes.FORMAT[v.dtype][0] + ulp(v.dtype, near))
    spread = np.where(np.isfinite(near) | np.isnan(along(np.add, x)), np.nan_to_num(spread, posinf=np.inf), 0.0)
    spread = np.where(np.isfinite(size) & (size > dtypes.FORMAT[v.dtype][2] / 2), np.inf, spread)
    spread = np.where(~np.isfinite(size), 0.0, spread)  # infinities and NaNs dominate in any order
    if v.err is not None or v.slack is not None:
        spread = spread + along(np.add, v.loose)
    return finish_total(v.dtype, found, spread)


def finish_total(dtype: str, found: np.ndarray, spread: np.ndarray) -> Val:
    near = rounded(dtype, found)
    unsure = (spread > 0) & ~np.isfinite(near)
    return val(dtype, near, np.where(unsure, np.inf, spread))


def integer_total(v: Val, axis: int, keep: bool, running: bool, reverse: bool, f: Any) -> tuple[np.ndarray, Any]:
    taint = numbers.tainted(v)
    if not running:
        err = None if taint is None else taint.max(axis=axis, keepdims=keep)
        return f.reduce(v.data, axis=axis, keepdims=keep, dtype=v.data.dtype), err
    turn: Callable = (lambda y: np.flip(y, axis)) if reverse else (lambda y: y)
    found = turn(f.accumulate(turn(v.data), axis=axis, dtype=v.data.dtype))
    return found, None if taint is None else turn(np.maximum.accumulate(turn(taint), axis=axis))


def running_product(v: Val, axis: int, reverse: bool) -> Val:
    if not is_float(v.dtype):
        return val(v.dtype, *integer_total(v, axis, True, True, reverse, np.multiply))
    turn: Callable = (lambda y: np.flip(y, axis)) if reverse else (lambda y: y)
    found = turn(np.multiply.accumulate(turn(v.data), axis=axis))
    near = rounded(v.dtype, found)
    simple = turn(np.logical_and.accumulate(turn(np.isin(v.data, (0.0, 1.0, -1.0))), axis=axis))
    spread = np.where(simple, 0.0, (v.data.shape[axis] + 2) * ulp(v.dtype, near) * 2)
    if v.err is not None:
        spread = np.where(turn(np.maximum.accumulate(turn(v.err), axis=axis)) > 0, np.inf, spread)
    return val(v.dtype, near, np.where(np.isfinite(near), spread, np.where(simple, 0.0, np.inf)))


def extreme(v: Val, axis: int, keep: bool, sign: int) -> Val:
    """max (sign 1) or min (-1); numbers win against NaN."""
    found = EXTREMES[sign, is_float(v.dtype)].reduce(v.data, axis=axis, keepdims=keep)
    if v.err is None:
        return val(v.dtype, found)
    err = v.err.max(axis=axis, keepdims=keep)
    return val(v.dtype, found, err if is_float(v.dtype) else np.where(err > 0, np.inf, 0.0))


def where_extreme(v: Val, axis: int, keep: bool, sign: int) -> Val:
    """argmax or argmin, int32: the lowest index of equal elements; numbers win against NaN. A row of NaNs has any result."""
    best = EXTREMES[sign, is_float(v.dtype)].reduce(v.data, axis=axis, keepdims=True)
    found = np.argmax(v.data == best, axis=axis, keepdims=keep)
    rows = np.isnan(best) if is_float(v.dtype) else np.zeros(best.shape, bool)
    rows = rows if keep else np.squeeze(rows, axis)
    if v.err is not None:
        rows = rows | (v.err > 0).any(axis=axis, keepdims=keep)
    return val("i32", found, np.where(rows, np.inf, 0.0) if rows.any() else None)


def ordered(v: Val, axis: int, descending: bool) -> Val:
    found = np.sort(v.data, axis=axis)
    err = np.isnan(v.data).any(axis=axis, keepdims=True) if is_float(v.dtype) else np.zeros((1,) * v.data.ndim, bool)
    bound = np.where(err, np.inf, v.bound.max(axis=axis, keepdims=True))
    if not is_float(v.dtype):
        bound = np.where(bound > 0, np.inf, 0.0)
    return val(v.dtype, np.flip(found, axis) if descending else found, np.broadcast_to(bound, found.shape))


def taken(v: Val, index: Val, axis: int) -> Val:
    at = index.exact().astype(np.int64) % v.data.shape[axis]
    return v.moved(lambda x: np.take_along_axis(x, at, axis))


def histogram(v: Val, bins: int) -> Val:
    found = np.bincount(v.exact().astype(np.int64), minlength=bins)[:bins]
    return val("i32", found)


def tf32(x: np.ndarray) -> np.ndarray:
    """fp32 numbers rounded to the 10 fraction bits of TF32."""
    exponent = np.frexp(x)[1] - 11
    return np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)


def dot(a: Val, b: Val, acc: Val | None, dtype: str, precision: str) -> Val:
    """The product of matrices (or stacks), summed in `dtype` (f32, f64, i32) in any order."""
    if dtype == "i32":
        found = a.data.astype(np.int64) @ b.data.astype(np.int64)
        found = found + (0 if acc is None else acc.data)
        err = None
        if not all(p is None or p.err is None for p in (a, b, acc)):
            rows = np.asarray((a.bound > 0).any(-1))[..., None]
            columns = np.asarray((b.bound > 0).any(-2))[..., None, :]
            err = np.where(rows | columns | (0 if acc is None else acc.bound > 0), np.inf, 0.0)
        return val("i32", found.astype(np.int32), err)
    x, y = a.data, b.data
    size = np.abs(x) @ np.abs(y)
    least = grain(x).min(-1)[..., None] + grain(y).min(-2)[..., None, :]
    found = x @ y
    spread = np.zeros(found.shape)
    if a.dtype == "f32" and precision == "tf32" and not (np.array_equal(tf32(x), x) and np.array_equal(tf32(y), y)):
        spread = spread + size * 2.0**-9
    if acc is not None:
        found, size = found + acc.data, size + np.abs(acc.data)
        least, spread = np.minimum(least, grain(acc.data)), spread + acc.loose
    fraction = dtypes.FORMAT[dtype][0]
    if precision == "tf32x3":
        spread = spread + size * 2.0**-19
    spread = spread + np.where(fits(dtype, size, least), 0.0, (x.shape[-1] + 4) * size * 2.0**-fraction)
    spread = spread + a.bound @ np.abs(y) + np.abs(x) @ b.bound + a.bound @ b.bound
    near = rounded(dtype, found)
    return val(dtype, near, np.where(np.isfinite(near) & np.isfinite(size), spread, np.inf))
