"""Memory coalescing: the layout of each load and store that gives neighbouring lanes neighbouring addresses.

Memory serves a warp in 32-byte sectors, and a thread moves up to 16 bytes at once. The pass reads contiguity, alignment and the constancy
of the mask from the affine analysis. It gives each thread as many consecutive elements as these allow, and then assigns the lanes along
the same axis. It only proposes: it leaves `layout` and `vec` on the op. `layout_assignment` chooses the layout, and `analysis/accesses.py`
computes the final width during code generation. Source: CUDA C++ Programming
Guide, "Coalesced Access to Global Memory"; Triton's pass Coalesce.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blocknb.analysis import affine, tma_boxes
from blocknb.analysis.accesses import COPY_BYTES
from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Func, Op, Value, uses
from blocknb.language import types as t
from blocknb.language.ops import ACCESSES, ATOMICS, PRESERVING
from blocknb.layouts.tables import blocked
from blocknb.passes.pipelining.stages import COPIES_FROM, num_stages
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.vector_obstacles import vector_limits
from blocknb.passes.tile.register_prefetch import is_staged_row
from blocknb.target import Target
from blocknb.trace import Notes

#: Bytes per thread with which a warp moves a whole cache line of 128 bytes. A note about a narrower access has the kind "missed".
COALESCED_BYTES = 4
VECTORS_FROM = 90  # the compute capability from which one instruction adds a vector
ADDED_AT_ONCE = (t.float32, t.float16, t.bfloat16)  # the element types of these vectors
TMA_FROM = 90  # the compute capability from which TMA copies tiles


@gpu_pass(optional=True)
def coalesce(func: Func, target: Target, notes: Notes) -> Func:
    """Proposes a layout for every load and store that the memory system serves best

    When: a kernel loads or stores tiles.

    What: each thread takes a vector of up to 16 bytes along the axis with the longest runs of consecutive addresses. Neighbouring threads
    take neighbouring vectors. Warps are placed along an axis that is not reduced, where there is one, so that each warp has whole slices
    along the reduced ones.

    Why: memory serves a warp in 32-byte sectors, and one wide access costs less than several narrow ones.

    Limits: the note names what limits the vector: the contiguity of the pointers, their alignment, the mask, or too few elements for the
    threads. It is marked as missed if a thread moves less than 4 bytes. The pass only proposes. `layout_assignment` chooses the layout,
    and the layout's vectors limit the final width.

    Before:

        %v = load %p, %mask : tile<512xf16>
        %y = add %v, %v : tile<512xf16>
        store %q, %y, %mask

    After:

        %v = load %p, %mask {layout=#a, vec=8} : tile<512xf16>
        %y = add %v, %v : tile<512xf16>
        store %q, %y, %mask {layout=#a, vec=8}
    """
    facts = affine.analyze(func)
    num_warps = func.attrs["num_warps"]
    reduced = reduced_axes(func)

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name not in ACCESSES or not op.args[0].type.shape:
            return NotImplemented
        old = originals[op.id]
        boxed = copied_by_tma(facts, old, target, users)
        limits = vector_limits(facts, old, num_warps * target.warp_size, masked=not boxed)
        vec, order, why = limits.fact_width, limits.order, limits.text
        shape = op.args[0].type.shape
        warp_order = sorted(order, key=lambda axis: axis in reduced.get(shape, ()))
        vectors = min(vec, max(1, op.args[0].type.size // (num_warps * target.warp_size)))
        if op.id in rows_to_copy and shape[-1] > 1:
            vectors = max(vectors, COPY_BYTES[0] // op.args[0].type.dtype.element.bytes)
        if op.name in ATOMICS:
            # Lanes take consecutive addresses: one element each, or a vector. The layout of the addends may have vectors, too.
            vec, why = vec if at_once(op, target, users) else 1, ""
            vectors = min(vec, vectors)
        layout = blocked(shape, order, vectors, num_warps, warps=warp_order)
        rebuild.builder.append(new := revised(op, attrs={**op.attrs, "layout": layout, "vec": vec}))
        element = op.args[0].type.dtype.element
        used = min(vec, layout.contiguous_registers(order[0]))
        text = f"{op.name}: {used} x {element.name} ({used * element.bytes} bytes) per thread along axis {order[0]}"
        kind = "missed" if why and used * element.bytes < COALESCED_BYTES else "info"
        notes(new, text + (f"; not wider: {why}" if why else ""), kind)
        return new.results

    rows_to_copy = staged_rows(func, facts) if target.capability >= COPIES_FROM else set()
    originals, users = {op.id: op for op in func.ops() if op.name in ACCESSES}, uses(func)
    return rebuild(func, visit)


def staged_rows(func: Func, facts: affine.Facts) -> set[int]:
    """The ids of the loads of rows that `operand_staging` will copy to shared memory."""
    loops = [op for op in func.ops() if op.name == "for" and num_stages(func, op) > 2]
    return {
        op.id for loop in loops for op in loop.blocks[0].ops if op.name == "load" and is_staged_row(facts, op, loop)
    }


def at_once(op: Op, target: Target, users: Mapping[Value, Any]) -> bool:
    """Whether one instruction may add several elements: fp32, fp16 and bf16 from sm_90 on, if the old values are unused."""
    adds = op.name == "atomic" and op.attrs["kind"] == "add" and op.args[0].type.dtype.element in ADDED_AT_ONCE
    return adds and target.capability >= VECTORS_FROM and not users.get(op.result)


def copied_by_tma(facts: affine.Facts, op: Op, target: Target, users: Mapping[Value, Any]) -> bool:
    """Whether TMA may copy a load's tile for matrix products. TMA applies the bounds of the mask by itself, at every element."""
    if op.name != "load" or target.capability < TMA_FROM:
        return False
    values, products = [op.result], 0
    while values:
        for user, _ in users.get(values.pop(), ()):
            if user.name in PRESERVING:
                values += user.results
            elif user.name == "dot":
                products += 1
            else:
                return False
    return products > 0 and not isinstance(tma_boxes.box_of(facts, op), str)


def reduced_axes(func: Func) -> dict[tuple[int, ...], set[int]]:
    """For each tile shape, the axes along which tiles of that shape are reduced. It omits axes along which all of them use the same loaded
    row, such as the weights of a norm. Otherwise every warp with whole slices would load all of it."""
    found: dict[tuple[int, ...], set[int]] = {}
    loaded = {op.args[0].type.shape for op in func.ops() if op.name == "load"}
    for op in func.ops():
        if op.name == "reduce":
            shape, axis = op.args[0].type.shape, op.attrs["axis"]
            if (shape[axis],) not in loaded:
                found.setdefault(shape, set()).add(axis)
    return found
