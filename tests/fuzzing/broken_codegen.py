"""A compiler whose CPU code subtracts floats where it should add them."""

from __future__ import annotations

from blocknb.codegen.scalar_math.instructions import InstructionBuilder

_right = InstructionBuilder.binary


def wrong(self, instruction, a, b, element, width):
    return _right(self, instruction.replace("fadd", "fsub"), a, b, element, width)


InstructionBuilder.binary = wrong
