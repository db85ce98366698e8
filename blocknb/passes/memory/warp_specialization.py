"""Warp specialization: a producer warp copies tiles, and consumer warps multiply them.

The pass splits the function in two. The *producer*, one more warp, keeps the loops, the loads of operands, and the scalars that compute
their addresses. The *consumers* keep the rest. TMA fills a circular buffer in shared memory for each load. Two mbarriers guard each stage.
A phase of `full` ends when the bytes have arrived. A phase of `empty` ends when every consumer warp has released the stage. Both sides
count stages and phases. So a buffer continues from one loop to the next, and from one program to the next in a persistent kernel.

The producer runs ahead as far as there are free stages; no schedule is needed. `analysis.tma_boxes` finds the loads that TMA can do, and
`pipelining/backward_slice` the scalars that the producer needs. Source: Bauer, Cook and Khailany, "CudaDMA" (SC 2011); CUTLASS's
warp-specialized kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blocknb.analysis import ranges, tma_boxes
from blocknb.analysis.polynomials import of_launch
from blocknb.analysis.tma_boxes import TmaBox
from blocknb.ir.core import Block, Func, Op, Value, blocks, within
from blocknb.language.bulk import MOST_EXTENT, TensorMap
from blocknb.language.types import Buffer, Tile
from blocknb.layouts import wgmma
from blocknb.layouts.shared import swizzled
from blocknb.passes.memory.shared_memory_allocation import place
from blocknb.passes.pipelining import multicast
from blocknb.passes.pipelining.backward_slice import ProducerSlice, atoms
from blocknb.passes.pipelining.legality import PipeliningLegality, accumulating_products, why_none_within
from blocknb.passes.pipelining.staged_tiles import VIEWS, StagedTile, final_users, source_loads, staged_tile
from blocknb.passes.pipelining.warp_partition import WarpPartition
from blocknb.passes.pipelining.warp_plan import CopyGroup, TmaCopy, WarpSpecializationPlan
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.mma_operands import from_shared
from blocknb.passes.support.note_text import at_line
from blocknb.passes.tile.simplify import tidy
from blocknb.target import CLUSTER, Target
from blocknb.trace import Notes

MOST_STAGES = 8
SWIZZLE_ROWS = 8  # rows after which the pattern of a swizzle repeats
WIDEST = 128  # bytes of a row under a swizzle
MOST_WARPS = 32  # per CTA
ONE_CTA = 8  # consumer warps that occupy a multiprocessor without a second CTA
#: The limits by number of consumer warps, and the shares of consumers and producer. A limit is the registers per thread for products'
#: results and operands. Beyond it, `setmaxnreg` gives roles different shares of the register file. Each warp above eight leaves 168
#: registers to all threads, above sixteen 96. The shares must not exceed what the CTA began with, 168 or 96 per thread; otherwise a warp
#: waits for registers forever. A warpgroup releases registers together, so the producer is then a warpgroup, of which a single warp works.
#: With four consumer warps a CTA begins with 128 registers per thread, so that a multiprocessor holds two.
SETMAXNREG_FROM = {4: 88, 8: 127, 16: 64}
SETMAXNREG = {4: (232, 24), 8: (240, 24), 16: (112, 32)}
SETMAXNREG_FROM_COMPUTED = 64  # the threshold for eight warps and more if an operand is also computed in registers
MOST_OF_TWO = 224  # registers for results and operands of each of two CTAs; with more, ptxas would spill


def applies(func: Func, target: Target) -> bool:
    """Whether a product reads an operand from shared memory, which TMA might fill."""
    return target.arch == "sm_90a" and any(from_shared(op) for op in func.ops())


def requests(func: Func) -> list[Op]:
    """The loops of `tl.range(..., warp_specialize=True)`."""
    return [op for op in func.ops() if op.name == "for" and op.attrs.get("warp_specialize")]


@gpu_pass(optional=True, applies=lambda func, target: applies(func, target) or bool(requests(func)))
def warp_specialization(func: Func, target: Target, notes: Notes) -> Func:
    """Splits warps into a producer that copies by TMA and consumers that multiply

    When: the target is sm_90a, and a product reads tiles from shared memory that are boxes of an array. They are loaded by a tensor
    descriptor, or by pointers with a mask that is the array's bounds.

    What: one more warp, the producer, copies tiles by TMA into circular buffers. They have `num_stages` stages, by default as many
    as shared memory holds, at most 8. Two mbarriers per stage say when it is full and when it is empty.

    Why: the producer runs ahead as far as there are stages, so products seldom wait for memory, and the consumers spend no instructions on
    copies.

    Limits: an array that the kernel writes is not copied (two arguments are assumed to be two arrays). Other loads stay with the
    consumers. Notes say why a load is not copied, and why a loop of `tl.range(..., warp_specialize=True)` has no producer.

    Before:

        %v = load %p, %mask : tile<64x64xf16, #a>
        local_store %buffer, %v
        %c = dot %x, %buffer, %acc {instr="wgmma.m64n64k16"} : tile<64x64xf32, #b>

    After:

        roles {warps=(4, 1)} {
          await %full, %stage, %parity
          %tile = stage %buffers, %stage : buffer<64x64xf16, #c>
          %c = dot %x, %tile, %acc {instr="wgmma.m64n64k16"} : tile<64x64xf32, #b>
          arrive %empty, %stage
        } {
          await %empty, %stage, %parity
          expect %full, %stage {bytes=8192}
          copy_bulk %to, %map, %full, %stage, %row, %column {axes=(0, 1)}
        }
    """
    made, copied = specialized(func, target, notes) if applies(func, target) else (func, [])
    for loop in requests(func):
        if not any(op in copied for op in within(loop)):
            notes(loop, f"not warp-specialized: {why_no_producer(func, target)}", "missed")
    return made


def why_no_producer(func: Func, target: Target) -> str:
    """The reason why a producer warp copies nothing in a loop."""
    if target.arch != "sm_90a":
        return f"blocknb does this on sm_90a only, and the target is {target.arch}"
    if not applies(func, target):
        return "no product reads an operand from shared memory by wgmma"
    return "no load in it is copied by TMA; the notes on its loads say why"


def specialized(func: Func, target: Target, notes: Notes) -> tuple[Func, list[Op]]:
    """The function with warp roles, or as it is; and the loads that the producer warp copies."""
    planner = WarpSpecializationPlanner(func, notes)
    copies = planner.whole(planner.recomputable(planner.copies()))
    clusters = func.attrs.get("num_ctas") == CLUSTER
    if clusters:
        copies = multicast.shared(planner.facts, copies, func)
    made = None
    if not clusters and planner.suit_two():
        made = fitted(planner, planner.plan(copies, two=True), Notes(notes.origin), target)
    if made is None:
        made = fitted(planner, planner.plan(copies), notes, target)
    if made is None:
        return func, []
    plan, partitioned = made
    plan.explain(notes)
    return partitioned, [copy.load for group in plan.groups for copy in group.copies]


def fitted(
    planner: WarpSpecializationPlanner, plan: WarpSpecializationPlan | None, notes: Notes, target: Target
) -> tuple[WarpSpecializationPlan, Func] | None:
    """The plan with as many stages as shared memory holds, and the function that it makes; None if there is no room."""
    others = 0
    while plan is not None:
        while plan is not None and others + plan.bytes > plan.most(target):
            plan = plan.smaller(notes)
        if plan is None:
            break
        made = tidy(WarpPartition(planner.func, plan, planner.facts, planner.needed.values).run())
        total = place(made)[1]
        if total <= plan.most(target):
            return plan, made
        others = total - plan.bytes  # circular buffers share their bytes with no other buffer
    return None


def operand_registers(product: Op) -> int:
    """The registers per thread for the A of a product, if it is in registers."""
    a = product.args[0].type
    return a.layout.num_registers * a.dtype.bytes // 4 if isinstance(a, Tile) else 0


class WarpSpecializationPlanner(PipeliningLegality):
    """Finds the loads that TMA can copy. It notes the reasons against the others."""

    def __init__(self, func: Func, notes: Notes):
        super().__init__(func, notes)
        self.needed = ProducerSlice(self.facts, self.why_not_copied)
        self.block = {op: block for block in blocks(func.body) for op in block.ops}

    def refuse_copy(self, load: Op, why: str) -> None:
        """Notes why the producer warp does not copy a tile; `software_pipelining` may still do."""
        self.notes(load, f"not pipelined by TMA: {why}", "missed")

    def plan(self, copies: Sequence[TmaCopy], two: bool = False) -> WarpSpecializationPlan | None:
        """The plan, or None if no loop repeats a copy. `two`: for one of two CTAs on a multiprocessor."""
        groups = list(self.groups(copies))
        if not any(self.in_loop(group) for group in groups):
            for copy in copies if not two else ():
                self.refuse_copy(copy.load, "no loop of several iterations repeats a copy")
            return None
        self.share(groups, two)
        persistent = bool(self.func.attrs.get("persist"))
        consumer_groups = 2 if persistent and self.take_turns(groups) else 1
        if two:
            return (
                None
                if consumer_groups > 1
                else WarpSpecializationPlan(groups, persistent, False, SETMAXNREG[wgmma.GROUP])
            )
        warps = consumer_groups * self.func.attrs["num_warps"]
        for group in groups:
            group.stages = group.wanted_stages = min(MOST_STAGES, consumer_groups * group.stages)
            if persistent and warps >= ONE_CTA and group.loop is None and group.shared_with is None:
                group.stages = 2  # copies of the next program begin while this one computes
        many = self.held() > SETMAXNREG_FROM.get(warps, 0) or any(map(self.is_epilogue_load, self.func.ops()))
        many |= any(group.computed for group in groups) and self.held() >= SETMAXNREG_FROM_COMPUTED
        registers = SETMAXNREG.get(warps) if many and warps >= ONE_CTA else None
        return WarpSpecializationPlan(groups, persistent, warps >= ONE_CTA, registers, consumer_groups)

    def suit_two(self) -> bool:
        """Whether a multiprocessor holds two CTAs only if roles get different shares of the register file, and holds them then."""
        if self.func.attrs["num_warps"] != wgmma.GROUP or self.held() <= SETMAXNREG_FROM[wgmma.GROUP]:
            return False
        return all(self.held_in(block) <= MOST_OF_TWO for block in {self.block[op] for op in self.products()})

    def held_in(self, block: Block) -> int:
        """The registers that a block's products hold. In a loop of two products, the second one's operand is also carried
        (`mma_softmax_overlap`)."""
        products = [op for op in block.ops if op.name == "dot"]
        return sum(map(self.held_by, products)) + (operand_registers(products[1]) if len(products) == 2 else 0)

    def copies(self) -> list[TmaCopy]:
        """The copies for all operands in shared memory whose tiles are boxes of arrays."""
        why = self.why_no_copy_at_all()
        stores = [op for op in self.func.ops() if op.name == "local_store" and self.defs[op.args[0]].attrs.get("align")]
        tiles = {store: staged_tile(self.defs, store) for store in stores}
        staged = {tile.load for tile in tiles.values() if tile is not None}
        copies = []
        for store, tile in tiles.items():
            if tile is None:
                for load in source_loads([store.args[1]], self.block[store], self.defs, self.users):
                    if load not in staged:
                        self.refuse_copy(load, "an operand is computed from it")
            elif isinstance(found := why or self.copy(tile), TmaCopy):
                copies.append(found)
            else:
                self.refuse_copy(tile.load, found)
        return copies

    def take_turns(self, groups: list[CopyGroup]) -> bool:
        """Whether two groups of consumer warps, of one warpgroup and one program each, can take turns: one multiplies while the other
        stores. Only one of them uses the tensor cores at a time, so the loops must consist of products."""
        if self.func.attrs["num_warps"] != wgmma.GROUP:
            return False
        return all(
            group.outlasting
            and group.shared_with is None
            and group.loop is not None
            and group.loop.blocks[0] is group.block
            and self.facts.parent[group.loop] is None
            and all(of_launch(self.facts, value) for value in group.loop.args[:3])
            and ranges.bounds(self.facts, group.loop.args[2])[0] > 0  # otherwise the number of iterations differs
            for group in groups
        )

    def is_epilogue_load(self, op: Op) -> bool:
        """Whether the kernel loads part of a tile to combine it with a product's result."""
        made = self.defs.get(op.args[0]) if op.name == "load" else None
        return made is not None and made.name == "part"

    def products(self) -> list[Op]:
        return [op for op in self.func.ops() if op.name == "dot"]

    def held(self) -> int:
        """The registers per thread for the results and operands of products that are live at the same time."""
        with_products = {self.block[op] for op in self.products()}
        return max(sum(map(self.held_by, block.ops)) for block in with_products)

    def held_by(self, op: Op) -> int:
        return op.result.type.layout.num_registers + operand_registers(op) if op.name == "dot" else 0

    def why_no_copy_at_all(self) -> str:
        """The reason why the producer cannot copy anything in this function."""
        if self.func.attrs["num_warps"] >= MOST_WARPS:
            return f"a CTA has {MOST_WARPS} warps at most"
        for op in self.func.ops():
            if op.name == "while":  # the partition into roles does not split one
                return f"the `while`{at_line(op)} may wait for other programs"
        return why_none_within(op for top in self.tops_up_to_products() for op in within(top))

    def tops_up_to_products(self) -> list[Op]:
        """The ops of the function's own block up to the last one that multiplies. The other ops run after all copies."""
        tops = list(self.func.body.ops)
        last = max((i for i, top in enumerate(tops) if any(op.name == "dot" for op in within(top))), default=-1)
        return tops if self.func.attrs.get("persist") else tops[: last + 1]

    def why_not_copied(self, load: Op) -> str:
        """The reason why the producer may not read an array at another time than the consumers would."""
        return self.why_not_read_early(load, self.func.ops())

    # -- one load

    def copy(self, tile: StagedTile) -> TmaCopy | str:
        """The copy that brings a tile to its buffer, or the reason why there is none."""
        load, store = tile.load, tile.store
        if any(op.name != "local_store" for op in final_users(self.users, load.result)):
            return "it is used in registers, too"
        if self.block[load] is not self.block[store]:
            return "it is not always used"
        if why := self.why_not_copied(load):
            return why
        readers = self.readers(tile.buffer)
        if not readers or any(op.name not in ("dot", "local_load") for op in readers):
            return "not only products read it"
        box = tma_boxes.box_of(self.facts, load)
        if isinstance(box, str):
            return box
        if why := self.needed.add(value for poly in box.start for value in atoms(poly)):
            return why
        axes = self.axes(tile, box)
        return "its axes are joined or split on their way" if axes is None else self.fitted(tile, box, axes, readers[0])

    def fitted(self, tile: StagedTile, box: TmaBox, axes: tuple[int, ...], reader: Op) -> TmaCopy | str:
        """The copy, if TMA can write the layout of the buffer; else the reason."""
        buffer: Buffer = tile.buffer.type
        if reader.name == "dot" and tile.buffer in reader.args:
            reads = reader.args.index(tile.buffer)
            side = wgmma.storage_side(reads, reader.attrs.get("transposed", ()))
            part = wgmma.part(buffer.shape[side], reads, reader.attrs["warps"])
            lies = wgmma.describe(buffer.layout, buffer.dtype.bits, side, part)
            assert lies is not None, "the verifier has seen the descriptor"
            inner, width = side if lies.mn_major else 1 - side, lies.width
        else:  # warps read the tile into registers: see `wgmma.permuted_rows` and the pass `operand_staging`
            inner = next(i for i in (0, 1) if buffer.layout == swizzled(buffer.shape, buffer.dtype.bits, (i, 1 - i)))
            width = min(WIDEST, buffer.shape[inner] * buffer.dtype.bytes)
        if axes[inner] != len(box.dims) - 1:
            return "its neighbours in memory are not neighbours in the buffer that wgmma reads"
        needed, extents = self.needed_extents(tile.buffer, inner, width // buffer.dtype.bytes), [1] * len(box.dims)
        for axis, (extent, to) in enumerate(zip(needed, axes, strict=True)):
            extents[to] = width // buffer.dtype.bytes if axis == inner else min(MOST_EXTENT, extent)
        kind = TensorMap(buffer.dtype, tuple(extents), width if width >= 32 else 0)
        return TmaCopy(tile.load, tile.views, tile.store, box, kind, axes, needed)

    def needed_extents(self, buffer: Value, inner: int, panel: int) -> tuple[int, ...]:
        """The number of elements along each axis of a buffer that its products read. It is a number of whole panels along the inner axis.
        Along the other axis it is a multiple of the rows after which a swizzle repeats in both halves."""
        shape, readers = buffer.type.shape, self.readers(buffer)
        products = [x for x in readers if x.name == "dot" and x.args[1] is buffer and "columns" in x.attrs]
        if len(products) < len(readers) or len({x.attrs.get("transposed", ()) for x in products}) > 1:
            return shape
        axis = wgmma.storage_side(1, readers[0].attrs.get("transposed", ()))
        unit = panel if axis == inner else 2 * SWIZZLE_ROWS
        used = -(-max(x.attrs["columns"] for x in products) // unit) * unit
        return tuple(min(n, used) if i == axis else n for i, n in enumerate(shape))

    def readers(self, buffer: Value) -> list[Op]:
        """The ops that need a buffer: its products, also those that read operand A into registers. For a tile that warps compute with,
        these are its loads from shared memory."""
        direct = [op for op, _ in self.users[buffer] if op.name != "local_store"]
        found = list(direct)
        for op in found:
            if op.name in ("local_load", *VIEWS):
                found += [user for user, _ in self.users[op.result]]
        last = [op for op in found if op.name not in ("local_load", *VIEWS)]
        return last if all(op.name == "dot" for op in last) else direct

    def axes(self, tile: StagedTile, box: TmaBox) -> tuple[int, ...] | None:
        """The array's axis for each axis of the stored tile; None if views join or split axes."""
        long = iter(box.axes)
        axes: list[int | None] = [next(long) if n > 1 else None for n in tile.load.result.type.shape]
        for op in tile.views:
            if op.name == "trans":
                axes = [axes[i] for i in op.attrs["perm"]]
                continue
            before, after = op.args[0].type.shape, op.result.type.shape
            if [n for n in before if n > 1] != [n for n in after if n > 1]:
                return None
            kept = iter(axis for axis, n in zip(axes, before, strict=True) if n > 1)
            axes = [next(kept) if n > 1 else None for n in after]
        known = tuple(axis for axis in axes if axis is not None)
        return known if len(known) == len(axes) else None

    # -- all loads

    def recomputable(self, copies: list[TmaCopy]) -> list[TmaCopy]:
        """The copies whose loops and conditions the producer can recompute."""
        found = []
        for copy in copies:
            parent, why = self.facts.parent[copy.load], ""
            while parent is not None and not why:
                why = self.needed.add(parent.args[: 3 if parent.name == "for" else None])
                parent = self.facts.parent[parent]
            if why:
                self.refuse_copy(copy.load, why)
            else:
                found.append(copy)
        return found

    def whole(self, copies: list[TmaCopy]) -> list[TmaCopy]:
        """The copies whose loads no other store needs (fp32 operands may need two). Otherwise the consumers would load the tile anyway."""
        stores = {copy.store for copy in copies}
        found = [copy for copy in copies if final_users(self.users, copy.load.result) <= stores]
        for copy in copies:
            if copy not in found:
                self.refuse_copy(copy.load, "its tile is also stored in another way")
        return found

    def groups(self, copies: Sequence[TmaCopy]) -> Iterator[CopyGroup]:
        """The copies of a block that are first read at the same place, as one group each."""
        found: dict[tuple[Block, int], list[TmaCopy]] = {}
        for copy in copies:
            block = self.block[copy.load]
            found.setdefault((block, self.position(copy.buffer, block)[0]), []).append(copy)
        buffers = [copy.buffer for copy in copies]
        for (block, _), together in found.items():
            loop = parent = self.facts.parent[together[0].load]
            while loop is not None and loop.name != "for":
                loop = self.facts.parent[loop]
            named = None if loop is None else loop.attrs.get("num_stages", self.func.attrs.get("num_stages"))
            stages = 1 if loop is None else MOST_STAGES if named is None else max(1, int(named))
            if loop is not None:
                stages = min(stages, max(1, ranges.iterations(self.facts, loop)[1]))
            last = block.ops[max(self.position(copy.buffer, block)[1] for copy in together)]
            products = accumulating_products(parent, buffers) if parent is not None and parent.name == "for" else ()
            # With one stage, the next wait would come before the product that releases that stage has started.
            if stages == 1 or not any(copy.buffer in op.args for op in products for copy in together):
                products = ()
            computed = any(x.name == "local_load" for copy in together for x in self.readers(copy.buffer))
            yield CopyGroup(together, block, loop, stages, stages, named is not None, last, products, computed=computed)

    def position(self, buffer: Value, block: Block) -> tuple[int, int]:
        """The positions in a block of the first and the last op that reads a buffer. A tile that warps compute with is released after
        the last product, because all threads have read it by then."""
        readers = set(self.readers(buffer))
        places = [
            i
            for i, op in enumerate(block.ops)
            if any(x in readers for x in within(op))
            or (op.name == "dot_wait" and any(x.result in op.args for x in readers))
        ]
        if any(op.name == "local_load" for op in readers):
            places += [i for i, op in enumerate(block.ops) if any(x.name == "dot" for x in within(op))]
        return places[0], max(places)

    def in_loop(self, group: CopyGroup) -> bool:
        """Whether a group is copied repeatedly while its products run."""
        return group.loop is not None and ranges.iterations(self.facts, group.loop)[1] > 1

    def overlap(self, first: CopyGroup, second: CopyGroup, frugal: bool) -> bool:
        """Whether a group may be copied before the consumers have released the group before it; if `frugal`, only if it must."""
        if frugal and first.block is second.block:
            at = first.block.ops.index
            return min(at(copy.load) for copy in second.copies) <= at(first.last_reader)
        return second.block in blocks(first.block) or first.block in blocks(second.block)

    def share(self, groups: list[CopyGroup], frugal: bool) -> None:
        """Lets groups of consecutive loops share a circular buffer, because their stages are filled and released in order. `frugal`: so
        do groups of one block, of which the second is then copied after the release of the first."""
        for i, group in enumerate(groups):
            for other in groups[:i]:
                users = [x for x in groups[:i] if x is other or x.shared_with is other]
                apart = not any(self.overlap(x, group, frugal) for x in users)
                if other.shared_with is None and other.key == group.key and apart:
                    group.shared_with, other.stages = other, max(other.stages, group.stages)
                    other.wanted_stages, other.user_stages = other.stages, other.user_stages or group.user_stages
                    break
