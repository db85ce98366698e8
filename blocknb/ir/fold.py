"""Evaluates an elementwise op on constants, with the op table's own meaning: what `simplify` folds with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blocknb.ir.core import Op
from blocknb.language.ops import OPS
from blocknb.language.types import Pointer

Number = bool | int | float


def fold(op: Op, constants: Sequence[Number | None]) -> Number | None:
    """The value of every element of the op's result when its operands are these constants (None: not a constant).

    None when it cannot be known: an operand is not constant, the op is not elementwise, pointers are involved, or the
    meaning is undefined (an integer divided by zero, a shift by the width or more).
    """
    spec = OPS[op.name]
    types = [value.type for value in (*op.args, *op.results)]
    if spec.numpy is None or spec.kind != "elementwise" or any(isinstance(x.dtype, Pointer) for x in types):
        return None
    known = [value for value in constants if value is not None]
    if len(known) < len(op.args) or _undefined(op, known):
        return None
    arrays = [np.asarray(value).astype(arg.type.dtype.numpy) for value, arg in zip(known, op.args, strict=True)]
    dtype = op.results[0].type.dtype
    result = spec.numpy(op.attrs, dtype, *arrays)
    convert = float if dtype.is_float else bool if dtype.kind == "bool" else int
    return convert(result)


def _undefined(op: Op, values: list[Number]) -> bool:
    dtype = op.args[0].type.dtype
    match op.name:
        case "div" | "rem":
            return dtype.is_integer and values[1] == 0
        case "shl" | "shr":
            return not 0 <= values[1] < dtype.bits
    return False
