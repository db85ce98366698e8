"""Element types in LLVM text: their names, constants and widths in memory."""

from __future__ import annotations

from typing import Any

from blocknb.codegen.text import literal, scalar_type
from blocknb.ir.core import Value
from blocknb.language.types import Pointer

ElementType = Any  # a DType or a Pointer; its kind decides which instructions apply


def llvm_type(dtype: ElementType) -> str:
    """LLVM's type of an element in a register. Pointers point to global memory."""
    return "ptr addrspace(1)" if isinstance(dtype, Pointer) else scalar_type(dtype)


def constant(value: Any, dtype: ElementType) -> str:
    """A constant operand."""
    return "null" if isinstance(dtype, Pointer) else literal(value, dtype)


def memory_bits(dtype: ElementType) -> int:
    """The width of an element in memory: a bool takes a byte."""
    return max(8, dtype.bits)


def num_registers(value: Value) -> int:
    """How many registers of a thread hold a value."""
    return value.type.layout.num_registers if value.type.shape else 1


def element_register(value: Value, register: int) -> int:
    """The register of `value` that goes with a register of a tile: a scalar has only register 0."""
    return register if value.type.shape else 0
