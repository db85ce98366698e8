"""Layout assignment: every tile gets a layout, and a conversion is emitted wherever two layouts meet.

There are three kinds of values. *Anchored* values (loads, dots, reductions, loop-carried values, and arithmetic on them) get one layout
each; `support/layout_choice` chooses it. *Cheap* values (constants, index and mask arithmetic) are recomputed in every layout that a user
needs. *Views* (broadcast, reshape and transpose of an anchored value) move no data in any layout, so they are made on demand.

One walk backwards collects the demands, because it meets users before definitions. One walk forwards emits the code, each cheap op once
per demanded layout and at its old place, so nothing invariant enters a loop. Triton's pass RemoveLayoutConversions does the same. A
conversion for branches alone then moves into these (`support/branch_conversions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from blocknb.ir.build import Builder, revised
from blocknb.ir.core import Block, Func, Op, Value, walk
from blocknb.ir.report import REPORTS
from blocknb.ir.shadow import SHADOWS
from blocknb.language.ops import ACCESSES
from blocknb.layouts import convert
from blocknb.layouts.linear import Layout
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.branch_conversions import sunk
from blocknb.passes.support.layout_choice import LayoutChoice
from blocknb.passes.support.tile_views import operand_layout
from blocknb.target import Target
from blocknb.trace import Notes


@gpu_pass()
def layout_assignment(func: Func, target: Target, notes: Notes) -> Func:
    """Assigns every tile a layout: which thread holds which element in which register

    When: always, on a GPU.

    What: dots, loads, stores and reductions propose layouts. Tiles that must agree form groups, and the heaviest proposal of a group
    wins. Index and mask arithmetic is repeated in each layout that needs it. Where two groups meet, a conversion stays. A loaded tile is
    converted where it is first used, so that no other load waits for it.

    Why: a layout decides how wide accesses are, and whether data has to move between threads.

    Limits: the choice is made once, by weights; it does not search. The note of a conversion names its means (renumbered registers, warp
    shuffles or shared memory) and its approximate cycles.

    Before:

        %v = load %p {layout=#a, vec=4} : tile<64x64xf32>
        %c = dot %x, %y, %acc {instr="m16n8k16", layout=#b, warps=(2, 2)} : tile<64x64xf32>
        %s = add %v, %c : tile<64x64xf32>

    After:

        %v = load %p {vec=4} : tile<64x64xf32, #a>
        %w = convert %v : tile<64x64xf32, #b>
        %c = dot %x, %y, %acc {instr="m16n8k16", warps=(2, 2)} : tile<64x64xf32, #b>
        %s = add %w, %c : tile<64x64xf32, #b>
    """
    return LayoutAssignment(func, notes).run()


class LayoutAssignment:
    """The state of one run: the layouts demanded of each value, and the value in each of them."""

    def __init__(self, func: Func, notes: Notes):
        self.func, self.notes, self.choice = func, notes, LayoutChoice(func)
        self.demands: dict[Value, dict[Layout, None]] = {}
        self.at: dict[Value, dict[Layout, Value]] = {}
        self.reported: dict[int, list[Layout | None]] = {}  # the layouts of the operands of ops that report values
        self.loads: dict[Value, Op] = {}  # the loaded values, which are converted where they are used
        self.used_ids: set[int] = set()
        self.builder = Builder(first_id=func.next_id)

    def run(self) -> Func:
        self.collect(self.func.body)
        self.emit_ops(self.func.body.ops)
        body = Block(self.func.body.args, self.builder.finish())
        return sunk(self.func.replace(body=body, level="distributed"))

    # -- demands, backwards

    def demand(self, value: Value, layout: Layout) -> None:
        if value.type.shape:
            self.demands.setdefault(value, {})[layout] = None

    def collect(self, block: Block) -> None:
        for op in reversed(block.ops):
            self.collect_op(op)

    def collect_op(self, op: Op) -> None:
        match op.name:
            case "for" | "while" | "if":
                self.collect_control(op)
            case "load" | "store" | "atomic" | "atomic_cas":
                if (wanted := self.choice.emitted_layout(op)) is not None:
                    for value in op.args:
                        self.demand(value, wanted)
            case "dot":
                for value, layout in zip(op.args, self.choice.dot_layouts(op), strict=True):
                    self.demand(value, layout)
            case "reduce" | "scan":
                layout = self.choice.reduction_layout(op) if op.name == "reduce" else self.choice.scan_layout(op)
                for value in op.args:
                    self.demand(value, layout)
            case name if name in REPORTS:
                self.reported[op.id] = self.reported_layouts(op)
                self.demand_all(op.args, self.reported[op.id])
            case "gather":
                self.demand(op.args[0], self.choice.natural(op.args[0]))
                self.demand(op.args[1], self.choice.layout_of(op.result))
            case _ if op.results and op.results[0].type.shape:
                first = op.results[0]
                own = [self.choice.layout_of(first)] if self.choice.anchored(first) else self.demands.get(first, ())
                for layout in own:
                    self.demand_operands(op, layout)

    def reported_layouts(self, op: Op) -> list[Layout | None]:
        """The layouts of the operands that an op reports (as `outside` does): a layout that other users need anyway, and one for all
        operands."""
        layouts: list[Layout | None] = []
        for value in op.args:
            wanted = () if self.choice.anchored(value) else self.demands.get(value, ())
            layouts.append(next(iter(wanted), None) or self.choice.natural(value) if value.type.shape else None)
        together = op.name in ("outside", "assert") or op.name in SHADOWS
        return layouts[:1] * len(layouts) if together else layouts

    def collect_control(self, op: Op) -> None:
        own = [self.choice.layout_of(v) if v.type.shape else None for v in op.results]
        for block in reversed(op.blocks):
            self.demand_all(block.terminator.args, own)
            self.collect(Block(block.args, block.ops[:-1]))
        if op.name != "if":
            self.demand_all(op.args, own)

    def demand_all(self, values: Sequence[Value], layouts: Sequence[Layout | None]) -> None:
        """Demands the last values, one per layout, each in its layout. The values before them are scalars."""
        for value, layout in zip(values[len(values) - len(layouts) :], layouts, strict=True):
            if layout is not None:
                self.demand(value, layout)

    def demand_operands(self, op: Op, layout: Layout) -> None:
        for value in op.args:
            if value.type.shape:
                self.demand(value, operand_layout(op, value, layout))

    # -- emission, forwards

    def get(self, value: Value, layout: Layout | None = None) -> Value:
        if not value.type.shape:
            return value
        assert layout is not None
        if layout not in self.at[value]:
            self.convert(value, layout)
        return self.at[value][layout]

    def define(self, value: Value, layout: Layout) -> Value:
        """Defines the new Value for `value` in `layout`."""
        new = Value(value.type.with_layout(layout), value.name)
        self.at.setdefault(value, {})[layout] = new
        return new

    def converts(self, value: Value) -> None:
        """Emits, after an anchored value's definition, conversions to the other demanded layouts."""
        for layout in list(self.demands.get(value, ())) if value.type.shape else ():
            if layout not in self.at[value]:
                self.convert(value, layout)

    def convert(self, value: Value, layout: Layout) -> None:
        """Emits the conversion of an anchored value to another layout."""
        own = next(iter(self.at[value]))
        with self.builder.at(self.loads[value]) if value in self.loads else nullcontext():
            made = self.builder.value("convert", self.at[value][own], layout=layout)
            made.name = value.name
            self.at[value][layout] = made
            self.explain(self.builder._open[-1][-1], own, layout)

    def explain(self, op: Op, own: Layout, layout: Layout) -> None:
        bits = max(8, op.result.type.dtype.bits)
        kind, cycles = convert.plan(own, layout, bits).kind, convert.price(own, layout, bits)
        how = {"none": "no data moves", "rename": "only registers are renumbered", "shuffle": "by warp shuffles"}
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
            case "for" | "while" | "if":
                self.emit_control(op)
            case "load" | "store" | "atomic" | "atomic_cas":
                self.emit_access(op)
            case "dot":
                layouts = self.choice.dot_layouts(op)
                self.emit_in(op, [self.get(v, x) for v, x in zip(op.args, layouts, strict=True)], [layouts[2]])
            case "reduce":
                self.emit_reduce(op)
            case name if name in REPORTS:
                self.emit_in(op, [self.get(v, x) for v, x in zip(op.args, self.reported[op.id], strict=True)], [None])
            case "scan":
                layout = self.choice.scan_layout(op)
                self.emit_in(op, [self.get(v, layout) for v in op.args], [layout])
            case "gather":
                source, layout = self.choice.natural(op.args[0]), self.choice.layout_of(op.result)
                self.emit_in(op, [self.get(op.args[0], source), self.get(op.args[1], layout)], [layout])
            case _ if op.results and op.results[0].type.shape:
                anchored = self.choice.anchored(op.results[0])
                for layout in (
                    [self.choice.layout_of(op.results[0])] if anchored else list(self.demands.get(op.results[0], ()))
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
        """Appends `op` with new operands and results in the given layouts. The first copy keeps the op's id."""
        own = list(layouts) * len(op.results) if len(layouts) == 1 else layouts
        results = tuple(self.define(v, x) if x is not None else v for v, x in zip(op.results, own, strict=True))
        attrs = dict(op.attrs)
        if "layout" in attrs and op.name in (*ACCESSES, "dot"):
            del attrs["layout"]
        if op.name == "const" and layouts[0] is not None:
            attrs["type"] = results[0].type
        elif op.name in ("arange", "splat", "broadcast"):  # their type rules cannot derive the layout from an operand
            attrs["layout"] = layouts[0]
        if op.name == "if":
            attrs["types"] = tuple(r.type for r in results)
        new = op.replace(args=tuple(args), results=results, attrs=attrs, blocks=blocks or op.blocks)
        if op.id in self.used_ids:  # a further copy in another layout
            new = revised(new, id=self.builder.next_id, was=(op.id,))
            self.builder.next_id += 1
        self.used_ids.add(op.id)
        self.builder.append(new)
        if op.name == "load" and len(self.builder._open) == 1:  # in loops, passes that pipeline place the loads
            self.loads[op.result] = op
        elif convert_results:
            for value in op.results:
                self.converts(value)
        return new

    def emit_access(self, op: Op) -> None:
        layout = self.choice.emitted_layout(op)
        self.emit_in(op, [self.get(v, layout) for v in op.args], [layout])

    def emit_reduce(self, op: Op) -> None:
        layout = self.choice.reduction_layout(op)
        out = layout.slice(op.attrs["axis"]) if op.results[0].type.shape else None
        self.emit_in(op, [self.get(v, layout) for v in op.args], [out])

    def convert_loads(self, op: Op) -> None:
        """Emits, before a loop or branch, the conversions of loaded tiles that it uses."""
        for value in {x: None for block in op.blocks for inner in walk(block) for x in inner.args if x in self.loads}:
            self.converts(value)

    def emit_control(self, op: Op) -> None:
        self.convert_loads(op)
        blocks = []
        own = [self.choice.layout_of(v) if v.type.shape else None for v in op.results]
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
