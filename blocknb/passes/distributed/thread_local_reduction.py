"""Thread-local reduction: a loop reduces within each thread, and threads exchange their parts once, after the loop.

A kernel that walks over the blocks of a row adds up each block: `total = total + sum(block)`. A sum exchanges data between threads by
shuffles and, where warps share a row, through shared memory between two barriers. But the loop only needs the total. So each thread
keeps the sum of its own elements.

The same holds for maxima and minima, and where a number that the row's threads share scales the sum (`total * factor + sum(powers)`, as
in the online softmax). Triton's pass OptimizeThreadLocality does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

from blocknb.ir.build import Rebuild, emit_copy
from blocknb.ir.core import Block, Func, Op, Users, Value, definitions, uses
from blocknb.language import types as t
from blocknb.language.types import Tile
from blocknb.layouts.linear import Layout
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes

#: The op that combines two parts, and its neutral element; without one each part begins with the whole, which may count twice.
COMBINES = {"add": 0, "xor": 0, "or": None, "and": None, "max": None, "min": None}
MOST = 128  # elements per thread; larger tiles are reduced piece by piece
DTYPES = (t.float32, t.float64)  # sums of 16-bit floats are rounded in the order in which they are written


def applies(func: Func, target: Target) -> bool:
    return any(op.name == "reduce" for loop in func.ops() if loop.name == "for" for op in loop.blocks[0].ops)


@gpu_pass(optional=True, applies=applies)
def thread_local_reduction(func: Func, target: Target, notes: Notes) -> Func:
    """Reduces within each thread in a loop, and between threads after it

    When: a loop adds a reduction to an accumulator and uses the accumulator for nothing else. The accumulator may be scaled in each
    iteration. Maxima, minima and bit operations count, too.

    What: each thread keeps the partial result of its own elements. The exchange between threads runs once, after the loop.

    Why: the exchange costs shuffles and, where warps share a row, shared memory and two barriers per iteration.

    Limits: floats are added in another order, which this language leaves open. If an infinite factor scales the accumulator, a partial
    sum that is still zero becomes NaN.

    Before:

        %sum = for %k = 0 to %n step 64 iter(%s = %zero) : tile<8xf32> {
          %r = reduce %v {axis=1} add : tile<8xf32>
          %next = add %s, %r : tile<8xf32>
          yield %next
        }

    After:

        %parts = for %k = 0 to %n step 64 iter(%s = %zeros) : tile<8x16xf32> {
          %own = reshape %v {shape=(8, 4, 16)} : tile<8x4x16xf32>
          %r = reduce %own {axis=1} add : tile<8x16xf32>
          %next = add %s, %r : tile<8x16xf32>
          yield %next
        }
        %sum = reduce %parts {axis=1} add : tile<8xf32>
    """
    users, made = uses(func), definitions(func)
    plans = {}
    for loop in func.ops():
        if loop.name != "for":
            continue
        body = loop.blocks[0]
        found = [planned(body, place, users, made) for place in range(len(loop.results))]
        if kept := {i: plan for i, plan in enumerate(found) if plan is not None}:
            plans[loop.id] = kept
            for plan in kept.values():
                parts = prod(plan.shared_extents)
                notes(plan.reduction, f"{plan.update.name}: {parts} partial results in the loop, combined after it")
    return ReductionRewriter(func, plans).run() if plans else func


@dataclass(frozen=True)
class ReductionPlan:
    """An accumulator of a loop: an iteration may multiply it by `scaled`, then updates it by `update` with a `reduction`. `runs` splits
    the reduced axis into runs of bits; threads share the runs in `shared_extents`."""

    update: Op
    reduction: Op
    scaled: Op | None
    runs: tuple[tuple[bool, int], ...]

    @property
    def shared_extents(self) -> tuple[int, ...]:
        return tuple(extent for mine, extent in self.runs if not mine)


def planned(body: Block, place: int, users: Users, made: Mapping[Value, Op]) -> ReductionPlan | None:
    """The plan for the loop-carried value at an index; None if it is no accumulator whose reduction can wait."""
    total, after = body.args[1 + place], body.terminator.args[place]
    update = made.get(after)
    if update is None or update.name not in COMBINES or update not in body.ops:
        return None
    dtype = update.result.type.dtype
    if not only(users, after, body.terminator) or (dtype.is_float and dtype not in DTYPES):
        return None
    for before, new in (update.args, update.args[::-1]):
        reduction = made.get(new)
        if reduction is None or reduction not in body.ops or not combines_as(reduction, update):
            continue
        scaled = None if before is total else made.get(before)
        if before is not total and (scaled is None or not scales(scaled, total, update)):
            continue
        alone = only(users, new, update) and only(users, before, update) and only(users, total, scaled or update)
        if alone and (runs := split(reduction)) is not None:
            return ReductionPlan(update, reduction, scaled, runs)
    return None


def only(users: Users, value: Value, user: Op) -> bool:
    """Whether an op is the only user of a value, and uses it once."""
    return [op for op, _ in users.get(value, ())] == [user]


def scales(op: Op, total: Value, update: Op) -> bool:
    """Whether an op multiplies an accumulator before the update."""
    return op.name == "mul" and update.name == "add" and total in op.args


def combines_as(reduction: Op, update: Op) -> bool:
    """Whether an op is a reduction that combines in the same way as the update."""
    if reduction.name != "reduce":
        return False
    ops = reduction.blocks[0].ops
    if len(reduction.args) != 1 or len(ops) != 2 or "keep" in reduction.attrs:
        return False
    combine = ops[0]
    same = combine.name == update.name and dict(combine.attrs) == dict(update.attrs)
    return same and set(combine.args) == set(reduction.blocks[0].args) and reduction.result.type == update.result.type


def split(reduction: Op) -> tuple[tuple[bool, int], ...] | None:
    """The reduced axis as runs of bits, high ones first: whether each run belongs to one thread, and its extent. None if nothing is
    gained, or if a bit belongs to both kinds."""
    layout, axis = reduction.args[0].type.layout, reduction.attrs["axis"]
    if layout.num_registers > MOST:
        return None
    bits, mine = layout.dim_bits(axis), dict[int, bool]()
    for kind, _, basis in layout.bits():
        along = basis & layout.dim_mask(axis)
        if not along:
            continue
        if along != basis or along & (along - 1) or mine.get(along, kind == "reg") != (kind == "reg"):
            return None
        mine[along] = kind == "reg"
    kinds = [mine[1 << bit] for bit in reversed(bits)]
    if all(kinds):
        return None
    return tuple((kind, 1 << len(list(run))) for kind, run in groupby(kinds))


class ReductionRewriter(Rebuild):
    """Rebuilds the function according to the plans."""

    def __init__(self, func: Func, plans: dict[int, dict[int, ReductionPlan]]):
        super().__init__(func, lambda op, _: self.visit_loop(op))
        self.plans, self.made = plans, definitions(func)
        everything = [plan for found in plans.values() for plan in found.values()]
        self.inner = {op.id: plan for plan in everything for op in (plan.update, plan.reduction, plan.scaled) if op}

    def visit_loop(self, op: Op) -> Any:
        if (plan := self.inner.get(op.id)) is not None:
            return self.inside(op, plan)
        plans = self.plans.get(op.id)
        if plans is None:
            return NotImplemented
        b, body = self.builder, op.blocks[0]
        init, args, results = list(op.args), list(body.args), list(op.results)
        for place, plan in plans.items():
            kind = self.kind(plan)
            init[3 + place] = self.first(op.args[3 + place], plan, kind)
            args[1 + place] = Value(kind, body.args[1 + place].name)
            results[place] = Value(kind, op.results[place].name)
        block = self.block(body, args)
        b.append(op.replace(args=tuple(init), blocks=(block,), results=tuple(results)))
        found = list(results)
        for place, plan in plans.items():
            with b.at(plan.reduction):
                found[place] = emit_copy(plan.reduction.replace(args=(results[place],)), b, {}).result
            assert found[place].type == op.results[place].type
        return found

    def inside(self, op: Op, plan: ReductionPlan) -> Sequence[Value]:
        """Emits one op of an iteration, on the partial results."""
        b, kind = self.builder, self.kind(plan)
        if op.id == plan.reduction.id:
            return (self.parts(op, plan),)
        args = [self.spread(x, kind, plan) if x.type != kind else x for x in op.args]
        return (b.value(op.name, *args, **op.attrs),)

    def kind(self, plan: ReductionPlan) -> Tile:
        """The type of the carried value: the reduced tile's type, with one element per thread along the axis."""
        source = plan.reduction.args[0].type
        shape, layout = arranged(source.shape, source.layout, plan)
        axis = plan.reduction.attrs["axis"]
        return Tile(source.dtype, (*shape[:axis], *shape[axis + 1 :]), layout.slice(axis))

    def parts(self, op: Op, plan: ReductionPlan) -> Value:
        """Emits a thread's partial results of a block: moves the axis bits within a thread to the front and reduces them."""
        b, x = self.builder, op.args[0]
        for name, attrs in steps(x.type.shape, plan):
            x = b.value(name, x, **attrs)
        return emit_copy(op.replace(args=(x,), results=(Value(self.kind(plan), op.result.name),)), b, {}).result

    def first(self, value: Value, plan: ReductionPlan, kind: Tile) -> Value:
        """Emits the initial value of the partial results."""
        b = self.builder
        neutral = COMBINES[plan.update.name]
        whole = self.spread(value, kind, plan)
        if neutral is None:
            return whole
        made = self.made.get(value)
        nothing = b.const(float(neutral) if kind.dtype.is_float else neutral, kind)
        if made is not None and made.name == "const" and made.attrs["value"] == neutral:
            return nothing
        axis = plan.reduction.attrs["axis"]
        along = kind.layout.broadcast_inverse(tuple(n if i == axis else 1 for i, n in enumerate(kind.shape)))
        for other in reversed([i for i in range(len(kind.shape)) if i != axis]):
            along = along.expand_dims_inverse(other)
        number = b.value("arange", start=0, end=kind.shape[axis], layout=along)
        for other in [i for i in range(len(kind.shape)) if i != axis]:
            number = b.value("expand_dims", number, axis=other)
        if number.type.shape != kind.shape:
            number = b.value("broadcast", number, shape=kind.shape, layout=kind.layout)
        zero = b.const(0, number.type)
        return b.value("select", b.value("cmp", number, zero, pred="eq"), whole, nothing)

    def spread(self, value: Value, kind: Tile, plan: ReductionPlan) -> Value:
        """Broadcasts one number per row to the partial results of the row."""
        b = self.builder
        if not value.type.shape:
            return b.value("splat", value, shape=kind.shape, layout=kind.layout)
        expanded = b.value("expand_dims", value, axis=plan.reduction.attrs["axis"])
        return b.value("broadcast", expanded, shape=kind.shape, layout=kind.layout)


def steps(shape: Sequence[int], plan: ReductionPlan) -> list[tuple[str, dict[str, Any]]]:
    """The shape ops that split a reduced axis in two, with the part within a thread first; none of them moves data."""
    axis, runs = plan.reduction.attrs["axis"], plan.runs
    before, behind = tuple(shape[:axis]), tuple(shape[axis + 1 :])
    order = sorted(range(len(runs)), key=lambda i: not runs[i][0])
    places = [*range(axis), *(axis + i for i in order), *range(axis + len(runs), axis + len(runs) + len(behind))]
    extents = tuple(extent for _, extent in runs)
    own = prod(extent for mine, extent in runs if mine)
    found: list[tuple[str, dict[str, Any]]] = [("reshape", {"shape": (*before, *extents, *behind)})]
    if order != list(range(len(runs))):
        found.append(("trans", {"perm": tuple(places)}))
    return [*found, ("reshape", {"shape": (*before, own, prod(extents) // own, *behind)})]


def arranged(shape: Sequence[int], layout: Layout, plan: ReductionPlan) -> tuple[tuple[int, ...], Layout]:
    """The shape and the layout after the `steps`."""
    for name, attrs in steps(shape, plan):
        layout = layout.reshape(attrs["shape"]) if name == "reshape" else layout.trans(attrs["perm"])
    return layout.shape, layout
