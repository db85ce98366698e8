"""Recognition of a softmax in pieces: the sum of `exp(x - top)` over several tiles is at least one if `top` is their joint maximum.

A row may be loaded as several tiles: whole vectors and the rest, or a tile and its mirror. Their maxima are combined, and so are the sums
of their exponentials, within a thread first where a tile is reshaped. The largest element is in one of the tiles. If the sum takes the
exponentials of all of them, one of its addends is one.
"""

from __future__ import annotations

from collections.abc import Iterator

from blocknb.analysis.facts import FunctionFacts
from blocknb.analysis.online_softmax import VIEWS, single
from blocknb.ir.core import Op, Value

MOST = 64  # ops of a tree of maxima or sums that are followed


def tree(facts: FunctionFacts, root: Value, combine: str) -> Iterator[tuple[Value, bool]]:
    """The values that `root` combines with `combine` ("max" or "add"), each with whether it is a leaf. Reshaped tiles are left out."""
    left, seen = [root], 0
    while left:
        value, seen = left.pop(), seen + 1
        op = facts.definition.get(value)
        inner = op is not None and seen < MOST and _combines(op, combine)
        if op is not None and op.name == "reshape" and seen < MOST:
            left.append(op.args[0])
            continue
        yield value, not inner
        left += op.args if inner and op is not None else ()


def _combines(op: Op, combine: str) -> bool:
    if op.name == "reduce":
        return len(op.args) == 1 and single(op) == combine
    return op.name == combine and not op.attrs.get("nan")


def joint_maximum(facts: FunctionFacts, op: Op) -> Value | None:
    """The scalar maximum that a subtraction takes off a tile, if the tile is among the values whose maximum it is."""
    top = op.args[1]
    while (maker := facts.definition.get(top)) is not None and maker.name in VIEWS:
        top = maker.args[0]
    if top.type.shape:
        return None
    x = _shaped(facts, op.args[0])
    return top if any(value is x for value, _ in tree(facts, top, "max")) else None


def _shaped(facts: FunctionFacts, value: Value) -> Value:
    """The tile before reshapes."""
    while (op := facts.definition.get(value)) is not None and op.name == "reshape":
        value = op.args[0]
    return value


def at_least_one(facts: FunctionFacts, total: Value) -> bool:
    """Whether a scalar sum has the exponentials of all tiles less their joint maximum among its addends. The caller knows that no addend is
    negative."""
    tops: set[Value] = set()
    tiles: set[Value] = set()
    for leaf, ends in tree(facts, total, "add"):
        power = facts.definition.get(leaf)
        apart = facts.definition.get(power.args[0]) if ends and power is not None and power.name == "exp" else None
        if apart is not None and apart.name == "sub" and (top := joint_maximum(facts, apart)) is not None:
            tops.add(top)
            tiles.add(_shaped(facts, apart.args[0]))
    if len(tops) != 1:
        return False
    return all(not ends or leaf in tiles for leaf, ends in tree(facts, tops.pop(), "max"))
