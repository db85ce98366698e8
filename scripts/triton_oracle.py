"""Runs the cases of `triton_pairs.py` with an installed Triton, on its interpreter, and records result dtypes and values.

Triton's semantics decide dtypes and ops. Its interpreter keeps bf16 and fp8 as raw integers, and computes on those bits. So this script
replaces the methods that compute by NumPy and ml_dtypes on the numbers themselves.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

import numpy as np
import triton
import triton.language as tl
import triton_pairs as pairs
from triton.runtime import interpreter

DTYPES = {name: getattr(tl, name) for name in pairs.DTYPES}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
SEMANTIC = interpreter.interpreter_semantic
BUILDER = interpreter.interpreter_builder


def numbers(handle: Any) -> np.ndarray:
    """The numbers that a handle of the interpreter holds; a comparison's handle holds bools, and keeps the dtype of its operands."""
    if handle.data.dtype == bool:
        return handle.data
    return np.ascontiguousarray(handle.data).view(pairs.NUMPY[NAMES[handle.dtype.scalar]])


def handle(data: Any, dtype: Any) -> Any:
    raw = np.ascontiguousarray(np.asarray(data).astype(pairs.NUMPY[NAMES[dtype.scalar]]))
    return interpreter.TensorHandle(raw.view(interpreter._get_np_dtype(dtype.scalar)), dtype.scalar)


def unsigned(handle: Any) -> np.ndarray:
    data = numbers(handle)
    return data.view(f"uint{8 * data.dtype.itemsize}")


def repair() -> None:
    """Makes the interpreter compute on numbers where it computes on raw bits."""
    kind = type(BUILDER)
    original = kind.binary_op

    def binary(self: Any, lhs: Any, rhs: Any, op: Callable) -> Any:
        if lhs.dtype.scalar not in NAMES or not lhs.dtype.scalar.is_floating():
            return original(self, lhs, rhs, op)
        a, b = numbers(lhs), numbers(rhs)
        narrow = lhs.dtype.scalar in (tl.bfloat16, tl.float8e4nv, tl.float8e5)
        found = op(a.astype(np.float32), b.astype(np.float32)) if narrow else op(a, b)
        return interpreter.TensorHandle(found, tl.int1) if found.dtype == bool else handle(found, lhs.dtype)

    def unary(self: Any, arg: Any, op: Callable) -> Any:
        a = numbers(arg)
        return handle(op(a.astype(np.float32) if arg.dtype.scalar == tl.bfloat16 else a), arg.dtype)

    def cast(self: Any, src: Any, dtype: Any, *_: Any) -> Any:
        source = numbers(src)
        wide = source.astype(np.float32) if src.dtype.scalar.is_floating() and source.itemsize < 4 else source
        return handle(wide, dtype)

    kind.binary_op, kind.unary_op, kind.cast_impl, kind.create_fp_to_fp = binary, unary, cast, cast
    kind.create_lshr = lambda self, lhs, rhs: handle(unsigned(lhs) >> unsigned(rhs), lhs.dtype)
    kind.create_fabs = lambda self, arg: unary(self, arg, np.abs)
    kind.create_fma = lambda self, x, y, z: handle(
        numbers(x).astype(np.float64) * numbers(y).astype(np.float64) + numbers(z).astype(np.float64), x.dtype
    )

    def clamp(self: Any, x: Any, low: Any, high: Any, nan: Any) -> Any:
        if nan == tl.PropagateNan.ALL:
            return self.create_minimumf(self.create_maximumf(x, low), high)
        return self.create_minnumf(self.create_maxnumf(x, low), high)

    kind.create_clampf = clamp


def tensor(data: np.ndarray) -> Any:
    dtype = DTYPES[next(name for name, kind in pairs.NUMPY.items() if kind == data.dtype)]
    return SEMANTIC.make_tensor(handle(data, dtype), tl.block_type(dtype, list(data.shape)))


def outcome(op: str, left: str, right: str) -> dict[str, Any]:
    """{"type", "bits"} of a case, or {"error"} with Triton's message."""
    x, y = pairs.operands(op, left, right)
    names = {"x": tensor(x), "y": tensor(y), "c": tensor(pairs.condition()), "tl": tl}
    text = pairs.expression(op, left, right)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = evaluate(text, names)
    except Exception as error:
        return {"error": str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__}
    if result.dtype not in NAMES:
        return {"error": f"result of {result.dtype}"}
    raw = op in pairs.REDUCTIONS and left in pairs.FLOATS  # the interpreter reduces the raw bits
    name = NAMES[result.dtype]
    found = numbers(result.handle).astype(pairs.NUMPY[name])
    return {"type": name, **({} if raw else {"bits": pairs.bits(found)})}


def evaluate(text: str, names: dict[str, Any]) -> Any:
    """Evaluates an expression as the interpreter does in a kernel."""
    patched = interpreter._patch_lang(_kernel)
    try:
        return eval(text, names)
    finally:
        patched.restore()


def _kernel() -> None:
    """A function whose globals the interpreter patches."""
    tl.zeros  # noqa: B018


def record() -> dict[str, Any]:
    """All cases: {"triton": version, "cases": {"op ~ left ~ right": outcome}}."""
    repair()
    return {
        "triton": triton.__version__,
        "cases": {" ~ ".join(case): outcome(*case) for case in pairs.cases()},
    }
