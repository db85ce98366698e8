"""The types of the language table: entries, their cases, their inputs, and how errors are measured.

An `Entry` is one name of the language as lines of a kernel, with its dtypes and a NumPy reference. Its operands are `a`, `b`, `c`. A
dtype among `takes` and `gives` may be `X`, the one that varies. A reference gets floats widened (fp64 as NumPy's longdouble) unless it
takes them unchanged (`raw`). Errors are counted in units of the last place of the result's dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from blocknb.language import types as t
from blocknb.language.types import DType

X = "x"  # the dtype that varies
DTYPES = tuple(d for d in t.DTYPES if t.from_numpy(d.numpy) == d)  # dtypes of arrays
BOOL = (t.int1,)
SIGNED = tuple(d for d in DTYPES if d.kind == "int")
UNSIGNED = tuple(d for d in DTYPES if d.kind == "uint")
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = tuple(d for d in DTYPES if d.is_float and d.bits > 8)
WIDE = (t.float32, t.float64)
FLOATS8 = tuple(
    d for d in DTYPES if d.is_float and d.bits == 8
)  # supported by moves, comparisons and casts, but not by arithmetic
NUMBERS = (*INTEGERS, *FLOATS)
ALL = (*BOOL, *NUMBERS)
ANY = (*ALL, *FLOATS8)
WORDS = (t.int32, t.uint32, t.int64, t.uint64)


@dataclass(frozen=True)
class Case:
    """One way to call an entry: a shape for every operand, and fields, which replace {name} in the code and are passed to the reference."""

    shapes: tuple[tuple[int, ...], ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


def over(*shapes: Any, **fields: Sequence[Any]) -> tuple[Case, ...]:
    """A case for each shape (a tuple of shapes where there are several operands, None where there are none) and each choice among
    the fields."""
    choices = [dict(zip(fields, each, strict=True)) for each in itertools.product(*fields.values())]
    whole = [() if s is None else s if s and isinstance(s[0], tuple) else (s,) for s in shapes]
    return tuple(Case(s, chosen) for s in whole for chosen in choices)


@dataclass(frozen=True)
class Entry:
    """A row. `code`: lines of a kernel, the last of them the result or a tuple of results; without `cases` it is applied to scalars and
    to tiles of every rank. `reference(*operands, **fields)` gives an array for each result. `ulps`: the error allowed, where 0.5 is
    a correct rounding, of results below `least` in units of that; `on_gpu`: where a GPU's is larger. `zeros`: whether the sign of a
    zero is said. `refuses`: False where other dtypes are not asked.
    """

    name: str
    code: str
    reference: Callable
    dtypes: tuple[DType, ...] = ALL
    takes: tuple[Any, ...] = (X,)
    gives: tuple[Any, ...] = (X,)
    cases: tuple[Case, ...] = ()
    domain: Callable = None  # type: ignore[assignment]
    ulps: float = 0.5
    on_gpu: float = 0.0
    least: float = 0.0
    zeros: bool = True
    raw: bool = False
    refuses: bool = True
    runs: tuple[str, ...] = ("interpreter", "cpu", "gpu")
    names: Mapping[str, Any] = field(default_factory=dict)  # more globals of the kernel

    def results(self, x: DType) -> tuple[DType, ...]:
        return tuple(x if g == X else g(x) if callable(g) and not isinstance(g, DType) else g for g in self.gives)

    def operands(self, x: DType) -> tuple[DType, ...]:
        return tuple(x if d == X else d for d in self.takes)


ENTRIES: list[Entry] = []


def entry(*args: Any, **rest: Any) -> None:
    ENTRIES.append(Entry(*args, **rest))


# -- dtypes of results ---------------------------------------------------------------------------------------------------------


def float_of(x: DType) -> DType:
    """The result dtype of float functions: integers become fp32."""
    return x if x.is_float else t.float32


def at_least_fp32(x: DType) -> DType:
    return x if x == t.float64 else t.float32


def summed(x: DType) -> DType:
    return x if x.is_float or x.bits >= 32 else t.uint32 if x.kind in ("uint", "bool") else t.int32


def int_if_bool(x: DType) -> DType:
    return t.int32 if x == t.int1 else x


# -- numbers -------------------------------------------------------------------------------------------------------------------


def limits(dtype: DType) -> tuple[float, float, float]:
    """The largest, the least normal and the least positive float."""
    info = ml_dtypes.finfo(dtype.numpy)
    return float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)


def specials(dtype: DType) -> list[float]:
    most, normal, least = limits(dtype)
    numbers = [0.0, 1.0, 0.5, 3.0, normal, least, least * 3, normal - least, most, np.inf]
    return [np.nan, *numbers, *(-x for x in numbers)]


def wild(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    """Numbers of every magnitude, without special values: the whole range of integers, and many small ones."""
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        large = rng.integers(info.min, info.max, count, dtype.numpy, endpoint=True)
        return np.where(rng.random(count) < 0.5, large >> dtype.numpy.type(dtype.bits // 2), large)
    most, normal, _ = limits(dtype)
    low, high = np.log2(normal) - 6, np.log2(most)
    exponents = np.where(rng.random(count) < 0.5, rng.uniform(-4, 4, count), rng.uniform(low, high, count))
    return (np.exp2(exponents) * rng.choice([-1, 1], count)).astype(dtype.numpy)


def edges(dtype: DType) -> np.ndarray:
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_float:
        return np.array(specials(dtype)).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return np.array(
        sorted({info.min, info.min + 1, max(-1, info.min), 0, 1, 2, 3, 7, info.max - 1, info.max}), dtype.numpy
    )


def anything(rng: np.random.Generator, dtypes: Sequence[DType], sizes: Sequence[int]) -> list[np.ndarray]:
    """All pairs of special values, and random numbers, in random order."""
    grid = np.meshgrid(*(np.arange(len(edges(d))) for d in dtypes), indexing="ij")
    found, paired = [], len(set(sizes)) == 1
    chosen = rng.permutation(grid[0].size)[: sizes[0] * 3 // 4]
    order = rng.permutation(sizes[0])
    for dtype, size, at in zip(dtypes, sizes, grid, strict=True):
        x = wild(rng, dtype, size)
        if paired:
            x[: len(chosen)] = edges(dtype)[at.ravel()[chosen]]
            x = x[order]
        found.append(x)
    return found


def finite(rng: np.random.Generator, dtypes: Sequence[DType], sizes: Sequence[int]) -> list[np.ndarray]:
    """Like `anything`, without NaN and infinity."""
    found = anything(rng, dtypes, sizes)
    return [
        np.where(np.isfinite(x), x, np.ones_like(x)) if d.is_float else x for d, x in zip(dtypes, found, strict=True)
    ]


def between(low: float, high: float) -> Callable:
    """Random numbers of a range, including its ends."""

    def domain(rng: np.random.Generator, dtypes: Sequence[DType], sizes: Sequence[int]) -> list[np.ndarray]:
        found = []
        for dtype, size in zip(dtypes, sizes, strict=True):
            if dtype.is_float:
                x = rng.uniform(low, high, size)
                if size > 3:
                    x[:2] = low, high
            else:
                least = max(low, 0) if dtype.kind != "int" else low
                x = rng.integers(int(least), int(high), size, endpoint=True)
            found.append(x.astype(dtype.numpy))
        return found

    return domain


def exact(rng: np.random.Generator, dtypes: Sequence[DType], sizes: Sequence[int]) -> list[np.ndarray]:
    """Small whole numbers, whose sums and products are exact in every dtype."""
    found = []
    for dtype, size in zip(dtypes, sizes, strict=True):
        low = 0 if dtype.kind in ("uint", "bool") else -2
        found.append(rng.integers(low, 1 if dtype.kind == "bool" else 2, size, endpoint=True).astype(dtype.numpy))
    return found


def distinct(rng: np.random.Generator, dtypes: Sequence[DType], sizes: Sequence[int]) -> list[np.ndarray]:
    """Numbers in random order, few of them equal."""
    found = []
    for dtype, size in zip(dtypes, sizes, strict=True):
        x = np.arange(size) - (0 if dtype.kind == "uint" else size // 2)
        found.append(rng.permutation((x % 128 if dtype.bits == 8 else x).astype(dtype.numpy)))
    return found


def from_each(*domains: Callable) -> Callable:
    """A domain of its own for each operand."""

    def domain(rng: np.random.Generator, dtypes: Sequence[DType], sizes: Sequence[int]) -> list[np.ndarray]:
        return [d(rng, [kind], [size])[0] for d, kind, size in zip(domains, dtypes, sizes, strict=True)]

    return domain


def widened(x: np.ndarray, dtype: DType) -> np.ndarray:
    """An operand in the dtype that references expect."""
    if not dtype.is_float:
        return x
    return x.astype(np.longdouble if dtype.bits == 64 else np.float64)


# -- errors --------------------------------------------------------------------------------------------------------------------


def steps(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The distance between floats of a dtype about x."""
    digits, least = dtype.fp_mantissa_width + 1, 2 - dtype.exponent_bias
    _, exponents = np.frexp(np.where(np.isfinite(x), x, 0))
    return np.ldexp(np.ones_like(x), np.maximum(exponents, least) - digits)


def errors(actual: np.ndarray, expected: np.ndarray, dtype: DType, zeros: bool = True, least: float = 0) -> np.ndarray:
    """The error of each element in units of the last place; infinite where NaN, infinity or the sign of a zero differ."""
    if not dtype.is_float:
        return np.where(actual == expected.astype(actual.dtype), 0.0, np.inf)
    with np.errstate(all="ignore"):
        expected = np.asarray(expected, np.longdouble)
        found = actual.astype(np.float64).astype(np.longdouble)
        step, most = steps(np.maximum(np.abs(expected), least), dtype), np.longdouble(limits(dtype)[0])
        rounded = np.rint(expected / step) * step
        beyond = np.isfinite(expected) & (np.abs(rounded) > most)
        error = np.abs(found - expected) / step
        error = np.where(beyond & np.isfinite(found), np.maximum(error, 1.0), error)
        error = np.where(beyond & (found == np.copysign(np.inf, expected)), 0.0, error)
        error = np.where((found == expected) | (np.isnan(found) & np.isnan(expected)), 0.0, error)
        if zeros:
            wrong = (found == 0) & (rounded == 0) & (np.signbit(found) != np.signbit(expected))
            error = np.where(wrong, np.inf, error)
    return np.where(np.isnan(error), np.inf, error).astype(float)
