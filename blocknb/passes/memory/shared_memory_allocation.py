"""Shared-memory allocation: buffers get their addresses, and share bytes where their live ranges do not overlap.

A buffer lives from its `alloc` to its last use. An asynchronous copy or product extends this to the wait for it. Warps with roles run at
the same time, so a buffer that is allocated before them lives as long as they do. Mbarriers live as long as the CTA. `barriers` runs
later and sees the final addresses. Source: Wilson et al., "Dynamic Storage Allocation" (1995), first fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.errors import OutOfResources, SharedBuffer
from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Block, Func, Op, Users, Value, blocks, uses
from blocknb.language.ops import LOOPS, OPS, named
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes

ALIGNMENT = 128  # bytes; a wavefront
#: A buffer of at most this many bytes gets bytes of its own, because reuse would cost a barrier.
OWN_PLACE = 1024
#: The most buffers that get bytes of their own. The other small ones share.
OWN_PLACES = 64
PLACED = named("allocates")


@gpu_pass()
def shared_memory_allocation(func: Func, target: Target, notes: Notes) -> Func:
    """Assigns every buffer its address in shared memory

    When: always, on a GPU.

    What: buffers whose live ranges do not overlap share memory. A buffer lives from its `alloc` to its last use. If a loop
    uses it, and its `alloc` is outside, it lives to the end of the loop. An asynchronous copy or product extends the range to the wait for
    it.

    Why: less shared memory per CTA lets more CTAs share a multiprocessor.

    Limits: if a kernel needs more than the target has, the error names the line of its largest buffer.

    Before:

        %a = alloc : buffer<64x64xf16, #a>
        local_store %a, %x
        %y = local_load %a : tile<64x64xf16, #b>
        %b = alloc : buffer<64x64xf16, #a>
        local_store %b, %z

    After:

        %a = alloc {offset=0} : buffer<64x64xf16, #a>
        local_store %a, %x
        %y = local_load %a : tile<64x64xf16, #b>
        %b = alloc {offset=0} : buffer<64x64xf16, #a>
        local_store %b, %z
    """
    placed, total = place(func)
    if total > target.max_shared:
        biggest = max((live for live in placed if live.op.name == "alloc"), key=lambda x: x.size)
        error = OutOfResources(
            f"the kernel needs {total} bytes of shared memory, {target.arch} has {target.max_shared} per CTA",
            biggest.op.loc,
            f"make the tiles smaller: {too_big(biggest, target)}",
        )
        error.needed, error.limit = total, target.max_shared
        error.buffers = tuple(_described(live) for live in placed if live.op.name == "alloc")
        raise error
    offsets = {live.op.id: live.offset for live in placed}

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name not in PLACED:
            return NotImplemented
        rebuild.builder.append(op.replace(attrs={**op.attrs, "offset": offsets[op.id]}))
        return op.results

    if total:
        separate = 0
        for live in placed:
            separate = -(-separate // live.align) * live.align + live.size
        reuse = f"; {separate - total} bytes saved by reuse" if separate > total else ""
        notes(None, f"{total} bytes for {len(placed)} buffer{'s' if len(placed) > 1 else ''}{reuse}")
    return rebuild(func, visit).with_attrs(shared_bytes=total)


@dataclass(eq=False)
class LiveRange:
    """A buffer's live range, as positions in a walk over the function, and its address."""

    op: Op
    size: int
    first: int
    last: int
    align: int = ALIGNMENT
    offset: int = 0


def place(func: Func) -> tuple[list[LiveRange], int]:
    """Gives every buffer its offset; returns the live ranges and the total bytes. Large buffers are placed first fit, largest first, among
    those whose live ranges overlap. The small ones follow. The first OWN_PLACES of them get bytes of their own, and the rest share bytes in
    program order."""
    large: list[LiveRange] = []
    small: list[LiveRange] = []
    placed: list[LiveRange] = []
    for live in live_ranges(func):
        (small if live.size <= OWN_PLACE else large).append(live)
    for live in sorted(large, key=lambda x: (-x.size, x.first)):
        first_fit(live, 0, [other for other in placed if other.first <= live.last and live.first <= other.last])
        placed.append(live)
    end = max((live.offset + live.size for live in placed), default=0)
    unshared: list[LiveRange] = []
    for live in sorted(small, key=lambda x: (-x.size, x.first)):
        if len(unshared) == OWN_PLACES:
            break
        live.offset = -(-end // live.align) * live.align
        end = live.offset + live.size
        unshared.append(live)
    rest = sorted(set(small) - set(unshared), key=lambda x: x.first)
    overlapping: list[LiveRange] = []
    for live in rest:
        overlapping = [other for other in overlapping if live.first <= other.last]
        first_fit(live, end, overlapping)
        overlapping.append(live)
    placed += unshared + rest
    return placed, max((live.offset + live.size for live in placed), default=0)


def _described(live: LiveRange) -> SharedBuffer:
    kind, loc = live.op.attrs["type"], live.op.loc
    text = f"{'x'.join(map(str, kind.shape))} {kind.dtype}" + (f" in {kind.stages} stages" if kind.stages > 1 else "")
    return SharedBuffer(live.size, tuple(kind.shape), text, live.first, live.last, loc.outermost.line if loc else 0)


def too_big(live: LiveRange, target: Target) -> str:
    """The size of the largest buffer and the room that is left for it, as a phrase for an error."""
    kind = live.op.attrs["type"]
    count = live.size // kind.dtype.bytes
    text = f"the largest buffer here takes {live.size} bytes for {count} elements of {kind.dtype}"
    fits = 1 << (target.max_shared // kind.dtype.bytes).bit_length() - 1
    return f"{text}, and at most {fits} fit" if fits < count else text


def first_fit(live: LiveRange, start: int, others: Sequence[LiveRange]) -> None:
    """Gives a buffer the lowest offset from `start` at which it overlaps none of the others."""
    live.offset = -(-start // live.align) * live.align
    for low, high in sorted((other.offset, other.offset + other.size) for other in others):
        if live.offset + live.size <= low:
            break
        live.offset = max(live.offset, -(-high // live.align) * live.align)


def live_ranges(func: Func) -> list[LiveRange]:
    """The live ranges, each from a buffer's `alloc` to its last use. A buffer that is allocated outside a loop and used inside lives to the
    end of the loop."""
    position, at, loops = 0, {}, {}

    def number(block: Block, around: tuple[int, ...]) -> None:
        nonlocal position
        for op in block.ops:
            position += 1
            start = at[op.id] = position
            if OPS[op.name].kind == "reduce":
                continue
            inner = (*around, op.id) if op.name in (*LOOPS, "roles") else around
            for nested in op.blocks:
                number(nested, inner)
            position += 1
            loops[op.id] = (start, position, around)

    number(func.body, ())
    users = uses(func)
    arrived = [at[op.id] for op in func.ops() if op.name == "wait" and not op.attrs["in_flight"]]
    landed = [at[op.id] for op in func.ops() if op.name == "dot_wait" and not op.attrs.get("in_flight")]

    def waits_of(user: Op) -> list[int] | None:
        """The positions of the waits for an op's asynchronous reads or writes; None for a synchronous op."""
        if user.name == "dot" and user.attrs.get("in_flight"):
            return landed
        return arrived if user.name == "copy_async" else None

    read = {store: at[wait] for block in blocks(func.body) for store, wait in waited_for(block)}
    found = []
    for op in func.ops():
        if op.name == "mbarriers":
            found.append(LiveRange(op, op.result.type.bytes, 0, position, op.result.type.EACH))
        elif op.name == "alloc":
            own_loops = loops[op.id][2]
            points = [at[op.id]]
            for user in users_of(op.result, users):
                deeper = loops[user.id][2][len(own_loops) :]
                end = loops[deeper[0]][1] if deeper else at[user.id]
                if (waits := waits_of(user)) is not None:
                    end = min((place for place in waits if place > end), default=position)
                points += [at[user.id], end]
                if user.name == "store_bulk":  # the wait may come in the next iteration of a loop
                    points += [read[user.id]] if user.id in read else [0, position]
            found.append(
                LiveRange(op, op.attrs["type"].bytes, min(points), max(points), op.attrs.get("align", ALIGNMENT))
            )
    return found


def waited_for(block: Block) -> Iterator[tuple[int, int]]:
    """The ids of the bulk stores of a block whose wait is in the same block, each with the id of the wait."""
    stores: list[int] = []
    for op in block.ops:
        if op.name == "store_bulk":
            stores.append(op.id)
        elif op.name == "store_wait" and not op.attrs["in_flight"]:
            yield from ((store, op.id) for store in stores)
            stores.clear()


def users_of(buffer: Value, users: Users) -> list[Op]:
    """The ops that use a buffer or one of its stages."""
    found = [op for op, _ in users.get(buffer, ())]
    stages = (op for op in found if op.name == "stage")
    return found + [user for op in stages for user, _ in users.get(op.result, ())]
