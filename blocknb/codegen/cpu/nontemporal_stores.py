"""Non-temporal stores: large results bypass the cache, so no line is read before it is overwritten.

An ordinary store first reads the line that it writes to (write allocate). For a result that no cache will still hold, that is a third
of all traffic. Non-temporal stores write a row if the argument is large and the row begins and ends with a unit of such stores. All
stores of the row take part, because an ordinary store in between would make the others wait for its line. Size and alignment are known
at run time only. The unit is 16 bytes, the alignment of large NumPy arrays; the processor combines units into lines. Nests that compute
for long give the memory the time it needs, and are slower this way. Source: Intel 64 and IA-32 Architectures Optimization Reference
Manual, "Non-temporal stores".
"""

from __future__ import annotations

from blocknb.codegen.cpu.context import VersionPart
from blocknb.codegen.cpu.nests import LoopNest
from blocknb.codegen.cpu.uniformity import Strided, UniformityAnalysis
from blocknb.ir.core import Op

LARGE = 12 << 20  # bytes of an argument; its operands take at least as much again
MOST = 4  # stores of a loop nest, whose loop is written twice
UNIT = 16  # bytes of the smallest non-temporal store of a vector


class NontemporalStores(VersionPart):
    """Decides which rows bypass the cache; `used` says whether the kernel has such stores."""

    used = False

    def stores(self, nest: LoopNest, forms: UniformityAnalysis) -> list[Op]:
        """The stores of a row that may bypass the cache: all of them, or none."""
        found = [op for op in nest.ops if op.name == "store"]
        allowed = self.options.uses("nontemporal_stores") and not self.options.alias
        if not allowed or nest.axis is None or len(found) > MOST or not nest.memory_bound:
            return []
        for op in found:
            element, form = op.args[0].type.dtype.element, forms.of_operand(op.args[0])
            if (
                not isinstance(form, Strided)
                or form.step != element.bytes
                or self.program.root(op.args[0]) is None
                or element.bytes * nest.width < UNIT
            ):
                return []
        return found

    def is_profitable(self, nest: LoopNest, forms: UniformityAnalysis, ops: list[Op], least: str) -> str:
        """Whether the whole row, which masks end at position `least`, bypasses the cache, as an i1."""
        c = self.code
        part = c.i64("and", least, str(nest.width - 1))
        holds = c.w.value(f"icmp eq i64 {part}, 0")
        for op in ops:
            form, argument = forms.of_operand(op.args[0]), self.program.root(op.args[0])
            assert isinstance(form, Strided)
            assert argument is not None
            _, lower, upper = c.bounds[self.program.func.params.index(argument)]
            extent = c.i64("sub", upper, lower)
            holds = c.binary("and", holds, c.w.value(f"icmp uge i64 {extent}, {LARGE}"), "i1", 1)
            inside = c.i64("and", form.base, str(UNIT - 1))
            holds = c.binary("and", holds, c.w.value(f"icmp eq i64 {inside}, 0"), "i1", 1)
        self.used = True
        return holds
