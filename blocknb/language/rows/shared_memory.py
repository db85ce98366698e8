"""Rows of the op table: shared memory. Passes make these ops below the tile level, where data has to change warps."""

from __future__ import annotations

from blocknb.language import rules
from blocknb.language.op_spec import Help, OpSpec, traits

MEMORY = ("memory",)

ROWS = (
    OpSpec(
        "alloc",
        "shared",
        rules.alloc,
        Help(
            "Reserves a buffer in shared memory.",
            ir="The pass `shared_memory_allocation` sets `offset` in bytes, a multiple of `align`.",
        ),
        attrs=("type", "offset", "align"),
        levels=MEMORY,
        traits=traits("allocates"),
    ),
    OpSpec(
        "local_store",
        "shared",
        rules.local_store,
        Help("Writes a tile to a shared buffer.", ir="With `tf32`, the op rounds the elements to tf32."),
        operands="buffer x",
        attrs=("tf32",),
        writes="shared",
        levels=MEMORY,
        traits=traits("exchanges"),
    ),
    OpSpec(
        "local_load",
        "shared",
        rules.local_load,
        Help("Reads a tile from a shared buffer."),
        operands="buffer",
        attrs=("layout",),
        reads="shared",
        levels=MEMORY,
        traits=traits("exchanges"),
    ),
    OpSpec(
        "fence",
        "shared",
        rules.nothing,
        Help("Lets wgmma read, after the next barrier, what this warp has written to shared memory."),
        writes="shared",
        levels=MEMORY,
        traits=traits("consumer_only"),
    ),
    OpSpec(
        "warp_barrier",
        "shared",
        rules.nothing,
        Help("Waits for the lanes of the warp. After it they see the shared memory accesses of each other before it."),
        writes="shared",
        levels=MEMORY,
    ),
    OpSpec(
        "dot_wait",
        "shared",
        rules.each,
        Help(
            "Waits until at most the last `in_flight` wgmma are in flight.",
            ir="`in_flight` is 0 unless it is set. After the op the kernel may use the results of the others.",
        ),
        operands="x...",
        attrs=("in_flight",),
        reads="shared",
        levels=MEMORY,
    ),
    OpSpec(
        "stage",
        "shared",
        rules.stage,
        Help("Selects one stage of a circular buffer.", ir="The index is below the number of stages."),
        operands="buffer index",
        levels=MEMORY,
        traits=traits("producer"),
    ),
    OpSpec(
        "copy_async",
        "shared",
        rules.copy_async,
        Help(
            "Copies elements from an array to a shared buffer while the program goes on. Where the mask is off, the buffer gets zeros.",
            ir="The thread that copies sees the elements after a `wait` for their group, and other threads after a barrier that follows. "
            "`vec` is the number of elements that one instruction copies.",
        ),
        operands="buffer pointer [mask]",
        attrs=("cache", "evict", "vec"),
        reads="global",
        writes="shared",
        levels=MEMORY,
        traits=traits("access async_copy"),
    ),
    OpSpec(
        "commit",
        "shared",
        rules.nothing,
        Help("Makes a group of the copies that the thread has begun since the last `commit`. The group may be empty."),
        writes="shared",
        levels=MEMORY,
    ),
    OpSpec(
        "wait",
        "shared",
        rules.wait,
        Help("Waits until all groups of copies but the last `in_flight` have arrived."),
        attrs=("in_flight",),
        writes="shared",
        levels=MEMORY,
        traits=traits("exchanges"),
    ),
)
