"""Support for loop pipelining: the loads of a loop that may be issued early, and the values of later iterations.

Addresses of later iterations are recomputed, not carried. An address must follow from the loop's index, and from carried scalars, by
arithmetic alone; that arithmetic is repeated for a later index. A load through a loaded index stays where it is.

An early load moves before the stores of earlier iterations. So no store of the loop may write its array. Two arguments are assumed to be
two arrays, as in `barriers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blocknb.analysis import affine, ranges
from blocknb.analysis.effects import effects, global_operands, mask_of, orders
from blocknb.ir.build import Builder, Rebuild, emit_copy
from blocknb.ir.core import Func, Op, Value, uses, walk
from blocknb.ir.traversal import reachable
from blocknb.language.ops import ACCESSES, ATOMICS, OPS, WRITES
from blocknb.language.types import Tile

MOST_OPS = 64  # the most arithmetic ops per address
COPIES_FROM = 80  # the first compute capability with asynchronous copies
ARITHMETIC = (
    "source",
    "shape",
    "elementwise",
    "distributed",
)  # kinds of ops that may be repeated for a later iteration


class PipeliningObstacles:
    """Finds the reasons against issuing loads of a loop in an earlier iteration."""

    def __init__(self, func: Func):
        self.facts, self.users = affine.analyze(func), uses(func)

    def against_loop(self, loop: Op) -> str:
        """The reason why no load of a loop may be issued early; "" if some may."""
        if ranges.iterations(self.facts, loop)[1] <= 1:
            return "the loop makes one iteration at most"
        for op in walk(loop.blocks[0]):
            if op.name == "while" and any(x.name in ACCESSES for block in op.blocks for x in walk(block)):
                return f"the `while`{at_line(op)} may wait for other programs"
            if why := against_passing(op):
                return why
        return ""

    def writers(self, loop: Op) -> list[tuple[Value | None, Op]]:
        """The writes of the loop: the argument of each pointer (None: unknown), and the op."""
        found = (op for op in walk(loop.blocks[0]) if op.name in WRITES)
        return [(self.facts.root(global_operands(op)[0]), op) for op in found]

    def against(self, load: Op, loop: Op) -> str:
        """The reason why a load in a loop's own block must stay where it is; "" if it may be issued early."""
        root = self.facts.root(load.args[0])
        if load.attrs.get("cache") == ".cv":
            return "it bypasses the caches (.cv)"
        for other, op in self.writers(loop):
            if root is None or other is None:
                return f"the {op.name}{at_line(op)} may access the same array"
            if root is other:
                return f"the loop also writes {root.name},{at_line(op)}"
        varies = False
        for what, value in zip(("address", "mask", "`other`"), load.args, strict=False):
            why, moves = self.path(value, loop)
            if why:
                return f"its {what} {why}"
            varies |= moves
        return "" if varies else "it reads the same place in every iteration"

    def path(self, value: Value, loop: Op) -> tuple[str, bool]:
        """The reason why a later iteration's value cannot be computed early ("" if it can), and whether the value varies between
        iterations."""
        varies, count = False, 0

        def inside(values: Iterable[Value]) -> list[Value]:
            return [x for x in values if self.facts.inside(x, loop)]

        def made_of(value: Value) -> list[Value]:
            if value in self.facts.argument:
                _, _, i = self.facts.argument[value]
                return inside([loop.blocks[0].terminator.args[i - 1]] if i else [])
            return inside(self.facts.definition[value].args)

        for current in reachable(inside([value]), made_of):
            if current in self.facts.argument:
                varies = True
                continue
            op = self.facts.definition[current]
            if op.name == "load":
                return "was loaded in the loop", varies
            if not OPS[op.name].pure or OPS[op.name].kind not in ARITHMETIC:
                return f"is made by a {op.name} in the loop", varies
            if (count := count + 1) > MOST_OPS:
                return "takes much arithmetic, which would be done twice", varies
        return "", varies


def sign(facts: affine.Facts, loop: Op) -> int:
    """1 or -1 if a loop's index rises or falls; 0 if that is unknown."""
    low, high = facts.range(loop.args[2]) or (-1, 1)
    return 1 if low > 0 else -1 if high < 0 else 0


def rises(emit: Builder, step: Value) -> Value:
    return emit.value("cmp", step, emit.const(0, step.type), pred="gt")


def direction(emit: Builder, facts: affine.Facts, loop: Op, step: Value) -> Value:
    """The sign of a loop's step as a value."""
    one, known = emit.const(1, step.type), sign(facts, loop)
    if known:
        return one if known > 0 else emit.const(-1, step.type)
    return emit.value("select", rises(emit, step), one, emit.const(-1, step.type))


def against_passing(op: Op) -> str:
    """The reason why later accesses must stay after an op; "" if they may move before it."""
    if not op.blocks and effects(op).orders:
        return f"the {op.name}{at_line(op)} keeps later accesses after it"
    if op.name in ATOMICS and orders(op)[0]:
        return f"the {op.name}{at_line(op)} ({op.attrs['sem']}) keeps later accesses after it"
    return ""


def at_line(op: Op) -> str:
    """The place of an op in a note."""
    return f" at line {op.loc.line}" if op.loc else ""


def counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


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
        return emit_copy(op, self.builder, {a: self.at(a, iteration) for a in op.args}).result
