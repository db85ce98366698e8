"""A compiler whose CPU code has `or` in the place of `xor` for vectors of 32-bit integers."""

from __future__ import annotations

from blocknb.codegen.cpu_ops import Code

_right = Code.binary


def wrong(self, instruction, a, b, element, width):
    mixed = instruction == "xor" and width > 1 and element == "i32"
    return _right(self, "or" if mixed else instruction, a, b, element, width)


Code.binary = wrong
