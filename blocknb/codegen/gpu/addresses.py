"""Addresses in global memory: a base and a constant number of bytes, so that accesses share bases."""

from __future__ import annotations

from collections.abc import Mapping

from blocknb.analysis.affine import Facts
from blocknb.codegen.gpu.registers import Registers
from blocknb.ir.core import Op, Value
from blocknb.layouts.linear import Layout


class AccessAddresses:
    """Finds the registers of a pointer tile that hold nearby addresses. `strides` are the constants by which register bits move them."""

    def __init__(self, registers: Registers, facts: Facts, defs: Mapping[Value, Op]):
        self.registers, self.facts, self.defs = registers, facts, defs
        self.strides: dict[Value, dict[int, int]] = {}

    def of(self, pointer: Value, register: int) -> tuple[str, int]:
        """The address in a register as a name and constant bytes: a nearby register's address where the distance is a constant."""
        if not pointer.type.shape:
            return self.registers.reg(pointer), 0
        while (op := self.defs.get(pointer)) is not None and op.name == "part":  # near the addresses of other parts
            pointer, register = self.registers.source_of_part(pointer, register)
        layout = pointer.type.layout
        strides = self.constant_strides(pointer, layout)
        base, distance = 0, 0
        for position in range(len(layout.reg)):
            if not register >> position & 1:
                continue
            if position in strides:
                distance += strides[position]
            else:
                base |= 1 << position
        return self.registers.reg(pointer, base), distance

    def constant_strides(self, pointer: Value, layout: Layout) -> dict[int, int]:
        """How many bytes each register bit moves the address by, for the bits that move it by a constant.

        Such a bit adds to the index. So no other bit of the layout may share an index bit with it.
        """
        if pointer not in self.strides:
            found: dict[int, int] = {}
            for position, basis in enumerate(layout.reg):
                others = [b for p, b in enumerate(layout.reg) if p != position] + [*layout.lane, *layout.warp]
                if any(basis & other for other in others):
                    continue
                distance = 0
                for axis in range(len(layout.shape)):
                    steps = (basis & layout.dim_mask(axis)) >> layout.dim_bits(axis).start
                    stride = self.facts.stride(pointer, axis) if steps else 0
                    if not isinstance(stride, int):
                        break
                    distance += steps * stride * pointer.type.dtype.element.bytes
                else:
                    found[position] = distance
            self.strides[pointer] = found
        return self.strides[pointer]
