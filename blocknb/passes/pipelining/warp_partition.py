"""Warp partition: splits a function into the producer's and the consumers' part, according to the plan of `warp_specialization`.

A backward slice finds the producer's part: it starts at the coordinates of the copies and at the bounds and conditions around them. The
slice holds only scalars. The producer recomputes them, and the consumers keep their own. A kept loop also carries the state of each
circular buffer that it uses: the stage, and the parity of its phase.

The consumers release a stage after the last product that reads it. If products outlast their iteration, the release comes an iteration
later, and the loop also carries the previous stage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from blocknb.analysis import tma_boxes
from blocknb.analysis.affine import Facts
from blocknb.analysis.polynomials import iteration_count
from blocknb.ir.build import Builder, emit_copy
from blocknb.ir.core import Block, Func, Op, Value, blocks, within
from blocknb.language import types as t
from blocknb.passes.pipelining.circular_buffer import NUMBER, GuardedBuffer, PipelineState, allocate
from blocknb.passes.pipelining.loop_rotation import LoopRebuild
from blocknb.passes.pipelining.warp_plan import CopyGroup, TmaCopy, WarpSpecializationPlan
from blocknb.passes.support import program_order
from blocknb.passes.support.division_by_invariant import InvariantDivisions, along_axes


class WarpPartition:
    """The function with warp roles. `needed`: the scalars that the producer recomputes."""

    def __init__(self, func: Func, plan: WarpSpecializationPlan, facts: Facts, needed: Collection[Value]):
        self.func, self.plan, self.facts, self.needed = func, plan, facts, needed
        self.builder = Builder(first_id=func.next_id)
        self.maps: dict[TmaCopy, Value] = {}
        self.rings: dict[CopyGroup, GuardedBuffer] = {}  # of each group, also of those that use another group's
        self.programs: Value | None = None
        self.quotients: InvariantDivisions | None = None
        # With several consumer groups: the buffers of each group, by the id of the `alloc`; and the stages that a program uses.
        self.own: dict[int, Value] = {}
        self.counts: dict[GuardedBuffer, Value] = {}
        self.turns: Value | None = None

    def run(self) -> Func:
        """Emits the setup and both roles."""
        b, plan, num_warps = self.builder, self.plan, self.func.attrs["num_warps"]
        self.tensor_maps()
        for group in plan.groups:
            allocs = [self.facts.definition[copy.buffer] for copy in group.copies]
            shared = self.rings.get(group.owner)
            self.rings[group] = shared or GuardedBuffer(b, allocs, group.stages, num_warps, plan.cluster)
        if plan.consumer_groups > 1:
            self.several()
        if plan.persistent:
            self.quotients = InvariantDivisions(self.func, self.facts)
            self.quotients.prepare(b)
        b.op("barrier")
        if plan.persistent:
            x, y, z = (b.value("num_programs", axis=axis) for axis in range(3))
            self.programs = b.value("mul", b.value("mul", x, y), z)
        roles = []
        for role in (ConsumerPart(self), ProducerPart(self)):
            with b.block() as opened:
                role.all()
                b.op("yield")
            roles.append(opened.done)
        count = plan.consumer_groups
        groups: dict[str, Any] = {"consumer_groups": count} if count > 1 else {}
        b.op("roles", blocks=roles, warps=(num_warps * count, plan.warps), registers=plan.registers, **groups)
        cut = self.func.replace(body=Block(self.func.body.args, b.finish()))
        if plan.cluster > 1:
            cut = cut.with_attrs(cluster=plan.cluster)
        return cut.with_attrs(persistent=True) if plan.persistent else cut

    @property
    def all_rings(self) -> list[GuardedBuffer]:
        """All circular buffers, each once."""
        return list(dict.fromkeys(self.rings.values()))

    def several(self) -> None:
        """Emits the setup of several groups of consumer warps: mbarriers, separate shared memory, and their pipeline states."""
        b, made, copied = self.builder, dict[Value, Value](), {c.buffer for g in self.plan.groups for c in g.copies}
        self.turns = b.value("mbarriers", stages=self.plan.consumer_groups, arrivals=self.func.attrs["num_warps"])
        self.turns.name = "turns"
        for op in self.func.ops():
            if op.name == "alloc" and op.result not in copied:
                self.own[op.id] = allocate(b, op, self.plan.consumer_groups)
        for group, ring in self.rings.items():
            count = b.const(1, t.int32)
            if group.loop is not None:
                lower, upper, step = (
                    tma_boxes.at_top(b, self.facts, self.facts.integer(x), t.int32, made) for x in group.loop.args[:3]
                )
                count = iteration_count(b, lower, upper, step)
            self.counts[ring] = b.value("add", self.counts[ring], count) if ring in self.counts else count

    def tensor_maps(self) -> None:
        """Emits the tensor map of each copy; copies of equal boxes share one."""
        b, made, known = self.builder, dict[Value, Value](), dict[tuple, Value]()
        for copy in (copy for group in self.plan.groups for copy in group.copies):
            box = copy.box
            key = (box.root, box.dims, box.strides, copy.kind)
            if key not in known:
                with b.at(copy.load):
                    known[key] = tma_boxes.emit_map(b, self.facts, box, copy.kind, made)
            self.maps[copy] = known[key]

    def inside(self, op: Op) -> list[GuardedBuffer]:
        """The circular buffers that the blocks of an op use."""
        nested = {inner for block in op.blocks for inner in blocks(block)}
        return list(dict.fromkeys(ring for group, ring in self.rings.items() if group.block in nested))


class RolePart(LoopRebuild):
    """The common part of both roles: the loop over programs, and loops and branches that carry the pipeline states."""

    state: PipelineState

    def __init__(self, roles: WarpPartition):
        super().__init__(roles.func, roles.facts)
        self.roles, self.builder = roles, roles.builder
        self.ids: Sequence[Value] = ()  # of the program, if a CTA runs several

    def all(self) -> None:
        """Emits the whole body, once, or in a loop over programs."""
        roles, b, rings = self.roles, self.builder, self.roles.all_rings
        self.state = PipelineState(b, rings)
        if roles.programs is None:
            self.ops(roles.func.body.ops)
            return
        first, step, more = self.begin(b.value("cta_id"), b.value("num_ctas"))
        start, program = [*self.state.values(rings), *more], Value(NUMBER, "program")
        inner = [Value(value.type) for value in start]
        count = len(inner) - len(more)
        with b.block((program, *inner)) as opened:
            self.state.enter(inner[:count], rings)
            self.ids = self.place(program)
            more = self.one_program(inner[count:])
            b.op("yield", *self.state.values(rings), *more)
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
        """The first program, the distance to the next, and the carried values other than the pipeline states."""
        return first, step, []

    def one_program(self, carried: Sequence[Value]) -> list[Value]:
        """Emits the body of one program; returns the values carried to the next."""
        self.ops(self.roles.func.body.ops)
        return []

    def loop(self, op: Op, rings: Sequence[GuardedBuffer], late: Sequence[GuardedBuffer] = ()) -> None:
        """Emits a loop that carries the states of `rings`, and the previous stages of those that are `late`."""
        b, state = self.builder, self.state
        state.previous.update({ring: b.const(-1, t.int32) for ring in late})

        def iteration(values: list[Value]) -> Sequence[Value]:
            state.enter(values, rings, late)
            self.ops(op.blocks[0].ops[:-1])
            return state.values(rings, late)

        made = b.append(self.carrying(op, state.values(rings, late), iteration))
        state.enter(made.results[len(op.results) :], rings, late)

    def branch(self, op: Op, rings: Sequence[GuardedBuffer]) -> None:
        """Emits a branch whose results include the states of `rings`."""
        b, before, made = self.builder, dict(self.state.now), list[Block]()
        for block in op.blocks:
            self.state.now = dict(before)
            with b.block() as opened:
                self.ops(block.ops[:-1])
                end = block.terminator
                b.append(end.replace(args=(*map(self.get, end.args), *self.state.values(rings))))
            made.append(opened.done)
        outer = [Value(x.type) for x in self.state.values(rings)]
        attrs = {**op.attrs, "types": (*op.attrs["types"], *(x.type for x in outer))}
        b.append(op.replace(results=(*op.results, *outer), blocks=tuple(made), attrs=attrs))
        self.state.enter(outer, rings)


def fences(block: Block, copied: Collection[int], facts: Facts, after_store: bool = False) -> set[int]:
    """The fences after stores to operands that are not `copied`. `after_store`: such a store precedes the block."""
    found: set[int] = set()
    for op in block.ops:
        for inner in op.blocks:
            found |= fences(inner, copied, facts, after_store)
        if op.name == "fence" and after_store:
            found.add(op.id)
        stores = (x for x in within(op) if x.name == "local_store" and x.id not in copied)
        after_store = op.name != "fence" and (
            after_store or any(facts.definition[x.args[0]].attrs.get("align") for x in stores)
        )
    return found


class ConsumerPart(RolePart):
    """The consumers' part: all ops except the copies, for which it waits."""

    def __init__(self, roles: WarpPartition):
        super().__init__(roles)
        facts, groups = roles.facts, roles.plan.groups
        self.stores = {copy.store.id: group for group in groups for copy in group.copies}
        self.gone = {op.id for g in groups for c in g.copies for op in (c.load, *c.views, facts.definition[c.buffer])}
        self.fences = fences(roles.func.body, self.stores, facts)
        self.released: dict[int, list[CopyGroup]] = {}  # after the op with that id
        for group in groups:
            if not group.outlasting:
                self.released.setdefault(group.last_reader.id, []).append(group)
        self.outlasting = {op.id: group for group in groups for op in group.outlasting}
        self.awaited: set[CopyGroup] = set()
        # Groups that are read into registers, and the blocks in which no fence has followed those reads yet.
        self.reading: dict[CopyGroup, Block] = {}
        self.consumer_group: Value | None = None  # the number of its group, if there are several
        sites = [op for op in roles.func.body.ops if op.blocks and roles.inside(op)]
        self.final = sites[-1].id if sites else -1

    def begin(self, first: Value, step: Value) -> tuple[Value, Value, list[Value]]:
        """With n groups of consumer warps, group i takes every n-th program from the i-th on. Its pipeline states start after the stages of
        the groups before it. The first group need not wait for that."""
        if self.roles.turns is None:
            return first, step, []
        b = self.builder
        self.consumer_group = b.value("consumer_group_id")
        for ring, count in self.roles.counts.items():
            self.state.skip(ring, b.value("mul", self.consumer_group, count))
        turn = b.value("sub", b.const(1, t.int32), self.consumer_group)
        first = b.value("add", first, b.value("mul", self.consumer_group, step))
        return first, b.value("mul", step, b.const(self.roles.plan.consumer_groups, t.int32)), [turn]

    def one_program(self, carried: Sequence[Value]) -> list[Value]:
        """The groups of consumer warps take turns: one waits until the other has issued its products."""
        if self.roles.turns is None:
            return super().one_program(carried)
        b, (turn,) = self.builder, carried
        turn.name = "turn"
        assert self.consumer_group is not None, "`begin` has found it"
        b.op("await", self.roles.turns, self.consumer_group, turn)
        self.ops(self.roles.func.body.ops)
        for ring, count in self.roles.counts.items():
            self.state.skip(ring, count)
        return [b.value("xor", turn, b.const(1, t.int32))]

    def one(self, op: Op) -> None:
        """Emits an op, and the release of the stages that nothing reads after it."""
        super().one(op)
        if op.name == "fence" and op.id in self.fences:
            self.reading = {group: block for group, block in self.reading.items() if op not in block.ops}
        for group in self.released.get(op.id, ()):
            ring = self.roles.rings[group]
            with self.builder.at(op):
                if self.reading.pop(group, None) is not None:
                    self.builder.op("fence")  # TMA writes by the async proxy, threads read by the generic one
                self.builder.op("arrive", ring.empty, self.state.stage(ring))
                self.state.advance(ring)

    def visit_op(self, op: Op) -> object:
        """Waits for a copy in place of a load and its store; keeps all other ops."""
        roles = self.roles
        if op.id in self.gone or (op.name == "fence" and op.id not in self.fences):
            return op.results
        if op.id in self.stores:
            if self.stores[op.id] not in self.awaited:
                self.wait_for(self.stores[op.id])
            return ()
        if op.name == "program_id" and self.ids:
            return [self.ids[op.attrs["axis"]]]
        if roles.quotients is not None and (found := roles.quotients.emit(self.builder, self.get, op)):
            return [found]
        if op.id in roles.own and self.consumer_group is not None:
            return [self.builder.value("stage", roles.own[op.id], self.consumer_group)]
        if op.id in self.outlasting:
            self.product(op)
        elif op.name == "for" and roles.inside(op):
            return self.loop_with_products(op)
        elif op.name == "if" and roles.inside(op):
            self.branch(op, roles.inside(op))
        else:
            return NotImplemented
        return op.results

    def wait_for(self, group: CopyGroup) -> None:
        """Emits the wait for a stage."""
        b, ring = self.builder, self.roles.rings[group]
        self.awaited.add(group)
        if group.computed:
            self.reading[group] = group.block
        stage, parity = self.state.now[ring]
        b.op("await", ring.full, stage, parity)
        for i, copy in enumerate(group.copies):
            self.mapping[copy.buffer] = ring.view(i, stage)

    def product(self, op: Op) -> None:
        """Emits a product that outlasts its iteration. After the last one, the previous iteration's products are complete and their
        stages free."""
        products = self.outlasting[op.id].outlasting
        self.builder.append(op.replace(attrs={**op.attrs, "in_flight": len(products)}))
        if op.id == products[-1].id:
            for ring in self.late(op.id):
                self.release_previous(ring)
                self.state.previous[ring] = self.state.stage(ring)
                self.state.advance(ring)

    def late(self, product: int) -> list[GuardedBuffer]:
        """The circular buffers whose stages are free an iteration after a product."""
        return [self.roles.rings[g] for g in self.roles.plan.groups if any(x.id == product for x in g.outlasting)]

    def release_previous(self, ring: GuardedBuffer) -> None:
        """Emits the arrival for the previous iteration's stage, if there was one."""
        b, previous = self.builder, self.state.previous[ring]
        b.op("arrive", ring.empty, previous, b.value("cmp", previous, b.const(0, t.int32), pred="ge"))

    def loop_with_products(self, op: Op) -> list[Value]:
        """Emits a loop and, after it, the wait for the products that outlast its iterations."""
        roles = self.roles
        groups = [g for g in roles.plan.groups if g.outlasting and g.block is op.blocks[0]]
        late = [roles.rings[g] for g in groups]
        self.loop(op, roles.inside(op), late)
        if op.id == self.final and self.consumer_group is not None and roles.turns is not None:
            # The products of this program are issued, so the other group of consumer warps may begin.
            other = self.builder.value("sub", self.builder.const(1, t.int32), self.consumer_group)
            self.builder.op("arrive", roles.turns, other)
        results = self.after_products(op, list({x.id: x for g in groups for x in g.outlasting}.values()))
        for ring in late:
            self.release_previous(ring)
        return results


class ProducerPart(RolePart):
    """The producer's part: the copies, and the scalars that they need, recomputed."""

    def __init__(self, roles: WarpPartition):
        super().__init__(roles)
        self.copied: dict[int, list[CopyGroup]] = {}  # before the last load of the group, by its id
        for group in roles.plan.groups:
            last = max((copy.load for copy in group.copies), key=group.block.ops.index)
            self.copied.setdefault(last.id, []).append(group)

    def visit_op(self, op: Op) -> object:
        """Emits copies, and copies of the ops that they need; drops all other ops."""
        needed, quotients = self.roles.needed, self.roles.quotients
        for group in self.copied.get(op.id, ()):
            self.copy(group)
        rings = self.roles.inside(op)
        if not rings and not any(value in needed for value in op.results):
            return op.results
        if op.name == "program_id" and self.ids:
            return [self.ids[op.attrs["axis"]]]
        if op.name == "for":
            self.loop(self.reduced(op), rings)
        elif op.name == "if":
            self.branch(self.reduced(op), rings)
        elif quotients is not None and (found := quotients.emit(self.builder, self.get, op)):
            return [found]
        else:
            return emit_copy(op, self.builder, {}).results
        return [self.get(value) for value in op.results]

    def copy(self, group: CopyGroup) -> None:
        """Emits the copies of a group: the wait for a free stage, the number of bytes, and the TMA copies."""
        b, roles, ring = self.builder, self.roles, self.roles.rings[group]
        stage, parity = self.state.now[ring]
        with b.at(group.copies[0].load):
            b.op("await", ring.empty, stage, b.value("xor", parity, b.const(1, t.int32)))
            b.op("expect", ring.full, stage, bytes=group.copied_bytes)
        for i, copy in enumerate(group.copies):
            with b.at(copy.load):
                to = ring.view(i, stage)
                start = [tma_boxes.emit(b, self.get, poly, t.int32) for poly in copy.box.start]
                also: dict[str, Any] = {"multicast": True} if copy.multicast else {}
                also |= {"evict": copy.load.attrs["evict"]} if copy.load.attrs.get("evict") else {}
                also |= {"extents": copy.extents} if copy.extents != copy.buffer.type.shape else {}
                b.op("copy_bulk", to, roles.maps[copy], ring.full, stage, *start, axes=copy.axes, **also)
        with b.at(group.copies[0].load):
            self.state.advance(ring)

    def reduced(self, op: Op) -> Op:
        """A new loop or branch in place of an op, with only those carried values or results that the producer needs."""
        needed, args, body_args = self.roles.needed, op.args, tuple[Value, ...]()
        kept = [i for i, value in enumerate(op.results) if value in needed]
        attrs = dict(op.attrs)
        if op.name == "for":
            carried = op.blocks[0].args[1:]
            kept = [i for i, value in enumerate(op.results) if value in needed or carried[i] in needed]
            args = (*args[:3], *(args[3 + i] for i in kept))
            body_args = self.renamed((op.blocks[0].args[0], *(carried[i] for i in kept)))
        else:
            attrs["types"] = tuple(op.results[i].type for i in kept)
        made = []
        for block in op.blocks:
            end = block.terminator
            ops = (*block.ops[:-1], self.numbered(end, args=tuple(end.args[i] for i in kept)))
            made.append(Block(body_args, ops))
        results = self.renamed([op.results[i] for i in kept])
        return self.numbered(op, args=args, results=results, blocks=tuple(made), attrs=attrs)

    def renamed(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """New values in place of old ones."""
        self.mapping.update({value: Value(value.type, value.name) for value in values})
        return tuple(map(self.get, values))

    def numbered(self, op: Op, **changes: Any) -> Op:
        """A changed copy of an op with an id of its own."""
        b = self.builder
        b.next_id += 1
        return op.replace(id=b.next_id - 1, was=(op.id,), origin=b.origin, **changes)
