"""The maximum (or minimum) of a row of floats on a CPU: three instructions for each vector, without one for its NaNs.

MAXPS returns its second operand where either is a NaN, or where both are zeros. With the accumulator second, NaNs lose for nothing.
What is lost that way is told by two more accumulators, which no instruction waits for. The opposite extreme tells whether there was
a number at all: if so it lies on its own side of the other, if not both are as they began. The patterns of bits tell whether the
zero that wins was there (+0 for a maximum, whose pattern is the least unsigned one): nothing else looks like it, NaNs included.
"""

from __future__ import annotations

import math

from blocknb.codegen.cpu.elementwise import machine_extremum
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.codegen.text import float_literal, vector_type
from blocknb.language.types import DType


class ExtremumAccumulators:
    """The accumulators of one reduction (`max` or `min`) along the vectors, as lists of registers: extreme, opposite, patterns."""

    def __init__(self, code: InstructionBuilder, name: str, dtype: DType):
        self.code, self.name, self.element = code, name, register_type(dtype)
        self.bits = "i64" if self.element == "double" else "i32"
        self.elements = [self.element, self.element, self.bits]
        self.largest = name == "max"
        self.opposite = "min" if self.largest else "max"
        sign = 1 << int(self.bits[1:]) - 1
        self.winner = 0 if self.largest else -sign  # the pattern of the zero that wins
        self.farthest = -1 if self.largest else sign - 1
        #: The least pattern, where the machine has that minimum; elsewhere all bits are set once the zero was there.
        self.by_minimum = self.bits == "i32" or code.machine.avx512

    def starts(self, width: int) -> list[str]:
        """What they hold before the first element."""
        low, high = (float_literal(x, self.element) for x in (-math.inf, math.inf))
        numbers = (low, high) if self.largest else (high, low)
        started = (*numbers, str(self.farthest if self.by_minimum else 0))
        return [self._splat(x, e, width) for x, e in zip(started, self.elements, strict=True)]

    def taken(self, old: list[str], x: str, width: int) -> list[str]:
        """They with one vector more."""
        c = self.code
        pattern = c.convert("bitcast", x, self.element, self.bits, width)
        if not self.by_minimum:
            same = c.w.value(f"icmp eq {vector_type(self.bits, width)} {pattern}, {self._pattern(width)}")
            pattern = c.convert("sext", same, "i1", self.bits, width)
        return self._combined([x, x, pattern], old, width)

    def merged(self, a: list[str], b: list[str], width: int) -> list[str]:
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

    def found(self, all: list[str], width: int) -> tuple[str, str]:
        """Whether there was a number, and whether the zero that wins was there, in any lane: two i1."""
        c, lanes = self.code, vector_type(self.bits, width)
        low, high = (all[1], all[0]) if self.largest else (all[0], all[1])
        number = c.any(c.w.value(f"fcmp ole {vector_type(self.element, width)} {low}, {high}"), width)
        wanted = self._pattern(width) if self.by_minimum else self._splat("-1", self.bits, width)
        return number, c.any(c.w.value(f"icmp eq {lanes} {all[2]}, {wanted}"), width)

    def result(self, total: str, found: tuple[str, str]) -> str:
        """The extreme of all lanes with the sign of a zero put right; a NaN where there was no number."""
        c, element = self.code, self.element
        number, winner = found
        wins, loses = (float_literal(x, element) for x in ((0.0, -0.0) if self.largest else (-0.0, 0.0)))
        zero = c.select(winner, wins, loses, element, 1)
        is_zero = c.w.value(f"fcmp oeq {element} {total}, {wins}")
        return c.select(
            number, c.select(is_zero, zero, total, element, 1), float_literal(math.nan, element), element, 1
        )

    def _pattern(self, width: int) -> str:
        return self._splat(str(self.winner), self.bits, width)

    def _splat(self, literal: str, element: str, width: int) -> str:
        return literal if width == 1 else f"splat ({element} {literal})"
