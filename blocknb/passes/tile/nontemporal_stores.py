"""Non-temporal stores of a CPU: large results bypass the cache, so no line is read before it is overwritten.

An ordinary store first reads the line that it writes to (write allocate). For a result that no cache will still hold, a copy moves three
bytes for each two that it needs. A non-temporal store writes the line as it is. This pass decides which stores may do so, and for which
arrays (the attribute `nontemporal`, in bytes). Only the launch knows how large an array is and where its rows begin. So the code generator
emits both kinds of stores, and a test for each row. Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Non-temporal
stores".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from blocknb.analysis import affine
from blocknb.ir.core import Func, Op, Value, definitions
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS, lane_cost, named
from blocknb.passes.registry import tile_pass
from blocknb.passes.support.emission import with_attributes
from blocknb.target import Target
from blocknb.trace import Notes

#: Bytes of an array that no cache still holds when it is read. The result and its operands then exceed the last-level cache of a few cores.
LARGE = 12 << 20
SAME_LOOP = ("elementwise", "shape", "source", "memory")  # kinds of ops that may stand in the loop of a store
INDEX_WORK = (
    24  # additions per element for which an index or a mask counts as none: the loop computes it without vectors
)
VIEWS = named("view")
WORK = 12  # additions per element for which memory is slower than the arithmetic; the rest of the traffic hides behind more work


def applies(func: Func, target: Target) -> bool:
    """Whether a kernel for a CPU stores a tile, and that CPU reads lines before it overwrites them.

    Arm's CPUs do not if stores fill whole lines in order ("write streaming mode" in the manuals of Cortex and Neoverse cores).
    """
    return (
        not target.is_gpu
        and target.isa != "aarch64"
        and any(op.name == "store" and op.args[0].type.shape for op in func.ops())
    )


@tile_pass(optional=True, applies=applies)
def nontemporal_stores(func: Func, target: Target, notes: Notes) -> Func:
    """Lets stores to large arrays bypass the cache of a CPU

    When: a kernel for an x86 CPU stores a tile to an array of at least 12 MiB, after little arithmetic per element.

    What: the store is marked with the size in bytes from which on an array counts as large. Rows that begin and end at a multiple of 16
    bytes are then written with non-temporal stores. All other rows keep ordinary ones.

    Why: an ordinary store reads each line before it overwrites it. That is a third of the traffic of a copy.

    Limits: the array must be an argument of the kernel. The work of more than 12 additions per element gives the memory the time that it
    needs, so ordinary stores stay. So they do in a loop with more than four stores, since it would be written twice.

    Before:

        %i = arange 0 1024 : tile<1024xi32>
        %p = ptradd %x, %i : tile<1024xptr<f32>>
        %q = ptradd %y, %i : tile<1024xptr<f32>>
        %v = load %p : tile<1024xf32>
        store %q, %v

    After:

        %i = arange 0 1024 : tile<1024xi32>
        %p = ptradd %x, %i : tile<1024xptr<f32>>
        %q = ptradd %y, %i : tile<1024xptr<f32>>
        %v = load %p : tile<1024xf32>
        store %q, %v {nontemporal=12582912}
    """
    work, facts = StoreWork(func), affine.analyze(func)
    found: dict[Op, Mapping[str, Any]] = {}
    for op in func.ops():
        if op.name != "store" or not op.args[0].type.shape:
            continue
        cost, root = work.of(op), facts.root(op.args[0])
        if cost > WORK:
            why = f"the work of {cost} additions per element hides the traffic; up to {WORK} would bypass the cache"
            notes(op, f"an ordinary store: {why}")
        elif root is None:
            notes(
                op,
                "an ordinary store: its pointer comes from no single argument, so the array's size is not known",
                "missed",
            )
        else:
            found[op] = {"nontemporal": LARGE}
            saved = f"otherwise {work.share(op):.0%} of the traffic would read what is overwritten"
            notes(op, f"bypasses the cache if `{root.name}` has at least {LARGE >> 20} MiB: {saved}")
    return with_attributes(func, found) if found else func


def squeezed(value: Value) -> tuple[int, ...]:
    """The shape of a tile without its axes of size one."""
    return tuple(size for size in value.type.shape if size != 1)


class StoreWork:
    """The work per element for a store."""

    def __init__(self, func: Func):
        self.defs = definitions(func)
        self.index_work: dict[
            Value, int
        ] = {}  # of tiles that are computed from places and scalars: the time per element
        for op in func.ops():
            if OPS[op.name].has("rematerializable"):
                self.index_work[op.result] = 0
            elif (op.name in VIEWS or OPS[op.name].kind == "elementwise") and all(
                x in self.index_work for x in op.args
            ):
                own = 0 if op.name in VIEWS else lane_cost(op.name)
                self.index_work[op.result] = own + sum(self.index_work[x] for x in op.args)

    def leading_to(self, values: Iterable[Value]) -> list[Op]:
        """All ops from which values come."""
        found = reachable(values, lambda value: self.defs[value].args if value in self.defs else ())
        return [self.defs[value] for value in found if value in self.defs]

    def ops(self, store: Op) -> list[Op]:
        """The loads and the arithmetic in the loop of a store. An earlier loop computes the operands of a reduction, if the stored tile
        needs that reduction. Indices and masks cost little, and smaller tiles are made once per row."""
        shape, stored = squeezed(store.args[0]), store.args[1:2]
        ends = [op for op in self.leading_to(stored) if OPS[op.name].kind not in SAME_LOOP]
        earlier = set(self.leading_to(x for op in ends for x in op.args))

        def of_loop(values: Iterable[Value]) -> list[Value]:
            return [x for x in values if self.counts(x, shape) and self.defs[x] not in earlier]

        def operands(value: Value) -> list[Value]:
            return of_loop(self.defs[value].args) if OPS[self.defs[value].name].kind in ("elementwise", "shape") else []

        made = [self.defs[value] for value in reachable(of_loop(stored), operands)]
        return [op for op in made if op.name == "load" or OPS[op.name].kind == "elementwise"]

    def counts(self, value: Value, shape: tuple[int, ...]) -> bool:
        """Whether a tile has such a shape and is no index, mask or constant."""
        own = value in self.defs and bool(value.type.shape) and squeezed(value) == shape
        return own and self.index_work.get(value, INDEX_WORK + 1) > INDEX_WORK

    def of(self, store: Op) -> int:
        """The time per element, relative to an addition."""
        return sum(lane_cost(op.name) for op in (*self.ops(store), store))

    def share(self, store: Op) -> float:
        """The part of the traffic that reads lines before they are overwritten."""
        shape, made = squeezed(store.args[0]), self.leading_to(store.args[1:2])
        loads = [op.result for op in made if op.name == "load" and self.counts(op.result, shape)]
        read, written = sum(x.type.dtype.bytes for x in loads), store.args[0].type.dtype.element.bytes
        return written / (read + 2 * written)
