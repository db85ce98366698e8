"""Layout conversions and reductions between warps, lowered to stores and loads of shared memory.

A conversion that moves data between warps becomes a store to a buffer and a load from it. The buffer's swizzle avoids bank conflicts on
both sides. A reduction across warps becomes three steps: reduce within each warp, convert the partial results so that every thread has
them, reduce those in registers. `shared_memory_allocation` gives the buffers their addresses later. Source: Zhou et al., "Linear
Layouts: Robust Code Generation of Efficient Tensor Computation Using F2" (arXiv 2505.23819).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blocknb.analysis.liveness import Liveness
from blocknb.analysis.residency import MOST_REGISTERS, resident
from blocknb.ir.build import Rebuild, emit_copy, rebuild
from blocknb.ir.core import Block, Func, Op, Users, Value, uses, walk
from blocknb.language.ops import ATOMICS, LOOPS
from blocknb.language.types import Buffer
from blocknb.layouts import convert, gf2
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import (
    MatrixAccess,
    SharedLayout,
    ldmatrix_plan,
    row_major,
    stmatrix_plan,
    swizzled,
    vector_access,
)
from blocknb.layouts.wgmma import ALIGNMENT
from blocknb.passes.memory import software_pipelining
from blocknb.passes.memory.operand_staging import buffer_layout
from blocknb.passes.memory.shared_memory_allocation import place
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.conversions_after_loops import is_close, kept_in_warps
from blocknb.passes.support.mma_operands import OperandBuffers, from_shared
from blocknb.passes.support.scans_of_warps import split_scans
from blocknb.passes.support.share_transposed_buffers import share_transposed
from blocknb.target import Target
from blocknb.trace import Notes

#: Every thread reads the partial results of up to this many warps; of more, each lane reads a part:
FEW_PARTIALS = 8
FEW_COSTLY = 2  # of a costly combine block
COSTLY = 6  # ops of a combine block that take longer than the shuffles of a few values

READ_TOGETHER = 4  # one access of 16 bytes
EARLY_STORE = 4096  # the most bytes that are stored before their first use, because their buffer and others are then live together


@gpu_pass()
def lower_conversions(func: Func, target: Target, notes: Notes) -> Func:
    """Lowers conversions and reductions between warps to shared memory

    When: always, on a GPU. From here on buffers are explicit.

    What: a conversion between warps becomes a store to a buffer and a load from it. The swizzle of the buffer avoids bank conflicts on
    both sides. A reduction across warps reduces in each warp first and exchanges one value per warp, and so does a scan. Operands of
    wgmma are stored to buffers that matrix descriptors can name. A loaded tile that joins a product's result gets a buffer that an
    asynchronous copy can fill.

    Why: later passes can copy into these buffers ahead of time, share them and place barriers.

    Limits: a conversion stays one if shuffles within warps cost less. It also stays one if shared memory costs only a little less, and its
    buffer has no room. Such a buffer would take a stage from the loop before it, or a CTA from the multiprocessor.

    Before:

        %m = reduce %v {axis=0} max : f32
        %w = convert %x : tile<64x64xf16, #b>

    After:

        %part = reduce %v {axis=0, keep=4, layout=#c} max : tile<4xf32, #c>
        %b0 = alloc : buffer<4xf32, #d>
        local_store %b0, %part
        %all = local_load %b0 : tile<4xf32, #e>
        %m = reduce %all {axis=0} max : f32
        %b1 = alloc : buffer<64x64xf16, #f>
        local_store %b1, %x
        %w = local_load %b1 : tile<64x64xf16, #b>
    """
    func = rebuild(func, split_reductions(func.attrs["num_warps"]), level="memory")
    func = rebuild(func, split_scans(notes))
    kept = kept_in_warps(func)
    kept |= displacing(func, target, kept, notes)
    return share_transposed(ConversionLowering(func, target, notes, kept).run(), notes)


# -- reductions across warps


def split_reductions(num_warps: int) -> Callable:
    """A visitor that rewrites a reduction over several warps as partial results, a conversion, and a reduction in registers."""

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name != "reduce" or "keep" in op.attrs:
            return NotImplemented
        axis, layout = op.attrs["axis"], op.args[0].type.layout
        across = [basis for basis in layout.warp if basis & layout.dim_mask(axis)]
        if not across:
            return NotImplemented
        keep = 1 << len(across)
        costly = len(op.blocks[0].ops) > COSTLY
        partial, gathered = layout.slice_partial(axis), gathered_layout(layout, axis, keep, costly)
        b = rebuild.builder
        first = b.op("reduce", *op.args, blocks=op.blocks, axis=axis, keep=keep, layout=partial)
        whole = [b.value("convert", x, layout=gathered) for x in first.results]
        for partial_result, gathered_result in zip(first.results, whole, strict=True):
            partial_result.name = gathered_result.name = "partial"
        last = emit_copy(op.replace(args=tuple(whole)), b, {})
        for old, new in zip(op.results, last.results, strict=True):
            assert new.type == old.type, f"{new.type} is not {old.type}"
        return last.results

    return visit


def gathered_layout(layout: Layout, axis: int, keep: int, costly: bool = False) -> Layout:
    """The layout of partial results: the axis, shrunk to `keep`, is in registers, and the rest as the reduction's result needs it.

    If a thread would hold many partial results, lanes with the same rest share the axis. A few shuffles then cost less than the registers
    and additions in each thread. From 16 warps on, the registers decide how many CTAs fit on a multiprocessor. A `costly` combine block
    takes longer than shuffles, so lanes share the axis earlier.
    """
    shape = (*layout.shape[:axis], keep, *layout.shape[axis + 1 :])
    bits, log_keep = layout.dim_bits(axis), keep.bit_length() - 1

    def move(basis: int) -> int:
        """The basis in the new shape; nothing if it lies on the axis."""
        if basis & layout.dim_mask(axis):
            return 0
        return (basis >> bits.stop << bits.start + log_keep) | (basis & ((1 << bits.start) - 1))

    along = [1 << bits.start + bit for bit in range(log_keep)]
    rest, lane = tuple(filter(None, map(move, layout.reg))), list(map(move, layout.lane))
    free = [bit for bit, basis in enumerate(lane) if not basis]
    if 1 << len(along) + len(rest) > (FEW_COSTLY if costly else FEW_PARTIALS):
        while free and 1 << len(along) > (2 if costly else READ_TOGETHER):
            lane[free.pop()] = along.pop()
    return Layout(shape, (*along, *rest), tuple(lane), tuple(map(move, layout.warp)))


# -- conversions


def displacing(func: Func, target: Target, kept: set[Value], notes: Notes) -> set[Value]:
    """The results of conversions that stay shuffles, too, because their buffers would displace a CTA from the SM. Shared memory would be
    only a little cheaper for them."""
    close = {op.result for op in func.ops() if op.name == "convert" and is_close(op)} - kept
    if not close:
        return set()
    warps = int(func.attrs["num_warps"])
    registers = min(MOST_REGISTERS, Liveness(func, target.warp_size * warps).most())
    lowered = (ConversionLowering(func, target, Notes(""), x).run() for x in (kept, kept | close))
    few, many = (resident(target, warps, registers, shared_bytes(x, target)) for x in lowered)
    if few >= many:
        return set()
    for op in func.ops():
        if op.results and op.results[0] in close:
            notes(op, f"conversion: by shuffles, because its buffer would leave room for {few} CTAs per SM, not {many}")
    return close


def shared_bytes(func: Func, target: Target) -> int:
    """The bytes of shared memory that a function takes after the passes that add buffers, or stages of them."""
    from blocknb.passes import ORDER, load  # which imports this module

    first, last = (ORDER.index(f"memory.{name}") for name in ("operand_staging", "shared_memory_allocation"))
    for entry in ORDER[first:last]:
        later = load(entry)
        if later.applies(func, target):
            func = later.run(func, target, Notes(later.name))
    return place(func)[1]


class ConversionLowering(Rebuild):
    """Lowers conversions between warps, and the operands of plain dots, to shared memory.

    It emits the code at the first use of a conversion in its block, or at the block's end, for all conversions needed there. All stores
    come first, then all loads. So earlier global loads are in flight together, and one barrier serves all conversions.
    """

    def __init__(self, func: Func, target: Target, notes: Notes, kept: set[Value]):
        super().__init__(func, self.lower)
        self.has_ldmatrix, self.has_stmatrix, self.notes = target.capability >= 75, target.capability >= 90, notes
        self.waiting: list[dict[Value, Op]] = [{}]
        self.ahead: dict[
            Value, tuple[Value, SharedLayout]
        ] = {}  # the buffers of delayed conversions whose operand is stored already
        self.used = uses(func)
        self.operands = OperandBuffers(self.builder, self.store)
        self.kept = kept  # the results of conversions that stay shuffles
        self.early = software_pipelining.tiles_to_stage(func, target)
        self.copied = copied_tiles(func, target, self.used)

    def one(self, op: Op) -> None:
        if op.name == "convert" and self.through_shared(op):
            self.waiting[-1][op.result] = op
            return
        if self.waiting[-1]:
            used = used_in(op)
            self.flush([v for v in self.waiting[-1] if v in used])
        if op.name in LOOPS:
            self.operands.before_loop(op, self.get)
        super().one(op)

    def block(self, block: Block, args: Sequence[Value] | None = None) -> Block:
        self.waiting.append({})
        self.operands.open()
        try:
            return super().block(block, args)
        finally:
            self.waiting.pop()
            self.operands.close()

    def ops(self, ops: Sequence[Op]) -> None:
        super().ops(ops)
        assert not self.waiting[-1], "a conversion without a use"

    def through_shared(self, op: Op) -> bool:
        """Whether a conversion uses shared memory: shuffles cannot do it, or `software_pipelining` may copy its operand."""
        source, target = op.args[0].type.layout, op.attrs["layout"]
        if op.args[0] in self.early:
            return source != target
        if op.result in self.kept:
            return False
        return source != target and convert.plan(source, target, max(8, op.result.type.dtype.bits)).kind == "shared"

    def flush(self, values: list[Value]) -> None:
        """Lowers the conversions that make these values. If an operand is itself a delayed conversion, it is lowered first."""
        ops = [self.waiting[-1].pop(v) for v in values]
        stored = []
        for op in ops:
            if op.args[0] in self.waiting[-1]:
                self.flush([op.args[0]])
            with self.builder.at(op):
                stored.append(self.ahead.pop(op.result) if op.result in self.ahead else self.store_for(op))
        if ops and all(map(is_one_dimensional, ops)):  # one barrier also serves tiles that are used later
            for op in self.waiting[-1].values():
                if is_one_dimensional(op) and op.args[0] not in self.waiting[-1] and op.result not in self.ahead:
                    with self.builder.at(op):
                        self.ahead[op.result] = self.store_for(op)
        for op, (buffer, layout) in zip(ops, stored, strict=True):
            with self.builder.at(op):
                self.mapping[op.result] = self.load_from(op, buffer, layout)

    def lower(self, op: Op, _: Rebuild) -> Any:
        if op.name == "convert" and op.args[0].type.layout == op.attrs["layout"]:
            return op.args
        if from_shared(op):
            self.builder.append(op.replace(args=self.operands.lower(op)))
            return op.results
        if op.name == "dot" and "instr" not in op.attrs:
            self.builder.append(op.replace(args=(*self.operands.plain(op), op.args[2])))
            return op.results
        if op.name in ATOMICS and op.result in self.used:
            kind = op.args[0].type
            if not kind.shape or kind.layout.is_replicated:
                return self.share_result(op)
        if op.name == "gather" or (op.name == "flip" and self.crosses_warps(op)):
            buffer = self.store(op.args[0], row_major(op.args[0].type.shape), f"source of a {op.name}")
            attrs = dict(op.attrs) if op.name == "gather" else {**op.attrs, "layout": op.result.type.layout}
            self.builder.append(op.replace(args=(buffer, *op.args[1:]), attrs=attrs))
            return op.results
        return NotImplemented

    def share_result(self, op: Op) -> Any:
        """Emits an atomic whose owning threads leave the old values in shared memory for the other threads that need them."""
        b, kind = self.builder, op.result.type
        buffer = b.value("alloc", type=Buffer(kind.dtype, kind.shape, row_major(kind.shape)))
        buffer.name = op.result.name
        made = b.append(op.replace(args=(buffer, *op.args), results=()))
        self.notes(
            made, f"{op.name}: one thread executes it for each element, and shares the old value through shared memory"
        )
        loaded = b.op("local_load", buffer, layout=kind.layout)
        loaded.result.name = op.result.name
        return loaded.results

    def crosses_warps(self, op: Op) -> bool:
        layout = op.args[0].type.layout
        mask = op.attrs["mask"] << layout.dim_bits(op.attrs["axis"]).start
        return mask not in gf2.Span((*layout.reg, *layout.lane))

    def store_for(self, op: Op) -> tuple[Value, SharedLayout]:
        source = self.get(op.args[0])
        if (rows := crossed_rows(op.result, self.used)) is not None:
            layout = swizzled(source.type.shape, source.type.dtype.bits, (rows, 1 - rows))
            return self.store(source, layout, op.result.name or "operand", align=ALIGNMENT), layout
        if op.args[0] in self.copied:
            layout, align = buffer_layout(self.copied[op.args[0]]), ALIGNMENT
        else:
            near = convert.within_warps(source.type.layout, op.attrs["layout"])
            layout, align = (
                convert.choose_shared(
                    source.type.layout,
                    op.attrs["layout"],
                    max(8, op.result.type.dtype.bits),
                    store_matrix=self.has_stmatrix and near,
                    load_matrix=self.has_ldmatrix,
                    copied=op.args[0] in self.early,
                ),
                0,
            )
        stored = self.operands.stored[-1]
        operand, conversion = ((source, layout, tf32) for tf32 in (False, None))
        if operand in stored:
            return stored[operand], layout
        if conversion not in stored:
            stored[conversion] = self.store(source, layout, op.result.name or "conversion", align=align)
        return stored[conversion], layout

    def load_from(self, op: Op, buffer: Value, layout: SharedLayout) -> Value:
        target, bits = op.attrs["layout"], max(8, op.result.type.dtype.bits)
        loaded = self.builder.op("local_load", buffer, layout=target)
        loaded.result.name = op.result.name
        name = op.result.name or "conversion"
        plan = ldmatrix_plan(target, layout, bits) if self.has_ldmatrix else None
        self.notes(
            loaded, f"{name}: read {'by' if plan else 'as'} {instructions('ldmatrix', plan, target, layout, bits)}"
        )
        return loaded.result

    def store(self, value: Value, layout: SharedLayout, what: str, align: int = 0, tf32: bool = False) -> Value:
        """Stores `value` to a new buffer, rounded to `tf32` if requested. The buffer starts at a multiple of `align` bytes."""
        b = self.builder
        kind = Buffer(value.type.dtype, value.type.shape, layout)
        buffer = b.value("alloc", type=kind, **({"align": align} if align else {}))
        buffer.name = value.name
        rounded: dict[str, Any] = {"tf32": True} if tf32 else {}
        stored = b.op("local_store", buffer, value, **rounded)
        bits = max(8, value.type.dtype.bits)
        plan = stmatrix_plan(value.type.layout, layout, bits) if self.has_stmatrix and not tf32 else None
        how = instructions("stmatrix", plan, value.type.layout, layout, bits)
        self.notes(stored, f"{what}: {kind.bytes} bytes stored to shared memory as {how}")
        return buffer


def copied_tiles(func: Func, target: Target, used: Users) -> dict[Value, Op]:
    """The loads, by their tiles, in loops with products, if the tile is only converted to the layout of a product's result. An example is a
    tile from which a product is subtracted. An asynchronous copy may bring them to the buffer of the conversion."""
    results = {op.result.type.layout for op in func.ops() if op.name == "dot"}

    def is_copied(load: Op) -> bool:
        kind, users = load.result.type, [user for user, _ in used.get(load.result, ())]
        large = len(kind.shape) == 2 and min(kind.shape) > 1
        return large and all(user.name == "convert" and user.attrs["layout"] in results for user in users)

    loops = software_pipelining.product_loops(func, target)
    loads = (op for loop in loops for op in loop.blocks[0].ops if op.name == "load")
    return {load.result: load for load in loads if is_copied(load)}


def crossed_rows(value: Value, used: Users) -> int | None:
    """The axis of a tile that holds the rows of an operand A which wgmma reads with permuted rows; None for any other tile."""
    users = used.get(value, ())
    if len(users) == 1 and users[0][0].name == "trans":
        (op, _) = users[0]
        found = crossed_rows(op.result, used)
        return None if found is None else op.attrs["perm"][found]
    if users and all(op.attrs.get("permuted_rows") and i == 0 for op, i in users):
        return 0
    return None


def is_one_dimensional(op: Op) -> bool:
    """Whether a conversion moves a short tile of one dimension, such as a number per row, so that its buffer may be stored early."""
    kind = op.result.type
    return sum(n > 1 for n in kind.shape) == 1 and kind.size * kind.dtype.bits <= 8 * EARLY_STORE


def instructions(name: str, plan: MatrixAccess | None, layout: Layout, shared: SharedLayout, bits: int) -> str:
    """The instructions that move a tile to or from a buffer, in words: those of the plan, or plain accesses if there is none."""
    if plan is None:
        access = vector_access(layout, shared, bits)
        return f"{access.vector * bits // 8}-byte accesses, {ways(access.wavefronts / access.ideal)}"
    count = len(plan.steps)
    conflicts = ways(plan.wavefronts / (count * plan.count))
    return f"{count} {name}.x{plan.count}{'.trans' if plan.trans else ''} per thread, {conflicts}"


def ways(conflicts: float) -> str:
    """Bank conflicts in words: the factor by which they slow an access."""
    return "no bank conflicts" if conflicts == 1 else f"{conflicts:g}-way bank conflicts"


def used_in(op: Op) -> set[Value]:
    """All values that an op or its nested blocks use."""
    used = set(op.args)
    for block in op.blocks:
        for inner in walk(block):
            used.update(inner.args)
    return used
