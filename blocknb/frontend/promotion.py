"""The dtype of a result: Triton's promotion, the dtypes without arithmetic, and how messages write a dtype."""

from __future__ import annotations

from typing import Any

from blocknb.frontend.constants import Mismatch
from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.types import DType, Pointer


def result_dtype(x: Any, y: Any, division: bool = False) -> DType:
    """The dtype in which `x op y` is computed: Triton's promotion, with Python numbers weak."""
    if isinstance(x, Value) and isinstance(y, Value):
        a, b = x.type.dtype, y.type.dtype
        dtype = t.promote(a, b)
        if dtype == t.bfloat16 and a != b and not (a.is_float and b.is_float):
            dtype = t.float32  # as in Triton, only two bf16 operands give bf16
        if division and not dtype.is_float and (a.kind == "int") != (b.kind == "int"):
            raise Mismatch(
                f"division of {a} by {b}: one is signed, the other is not",
                "cast one of them: both must be signed or both unsigned",
            ).in_triton(
                f"Cannot use /, #, or % with {in_triton(a)} and {in_triton(b)} because they have different signedness"
            )
    else:
        tile, literal = (x, y) if isinstance(x, Value) else (y, x)
        dtype = t.promote_literal(tile.type.dtype, literal)
        check_literal(literal, dtype)
    return t.float32 if division and dtype.is_float and dtype != t.float64 else dtype


def refuse_float8(what: str, dtype: Any, argument: str | None = None) -> None:
    """Raises Mismatch for arithmetic in fp8, which has too few bits for sums and products."""
    if dtype.is_fp8():
        raise Mismatch(
            f"{what} does not compute in {dtype}: floats of 8 bits are for memory and for tl.dot",
            "convert first: x.to(tl.float16) or x.to(tl.float32)",
            argument,
        ).in_triton(f"unexpected type {dtype}")


def check_literal(value: Any, dtype: DType) -> None:
    """Raises Mismatch if an integer dtype does not hold a number of the source."""
    if dtype.is_float or dtype.kind == "bool":
        return
    low, high = (
        (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
    )
    if not low <= value <= high:
        wider = t.int64 if dtype.bits >= 32 else t.int32
        raise Mismatch(
            f"the number {value} does not fit in {dtype} (from {low} to {high})",
            f"cast the tile to a {'signed' if value < 0 else 'wider'} dtype first: .to({spelled(wider)})",
        ).in_triton(f"Scalar {value} is out of range for type {dtype}")


def spelled(dtype: Any) -> str:
    """A dtype as source text: `tl.float32`."""
    name = str(getattr(dtype, "name", dtype)).replace("bf16", "bfloat16")
    return f"tl.{'float' + name[2:] if name.startswith('fp') else name}"


def in_triton(dtype: Any) -> str:
    """A dtype as Triton's messages write it."""
    return f"pointer<{dtype.element}>" if isinstance(dtype, Pointer) else f"triton.language.{spelled(dtype)[3:]}"


def invalid_operands(x: Any, y: Any) -> str:
    """Triton's words for two values that an operator does not combine."""
    a, b = (v.type.dtype if isinstance(v, Value) else t.literal_dtype(v) for v in (x, y))
    return f"invalid operands of type {in_triton(a)} and {in_triton(b)}"


def incompatible(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Triton's words for two shapes that do not broadcast to each other."""
    rank = min(len(a), len(b))
    pairs = enumerate(zip(a[len(a) - rank :], b[len(b) - rank :], strict=True), max(len(a), len(b)) - rank)
    at, left, right = next((i, m, n) for i, (m, n) in pairs if m != n and 1 not in (m, n))
    return f"Cannot make_shape_compatible: incompatible dimensions at index {at}: {left} and {right}"
