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
from blocknb.analysis.effects import mask_of
from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Func, Op, Value, uses
from blocknb.language import types as t
from blocknb.language.ops import ACCESSES, ATOMICS, PRESERVING
from blocknb.layouts.tables import blocked
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes

MAX_BYTES = 16  # the widest access of a thread
#: Bytes per thread with which a warp moves a whole line of 128 bytes. A note about a narrower access has the kind "missed".
LINE_BYTES = 4
VECTORS_FROM = 90  # the compute capability from which one instruction adds a vector
TMA_FROM = 90  # the compute capability from which TMA copies tiles


@gpu_pass(optional=True)
def coalesce(func: Func, target: Target, notes: Notes) -> Func:
    """Proposes a layout for every load and store that the memory system serves best

    When: a kernel loads or stores tiles.

    What: each thread takes a vector of up to 16 bytes along the axis with the longest runs of consecutive addresses, and neighbouring
    threads take neighbouring vectors. Warps are placed along an axis that is not reduced, where there is one, so that each warp has whole
    lines.

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
        vec, order, why = widest(facts, old, num_warps * target.warp_size, func, masked=not boxed)
        shape = op.args[0].type.shape
        lines = sorted(order, key=lambda axis: axis in reduced.get(shape, ()))
        vectors = min(vec, max(1, op.args[0].type.size // (num_warps * target.warp_size)))
        if op.name in ATOMICS:
            # Lanes take consecutive addresses, one element each. The layout of the addends may have vectors.
            vec, vectors, why = vec if at_once(op, target, users) else 1, 1, ""
        layout = blocked(shape, order, vectors, num_warps, warps=lines)
        rebuild.builder.append(new := revised(op, attrs={**op.attrs, "layout": layout, "vec": vec}))
        element = op.args[0].type.dtype.element
        used = min(vec, layout.contiguous_registers(order[0]))
        text = f"{op.name}: {used} x {element.name} ({used * element.bytes} bytes) per thread along axis {order[0]}"
        kind = "missed" if why and used * element.bytes < LINE_BYTES else "info"
        notes(new, text + (f"; not wider: {why}" if why else ""), kind)
        return new.results

    originals, users = {op.id: op for op in func.ops() if op.name in ACCESSES}, uses(func)
    return rebuild(func, visit)


def at_once(op: Op, target: Target, users: Mapping[Value, Any]) -> bool:
    """Whether one instruction may add several elements: fp32 from sm_90 on, if the old values are unused."""
    adds = op.name == "atomic" and op.attrs["kind"] == "add" and op.args[0].type.dtype.element == t.float32
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
    """For each tile shape, the axes along which tiles of that shape are reduced. It omits axes along which all of them use the same
    loaded line (the weights of a norm), because every warp with whole lines would load all of it."""
    found: dict[tuple[int, ...], set[int]] = {}
    lines = {op.args[0].type.shape for op in func.ops() if op.name == "load"}
    for op in func.ops():
        if op.name == "reduce":
            shape, axis = op.args[0].type.shape, op.attrs["axis"]
            if (shape[axis],) not in lines:
                found.setdefault(shape, set()).add(axis)
    return found


def widest(
    facts: affine.Facts, op: Op, threads: int, func: Func | None = None, masked: bool = True
) -> tuple[int, tuple[int, ...], str]:
    """For a load or store: the widest vector in elements, the axes from fastest to slowest, and what limits an access of these threads.
    With `func`, the limit of a mask names the parameter that causes it. Without `masked`, the mask is no limit.

    The vector may be wider than that limit, because another layout may have fewer threads along the axis (`fact_width`)."""
    pointer = op.args[0]
    shape, element = pointer.type.shape, pointer.type.dtype.element
    runs = [facts.contiguity(pointer, axis) for axis in range(len(shape))]
    # Ties go to the later axis, along which row-major arrays are contiguous.
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-min(runs[axis], shape[axis]), -axis)))
    fast = order[0]
    aligned = facts.divisibility(pointer, fast) // element.bytes
    mask = mask_of(op) if masked else None
    limits = {
        "that is the widest access": MAX_BYTES // element.bytes,
        _distance(facts, pointer, fast, runs[fast]): runs[fast],
        f"the address is only known to be a multiple of {max(1, aligned) * element.bytes} bytes": max(1, aligned),
        f"the tile has {pointer.type.size} elements for {threads} threads": max(1, pointer.type.size // threads),
    }
    if mask is not None:
        group = facts.constancy(mask, fast)
        wanted = min(limits.values())
        cure = _multiple(func, mask, fast, wanted) if func is not None and group < wanted else ""
        limits[f"the mask may change after {group} element{'s' if group > 1 else ''}{cure}"] = group
    width = min(limits.values())
    if width == MAX_BYTES // element.bytes:
        return width, order, ""
    return fact_width(limits), order, next(why for why, limit in limits.items() if limit == width)


def _distance(facts: affine.Facts, pointer: Value, axis: int, run: int) -> str:
    """Why no more than a run of addresses is consecutive, and what to write instead where the distance of neighbours is known."""
    step = facts.stride(pointer, axis)
    if isinstance(step, int) and abs(step) > 1:
        return (
            f"neighbouring elements are {abs(step)} elements apart in memory: "
            "pass a contiguous array, or index it in steps of 1"
        )
    return f"only {run} consecutive address{'es are' if run > 1 else ' is'} proved"


def _multiple(func: Func, mask: Value, axis: int, wanted: int) -> str:
    """The parameter that would let a mask be constant over `wanted` elements if it were a multiple of that, and what to write; or ""."""
    for parameter in func.params:
        if parameter.type.shape or parameter.type.is_pointer or not parameter.type.dtype.is_integer:
            continue
        supposed = affine.analyze(func)
        supposed.hints[parameter] = max(wanted, supposed.hints.get(parameter, 1))
        if supposed.constancy(mask, axis) >= wanted:
            name = parameter.name
            return (
                f", as `{name}` is not known to be a multiple of {wanted}: pass a multiple of 16, "
                f"or write `{name} = tl.multiple_of({name}, {wanted})` if that holds"
            )
    return ""


def fact_width(limits: dict[str, int]) -> int:
    """The width that addresses and mask allow, for any number of threads: another layout may be able to use it."""
    return min(limit for why, limit in limits.items() if not why.startswith("the tile has"))
