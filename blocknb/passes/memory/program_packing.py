"""Program packing: several small programs share one CTA.

A multiprocessor holds a limited number of CTAs (32 on an H100), and each takes time to start. Programs of one warp fill at most half of
it. So a CTA takes several programs: a thread has an index in its program, and the program has an index in the CTA. The pass computes a
program's id from the CTA's id and that index; nothing else changes. Each launch decides how many programs share a CTA, as a divisor of
its grid. (Thread coarsening at the level of CTAs.)
"""

from __future__ import annotations

from blocknb.ir.core import Func, Op, walk
from blocknb.language.ops import ACCESSES
from blocknb.language.types import Pointer, Tile
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes

MOST_WARPS = 8  # of a CTA with several programs
#: Bytes that a program moves: an H200 starts one CTA in 0.66 ns, and 4 TB/s are 2.6 kB in that time. Packing saved a third of the time
#: for sums of two fp16 vectors with 256 numbers per program, and 17 % for softmax of 256 numbers; programs with 4 kB took 4 % more.
MOST_BYTES = 2 << 10
#: Ops that the threads of a CTA do together, or that use the thread's number in the CTA.
SHARED = {
    "barrier": "its warps share a barrier",
    "alloc": "its warps share memory",
    "asm": "its inline assembly may use the thread's number in the CTA",
}


def applies(func: Func, target: Target) -> bool:
    """Whether a program has few enough warps to share a CTA."""
    return func.attrs["num_warps"] <= MOST_WARPS // 4


@gpu_pass(optional=True, applies=applies)
def program_packing(func: Func, target: Target, notes: Notes) -> Func:
    """Packs several small programs into one CTA

    When: a program has one or two warps, no shared memory, no barriers between warps, and no accesses in loops or branches.

    What: several programs share a CTA of up to eight warps. The launch chooses the number. It is a power of two that divides the first axis
    of the grid, and a smaller one if multiprocessors would be idle.

    Why: a multiprocessor runs a limited number of CTAs, and each takes time to start.

    Limits: programs that load and store more than 2 KB keep a CTA each. The start of a CTA is a small part of their time. A note gives the
    reason.

    Before:

        func @add(%x: ptr<f16>, %y: ptr<f16>) memory {num_warps=1} {
          %pid = program_id 0 : i32
          %v = load %p : tile<256xf16, #a>
        }

    After:

        func @add(%x: ptr<f16>, %y: ptr<f16>) memory {num_warps=1, programs=8} {
          %pid = program_id 0 : i32
          %v = load %p : tile<256xf16, #a>
        }
    """
    alone = func.attrs["num_warps"] == 1  # then a warp barrier replaces the barrier
    reasons = [SHARED[op.name] for op in func.ops() if op.name in SHARED and not (alone and op.name == "barrier")]
    moved = sum(tile_bytes(op) for op in func.body.ops)
    if any(tile_bytes(op) for outer in func.body.ops for block in outer.blocks for op in walk(block)):
        reasons.append("it has accesses in loops or branches")
    elif moved > MOST_BYTES:
        reasons.append(f"it loads and stores {moved} bytes, and packing pays up to {MOST_BYTES}")
    if reasons:
        notes(None, f"one program per CTA: {reasons[0]}")
        return func
    programs = MOST_WARPS // func.attrs["num_warps"]
    notes(None, f"up to {programs} programs per CTA, because their warps share no data and never synchronise")
    return func.with_attrs(programs=programs)


def tile_bytes(op: Op) -> int:
    """The bytes that an access to a tile moves."""
    kinds = [x.type for x in op.args if isinstance(x.type, Tile) and x.type.shape and isinstance(x.type.dtype, Pointer)]
    return sum(kind.size * kind.dtype.element.bytes for kind in kinds) if op.name in ACCESSES else 0
