"""The LLVM types of a dtype's elements in registers, in arrays and in scratch memory, and constants of these types.

Registers hold fp16 and bf16 as fp32 values that are rounded to the narrow type after every operation. They hold bools as i1, fp8 as its
bits, and pointers as i64. So no instruction needs a half type, and no conversion needs a run-time library.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from blocknb.codegen import text
from blocknb.codegen.text import float_literal
from blocknb.language.types import DType, Pointer

NARROW = ("fp16", "bf16")
SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8, "ptr": 8}


def register_type(dtype: DType | Pointer) -> str:
    """The LLVM type of one element in a register."""
    if isinstance(dtype, Pointer):
        return "i64"
    if dtype.is_float and dtype.bits > 8:
        return "double" if dtype.bits == 64 else "float"
    return f"i{dtype.bits}"


def register_bits(dtype: DType | Pointer) -> int:
    """The bits that one element takes in a vector register."""
    return 32 if dtype.bits == 16 and dtype.is_float else max(dtype.bits, 8)


def memory_type(dtype: DType | Pointer) -> str:
    """The LLVM type of one element in the user's memory."""
    if not isinstance(dtype, Pointer) and dtype.name in NARROW:
        return "i16"
    return "i8" if dtype.bits == 1 else register_type(dtype)


def scratch_type(dtype: DType | Pointer) -> str:
    """The LLVM type of one element in scratch memory: as in registers, but a bool takes a byte."""
    return "i8" if dtype.bits == 1 else register_type(dtype)


def round_constant(value: Any, dtype: DType) -> Any:
    """The Python number that a dtype stores for `value`."""
    if dtype.name == "fp16":
        import numpy as np

        with np.errstate(all="ignore"):
            return float(np.float64(value).astype(np.float16))
    if dtype.name == "bf16":
        bits = text.bfloat_bits(float(value))
        return float("nan") if math.isnan(value) else struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return value


def constant(value: Any, dtype: DType | Pointer, width: int = 1) -> str:
    """A constant as an operand (without its type), splatted to `width` lanes."""
    if isinstance(dtype, Pointer):
        literal = str(int(value))
    elif dtype.is_float and dtype.bits > 8:
        literal = float_literal(float(round_constant(value, dtype)), register_type(dtype))
    else:
        literal = text.literal(value, dtype)
    return literal if width == 1 else f"splat ({register_type(dtype)} {literal})"
