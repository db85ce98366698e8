"""Program swizzling (threadblock rasterization): reorders programs so that L2 serves more of their reads.

The hardware starts programs along x, then y. In a matrix product, some tiles depend on x only and others on y only. In the hardware's
order, 128 programs of a 64 x 32 grid have 64 values of x and 2 of y. So they read 64 + 2 different tiles. A column is all programs with the
same x. In groups of 16 columns, 128 programs have 16 values of x and 8 of y, so they read 16 + 8. Triton's matmul tutorial does this by
hand and calls the width GROUP_SIZE_M; CUTLASS calls it threadblock swizzle.

Of IN_FLIGHT programs, `width` stand along x and IN_FLIGHT / width along y. Per iteration they read width * bytes(x) + IN_FLIGHT / width *
bytes(y). This is smallest where width^2 = IN_FLIGHT * bytes(y) / bytes(x). The programs are at about the same iteration, so L2 has to hold
a few hundred KB, and its size does not matter. On an H200, widths of 4 to 32 took the same time within 0.5 %.

`program_id` still means the position in the grid. The function's attribute `order` is the width, and `support/program_order` computes the
position from the number. A persistent kernel does so in its loop over programs. Any other kernel does so at its start, where it costs two
divisions. z stays outermost. In a kernel with a one-dimensional grid that computes x and y by `%` and `//`, the pass rewrites these
divisions instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from blocknb.analysis import affine
from blocknb.analysis.effects import result_is_used
from blocknb.analysis.polynomials import of_launch
from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Block, Func, Op, Value, uses
from blocknb.ir.report import REPORTS
from blocknb.ir.traversal import reachable
from blocknb.language import types as t
from blocknb.language.ops import ATOMICS, LOOPS
from blocknb.passes.pipelining.backward_slice import sources
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.note_text import at_line
from blocknb.passes.support.program_order import arithmetic, place
from blocknb.target import Target
from blocknb.trace import Notes

#: Typical multiprocessor counts of GPUs with tensor cores: 108 (A100), 128 (RTX 4090), 132 (H100, H200), 148 (B200), by NVIDIA's
#: data sheets. Each runs one or two programs with large tiles.
IN_FLIGHT = 128
X, Y, Z = range(3)
KEPT = "programs start in the order of the grid: "


def applies(func: Func, target: Target) -> bool:
    """Whether loops read tiles whose places may depend on two axes, of the grid or of a product."""
    axes = {op.attrs["axis"] for op in func.ops() if op.name == "program_id"}
    products = any(op.name == "dot" for op in func.ops())
    return X in axes and (Y in axes or products) and any(True for _ in reading(func.body, ()))


@gpu_pass(optional=True, applies=applies)
def program_swizzle(func: Func, target: Target, notes: Notes) -> Func:
    """Reorders programs so that those that run together share rows and columns in L2

    When: loops read some tiles whose addresses depend on x only and others whose addresses depend on y only, as in a matrix product.

    What: programs start in groups of columns of the grid (a column is the programs with one x), as with GROUP_SIZE_M in Triton's
    tutorial. `program_id` still means the position in the grid.

    Why: in the order of the grid, 128 programs of a 64 x 32 grid read 64 + 2 different tiles per iteration. In groups of 16 columns they
    read 16 + 8. L2 serves the rest.

    Limits: the order of the grid (x first, then y) stays if a load depends on x and y. It also stays if programs differ in their number of
    iterations, or may wait for each other. A note gives the reason.

    Before:

        %pid = program_id 0 : i32
        %y = div %pid, %across : i32
        %x = rem %pid, %across : i32

    After:

        %pid = program_id 0 : i32
        %group = div %pid, %group_size : i32
        %first = mul %group, %width : i32
        %inside = rem %pid, %group_size : i32
        %left = sub %across, %first : i32
        %columns = min %left, %width : i32
        %column = rem %inside, %columns : i32
        %x = add %first, %column : i32
        %y = div %inside, %columns : i32
    """
    finder = ReuseFinder(func)
    found = finder.reuse()
    if isinstance(found, str):
        notes(finder.ids[0], KEPT + found)
        return func
    notes(finder.ids[0], str(found))
    return with_swizzled_ids(func, finder, found.width) if finder.split else func.with_attrs(order=found.width)


def reading(block: Block, loops: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """The loads of tiles in loops, with the loops around each."""
    for op in block.ops:
        if op.name == "load" and loops and op.result.type.shape:
            yield op, loops
        for inner in op.blocks:
            yield from reading(inner, (*loops, op) if op.name in LOOPS else loops)


@dataclass(frozen=True)
class Reuse:
    """The reads of loops at addresses that depend on x only, and on y only: arrays, and bytes per iteration."""

    arrays: tuple[tuple[str, ...], tuple[str, ...]]
    bytes: tuple[int, int]

    @property
    def width(self) -> int:
        """The width of a group: a power of two."""
        by_x, by_y = self.bytes
        best = math.log2(IN_FLIGHT * by_y / by_x) / 2
        return 1 << max(1, min(round(best), IN_FLIGHT.bit_length() - 2))

    def __str__(self) -> str:
        by_x, by_y = (" and ".join(f"`{name}`" for name in names) for names in self.arrays)
        return (
            f"programs start in groups of {self.width} along x: of {IN_FLIGHT} at a time, {IN_FLIGHT // self.width} read the same tile of "
            f"{by_x} and {self.width} the same of {by_y}, so L2 serves all reads but the first"
        )


class ReuseFinder:
    """Finds what programs share, or why their order stays. `split`: in a grid with one axis, the ops that compute x (`rem`) and y (`div`)
    from a program's number."""

    def __init__(self, func: Func):
        self.func, self.facts, self.users = func, affine.analyze(func), uses(func)
        self.ids = [op for op in func.ops() if op.name == "program_id" and op.attrs["axis"] == X]
        self.split = self.by_division()
        self.roots: dict[Value, int] = {op.result: X if op.name == "rem" else Y for op in self.split}
        others = (op for op in func.ops() if op.name == "program_id")
        self.roots |= {op.result: Z if self.split else op.attrs["axis"] for op in others if op not in self.ids}
        if not self.split:
            self.roots |= {op.result: X for op in self.ids}

    def by_division(self) -> dict[Op, None]:
        """The divisions of program numbers along x, if these have no other use and share one divisor that the launch knows."""
        found = dict.fromkeys(user for op in self.ids for user, _ in self.users.get(op.result, ()))
        divisors = {op.args[-1] for op in found}
        both = {op.name for op in found} == {"div", "rem"} and len(divisors) == 1
        at_top = all(self.facts.parent.get(op) is None for op in found)
        return found if both and at_top and of_launch(self.facts, *divisors) else {}

    def reuse(self) -> Reuse | str:
        arrays: tuple[dict[str, None], dict[str, None]] = {}, {}
        bytes, unshared, everywhere, around = [0, 0], None, False, dict[Op, None]()
        for load, loops in reading(self.func.body, ()):
            around.update(dict.fromkeys(loops))
            by = self.axes(load.args) - {Z}
            unshared, everywhere = load if by == {X, Y} else unshared, everywhere or not by
            for axis in by if len(by) == 1 else ():
                root, tile = self.facts.root(load.args[0]), load.result.type
                bytes[axis] += tile.size * tile.dtype.bytes
                arrays[axis][root.name if root is not None else "an array"] = None
        if not all(bytes):
            if not everywhere and (self.split or Y not in self.roots.values()):
                return "the kernel computes rows and columns from one axis, so it orders them itself"
            return "loops do not read some tiles that depend on x only and others that depend on y only"
        if unshared is not None:
            return f"the load{at_line(unshared)} reads a different tile in every program, so no order lets programs share it"
        if self.axes(value for loop in around for value in loop.args[:3]) - {Z}:
            return "the number of iterations differs between programs"
        return self.why_order_matters() or Reuse((tuple(arrays[X]), tuple(arrays[Y])), (bytes[X], bytes[Y]))

    def why_order_matters(self) -> str:
        """The reason why the order of programs, or the CTA that runs a program, may matter."""
        for op in self.func.ops():
            if op.name == "while":
                return f"the `while`{at_line(op)} may wait for programs that started before"
            if op.name in ATOMICS and result_is_used(op, self.users):
                return f"the {op.name}{at_line(op)} reveals the order in which programs start"
            if self.split and op.name in REPORTS:
                return f"the {op.name}{at_line(op)} reveals the numbers of programs"
            if op.name == "asm" and "ctaid" in op.attrs["text"]:
                return f"the assembly{at_line(op)} reads the id of its CTA"
        return ""

    def axes(self, values: Iterable[Value]) -> set[int]:
        """The axes of the grid on which values depend, through operands, loads and loop iterations."""
        found = set[int]()
        for value in reachable(values, lambda x: () if x in self.roots else sources(self.facts, x)):
            if value in self.roots:
                found.add(self.roots[value])
            elif (op := self.facts.definition.get(value)) is not None and op.name == "program_id":
                found |= {X, Y}  # a use of the number itself, besides the components that `split` computes
        return found


def with_swizzled_ids(func: Func, finder: ReuseFinder, width: int) -> Func:
    """A function with a one-dimensional grid in which each program has another position. A last, incomplete row keeps its order."""
    found: dict[str, Value] = {}

    def visit(op: Op, rewriter: Rebuild) -> Any:
        if op.id not in parts:
            return NotImplemented
        if not found:
            b, (number, across) = rewriter.builder, op.args
            one = b.const(1, t.int32)
            down = b.value("max", b.value("div", b.value("num_programs", axis=X), across), one)
            x, y = place(arithmetic(b), number, across, down, b.const(width, t.int32))
            full = b.value("cmp", number, b.value("mul", across, down), pred="lt")
            for name, value in (("rem", x), ("div", y)):
                found[name] = b.value("select", full, value, b.value(name, number, across))
        return [found[op.name]]

    parts = {op.id for op in finder.split}
    return rebuild(func, visit)
