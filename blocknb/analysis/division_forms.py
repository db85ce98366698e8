"""Linear forms through division, remainder, bit operations, minimum and selection.

`(pid * 64 + arange(64)) // 64` is `pid`, and the remainder is the arange. The terms that the divisor does not divide add up to a number
between zero and the divisor. So they are the remainder, and the other terms are the quotient. Bit operations on powers of two work the same
way.
"""

from __future__ import annotations

from blocknb.analysis import ranges
from blocknb.analysis.axis_info import form_divisor
from blocknb.analysis.facts import FunctionFacts
from blocknb.analysis.linear_forms import Form, common
from blocknb.ir.core import Op


def polynomial(facts: FunctionFacts, op: Op) -> Form | None:
    """The form of a division, remainder, bit operation, minimum or select, if the result is a polynomial; else None."""
    if op.name == "select":
        return _one_arm(facts, op)
    a = facts.widened(op.args[0])
    shape = op.result.type.shape
    if a is None:
        return None
    if op.name == "abs":
        return a if ranges.interval(facts, a, shape)[0] >= 0 else None
    b = facts.widened(op.args[1])
    if b is None:
        return None
    match op.name:
        case "or" | "xor":
            return a + b if _disjoint(facts, a, b, shape) or _disjoint(facts, b, a, shape) else None
        case "min" | "max":
            low, high = ranges.interval(facts, a - b, shape)
            if low < 0 < high:
                return None
            chosen = a if (high <= 0) == (op.name == "min") else b
            return chosen if a.exact and b.exact else chosen.assumed()  # the order follows from both forms
    return None if b.constant is None else _by_constant(facts, op, a, b.constant)


def _by_constant(facts: FunctionFacts, op: Op, a: Form, constant: int) -> Form | None:
    """The form of a shift, division, remainder or mask whose second operand is a constant."""
    shape, bits = op.result.type.shape, op.result.type.dtype.bits
    match op.name:
        case "shl" if 0 <= constant < bits:
            return facts.integer(op.args[0]).scaled(1 << constant)
        case "shr" if 0 <= constant < bits:
            return _divided(facts, a, 1 << constant, shape, floor=True)[0]
        case "div" if constant > 0:
            return _divided(facts, a, constant, shape)[0]
        case "rem" if constant > 0:
            return _divided(facts, a, constant, shape)[1]
        case "and" if constant > 0 and constant & (constant + 1) == 0:
            return _divided(facts, a, constant + 1, shape, floor=True)[1]
    return None


def _one_arm(facts: FunctionFacts, op: Op) -> Form | None:
    condition, a, b = op.args
    known = ranges.truth(facts, condition)
    x, y = facts.form(a), facts.form(b)
    if known is not None:
        return x if known else y
    return common(x, y)


def _divided(
    facts: FunctionFacts, form: Form, by: int, shape: tuple[int, ...], floor: bool = False
) -> tuple[Form | None, Form | None]:
    """(quotient, remainder) as forms, if the terms that `by` does not divide add up to a remainder. Truncates unless `floor`."""
    rest = form.only(lambda monomial: form.terms[monomial] % by != 0)
    if (k := form.terms.get((), 0)) % by:
        rest = Form({**rest.terms, (): k % by}, form.exact)
    if not ranges.within(ranges.interval(facts, rest, shape), (0, by - 1)):
        return None, None
    if rest.terms and not floor and ranges.interval(facts, form, shape)[0] < 0:
        return None, None
    return (form - rest).divided(by), rest


def _disjoint(facts: FunctionFacts, high: Form, low: Form, shape: tuple[int, ...]) -> bool:
    """Whether no bit of `low` can be set in `high`."""
    least, most = ranges.interval(facts, low, shape)
    return least >= 0 and most < form_divisor(facts, high, None, 1)
