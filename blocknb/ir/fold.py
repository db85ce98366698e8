"""Constant folding: evaluates an elementwise op on constants by the op table's NumPy meaning."""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.ir.core import Op
from blocknb.language import semantics
from blocknb.language.ops import OPS
from blocknb.language.types import Pointer

Number = bool | int | float


def fold(op: Op, constants: Sequence[Number | None]) -> Number | None:
    """The value of every element of the op's result when its operands are these constants (None: not a constant).

    None when it cannot be known: an operand is not constant, the op is not elementwise, or pointers are involved.
    """
    spec = OPS[op.name]
    types = [value.type for value in (*op.args, *op.results)]
    if spec.numpy is None or spec.kind != "elementwise" or any(isinstance(x.dtype, Pointer) for x in types):
        return None
    known = [value for value in constants if value is not None]
    if len(known) < len(op.args):
        return None
    arrays = [semantics.constant(value, arg.type.dtype) for value, arg in zip(known, op.args, strict=True)]
    dtype = op.results[0].type.dtype
    result = spec.numpy(op.attrs, dtype, *arrays)
    convert = float if dtype.is_float else bool if dtype.kind == "bool" else int
    return convert(result)
