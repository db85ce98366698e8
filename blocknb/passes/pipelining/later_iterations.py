"""The values of a loop's later iterations, computed before those iterations run.

Addresses of later iterations are recomputed, not carried. The arithmetic that leads to an address is emitted again, with the index and the
carried scalars of the later iteration. A load of an index is emitted again, too, and masked off beyond the last iteration. `legality` has
checked that there is nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.analysis import affine
from blocknb.analysis.effects import mask_of
from blocknb.ir.build import Builder, Rebuild, emit_copy
from blocknb.ir.core import Op, Value
from blocknb.language.types import Tile


def sign(facts: affine.Facts, loop: Op) -> int:
    """1 or -1 if a loop's index rises or falls; 0 if that is unknown."""
    low, high = facts.range(loop.args[2]) or (-1, 1)
    return 1 if low > 0 else -1 if high < 0 else 0


def rises(emit: Builder, step: Value) -> Value:
    """Whether a loop's step is positive, as a value."""
    return emit.value("cmp", step, emit.const(0, step.type), pred="gt")


def direction(emit: Builder, facts: affine.Facts, loop: Op, step: Value) -> Value:
    """The sign of a loop's step as a value."""
    one, known = emit.const(1, step.type), sign(facts, loop)
    if known:
        return one if known > 0 else emit.const(-1, step.type)
    return emit.value("select", rises(emit, step), one, emit.const(-1, step.type))


class LaterIterations:
    """Emits values of a loop's later iterations. `index` and `carried` are the values of the current iteration."""

    def __init__(self, rebuild: Rebuild, facts: affine.Facts, loop: Op, index: Value, carried: Sequence[Value]):
        self.rebuild, self.facts, self.builder, self.loop = rebuild, facts, rebuild.builder, loop
        _, self.upper, self.step = map(rebuild.get, loop.args[:3])
        self.known: dict[tuple[Value, int], Value] = {}
        for old, new in zip(loop.blocks[0].args, (index, *carried), strict=True):
            self.known[old, 0] = new

    def operands(self, load: Op, iteration: int, exists: bool = False) -> list[Value]:
        """The operands of a load that many iterations later. Its mask is off if that iteration does not exist (`exists`: it surely
        does)."""
        pointer, *rest = (self.at(x, iteration) for x in load.args)
        if not exists:
            rest[:1] = [
                self.masked(rest[0] if mask_of(load) is not None else None, pointer.type, self.goes_on(iteration))
            ]
        return [pointer, *rest]

    def masked(self, mask: Value | None, type: Tile, more: Value) -> Value:
        layout = {"layout": type.layout} if type.layout else {}
        whole = self.builder.value("splat", more, shape=type.shape, **layout) if type.shape else more
        return whole if mask is None else self.builder.value("and", mask, whole)

    def goes_on(self, iteration: int) -> Value:
        """Whether the iteration that much later exists: its index is below the bound for a positive step, above it for a negative one."""
        index = self.at(self.loop.blocks[0].args[0], iteration)
        up, down = (self.builder.value("cmp", index, self.upper, pred=pred) for pred in ("lt", "gt"))
        if known := sign(self.facts, self.loop):
            return up if known > 0 else down
        return self.builder.value("select", rises(self.builder, self.step), up, down)

    def at(self, value: Value, iteration: int) -> Value:
        """A value of the loop that many iterations later."""
        if not self.facts.inside(value, self.loop):
            return self.rebuild.get(value)
        if (value, iteration) not in self.known:
            self.known[value, iteration] = self.found(value, iteration)
        return self.known[value, iteration]

    def found(self, value: Value, iteration: int) -> Value:
        facts, body = self.facts, self.loop.blocks[0]
        if value is body.args[0]:
            return self.builder.value("add", self.at(value, iteration - 1), self.step)
        if value in facts.argument:
            return self.at(body.terminator.args[facts.argument[value][2] - 1], iteration - 1)
        op = facts.definition[value]
        if op.name == "load":
            return self.builder.value("load", *self.operands(op, iteration), **op.attrs)
        return emit_copy(op, self.builder, {a: self.at(a, iteration) for a in op.args}).result
