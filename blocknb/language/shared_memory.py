"""Ops on shared memory: rows of the op table for what passes make below the tile level, once data has to change warps."""

from __future__ import annotations

from collections.abc import Callable

from blocknb.language import rules


def rows(row: Callable) -> None:
    """Enters the ops by way of `row` of the op table."""
    row(
        "alloc",
        "shared",
        rules.alloc,
        "A buffer in shared memory; `offset` (bytes) is set by the pass `lower_conversions`, a multiple of `align`.",
        attrs=("type", "offset", "align"),
        levels=("memory",),
    )
    row(
        "local_store",
        "shared",
        rules.local_store,
        "Writes a tile to a shared buffer; `tf32`: rounded to that many digits.",
        operands="buffer x",
        attrs=("tf32",),
        writes="shared",
        levels=("memory",),
    )
    row(
        "fence",
        "shared",
        rules.nothing,
        "What this warp has written to shared memory may, after the next barrier, be read by wgmma.",
        writes="shared",
        levels=("memory",),
    )
    row(
        "warp_barrier",
        "shared",
        rules.nothing,
        "The lanes of each warp meet here: what they have done in shared memory before it is seen by each other after it.",
        writes="shared",
        levels=("memory",),
    )
    row(
        "dot_wait",
        "shared",
        rules.each,
        "Waits until no more than the last `pending` (0 unless named) wgmma are under way; what the others add up may then be used.",
        operands="x...",
        attrs=("pending",),
        reads="shared",
        levels=("memory",),
    )
    row(
        "local_load",
        "shared",
        rules.local_load,
        "Reads a tile from a shared buffer.",
        operands="buffer",
        attrs=("layout",),
        reads="shared",
        levels=("memory",),
    )

    row(
        "slot",
        "shared",
        rules.slot,
        "One slot of a ring of buffers; the index lies below their number.",
        operands="ring index",
        levels=("memory",),
    )
    row(
        "copy_async",
        "shared",
        rules.copy_async,
        "Copies elements from memory to a shared buffer, zeros where the mask is off, while the program goes on. They are there for the "
        "thread that copied them after a `wait` for their group, and for others after a barrier behind that. `vec`: elements that one "
        "instruction copies.",
        operands="buffer pointer [mask]",
        attrs=("cache", "evict", "vec"),
        reads="global",
        writes="shared",
        levels=("memory",),
    )
    row(
        "commit",
        "shared",
        rules.nothing,
        "Makes a group of the copies that the thread began since the last `commit` (perhaps of none).",
        writes="shared",
        levels=("memory",),
    )
    row(
        "wait",
        "shared",
        rules.wait,
        "Waits until all groups of copies but the last `pending` have arrived.",
        attrs=("pending",),
        writes="shared",
        levels=("memory",),
    )
