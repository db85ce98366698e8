"""Rows of the op table: Hopper's copy engine (TMA), mbarriers and warp specialization. `language.bulk` has the types and type rules."""

from __future__ import annotations

from blocknb.language import bulk, rules
from blocknb.language.op_spec import Help, OpSpec, traits

MEMORY = ("memory",)

ROWS = (
    OpSpec(
        "tensor_map",
        "distributed",
        bulk.tensor_map,
        Help(
            "Describes an array for the copy engine. The host makes the map from the arguments when it launches the kernel.",
            ir="The operands are the base, the extents, and the strides in elements but for the innermost axis, the outer axis first.",
        ),
        operands="base extents... strides...",
        attrs=("type",),
        levels=MEMORY,
    ),
    OpSpec(
        "mbarriers",
        "shared",
        bulk.mbarriers,
        Help(
            "Reserves mbarriers in shared memory. A phase of each ends after `arrivals` arrivals.",
            ir="The pass `shared_memory_allocation` sets `offset` in bytes.",
        ),
        attrs=("stages", "arrivals", "offset"),
        writes="shared",
        levels=MEMORY,
        traits=traits("allocates"),
    ),
    OpSpec(
        "expect",
        "shared",
        bulk.expect,
        Help(
            "Arrives at an mbarrier, whose phase then also waits for `bytes` copied bytes.",
            ir="One thread runs the op.",
        ),
        operands="barriers index",
        attrs=("bytes",),
        writes="shared",
        levels=MEMORY,
        traits=traits("mbarrier interleaves producer producer_only"),
    ),
    OpSpec(
        "await",
        "shared",
        bulk.await_,
        Help("Waits until the phase of an mbarrier with the given parity (0 or 1) has ended."),
        operands="barriers index parity",
        reads="shared",
        writes="shared",
        levels=MEMORY,
        traits=traits("mbarrier interleaves producer"),
    ),
    OpSpec(
        "arrive",
        "shared",
        bulk.arrive,
        Help("Arrives at an mbarrier, once per warp, if the condition holds."),
        operands="barriers index [condition]",
        writes="shared",
        levels=MEMORY,
        traits=traits("mbarrier interleaves consumer_only"),
    ),
    OpSpec(
        "copy_bulk",
        "shared",
        bulk.copy_bulk,
        Help(
            "Copies a box of an array to a shared buffer while the program goes on. Out of bounds the buffer gets zeros.",
            ir="The bytes count for an mbarrier. `coordinates` are those of the first element, the outer axis first. `axes` names the axis "
            "of the array for each axis of the buffer. One thread runs the op.",
        ),
        operands="buffer map barriers index coordinates...",
        attrs=("axes",),
        reads="global",
        writes="shared",
        levels=MEMORY,
        traits=traits("box_copy async_copy interleaves producer producer_only"),
    ),
    OpSpec(
        "store_bulk",
        "shared",
        bulk.store_bulk,
        Help(
            "Copies a shared buffer to a box of an array while the program goes on. Nothing is written out of bounds.",
            ir="One thread runs the op; with a `layout`, one thread of each warp does, for the elements of its warp. With `adds`, the copy "
            "engine adds to the array.",
        ),
        operands="map buffer coordinates...",
        attrs=("axes", "layout", "adds"),
        reads="shared",
        writes="global",
        levels=MEMORY,
        traits=traits("box_copy exchanges interleaves consumer_only"),
    ),
    OpSpec(
        "store_wait",
        "shared",
        rules.wait,
        Help(
            "Waits until the copy engine has read the buffers of all but the last `in_flight` `store_bulk` of the thread."
        ),
        attrs=("in_flight",),
        writes="shared",
        levels=MEMORY,
        traits=traits("interleaves consumer_only"),
    ),
    OpSpec(
        "roles",
        "control",
        bulk.roles,
        Help(
            "Runs the first block in the consumer warps and the second in the producer warps.",
            ir="`warps` has the number of both, and `registers` those of their threads, where the hardware redistributes them. With "
            "several `consumer_groups`, each consumer group runs its own program.",
        ),
        attrs=("warps", "registers", "consumer_groups"),
        blocks=2,
        levels=MEMORY,
    ),
    OpSpec(
        "cta_id",
        "source",
        rules.scalar_i32,
        Help("Returns the index of the CTA."),
        levels=MEMORY,
        traits=traits("program_index"),
    ),
    OpSpec(
        "consumer_group_id",
        "source",
        rules.scalar_i32,
        Help("Returns the index of the consumer group within its CTA."),
        levels=MEMORY,
        traits=traits("program_index"),
    ),
    OpSpec(
        "num_ctas",
        "source",
        rules.scalar_i32,
        Help("Returns the number of CTAs, which may be smaller than the number of programs."),
        levels=MEMORY,
        traits=traits("grid_size"),
    ),
)
