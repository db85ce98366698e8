"""Layout assignment: from tiles to tiles spread over threads.

Three kinds of values. *Anchored* ones (loads, dots, reductions, what loops carry, and arithmetic on them) get one layout each:
union-find puts together what elementwise ops and loops tie, and the heaviest proposal in a group wins: dots first, then loads
and stores by bytes times trips, then what a reduction leaves. *Cheap* ones (constants, index and mask arithmetic) have no
layout of their own: they are computed again in every layout that asks. *Views* (broadcast, reshape, transpose of an anchored
value) move no data in any layout, so they too are made on demand and pass the demand on to their operand.

The trick is the order: demands are collected in one walk backwards, where users come before definitions, and code is emitted in
one walk forwards, each cheap op once for each layout asked for, at its old place, so that nothing invariant enters a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.analysis.liveness import is_cheap
from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Op, Value, block_arguments, definitions, uses
from blocknb.ir.report import REPORTS
from blocknb.ir.traversal import reachable
from blocknb.language.ops import ACCESSES, ATOMICS, LOOPS, OPS, REDUCTIONS, STRUCTURED
from blocknb.layouts import convert, tables
from blocknb.layouts.linear import Layout
from blocknb.passes.epilogue import by_warp, products
from blocknb.passes.groups import Groups
from blocknb.passes.tensorcore import operand_layouts
from blocknb.passes.views import MOVING, POINTWISE, VIEWS, moved_layout, operand_layout, settle_backwards
from blocknb.target import Target
from blocknb.trace import Notes

TRIPS = 16  # a loop is taken to run this often when weighing proposals
SMALL = 1024  # elements: a tile up to this size may be loaded replicated rather than converted
FEW = 64  # elements of a short line
PRODUCT = 1e12  # the least weight of a product's proposal for one element
SECTOR = 32  # bytes that memory moves at least


def assign(func: Func, target: Target, notes: Notes) -> Func:
    """Gives every tile a layout: which thread holds which element, in which register.

    Dots, loads, stores and reductions propose layouts; tiles that must agree form groups, and in each group the heaviest
    proposal wins. Index arithmetic is repeated in each layout that needs it. Where two groups meet, a conversion stays, and its
    note says how it is done (register renaming, warp shuffles, shared memory) and about how many cycles that takes.
    """
    return Assignment(func, target, notes).run()


class Assignment:
    """The state of one run: groups, the layout of each anchored value, the layouts demanded of each value."""

    def __init__(self, func: Func, target: Target, notes: Notes):
        self.func, self.target, self.notes = func, target, notes
        self.num_warps = func.attrs["num_warps"]
        self.defs, self.block_args = definitions(func), block_arguments(func)
        self.cheap: dict[Value, bool] = {}
        self.groups = Groups()
        self.layouts: dict[Value, Layout] = {}
        self.demands: dict[Value, dict[Layout, None]] = {}
        self.at: dict[Value, dict[Layout, Value]] = {}
        self.reductions: list[tuple[Op, float]] = []  # and how often they are taken to run
        self.told: dict[int, list[Layout | None]] = {}  # of ops that tell something: the layouts of their operands
        self.used_ids: set[int] = set()
        self.products = products(func)
        self.builder = Builder("assign", func.next_id)

    def run(self) -> Func:
        self.classify(self.func.body)
        self.tie(self.func.body, 1.0)
        self.settle()
        self.collect(self.func.body)
        self.emit_ops(self.func.body.ops)
        return self.func.replace(body=Block(self.func.body.args, self.builder.finish()), level="laid")

    # -- what kind of value

    def classify(self, block: Block) -> None:
        for op in block.ops:
            for inner in op.blocks:
                self.classify(inner)
            for value in op.results:
                self.cheap[value] = is_cheap(op, self.cheap)

    def is_view(self, value: Value) -> bool:
        return value in self.defs and self.defs[value].name in VIEWS and not self.cheap[value]

    def anchored(self, value: Value) -> bool:
        return bool(getattr(value.type, "shape", ())) and not self.cheap.get(value, False) and not self.is_view(value)

    # -- groups and proposals

    def tie_all(self, values: Sequence[Value]) -> None:
        anchored = [v for v in values if self.anchored(v)]
        for other in anchored[1:]:
            self.groups.union(anchored[0], other)

    def tie(self, block: Block, trips: float) -> None:
        for op in block.ops:
            inner = trips * (TRIPS if op.name in LOOPS else 1)
            for nested in op.blocks if OPS[op.name].kind != "reduce" else ():
                self.tie(nested, inner)
            self.tie_op(op, trips)

    def tie_op(self, op: Op, trips: float) -> None:
        match op.name:
            case "for":
                body = op.blocks[0]
                for group in zip(op.args[3:], body.args[1:], body.terminator.args, op.results, strict=True):
                    self.tie_all(group)
            case "while":
                before, after = op.blocks
                for group in zip(
                    op.args,
                    before.args,
                    before.terminator.args[1:],
                    after.args,
                    after.terminator.args,
                    op.results,
                    strict=True,
                ):
                    self.tie_all(group)
            case "if":
                for group in zip(op.results, *(b.terminator.args for b in op.blocks), strict=True):
                    self.tie_all(group)
            case "dot":
                self.tie_all((op.result, op.args[2]))
                layout = op.attrs.get("layout") or tables.fma_accumulator(op.result.type.shape, self.num_warps)
                weight = 1e3 * PRODUCT if "instr" in op.attrs else PRODUCT  # plain multiply-adds take any layout
                self.groups.propose(op.result, weight * trips * op.result.type.size, layout)
            case name if name in ACCESSES and op.args[0].type.shape:
                if op.name == "load":  # moving an address is no cheaper than moving what it points to
                    self.tie_all((op.result, *op.args[:2]))
                # Of a load the result, of a store the value; and addresses and masks that are carried or loaded themselves.
                for value in (*op.results, *op.args):
                    if self.anchored(value) and not self.is_short_store(op):
                        self.groups.propose(value, self.weight(op, trips), self.access_layout(op))
            case "reduce" if op.results[0].type.shape:
                self.reductions.append((op, trips))
            case "flip":
                self.tie_all((op.result, *op.args))
            case "gather":
                self.tie_all((op.result, op.args[1]))
            case _ if OPS[op.name].kind in POINTWISE and self.anchored(op.results[0]):
                self.tie_all((*op.results, *op.args))

    def weight(self, op: Op, trips: float) -> float:
        return trips * op.args[0].type.size * op.args[0].type.dtype.element.bytes

    def access_layout(self, op: Op) -> Layout:
        """What `coalesce` proposed, or the plainest layout when it was switched off: one element a thread, row by row."""
        return op.attrs.get("layout") or self.default(op.args[0].type.shape, 1)

    def default(self, shape: tuple[int, ...], vec: int = 4) -> Layout:
        size = 1
        for n in shape:
            size *= n
        vec = min(vec, max(1, size // (32 * self.num_warps)))
        return tables.blocked(shape, tuple(reversed(range(len(shape)))), vec, self.num_warps)

    def settle(self) -> None:
        """Picks each group's layout: the heaviest proposal, else what views or reductions suggest, else the default."""
        values = [v for v in (*self.defs, *self.block_args) if self.anchored(v)]
        self.propose_reductions()
        members: dict[Value, int] = {}
        for value in values:
            root = self.groups.find(value)
            members[root] = members.get(root, 0) + 1
            if root not in self.layouts and (proposals := self.groups.proposals.get(root)):
                self.layouts[root] = max(proposals, key=lambda p: p[0])[1]
        consumers = uses(self.func)
        for op in self.func.ops():
            if op.name != "load" or op.result.type.size > SMALL or not self.anchored(op.result):
                continue
            root, made = self.groups.find(op.result), {op.result: None}
            if (layout := self.asked_by_views(op.result, consumers, made)) and members[root] == len(made):
                self.layouts[root] = layout
        for op in self.func.ops():  # program order: a reduction's operand is settled before its result asks
            if op.name == "scan":
                for result in op.results:
                    self.layouts.setdefault(self.groups.find(result), self.scan_layout(op))
            if op.name == "reduce":
                layout = self.reduction_layout(op)
                if op.results[0].type.shape:
                    for result in op.results:
                        self.layouts.setdefault(self.groups.find(result), layout.slice(op.attrs["axis"]))
        settle_backwards(self, self.func.body)
        for value in values:
            self.layouts.setdefault(self.groups.find(value), self.default(value.type.shape))

    def propose_reductions(self) -> None:
        """What a reduction of a product leaves in each trip of a loop (attention's largest scores) weighs as much as if it were loaded
        there: less than what the loop does load, more than a store behind it. So does each half of one that is split, anywhere: it is
        stored in fewer bits than it is split in, and where warps leave their rows to nobody else."""
        for op, trips in self.reductions:
            value, axis, views = op.args[0], op.attrs["axis"], []
            halves = value.type.shape[axis] == 2
            while halves and self.is_view(value) and self.defs[value].name in MOVING:
                views.append(self.defs[value])
                value = views[-1].args[0]
            proposals = self.groups.proposals.get(self.groups.find(value), ()) if self.anchored(value) else ()
            weight, layout = max(proposals, key=lambda p: p[0], default=(0.0, None))
            split = halves and layout in self.products
            if layout is None or weight < PRODUCT or not (split or (trips > 1 and not views)):
                continue
            for view in reversed(views):
                layout = moved_layout(view, layout)
            self.products |= {layout.slice(axis)} if split else set()
            for result in op.results:
                weight = (2 if split else 1) * trips * result.type.size * value.type.dtype.bytes
                self.groups.propose(result, weight, layout.slice(axis))

    def asked_by_views(self, value: Value, consumers: dict[Value, list], made: dict[Value, None]) -> Layout | None:
        """The layout in which all chains of views from `value`, and from what is `made` of it alone, end up in settled groups: a
        small tile is loaded in it at once, replicas and all, instead of being converted."""
        asked, onward = None, dict[Value, list[Value]]()
        for current in reachable([value], lambda x: onward.get(x, ())):
            if not consumers.get(current):
                return None
            for op, _ in consumers[current]:
                if op.name in VIEWS:
                    layout = self.asked_by_views(op.result, consumers, {})
                    layout = layout and operand_layout(op, current, layout)
                elif OPS[op.name].kind in POINTWISE and self.anchored(result := op.results[0]):
                    if current in made and self.groups.find(result) == self.groups.find(current):
                        onward.setdefault(current, []).extend(() if result in made else [result])
                        made[result] = None
                        continue
                    layout = self.layouts.get(self.groups.find(result))
                else:
                    return None
                if layout is None or asked not in (None, layout):
                    return None
                asked = layout
        return asked

    def layout_of(self, value: Value) -> Layout:
        return self.layouts[self.groups.find(value)]

    def natural(self, value: Value) -> Layout:
        """The layout in which a value is had for nothing: an anchored one's own, a view's as its operand gives it."""
        if self.anchored(value):
            return self.layouts.setdefault(self.groups.find(value), self.default(value.type.shape))
        if self.is_view(value) and self.defs[value].name in MOVING:
            return moved_layout(self.defs[value], self.natural(self.defs[value].args[0]))
        return self.default(value.type.shape)

    def reduction_layout(self, op: Op) -> Layout:
        """The layout in which a reduction takes its operands: that of the first anchored one."""
        anchored = [x for x in op.args if self.anchored(x)] or [x for x in op.args if self.is_view(x)]
        return self.natural(anchored[0] if anchored else op.args[0])

    def scan_layout(self, op: Op) -> Layout:
        """The layout of a scan's operands and results: that of the operand, but each line along the axis within one warp."""
        return tables.within_warp(self.reduction_layout(op), op.attrs["axis"])

    # -- demands, backwards

    def demand(self, value: Value, layout: Layout) -> None:
        if value.type.shape:
            self.demands.setdefault(value, {})[layout] = None

    def collect(self, block: Block) -> None:
        for op in reversed(block.ops):
            self.collect_op(op)

    def collect_op(self, op: Op) -> None:
        match op.name:
            case name if name in STRUCTURED:
                self.collect_control(op)
            case name if name in ACCESSES:
                if (wanted := self.emitted_layout(op)) is not None:
                    for value in op.args:
                        self.demand(value, wanted)
            case "dot":
                for value, layout in zip(op.args, self.dot_layouts(op), strict=True):
                    self.demand(value, layout)
            case name if name in REDUCTIONS:
                layout = self.reduction_layout(op) if op.name == "reduce" else self.scan_layout(op)
                for value in op.args:
                    self.demand(value, layout)
            case name if name in REPORTS:
                self.told[op.id] = self.told_layouts(op)
                self.demand_all(op.args, self.told[op.id])
            case "gather":
                self.demand(op.args[0], self.natural(op.args[0]))
                self.demand(op.args[1], self.layout_of(op.result))
            case _ if op.results and op.results[0].type.shape:
                first = op.results[0]
                own = [self.layout_of(first)] if self.anchored(first) else self.demands.get(first, ())
                for layout in own:
                    self.demand_operands(op, layout)

    def told_layouts(self, op: Op) -> list[Layout | None]:
        """The layouts in which operands are told of: one in which others want them anyway, the same for all of `outside`."""
        layouts: list[Layout | None] = []
        for value in op.args:
            wanted = () if self.anchored(value) else self.demands.get(value, ())
            layouts.append(next(iter(wanted), None) or self.natural(value) if value.type.shape else None)
        return layouts[:1] * len(layouts) if op.name == "outside" else layouts

    def collect_control(self, op: Op) -> None:
        own = [self.layout_of(v) if v.type.shape else None for v in op.results]
        for block in reversed(op.blocks):
            self.demand_all(block.terminator.args, own)
            self.collect(Block(block.args, block.ops[:-1]))
        if op.name != "if":
            self.demand_all(op.args, own)

    def demand_all(self, values: Sequence[Value], layouts: Sequence[Layout | None]) -> None:
        """The last values, as many as there are layouts, each in its layout (what comes before them is scalar)."""
        for value, layout in zip(values[len(values) - len(layouts) :], layouts, strict=True):
            if layout is not None:
                self.demand(value, layout)

    def demand_operands(self, op: Op, layout: Layout) -> None:
        for value in op.args:
            if value.type.shape:
                self.demand(value, operand_layout(op, value, layout))

    def emitted_layout(self, op: Op) -> Layout | None:
        """The layout in which a load or store is done (None for a scalar one).

        A load goes straight into its group's layout when that costs no wider an access than its own; else it is done in its own layout
        and converted. A store goes where addresses are that were not computed in any layout, but loaded: they are wider than values.
        """
        if not op.args[0].type.shape:
            return None
        own, value = self.access_layout(op), op.result if op.name == "load" else op.args[1]
        wanted = self.layout_of(value) if self.anchored(value) else own
        if op.name == "store" and self.anchored(op.args[0]) and not self.is_short_store(op):
            return self.layout_of(op.args[0])
        if op.name in ATOMICS:  # element by element anyway, so where the values are; but only once
            there = self.natural(value) if self.is_view(value) else wanted
            return own if there.is_replicated else there
        if self.as_wide(op, wanted, own):
            return wanted
        return by_warp(op, wanted, own) if wanted in self.products else own

    def as_wide(self, op: Op, wanted: Layout, own: Layout) -> bool:
        """Whether an access in `wanted` moves vectors as wide as in `own`, and still fills whole sectors along the fast axis."""
        if wanted == own or self.is_short_store(op):
            return True
        vec, bytes = op.attrs.get("vec", 1), op.args[0].type.dtype.element.bytes
        first = own.reg[0] if own.reg and vec > 1 else own.lane[0]
        fast = next((axis for axis in range(len(own.shape)) if first & own.dim_mask(axis)), len(own.shape) - 1)
        width = [min(vec, x.contiguous_registers(fast)) for x in (wanted, own)]
        reach = [x.consecutive(fast, w) * bytes for x, w in zip((wanted, own), width, strict=True)]
        small = op.args[0].type.size <= SMALL
        return (
            width[0] >= width[1]
            and reach[0] >= min(reach[1], SECTOR)
            and (small or not wanted.is_replicated or own.is_replicated)
        )

    def is_short_store(self, op: Op) -> bool:
        """Whether an op stores a line of few elements, such as one number a row: from wherever they are, moving them would cost more."""
        return op.name == "store" and len(op.args[0].type.shape) == 1 and op.args[0].type.size <= FEW

    def dot_layouts(self, op: Op) -> tuple[Layout, Layout, Layout]:
        if "instr" in op.attrs:  # the instruction's own layout: products that share an accumulator may differ in theirs
            a, b = operand_layouts(op)
            return a or self.natural(op.args[0]), b or self.natural(op.args[1]), op.attrs["layout"]
        # Plain multiply-adds read both operands from shared memory, so that any layout will do.
        return self.natural(op.args[0]), self.natural(op.args[1]), self.layout_of(op.result)

    # -- emission, forwards

    def get(self, value: Value, layout: Layout | None = None) -> Value:
        if not value.type.shape:
            return value
        assert layout is not None
        return self.at[value][layout]

    def define(self, value: Value, layout: Layout) -> Value:
        """The new Value for `value` in `layout`."""
        new = Value(value.type.with_layout(layout), value.name)
        self.at.setdefault(value, {})[layout] = new
        return new

    def converts(self, value: Value) -> None:
        """After an anchored value's definition: conversions to the other layouts in which it is wanted."""
        if not value.type.shape:
            return
        own = next(iter(self.at[value]))
        source = self.at[value][own]
        for layout in list(self.demands.get(value, ())):
            if layout not in self.at[value]:
                self.at[value][layout] = made = self.builder.value("convert", source, layout=layout)
                made.name = value.name
                self.explain(self.builder._open[-1][-1], own, layout)

    def explain(self, op: Op, own: Layout, layout: Layout) -> None:
        bits = max(8, op.result.type.dtype.bits)
        kind, cycles = convert.plan(own, layout, bits).kind, convert.price(own, layout, bits)
        how = {"none": "no data moves", "rename": "registers renamed", "shuffle": "warp shuffles"}
        how["shared"] = "through shared memory"
        size = op.result.type.size * op.result.type.dtype.bytes
        price = f", about {cycles} cycles" if cycles else ""
        self.notes(op, f"conversion of {op.result.name or 'a tile'} ({size} bytes): {how[kind]}{price}")

    def emit_ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            with self.builder.at(op):
                self.emit(op)

    def emit(self, op: Op) -> None:
        match op.name:
            case name if name in STRUCTURED:
                self.emit_control(op)
            case name if name in ACCESSES:
                self.emit_access(op)
            case "dot":
                layouts = self.dot_layouts(op)
                self.emit_in(op, [self.get(v, x) for v, x in zip(op.args, layouts, strict=True)], [layouts[2]])
            case "reduce":
                self.emit_reduce(op)
            case name if name in REPORTS:
                self.emit_in(op, [self.get(v, x) for v, x in zip(op.args, self.told[op.id], strict=True)], [None])
            case "scan":
                layout = self.scan_layout(op)
                self.emit_in(op, [self.get(v, layout) for v in op.args], [layout])
            case "gather":
                source, layout = self.natural(op.args[0]), self.layout_of(op.result)
                self.emit_in(op, [self.get(op.args[0], source), self.get(op.args[1], layout)], [layout])
            case _ if op.results and op.results[0].type.shape:
                anchored = self.anchored(op.results[0])
                for layout in (
                    [self.layout_of(op.results[0])] if anchored else list(self.demands.get(op.results[0], ()))
                ):
                    args = [self.get(v, operand_layout(op, v, layout)) for v in op.args]
                    self.emit_in(op, args, [layout], convert_results=anchored)
            case _:
                self.emit_in(op, [self.get(v, None) for v in op.args], [None])

    def emit_in(
        self,
        op: Op,
        args: Sequence[Value],
        layouts: Sequence[Layout | None],
        blocks: tuple = (),
        convert_results: bool = True,
    ) -> Op:
        """Appends `op` with new operands and results in the given layouts, keeping its id the first time."""
        own = list(layouts) * len(op.results) if len(layouts) == 1 else layouts
        results = tuple(self.define(v, x) if x is not None else v for v, x in zip(op.results, own, strict=True))
        attrs = dict(op.attrs)
        if "layout" in attrs and op.name in (*ACCESSES, "dot"):
            del attrs["layout"]
        if op.name == "const" and layouts[0] is not None:
            attrs["type"] = results[0].type
        elif op.name in ("arange", "splat", "broadcast"):  # their type rules take the layout from an attribute
            attrs["layout"] = layouts[0]
        if op.name == "if":
            attrs["types"] = tuple(r.type for r in results)
        new = op.replace(args=tuple(args), results=results, attrs=attrs, blocks=blocks or op.blocks)
        if op.id in self.used_ids:  # a further copy in another layout
            new = new.replace(id=self.builder.next_id, was=(op.id,), origin="assign")
            self.builder.next_id += 1
        self.used_ids.add(op.id)
        self.builder.append(new)
        if convert_results:
            for value in op.results:
                self.converts(value)
        return new

    def emit_access(self, op: Op) -> None:
        layout = self.emitted_layout(op)
        self.emit_in(op, [self.get(v, layout) for v in op.args], [layout])

    def emit_reduce(self, op: Op) -> None:
        layout = self.reduction_layout(op)
        out = layout.slice(op.attrs["axis"]) if op.results[0].type.shape else None
        self.emit_in(op, [self.get(v, layout) for v in op.args], [out])

    def emit_control(self, op: Op) -> None:
        blocks = []
        own = [self.layout_of(v) if v.type.shape else None for v in op.results]
        skip = 3 if op.name == "for" else 1 if op.name == "if" else 0
        args = [self.get(v) for v in op.args[:skip]] + [
            self.get(v, x) for v, x in zip(op.args[skip:], own, strict=op.name != "if")
        ]
        for block in op.blocks:
            blocks.append(self.emit_block(op, block, own))
        self.emit_in(op, args, own, tuple(blocks))

    def emit_block(self, op: Op, block: Block, own: Sequence[Layout | None]) -> Block:
        lead: list[Layout | None] = [None] if op.name == "for" else []
        layouts = lead + list(own) if block.args else []
        args = tuple(self.define(v, x) if x is not None else v for v, x in zip(block.args, layouts, strict=True))
        with self.builder.block(args) as opened:
            for value in block.args:
                with self.builder.at(op):
                    self.converts(value)
            self.emit_ops(block.ops[:-1])
            end = block.terminator
            first: list[Layout | None] = [None] if end.name == "condition" else []
            self.builder.append(
                end.replace(args=tuple(self.get(v, x) for v, x in zip(end.args, first + list(own), strict=True)))
            )
        return opened.done
