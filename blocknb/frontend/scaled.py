"""The builtin `dot_scaled`: checks the arguments. `language.microscaling` implements the computation in the language."""

from __future__ import annotations

from typing import Any

from blocknb.frontend import calls
from blocknb.frontend.emitter import Mismatch, describe
from blocknb.frontend.promotion import spelled
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import dtype_of, flag
from blocknb.ir.core import Value
from blocknb.language import types as t

#: The dtypes that hold the elements of a format. Bytes are reinterpreted as the first.
FORMATS = {
    "e2m1": (t.uint8, t.int8),
    "e4m3": (t.float8e4nv, t.uint8, t.int8),
    "e5m2": (t.float8e5, t.uint8, t.int8),
    "bf16": (t.bfloat16, t.uint16, t.int16),
    "fp16": (t.float16, t.uint16, t.int16),
}


@emits("dot_scaled")
def dot_scaled(
    frame: Frame, lhs: Any, lhs_scale: Any, lhs_format: Any, rhs: Any, rhs_scale: Any, rhs_format: Any, acc: Any = None,
    fast_math: Any = False, lhs_k_pack: Any = True, rhs_k_pack: Any = True, out_dtype: Any = t.float32,
) -> Value:  # fmt: skip
    """Emits `dot_scaled`. A NaN scale gives NaNs even with `fast_math`, which would allow other results."""
    flag(frame, fast_math, "fast_math")
    if dtype_of(out_dtype, "out_dtype") != t.float32:
        raise Mismatch("`dot_scaled` accumulates in fp32", "omit out_dtype, and cast the result", "out_dtype")
    a, m, k = _operand(frame, "lhs", lhs, lhs_format, flag(frame, lhs_k_pack, "lhs_k_pack"))
    b, n, k2 = _operand(frame, "rhs", rhs, rhs_format, flag(frame, rhs_k_pack, "rhs_k_pack"))
    if len(a.type.shape) != len(b.type.shape):
        raise Mismatch(
            f"`dot_scaled` cannot multiply {describe(a)} by {describe(b)}",
            "both must be matrices, or both stacks of matrices",
            "rhs",
        )
    if k != k2:
        raise Mismatch(
            f"`lhs` has {k} elements along K, but `rhs` has {k2}",
            "two elements of e2m1 share a byte, along K unless lhs_k_pack or rhs_k_pack is False",
            "rhs",
        )
    left_scale = _scale("lhs_scale", lhs_scale, (*a.type.shape[:-2], m), k)
    right_scale = _scale("rhs_scale", rhs_scale, (*b.type.shape[:-2], n), k)
    acc = None if not isinstance(acc, Value) and not acc else acc
    rank, fp4 = len(a.type.shape), (lhs_format == "e2m1", rhs_format == "e2m1")
    packed = rank - 1 if lhs_k_pack else rank - 2, rank - 2 if rhs_k_pack else rank - 1
    from blocknb.language.microscaling import _scaled_product

    half = "fp16" in (lhs_format, rhs_format)
    arguments = [a, left_scale, fp4[0], b, right_scale, fp4[1], acc, *packed, half]
    return calls.call(frame, _scaled_product, arguments, {})


def _operand(frame: Frame, name: str, x: Any, kind: Any, k_pack: bool) -> tuple[Value, int, int]:
    """The operand in the dtype of its format, its number of rows (columns, on the right), and its number of elements along K."""
    if kind not in FORMATS:
        raise Mismatch(f"unknown format {kind!r}", f"one of {', '.join(FORMATS)}", f"{name}_format")
    if not isinstance(x, Value) or len(x.type.shape) not in (2, 3):
        raise Mismatch(f"`dot_scaled` multiplies matrices, not {describe(x)}", None, name)
    if x.type.dtype not in FORMATS[kind]:
        raise Mismatch(
            f"`{name}` is {x.type.dtype}, but its format is {kind!r}",
            f"pass elements of {kind} as {' or '.join(spelled(d) for d in FORMATS[kind])}",
            name,
        )
    if not k_pack and kind != "e2m1":
        raise Mismatch(f"only e2m1 has two elements in one byte, not {kind}", "leave it out", f"{name}_k_pack")
    if x.type.dtype != FORMATS[kind][0]:
        x = frame.emit.value("bitcast", x, dtype=FORMATS[kind][0])
    rows, columns = x.type.shape[-2:]
    factor = 2 if kind == "e2m1" else 1
    along_k, other = (columns, rows) if name == "lhs" else (rows, columns)
    return (x, other, along_k * factor) if k_pack else (x, other * factor, along_k)


def _scale(name: str, scale: Any, lines: tuple[int, ...], k: int) -> Value | None:
    """The scales: one e8m0 code per 32 elements along K, or one fp8e4nv per 16."""
    if scale is None:
        return None
    if not isinstance(scale, Value) or scale.type.dtype not in (t.uint8, t.float8e4nv):
        raise Mismatch(f"`{name}` must be a tile of uint8 (e8m0) or fp8e4nv, not {describe(scale)}", None, name)
    group = 32 if scale.type.dtype == t.uint8 else 16
    wanted = (*lines, k // group)
    if scale.type.shape != wanted or k < group:
        raise Mismatch(
            f"`{name}` has shape {scale.type.shape}, not {wanted}",
            f"give one scale per {group} elements along K, the last axis of the scales on both sides (do not transpose the right one)",
            name,
        )
    return scale
