"""Software prefetch: a trip of a loop issues the loads of a later one before it computes.

A loop over rows loads, waits for memory, computes, and only then loads again; while it computes, its part of the memory system has
nothing to do. So the loop is rotated: what the first trip loads is loaded before the loop, each trip first issues the loads of the
trip after it, and carries what arrives. Nothing is loaded that the program would not have loaded: the mask of an early load also asks
whether there is such a trip.

The trick is that addresses are not carried but found again: whatever leads from the loop's index (and from carried scalars that
only arithmetic moves on) to an address is arithmetic, and is repeated for a later index. What cannot be found that way, a load
through an index that was itself loaded, stays where it is.

A load thereby moves up, past the stores of the trips before its own. No store of the loop may be to its array; as everywhere
(`barriers`), two arguments are taken to be two arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blocknb import passes
from blocknb.analysis import affine, ranges
from blocknb.analysis.effects import effects, global_operands, mask_of, orders
from blocknb.analysis.liveness import Liveness, registers
from blocknb.ir.build import Builder, Rebuild, emit_copy
from blocknb.ir.core import Block, Func, Op, Value, uses, walk
from blocknb.language.ops import ACCESSES, ATOMICS, OPS
from blocknb.language.types import Tile
from blocknb.passes.simplify import tidy
from blocknb.passes.unroll import grouped
from blocknb.target import Target
from blocknb.trace import Notes

REGISTERS = 64  # that a thread may hold of what is to come; of fewer than 256 a quarter
ROOM = 48  # registers for addresses, scalars, masks, and what is half computed
MOST_OPS = 64  # of arithmetic that leads to one load
ARITHMETIC = ("source", "shape", "elementwise")  # kinds of ops that may be repeated for a later trip


def stages(func: Func, loop: Op) -> int:
    """The number of stages of a loop: its own, that of the launch, or what loops have for which nobody names one."""
    return int(loop.attrs.get("num_stages", func.attrs.get("num_stages", passes.STAGES)))


def applies(func: Func, target: Target) -> bool:
    """Whether a loop has more than one stage."""
    return any(op.name == "for" and stages(func, op) > 1 for op in func.ops())


def pipeline(func: Func, target: Target, notes: Notes) -> Func:
    """Issues the loads of a loop's next trips before the present one computes

    With `num_stages=k`, of the launch or of `tl.range`, a load is issued k - 1 trips ahead into registers, so that memory has something
    to do while a trip computes; 0 and 1 switch that off. It is masked off where there is no such trip. A load stays where it is when its
    address was loaded in the loop, when the same place is read in every trip, when the loop stores to its array (two arguments are
    taken to be two arrays) or waits for other programs, or when what is carried would take too many registers. Loops with products
    are left alone.
    """
    planner = Planner(func, notes)
    planner.reserved(func.body, None)
    return tidy(Rotation(func, planner.plans).run(), "pipeline") if planner.plans else func


@dataclass(frozen=True)
class Plan:
    """A loop, those of its loads that are issued early, and by how many trips."""

    loop: Op
    loads: tuple[Op, ...]
    ahead: int


# -- which loads -----------------------------------------------------------------------------------------------------------


class Planner:
    """Decides and says so: `plans` by the id of the loop."""

    def __init__(self, func: Func, notes: Notes):
        self.func, self.notes = func, notes
        self.facts, self.users = affine.analyze(func), uses(func)
        self.threads = 32 * func.attrs["num_warps"]
        self.liveness = Liveness(func, self.threads)
        self.plans: dict[int, Plan] = {}

    def reserved(self, block: Block, inside: Op | None) -> int:
        """Plans the loops in a block; the most registers that any of them carries. `inside` is the loop around the block, if it is a
        `for` with stages: what loads in a branch or a `while` there are told."""
        most = 0
        for op in block.ops:
            if op.name == "for":
                most = max(most, self.loop(op))
            elif op.name in ("if", "while"):
                waits = (
                    "how often a `while` runs is not known before" if op.name == "while" else "a trip may not make it"
                )
                for nested in op.blocks:
                    self.refuse((x for x in nested.ops if x.name == "load" and inside), waits)
                    most = max(most, self.reserved(nested, inside))
        return most

    def loop(self, loop: Op) -> int:
        """Plans a loop after those within it, which run more often; the registers that are carried at once."""
        wanted = stages(self.func, loop) - 1
        within = self.reserved(loop.blocks[0], loop if wanted > 0 else None)
        loads = [op for op in loop.blocks[0].ops if op.name == "load"]
        if wanted < 1 or not loads:
            return within
        if why := self.against_loop(loop):
            self.refuse(loads, why)
            return within
        chosen = []
        for load in loads:
            if why := self.against(load, loop):
                self.refuse([load], why)
            else:
                chosen.append(load)
        return within + self.fit(loop, chosen, wanted, self.left(loop) - within)

    def refuse(self, loads: Sequence[Op] | Iterator[Op], why: str) -> None:
        for load in loads:
            self.notes(load, f"not loaded ahead: {why}", "missed")

    def fit(self, loop: Op, loads: Sequence[Op], wanted: int, budget: int) -> int:
        """Keeps as many of the loads, as far ahead, as the budget has registers for; how many they take."""
        ahead, taken = max(1, min(wanted, budget // max(1, sum(map(self.registers, loads))))), 0
        kept: list[Op] = []
        for load in loads:
            needs = self.registers(load) * ahead
            if taken + needs > budget:
                self.refuse(
                    [load],
                    f"it takes {counted(needs, 'register')} a thread, and {max(0, budget - taken)} are left for that",
                )
                continue
            kept.append(load)
            taken += needs
            self.explain(load, loop, ahead, wanted, needs)
        if kept:
            self.plans[loop.id] = Plan(loop, tuple(kept), ahead)
        return taken

    def explain(self, load: Op, loop: Op, ahead: int, wanted: int, needs: int) -> None:
        text = f"loaded {counted(ahead, 'trip')} ahead: {counted(needs, 'register')} a thread"
        if ahead < wanted:
            text += f" (not {wanted}, for want of registers)"
        if passed := sorted({root.name for root, _ in self.writers(loop) if root is not None}):
            text += f"; before stores to {', '.join(passed)}, taken to be other arrays"
        self.notes(load, text)

    def registers(self, load: Op) -> int:
        return registers(load.result, self.threads)

    def left(self, loop: Op) -> int:
        """The registers that a thread has left for what a loop carries."""
        limit = min(256, 65536 // self.threads)
        return min(REGISTERS, limit // 4, max(0, limit - ROOM - self.liveness.peak(loop)))

    # -- what is against it

    def against_loop(self, loop: Op) -> str:
        """Why nothing of a loop is loaded ahead, "" if something may be."""
        if ranges.trips(self.facts, loop)[1] <= 1:
            return "the loop makes one trip at most"
        for op in walk(loop.blocks[0]):
            at = f" at line {op.loc.line}" if op.loc else ""
            if op.name == "dot":
                return f"the loop holds a product{at}, whose operands are left for asynchronous copies"
            if op.name == "while" and any(x.name in ACCESSES for block in op.blocks for x in walk(block)):
                return f"the `while`{at} may wait for other programs"
            if not op.blocks and effects(op).orders:
                return f"the {op.name}{at} keeps later accesses behind it"
            if op.name in ATOMICS and orders(op, bool(self.users.get(op.result)))[0]:
                return f"the {op.name}{at} ({op.attrs['sem']}) keeps later accesses behind it"
        return ""

    def writers(self, loop: Op) -> list[tuple[Value | None, Op]]:
        """What the loop writes: the argument that each pointer comes from (None: not known), and the op."""
        found = (op for op in walk(loop.blocks[0]) if op.name in ("store", *ATOMICS))
        return [(self.facts.root(global_operands(op)[0]), op) for op in found]

    def against(self, load: Op, loop: Op) -> str:
        """Why a load of a loop's own block stays where it is, "" if it may be issued ahead."""
        root = self.facts.root(load.args[0])
        if load.attrs.get("cache") == ".cv":
            return "it asks memory anew (.cv)"
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
        return "" if varies else "it reads the same place in every trip"

    def path(self, value: Value, loop: Op) -> tuple[str, bool]:
        """Why a value of a later trip cannot be found early ("" if it can), and whether trips differ in it."""
        todo, seen, varies, count = [value], set[Value](), False, 0
        while todo:
            current = todo.pop()
            if current in seen or not self.facts.inside(current, loop):
                continue
            seen.add(current)
            if current in self.facts.argument:
                _, _, i = self.facts.argument[current]
                varies = True
                todo += [loop.blocks[0].terminator.args[i - 1]] if i else []
                continue
            op = self.facts.definition[current]
            if op.name == "load":
                return "was loaded in the loop", varies
            if not OPS[op.name].pure or OPS[op.name].kind not in ARITHMETIC:
                return f"is made by a {op.name} in the loop", varies
            if (count := count + 1) > MOST_OPS:
                return "takes much arithmetic, which would be done twice", varies
            todo += op.args
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


# -- the rotation ----------------------------------------------------------------------------------------------------------


class Rotation(Rebuild):
    """The rebuilding walk, which does as the plans say."""

    def __init__(self, func: Func, plans: dict[int, Plan]):
        super().__init__(func, "pipeline", lambda op, _: self.rotate(op))
        self.plans, self.facts = plans, affine.analyze(func)

    def rotate(self, op: Op) -> object:
        """The loop with its early loads: those of the first trips before it, and in it those of the trip that is `ahead`."""
        plan = self.plans.get(op.id)
        if plan is None:
            return NotImplemented
        body, ahead = op.blocks[0], range(plan.ahead)
        before = Trips(self, plan, op.args[0], op.args[3:])
        least = ranges.trips(self.facts, plan.loop)[0]
        first = [before.load(x, k, exists=k < least) for k in ahead for x in plan.loads]
        arrived = [Value(x.result.type, x.result.name) for _ in ahead for x in plan.loads]
        with self.builder.block((*body.args, *arrived)) as opened:
            now = Trips(self, plan, body.args[0], body.args[1:])
            last = [now.load(x, plan.ahead, itself=True, last=x is plan.loads[-1]) for x in plan.loads]
            self.mapping.update((x.result, value) for x, value in zip(plan.loads, arrived, strict=False))
            self.ops([x for x in body.ops[:-1] if x not in plan.loads])
            end = body.terminator
            following = (*map(self.get, end.args), *arrived[len(plan.loads) :], *last)
            self.builder.append(end.replace(args=following))
        carried = tuple(Value(x.type) for x in arrived)
        loop = op.replace(args=(*op.args, *first), results=(*op.results, *carried), blocks=(opened.done,))
        # To hand on what has yet to arrive is to wait for it. With as many trips in one each has registers of its own to load into.
        if plan.ahead > 1:
            loop = grouped(loop, plan.ahead, direction(self.builder, self.facts, plan.loop, op.args[2]), self.builder)
        self.builder.append(loop)
        return op.results


class Trips:
    """Values of a loop's later trips, made where the builder stands: `index` and `carried` are those of the trip counted from."""

    def __init__(self, rotation: Rotation, plan: Plan, index: Value, carried: Sequence[Value]):
        self.rotation, self.builder, self.loop = rotation, rotation.builder, plan.loop
        _, self.upper, self.step = map(rotation.get, plan.loop.args[:3])
        self.known: dict[tuple[Value, int], Value] = {}
        for old, new in zip(plan.loop.blocks[0].args, (index, *carried), strict=True):
            self.known[old, 0] = new

    def load(self, load: Op, trip: int, exists: bool = False, itself: bool = False, last: bool = False) -> Value:
        """What the load brings so many trips later, if there is such a trip (which `exists` says is known). `itself`: this is the op
        that stands for the load, not a copy; `last` of those of its trip."""
        with self.builder.at(load):
            pointer, *rest = (self.at(x, trip) for x in load.args)
            if not exists:
                rest[:1] = [
                    self.masked(rest[0] if mask_of(load) is not None else None, pointer.type, self.goes_on(trip))
                ]
            args = (pointer, *rest)
            if itself:
                value = Value(load.result.type, load.result.name)
                attrs = {**load.attrs, "ahead": True} if last else load.attrs
                self.builder.append(load.replace(args=args, results=(value,), attrs=attrs, origin="pipeline"))
                return value
            return emit_copy(load.replace(args=args), self.builder, {}).result

    def masked(self, mask: Value | None, type: Tile, more: Value) -> Value:
        whole = self.builder.value("splat", more, shape=type.shape) if type.shape else more
        return whole if mask is None else self.builder.value("and", mask, whole)

    def goes_on(self, trip: int) -> Value:
        """Whether there is a trip so much later: its index is below the bound for a positive step, above it for a negative one."""
        index = self.at(self.loop.blocks[0].args[0], trip)
        up, down = (self.builder.value("cmp", index, self.upper, pred=pred) for pred in ("lt", "gt"))
        if known := sign(self.rotation.facts, self.loop):
            return up if known > 0 else down
        return self.builder.value("select", rises(self.builder, self.step), up, down)

    def at(self, value: Value, trip: int) -> Value:
        """A value of the loop so many trips later."""
        if not self.rotation.facts.inside(value, self.loop):
            return self.rotation.get(value)
        if (value, trip) not in self.known:
            self.known[value, trip] = self.found(value, trip)
        return self.known[value, trip]

    def found(self, value: Value, trip: int) -> Value:
        facts, body = self.rotation.facts, self.loop.blocks[0]
        if value is body.args[0]:
            return self.builder.value("add", self.at(value, trip - 1), self.step)
        if value in facts.argument:
            return self.at(body.terminator.args[facts.argument[value][2] - 1], trip - 1)
        op = facts.definition[value]
        return emit_copy(op, self.builder, {a: self.at(a, trip) for a in op.args}).result
