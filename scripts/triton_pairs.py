"""The cases of `compare_triton.py`: every operator with all pairs of dtypes and with Python numbers, and the values that they get.

A case is (operator, left, right); each side is the name of a dtype or the text of a number. The values of a dtype are bit patterns, the
same for Triton and blocknb. They avoid what neither defines: division by zero, shifts by the width or more, floats out of an integer's
range.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

LANES = 8
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float8e4nv", "float8e5", "float16", "bfloat16", "float32", "float64")
DTYPES = ("int1", *INTEGERS, *FLOATS)
NUMBERS = ("True", "3", "-3", "300", "70000", "2147483648", "1099511627776", "9223372036854775808", "0.5", "1e-50")

SHIFTS = ("<<", ">>")
DIVISIONS = ("/", "//", "%")
SYMBOLS = ("+", "-", "*", *DIVISIONS, "&", "|", "^", *SHIFTS, "==", "!=", "<", "<=", ">", ">=")
#: Functions of two operands.
BINARY = {
    "minimum": "tl.minimum({x}, {y})",
    "maximum": "tl.maximum({x}, {y})",
    "minimum_nan": "tl.minimum({x}, {y}, tl.PropagateNan.ALL)",
    "maximum_nan": "tl.maximum({x}, {y}, tl.PropagateNan.ALL)",
    "where": "tl.where(c, {x}, {y})",
    "fdiv": "tl.fdiv({x}, {y})",
    "div_rn": "tl.div_rn({x}, {y})",
    "umulhi": "tl.umulhi({x}, {y})",
    "fma": "tl.fma({x}, {y}, {x})",
    "clamp": "tl.clamp({x}, {y}, {y})",
}
UNARY = {
    "-": "-{x}",
    "~": "~{x}",
    "abs": "tl.abs({x})",
    "floor": "tl.floor({x})",
    "ceil": "tl.ceil({x})",
    "exp": "tl.exp({x})",
    "sqrt": "tl.sqrt({x})",
    "sqrt_rn": "tl.sqrt_rn({x})",
    "sum": "tl.sum({x}, 0)",
    "max": "tl.max({x}, 0)",
    "min": "tl.min({x}, 0)",
    "argmax": "tl.argmax({x}, 0)",
    "argmin": "tl.argmin({x}, 0)",
    "cumsum": "tl.cumsum({x}, 0)",
}
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "cumsum")
NUMPY = {
    **{name: np.dtype(name) for name in (*INTEGERS, "float16", "float32", "float64")},
    "int1": np.dtype(bool),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8e5": np.dtype(ml_dtypes.float8_e5m2),
}


def expression(op: str, left: str, right: str) -> str:
    """The source of a case, in which `x`, `y` and `c` are tiles."""
    x = "x" if left in DTYPES else number(left)
    if not right:
        return UNARY[op].format(x=x)
    if right.startswith("to "):
        return f"x.to(tl.{right[3:]})"
    y = "y" if right in DTYPES else number(right)
    return BINARY[op].format(x=x, y=y) if op in BINARY else f"{x} {op} {y}"


def number(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def cases() -> Iterator[tuple[str, str, str]]:
    """All cases. The right side is empty for functions of one operand, and "to dtype" for casts."""
    for left in DTYPES:
        for right in DTYPES:
            yield from ((op, left, right) for op in (*SYMBOLS, *BINARY))
            yield "cast", left, f"to {right}"
        for text in NUMBERS:
            for op in (*SYMBOLS, "minimum", "maximum", "where", "clamp"):
                yield op, left, text
                yield op, text, left
        yield from ((op, left, "") for op in UNARY)


def operands(op: str, left: str, right: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of `x` and `y`. A side that is a number gets int32 zeros, which its expression does not read."""
    x, y = (values(side) if side in DTYPES else np.zeros(LANES, np.int32) for side in (left, right))
    if op in ("cast", "cumsum", "sum") or (op == "exp"):
        x = small(left)
    if op in SHIFTS and right in DTYPES:
        y = np.zeros(LANES, bool) if right == "int1" else (np.arange(1, LANES + 1) % 7).astype(NUMPY[right])
    if op in DIVISIONS and right in DTYPES:
        y = divisors(right)
    if op in DIVISIONS and right not in DTYPES:
        x = small(left)
    if op in ("//", "%") and left not in DTYPES:
        y = divisors(right)
    return x, y


def values(name: str) -> np.ndarray:
    """Eight values of a dtype with its extremes; floats have a NaN, infinities (but fp8e4nv) and zeros of both signs."""
    dtype = NUMPY[name]
    if name == "int1":
        return np.array([0, 1, 0, 1, 1, 0, 1, 1], bool)
    if name in INTEGERS:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return np.array([0, 1, high, 2, 7, high - 5, 100, low], dtype)
    big = np.inf if name != "float8e4nv" else 448.0
    return np.array([0.0, 1.5, -2.75, np.nan, 3.5, -0.0, big, -0.375], np.float32).astype(dtype)


def small(name: str) -> np.ndarray:
    """Values that every dtype of the sign holds: casts and sums of them are exact."""
    if name == "int1":
        return values(name)
    if name in INTEGERS:
        return np.array([0, 1, 2, 3, 7, 12, 5, 10], NUMPY[name])
    return np.array([0.0, 1.5, 2.75, 3.0, 7.0, 12.0, 0.375, 10.0], np.float32).astype(NUMPY[name])


def divisors(name: str) -> np.ndarray:
    if name == "int1":
        return np.ones(LANES, bool)
    negative = name in FLOATS or not name.startswith("uint")
    return np.array([1, 2, 3, 5, -3 if negative else 3, 7, 2, 4], np.float32).astype(NUMPY[name])


def condition() -> np.ndarray:
    return np.array([1, 0, 1, 1, 0, 0, 0, 1], bool)


def bits(array: np.ndarray) -> list[str]:
    """The values as hexadecimal bit patterns; every NaN is "nan"."""
    flat = np.ascontiguousarray(array).reshape(-1)
    raw = flat.view(f"uint{8 * flat.dtype.itemsize}")
    return ["nan" if x != x else f"{int(r):x}" for x, r in zip(flat, raw, strict=True)]
