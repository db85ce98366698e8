"""Recognition of the online softmax: `total = total * exp(top - new) + sum(exp(x - new))` is at least one.

A loop carries the largest element so far (`top`) and the sum of the exponentials (`total`). In each iteration the new maximum is either
among its own elements, and one of its exponentials is one; or it is the old maximum, and `total`, which was at least one, is multiplied
by one. The loop starts with -inf, and the first iteration finds a larger element or a NaN. Rounding aside, as in `float_ranges`. Source:
Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blocknb.analysis.facts import FunctionFacts
from blocknb.ir.core import Op, Users, Value
from blocknb.language.ops import OPS, named

LEAST = 0.5  # the least value of such a sum; rounding cannot halve it
VIEWS = named("replicates") | {"expand_dims"}
EXPONENTIALS = named("exponential")


Interval = tuple[float, float]


@dataclass(frozen=True)
class FloatFacts:
    """The queries of the recogniser: the structure of the function, the users of each value, and the range of a float."""

    facts: FunctionFacts
    users: Users
    bounds: Callable[[Value], Interval]


def single(op: Op) -> str | None:
    """The op with which a reduction combines, if that op neither ignores nor creates NaN; else None."""
    ops = op.blocks[0].ops
    if len(ops) != 2 or OPS[ops[0].name].kind != "elementwise" or ops[0].attrs.get("nan"):
        return None
    return ops[0].name if set(ops[0].args) == set(op.blocks[0].args) else None


def added_to(known: FloatFacts, reduction: Op) -> float:
    """A lower bound of the running sum to which a sum of exponentials is added, and to nothing else; 0 if none is known."""
    result = reduction.results[0]
    users = known.users.get(result, ())
    if len(users) != 1 or users[0][0].name != "add":
        return 0.0
    loop = known.facts.parent.get(reduction)
    if loop is None or loop.name != "for" or users[0][0].result not in loop.blocks[0].terminator.args:
        return 0.0
    place = loop.blocks[0].terminator.args.index(users[0][0].result)
    return LEAST if largest_of(known, loop, place, reduction) is not None else 0.0


def largest_of(m: FloatFacts, loop: Op, place: int, reduction: Op | None = None) -> int | None:
    """The index of the carried maximum, if the loop carries at `place` the sum to which `reduction` adds; else None."""
    block = loop.blocks[0]
    total, added = block.args[1 + place], m.facts.definition.get(block.terminator.args[place])
    if added is None or added.name != "add":
        return None
    for old, new in (added.args, reversed(added.args)):
        scaled, summed = m.facts.definition.get(old), m.facts.definition.get(new)
        if scaled is None or summed is None or scaled.name != "mul" or total not in scaled.args:
            continue
        factor = m.facts.definition.get(scaled.args[scaled.args[0] is total])
        top = carried_over(m, loop, factor) if factor is not None and factor.name in EXPONENTIALS else None
        if top is None or summed.name != "reduce" or (reduction is not None and summed is not reduction):
            continue
        under = exponentials(m, summed, block.terminator.args[top])
        return top if under and begins(m, loop, top, place) else None
    return None


def carried_over(m: FloatFacts, loop: Op, factor: Op) -> int | None:
    """The index of a carried value, if `factor` is the exponential of its old value minus its new value; else None."""
    apart, block = m.facts.definition.get(factor.args[0]), loop.blocks[0]
    if apart is None or apart.name != "sub" or apart.args[0] not in block.args[1:]:
        return None
    place = block.args.index(apart.args[0]) - 1
    return place if block.terminator.args[place] is apart.args[1] else None


def exponentials(m: FloatFacts, summed: Op, largest: Value) -> bool:
    """Whether a reduction sums `exp(x - largest)`, where `largest` is the maximum of the carried value and of x."""
    power, most = m.facts.definition.get(summed.args[0]), m.facts.definition.get(largest)
    if single(summed) != "add" or power is None or power.name not in EXPONENTIALS or most is None:
        return False
    apart = m.facts.definition.get(power.args[0])
    if apart is None or apart.name != "sub" or repeated_value(m, apart.args[1], summed.attrs["axis"]) is not largest:
        return False
    if most.name != "max" or most.attrs.get("nan"):
        return False
    x, factor = parts(m, apart.args[0])
    for found in most.args:
        maximum, times = parts(m, found)
        op = m.facts.definition.get(maximum)
        if op is None or op.name != "reduce" or single(op) != "max" or op.attrs["axis"] != summed.attrs["axis"]:
            continue
        if (op.args == (x,) and times is factor) or (op.args == (apart.args[0],) and times is None):
            return True
    return False


def parts(m: FloatFacts, value: Value) -> tuple[Value, Value | None]:
    """The factors of a product by a number that is the same for all elements; the value and None for anything else."""
    op = m.facts.definition.get(value)
    if op is not None and op.name == "mul":
        for one, other in (op.args, reversed(op.args)):
            number = repeated_value(m, other, None)
            if not number.type.shape:
                return one, number
    return value, None


def repeated_value(m: FloatFacts, value: Value, axis: int | None) -> Value:
    """The value that a tile repeats, through views. The views may add only the given axis (None: any axis)."""
    while (op := m.facts.definition.get(value)) is not None and op.name in VIEWS:
        if op.name == "expand_dims" and axis is not None and op.attrs["axis"] != axis:
            break
        value = op.args[0]
    return value


def begins(m: FloatFacts, loop: Op, top: int, total: int) -> bool:
    """Whether the sum is at least one before the first iteration, or the maximum is -inf."""
    first, sum_ = loop.args[3 + top], loop.args[3 + total]
    if (least := m.bounds(sum_)[0]) >= LEAST:
        return True
    made = m.facts.definition.get(first)
    if made is not None and made.name == "const":
        return least >= 0 and made.attrs["value"] == -float("inf")
    if made is None or made.name != "for" or sum_ not in made.results:
        return False
    return largest_of(m, made, made.results.index(sum_)) == made.results.index(first)
