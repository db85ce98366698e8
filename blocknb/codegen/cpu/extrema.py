"""The maximum (or minimum) of a row of floats: three instructions per vector, and none for NaNs.

MAXPS returns its second operand if either is a NaN, or if both are zeros. With the accumulator second, NaNs lose at no cost. Two more
accumulators, off the critical path, record NaNs and zeros. The opposite extreme tells whether the row had a number at all: if so, the
minimum is at most the maximum; if not, both keep their initial values. The bit patterns tell whether the row had the zero that wins (+0 for
a maximum, whose pattern is the least unsigned one). No other float has that pattern, NaNs included.
"""

from __future__ import annotations

import math

from blocknb.codegen.cpu.elementwise import machine_extremum
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.codegen.text import float_literal, vector_type
from blocknb.language.types import DType


class ExtremumAccumulators:
    """The accumulators of one `max` or `min` along the vectors, as lists of registers: extreme, opposite extreme, bit patterns."""

    def __init__(self, code: InstructionBuilder, name: str, dtype: DType):
        self.code, self.name, self.element = code, name, register_type(dtype)
        self.bits = "i64" if self.element == "double" else "i32"
        self.elements = [self.element, self.element, self.bits]
        self.largest = name == "max"
        self.opposite = "min" if self.largest else "max"
        sign = 1 << int(self.bits[1:]) - 1
        self.winner = 0 if self.largest else -sign  # the pattern of the zero that wins
        self.farthest = -1 if self.largest else sign - 1
        #: Keeps the least pattern if the machine has that minimum; else sets all bits once the zero was found.
        self.by_minimum = self.bits == "i32" or code.machine.avx512

    def starts(self, width: int) -> list[str]:
        """Their initial values."""
        low, high = (float_literal(x, self.element) for x in (-math.inf, math.inf))
        numbers = (low, high) if self.largest else (high, low)
        started = (*numbers, str(self.farthest if self.by_minimum else 0))
        return [self.code.splat(x, e, width) for x, e in zip(started, self.elements, strict=True)]

    def updated(self, old: list[str], x: str, width: int) -> list[str]:
        """The accumulators after one more vector."""
        c = self.code
        pattern = c.convert("bitcast", x, self.element, self.bits, width)
        if not self.by_minimum:
            same = c.w.value(f"icmp eq {vector_type(self.bits, width)} {pattern}, {self._pattern(width)}")
            pattern = c.convert("sext", same, "i1", self.bits, width)
        return self._combined([x, x, pattern], old, width)

    def merged(self, a: list[str], b: list[str], width: int) -> list[str]:
        """Combines two sets of accumulators."""
        return self._combined(a, b, width)

    def _combined(self, new: list[str], old: list[str], width: int) -> list[str]:
        c = self.code
        extreme = machine_extremum(c, self.name, new[0], old[0], self.element, width)
        opposite = machine_extremum(c, self.opposite, new[1], old[1], self.element, width)
        if self.by_minimum:
            patterns = c.intrinsic("umin" if self.largest else "smin", self.bits, width, new[2], old[2])
        else:
            patterns = c.binary("or", new[2], old[2], self.bits, width)
        return [extreme, opposite, patterns]

    def flags(self, all: list[str], width: int) -> tuple[str, str]:
        """Two i1: whether any lane had a number, and whether any lane had the zero that wins."""
        c, lanes = self.code, vector_type(self.bits, width)
        low, high = (all[1], all[0]) if self.largest else (all[0], all[1])
        number = c.any(c.w.value(f"fcmp ole {vector_type(self.element, width)} {low}, {high}"), width)
        wanted = self._pattern(width) if self.by_minimum else self.code.splat("-1", self.bits, width)
        return number, c.any(c.w.value(f"icmp eq {lanes} {all[2]}, {wanted}"), width)

    def result(self, total: str, found: tuple[str, str]) -> str:
        """The extreme of all lanes, with the right sign of zero; a NaN if there was no number."""
        c, element = self.code, self.element
        number, winner = found
        wins, loses = (float_literal(x, element) for x in ((0.0, -0.0) if self.largest else (-0.0, 0.0)))
        zero = c.select(winner, wins, loses, element, 1)
        is_zero = c.w.value(f"fcmp oeq {element} {total}, {wins}")
        extreme = c.select(is_zero, zero, total, element, 1)
        return c.select(number, extreme, float_literal(math.nan, element), element, 1)

    def _pattern(self, width: int) -> str:
        return self.code.splat(str(self.winner), self.bits, width)
