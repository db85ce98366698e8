"""Operand staging: a tile from which an operand is computed goes through a buffer of its own.

The product does not multiply weights of few bits or unscaled rows directly, so they cannot be copied to the operand's buffer. If the loop
loads them when it needs them, the product waits for memory. If it loads them an iteration ahead, they take registers that large tiles do
not leave. So this pass stores the tile to a buffer as loaded, and the computation reads it back. `warp_specialization` and
`software_pipelining` turn this store into a copy some iterations ahead.

The pass stages only loads that `software_pipelining` could copy, because staging alone costs time. Shared memory must have room for two
stages of everything that the loop copies; otherwise the largest tiles stay in registers. CUTLASS does the same for mixed-input GEMM.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from blocknb.ir.build import Rebuild, current_origin, rebuild
from blocknb.ir.core import Func, Op, Value, definitions, uses, within
from blocknb.language.types import Buffer, Tile
from blocknb.layouts import wgmma
from blocknb.layouts.shared import swizzled
from blocknb.layouts.wgmma import ALIGNMENT
from blocknb.passes.memory.software_pipelining import PipelinePlanner, applies, product_loops
from blocknb.passes.pipelining.staged_tiles import only_stored, operand_source_loads
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes

LEAST_OF_ROW = 16  # the same for a tile of one row
LEAST = 512  # bytes of the smallest tile that is staged


def size(value: Value) -> int:
    """The bytes of a tile."""
    return value.type.size * value.type.dtype.bytes


@gpu_pass(optional=True, applies=applies)
def operand_staging(func: Func, target: Target, notes: Notes) -> Func:
    """Stages the data from which operands are computed in shared memory

    When: a loop with products loads a tile and computes an operand from it, such as weights of few bits or scaled rows.

    What: the tile is stored to a buffer as it was loaded, and read back into the same registers. `warp_specialization` and
    `software_pipelining` then turn the store into an asynchronous copy.

    Why: a tile that is computed with cannot be copied to where the product reads it. Loaded in the iteration that needs it, the product
    waits for memory; loaded ahead, it takes registers.

    Limits: only for tiles of at least 512 bytes that can be copied ahead. If shared memory has no room for two stages of everything that
    the loop copies, the largest tiles stay in registers.

    Before:

        %w = load %p : tile<64x64xi8, #a>
        %x = cast %w : tile<64x64xf16, #a>
        local_store %operand, %x
        %c = dot %y, %operand, %acc : tile<64x64xf32, #b>

    After:

        %w = load %p : tile<64x64xi8, #a>
        %staged = alloc {align=1024} : buffer<64x64xi8, #c>
        local_store %staged, %w
        %v = local_load %staged : tile<64x64xi8, #a>
        %x = cast %v : tile<64x64xf16, #a>
        local_store %operand, %x
        %c = dot %y, %operand, %acc : tile<64x64xf32, #b>
    """
    kept, staged = computed_from(func, target), func
    while kept:
        staged = stage_loads(func, kept)
        planner = PipelinePlanner(staged, target, Notes(current_origin()))
        planner.block(staged.body)
        copied = {copy.load.id for plan in planner.plans.values() for copy in plan.copies}
        if not copied.issuperset(op.id for op in kept):
            kept = [op for op in kept if op.id in copied]
        elif planner.least_shared_bytes() > target.max_shared:
            largest = max(kept, key=lambda op: size(op.result))
            kept.remove(largest)
            notes(largest, "not staged: shared memory has no room for two of its tiles", "missed")
        else:
            break
    for op in kept:
        notes(op, f"{size(op.result)} bytes through shared memory: an operand is computed from them")
    return staged if kept else func


def computed_from(func: Func, target: Target) -> list[Op]:
    """The loads, in loops with products, of large two-dimensional tiles from which the loop computes operands."""
    defs, users = definitions(func), uses(func)

    def worth_it(load: Op) -> bool:
        kind = load.result.type
        if len(kind.shape) != 2 or kind.is_pointer or kind.dtype.bits < 8:
            return False
        least = LEAST if min(kind.shape) > 1 else LEAST_OF_ROW
        return size(load.result) >= least and not only_stored(users, load.result)

    loops = product_loops(func, target)
    return [load for loop in loops for load in operand_source_loads(loop, defs, users, axes(loop)) if worth_it(load)]


def axes(loop: Op) -> int:
    """The least number of axes of the tiles to stage: rows, such as scales, are staged for products of single warps. The producer warp
    of other products copies boxes, and their rows are loaded into registers (`register_prefetch`)."""
    return 2 if any(wgmma.is_name(op.attrs.get("instr", "")) for op in within(loop)) else 1


def stage_loads(func: Func, loads: Collection[Op]) -> Func:
    """The function with the tiles of some loads stored and read back."""
    wanted = {op.id for op in loads}

    def visit(op: Op, made: Rebuild) -> Any:
        if op.id not in wanted:
            return NotImplemented
        b = made.builder
        value = b.append(op).result
        buffer = b.value("alloc", type=Buffer(value.type.dtype, value.type.shape, buffer_layout(op)), align=ALIGNMENT)
        b.op("local_store", buffer, value)
        read = b.value("local_load", buffer, layout=value.type.layout)
        buffer.name = read.name = value.name
        return [read]

    return rebuild(func, visit) if wanted else func


def buffer_layout(load: Op) -> Any:
    """The layout of a tile's buffer: rows as in memory, with a swizzle that TMA supports."""
    kind: Tile = load.result.type
    layout = kind.layout
    first = layout.reg[0] if layout.reg and load.attrs.get("vec", 1) > 1 else layout.lane[0]
    inner = 1 if first & layout.dim_mask(1) else 0
    return swizzled(kind.shape, kind.dtype.bits, (inner, 1 - inner))
