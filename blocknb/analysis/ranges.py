"""Range analysis of integers (interval arithmetic), without assumptions about overflow.

The interval of a linear form is the sum of its terms' intervals. It bounds the value only if the form is exact and the interval fits the
type. A value that is congruent to a number that the type can hold is that number. Other ops have rules of their own. A comparison whose
difference has a known sign is decided here, which removes masks. Source: Moore, "Interval Analysis" (1966).
"""

from __future__ import annotations

from typing import Any

from blocknb.analysis.facts import FunctionFacts
from blocknb.analysis.linear_forms import COUNT, DIM, ITERATION, Dim, Form, Symbol
from blocknb.analysis.operand_order import operands_first
from blocknb.ir.core import Op, Value
from blocknb.language.ops import PRESERVING, named

PROGRAM_INDICES, GRID_SIZES = named("program_index"), named("grid_size")
SAME = PRESERVING | {"cast", "promise"}  # the result has the bounds of the operand

Interval = tuple[int, int]
FAR = 1 << 66  # beyond every integer type
MAX_INT = (1 << 31) - 1


def limits(dtype: Any) -> Interval:
    """The least and the greatest number of an integer type; unlimited for the offset of a pointer."""
    match dtype.kind:
        case "int":
            return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
        case "uint" | "bool":
            return 0, (1 << dtype.bits) - 1
    return -FAR, FAR


def within(inner: Interval, outer: Interval) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def interval(facts: FunctionFacts, form: Form, shape: tuple[int, ...]) -> Interval:
    """Bounds of a form's value for indices within `shape`."""
    low = high = 0
    for monomial, coefficient in form.terms.items():
        a = b = coefficient
        for symbol in monomial:
            x, y = _symbol(facts, symbol, shape)
            corners = (a * x, a * y, b * x, b * y)
            a, b = min(corners), max(corners)
        low, high = low + a, high + b
    return low, high


def _symbol(facts: FunctionFacts, symbol: Symbol, shape: tuple[int, ...]) -> Interval:
    if symbol.kind == DIM:
        return 0, shape[symbol.number] - 1
    if symbol.kind == ITERATION:
        return 0, max(iterations(facts, symbol.value)[1] - 1, 0)
    if symbol.kind == COUNT:
        return iterations(facts, symbol.value)
    return own_bounds(facts, symbol.value)


def iterations(facts: FunctionFacts, loop: Op) -> Interval:
    """The least and the greatest number of iterations of a loop."""
    if loop.name != "for":
        return 0, FAR
    lower, upper, step = (bounds(facts, a) for a in loop.args[:3])
    if step[1] < 0:
        lower, upper, step = (-lower[1], -lower[0]), (-upper[1], -upper[0]), (-step[1], -step[0])
    if step[0] <= 0:
        return 0, FAR
    return max(-((lower[1] - upper[0]) // step[1]), 0), max(-((lower[0] - upper[1]) // step[0]), 0)


def bounds(facts: FunctionFacts, value: Value) -> Interval:
    """Bounds of every element of an integer, at worst the limits of its type."""
    memo = facts.memo.bounds
    if value not in memo:
        for known in operands_first(facts, value, memo, _ruling):
            if known not in memo:
                memo[known] = _bounds(facts, known)
    return memo[value]


def _bounds(facts: FunctionFacts, value: Value) -> Interval:
    found, form = own_bounds(facts, value), facts.form(value)
    if form is not None and form.exact:
        of_form = interval(facts, form, value.type.shape)
        if within(of_form, limits(value.type.dtype)):
            return max(found[0], of_form[0]), min(found[1], of_form[1])
    return found


def own_bounds(facts: FunctionFacts, value: Value) -> Interval:
    """Bounds from the rule of the defining op and from the author's promises, for a value that is a symbol of forms."""
    if value.type.is_pointer:
        return limits(value.type.dtype)
    low, high = _by_rule(facts, value)
    op = facts.definition.get(value)
    least, most = facts.limits.get(value, (None, None)) if op is None else map(op.attrs.get, ("least", "most"))
    return low if least is None else max(low, least), high if most is None else min(high, most)


def _by_rule(facts: FunctionFacts, value: Value) -> Interval:
    whole = limits(value.type.dtype)
    if value in facts.argument:
        return _index(facts, *facts.argument[value][::2], whole)
    op = facts.definition.get(value)
    if op is not None and op.name == "if" and value.type.dtype.is_integer:
        arms = [bounds(facts, block.terminator.args[op.results.index(value)]) for block in op.blocks]
        return min(low for low, _ in arms), max(high for _, high in arms)
    found = _rule(facts, op) if op is not None else None
    return found if found is not None and within(found, whole) else whole


def _index(facts: FunctionFacts, loop: Op, i: int, whole: Interval) -> Interval:
    """Bounds of the index of a `for`, from the bounds of the loop."""
    if loop.name != "for" or i != 0:
        return whole
    lower, upper, step = (bounds(facts, a) for a in loop.args[:3])
    if step[0] > 0:
        return lower[0], max(upper[1] - 1, lower[0])
    if step[1] < 0:
        return min(upper[0] + 1, lower[1]), lower[1]
    return whole


def _ruling(op: Op) -> tuple[Value, ...]:
    """The operands whose bounds determine those of the result; none for an op without a rule."""
    return op.args if all(a.type.dtype.is_integer for a in op.args) else ()


def _rule(facts: FunctionFacts, op: Op) -> Interval | None:
    """Bounds of an op's result from those of its operands; None when there is no rule."""
    match op.name:
        case name if name in PROGRAM_INDICES:
            return 0, MAX_INT - 1
        case name if name in GRID_SIZES:
            return 1, MAX_INT
        case "const":
            if not op.result.type.dtype.is_integer:
                return None
            return int(op.attrs["value"]), int(op.attrs["value"])
    if op.blocks or not _ruling(op):
        return None
    found = [bounds(facts, a) for a in op.args]
    match op.name, found:
        case name, [a] if name in SAME:
            return a
        case "min", [a, b]:
            return min(a[0], b[0]), min(a[1], b[1])
        case "max", [a, b]:
            return max(a[0], b[0]), max(a[1], b[1])
        case "select", [_, a, b]:
            return min(a[0], b[0]), max(a[1], b[1])
        case "abs", [a]:
            return (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), max(abs(a[0]), abs(a[1]))
        case (("div" | "rem"), [a, b]):
            return _division(op.name, a, b)
        case (("and" | "or" | "xor" | "shr"), [a, b]):
            return _bitwise(op.name, a, b, op.args[1].type.dtype.bits)
        case (("add" | "sub" | "mul"), [a, b]):
            return _arithmetic(op.name, a, b)
    return None


def _division(name: str, a: Interval, b: Interval) -> Interval | None:
    """Bounds of a quotient or remainder."""
    if name == "rem":
        most = max(max(abs(b[0]), abs(b[1])) - 1, 0)
        return max(min(a[0], 0), -most), min(max(a[1], 0), most)
    if b[0] > 0 or b[1] < 0:
        corners = [_truncated(x, y) for x in a for y in b]
        return min(corners + [0] * (a[0] <= 0 <= a[1])), max(corners + [0] * (a[0] <= 0 <= a[1]))
    if a[0] >= 0 and b[0] == 0:  # division by zero gives zero or a, as in the code generators
        return 0, a[1]
    return None


def _bitwise(name: str, a: Interval, b: Interval, bits: int) -> Interval | None:
    """Bounds of bit operations on non-negative numbers, and of right shifts."""
    match name:
        case "and" if a[0] >= 0 or b[0] >= 0:
            return 0, min(x[1] for x in (a, b) if x[0] >= 0)
        case "or" | "xor" if a[0] >= 0 and b[0] >= 0:
            return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1
        case "shr" if b[0] >= 0 and b[1] < bits:
            corners = [x >> y for x in a for y in b]
            return min(corners), max(corners)
    return None


def _arithmetic(name: str, a: Interval, b: Interval) -> Interval:
    match name:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def extremes(facts: FunctionFacts, form: Form, shape: tuple[int, ...]) -> tuple[Form, Form] | None:
    """The least and the greatest value of a form over a tile, as uniform forms; None if the sign of a stride is unknown."""
    low = high = form
    for axis, size in enumerate(shape):
        if not any(axis in s.axes for s in form.symbols()):
            continue
        if (cut := form.split(axis)) is None:
            return None
        a, b = interval(facts, cut[0], shape)
        if a < 0 < b or any(s.axes for s in cut[0].symbols()):
            return None
        first, last = Form.of(0), Form.of(size - 1)
        low = low.replaced(Dim(axis), first if a >= 0 else last)
        high = high.replaced(Dim(axis), last if a >= 0 else first)
    return low, high


def truth(facts: FunctionFacts, value: Value) -> bool | None:
    """The value of all elements of a boolean, if it is known; else None."""
    op = facts.definition.get(value)
    if op is None or value.type.dtype.kind != "bool":
        return None
    match op.name:
        case "const":
            return bool(op.attrs["value"])
        case name if name in PRESERVING:
            return truth(facts, op.args[0])
        case "not":
            x = truth(facts, op.args[0])
            return None if x is None else not x
        case "and" | "or":
            found = [truth(facts, a) for a in op.args]
            decisive = op.name == "or"
            return decisive if decisive in found else (None if None in found else not decisive)
        case "cmp":
            return _compared(facts, op)
    return None


def _compared(facts: FunctionFacts, op: Op) -> bool | None:
    a, b = op.args
    if not a.type.dtype.is_integer:
        return None
    x, y = bounds(facts, a), bounds(facts, b)
    low, high = x[0] - y[1], x[1] - y[0]
    if a.type.dtype.kind != "bool" and all(_faithful(facts, v) for v in (a, b)):
        low, high = interval(facts, facts.integer(a) - facts.integer(b), a.type.shape)
    return _decided(op.attrs["pred"], low, high)


def _decided(pred: str, low: int, high: int) -> bool | None:
    """The result of comparing a difference between `low` and `high` with zero; None if it is not determined."""
    match pred:
        case "lt":
            return True if high < 0 else False if low >= 0 else None
        case "le":
            return True if high <= 0 else False if low > 0 else None
        case "gt":
            return True if low > 0 else False if high <= 0 else None
        case "ge":
            return True if low >= 0 else False if high < 0 else None
    differ = low > 0 or high < 0
    same = low == high == 0
    return (differ if pred == "ne" else same) if differ or same else None


def _faithful(facts: FunctionFacts, value: Value) -> bool:
    """Whether the value provably equals its form."""
    form = facts.form(value)
    return form is not None and form.exact and within(interval(facts, form, value.type.shape), limits(value.type.dtype))
