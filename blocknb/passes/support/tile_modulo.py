"""Modulo of whole tiles: `(x + arange(0, n)) % m` is `x % m + arange(0, n)` if n divides x and m, and x is not negative.

Triton's tutorial avoids a mask by rows that wrap around at the end of an array. If the array ends with a whole tile, these rows are then
contiguous. A launch knows whether it does: arguments by which a kernel takes `%` have specializations for multiples of 64, 128 and 256.
"""

from __future__ import annotations

from typing import Any

from blocknb.analysis import axis_info
from blocknb.analysis.axis_info import PROMISES
from blocknb.analysis.polynomials import nonnegative
from blocknb.ir.core import Op, Value
from blocknb.language.ops import named
from blocknb.passes.support.rewriting import RewriteContext

UNIFORM = named("uniform")


def whole_tile(op: Op, rewriter: RewriteContext) -> Value | None:
    """The replacement for a remainder whose tile never wraps; None if it may."""
    counted, modulus = (rewriter.definition.get(a) for a in op.args)
    if counted is None or modulus is None or modulus.name not in UNIFORM:
        return None
    start, steps = _parts(op.args[0], counted, rewriter)
    if steps is None or not _divided(op, rewriter):
        return None
    if start is not None:
        scalar = modulus.args[0] if modulus.name == "splat" else rewriter.const(modulus.attrs["value"], start.type)
        shape: dict[str, Any] = {"shape": op.result.type.shape}
        if op.result.type.layout is not None:
            shape["layout"] = op.result.type.layout
        wrapped = rewriter.make("splat", rewriter.make("rem", start, scalar), **shape)
        steps = rewriter.make("add", wrapped, steps)
    size, name = op.result.type.shape[0], _name(op, rewriter)
    why = (
        f"{name} is a multiple of {size}"
        if name.isdigit()
        else f"the launch chooses this version, in which {name} is a multiple of {size}"
    )
    rewriter.note(op, f"% {name} wraps around between tiles, never within one: {why}")
    return steps


def _parts(value: Value, op: Op, rewriter: RewriteContext) -> tuple[Value | None, Value | None]:
    """The scalar (None: zero) and the range from zero whose sum is a tile; no range if it is not such a sum."""
    if _counts(op, rewriter):
        return None, value
    if op.name != "add":
        return None, None
    for a, b in (op.args, op.args[::-1]):
        first, second = rewriter.definition.get(a), rewriter.definition.get(b)
        if first is not None and first.name == "splat" and second is not None and _counts(second, rewriter):
            return first.args[0], b
    return None, None


def _counts(op: Op | None, rewriter: RewriteContext) -> bool:
    while op is not None and op.name == "cast" and op.result.type.dtype.kind == "int":
        op = rewriter.definition.get(op.args[0])
    return op is not None and op.name == "arange" and op.attrs["start"] == 0


def _divided(op: Op, rewriter: RewriteContext) -> bool:
    """Whether the tile's size divides its start and the modulus, and the start is not negative."""
    facts, size = rewriter.facts, op.result.type.shape[0]
    before = facts.definition.get(op.result)
    if before is None:  # made in this round: its facts are known only in the next round
        rewriter.another_round = True
        return False
    number, modulus = (facts.form(a) for a in before.args)
    cut = None if number is None else number.split(0)
    if cut is None or modulus is None or any(s.axes for s in modulus.symbols()):
        return False
    if any(v > size for name in PROMISES for v in op.attrs.get(name, ())):
        return False  # the rewrite would lose the promise
    divided = all(axis_info.form_divisor(facts, form, None, 1) % size == 0 for form in (cut[1], modulus))
    return divided and cut[0].constant == 1 and nonnegative(facts, cut[1])


def _name(op: Op, rewriter: RewriteContext) -> str:
    return str(rewriter.facts.form(rewriter.facts.definition[op.result].args[1]))
