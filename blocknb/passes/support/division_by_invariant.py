"""Division by loop invariants: a multiplication with a reciprocal, computed once, replaces the division of a program's number.

A kernel finds its tile by dividing the program's number, and a GPU needs a chain of some twenty instructions for that. In a persistent
kernel, the copies of the next program wait for this chain. But the divisor is known at launch, or it is almost always the same power of
two. So a multiplication or a shift suffices. Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (PLDI
1994).
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.analysis import ranges, tma_boxes
from blocknb.analysis.affine import Facts
from blocknb.analysis.polynomials import of_launch
from blocknb.ir.build import Builder
from blocknb.ir.core import Func, Op, Value
from blocknb.language import types as t
from blocknb.language.types import Tile

NUMBER, WORD = Tile(t.int32), Tile(t.uint32)
FULL = (1 << 32) - 1

Get = Callable[[Value], Value]


class InvariantDivisions:
    """The quotients and remainders at the top of a function whose divisor is known at launch, or is probably a power of two."""

    def __init__(self, func: Func, facts: Facts):
        self.facts = facts
        self.known: dict[int, Value] = {}  # by op id: the divisor
        self.signed: set[int] = set()  # by op id: the dividend may be negative
        self.likely: dict[int, int] = {}  # by op id: the power of two that bounds the divisor
        self.reciprocals: dict[Value, tuple[Value, Value, Value, Value]] = {}
        for op in func.body.ops:
            if op.name not in ("div", "rem") or op.result.type != NUMBER:
                continue
            divisor = facts.definition.get(op.args[1])
            if of_launch(facts, op.args[0]) or (divisor is not None and divisor.name == "const"):
                continue
            signed = ranges.bounds(facts, op.args[0])[0] < 0
            if of_launch(facts, op.args[1]):
                self.known[op.id] = op.args[1]
                self.signed.update([op.id] if signed else [])
            elif (most := self.upper_bound(op.args[1])) and not most & most - 1 and not signed:
                self.likely[op.id] = most

    def upper_bound(self, value: Value) -> int:
        """The constant operand of a `min` that makes a value; 0 for any other value."""
        made = self.facts.definition.get(value)
        for x in made.args if made is not None and made.name == "min" else ():
            op = self.facts.definition.get(x)
            if op is not None and op.name == "const" and op.attrs["value"] > 0:
                return op.attrs["value"]
        return 0

    def prepare(self, b: Builder) -> None:
        """Emits, at the function's top, the magnitude of each divisor, its reciprocal (rounded down, in units of 2^-32), and its sign."""
        made: dict[Value, Value] = {}
        for divisor in dict.fromkeys(self.known.values()):
            there = tma_boxes.at_top(b, self.facts, self.facts.integer(divisor), t.int32, made)
            zero, one = b.const(0, t.int32), b.const(1, t.int32)
            negative = b.value("cmp", there, zero, pred="lt")
            # the negated least number is itself, and right as an unsigned word; the remainder by one is that by zero
            size = b.value("select", negative, b.value("neg", there), there)
            none = b.value("cmp", size, zero, pred="eq")
            word = b.value("cast", b.value("select", none, one, size), dtype=t.uint32)
            self.reciprocals[divisor] = word, b.value("div", b.const(FULL, t.uint32), word), negative, none

    def emit(self, b: Builder, get: Get, op: Op) -> Value | None:
        """Emits the op by multiplication or shift; None if the op stays as it is."""
        if op.id in self.known:
            return self.scaled(b, get(op.args[0]), op)
        if op.id in self.likely:
            return self.shifted(b, get(op.args[0]), get(op.args[1]), op)
        return None

    def scaled(self, b: Builder, number: Value, op: Op) -> Value:
        """The quotient, or one less, of a number of at most 2^31: the number times the reciprocal."""
        (size, reciprocal, negative, none), below = self.reciprocals[self.known[op.id]], None
        if op.id in self.signed:
            below = b.value("cmp", number, b.const(0, t.int32), pred="lt")
            number = b.value("select", below, b.value("neg", number), number)
        word = b.value("cast", number, dtype=t.uint32)
        quotient = b.value("mulhi", word, reciprocal)
        rest = b.value("sub", word, b.value("mul", quotient, size))
        more = b.value("cmp", rest, size, pred="ge")
        if op.name == "rem":
            rest = b.value("select", more, b.value("sub", rest, size), rest)
            rest = b.value("and", b.value("cast", rest, dtype=t.int32), b.const(FULL >> 1, t.int32))  # not negative
            return rest if below is None else b.value("select", below, b.value("neg", rest), rest)
        quotient = b.value("select", more, b.value("add", quotient, b.const(1, t.uint32)), quotient)
        quotient = b.value("select", none, b.const(0, t.int32), b.value("cast", quotient, dtype=t.int32))
        is_negative = negative if below is None else b.value("xor", negative, below)
        return b.value("select", is_negative, b.value("neg", quotient), quotient)

    def shifted(self, b: Builder, number: Value, divisor: Value, op: Op) -> Value:
        """A shift or a mask if the divisor is the likely power of two, else the division."""
        most = self.likely[op.id]
        with b.block() as likely:
            how, by = ("shr", most.bit_length() - 1) if op.name == "div" else ("and", most - 1)
            b.op("yield", b.value(how, number, b.const(by, t.int32)))
        with b.block() as other:
            b.op("yield", b.value(op.name, number, divisor))
        same = b.value("cmp", divisor, b.const(most, t.int32), pred="eq")
        return b.op("if", same, blocks=(likely.done, other.done), types=(NUMBER,)).result


def along_axes(b: Builder, program: Value, x: Value, y: Value) -> list[Value]:
    """A program's position along each axis of a grid with extents x and y along the first two. Most grids have only one axis."""
    zero = b.const(0, t.int32)
    with b.block() as first:
        b.op("yield", program, zero)
    with b.block() as other:
        b.op("yield", b.value("rem", program, x), b.value("div", program, x))
    inside = b.value("cmp", program, x, pred="lt")
    column, rest = b.op("if", inside, blocks=(first.done, other.done), types=(NUMBER, NUMBER)).results
    return [column, b.value("rem", rest, y), b.value("div", rest, y)]
