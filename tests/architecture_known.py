"""What breaks a rule of `test_architecture` today. The lists may only shrink, and go when they are empty."""

from __future__ import annotations

#: Modules by room whose names nobody outside of this project would search for: docs/glossary.md has the names in use.
OLD_MODULE_NAMES = frozenset(
    """
    passes/outstanding passes/rings passes/ahead passes/read_ahead passes/prefetch passes/slices passes/needs
    passes/specialize passes/overlap passes/prologue passes/epilogue passes/defer passes/bulk passes/persist passes/order
    passes/pack passes/warps passes/assign passes/shared passes/allocate passes/tensorcore passes/wgmma passes/floats
    passes/quotients passes/remainders passes/narrow passes/places passes/turned passes/identities passes/dead
    passes/operands passes/checks analysis/groups analysis/boxes analysis/magnitudes analysis/online analysis/forms
    analysis/regroup analysis/signs codegen/gpu_again codegen/gpu_late codegen/gpu_stream codegen/cpu_stream
    codegen/cpu_ahead codegen/cpu_kinds codegen/cpu_parts codegen/cpu_padding runtime/repeated runtime/again runtime/recent
    runtime/many runtime/moduli profile/agents profile/unique profile/spread profile/spans notebook/beside
    """.split()
)

KNOWN: dict[str, set[str]] = {
    "modules in import circles": set(
        """
        blocknb.analysis.affine blocknb.analysis.groups blocknb.analysis.magnitudes blocknb.analysis.online
        blocknb.analysis.order blocknb.analysis.quotients blocknb.analysis.ranges blocknb.analysis.signs
        blocknb.codegen.cpu_ahead blocknb.codegen.cpu_atomics blocknb.codegen.cpu_blocks blocknb.codegen.cpu_casts
        blocknb.codegen.cpu_checks blocknb.codegen.cpu_control blocknb.codegen.cpu_elementwise
        blocknb.codegen.cpu_exact blocknb.codegen.cpu_extremes blocknb.codegen.cpu_graph blocknb.codegen.cpu_kinds
        blocknb.codegen.cpu_loops blocknb.codegen.cpu_math blocknb.codegen.cpu_memory blocknb.codegen.cpu_moves
        blocknb.codegen.cpu_ops blocknb.codegen.cpu_padding blocknb.codegen.cpu_parts blocknb.codegen.cpu_reduce
        blocknb.codegen.cpu_redzones blocknb.codegen.cpu_report blocknb.codegen.cpu_stream blocknb.codegen.cpu_vectors
        blocknb.codegen.gpu blocknb.codegen.gpu_again blocknb.codegen.gpu_assembly blocknb.codegen.gpu_async
        blocknb.codegen.gpu_atomics blocknb.codegen.gpu_bulk blocknb.codegen.gpu_control blocknb.codegen.gpu_dot
        blocknb.codegen.gpu_float8 blocknb.codegen.gpu_late blocknb.codegen.gpu_math blocknb.codegen.gpu_matrix
        blocknb.codegen.gpu_memory blocknb.codegen.gpu_moves blocknb.codegen.gpu_order blocknb.codegen.gpu_report
        blocknb.codegen.gpu_roles blocknb.codegen.gpu_scan blocknb.codegen.gpu_stream blocknb.codegen.gpu_text
        blocknb.codegen.gpu_warp blocknb.codegen.gpu_wgmma blocknb.codegen.microkernel blocknb.passes
        blocknb.passes.assign blocknb.passes.bulk blocknb.passes.identities blocknb.passes.persist
        blocknb.passes.places blocknb.passes.prefetch blocknb.passes.prologue blocknb.passes.remainders
        blocknb.passes.rings blocknb.passes.shared blocknb.passes.simplify blocknb.passes.slices
        blocknb.passes.specialize blocknb.passes.views
        """.split()
    ),
    "classes of more than 15 attributes": set(
        """
        blocknb.codegen.cpu_blocks.Emitter blocknb.codegen.gpu.Generator blocknb.passes.assign.Assignment
        blocknb.passes.simplify.Rewriter
        """.split()
    ),
    "functions above complexity 20": set(
        """
        blocknb.analysis.boxes.finished blocknb.analysis.groups._info blocknb.analysis.magnitudes._rule
        blocknb.analysis.quotients.polynomial blocknb.analysis.ranges._compared blocknb.analysis.ranges._rule
        blocknb.codegen.cpu_blocks._node blocknb.codegen.cpu_loops._prepare_access blocknb.codegen.gpu.op
        blocknb.codegen.gpu_again.find blocknb.codegen.gpu_atomics.emit blocknb.codegen.gpu_control.loop_for
        blocknb.codegen.gpu_math.cast blocknb.codegen.gpu_math.single blocknb.codegen.gpu_wgmma.wait
        blocknb.ir.interp_roles.run_roles blocknb.language.assembly.immediates blocknb.passes.allocate.live_ranges
        blocknb.passes.assign.tie_op blocknb.passes.barriers.accesses blocknb.passes.bulk.met_again
        blocknb.passes.identities._algebra blocknb.passes.outstanding.independent_first blocknb.passes.overlap.closure
        blocknb.passes.overlap.trip blocknb.passes.read_ahead.leading_to blocknb.passes.read_ahead.of_operand
        blocknb.passes.rings.rotate blocknb.passes.unroll.visit blocknb.passes.warps.choice
        blocknb.profile.work.demands
        """.split()
    ),
    "class names with several classes": set(
        """
        Access Ahead Box Buffer Conversion Copy Emitter Finder Format Group Lowering Machine Mark Module Note Parts
        Plan Planner Product Rotation Scope Store _Reader
        """.split()
    ),
    "places of the glossary that are to come": set(
        """
        analysis/axis_info.py analysis/float_ranges.py analysis/linear_forms.py analysis/online_softmax.py
        analysis/sign_analysis.py analysis/tma_boxes.py codegen/cpu/mask_bounds.py codegen/cpu/nontemporal_stores.py
        codegen/cpu/outlining.py codegen/cpu/redzones.py codegen/cpu/row_prefetch.py codegen/cpu/uniformity.py
        codegen/gpu/rematerialization.py codegen/gpu/sinking.py codegen/gpu/strip_mining.py ir/interp_distributed.py
        ir/traversal.py passes/distributed/epilogue_subtiling.py passes/distributed/lower_conversions.py
        passes/distributed/thread_local_reduction.py passes/memory/async_mma.py passes/memory/mma_softmax_overlap.py
        passes/memory/operand_staging.py passes/memory/persistent_grid.py passes/memory/program_packing.py
        passes/memory/program_swizzle.py passes/memory/shared_memory_allocation.py
        passes/memory/software_pipelining.py passes/memory/tma_store.py passes/memory/warp_specialization.py
        passes/support/backward_slice.py passes/support/dce.py passes/support/division_by_invariant.py
        passes/support/mma_operands.py passes/support/operand_prefetch.py passes/support/peephole.py
        passes/support/pipeline_state.py passes/support/pipelining_support.py
        passes/support/share_transposed_buffers.py passes/support/tile_modulo.py passes/support/warp_partition.py
        passes/tile/bounds_checks.py passes/tile/choose_num_warps.py passes/tile/coalesce.py
        passes/tile/dtype_legalization.py passes/tile/layout_assignment.py
        passes/tile/range_based_float_simplification.py passes/tile/register_prefetch.py passes/tile/select_mma.py
        passes/tile/select_wgmma.py
        """.split()
    ),
    "modules under names of the old vocabulary": set(
        """
        analysis/boxes analysis/forms analysis/groups analysis/magnitudes analysis/online analysis/regroup
        analysis/signs codegen/cpu_ahead codegen/cpu_kinds codegen/cpu_padding codegen/cpu_parts codegen/cpu_stream
        codegen/gpu_again codegen/gpu_late codegen/gpu_stream passes/ahead passes/allocate passes/assign passes/bulk
        passes/checks passes/dead passes/defer passes/epilogue passes/floats passes/identities passes/narrow
        passes/needs passes/operands passes/order passes/outstanding passes/overlap passes/pack passes/persist
        passes/places passes/prefetch passes/prologue passes/quotients passes/read_ahead passes/remainders
        passes/rings passes/shared passes/slices passes/specialize passes/tensorcore passes/turned passes/warps
        passes/wgmma
        """.split()
    ),
}
