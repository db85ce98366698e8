"""The reasons why a thread cannot load or store more bytes at once, and what to write instead.

An access is as wide as the narrowest of its limits. `obstacles` names all limits that must rise before the next width is possible,
because a cure of one of them alone changes nothing. `coalesce` writes them into its note, and the Tiles view shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from blocknb.analysis import affine
from blocknb.analysis.effects import global_operands, mask_of
from blocknb.ir.core import Func, Op, Value
from blocknb.language.ops import ATOMICS

MAX_BYTES = 16  # the widest access of a thread
#: The kinds of obstacles, with the words that docs/card.md uses for them.
KINDS = {
    "address": "Address",
    "mask": "Mask",
    "stride": "Stride",
    "computed": "Computed index",
    "threads": "Threads",
    "layout": "Layout",
    "checks": "Checks",
    "atomic": "Atomic",
}


@dataclass(frozen=True)
class VectorObstacle:
    """One limit: its `kind` (see KINDS), the `width` in elements that it allows, and a sentence with what to write instead."""

    kind: str
    width: int
    text: str


@dataclass(frozen=True)
class VectorLimits:
    """The widest vector of an access in elements. `fact_width` omits the number of threads, since another layout may have fewer along
    the axis. `order`: the axes from fastest to slowest. `obstacles`: all that must be cured for the next width; none at 16 bytes."""

    width: int
    fact_width: int
    order: tuple[int, ...]
    obstacles: tuple[VectorObstacle, ...]

    @property
    def text(self) -> str:
        """The obstacles in one phrase, "" if there are none."""
        return "; and ".join(obstacle.text for obstacle in self.obstacles)


def vector_limits(facts: affine.Facts, op: Op, threads: int, masked: bool = True) -> VectorLimits:
    """The limits of a load, store or copy of a tile by a number of threads. Without `masked`, the mask is no limit."""
    pointer, mask = global_operands(op)[0], mask_of(op) if masked else None
    shape, element = pointer.type.shape, pointer.type.dtype.element
    runs = [facts.contiguity(pointer, axis) for axis in range(len(shape))]
    # Ties go to the later axis, along which row-major arrays are contiguous.
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-min(runs[axis], shape[axis]), -axis)))
    fast, most = order[0], MAX_BYTES // element.bytes
    aligned = max(1, facts.divisibility(pointer, fast) // element.bytes)
    limits: dict[str, tuple[int, Callable[[], VectorObstacle]]] = {}  # by kind; a cure takes an analysis of its own
    run = runs[fast]
    limits["distance"] = run, partial(_distance, facts, pointer, fast, run)
    limits["address"] = aligned, partial(_alignment, facts, pointer, fast, aligned)
    limits["threads"] = max(1, pointer.type.size // threads), partial(_few_elements, pointer, threads)
    if mask is not None:
        group = facts.constancy(mask, fast)
        wanted = min([most, *(width for width, _ in limits.values() if width > group)])
        limits["mask"] = group, partial(_changing_mask, facts, mask, fast, group, wanted)
    width = min(most, *(width for width, _ in limits.values()))
    if run < 2 * width and (root := facts.root(pointer)) is not None:
        # Addresses that do not count upwards tell nothing about the alignment of a cured access, but the array itself does.
        start = max(1, min(facts.hints.get(root, 1), MAX_BYTES) // element.bytes)
        limits["address"] = start, partial(_misaligned, start, element.bytes, _of_parameter(root))
    found = () if width == most else tuple(make() for limit, make in limits.values() if limit < 2 * width)
    by_facts = min(most, *(width for kind, (width, _) in limits.items() if kind != "threads"))
    return VectorLimits(width, by_facts, order, found)


def _elements(count: int) -> str:
    return f"{count} element{'s' if count > 1 else ''}"


def _few_elements(pointer: Value, threads: int) -> VectorObstacle:
    text = f"the tile has {pointer.type.size} elements for {threads} threads: choose a larger tile, or fewer warps"
    return VectorObstacle("threads", max(1, pointer.type.size // threads), text)


def _changing_mask(facts: affine.Facts, mask: Value, axis: int, group: int, wanted: int) -> VectorObstacle:
    cure = _multiple(facts, mask, axis, wanted) if group < wanted else ""
    return VectorObstacle("mask", group, f"the mask may change after {_elements(group)}{cure}")


def _misaligned(aligned: int, size: int, cause: str) -> VectorObstacle:
    text = f"the address is only known to be a multiple of {aligned * size} bytes"
    return VectorObstacle("address", aligned, f"{text}{cause}")


def _alignment(facts: affine.Facts, pointer: Value, axis: int, aligned: int) -> VectorObstacle:
    size = pointer.type.dtype.element.bytes
    return _misaligned(aligned, size, _unaligned(facts, pointer, axis, aligned * size))


def _unaligned(facts: affine.Facts, pointer: Value, axis: int, known: int) -> str:
    """The parameter that would align an address to more than the `known` bytes if it were a multiple of 16; or the general cure."""
    if known >= MAX_BYTES:
        return ": pass an array, row strides and offsets that are multiples of 16 bytes"
    for parameter in facts.func.params:
        if parameter.type.shape or not (parameter.type.is_pointer or parameter.type.dtype.is_integer):
            continue
        if facts.with_multiple(parameter, MAX_BYTES).divisibility(pointer, axis) > known:
            return _of_parameter(parameter)
    return ", because of an offset that the kernel adds: let arrays, row strides and offsets be multiples of 16 bytes"


def _of_parameter(parameter: Value) -> str:
    """How a parameter limits the alignment, and what to pass instead."""
    name = parameter.name
    if parameter.type.is_pointer:
        return f", as `{name}` does not start at a multiple of 16 bytes: pass an array that does, such as a copy"
    return f", as `{name}` is not known to be a multiple of 16: pass one, for a row stride by padding the rows"


def _distance(facts: affine.Facts, pointer: Value, axis: int, run: int) -> VectorObstacle:
    """Why no more than a run of addresses is consecutive, and what to write instead."""
    step = facts.stride(pointer, axis)
    if isinstance(step, int) and abs(step) > 1:
        text = f"neighbouring elements are {abs(step)} elements apart in memory"
        return VectorObstacle("stride", run, f"{text}: pass a contiguous array, or index it in steps of 1")
    if step is None or isinstance(step, int):
        cure = "compute it from tl.arange by sums, or promise it by tl.max_contiguous"
        return VectorObstacle("computed", run, f"the index is computed so that only {_runs(run)} proved: {cure}")
    cure = "pass a contiguous array, whose stride 1 becomes a constant, or index it in steps of 1"
    return VectorObstacle("stride", run, f"the stride is not known to be 1, so only {_runs(run)} proved: {cure}")


def _runs(run: int) -> str:
    return f"{run} consecutive address{'es are' if run > 1 else ' is'}"


def _multiple(facts: affine.Facts, mask: Value, axis: int, wanted: int) -> str:
    """The parameter that would let a mask be constant over `wanted` elements if it were a multiple of that, and what to write; or ""."""
    for parameter in facts.func.params:
        if parameter.type.shape or parameter.type.is_pointer or not parameter.type.dtype.is_integer:
            continue
        if facts.with_multiple(parameter, wanted).constancy(mask, axis) >= wanted:
            name = parameter.name
            return (
                f", as `{name}` is not known to be a multiple of {wanted}: pass a multiple of 16, "
                f"or write `{name} = tl.multiple_of({name}, {wanted})` if that holds"
            )
    return ""


def final_obstacles(facts: affine.Facts, op: Op, vector: int, func: Func, threads: int) -> tuple[VectorObstacle, ...]:
    """The obstacles of an access of final code that moves `vector` elements per instruction; none at 16 bytes, and for a scalar."""
    pointer = global_operands(op)[0].type
    size = pointer.dtype.element.bytes
    if not pointer.shape or vector * size >= MAX_BYTES:
        return ()
    if op.name in ATOMICS:
        return (VectorObstacle("atomic", vector, f"an atomic instruction updates {_elements(vector)}"),)
    if func.attrs.get("checked"):
        text = "a checked launch tests each element: launch without checked=True to see the width of other launches"
        return (VectorObstacle("checks", vector, text),)
    limits = vector_limits(facts, op, threads)
    if limits.width <= vector:
        return limits.obstacles
    text = (
        f"the layout gives a thread {_elements(vector)} in a row: the notes of layout_assignment say which op needs it"
    )
    return (VectorObstacle("layout", vector, text),)
