"""An Emitter that computes every op at once with the IR interpreter, instead of building IR.

While a block is open, such as the combine of a sum, the emitter keeps the block's ops. It computes them with the op that contains the
block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from blocknb.eager.running import RunningKernel
from blocknb.eager.values import UNKNOWN, EagerValue
from blocknb.frontend.emitter import Emitter
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import EMPTY, Block, Func, Op, Value
from blocknb.ir.interp_tile import Machine, Program
from blocknb.language import ops as table
from blocknb.target import Target


class Known(dict):
    """Emitter.known, stored in the values themselves, so that a loop does not accumulate all its constants."""

    def __setitem__(self, x: Value, number: Any) -> None:
        if isinstance(x, EagerValue):
            x.constant = number
        else:
            super().__setitem__(x, number)

    def __getitem__(self, x: Value) -> Any:
        return x.constant if isinstance(x, EagerValue) else super().__getitem__(x)

    def __contains__(self, x: object) -> bool:
        return x.constant is not UNKNOWN if isinstance(x, EagerValue) else super().__contains__(x)

    def get(self, x: Any, default: Any = None) -> Any:
        return self[x] if self.__contains__(x) else default


class EagerOutput(list):
    """Emitter.printed, written at once."""

    def __init__(self, shown: Callable[[], bool]):
        self.shown = shown

    def append(self, text: str) -> None:
        if self.shown():
            print(text, end="")


class Outside(dict):
    """The values that a block may use from outside. These values hold their own arrays."""

    def __missing__(self, x: Value) -> Any:
        return x.data  # type: ignore[attr-defined]


class EagerMachine(Machine):
    """The tile-level interpreter of one program, which receives one op at a time."""

    def __init__(self, name: str, space: AddressSpace, sizes: Program, program: Program):
        super().__init__(Func(name, (), Block((), ())), space, sizes, program)
        self.env = Outside()


class EagerEmitter(Emitter):
    """Computes ops that are emitted outside of blocks. `machine` is that of the running program."""

    def __init__(self, interpreter: RunningKernel, options: Mapping[str, Any]):
        super().__init__(Target.parse("cpu"), options)  # the CPU computes, wherever the arrays are
        self.known, self.printed = Known(), EagerOutput(lambda: interpreter.prints)
        self.runs = interpreter.run_helper
        self.interpreter = interpreter

    def op(
        self,
        name: str,
        *args: Value,
        blocks: Sequence[Block] = (),
        results: Sequence[Value] | None = None,
        **attrs: Any,
    ) -> Op:
        if len(self._open) > 1:
            return super().op(name, *args, blocks=blocks, results=results, **attrs)
        types = table.infer(name, tuple(a.type for a in args), attrs)
        interpreter = self.interpreter
        made = tuple(EagerValue(x, interpreter) for x in types)
        op = Op(name, args, made, MappingProxyType(attrs) if attrs else EMPTY, tuple(blocks), None, "interpret")
        if name != "barrier":
            for value, array in zip(made, self._compute(op), strict=True):
                value.data = np.asanyarray(array)  # pointers have their provenance
        if name == "print":
            interpreter.flush_output()
        return op

    def _compute(self, op: Op) -> tuple:
        machine, arrays = self.interpreter.machine, [x.data for x in op.args]  # type: ignore[attr-defined]
        if not op.blocks or table.OPS[op.name].kind == "reduce":
            return machine.step(op, arrays)
        walk = machine.control(op, arrays, Outside())
        try:
            while True:
                next(walk)
        except StopIteration as stop:
            return stop.value

    def tests_hints(self, x: Value) -> bool:
        """Every hint about numbers is tested. Pointers are addresses of the interpreter, whose multiples mean nothing."""
        return not x.type.is_pointer and not self.elements

    def promise(self, x: Value, **promises: Any) -> bool:
        """Ignores a promise, because the interpreter does not rely on promises."""
        return True
