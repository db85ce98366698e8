"""Estimates the register pressure of a loop from the liveness of its tiles, before layouts are known.

A tile takes its bytes divided by the number of threads. A backward walk finds the live values (Aho et al., "Compilers", section 9.2); an
op may overwrite operands that it uses last. The code generator recomputes indices, masks and constants at each use, and a view is its
operand, so neither counts. The caller leaves room for addresses, scalars and temporaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blocknb.ir.core import Block, Func, Op, Value, definitions, walk
from blocknb.language.ops import LOOPS, OPS, named
from blocknb.language.types import Pointer, Tile

VIEWS = named("view") | {"convert", "promise"}


def registers(value: Value, threads: int) -> int:
    """The 32-bit registers per thread of a tile whose elements are each held once; one for a scalar."""
    bits = 64 if isinstance(value.type.dtype, Pointer) else max(8, value.type.dtype.bits)
    registers: int = max(1, -(-value.type.size * bits // (32 * threads)))
    return registers


def is_cheap(op: Op, cheap: Mapping[Value, bool]) -> bool:
    """Whether an op can be recomputed without a memory access and in a few instructions. `cheap` gives the answer for its operands."""
    if "rematerializable" in OPS[op.name].traits:
        return True
    kind = OPS[op.name].kind
    if kind not in ("shape", "elementwise") or (kind == "elementwise" and op.result.type.dtype.is_float):
        return False
    return all(cheap.get(a, False) or not a.type.shape for a in op.args)


class Liveness:
    """Register pressure of loops: `peak(loop)` is the most that is live at once in a loop of a tile-level Func, in registers per thread."""

    def __init__(self, func: Func, threads: int):
        self.func, self.threads, self.definition = func, threads, definitions(func)
        self.cheap: dict[Value, bool] = {}
        self.place: dict[Op, int] = {}  # the position of each op in program order
        self.last: dict[Op, int] = {}  # the position of the last op nested in it
        self.made: dict[Value, int] = {}
        self.used: dict[Value, list[int]] = {}
        for i, op in enumerate(func.ops()):
            self.place[op], self.last[op] = i, i + sum(1 for block in op.blocks for _ in walk(block))
            for value in op.results:
                self.cheap[value] = is_cheap(op, self.cheap)
            self.made |= dict.fromkeys((*op.results, *(x for block in op.blocks for x in block.args)), i)
            for value in self.held(op.args):
                self.used.setdefault(value, []).append(i)

    def held(self, values: Iterable[Value]) -> set[Value]:
        """The tiles that must be in registers for these values: views count as their operands, cheap values do not count."""
        found = set()
        for value in values:
            while (op := self.definition.get(value)) is not None and op.name in VIEWS:
                value = op.args[0]
            if isinstance(value.type, Tile) and value.type.shape and not self.cheap.get(value, False):
                found.add(value)
        return found

    def weight(self, live: Iterable[Value]) -> int:
        return sum(registers(value, self.threads) for value in live)

    def peak(self, loop: Op) -> int:
        return max(self.block(block, self.across(loop))[0] for block in loop.blocks)

    def most(self) -> int:
        """The most that is live at once in the function, in registers per thread."""
        loops = [op for op in self.place if op.name in LOOPS]
        return max([self.block(self.func.body, set())[0], *map(self.peak, loops)])

    def across(self, loop: Op) -> set[Value]:
        """The tiles that are live throughout a loop: made before it, and used in it, after it, or anywhere in a loop around both."""
        around = [op for op in self.place if op.name in LOOPS and self.place[op] < self.place[loop] <= self.last[op]]
        found = set()
        for value, used in self.used.items():
            made = self.made.get(value, -1)
            spans = [(self.place[op], self.last[op]) for op in around if made < self.place[op]]
            if made < self.place[loop] and (
                used[-1] >= self.place[loop] or any(first <= at <= last for first, last in spans for at in used)
            ):
                found.add(value)
        return found

    def block(self, block: Block, after: set[Value]) -> tuple[int, set[Value]]:
        """The peak of a block and the values that are live before it, if `after` is live after it."""
        live = after | self.held(block.terminator.args)
        most = self.weight(live)
        for op in reversed(block.ops[:-1]):
            for nested in op.blocks if OPS[op.name].kind != "reduce" else ():
                inner, before = self.block(nested, live - set(op.results))
                most, live = max(most, inner), live | (before - set(nested.args))
            live = (live - set(op.results)) | self.held(op.args)
            most = max(most, self.weight(live))
        return most, live
