"""A compiler whose CPU code subtracts floats where it should add them."""

from __future__ import annotations

from blocknb.codegen.cpu_ops import Code

_right = Code.binary


def wrong(self, instruction, a, b, element, width):
    return _right(self, instruction.replace("fadd", "fsub"), a, b, element, width)


Code.binary = wrong
