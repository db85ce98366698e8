"""Translates 32-bit scalar IR into terms of unbounded integers, where multiplications and divisions are equations and not circuits.

A solver cannot decide a product and a quotient of two unknown 32-bit words in bits. Over the integers, "q is a divided by b" is `a = q b +
r` with 0 <= r < |b|. A wrap-around is the subtraction of a multiple of 2^32. Each becomes an equation with fresh unknowns, which exist for
all operands and are unique. So a claim that follows from the equations holds for the words.
"""

from __future__ import annotations

from typing import Any

import z3

from blocknb.analysis.ranges import limits
from blocknb.ir.core import Op, Value

Term = Any


class IntegerTranslator:
    """Terms of scalars and the equations that define them. The values of `given` have these terms, and no equations."""

    def __init__(self, given: dict[Value, Term]):
        self.given = given
        self.terms: dict[Value, Term] = {}
        self.equations: list[Term] = []
        self.quotients: dict[tuple[int, int], tuple[Term, Term]] = {}
        self.count = 0

    def fresh(self) -> Term:
        self.count += 1
        return z3.Int(f"fresh{self.count}")

    def free(self, value: Value, name: str) -> Term:
        """An unknown of a value's dtype."""
        term = self.terms[value] = z3.Int(name)
        low, high = limits(value.type.dtype)
        self.equations += [term >= low, term <= high]
        return term

    def wrapped(self, x: Term, dtype: Any) -> Term:
        """The number of a dtype that equals x modulo 2^bits."""
        low, high = limits(dtype)
        found, times = self.fresh(), self.fresh()
        self.equations += [x == found + times * (1 << dtype.bits), found >= low, found <= high]
        return found

    def divided(self, a: Term, b: Term) -> tuple[Term, Term]:
        """Quotient and remainder, rounded towards zero; 0 if b is 0."""
        key = a.get_id(), b.get_id()
        if key in self.quotients:  # a quotient and a remainder of the same numbers have one equation
            return self.quotients[key]
        q, r = self.quotients[key] = self.fresh(), self.fresh()
        size = z3.If(b < 0, -b, b)
        truncated = z3.And(a == q * b + r, z3.If(a >= 0, z3.And(r >= 0, r < size), z3.And(r <= 0, r > -size)))
        self.equations.append(z3.If(b == 0, z3.And(q == 0, r == 0), truncated))
        return q, r

    def split(self, x: Term, bits: int) -> tuple[Term, Term]:
        """x = high * 2^bits + low, with 0 <= low < 2^bits."""
        high, low = self.fresh(), self.fresh()
        self.equations += [x == high * (1 << bits) + low, low >= 0, low < (1 << bits)]
        return high, low

    def op(self, op: Op) -> None:
        """Defines the result of an op."""
        dtype = op.result.type.dtype
        if op.result in self.given:
            self.terms[op.result] = self.given[op.result]
            return
        if op.name == "const":
            value = op.attrs["value"]
            self.terms[op.result] = z3.BoolVal(value) if dtype.kind == "bool" else z3.IntVal(int(value))
            return
        self.terms[op.result] = self.result(op, [self.terms[a] for a in op.args], dtype)

    def result(self, op: Op, args: list[Term], dtype: Any) -> Term:
        a, b = args[0], args[-1]
        match op.name:
            case "add" | "sub":
                return self.wrapped(a + b if op.name == "add" else a - b, dtype)
            case "mul":
                return self.wrapped(a * b, dtype)
            case "neg":
                return self.wrapped(-a, dtype)
            case "cast":
                return self.wrapped(a, dtype)
            case "div":
                quotient, (low, high) = self.divided(a, b)[0], limits(dtype)
                return z3.If(quotient > high, z3.IntVal(low), quotient)  # only the least number by -1 wraps
            case "rem":
                return self.divided(a, b)[1]
            case "mulhi":
                return self.split(a * b, dtype.bits)[0]
            case "and" if z3.is_int_value(b) and not (b.as_long() + 1) & b.as_long() and b.as_long() > 0:
                return self.split(a, b.as_long().bit_length())[1]
            case "select":
                return z3.If(*args)
            case "xor" if dtype.kind == "bool":
                return z3.Xor(a, b)
            case "max" | "min":
                return z3.If(a > b, a, b) if op.name == "max" else z3.If(a < b, a, b)
            case "cmp":
                return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b}[
                    op.attrs["pred"]
                ]
        raise NotImplementedError(op.name)
