"""Range analysis of floats (interval arithmetic), and the magnitude below which a float may be replaced by zero.

`bounds` is an interval that holds every non-NaN element of a value. It ignores rounding; its users compare with limits far beyond rounding
errors. It recognises that in `x - max(x)` some element of each slice is zero, so a sum of `exp(x - max(x))` is at least one.
`negligible_magnitude` looks from a value to its users. A small enough number may be replaced by zero if it is rounded to fp16, or added to
a number that is at least one. Source: Moore, "Interval Analysis" (1966).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from blocknb.analysis import online_softmax, ranges, split_softmax
from blocknb.analysis.facts import FunctionFacts
from blocknb.analysis.online_softmax import FloatFacts, Interval, single
from blocknb.analysis.operand_order import operands_first
from blocknb.ir.core import Op, Users, Value
from blocknb.language import types as t
from blocknb.language.ops import PRESERVING, named
from blocknb.language.types import Tile

EVERYTHING: Interval = (-math.inf, math.inf)
REPEATING = named("replicates") | {"expand_dims"}
SAME = PRESERVING | {"promise"}
#: A cast to the dtype rounds numbers up to this magnitude to a zero of their sign.
ROUNDS_TO_ZERO = {t.float16: 2.0**-25}
DEPTH = 32  # the most ops that one query follows in a row
#: In a sum of non-negative numbers, addends up to this total are far below half a unit in the last place.
NEGLIGIBLE = 2.0**-64


class FloatRanges:
    """Float ranges in one Func, computed on demand."""

    def __init__(self, facts: FunctionFacts, users: Users):
        self.facts, self.users = facts, users
        self._bounds: dict[Value, Interval] = {}
        self._negligible: dict[Value, float] = {}

    # -- ranges

    def bounds(self, value: Value) -> Interval:
        """The least and the greatest non-NaN element of a float or integer value; at worst (-inf, inf)."""
        for known in operands_first(self.facts, value, self._bounds):
            if known not in self._bounds:
                self._bounds[known] = _overflowing(self._rule(known), known)
        return self._bounds[value]

    def _rule(self, value: Value) -> Interval:
        if not isinstance(value.type, Tile) or value.type.is_pointer:
            return EVERYTHING
        if not value.type.dtype.is_float:
            integers = ranges.bounds(self.facts, value)
            return float(integers[0]), float(integers[1])
        op = self.facts.definition.get(value)
        if op is None or (op.blocks and op.name != "reduce"):
            return EVERYTHING
        return self._of_op(op, [self._bounds.get(a, EVERYTHING) for a in op.args])

    def _of_op(self, op: Op, found: Sequence[Interval]) -> Interval:
        """The range of a float op's result from the ranges of its operands."""
        match op.name:
            case "const":
                number = float(op.attrs["value"])
                return EVERYTHING if math.isnan(number) else (number, number)
            case "cast":
                return found[0] if op.args[0].type.dtype.kind != "bool" else (0.0, 1.0)
            case name if name in UNARY:
                return UNARY[name](found[0])
            case "add":
                low, high = _sum(found[0], found[1])
                return (max(low, self._jointly_attained(op.result)) if min(found)[0] >= 0 else low), high
            case "sub":
                if self.subtracted_max_axis(op) or split_softmax.joint_maximum(self.facts, op) is not None:
                    return -math.inf, 0.0
                return _sum(found[0], (-found[1][1], -found[1][0]))
            case "mul":
                corners = [_product(x, y) for x in found[0] for y in found[1]]
                return min(corners), max(corners)
            case "min" | "max":
                return self._extreme(op, found)
            case "select":
                return min(a for a, _ in found[1:]), max(b for _, b in found[1:])
            case "reduce":
                return self._reduced(op)
            case name if name in SAME:
                return found[0]
        return EVERYTHING

    def _extreme(self, op: Op, found: Sequence[Interval]) -> Interval:
        """The range of a minimum or maximum. A NaN yields the other operand, so only operands that are never NaN limit the result."""
        low, high = min(a for a, _ in found), max(b for _, b in found)
        for (least, most), operand in zip(found, op.args, strict=True):
            if op.attrs.get("nan") or self.is_number(operand):
                low, high = (low, min(high, most)) if op.name == "min" else (max(low, least), high)
        return low, high

    def is_number(self, value: Value) -> bool:
        """Whether a value is never NaN."""
        op = self.facts.definition.get(self._uncast(value))
        return self.is_integer_valued(value) or (
            op is not None and op.name == "const" and not math.isnan(op.attrs["value"])
        )

    def is_integer_valued(self, value: Value) -> bool:
        """Whether a value is an integer converted to float: zero, or a magnitude from 1 to 2^64 (2^63 if negative)."""
        return not self._uncast(value).type.dtype.is_float

    def _uncast(self, value: Value) -> Value:
        """The value before casts that keep its number; an integer if the float was made from one."""
        while value.type.dtype.is_float and (op := self.facts.definition.get(value)) is not None:
            if op.name not in (*SAME, "cast"):
                break
            value = op.args[0]
        return value

    def _reduced(self, op: Op) -> Interval:
        if len(op.args) != 1 or (combine := single(op)) not in ("min", "max", "add"):
            return EVERYTHING
        axis, (low, high) = op.attrs["axis"], self.bounds(op.args[0])
        if combine != "add":
            return low, high
        if low < 0:
            return EVERYTHING
        size = op.args[0].type.shape[axis]
        return max(
            low * size, self.max_lower_bound(op.args[0], axis), self._jointly_attained(op.results[0])
        ), high * size

    def _jointly_attained(self, total: Value) -> float:
        """A lower bound of a scalar sum of numbers that are not negative, from all its addends together."""
        return 1.0 if not total.type.shape and split_softmax.at_least_one(self.facts, total) else 0.0

    def max_lower_bound(self, value: Value, axis: int, depth: int = 0) -> float:
        """A number that some element of each slice along `axis` reaches, unless the slice holds a NaN; -inf if none is known."""
        if depth == DEPTH or (op := self.facts.definition.get(value)) is None:
            return -math.inf
        match op.name:
            case "sub" if self.subtracted_max_axis(op) == axis + 1:
                return 0.0
            case "exp":
                return _exp(self.max_lower_bound(op.args[0], axis, depth + 1))
            case "exp2":
                return _exp(self.max_lower_bound(op.args[0], axis, depth + 1) * math.log(2))
            case "mul" if self.bounds(op.args[1])[0] > 0 and self.max_lower_bound(op.args[0], axis, depth + 1) >= 0:
                return 0.0
        return -math.inf

    def subtracted_max_axis(self, op: Op) -> int:
        """The axis plus one if an op is `x - max(x, axis)`, else 0."""
        x, taken = op.args
        spread = None
        while (maker := self.facts.definition.get(taken)) is not None and maker.name in REPEATING:
            if maker.name == "expand_dims":
                if spread is not None:
                    return 0
                spread = maker.attrs["axis"]
            taken = maker.args[0]
        if maker is None or maker.name != "reduce" or maker.args != (x,) or single(maker) != "max":
            return 0
        axis = maker.attrs["axis"]
        kept = len(x.type.shape) > 1  # the maximum of a tile with one axis is a scalar
        return axis + 1 if not kept or spread == axis else 0

    # -- negligible magnitudes

    def negligible_magnitude(self, value: Value, depth: int = 0) -> float:
        """A magnitude below which elements of a value may become zeros of their sign without changing anything that is stored."""
        if value not in self._negligible:
            found = (self._negligible_for_user(op, i, depth + 1) for op, i in self.users.get(value, ()))
            self._negligible[value] = min(found, default=0.0) if depth < DEPTH else 0.0
        return self._negligible[value]

    def _negligible_for_user(self, op: Op, place: int, depth: int) -> float:
        """The negligible magnitude that one user permits; the value is its operand number `place`."""
        if (op.blocks and op.name != "reduce") or len(op.results) != 1 or not op.result.type.dtype.is_float:
            return 0.0
        result = op.result
        match op.name:
            case "cast" if op.args[0].type.dtype == t.float32:
                return ROUNDS_TO_ZERO.get(result.type.dtype, 0.0)
            case "select" if place > 0:
                return self.negligible_magnitude(result, depth)
            case "mul":
                most = max(map(abs, self.bounds(op.args[1 - place])))
                return self.negligible_magnitude(result, depth) / most if 0 < most < math.inf else 0.0
            case "div" if place == 0:
                low, high = self.bounds(op.args[1])
                return self.negligible_magnitude(result, depth) * low if low > 0 and high < math.inf else 0.0
            case "add" | "sub":
                low, high = self.bounds(op.args[1 - place])
                least = max(low, -high, 0.0) if max(low, -high) < math.inf else 0.0
                if op.name == "add" and min(low, self.bounds(op.args[place])[0]) >= 0:
                    least = max(least, self._final_sum(result))
                return least * NEGLIGIBLE
            case "reduce":
                if single(op) != "add" or self.bounds(op.args[0])[0] < 0:
                    return 0.0
                least = max(
                    self._final_sum(result),
                    online_softmax.added_to(FloatFacts(self.facts, self.users, self.bounds), op),
                )
                share: float = least * NEGLIGIBLE / op.args[0].type.shape[op.attrs["axis"]]
                return share
            case name if name in SAME:
                return self.negligible_magnitude(result, depth)
        return 0.0

    def _final_sum(self, partial: Value) -> float:
        """A lower bound of the sum of numbers that are not negative to which a partial sum is added, and to nothing else. If it is not the
        partial sum itself, it is divided by the elements of that."""
        value, elements = partial, 1
        for _ in range(DEPTH):
            if (least := self.bounds(value)[0]) > 0:
                return float(least / elements)
            users = self.users.get(value, ())
            user = users[0][0] if len(users) == 1 else None
            if user is None or not _adds(user) or min(self.bounds(a)[0] for a in user.args) < 0:
                return 0.0
            value, elements = user.results[0], math.prod(partial.type.shape)
        return 0.0


def _adds(op: Op) -> bool:
    """Whether an op adds up its operands, or keeps them."""
    return op.name in ("add", "reshape") or (op.name == "reduce" and len(op.args) == 1 and single(op) == "add")


def _overflowing(bounds: Interval, value: Value) -> Interval:
    """Clamps an interval to the dtype: arithmetic and casts beyond its largest number give infinity."""
    if not isinstance(value.type, Tile) or value.type.is_pointer or not value.type.dtype.is_float:
        return bounds
    dtype = value.type.dtype
    largest = (2.0 - 2.0**-dtype.fp_mantissa_width) * 2.0**dtype.exponent_bias
    return (bounds[0] if bounds[0] >= -largest else -math.inf), (bounds[1] if bounds[1] <= largest else math.inf)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _abs_range(x: Interval) -> Interval:
    ends = sorted(map(abs, x))
    return (0.0 if x[0] <= 0 <= x[1] else ends[0]), ends[1]


def _sqrt_range(x: Interval) -> Interval:
    return math.sqrt(max(x[0], 0.0)), math.sqrt(x[1]) if x[1] > 0 else 0.0


#: The ranges of unary functions.
UNARY: dict[str, Callable[[Interval], Interval]] = {
    "exp": lambda x: (_exp(x[0]), _exp(x[1])),
    "exp2": lambda x: (_exp(x[0] * math.log(2)), _exp(x[1] * math.log(2))),
    "neg": lambda x: (-x[1], -x[0]),
    "abs": _abs_range,
    "sqrt": _sqrt_range,
}


def _sum(a: Interval, b: Interval) -> Interval:
    """The sum of two intervals. Infinities of opposite sign make a NaN, which no interval counts."""
    low, high = a[0] + b[0], a[1] + b[1]
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def _product(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y
