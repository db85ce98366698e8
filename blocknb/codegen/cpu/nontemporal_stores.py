"""Emits non-temporal stores, which bypass the cache, for the rows that may use them (see the pass `nontemporal_stores`).

Stores of a row bypass the cache if all of them have the attribute `nontemporal`. An ordinary store in between would make the others wait
for its line. Code tests size and alignment at run time. The arrays must have as many bytes as the attributes say, and the row must begin
and end with a unit of such stores. The unit is 16 bytes, the alignment of large NumPy arrays; the processor combines units into lines.

A line that such stores write in part is slow. In a tile of several rows, a short row must therefore begin at a cache line. A transpose of
4096 x 4096 fp32 elements took 46 ms with rows of 256 bytes that began 16 bytes after a line. With ordinary stores it took 25 ms.
"""

from __future__ import annotations

import math

from blocknb.codegen.cpu.buffers import CACHE_LINE
from blocknb.codegen.cpu.context import VersionContext, VersionPart
from blocknb.codegen.cpu.nests import LoopNest
from blocknb.codegen.cpu.uniformity import Strided, UniformityAnalysis
from blocknb.ir.core import Op

MOST = 4  # such stores in a loop, which is written twice
UNIT = 16  # bytes of the smallest non-temporal store of a vector
SHORT = 1024  # bytes of a row: shorter rows of a tile must begin at a cache line


class NontemporalStores(VersionPart):
    """Emits the test for rows that bypass the cache; `used` says whether the kernel has such stores."""

    used = False

    def __init__(self, context: VersionContext):
        super().__init__(context)
        self.refused: set[Op] = set()  # the first stores of loops with too many

    def stores(self, nest: LoopNest, forms: UniformityAnalysis) -> list[Op]:
        """The stores of a row that may bypass the cache: all of them, or none."""
        found = [op for op in nest.ops if op.name == "store"]
        if not self.options.uses("nontemporal_stores") or self.options.alias or nest.axis is None:
            return []
        for op in found:
            element, form = op.args[0].type.dtype.element, forms.of_operand(op.args[0])
            if (
                "nontemporal" not in op.attrs
                or not isinstance(form, Strided)
                or form.step != element.bytes
                or self.program.root(op.args[0]) is None
                or element.bytes * nest.width < UNIT
            ):
                return []
        if len(found) > MOST:
            if found[0] not in self.refused:
                self.refused.add(found[0])
                text = f"ordinary stores: {len(found)} share a loop, which would be written twice; up to {MOST} would bypass the cache"
                self.notes(found[0], text, "missed")
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
            extent, large = c.i64("sub", upper, lower), op.attrs["nontemporal"]
            holds = c.binary("and", holds, c.w.value(f"icmp uge i64 {extent}, {large}"), "i1", 1)
            rows = math.prod(nest.shape) // nest.size
            unit = CACHE_LINE if rows > 1 and nest.size * form.step < SHORT else UNIT
            inside = c.i64("and", form.base, str(unit - 1))
            holds = c.binary("and", holds, c.w.value(f"icmp eq i64 {inside}, 0"), "i1", 1)
        self.used = True
        return holds
