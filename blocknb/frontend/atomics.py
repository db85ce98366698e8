"""The builtins for atomics, which synchronize programs, and the barrier, which synchronizes the threads of one program."""

from __future__ import annotations

from typing import Any

from blocknb.frontend.emitter import NUMBERS, Mismatch, describe, is_pointer
from blocknb.frontend.memory import _spread, _with_mask, check_writable
from blocknb.frontend.scope import Frame, emits
from blocknb.ir.core import Value
from blocknb.language.rules import ATOMIC_DTYPES, SCOPES, SEMANTICS
from blocknb.language.types import BoolPointer


def _order(sem: Any, scope: Any) -> dict[str, str]:
    """The memory order (default acq_rel) and the scope (default gpu) of an atomic."""
    names = {
        "sem": ("acq_rel" if sem is None else sem, SEMANTICS),
        "scope": ("gpu" if scope is None else scope, SCOPES),
    }
    for argument, (name, allowed) in names.items():
        if name not in allowed:
            raise Mismatch(f"unknown {argument} {name!r}", f"one of {', '.join(allowed)}", argument)
    return {argument: name for argument, (name, _) in names.items()}


def _check(kind: str, pointer: Any) -> None:
    name = f"atomic_{kind}"
    if not is_pointer(pointer):
        hint = "pointers are array arguments of the kernel, moved by offsets: x_ptr + offsets"
        raise Mismatch(f"`{name}` needs a pointer, not {describe(pointer)}", hint, "pointer")
    allowed, dtype = ATOMIC_DTYPES[kind], pointer.type.dtype.element_ty
    if dtype not in allowed or isinstance(pointer.type.dtype, BoolPointer):
        hint = f"hardware supports {', '.join(map(str, allowed))}: give the array one of these dtypes"
        if kind == "xchg" and dtype in ATOMIC_DTYPES["cas"]:
            hint += ", or repeat tl.atomic_cas, which supports 16 bits, until it returns the expected old value"
        raise Mismatch(f"`{name}` does not work on {dtype}", hint, "pointer")
    check_writable(pointer)


def _operand(frame: Frame, pointer: Value, x: Any, argument: str) -> Value:
    """Converts a value to the pointer's dtype and shape."""
    emit, dtype = frame.emit, pointer.type.dtype.element
    x = emit.constant(x)
    if isinstance(x, NUMBERS):
        return emit.number(x, dtype, pointer.type.shape)
    if not isinstance(x, Value) or x.type.is_pointer:
        raise Mismatch(f"`{argument}` must be a number or a tile, not {describe(x)}", None, argument)
    return _spread(frame, pointer, emit.cast(x, dtype), argument)


def _update(kind: str) -> None:
    def handler(frame: Frame, pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Value:
        _check(kind, pointer)
        order = _order(sem, scope)
        pointer, mask_value = _with_mask(frame, pointer, mask)
        args = [pointer, _operand(frame, pointer, val, "val")]
        return frame.emit.value("atomic", *args, *([] if mask_value is None else [mask_value]), kind=kind, **order)

    emits(f"atomic_{kind}")(handler)


for _kind in ("add", "max", "min", "and", "or", "xor", "xchg"):
    _update(_kind)


@emits("atomic_cas")
def atomic_cas(frame: Frame, pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> Value:
    _check("cas", pointer)
    operands = (_operand(frame, pointer, x, name) for x, name in ((cmp, "cmp"), (val, "val")))
    return frame.emit.value("atomic_cas", pointer, *operands, **_order(sem, scope))


@emits("debug_barrier")
def debug_barrier(frame: Frame) -> None:
    frame.emit.op("barrier")
