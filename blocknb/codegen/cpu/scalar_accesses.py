"""Loads and stores of one element of the user's arrays, with bounds checks."""

from __future__ import annotations

from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.checks import BoundsChecks
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import constant, memory_type, register_type
from blocknb.ir.core import Op


def load(c: KernelBuilder, checks: BoundsChecks, op: Op, address: str, mask: str | None, other: str | None) -> str:
    """One element from an i64 address; `other` (zero if None) where the mask is off."""
    dtype = op.args[0].type.dtype.element
    checks.scalar(op, address, mask)
    element = memory_type(dtype)

    def read() -> str:
        load = "load volatile" if op.attrs.get("volatile") else "load"
        raw = c.w.value(f"{load} {element}, ptr {c.pointer(address)}, align {dtype.bytes}")
        if op.attrs.get("volatile"):  # LLVM may move other loads across a volatile one
            c.w.do("fence acquire")
        return casts.from_memory(c, raw, dtype, 1)

    if mask is None or mask == "true":
        return read()
    return c.w.guarded(mask, register_type(dtype), other or constant(0, dtype), read)


def store(c: KernelBuilder, checks: BoundsChecks, op: Op, address: str, value: str, mask: str | None) -> None:
    """One element to an i64 address, where the mask is on."""
    dtype = op.args[0].type.dtype.element
    checks.scalar(op, address, mask)

    def write() -> None:
        raw = casts.to_memory(c, value, dtype, 1)
        c.w.do(f"store {memory_type(dtype)} {raw}, ptr {c.pointer(address)}, align {dtype.bytes}")

    if mask is None or mask == "true":
        write()
    else:
        c.w.when(mask, write)
