"""Which loads and stores are contiguous: the loops along which an access visits neighbouring addresses."""

from __future__ import annotations

from collections.abc import Callable

from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.dataflow import Dataflow, identity, squeezed
from blocknb.codegen.cpu.uniformity import VARYING, Strided, Uniform, UniformityAnalysis
from blocknb.codegen.scalar_math.instructions import TargetFeatures
from blocknb.ir.core import Op, Value


class AddressAnalysis:
    """The contiguous loops of each access. `scalar` names a scalar; `speculate` allows assumptions that a test at run time checks."""

    def __init__(self, program: Dataflow, machine: TargetFeatures, scalar: Callable[[Value], str], speculate: bool):
        self.program, self.machine, self.scalar, self.speculate = program, machine, scalar, speculate
        self._contiguous: dict[Op, frozenset[int]] = {}
        self._uniform: set[tuple[Op, int]] = set()

    def contiguous(self, op: Op) -> frozenset[int]:
        """The loops along which a load or store visits neighbouring addresses."""
        if op not in self._contiguous:
            pointers = op.args[0]
            loops = range(len(squeezed(pointers.type.shape)))
            found = set()
            for axis in loops:
                code = KernelBuilder(self.machine, {})
                counters = {loop: "%counter" for loop in loops if loop != axis}
                forms = UniformityAnalysis(
                    self.program, code, axis, 1, counters, self.scalar, lambda v, i: VARYING, self.speculate
                )
                form = forms.of(pointers, identity(pointers.type.shape))
                if isinstance(form, Strided) and form.step == pointers.type.dtype.element.bytes:
                    found.add(axis)
                if isinstance(form, Uniform):
                    self._uniform.add((op, axis))
            self._contiguous[op] = frozenset(found)
        return self._contiguous[op]

    def one_element(self, op: Op, loop: int) -> bool:
        """Whether an access touches the same element at all positions of a loop."""
        self.contiguous(op)
        return (op, loop) in self._uniform
