"""Operands A of wgmma that stay in registers during a loop, because every iteration reads the same tile.

wgmma reads A from shared memory again in each iteration. Narrow instructions wait for shared memory. With 64 columns A takes as many cycles
as B, and with 32 columns twice as many. The gradients of attention multiply the same keys and values, or queries and dout, in each
iteration.
"""

from __future__ import annotations

from collections.abc import Collection

from blocknb.ir.core import Func, Op, Value, definitions
from blocknb.language.types import Tile
from blocknb.layouts.wgmma import GROUP

MANY = 3  # products of a loop; with fewer, `mma_softmax_overlap` needs both operands in shared memory
WARPS = (GROUP, 2 * GROUP)  # threads of more warps have too few registers
MOST = 208  # registers of a thread for results and operands, so that none spills


def kept_in_registers(func: Func, computed: Collection[Value]) -> set[Value]:
    """The tiles that loops multiply as A, that are loaded before them, and for which there are registers. `computed`: tiles made of
    products, which are in registers anyway."""
    threads, defs, found = 32 * func.attrs["num_warps"], definitions(func), set[Value]()
    if func.attrs["num_warps"] not in WARPS:
        return found

    def registers(value: Value) -> int:
        return value.type.size * value.type.dtype.bits // (32 * threads)

    for loop in func.ops():
        dots = [op for op in loop.blocks[0].ops if op.name == "dot"] if loop.name == "for" else []
        if len(dots) < MANY:
            continue
        inside = {value for op in loop.blocks[0].ops for value in op.results}
        same = {op.args[0] for op in dots if is_loaded(op.args[0], defs.get(op.args[0])) and op.args[0] not in inside}
        own = [op.args[0] for op in dots if op.args[0] in computed]
        if sum(map(registers, [*(op.result for op in dots), *own, *same])) <= MOST:
            found |= same
    return found


def is_loaded(value: Value, made: Op | None) -> bool:
    """Whether a load made a tile of 16-bit numbers."""
    return made is not None and made.name == "load" and isinstance(value.type, Tile) and value.type.dtype.bits == 16
