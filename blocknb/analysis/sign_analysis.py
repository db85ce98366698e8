"""Sign analysis: which integers are never negative.

The sign follows from the terms of a linear form and, where a symbol of it is a value, from the op that made it. Index arithmetic is
assumed not to overflow, and divisors are assumed to be positive unless they are known to be negative.
"""

from __future__ import annotations

from blocknb.analysis import ranges
from blocknb.analysis.facts import FunctionFacts
from blocknb.analysis.linear_forms import VALUE, Symbol
from blocknb.ir.core import Value
from blocknb.language.ops import PRESERVING

#: Ops whose result is non-negative if the first operand is and the divisor is not negative.
SIGN_PRESERVING = PRESERVING - {"part"} | {"div", "rem", "shr", "abs"}


def nonnegative(facts: FunctionFacts, value: Value, positive: Symbol | None = None) -> bool:
    """Whether no element is negative, assuming that index arithmetic does not overflow and that divisors and `positive` are positive."""
    form = facts.form(value)
    if form is None or ranges.bounds(facts, value)[0] >= 0:
        return form is not None
    for monomial, coefficient in form.terms.items():
        if coefficient < 0 or not all(s == positive or symbol_nonnegative(facts, s) for s in monomial):
            return False
    return True


def symbol_nonnegative(facts: FunctionFacts, symbol: Symbol) -> bool:
    """Whether one symbol is non-negative: an index, an iteration count, or the result of an op on non-negative numbers."""
    if symbol.kind != VALUE:
        return True
    value = symbol.value
    if ranges.own_bounds(facts, value)[0] >= 0:
        return True
    op = facts.definition.get(value)
    if op is None or value.type.is_pointer:
        return False
    match op.name:
        case "div" if ranges.bounds(facts, op.args[1])[1] < 0:
            return False
        case name if name in SIGN_PRESERVING:
            return nonnegative(facts, op.args[0])
        case "min":
            return all(nonnegative(facts, a) for a in op.args)
        case "max" | "and":
            return any(nonnegative(facts, a) for a in op.args)
        case "cast" if op.args[0].type.dtype.kind == "uint" and op.args[0].type.dtype.bits == value.type.dtype.bits:
            return small(facts, op.args[0])
        case "if":
            ends = (block.terminator.args[op.results.index(value)] for block in op.blocks)
            return all(nonnegative(facts, end) for end in ends)
        case "select":
            return all(nonnegative(facts, a) for a in op.args[1:])
    return False


def small(facts: FunctionFacts, value: Value) -> bool:
    """Whether an unsigned number also fits the signed type of its width. Program ids are divided as unsigned numbers."""
    op, half = facts.definition.get(value), 1 << value.type.dtype.bits - 1
    if op is None:
        return False
    match op.name:
        case "const":
            below: bool = op.attrs["value"] < half
            return below
        case "cast":
            source = op.args[0].type.dtype
            return source.kind == "int" and source.bits <= value.type.dtype.bits and nonnegative(facts, op.args[0])
        case "div" | "shr":
            return small(facts, op.args[0])
        case "rem" | "min" | "and":
            return any(small(facts, a) for a in op.args)
    return False
