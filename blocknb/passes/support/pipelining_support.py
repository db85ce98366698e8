"""What loop pipelining needs: which loads of a loop may be issued early, and the values of later iterations.

Addresses are not carried but recomputed. What leads from the loop's index, and from carried scalars that only arithmetic changes, to an
address is arithmetic, and is repeated for a later index. A load through an index that was itself loaded stays where it is.

An early load moves up past the stores of the iterations before its own. So no store of the loop may be to its array. Two arguments are
assumed to be two arrays, as in `barriers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blocknb.analysis import affine, ranges
from blocknb.analysis.effects import effects, global_operands, mask_of, orders
from blocknb.ir.build import Builder, Rebuild, emit_copy
from blocknb.ir.core import Func, Op, Value, uses, walk
from blocknb.ir.traversal import reachable
from blocknb.language.ops import ACCESSES, ATOMICS, OPS
from blocknb.language.types import Tile

MOST_OPS = 64  # of arithmetic that leads to one load
COPIES_FROM = 80  # the compute capability that has asynchronous copies
ARITHMETIC = (
    "source",
    "shape",
    "elementwise",
    "distributed",
)  # kinds of ops that may be repeated for a later iteration


class PipeliningObstacles:
    """What keeps loads of a loop from being done in an earlier trip."""

    def __init__(self, func: Func):
        self.facts, self.users = affine.analyze(func), uses(func)

    def against_loop(self, loop: Op) -> str:
        """Why nothing of a loop is loaded ahead, "" if something may be."""
        if ranges.trips(self.facts, loop)[1] <= 1:
            return "the loop makes one iteration at most"
        for op in walk(loop.blocks[0]):
            at = f" at line {op.loc.line}" if op.loc else ""
            if op.name == "while" and any(x.name in ACCESSES for block in op.blocks for x in walk(block)):
                return f"the `while`{at} may wait for other programs"
            if not op.blocks and effects(op).orders:
                return f"the {op.name}{at} keeps later accesses after it"
            if op.name in ATOMICS and orders(op)[0]:
                return f"the {op.name}{at} ({op.attrs['sem']}) keeps later accesses after it"
        return ""

    def writers(self, loop: Op) -> list[tuple[Value | None, Op]]:
        """What the loop writes: the argument that each pointer comes from (None: not known), and the op."""
        found = (op for op in walk(loop.blocks[0]) if op.name in ("store", *ATOMICS))
        return [(self.facts.root(global_operands(op)[0]), op) for op in found]

    def against(self, load: Op, loop: Op) -> str:
        """Why a load of a loop's own block stays where it is, "" if it may be issued ahead."""
        root = self.facts.root(load.args[0])
        if load.attrs.get("cache") == ".cv":
            return "it bypasses the caches (.cv)"
        for other, op in self.writers(loop):
            if root is None or other is None:
                return f"the {op.name} at line {op.loc.line if op.loc else 0} may be to the same array"
            if root is other:
                return f"the loop also writes {root.name}, at line {op.loc.line if op.loc else 0}"
        varies = False
        for what, value in zip(("address", "mask", "`other`"), load.args, strict=False):
            why, moves = self.path(value, loop)
            if why:
                return f"its {what} {why}"
            varies |= moves
        return "" if varies else "it reads the same place in every iteration"

    def path(self, value: Value, loop: Op) -> tuple[str, bool]:
        """Why a value of a later iteration cannot be found early ("" if it can), and whether iterations differ in it."""
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
    """1 or -1 as a loop's index rises or falls; 0 where that is not known."""
    low, high = facts.range(loop.args[2]) or (-1, 1)
    return 1 if low > 0 else -1 if high < 0 else 0


def rises(emit: Builder, step: Value) -> Value:
    return emit.value("cmp", step, emit.const(0, step.type), pred="gt")


def direction(emit: Builder, facts: affine.Facts, loop: Op, step: Value) -> Value:
    """The sign of a loop's step (as it is now) as a value."""
    one, known = emit.const(1, step.type), sign(facts, loop)
    if known:
        return one if known > 0 else emit.const(-1, step.type)
    return emit.value("select", rises(emit, step), one, emit.const(-1, step.type))


def counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


class LaterIterations:
    """Values of a loop's later iterations, made where the builder stands: `index` and `carried` are those of the iteration counted from."""

    def __init__(self, rebuild: Rebuild, facts: affine.Facts, loop: Op, index: Value, carried: Sequence[Value]):
        self.rebuild, self.facts, self.builder, self.loop = rebuild, facts, rebuild.builder, loop
        _, self.upper, self.step = map(rebuild.get, loop.args[:3])
        self.known: dict[tuple[Value, int], Value] = {}
        for old, new in zip(loop.blocks[0].args, (index, *carried), strict=True):
            self.known[old, 0] = new

    def operands(self, load: Op, trip: int, exists: bool = False) -> list[Value]:
        """What a load takes so many iterations later, its mask off if there is no such iteration (`exists`: it is known that there is)."""
        pointer, *rest = (self.at(x, trip) for x in load.args)
        if not exists:
            rest[:1] = [self.masked(rest[0] if mask_of(load) is not None else None, pointer.type, self.goes_on(trip))]
        return [pointer, *rest]

    def masked(self, mask: Value | None, type: Tile, more: Value) -> Value:
        layout = {"layout": type.layout} if type.layout else {}
        whole = self.builder.value("splat", more, shape=type.shape, **layout) if type.shape else more
        return whole if mask is None else self.builder.value("and", mask, whole)

    def goes_on(self, trip: int) -> Value:
        """Whether there is an iteration so much later: its index is below the bound for a positive step, above it for a negative one."""
        index = self.at(self.loop.blocks[0].args[0], trip)
        up, down = (self.builder.value("cmp", index, self.upper, pred=pred) for pred in ("lt", "gt"))
        if known := sign(self.facts, self.loop):
            return up if known > 0 else down
        return self.builder.value("select", rises(self.builder, self.step), up, down)

    def at(self, value: Value, trip: int) -> Value:
        """A value of the loop so many iterations later."""
        if not self.facts.inside(value, self.loop):
            return self.rebuild.get(value)
        if (value, trip) not in self.known:
            self.known[value, trip] = self.found(value, trip)
        return self.known[value, trip]

    def found(self, value: Value, trip: int) -> Value:
        facts, body = self.facts, self.loop.blocks[0]
        if value is body.args[0]:
            return self.builder.value("add", self.at(value, trip - 1), self.step)
        if value in facts.argument:
            return self.at(body.terminator.args[facts.argument[value][2] - 1], trip - 1)
        op = facts.definition[value]
        return emit_copy(op, self.builder, {a: self.at(a, trip) for a in op.args}).result
