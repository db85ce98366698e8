"""Operand staging: a tile from which an operand is computed goes through a buffer of its own.

The product does not multiply weights of few bits or unscaled rows directly, so they cannot be copied to the operand's buffer. If the loop
loads them when it needs them, the product waits for memory. If it loads them an iteration ahead, they take registers that large tiles do
not leave. So this pass stores the tile to a buffer as loaded, and the computation reads it back. `warp_specialization` and
`software_pipelining` turn this store into a copy some iterations ahead.

The pass stages only loads that `software_pipelining` could copy, because staging alone costs time. Shared memory must have room for two
stages of everything that the loop copies; otherwise the largest tiles stay in registers. CUTLASS does the same for mixed-input GEMM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from blocknb.ir.build import Rebuild, current_origin, rebuild
from blocknb.ir.core import Func, Op, Value, definitions
from blocknb.ir.traversal import reachable
from blocknb.language.ops import STRUCTURED
from blocknb.language.types import Buffer, Tile
from blocknb.layouts.shared import swizzled
from blocknb.layouts.wgmma import ALIGNMENT
from blocknb.passes.memory import software_pipelining
from blocknb.passes.memory.software_pipelining import applies
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.stages import VIEWS
from blocknb.target import Target
from blocknb.trace import Notes

LEAST = 1024  # bytes of the smallest tile that is staged


def size(value: Value) -> int:
    """The bytes of a tile."""
    return value.type.size * value.type.dtype.bytes


@gpu_pass(optional=True, applies=applies)
def operand_staging(func: Func, target: Target, notes: Notes) -> Func:
    """Stages tiles that operands are computed from in shared memory

    When: a loop with products loads a tile and computes an operand from it, such as weights of few bits or scaled rows.

    What: the tile is stored to a buffer as it was loaded, and read back into the same registers. `warp_specialization` and
    `software_pipelining` then turn the store into an asynchronous copy.

    Why: a tile that is computed with cannot be copied to where the product reads it. Loaded in the iteration that needs it, the product
    waits for memory; loaded ahead, it takes registers.

    Limits: only for tiles of at least 1024 bytes that can be copied ahead. If shared memory has no room for two stages of everything that
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
    kept, staged = StagedLoadFinder(func, target).loads(), func
    while kept:
        staged = through(func, kept)
        planner = software_pipelining.PipelinePlanner(staged, target, Notes(current_origin()))
        planner.block(staged.body)
        copied = {copy.load.id for plan in planner.plans.values() for copy in plan.copies}
        if not copied.issuperset(op.id for op in kept):
            kept = [op for op in kept if op.id in copied]
        elif software_pipelining.least(staged, planner) > target.max_shared:
            largest = max(kept, key=lambda op: size(op.result))
            kept.remove(largest)
            notes(largest, "not staged: shared memory has no room for two of its tiles", "missed")
        else:
            break
    for op in kept:
        notes(op, f"{size(op.result)} bytes through shared memory: an operand is computed from them")
    return staged if kept else func


class StagedLoadFinder:
    """Finds the loads, in loops with products, from which operands are computed."""

    def __init__(self, func: Func, target: Target):
        self.func, self.defs = func, definitions(func)
        self.planner = software_pipelining.PipelinePlanner(func, target, Notes(current_origin()))

    def loads(self) -> list[Op]:
        return [op for loop in self.planner.loops for op in self.of(loop)]

    def of(self, loop: Op) -> list[Op]:
        """The staged loads of a loop's own block."""
        own = set(loop.blocks[0].ops)

        def makers(values: Iterable[Value]) -> list[Op]:
            found = [op for op in map(self.maker, values) if op in own]
            return [op for op in found if op.name != "dot" and op.name not in STRUCTURED]

        multiplied = [value for op in own if op.name == "dot" for value in op.args[:2]]
        seen = set(reachable(makers(multiplied), lambda op: () if op.name == "load" else makers(op.args)))
        return [op for op in loop.blocks[0].ops if op in seen and op.name == "load" and self.wanted(op)]

    def maker(self, value: Value) -> Op | None:
        """The op that makes a tile, or that makes the value in the buffer from which it is read."""
        op = self.defs.get(value)
        if op is not None and op.name == "local_load":
            op = self.defs.get(op.args[0])
        if op is None or op.name != "alloc":
            return op
        stores = [x for x, _ in self.planner.users.get(op.result, ()) if x.name == "local_store"]
        return self.defs.get(stores[0].args[1]) if len(stores) == 1 else None

    def wanted(self, load: Op) -> bool:
        """Whether a load brings a large two-dimensional tile that the loop computes with."""
        kind = load.result.type
        if len(kind.shape) != 2 or min(kind.shape) == 1 or kind.is_pointer or kind.dtype.bits < 8:
            return False
        return size(load.result) >= LEAST and not self.only_stored(load.result)

    def only_stored(self, value: Value) -> bool:
        return all(
            op.name == "local_store" or (op.name in VIEWS and self.only_stored(op.result))
            for op, _ in self.planner.users.get(value, ())
        )


def through(func: Func, loads: Collection[Op]) -> Func:
    """The function with the tiles of some loads stored and read back."""
    wanted = {op.id for op in loads}

    def visit(op: Op, made: Rebuild) -> Any:
        if op.id not in wanted:
            return NotImplemented
        b = made.builder
        value = b.append(op).result
        buffer = b.value("alloc", type=Buffer(value.type.dtype, value.type.shape, lying(op)), align=ALIGNMENT)
        b.op("local_store", buffer, value)
        read = b.value("local_load", buffer, layout=value.type.layout)
        buffer.name = read.name = value.name
        return [read]

    return rebuild(func, visit) if wanted else func


def lying(load: Op) -> Any:
    """The layout of a tile's buffer: rows as in memory, with a swizzle that TMA supports."""
    kind: Tile = load.result.type
    layout = kind.layout
    first = layout.reg[0] if layout.reg and load.attrs.get("vec", 1) > 1 else layout.lane[0]
    inner = 1 if first & layout.dim_mask(1) else 0
    return swizzled(kind.shape, kind.dtype.bits, (inner, 1 - inner))
