"""Tiles with error bounds (a running error analysis), which the evaluator computes with.

A Val holds the expected numbers and an error bound for each. The bound is 0 for an exact result: integers, moves, one IEEE operation on
exact operands. It is positive if several roundings are allowed. It is infinite for an undefined result, such as a comparison of two numbers
that are closer than their bounds. `slack` is the extra rounding of a product that a compiler contracts with a sum into one fma; only sums
use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.fuzz import dtypes
from blocknb.fuzz.dtypes import is_float, rounded, ulp


class Ambiguous(Exception):
    """The kernel's control flow or addresses depend on a number that rounding may change, so a difference proves no defect."""


@dataclass(frozen=True, eq=False)
class Val:
    """Numbers of one dtype; None for `err` and `slack` means zeros."""

    dtype: str
    data: np.ndarray
    err: np.ndarray | None = None
    slack: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> Val:
        """The same elements rearranged."""
        err = None if self.err is None else move(self.err)
        return Val(self.dtype, move(self.data), err, None if self.slack is None else move(self.slack))

    @property
    def bound(self) -> np.ndarray:
        return np.zeros(self.shape) if self.err is None else self.err

    @property
    def loose(self) -> np.ndarray:
        """The error bound for an operand of a sum."""
        return self.bound if self.slack is None else self.bound + self.slack

    def exact(self) -> np.ndarray:
        """The numbers, where an error would change control flow or addresses. Raises Ambiguous if they are not exact."""
        if self.err is not None and self.err.any():
            raise Ambiguous
        return self.data


def val(dtype: str, data: Any, err: Any = None, slack: Any = None) -> Val:
    """A Val whose bounds are None if all are zero."""
    data = np.asarray(data, dtypes.held(dtype))
    if err is not None:
        err = np.broadcast_to(np.where(np.isnan(err), np.inf, err), data.shape)
        if not err.any():
            err = None
    if slack is not None and not np.any(slack):
        slack = None
    return Val(dtype, data, err, slack)


def tainted(*parts: Val) -> np.ndarray | None:
    """Infinite bounds where an operand is not exact, for a result that depends on all bits."""
    if all(p.err is None for p in parts):
        return None
    return np.where(sum(np.broadcast_arrays(*(p.bound for p in parts))) > 0, np.inf, 0.0)


def finish(dtype: str, value: np.ndarray, spread: np.ndarray | None, slack: np.ndarray | None = None) -> Val:
    """A rounded float result; `spread` is the total uncertainty of its operands."""
    near = rounded(dtype, value)
    if spread is None or not np.any(spread):
        return val(dtype, near, None, slack)
    spread = np.where(np.isnan(spread), np.inf, spread)  # infinity times zero
    largest = dtypes.FORMAT[dtype][2]
    unsure = ~np.isfinite(near) | (np.abs(near) + spread > largest)
    err = np.where(spread > 0, np.where(unsure, np.inf, spread + ulp(dtype, near)), 0.0)
    return val(dtype, near, err, slack)


def cast(v: Val, dtype: str) -> Val:
    """Converts the dtype: integers wrap, floats round to nearest even; float to integer truncates, saturates, and maps NaN to 0."""
    if v.dtype == dtype:
        return v
    if not is_float(v.dtype):
        if dtype == "i1":
            return val(dtype, v.data != 0, tainted(v))
        if not is_float(dtype):
            return val(dtype, v.data.astype(dtypes.held(dtype)), tainted(v))
        if dtype == "f32":
            return val(dtype, v.data.astype(np.float32).astype(np.float64), tainted(v))
        return val(dtype, rounded(dtype, v.data.astype(np.longdouble)), tainted(v))
    if is_float(dtype):
        if dtypes.FORMAT[dtype][0] >= dtypes.FORMAT[v.dtype][0] and dtype not in dtypes.FLOAT8 and dtype != "f16":
            return Val(dtype, v.data, v.err, v.slack)
        return finish(dtype, v.data, v.err)
    if dtype == "i1":
        unsure = ~(np.abs(v.data) > v.bound)
        return val(dtype, v.data != 0, np.where((v.bound > 0) & unsure, np.inf, 0.0) if v.err is not None else None)
    found = saturated(v.data, dtype)
    if v.err is None:
        return val(dtype, found)
    same = (saturated(v.data - v.err, dtype) == found) & (saturated(v.data + v.err, dtype) == found)
    same &= v.err < np.inf
    return val(dtype, found, np.where((v.err > 0) & ~same, np.inf, 0.0))


def saturated(x: np.ndarray, dtype: str) -> np.ndarray:
    low, high = dtypes.limits(dtype)
    whole = np.trunc(np.where(np.isnan(x), 0.0, x))
    inside = (whole >= float(low)) & (whole < float(high) + (1.0 if high < 2**53 else 0.0))
    kept = np.where(inside, whole, 0.0).astype(dtypes.held(dtype))
    bounds = np.where(whole < 0, np.array(low, dtypes.held(dtype)), np.array(high, dtypes.held(dtype)))
    return np.where(inside, kept, bounds).astype(dtypes.held(dtype))


def bitcast(v: Val, dtype: str) -> Val:
    raw = np.ascontiguousarray(v.data.astype(dtypes.storage(v.dtype)))
    data = raw.view(dtypes.storage(dtype)).reshape(v.shape)
    if not is_float(v.dtype):
        return val(dtype, data.astype(dtypes.held(dtype)), tainted(v))
    unsure = np.isnan(v.data) | (v.data == 0) | (v.bound > 0)  # the sign of a zero and the bits of a NaN are undefined
    return val(dtype, data.astype(dtypes.held(dtype)), np.where(unsure, np.inf, 0.0))


def _float_arithmetic(sym: str, dtype: str, a: Val, b: Val) -> Val:
    x, y = a.data, b.data
    known = a.err is None and b.err is None
    wide = np.longdouble if dtype == "f64" else np.float64
    match sym:
        case "+" | "-":
            spread = None if known and a.slack is None and b.slack is None else a.loose + b.loose
            return finish(dtype, x + y if sym == "+" else x - y, spread)
        case "*":
            product = x * y
            near = rounded(dtype, product)
            exact = (x.astype(wide) * y.astype(wide) == near) | ~np.isfinite(near)
            slack = np.where(exact, 0.0, ulp(dtype, near) / 2)
            spread = None if known else np.abs(x) * b.bound + np.abs(y) * a.bound + a.bound * b.bound
            return finish(dtype, product, spread, slack)
        case "/":
            quotient = x / y
            near = rounded(dtype, quotient)
            exact = (near.astype(wide) * y.astype(wide) == x.astype(wide)) | ~np.isfinite(near)
            spread = np.where(exact, 0.0, 2.5 * ulp(dtype, near)) if dtype != "f64" else np.zeros(near.shape)
            if not known:
                least = np.maximum(np.abs(y) - b.bound, 0)
                spread = spread + (a.bound + np.abs(quotient) * b.bound) / least
            return finish(dtype, quotient, spread)
        case "%":
            return val(dtype, rounded(dtype, np.fmod(x, y)), tainted(a, b))
    raise KeyError(sym)


def arithmetic(sym: str, dtype: str, a: Val, b: Val) -> Val:
    """`a sym b`, both of `dtype`."""
    if is_float(dtype):
        return _float_arithmetic(sym, dtype, a, b)
    if dtype == "i1" and sym in "&|":
        return _condition(sym, a, b)
    with np.errstate(all="ignore"):
        found = _integers(sym, dtype, a.data, b.data)
    if sym in "+-*" and dtype in ("i32", "i64") and any(_wraps(found, axis) for axis in range(found.ndim)):
        raise Ambiguous("a progression wraps, which the CPU assumes not to happen: docs/design/index_arithmetic.md")
    return val(dtype, found, tainted(a, b))


def _wraps(found: np.ndarray, axis: int) -> bool:
    """Whether a row of integers has a constant small step, apart from the place where it wraps."""
    if found.shape[axis] < 2:
        return False
    rows = np.moveaxis(found, axis, 0)
    with np.errstate(all="ignore"):
        steps = np.diff(rows, axis=0)
    constant = (steps == steps[0]).all(axis=0) & (steps[0] != 0) & (np.abs(steps[0].astype(np.float64)) <= 1 << 16)
    distance = rows[-1].astype(np.float64) - rows[0].astype(np.float64)
    off = np.abs(distance - steps[0].astype(np.float64) * (len(rows) - 1))
    return bool((constant & (off > 2.0 ** (8 * found.itemsize - 2))).any())


def _integers(sym: str, dtype: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    match sym:
        case "+":
            return x + y
        case "-":
            return x - y
        case "*":
            return x * y
        case "//" | "%":
            safe = np.where(y == 0, np.ones_like(y), y)
            remainder = np.fmod(x, safe)
            return np.where(y == 0, np.zeros_like(x), remainder if sym == "%" else (x - remainder) // safe)
        case "&" | "|" | "^":
            return {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[sym](x, y)
        case "<<" | ">>":
            width = dtypes.bits(dtype)
            beyond = (y < 0) | (y >= width)
            amount = np.where(beyond, np.zeros_like(y), y)
            lost = np.where(x < 0, -np.ones_like(x), np.zeros_like(x)) if sym == ">>" else np.zeros_like(x)
            return np.where(beyond, lost, np.left_shift(x, amount) if sym == "<<" else np.right_shift(x, amount))
    raise KeyError(sym)


def _condition(sym: str, a: Val, b: Val) -> Val:
    """The and, or of conditions; one side can decide alone."""
    found = a.data & b.data if sym == "&" else a.data | b.data
    if a.err is None and b.err is None:
        return val("i1", found)
    decides = sym == "|"
    sure = ((a.bound == 0) & (a.data == decides)) | ((b.bound == 0) & (b.data == decides))
    return val("i1", found, np.where(sure, 0.0, np.asarray(tainted(a, b))))


def compare(sym: str, a: Val, b: Val) -> Val:
    test = {
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "==": np.equal,
        "!=": np.not_equal,
    }
    found = test[sym](a.data, b.data)
    if a.err is None and b.err is None:
        return val("i1", found)
    spread = a.bound + b.bound
    apart = np.abs(a.data - b.data) if is_float(a.dtype) else np.zeros(found.shape)
    return val("i1", found, np.where((spread > 0) & ~(apart > spread), np.inf, 0.0))


def select(c: Val, a: Val, b: Val) -> Val:
    data = np.where(c.data, a.data, b.data)
    if c.err is None and a.err is None and b.err is None and a.slack is None and b.slack is None:
        return Val(a.dtype, data)
    err = np.where(c.data, a.bound, b.bound)
    same = (a.data == b.data) & (a.bound == 0) & (b.bound == 0)
    err = np.where((c.bound > 0) & ~same, np.inf, err)
    zero = np.zeros(())
    slack = np.where(c.data, zero if a.slack is None else a.slack, zero if b.slack is None else b.slack)
    return val(a.dtype, data, err, slack)


def maximum(a: Val, b: Val) -> Val:
    """The larger of two numbers; a number wins against NaN."""
    return _extreme(np.fmax if is_float(a.dtype) else np.maximum, a, b)


def minimum(a: Val, b: Val) -> Val:
    """The smaller of two numbers; a number wins against NaN."""
    return _extreme(np.fmin if is_float(a.dtype) else np.minimum, a, b)


def clamp(x: Val, low: Val, high: Val) -> Val:
    return minimum(maximum(x, low), high)


def _extreme(f: Callable[..., np.ndarray], a: Val, b: Val) -> Val:
    found = f(a.data, b.data)
    if not is_float(a.dtype):
        return val(a.dtype, found, tainted(a, b))
    return val(a.dtype, found, None if a.err is None and b.err is None else np.maximum(a.bound, b.bound))


def negate(v: Val) -> Val:
    return val(v.dtype, np.negative(v.data), v.err if is_float(v.dtype) else tainted(v), v.slack)


def absolute(v: Val) -> Val:
    data = v.data if dtypes.is_unsigned(v.dtype) else np.abs(v.data)
    return val(v.dtype, data, v.err if is_float(v.dtype) else tainted(v), v.slack)


def fma(a: Val, b: Val, c: Val) -> Val:
    """a * b + c rounded once; one more rounding is allowed where long doubles may have rounded, too."""
    wide = np.longdouble
    product = a.data.astype(wide) * b.data.astype(wide)
    total = product + c.data.astype(wide)
    back = total - product
    exact = (product - (total - back)) + (c.data - back) == 0
    near = rounded(a.dtype, total)
    spread = np.where(exact & (a.dtype != "f64"), 0.0, ulp(a.dtype, near))
    spread = spread + np.abs(a.data) * b.bound + np.abs(b.data) * a.bound + a.bound * b.bound + c.loose
    return finish(a.dtype, total, np.where(np.isfinite(near), spread, spread * 0 if not spread.any() else spread))


def rounded_up(a: Val, b: Val) -> Val:
    """cdiv of positive integers, the quotient rounded up."""
    return val(a.dtype, -(-a.data.astype(np.int64) // b.data.astype(np.int64)), tainted(a, b))


def philox(seed: Val, offset: Val) -> Val:
    """The first word of Philox-4x32-10 for a seed, whose halves are the key, and a counter (offset, 0, 0, 0) (Salmon et al., 2011)."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    key = seed.exact().astype(np.int64).astype(np.uint64)
    k0, k1 = key & low, key >> half
    c0 = offset.exact().astype(np.int64).astype(np.uint64) & low
    k0, k1, c0 = np.broadcast_arrays(k0, k1, c0)
    c1 = c2 = c3 = np.zeros_like(c0)
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> half) ^ c1 ^ k0, b & low, (a >> half) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return val("u32", c0.astype(np.uint32))


def upper_half(a: Val, b: Val) -> Val:
    """The upper half of the unsigned product of two integers."""
    width = dtypes.bits(a.dtype)
    mask = (1 << width) - 1
    x, y = (np.asarray(v.data, object) & mask for v in (a, b))
    high = np.asarray((x * y) >> width, object)
    signed = np.where(high > mask >> 1, high - (0 if dtypes.is_unsigned(a.dtype) else mask + 1), high)
    return val(a.dtype, signed.astype(dtypes.held(a.dtype)), tainted(a, b))


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x)


#: The fuzzer defines the functions anew and does not read the op table, so that it finds errors of the table. Maps a name to the function
#: in fp64, and to the allowed error in ulps and in absolute units of 2^-fraction.
FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "exp": (np.exp, 8, 0),
    "exp2": (np.exp2, 8, 0),
    "log": (lambda x: np.log(np.maximum(x, 1e-300)), 8, 4),
    "log2": (lambda x: np.log2(np.maximum(x, 1e-300)), 8, 4),
    "sqrt": (lambda x: np.sqrt(np.maximum(x, 0)), 2, 0),
    "sqrt_rn": (lambda x: np.sqrt(np.maximum(x, 0)), 0, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(np.maximum(x, 1e-300)), 4, 0),
    "sin": (np.sin, 8, 4),
    "cos": (np.cos, 8, 4),
    "tanh": (np.tanh, 16, 4),
    "erf": (_erf, 16, 4),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 16, 1),
}


def function(name: str, v: Val) -> Val:
    """A mathematical function of arguments that the generator keeps in a moderate range."""
    if name in ("floor", "ceil"):
        whole: Callable[..., np.ndarray] = np.floor if name == "floor" else np.ceil
        found = whole(v.data)
        if v.err is None:
            return val(v.dtype, found)
        same = (whole(v.data - v.err) == found) & (whole(v.data + v.err) == found)
        return val(v.dtype, found, np.where((v.err > 0) & ~same, v.err + 1, 0.0))
    f, units, absolute_units = FUNCTIONS[name]
    found = f(v.data)
    fraction = dtypes.FORMAT[v.dtype][0]
    spread = units * ulp(v.dtype, found) + absolute_units * 2.0**-fraction
    spread = np.where(np.isfinite(found), spread, 0.0)
    if name.startswith("exp"):  # the argument is rounded after a multiplication
        spread = spread + np.where(np.isfinite(found), np.abs(v.data) * np.abs(found) * 2.0**-fraction * 2, 0.0)
    if v.err is not None:
        off = np.maximum(np.abs(f(v.data + v.err) - found), np.abs(f(v.data - v.err) - found))
        spread = spread + (v.err if name in ("sin", "cos") else off)
    return finish(v.dtype, found, spread)
