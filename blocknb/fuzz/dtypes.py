"""The evaluator's dtypes: names, promotion of operands, and rounding to each float format."""

from __future__ import annotations

from typing import Any

import numpy as np

SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = ("f16", "bf16", "f32", "f64")
FLOAT8 = ("e4nv", "e5")
DTYPES = ("i1", *INTEGERS, *FLOATS, *FLOAT8)
#: The spelling of each dtype in a kernel.
SPELLED = {
    "i1": "tl.int1",
    **{f"i{n}": f"tl.int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"tl.uint{n}" for n in (8, 16, 32, 64)},
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f64": "tl.float64",
    "e4nv": "tl.float8e4nv",
    "e5": "tl.float8e5",
}
#: The fraction bits, the smallest exponent of a normal number, and the largest finite number.
FORMAT = {
    "f64": (52, -1022, float(np.finfo(np.float64).max)),
    "f32": (23, -126, float(np.finfo(np.float32).max)),
    "f16": (10, -14, 65504.0),
    "bf16": (7, -126, float.fromhex("0x1.fep127")),
    "e4nv": (3, -6, 448.0),
    "e5": (2, -14, 57344.0),
}


def bits(dtype: str) -> int:
    return {"i1": 1, "bf16": 16, "e4nv": 8, "e5": 8}.get(dtype) or int(dtype[1:])


def is_float(dtype: str) -> bool:
    return dtype in FORMAT


def is_unsigned(dtype: str) -> bool:
    return dtype in UNSIGNED or dtype == "i1"


def limits(dtype: str) -> tuple[int, int]:
    """The smallest and the largest integer of a dtype."""
    n = bits(dtype)
    return (0, 2**n - 1) if is_unsigned(dtype) else (-(2 ** (n - 1)), 2 ** (n - 1) - 1)


def promote(a: str, b: str, divides: bool = False) -> str:
    """The dtype in which two operands are computed, by Triton's rules. `divides` is for / and %, which compute 16-bit floats in fp32."""
    if is_float(a) or is_float(b):
        floats = [d for d in (a, b) if is_float(d)]
        if "f64" in floats:
            return "f64"
        if "f32" in floats or divides:
            return "f32"
        if "f16" in floats:
            return "f16"
        return "bf16" if len(floats) == 2 else "f32"
    if is_unsigned(a) == is_unsigned(b):
        return a if bits(a) >= bits(b) else b
    unsigned, signed = (a, b) if is_unsigned(a) else (b, a)
    return unsigned if bits(unsigned) >= bits(signed) else signed


def storage(dtype: str) -> np.dtype:
    """The NumPy dtype of an array in memory."""
    if dtype in ("bf16", *FLOAT8):
        import ml_dtypes

        types = {"bf16": ml_dtypes.bfloat16, "e4nv": ml_dtypes.float8_e4m3fn, "e5": ml_dtypes.float8_e5m2}
        return np.dtype(types[dtype])
    return np.dtype("bool" if dtype == "i1" else {"i": "int", "u": "uint", "f": "float"}[dtype[0]] + dtype[1:])


def held(dtype: str) -> np.dtype:
    """The NumPy dtype that the evaluator computes with; it holds floats in fp64, whatever their rounding."""
    return np.dtype(np.float64) if is_float(dtype) else storage(dtype)


def ulp(dtype: str, x: np.ndarray) -> np.ndarray:
    """The distance between neighbouring floats of a dtype at x, in fp64."""
    fraction, least, _ = FORMAT[dtype]
    exponent = np.frexp(np.where(np.isfinite(x), x, 1.0))[1] - 1
    return np.ldexp(1.0, np.maximum(np.where(x == 0, least, exponent), least) - fraction)


def rounded(dtype: str, x: Any) -> np.ndarray:
    """Numbers (fp64 or long double) rounded once to a dtype, ties to even, held in fp64; overflow saturates to the largest fp8 number."""
    x = np.asarray(x)
    if dtype == "f64":
        return x.astype(np.float64)
    if dtype in ("f32", "f16") and x.dtype == np.float64:
        return x.astype(storage(dtype)).astype(np.float64)
    fraction, least, largest = FORMAT[dtype]
    finite = np.where(np.isfinite(x), x, 0)
    if dtype in FLOAT8:
        finite = np.clip(np.where(np.isinf(x), np.copysign(largest, x), finite), -largest, largest)
    exponent = np.maximum(np.frexp(finite)[1] - 1, least) - fraction
    near = np.ldexp(np.rint(np.ldexp(finite, -exponent)), exponent)
    near = np.where(np.abs(near) > largest, np.copysign(np.inf, near), near)
    keep = np.isnan(x) if dtype in FLOAT8 else ~np.isfinite(x)
    return np.where(keep, x, near).astype(np.float64)
