"""Scans of long rows, one part per warp (a two-level parallel prefix sum).

A scan needs each line within one warp. If a tile has fewer lines than the program has warps, warps would repeat each other's work. So the
axis is split into parts, which count as lines. The scan becomes ordinary ops: the scan of the parts, their last elements, the scan of
those, shifted by one part, and the combine function once more. Source: Blelloch, "Prefix Sums and Their Applications" (1990).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blocknb.ir.build import Builder, Rebuild, emit_copy, rebuild
from blocknb.ir.core import Func, Op, Value
from blocknb.language import types as t
from blocknb.language.types import Tile
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes

LEAST = 64  # elements of the shortest part that pays


@gpu_pass()
def scans(func: Func, target: Target, notes: Notes) -> Func:
    """Splits the scans of long rows into one part per warp

    When: a scan has fewer rows than the program has warps.

    What: each warp scans its part. The totals of the parts are scanned, and each part is combined with the total of the parts before it.

    Why: a scan wants a row within one warp. With fewer rows than warps, warps would repeat each other's work and hold too many registers.

    Limits: a part has at least 64 elements, and the combine function has no nested blocks.

    Before:

        %y = scan %x {axis=0} add : tile<1024xf32>

    After:

        %parts = reshape %x {shape=(4, 256)} : tile<4x256xf32>
        %own = scan %parts {axis=1} add : tile<4x256xf32>
        %totals = reduce %own, %is_last {axis=1} : tile<4xf32>
        %sums = scan %totals {axis=0} add : tile<4xf32>
        %before = gather %sums, %previous {axis=0} : tile<4xf32>
        %both = add %before_all, %own : tile<4x256xf32>
        %whole = select %is_first, %own, %both : tile<4x256xf32>
        %y = reshape %whole {shape=(1024)} : tile<1024xf32>
    """
    return rebuild(func, cut(func.attrs["num_warps"], notes))


def cut(num_warps: int, notes: Notes) -> Callable:
    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name != "scan" or any(inner.blocks for inner in op.blocks[0].ops):
            return NotImplemented
        shape, axis = op.args[0].type.shape, op.attrs["axis"]
        lines = op.args[0].type.size // shape[axis]
        parts = min(num_warps // lines, shape[axis] // LEAST)
        if parts < 2:
            return NotImplemented
        notes(op, f"cut into {parts} parts of {shape[axis] // parts} elements")
        return SplitScan(op, rebuild.builder, parts).write()

    return visit


class SplitScan:
    """One scan, split: its axis becomes two axes, the number of the part and the position in it."""

    def __init__(self, op: Op, builder: Builder, parts: int):
        self.op, self.b, self.parts, self.axis = op, builder, parts, op.attrs["axis"]
        shape = op.args[0].type.shape
        self.shape = (*shape[: self.axis], parts, shape[self.axis] // parts, *shape[self.axis + 1 :])
        self.reverse = bool(op.attrs.get("reverse"))

    def write(self) -> list[Value]:
        b = self.b
        cut = [b.value("reshape", x, shape=self.shape) for x in self.op.args]
        inside = self.scan(cut, self.axis + 1)
        totals = self.scan(self.last(inside), self.axis)
        before = self.shifted(totals)
        joined = self.combine([*before, *inside])
        first = self.index(self.axis, self.parts - 1 if self.reverse else 0)
        whole = [b.value("select", first, own, both) for own, both in zip(inside, joined, strict=True)]
        return [b.value("reshape", x, shape=self.op.args[0].type.shape) for x in whole]

    def scan(self, tiles: Sequence[Value], axis: int) -> list[Value]:
        copy = self.op.replace(args=tuple(tiles), attrs={**self.op.attrs, "axis": axis}, blocks=self.op.blocks)
        copy = copy.replace(results=tuple(Value(x.type) for x in tiles))
        return list(emit_copy(copy, self.b, {}).results)

    def index(self, axis: int, wanted: int) -> Value:
        """Whether the index along an axis equals a number, as a mask of the parts' shape."""
        b = self.b
        found = b.value("cmp", *self.counted(axis, wanted), pred="eq")
        for other in range(len(self.shape)):
            if other != axis:
                found = b.value("expand_dims", found, axis=other)
        return b.value("broadcast", found, shape=self.shape)

    def counted(self, axis: int, number: int) -> tuple[Value, Value]:
        """The indices along an axis, and a number as a tile of the same shape."""
        size = self.shape[axis]
        return self.b.value("arange", start=0, end=size), self.b.const(number, Tile(t.int32, (size,)))

    def last(self, tiles: list[Value]) -> list[Value]:
        """The last element of each part: a reduction in which the marked element wins, in any order."""
        b, axis = self.b, self.axis + 1
        marked = self.index(axis, 0 if self.reverse else self.shape[axis] - 1)
        kinds = [*(x.type.dtype for x in tiles), t.int1]
        left, right = ([Value(Tile(kind)) for kind in kinds] for _ in range(2))
        with b.block((*left, *right)) as block:
            chosen = [b.value("select", left[-1], x, y) for x, y in zip(left[:-1], right[:-1], strict=True)]
            b.op("yield", *chosen, b.value("or", left[-1], right[-1]))
        return list(b.op("reduce", *tiles, marked, blocks=(block.done,), axis=axis).results[:-1])

    def shifted(self, totals: list[Value]) -> list[Value]:
        """The total of all parts before each part, in the parts' shape; undefined for the first part."""
        b, axis = self.b, self.axis
        moved = b.value("add", *self.counted(axis, 1 if self.reverse else -1))
        few = self.shape[: axis + 1] + self.shape[axis + 2 :]
        for other in range(len(few)):
            if other != axis:
                moved = b.value("expand_dims", moved, axis=other)
        moved = b.value("broadcast", moved, shape=few)
        found = []
        for total in totals:
            column = b.value("expand_dims", b.value("gather", total, moved, axis=axis), axis=axis + 1)
            found.append(b.value("broadcast", column, shape=self.shape))
        return found

    def combine(self, operands: Sequence[Value]) -> list[Value]:
        """Applies the combine block to whole tiles."""
        b, block = self.b, self.op.blocks[0]
        at = dict(zip(block.args, operands, strict=True))
        for inner in block.ops[:-1]:
            if inner.name == "const":
                at[inner.result] = b.const(inner.attrs["value"], Tile(inner.result.type.dtype, self.shape))
            else:
                at[inner.result] = b.value(inner.name, *(self.whole(x, at) for x in inner.args), **inner.attrs)
        return [self.whole(x, at) for x in block.terminator.args]

    def whole(self, value: Value, at: dict[Value, Value]) -> Value:
        """A value of the combine block as a tile; a value from outside is splatted."""
        if value not in at:
            at[value] = self.b.value("splat", value, shape=self.shape)
        return at[value]
