"""PTX semantics of NaNs and zeros, for `simt`: conversions of floats to integers ("cvt" in the PTX ISA), max and min; shifts."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np


def converted(x: np.ndarray, signed: bool, bits: int) -> np.ndarray:
    """cvt.rzi: truncated and clamped; a NaN is 0, but 2^(bits - 1) where the source is fp64 or the result has 64 bits."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    nan = 1 << bits - 1 if bits == 64 or x.dtype == np.float64 else 0

    def one(value: float) -> int:
        if math.isnan(value):
            return nan
        return high if value >= high else low if value <= low else int(value)

    numbers = [one(float(v)) % (1 << bits) for v in x]
    return np.array(numbers, f"u{max(bits, 8) // 8}").view(f"i{max(bits, 8) // 8}")


def intrinsic(env: Any, match: re.Match, x: np.ndarray) -> np.ndarray:
    """llvm.nvvm.f2i.rz and similar intrinsics."""
    return converted(x, not match[1], 64 if match[2] == "ll" else 32)


def conversion(text: str, x: np.ndarray) -> np.ndarray:
    """An asm of one cvt; 8 bits are extended into a register of 32."""
    found = re.fullmatch(r"cvt\.rzi\.([su])(8|16|32|64)\.f(16|32|64) \$0, \$1;", text)
    assert found, f"simt does not know {text}"
    assert x.dtype.itemsize * 8 == int(found[3]), text
    made = converted(x, found[1] == "s", int(found[2]))
    return made if found[2] != "8" else (made if found[1] == "s" else made.view(np.uint8)).astype(np.int32)


def extreme(env: Any, match: re.Match, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """max and min: +0 is above -0; a NaN loses against a number (llvm.maximumnum), or wins as with .NaN (llvm.maximum)."""
    if match[1] == "max":
        first = (a > b) | ((a == b) & ~np.signbit(a))
    else:
        first = (a < b) | ((a == b) & np.signbit(a))
    nan_of_a = np.isnan(a)
    otherwise = np.where(nan_of_a == bool(match[2]), b, a)
    found = np.where(nan_of_a | np.isnan(b), otherwise, np.where(first, a, b)).astype(a.dtype)
    return np.where(np.isnan(found), np.array(np.nan, a.dtype), found)  # one canonical NaN


def shifted(text: str, x: np.ndarray, count: np.ndarray) -> np.ndarray:
    """shl and shr: counts have no sign, and those beyond the width are clamped to it."""
    found = re.fullmatch(r"sh(l\.b|r\.s|r\.u)(32|64) \$0, \$1, \$2;", text)
    assert found, f"simt does not know {text}"
    assert x.dtype.itemsize * 8 == int(found[2]), text
    bits = int(found[2])
    by = [min(int(c) % (1 << 32), bits) for c in count]
    numbers = [int(v) if found[1] == "r.s" else int(v) % (1 << bits) for v in x]
    moved = [v << n if found[1] == "l.b" else v >> n for v, n in zip(numbers, by, strict=True)]
    return np.array([v % (1 << bits) for v in moved], f"u{bits // 8}").view(x.dtype)
