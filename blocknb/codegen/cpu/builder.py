"""What every lowering writes with: the instructions of one kernel function, and the names of scalar values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from blocknb.codegen.scalar_math.instructions import InstructionBuilder, TargetFeatures
from blocknb.codegen.scalar_math.register_types import constant, register_type
from blocknb.codegen.text import DebugInfo, Writer, vector_type
from blocknb.ir.core import Op, Value


class KernelBuilder(InstructionBuilder):
    """Instructions of a kernel function, with their source lines; `bounds` has (address, lower, upper) of each pointer argument."""

    def __init__(self, machine: TargetFeatures, helpers: dict[str, str], debug: DebugInfo | None = None):
        super().__init__(Writer(), machine, helpers)
        self.debug = debug
        self.bounds: dict[int, tuple[str, str, str]] = {}

    def at(self, op: Op | None) -> AbstractContextManager[None]:
        """Instructions written inside carry the source line of an op; without one, the line of the kernel."""
        return self.w.at(self.debug.location(op.loc if op else None) if self.debug else "")

    def add_scaled(self, offset: str, counter: str, stride: int) -> str:
        """offset + counter * stride, as i64."""
        return self.i64("add", offset, self.i64("mul", counter, str(stride)))

    def inside(self, address: str, argument: int, size: int, width: int) -> str:
        """Whether an element of `size` bytes at an i64 address lies in the array of an argument."""
        _, lower, upper = self.bounds.get(argument, ("0", "0", "0"))
        room = self.i64("sub", upper, lower)
        room = self.splat(self.intrinsic("usub.sat", "i64", 1, room, str(size - 1)), "i64", width)
        distance = self.binary("sub", address, self.splat(lower, "i64", width), "i64", width)
        return self.w.value(f"icmp ult {vector_type('i64', width)} {distance}, {room}")


class ScalarNames(dict[Value, str]):
    """The register of each scalar value; `types` has the LLVM type of each register. `definition` finds constants."""

    def __init__(self, definition: Mapping[Value, Op]) -> None:
        super().__init__()
        self.definition = definition
        self.types: dict[str, str] = {f"%{id}{axis}": "i32" for id in ("pid", "grid") for axis in range(3)}

    def __setitem__(self, value: Value, name: str) -> None:
        super().__setitem__(value, name)
        self.types[name] = register_type(value.type.dtype)

    def of(self, value: Value) -> str:
        """The operand that stands for a scalar: a constant, or a register."""
        op = self.definition.get(value)
        if op is not None and op.name == "const":
            return constant(op.attrs["value"], value.type.dtype)
        return self[value]

    def known(self, value: Value) -> str:
        """The operand that stands for a scalar, or a placeholder if it is not computed yet."""
        return (
            self.of(value)
            if value in self or (value in self.definition and self.definition[value].name == "const")
            else "%unknown"
        )
