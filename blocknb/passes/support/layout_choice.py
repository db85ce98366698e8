"""Chooses the layout of each anchored tile: which tiles share a layout, which layouts are proposed, and which proposal wins.

Union-find merges the tiles that elementwise ops and loops connect. In each group the heaviest proposal wins: dots first, then loads and
stores by bytes times iterations, then the layouts of reductions' results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import prod

from blocknb.analysis import affine
from blocknb.analysis.liveness import is_cheap
from blocknb.ir.core import Block, Func, Op, Users, Value, block_arguments, definitions, uses
from blocknb.ir.traversal import forward_slice, reachable
from blocknb.language.ops import ACCESSES, ATOMICS, LOOPS, OPS
from blocknb.layouts import tables
from blocknb.layouts.linear import Layout
from blocknb.passes.distributed.epilogue_subtiling import by_warp, products
from blocknb.passes.support.layout_facts import (
    FEW,
    SECTOR,
    SMALL,
    carried_together,
    enters_converted,
    exchanges,
    is_index_vector,
    is_loaded_or_carried,
    is_short_store,
    is_sorted,
    loads_little,
    outside_of_loops,
)
from blocknb.passes.support.layout_groups import LayoutGroups
from blocknb.passes.support.mixed_sizes import widen_mixed
from blocknb.passes.support.tile_views import MOVING, POINTWISE, VIEWS, moved_layout, operand_layout
from blocknb.passes.tile.select_mma import loaded_operands, operand_layouts, vectors_first

ITERATIONS = 16  # the assumed number of iterations of a loop
SCALES = 256  # elements of a row by which a product with operands in registers is multiplied
PRODUCT = 1e12  # the least weight per element of a product's proposal
COPIES = 2  # of a tile's elements that its threads may hold: a tile that is joined with another one is repeated twice

HALF_ACCESS = 8  # bytes: half of the widest access of a thread


class LayoutChoice:
    """The groups of values that share a layout, and the layout of each group. `settle` chooses the layouts."""

    def __init__(self, func: Func):
        self.func, self.defs, self.block_args = func, definitions(func), block_arguments(func)
        self.facts = affine.analyze(func)
        self.cheap: dict[Value, bool] = {}
        self.groups = LayoutGroups()
        self.layouts: dict[Value, Layout] = {}
        self.reductions: list[tuple[Op, float]] = []  # with the assumed number of executions
        self.carried: list[tuple[Value, Value]] = []  # by loops: the value in an iteration, and the next one's
        self.recurrent: set[Value] = set()  # the results of `recurrences`
        self.products = products(func)
        self.carried_groups: dict[Value, tuple[Value, ...]] = {}  # the values that a `for` carries at the same index
        self.fragments = set[Layout]()  # of operands in registers
        self.widened = set[Layout]()  # of rows that loops reduce
        self.outside = [set(outside_of_loops(func.body, with_products)) for with_products in (False, True)]
        self.classify(func.body)
        self.tie(func.body, 1.0)
        if found := self.recurrences():
            self.recurrent = {result for op in found for result in op.results if result.type.size <= FEW}
            self.groups, self.reductions, self.carried = LayoutGroups(), [], []
            self.tie(func.body, 1.0)
        self.settle()

    @property
    def num_warps(self) -> int:
        return int(self.func.attrs["num_warps"])

    # -- kinds of values

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

    def tie(self, block: Block, iterations: float) -> None:
        for op in block.ops:
            inner = iterations * (ITERATIONS if op.name in LOOPS else 1)
            for nested in op.blocks if OPS[op.name].kind != "reduce" else ():
                self.tie(nested, inner)
            self.tie_op(op, iterations)

    def tie_op(self, op: Op, iterations: float) -> None:
        match op.name:
            case "for" | "while" | "if":
                for group in carried_together(op):
                    self.tie_all(group[enters_converted(op, group, self.defs, self.func) :])
                    self.carried += [(group[1], group[-2])] if op.name in LOOPS else []
                    if op.name == "for":
                        self.carried_groups |= dict.fromkeys(group, group)
            case "dot":
                self.tie_all((op.result, op.args[2]))
                layout = op.attrs.get("layout") or tables.fma_accumulator(op.result.type.shape, self.num_warps)
                weight = 1e3 * PRODUCT if "instr" in op.attrs else PRODUCT  # plain multiply-adds take any layout
                self.groups.propose(op.result, weight * iterations * op.result.type.size, layout)
                self.propose_operands(op, iterations)
            case "load" | "store" | "atomic" | "atomic_cas" if op.args[0].type.shape:
                if op.name == "load":  # moving addresses is no cheaper than moving the values
                    self.tie_all((op.result, *op.args[:2]))
                # The result of a load or the value of a store; and addresses and masks that are carried or loaded.
                for value in (*op.results, *op.args):
                    if self.anchored(value) and not is_short_store(op):
                        self.groups.propose(value, self.weight(op, iterations), self.access_layout(op))
            case "reduce":
                self.tie_all(op.args)
                self.reductions += [(op, iterations)] if op.results[0].type.shape else []
            case "scan":
                self.tie_all((*op.results, *op.args))
            case "flip":
                self.tie_all((op.result, *op.args))
            case "gather":
                self.tie_all((op.result, op.args[1]))
            case _ if OPS[op.name].kind in POINTWISE and self.anchored(op.results[0]):
                self.tie_all((*op.results, *self.tied_operands(op)))

    def tied_operands(self, op: Op) -> Sequence[Value]:
        """The operands of a pointwise op that share its layout: all, or only the running sum if the op adds to one (`recurrences`). The
        other operand may have another layout, because a short row costs little to convert."""
        return [v for v in op.args if v in self.recurrent] or op.args

    def recurrences(self) -> list[Op]:
        """The reductions of small tiles that loops carry, where the next tile depends on the result, as in forward substitution."""
        users, found = uses(self.func), []
        for op, iterations in self.reductions:
            value = op.args[0]
            if iterations == 1 or value.type.size > SMALL or not self.anchored(value):
                continue
            after = forward_slice(op.results, users, lambda user: not user.blocks)
            reached, root = {x for user in after for x in user.results}, self.groups.find(value)
            ends = (left for now, left in self.carried if self.anchored(now) and self.groups.find(now) is root)
            if any(left in reached for left in ends):
                found.append(op)
        return found

    def propose_operands(self, op: Op, iterations: float) -> None:
        """Proposes the fragments of a product whose operands are loaded into registers, with each thread's neighbours along K first."""
        for side, layout in loaded_operands(op):
            self.propose_for_producers(op.args[side], PRODUCT * iterations, layout)

    def propose_for_producers(self, value: Value, weight: float, layout: Layout | None) -> None:
        """Proposes a layout for a tile, and matching ones for the tiles from which views and arithmetic compute it, up to its loads."""
        todo, seen = [(value, layout)], set()
        while todo:
            value, layout = todo.pop()
            op = self.defs.get(value)
            if layout is None or value in seen or not value.type.shape:
                continue
            seen.add(value)
            if op is not None and self.is_view(value):
                todo.append((op.args[0], operand_layout(op, op.args[0], layout)))
            elif self.anchored(value):
                layout = vectors_first(layout)
                self.groups.propose(value, weight, layout)
                self.fragments.add(layout)
                todo += [(x, layout) for x in op.args if OPS[op.name].kind in POINTWISE] if op is not None else []

    def weight(self, op: Op, iterations: float) -> float:
        """The bytes that an access moves. A load of one element for each run of equal addresses moves that element once per run."""
        return iterations * op.args[0].type.size * op.args[0].type.dtype.element.bytes / self.equal_addresses(op)

    def equal_addresses(self, op: Op) -> int:
        """The length of the runs of equal addresses of a load of one axis, such as the load of a row's number for all columns."""
        one_axis = op.name == "load" and len(op.args[0].type.shape) == 1
        return self.facts.constancy(op.args[0], 0) if one_axis else 1

    def access_layout(self, op: Op) -> Layout:
        """The proposal of `coalesce`; if that pass was switched off, one element per thread in row-major order."""
        return op.attrs.get("layout") or self.default(op.args[0].type.shape, 1)

    def default(self, shape: tuple[int, ...], vec: int = 4) -> Layout:
        vec = min(vec, max(1, prod(shape) // (32 * self.num_warps)))
        return tables.blocked(shape, tuple(reversed(range(len(shape)))), vec, self.num_warps)

    def settle(self) -> None:
        """Chooses each group's layout: the heaviest proposal, else the one that views or reductions suggest, else the default."""
        values = [v for v in (*self.defs, *self.block_args) if self.anchored(v)]
        if not self.fragments:  # other products convert the rows that their loops carry
            self.carried_groups.clear()
        members, users = self.groups.members(values), uses(self.func)
        self.groups.sorted_values = {value for group in members.values() if is_sorted(group, users) for value in group}
        self.propose_reductions()
        self.propose_sums(users)
        for root in members:
            if root not in self.layouts and (proposals := self.groups.proposals.get(root)):
                self.layouts[root] = max(proposals, key=lambda p: p[0])[1]
        self.keep_recurrences_within_warps()
        self.widen_reduced()
        self.widened |= widen_mixed(self) if self.products else set()
        self.settle_loads(members, users)
        for op in self.func.ops():  # program order: a reduction's operand has its layout before the result needs one
            if op.name == "scan":
                for result in op.results:
                    root = self.groups.find(result)
                    if self.layouts.setdefault(root, self.scan_layout(op)) not in self.products:
                        self.layouts[root] = self.scan_layout(op)
            if op.name == "reduce":
                layout = self.reduction_layout(op)
                for result in op.results if op.results[0].type.shape else ():
                    if result not in self.groups.sorted_values:
                        self.layouts.setdefault(self.groups.find(result), layout.slice(op.attrs["axis"]))
        self.settle_backwards(self.func.body)
        self.settle_forwards(self.func.body)
        for value in values:
            self.layouts.setdefault(self.groups.find(value), self.default(value.type.shape))

    def settle_loads(self, members: dict[Value, set[Value]], consumers: Users) -> None:
        """Gives small loaded tiles, also those that a loop carries, the layout that suits views of them. `members`: the groups."""
        for op in self.func.ops():
            if op.name != "load" or op.result.type.size > SMALL or not self.anchored(op.result):
                continue
            root = self.groups.find(op.result)
            made = set(reachable([op.result], lambda value: self.grouped_results(value, consumers)))
            carried = members[root] != made and all(is_loaded_or_carried(self.defs.get(x)) for x in members[root])
            if members[root] != made and not carried:
                continue
            layout = self.layout_of_views(members[root], consumers)
            # A conversion between the load and the iteration that needs it would wait for the load.
            if layout is not None and (not carried or self.loaded_as(members[root], layout)):
                self.layouts[root] = layout

    def propose_reductions(self) -> None:
        """Proposes layouts for the results of reductions in loops. A reduction of a product weighs as much as a load of its result. This is
        less than the real loads of the loop, and more than a store after it. The halves of a split product get a proposal outside of loops,
        too. They are stored in fewer bits than the product has, and each warp keeps its own rows."""
        for op, iterations in self.reductions:
            value, axis, views = op.args[0], op.attrs["axis"], []
            is_split = value.type.shape[axis] == 2
            while is_split and self.is_view(value) and self.defs[value].name in MOVING:
                views.append(self.defs[value])
                value = views[-1].args[0]
            proposals = self.groups.proposals.get(self.groups.find(value), ()) if self.anchored(value) else ()
            weight, layout = max(proposals, key=lambda p: p[0], default=(0.0, None))
            split = is_split and layout in self.products
            if layout is None or not (split or (weight >= PRODUCT and iterations > 1 and not views)):
                continue
            for view in reversed(views):
                layout = moved_layout(view, layout)
            self.products |= {layout.slice(axis)} if split else set()
            for result in (x for x in op.results if x not in self.groups.sorted_values):
                weight = (2 if split else 1) * iterations * result.type.size * value.type.dtype.bytes
                self.groups.propose(result, weight, layout.slice(axis))

    def propose_sums(self, consumers: Users) -> None:
        """Proposes the layout of a loop's reduction for the sum that it is added to, where each thread reduces its elements. A conversion
        for the store then happens once after the loop, and not once per iteration. It weighs less than the loop's loads."""
        for op, iterations in self.reductions:
            proposals = self.groups.proposals.get(self.groups.find(op.args[0]), ()) if self.anchored(op.args[0]) else ()
            layout, axis = max(proposals, key=lambda p: p[0], default=(0.0, None))[1], op.attrs["axis"]
            if iterations == 1 or layout is None or layout in self.products:
                continue
            sliced = layout.slice(axis)
            if (sliced.lane + sliced.warp).count(0) != (layout.lane + layout.warp).count(0):
                continue
            for view in (user for user, _ in consumers.get(op.results[0], ()) if user.name == "expand_dims"):
                for user, _ in consumers.get(view.result, ()):
                    if OPS[user.name].kind in POINTWISE and self.anchored(user.results[0]):
                        weight = iterations / 8 * user.result.type.size * user.result.type.dtype.bytes
                        self.groups.propose(user.result, weight, moved_layout(view, sliced))

    def keep_recurrences_within_warps(self) -> None:
        """Changes the layouts of `recurrences`: slices along the axis stay in one warp. An exchange between warps would cost two barriers
        per iteration."""
        for op in self.recurrences():
            root = self.groups.find(op.args[0])
            layout = self.layouts.get(root)
            if layout is not None and layout not in self.products:
                self.layouts[root] = tables.slices_within_warps(layout, op.attrs["axis"])

    def widen_reduced(self) -> None:
        """Gives rows that a loop loads and reduces the proposal in which the lanes exchange the fewest partial results. With more elements
        of a row, a thread holds fewer rows, and fewer lanes share one. A thread still fills whole sectors by its accesses together."""
        for op, iterations in self.reductions:
            axis, root, bytes = op.attrs["axis"], self.groups.find(op.args[0]), op.args[0].type.dtype.bytes
            now = self.layouts.get(root)
            if iterations == 1 or now is None or now in self.products:
                continue
            proposals = [x for _, x in self.groups.proposals.get(root, ())]
            fitting = [x for x in proposals if x.contiguous_registers(axis) * bytes == SECTOR]
            best = min(fitting, key=lambda x: exchanges(x, axis), default=now)
            if exchanges(best, axis) < exchanges(now, axis):
                self.layouts[root] = best
                self.widened.add(best)

    def loaded_as(self, values: Set[Value], layout: Layout) -> bool:
        """Whether all loads of values take place in a layout."""
        loads = [self.defs[value] for value in values if value in self.defs and self.defs[value].name == "load"]
        return all(self.as_wide(op, layout, self.access_layout(op)) for op in loads)

    def grouped_results(self, value: Value, consumers: Users) -> list[Value]:
        """The results of pointwise ops on a value that are in its group, and the values that a loop carries in its place."""
        root = self.groups.find(value)
        results = [op.results[0] for op, _ in consumers.get(value, ()) if OPS[op.name].kind in POINTWISE]
        results += self.carried_groups.get(value, ())
        return [result for result in results if self.anchored(result) and self.groups.find(result) == root]

    def layout_of_views(self, values: Set[Value], consumers: Users) -> Layout | None:
        """The layout in which all chains of views from values reach groups with a layout; None if there are several, or none. A small
        tile is loaded in that layout, with replicas, instead of being converted."""
        asked = None
        for value in values:
            made = self.defs.get(value)
            kept = value in self.carried_groups or (made is not None and made.name == "for")
            if not consumers.get(value) and not kept:
                return None
            for op, _ in consumers.get(value, ()):
                if op.name in ("for", "yield"):  # a loop carries it, as another one of the values
                    continue
                if op.name in VIEWS:
                    layout = self.layout_of_views({op.result}, consumers)
                    layout = layout and operand_layout(op, value, layout)
                elif OPS[op.name].kind in POINTWISE and self.anchored(result := op.results[0]):
                    if result in values:
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
        """The layout in which a value is available without a conversion: an anchored value's own, or the one that a view derives."""
        if self.anchored(value):
            return self.layouts.setdefault(self.groups.find(value), self.default(value.type.shape))
        if self.is_view(value) and self.defs[value].name in MOVING:
            return moved_layout(self.defs[value], self.natural(self.defs[value].args[0]))
        return self.default(value.type.shape)

    def reduction_layout(self, op: Op) -> Layout:
        """The layout of a reduction's operands: that of the first anchored one."""
        anchored = [x for x in op.args if self.anchored(x)] or [x for x in op.args if self.is_view(x)]
        return self.natural(anchored[0] if anchored else op.args[0])

    def scan_layout(self, op: Op) -> Layout:
        """The layout of a scan's operands and results. It is the operand's, changed so that a warp holds a slice along the axis or a
        consecutive part of it."""
        return tables.for_scan(self.reduction_layout(op), op.attrs["axis"])

    def settle_backwards(self, block: Block) -> None:
        """Gives groups without a layout the one that their users need through views, users first. A tile that is joined, transposed or
        reshaped before a store is then computed in the layout of the store."""
        for op in reversed(block.ops):
            for inner in op.blocks if OPS[op.name].kind != "reduce" else ():
                self.settle_backwards(inner)
            for value, layout in self.requested_layouts(op):
                self.follow(value, layout)

    def requested_layouts(self, op: Op) -> Iterator[tuple[Value, Layout]]:
        """The operands of an op that are views, and the layouts in which the op needs them."""
        if op.name in ACCESSES and op.args[0].type.shape:
            layout = self.access_layout(op)
        elif op.results and OPS[op.name].kind in POINTWISE and self.anchored(op.results[0]):
            found = self.layouts.get(self.groups.find(op.results[0]))
            if found is None:
                return
            layout = found
        else:
            return
        for value in op.args:
            if self.is_view(value):
                yield value, layout

    def follow(self, value: Value, layout: Layout) -> None:
        """Follows a chain of views to its source tile and gives that tile's group the matching layout."""
        while self.is_view(value):
            op = self.defs[value]
            value = op.args[0]
            asked = operand_layout(op, value, layout)
            if asked is None:
                return
            layout = asked
        if self.anchored(value):
            self.layouts.setdefault(self.groups.find(value), layout)

    def settle_forwards(self, block: Block) -> None:
        """Gives groups without a layout the one in which their largest operand arrives through views. Tiles that are unpacked, joined and
        multiplied then stay in the threads that have loaded them."""
        for op in block.ops:
            for inner in op.blocks if OPS[op.name].kind != "reduce" else ():
                self.settle_forwards(inner)
            if not op.results or OPS[op.name].kind not in POINTWISE or not self.anchored(op.results[0]):
                continue
            if self.groups.find(op.results[0]) not in self.layouts:
                arriving = [(source, layout) for x in op.args for source, layout in self.arriving(x)]
                if arriving:
                    self.layouts[self.groups.find(op.results[0])] = max(arriving, key=lambda found: found[0])[1]

    def arriving(self, value: Value) -> Iterator[tuple[int, Layout]]:
        """The elements of the source tile of a chain of views, and the layout in which the last view arrives, if the source has one."""
        if self.anchored(value):
            if (layout := self.layouts.get(self.groups.find(value))) is not None:
                yield value.type.size, layout
        elif self.is_view(value):
            op = self.defs[value]
            if value.type.size <= COPIES * op.args[0].type.size:
                yield from ((size, moved_layout(op, layout)) for size, layout in self.arriving(op.args[0]))

    # -- accesses and products

    def emitted_layout(self, op: Op) -> Layout | None:
        """The layout in which a load or store is executed (None for a scalar access).

        A load uses its group's layout if that allows accesses as wide as its own layout. Otherwise it uses its own layout, and a
        conversion follows. A store uses the layout of addresses that were loaded, not computed, because addresses are wider than values.
        """
        if not op.args[0].type.shape:
            return None
        own, value = self.access_layout(op), op.result if op.name == "load" else op.args[1]
        wanted = self.layout_of(value) if self.anchored(value) else own
        if op.name == "store" and self.anchored(op.args[0]) and not is_short_store(op):
            return self.layout_of(op.args[0])
        if op.name in ATOMICS:
            # Atomics access single elements in any layout, so they take the values' layout, but each element only once.
            there = self.natural(value) if self.is_view(value) else wanted
            return own if there.is_replicated else there
        if self.as_wide(op, wanted, own):
            return wanted
        return by_warp(op, wanted, own) if wanted in self.products else own

    def as_wide(self, op: Op, wanted: Layout, own: Layout) -> bool:
        """Whether an access in `wanted` moves vectors as wide as in `own`, and still fills whole sectors along the fast axis."""
        if wanted == own or self.costs_no_more(op, wanted):
            return True
        vec, bytes = op.attrs.get("vec", 1), op.args[0].type.dtype.element.bytes
        first = own.reg[0] if own.reg and vec > 1 else own.lane[0]
        fast = next((axis for axis in range(len(own.shape)) if first & own.dim_mask(axis)), len(own.shape) - 1)
        width = [min(vec, x.contiguous_registers(fast)) for x in (wanted, own)]
        reach = [x.consecutive(fast, w) * bytes for x, w in zip((wanted, own), width, strict=True)]
        if wanted.is_replicated and is_index_vector(op, self.num_warps):
            return True
        if wanted in self.fragments | self.widened:  # a thread's accesses fill its sectors together
            reach[0] = max(reach[0], wanted.contiguous_registers(fast) * bytes)
        if self.fragments and op.args[0].type.size <= SCALES:  # a conversion would make all warps wait
            reach[0] = SECTOR
        small = op.args[0].type.size <= SMALL
        return (
            (width[0] >= width[1] or self.prefers_two_loads(op, wanted, *width))
            and reach[0] >= min(reach[1], SECTOR)
            and (small or wanted in self.fragments or not wanted.is_replicated or own.is_replicated)
        )

    def costs_no_more(self, op: Op, wanted: Layout) -> bool:
        """Whether an access costs no more than in its own layout. It is a short store, or a load that is issued once for a thread's
        neighbours at one address. Or its addresses were loaded, so that no order of the lanes makes them consecutive."""
        if is_short_store(op):
            return True
        if op.name != "load" or len(op.args[0].type.shape) != 1:
            return False
        contiguity = self.facts.contiguity(op.args[0], 0) if self.products else 0
        little = op in self.outside[False] and loads_little(op, wanted, contiguity)
        if little or wanted.is_replicated:
            return little
        scattered = self.anchored(op.args[0]) and self.facts.contiguity(op.args[0], 0) == 1
        return scattered or 1 < wanted.contiguous_registers(0) <= self.equal_addresses(op)

    def prefers_two_loads(self, op: Op, wanted: Layout, width: int, own: int) -> bool:
        """Whether twice as many loads cost less than a conversion to the layout `wanted`. `width` and `own` are the elements per load in
        `wanted` and in the load's own layout. In a loop with products the copies to shared memory convert. In another loop one wide load
        and a conversion were faster, except for the rows that the loop reduces; for products also in a branch, by 2 % on an H200."""
        branch = wanted in self.products and op not in self.func.body.ops
        if branch or op not in self.outside[wanted in self.widened]:
            return False
        return width * op.args[0].type.dtype.element.bytes >= HALF_ACCESS and 2 * width >= own

    def dot_layouts(self, op: Op) -> tuple[Layout, Layout, Layout]:
        if "instr" in op.attrs:
            # The instruction's own layout, because products that share an accumulator may have different ones.
            a, b = operand_layouts(op)
            return a or self.natural(op.args[0]), b or self.natural(op.args[1]), op.attrs["layout"]
        # Plain multiply-adds read both operands from shared memory, so that any layout will do.
        return self.natural(op.args[0]), self.natural(op.args[1]), self.layout_of(op.result)
