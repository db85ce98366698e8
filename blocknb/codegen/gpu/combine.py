"""The combine blocks of reductions and scans."""

from __future__ import annotations

from blocknb.codegen.gpu.element_types import constant
from blocknb.codegen.gpu.math import ElementwiseMath
from blocknb.codegen.gpu.registers import Registers
from blocknb.ir.core import Op

Values = tuple[str, ...]  # one name for each operand


class Combiner:
    """Writes combine blocks."""

    def __init__(self, registers: Registers, math: ElementwiseMath):
        self.registers, self.math = registers, math

    def combined(self, op: Op, a: Values, b: Values) -> Values:
        """The combine block of `op` on two sets of values."""
        block = op.blocks[0]
        names = dict(zip(block.args, (*a, *b), strict=True))
        for inner in block.ops[:-1]:
            if inner.name == "const":
                names[inner.result] = constant(inner.attrs["value"], inner.result.type.dtype)
            else:
                operands = tuple(names[x] if x in names else self.registers.reg(x) for x in inner.args)
                names[inner.result] = self.math.apply(inner, operands)
        return tuple(names[x] for x in block.terminator.args)
