"""Warp partition: splits a function into the producer's and the consumers' part, according to the plan of `warp_specialization`.

A backward slice finds the producer's part: it starts at the coordinates of the copies and at the bounds and conditions around them. The
slice holds only scalars. The producer recomputes them, and the consumers keep their own. A kept loop also carries the state of each
circular buffer that it uses: the stage, and the parity of its phase.

The consumers release a stage after the last product that reads it. If products outlast their iteration, the release comes an iteration
later, and the loop also carries the previous stage.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from blocknb.analysis import tma_boxes
from blocknb.analysis.affine import Facts
from blocknb.analysis.polynomials import iteration_count
from blocknb.ir.build import Builder, Rebuild, emit_copy
from blocknb.ir.core import Block, Func, Op, Value, walk, within
from blocknb.language import types as t
from blocknb.passes.support import program_order
from blocknb.passes.support.backward_slice import BackwardSlice
from blocknb.passes.support.division_by_invariant import InvariantDivisions, along_axes
from blocknb.passes.support.pipeline_state import NUMBER, PipelineState, fresh
from blocknb.passes.support.warp_plan import CopyGroup, TmaCopy, WarpSpecializationPlan

# -- the two parts


class WarpPartition:
    """The function with warp roles."""

    def __init__(self, func: Func, plan: WarpSpecializationPlan, facts: Facts, needs: BackwardSlice):
        self.func, self.plan, self.facts, self.needed = func, plan, facts, needs.values
        self.builder = Builder(first_id=func.next_id)
        self.maps: dict[TmaCopy, Value] = {}
        self.circular_buffers: dict[CopyGroup, list[Value]] = {}
        self.full: dict[CopyGroup, Value] = {}
        self.empty: dict[CopyGroup, Value] = {}
        self.programs: Value | None = None
        # With several consumer groups: the buffers of each, by the id of the `alloc`.
        self.own: dict[int, Value] = {}
        self.counts: dict[CopyGroup, Value] = {}  # and the number of stages of each circular buffer that a program uses
        self.turns: Value | None = None
        self.quotients: InvariantDivisions | None = None

    def run(self) -> Func:
        b, num_warps = self.builder, self.func.attrs["num_warps"]
        self.tensor_maps()
        for owner in self.plan.owners:
            made = []
            for copy in owner.copies:
                alloc = self.facts.definition[copy.buffer]
                with b.at(alloc):
                    kind = replace(copy.buffer.type, stages=owner.stages)
                    made.append(b.value("alloc", **{**alloc.attrs, "type": kind}))
                made[-1].name = copy.buffer.name
            self.circular_buffers[owner] = made
            self.full[owner] = full = b.value("mbarriers", stages=owner.stages, arrivals=1)
            self.empty[owner] = empty = b.value("mbarriers", stages=owner.stages, arrivals=num_warps)
            full.name, empty.name = "full", "empty"
        if self.plan.consumer_groups > 1:
            self.several()
        if self.plan.persistent:
            self.quotients = InvariantDivisions(self.func, self.facts)
            self.quotients.prepare(b)
        b.op("barrier")
        if self.plan.persistent:
            x, y, z = (b.value("num_programs", axis=axis) for axis in range(3))
            self.programs = b.value("mul", b.value("mul", x, y), z)
        blocks = []
        for role in (ConsumerPart(self), ProducerPart(self)):
            with b.block() as opened:
                role.all()
                b.op("yield")
            blocks.append(opened.done)
        count = self.plan.consumer_groups
        groups: dict[str, Any] = {"consumer_groups": count} if count > 1 else {}
        warps = num_warps * count, self.plan.warps
        b.op("roles", blocks=blocks, warps=warps, registers=self.plan.registers, **groups)
        cut = self.func.replace(body=Block(self.func.body.args, b.finish()))
        return cut.with_attrs(persistent=True) if self.plan.persistent else cut

    def several(self) -> None:
        """Emits the setup of several groups of consumer warps: mbarriers, separate shared memory, and their pipeline states."""
        b, made, copied = self.builder, dict[Value, Value](), {c.buffer for g in self.plan.groups for c in g.copies}
        self.turns = b.value("mbarriers", stages=self.plan.consumer_groups, arrivals=self.func.attrs["num_warps"])
        self.turns.name = "turns"
        for op in self.func.ops():
            if op.name == "alloc" and op.result not in copied:
                with b.at(op):
                    kind = replace(op.attrs["type"], stages=self.plan.consumer_groups)
                    self.own[op.id] = b.value("alloc", **{**op.attrs, "type": kind})
        for group in self.plan.groups:
            count, owner = b.const(1, t.int32), group.owner
            if group.loop is not None:
                lower, upper, step = (
                    tma_boxes.at_top(b, self.facts, self.facts.integer(x), t.int32, made) for x in group.loop.args[:3]
                )
                count = iteration_count(b, lower, upper, step)
            self.counts[owner] = b.value("add", self.counts[owner], count) if owner in self.counts else count

    def tensor_maps(self) -> None:
        b, made, known = self.builder, dict[Value, Value](), dict[tuple, Value]()
        for group in self.plan.groups:
            for copy in group.copies:
                box = copy.box
                key = (box.root, box.dims, box.strides, copy.kind)
                if key not in known:
                    with b.at(copy.load):
                        known[key] = tma_boxes.emit_map(b, self.facts, box, copy.kind, made)
                self.maps[copy] = known[key]

    def inside(self, op: Op) -> list[CopyGroup]:
        """The circular buffers that the blocks of an op use."""
        blocks = {id(block) for block in op.blocks}
        for block in op.blocks:
            blocks |= {id(inner) for nested in walk(block) for inner in nested.blocks}
        return list(dict.fromkeys(group.owner for group in self.plan.groups if id(group.block) in blocks))


class RolePart:
    """The common part of both roles: the loop over programs."""

    roles: WarpPartition
    builder: Builder
    places: PipelineState
    ids: Sequence[Value] = ()  # of the program, if a CTA runs several

    @abstractmethod
    def ops(self, ops: Sequence[Op]) -> None:
        """Emits the role's part of ops."""

    def all(self) -> None:
        """Emits the whole body, once, or in a loop over programs."""
        roles, b, owners = self.roles, self.builder, self.roles.plan.owners
        self.places = PipelineState(b, owners)
        if roles.programs is None:
            self.ops(roles.func.body.ops)
            return
        first, step, more = self.begin(b.value("cta_id"), b.value("num_ctas"))
        start, program = [*self.places.values(owners), *more], Value(NUMBER, "program")
        inner = [*fresh(owners), *(Value(value.type) for value in more)]
        with b.block((program, *inner)) as opened:
            self.places.enter(owners, inner)
            self.ids = self.place(program)
            more = self.one_program(inner[2 * len(owners) :])
            b.op("yield", *self.places.values(owners), *more)
        b.op("for", first, roles.programs, step, *start, blocks=(opened.done,))

    def place(self, program: Value) -> list[Value]:
        """The position in the grid of the program with a given number (see `program_order`)."""
        b, width = self.builder, self.roles.func.attrs.get("order")
        do = program_order.arithmetic(b)
        x, y = (b.value("num_programs", axis=axis) for axis in range(2))
        if width is None:
            return along_axes(b, program, x, y)
        plane = do("mul", x, y)
        at = program_order.place(do, do("rem", program, plane), x, y, b.const(width, t.int32))
        return [*at, do("div", program, plane)]

    def begin(self, first: Value, step: Value) -> tuple[Value, Value, list[Value]]:
        """The first program, the distance to the next, and the carried values besides the pipeline states."""
        return first, step, []

    def one_program(self, carried: Sequence[Value]) -> list[Value]:
        """Emits the body of one program; returns the values carried to the next."""
        self.ops(self.roles.func.body.ops)
        return []


def fences(block: Block, copied: Collection[int], facts: Facts, behind: bool = False) -> set[int]:
    """The fences after stores to operands that are not `copied`. `behind`: such a store precedes the block."""
    found: set[int] = set()
    for op in block.ops:
        for inner in op.blocks:
            found |= fences(inner, copied, facts, behind)
        if op.name == "fence" and behind:
            found.add(op.id)
        stores = (x for x in within(op) if x.name == "local_store" and x.id not in copied)
        behind = op.name != "fence" and (behind or any(facts.definition[x.args[0]].attrs.get("align") for x in stores))
    return found


class ConsumerPart(Rebuild, RolePart):
    """The consumers' part: all ops except the copies, for which it waits."""

    def __init__(self, roles: WarpPartition):
        Rebuild.__init__(self, roles.func, lambda op, _: self.visit_op(op))
        self.roles, self.builder = roles, roles.builder
        facts, groups = roles.facts, roles.plan.groups
        self.stores = {copy.store.id: group for group in groups for copy in group.copies}
        self.gone = {op.id for g in groups for c in g.copies for op in (c.load, *c.views, facts.definition[c.buffer])}
        self.last: dict[int, list[CopyGroup]] = {}
        for group in groups:
            if not group.lasting:
                self.last.setdefault(group.last.id, []).append(group)
        products = {op.id: op for g in groups for op in g.lasting}
        self.late = {id: [g for g in groups if g.lasting and g.lasting[-1].id == id] for id in products}
        self.before: dict[
            CopyGroup, Value
        ] = {}  # of a circular buffer whose products outlast an iteration: the previous stage
        stored = {c.store.id for g in groups for c in g.copies}
        self.fences = fences(roles.func.body, stored, facts)
        self.awaited: set[CopyGroup] = set()
        # Groups that are read into registers, and the blocks in which no fence has followed those reads yet.
        self.reading: dict[CopyGroup, Block] = {}
        self.consumer_group: Value | None = None  # the number of its group, if there are several
        sites = [op for op in roles.func.body.ops if op.blocks and roles.inside(op)]
        self.final = sites[-1].id if sites else -1

    def begin(self, first: Value, step: Value) -> tuple[Value, Value, list[Value]]:
        """Of n groups of consumer warps, group i takes every n-th program from the i-th on. Its pipeline states start after the stages
        of the groups before it. The first group need not wait for that."""
        if self.roles.turns is None:
            return first, step, []
        b = self.builder
        self.consumer_group = b.value("consumer_group_id")
        for owner in self.roles.plan.owners:
            self.places.skip(owner, b.value("mul", self.consumer_group, self.roles.counts[owner]))
        turn = b.value("sub", b.const(1, t.int32), self.consumer_group)
        ahead = b.value("mul", self.consumer_group, step)
        return (
            b.value("add", first, ahead),
            b.value("mul", step, b.const(self.roles.plan.consumer_groups, t.int32)),
            [turn],
        )

    def one_program(self, carried: Sequence[Value]) -> list[Value]:
        if self.roles.turns is None:
            return super().one_program(carried)
        b, (turn,) = self.builder, carried
        turn.name = "turn"
        assert self.consumer_group is not None, "`begin` has found it"
        b.op("await", self.roles.turns, self.consumer_group, turn)
        self.ops(self.roles.func.body.ops)
        for owner in self.roles.plan.owners:
            self.places.skip(owner, self.roles.counts[owner])
        return [b.value("xor", turn, b.const(1, t.int32))]

    def pass_on(self) -> None:
        """Signals that the products of a program are issued, so the next group of consumer warps may begin."""
        b = self.builder
        if self.consumer_group is not None and self.roles.turns is not None:
            b.op("arrive", self.roles.turns, b.value("sub", b.const(1, t.int32), self.consumer_group))

    def one(self, op: Op) -> None:
        super().one(op)
        if op.name == "fence" and op.id in self.fences:
            self.reading = {group: block for group, block in self.reading.items() if op not in block.ops}
        for group in self.last.get(op.id, ()):
            owner = group.owner
            with self.builder.at(op):
                if self.reading.pop(group, None) is not None:
                    self.builder.op(
                        "fence"
                    )  # TMA writes through the async proxy, threads read through the generic proxy
                self.builder.op("arrive", self.roles.empty[owner], self.places.now[owner][0])
                self.places.advance(owner)

    def visit_op(self, op: Op) -> object:
        if op.id in self.gone or (op.name == "fence" and op.id not in self.fences):
            return op.results
        if op.id in self.stores:
            if self.stores[op.id] not in self.awaited:
                self.awaits(self.stores[op.id])
            return ()
        if op.name == "program_id" and self.ids:
            return [self.ids[op.attrs["axis"]]]
        if self.roles.quotients is not None and (found := self.roles.quotients.emit(self.builder, self.get, op)):
            return [found]
        if op.id in self.roles.own and self.consumer_group is not None:
            return [self.builder.value("stage", self.roles.own[op.id], self.consumer_group)]
        if op.id in self.late:
            self.product(op)
            return op.results
        if op.name == "for" and self.roles.inside(op):
            return self.loop(op)
        if op.name == "if" and self.roles.inside(op):
            return self.branch(op)
        return NotImplemented

    def awaits(self, group: CopyGroup) -> None:
        b, owner = self.builder, group.owner
        self.awaited.add(group)
        if group.computed:
            self.reading[group] = group.block
        stage, parity = self.places.now[owner]
        b.op("await", self.roles.full[owner], stage, parity)
        for copy, buffers in zip(group.copies, self.roles.circular_buffers[owner], strict=True):
            self.mapping[copy.buffer] = found = b.value("stage", buffers, stage)
            found.name = copy.buffer.name

    def product(self, op: Op) -> None:
        """Emits a product that outlasts its iteration. After the last one, the previous iteration's products are complete and their
        stages free."""
        groups = self.late[op.id]
        lasting = next(g.lasting for g in self.roles.plan.groups if any(x.id == op.id for x in g.lasting))
        self.builder.append(op.replace(attrs={**op.attrs, "in_flight": len(lasting)}))
        for group in groups:
            self.leave(group.owner)
            self.places.advance(group.owner)

    def leave(self, owner: CopyGroup, goes_on: bool = True) -> None:
        """Emits the arrival for the previous iteration's stage, if there was one."""
        b, before = self.builder, self.before[owner]
        was = b.value("cmp", before, b.const(0, t.int32), pred="ge")
        b.op("arrive", self.roles.empty[owner], before, was)
        if goes_on:
            self.before[owner] = self.places.now[owner][0]

    def loop(self, op: Op) -> list[Value]:
        b, owners, body = self.builder, self.roles.inside(op), op.blocks[0]
        groups = [g for g in self.roles.plan.groups if g.block is body and g.lasting]
        late = [g.owner for g in groups]
        init = [*self.places.values(owners), *(b.const(-1, t.int32) for _ in late)]
        inner = [*fresh(owners), *(Value(NUMBER, "before") for _ in late)]
        with b.block((*body.args, *inner)) as opened:
            self.places.enter(owners, inner)
            self.before.update(zip(late, inner[2 * len(owners) :], strict=True))
            self.ops(body.ops[:-1])
            end = body.terminator
            after = [*self.places.values(owners), *(self.before[owner] for owner in late)]
            b.append(end.replace(args=(*map(self.get, end.args), *after)))
        outer = [Value(value.type) for value in inner]
        b.append(op.replace(args=(*op.args, *init), results=(*op.results, *outer), blocks=(opened.done,)))
        self.places.enter(owners, outer)
        self.before.update(zip(late, outer[2 * len(owners) :], strict=True))
        if op.id == self.final:
            self.pass_on()
        return self.waited(op, late, groups)

    def waited(self, op: Op, late: Sequence[CopyGroup], groups: Sequence[CopyGroup]) -> list[Value]:
        """The results of a loop; those of products that outlast iterations follow a wait."""
        products = {x.id: x for g in groups for x in g.lasting}.values()
        if not products:
            return list(op.results)
        end = op.blocks[0].terminator
        summed = [op.results[end.args.index(x.result)] for x in products]
        there = dict(zip(summed, self.builder.op("dot_wait", *summed).results, strict=True))
        for owner in late:
            self.leave(owner, goes_on=False)
        return [there.get(value, value) for value in op.results]

    def branch(self, op: Op) -> Sequence[Value]:
        b, owners = self.builder, self.roles.inside(op)
        before, blocks = dict(self.places.now), []
        for block in op.blocks:
            self.places.now = dict(before)
            with b.block() as opened:
                self.ops(block.ops[:-1])
                end = block.terminator
                b.append(end.replace(args=(*map(self.get, end.args), *self.places.values(owners))))
            blocks.append(opened.done)
        outer = fresh(owners)
        attrs = {**op.attrs, "types": (*op.attrs["types"], *(value.type for value in outer))}
        b.append(op.replace(results=(*op.results, *outer), blocks=tuple(blocks), attrs=attrs))
        self.places.enter(owners, outer)
        return op.results


class ProducerPart(RolePart):
    """The producer's part: the copies, and the scalars that they need, recomputed."""

    def __init__(self, roles: WarpPartition):
        self.roles, self.builder, self.needed = roles, roles.builder, roles.needed
        self.mapping: dict[Value, Value] = {}
        self.copied: dict[int, list[CopyGroup]] = {}
        for group in roles.plan.groups:
            place = {op.id: i for i, op in enumerate(group.block.ops)}
            last = max((copy.load for copy in group.copies), key=lambda op: place[op.id])
            self.copied.setdefault(last.id, []).append(group)

    def get(self, value: Value) -> Value:
        return self.mapping.get(value, value)

    def ops(self, ops: Sequence[Op]) -> None:
        quotients = self.roles.quotients
        for op in ops:
            owners = self.roles.inside(op) if op.blocks else []
            if op.id in self.copied:
                for group in self.copied[op.id]:
                    self.copy(group)
            if not owners and not any(value in self.needed for value in op.results):
                continue
            if op.name == "program_id" and self.ids:
                self.mapping[op.result] = self.ids[op.attrs["axis"]]
            elif op.name == "for":
                self.loop(op, owners)
            elif op.name == "if":
                self.branch(op, owners)
            elif quotients is not None and (found := quotients.emit(self.builder, self.get, op)):
                self.mapping[op.result] = found
            else:
                emit_copy(op, self.builder, self.mapping)

    def copy(self, group: CopyGroup) -> None:
        b, roles, owner = self.builder, self.roles, group.owner
        stage, parity = self.places.now[owner]
        with b.at(group.copies[0].load):
            b.op("await", roles.empty[owner], stage, b.value("xor", parity, b.const(1, t.int32)))
            b.op("expect", roles.full[owner], stage, bytes=group.bytes)
        for copy, buffers in zip(group.copies, roles.circular_buffers[owner], strict=True):
            self.copy_one(copy, buffers, roles.full[owner], stage)
        with b.at(group.copies[0].load):
            self.places.advance(owner)

    def copy_one(self, copy: TmaCopy, buffers: Value, full: Value, stage: Value) -> None:
        b = self.builder
        with b.at(copy.load):
            to = b.value("stage", buffers, stage)
            start = [tma_boxes.emit(b, self.get, poly, t.int32) for poly in copy.box.start]
            b.op("copy_bulk", to, self.roles.maps[copy], full, stage, *start, axes=copy.axes)

    def loop(self, op: Op, owners: Sequence[CopyGroup]) -> None:
        b, body = self.builder, op.blocks[0]
        kept = [i for i, value in enumerate(body.args[1:]) if value in self.needed or op.results[i] in self.needed]
        index = Value(body.args[0].type, body.args[0].name)
        own, inner = [Value(body.args[i + 1].type, body.args[i + 1].name) for i in kept], fresh(owners)
        args = [*map(self.get, op.args[:3]), *(self.get(op.args[3 + i]) for i in kept), *self.places.values(owners)]
        with b.at(op), b.block((index, *own, *inner)) as opened:
            self.mapping.update({body.args[0]: index, **{body.args[i + 1]: v for i, v in zip(kept, own, strict=True)}})
            self.places.enter(owners, inner)
            self.ops(body.ops[:-1])
            end = body.terminator
            b.op("yield", *(self.get(end.args[i]) for i in kept), *self.places.values(owners))
        with b.at(op):
            made = b.op("for", *args, blocks=(opened.done,))
        self.mapping.update({op.results[i]: v for i, v in zip(kept, made.results[: len(kept)], strict=True)})
        self.places.enter(owners, made.results[len(kept) :])

    def branch(self, op: Op, owners: Sequence[CopyGroup]) -> None:
        b, kept = self.builder, [i for i, value in enumerate(op.results) if value in self.needed]
        before, blocks = dict(self.places.now), []
        for block in op.blocks:
            self.places.now = dict(before)
            with b.at(op), b.block() as opened:
                self.ops(block.ops[:-1])
                end = block.terminator
                b.op("yield", *(self.get(end.args[i]) for i in kept), *self.places.values(owners))
            blocks.append(opened.done)
        types = (*(op.results[i].type for i in kept), *(NUMBER for _ in fresh(owners)))
        with b.at(op):
            made = b.op("if", self.get(op.args[0]), blocks=blocks, types=types)
        self.mapping.update({op.results[i]: v for i, v in zip(kept, made.results[: len(kept)], strict=True)})
        self.places.enter(owners, made.results[len(kept) :])
