"""Builds one kernel function for all lowerings: it writes instructions, and keeps the names of scalar values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from blocknb.codegen.scalar_math.instructions import InstructionBuilder, TargetFeatures, suffix
from blocknb.codegen.scalar_math.register_types import SIZES, constant, register_type
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

    # -- vector loads and stores: contiguous, masked, gathered and scattered ---------------------------------------------------

    def pointer(self, address: str) -> str:
        """An i64 address as an LLVM pointer."""
        return self.w.value(f"inttoptr i64 {address} to ptr")

    def load_vector(
        self,
        place: str,
        element: str,
        width: int,
        align: int,
        mask: str | None = None,
        other: str | None = None,
        volatile: bool = False,
    ) -> str:
        """Loads `width` contiguous elements from the pointer `place`; lanes whose mask is off get `other` (zero if None)."""
        ty = vector_type(element, width)
        if mask is None:
            return self.w.value(f"load {'volatile ' if volatile else ''}{ty}, ptr {place}, align {align}")
        if other is None:
            other = "zeroinitializer" if width > 1 else "0" if element.startswith("i") else "0.0"
        if width == 1:
            return self.w.guarded(mask, element, other, lambda: self.w.value(f"load {ty}, ptr {place}, align {align}"))
        operands = f"ptr align {align} {place}, <{width} x i1> {mask}, {ty} {other}"
        return self.w.value(f"call {ty} @llvm.masked.load.{suffix(element, width)}.p0({operands})")

    def store_vector(
        self,
        place: str,
        value: str,
        element: str,
        width: int,
        align: int,
        mask: str | None = None,
        streaming: bool = False,
    ) -> None:
        """Stores `width` contiguous elements where the mask is on. `streaming` stores are non-temporal, and have no mask."""
        ty = vector_type(element, width)
        if mask is None:
            self.w.do(f"store {ty} {value}, ptr {place}, align {align}{', !nontemporal !1' if streaming else ''}")
        elif width == 1:
            self.w.when(mask, lambda: self.w.do(f"store {ty} {value}, ptr {place}, align {align}"))
        else:
            if element in ("i8", "i16", "i32") and self.machine.x86:
                value = self._not_truncated(value, element, width)
            operands = f"{ty} {value}, ptr align {align} {place}, <{width} x i1> {mask}"
            self.w.do(f"call void @llvm.masked.store.{suffix(element, width)}.p0({operands})")

    def _not_truncated(self, value: str, element: str, width: int) -> str:
        """Writes a value in a form that LLVM does not recognise as a truncation.

        With AVX-512, LLVM 22 miscompiles a masked store of truncated integers if it finds that the mask holds for one lane alone. It stores
        that lane at its width before the truncation, which overwrites the neighbours. An exclusive or with a zero that LLVM cannot see
        through prevents it.
        """
        opaque = self.w.value('call i32 asm "", "=r,0"(i32 0)')
        zero = opaque if element == "i32" else self.w.value(f"trunc i32 {opaque} to {element}")
        return self.w.value(f"xor {vector_type(element, width)} {value}, {self.splat(zero, element, width)}")

    def gather(self, addresses: str, element: str, width: int, align: int, mask: str | None, other: str | None) -> str:
        """Loads elements from a vector of i64 addresses."""
        if width == 1:
            return self.load_vector(self.pointer(addresses), element, 1, align, mask, other)
        ty = vector_type(element, width)
        places = self.w.value(f"inttoptr <{width} x i64> {addresses} to <{width} x ptr>")
        mask = mask or "splat (i1 true)"
        other = other or "zeroinitializer"
        operands = f"<{width} x ptr> align {align} {places}, <{width} x i1> {mask}, {ty} {other}"
        return self.w.value(f"call {ty} @llvm.masked.gather.{suffix(element, width)}.v{width}p0({operands})")

    def scatter(self, addresses: str, value: str, element: str, width: int, align: int, mask: str | None) -> None:
        """Stores elements to a vector of i64 addresses; the last of several lanes with one address wins."""
        if width == 1:
            self.store_vector(self.pointer(addresses), value, element, 1, align, mask)
            return
        ty = vector_type(element, width)
        places = self.w.value(f"inttoptr <{width} x i64> {addresses} to <{width} x ptr>")
        mask = mask or "splat (i1 true)"
        operands = f"{ty} {value}, <{width} x ptr> align {align} {places}, <{width} x i1> {mask}"
        self.w.do(f"call void @llvm.masked.scatter.{suffix(element, width)}.v{width}p0({operands})")

    def lane_addresses(self, place: str, step: int, width: int) -> str:
        """The addresses place, place + step, ... in bytes, as a vector of i64."""
        first = self.w.value(f"ptrtoint ptr {place} to i64")
        return self.binary("add", self.splat(first, "i64", width), self.iota("i64", width, step), "i64", width)

    def load_strided(self, place: str, element: str, width: int, step: int = 1) -> str:
        """Loads elements of scratch that are `step` elements apart, from the pointer `place` on."""
        size = SIZES[element]
        if step == 1 or width == 1:
            return self.load_vector(place, element, width, size)
        return self.gather(self.lane_addresses(place, step * size, width), element, width, size, None, None)

    def store_strided(self, place: str, value: str, element: str, width: int, step: int = 1) -> None:
        """Stores elements to places of scratch that are `step` elements apart."""
        size = SIZES[element]
        if step == 1 or width == 1:
            self.store_vector(place, value, element, width, size)
        else:
            self.scatter(self.lane_addresses(place, step * size, width), value, element, width, size, None)


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
        """The LLVM operand of a scalar: a constant or a register."""
        op = self.definition.get(value)
        if op is not None and op.name == "const":
            return constant(op.attrs["value"], value.type.dtype)
        return self[value]

    def known(self, value: Value) -> str:
        """The LLVM operand of a scalar, or a placeholder if the scalar is not computed yet."""
        op = self.definition.get(value)
        return self.of(value) if value in self or (op is not None and op.name == "const") else "%unknown"
