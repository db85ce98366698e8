"""Layouts of tiles whose accesses move elements of several sizes, such as keys of bf16 and their decay of fp32.

Each access proposes a layout in which a thread moves 16 bytes: eight elements of bf16, or four of fp32. All of them are in one group,
because arithmetic joins them, and the larger elements weigh more. Then each store of smaller elements needs a conversion through shared
memory. With eight elements of each, a thread moves a whole sector of 32 bytes of the larger ones by two accesses, and nothing is converted.
Source: NVIDIA, "CUDA C++ Best Practices Guide", section 10.2 (a warp's accesses are served sector by sector).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Protocol

from blocknb.ir.core import Func, Op, Value, walk
from blocknb.language.ops import LOOPS
from blocknb.layouts.linear import Layout
from blocknb.passes.support.layout_facts import SECTOR
from blocknb.passes.support.layout_groups import LayoutGroups


class ProposedLayouts(Protocol):
    """The facts of `layout_choice` when all accesses have proposed layouts."""

    func: Func
    groups: LayoutGroups
    layouts: dict[Value, Layout]  # of groups

    @property
    def products(self) -> Set[Layout]:
        """The layouts of products."""

    def anchored(self, value: Value) -> bool:
        """Whether a value has one layout."""

    def access_layout(self, op: Op) -> Layout:
        """The layout that an access proposes."""

    def weight(self, op: Op, iterations: float) -> float:
        """The bytes that an access moves."""


def widen_mixed(choice: ProposedLayouts) -> set[Layout]:
    """Gives each group of tiles that no loop accesses the layout of its smaller elements. It does so if that saves conversions of at least
    as many bytes as the larger elements have. Returns these layouts."""
    accesses: dict[Value, list[Op]] = {}
    for op, value in accessed_tiles(choice.func):
        if choice.anchored(value):
            accesses.setdefault(choice.groups.find(value), []).append(op)
    looped = {x for op in choice.func.ops() if op.name in LOOPS for block in op.blocks for x in walk(block)}
    found = set()
    for root, ops in accesses.items():
        now = choice.layouts.get(root)
        if now is None or now in choice.products or looped & set(ops):
            continue
        moved: dict[Layout, float] = {}
        for op in ops:
            layout = choice.access_layout(op)
            moved[layout] = moved.get(layout, 0.0) + choice.weight(op, 1.0)
        best = wider(now, moved, max(op.args[0].type.dtype.element.bytes for op in ops))
        if best != now:
            choice.layouts[root] = best
            found.add(best)
    return found


def accessed_tiles(func: Func) -> Iterator[tuple[Op, Value]]:
    """The loads and stores of tiles, with the loaded or stored tile."""
    for op in func.ops():
        if op.name in ("load", "store") and op.args[0].type.shape:
            yield op, op.result if op.name == "load" else op.args[1]


def wider(now: Layout, moved: dict[Layout, float], bytes: int) -> Layout:
    """The proposal with a sector of the largest elements (of so many `bytes`) per thread; `now` if none moves as many bytes as `now`.
    `moved`: the bytes of the accesses that propose each layout."""
    axis = next((axis for axis in range(len(now.shape)) if now.contiguous_registers(axis) > 1), None)
    if axis is None or bytes * now.contiguous_registers(axis) >= SECTOR:
        return now
    least = moved.get(now, 0.0)
    fitting = [x for x in moved if x.contiguous_registers(axis) * bytes == SECTOR and moved[x] >= least]
    return max(fitting, key=lambda x: moved[x], default=now)
