"""Lowers copies by Hopper's TMA engine (PTX ISA: cp.async.bulk.tensor).

A tensor map is a hidden parameter, which the host fills at launch. The generator turns the ops that compute its operands
into expressions for the host, and emits no code for them. One thread issues one instruction for each box, and an mbarrier counts the bytes.
Addresses in shared memory have 32 bits, and the offset of a buffer is an immediate of the instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blocknb.codegen.gpu.cache_hints import CacheHint
from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.mbarrier_lowering import Instruction, Mbarriers
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.maps import MapSpec
from blocknb.errors import CompilerBug
from blocknb.ir.core import Op, Value
from blocknb.language.bulk import TensorMap
from blocknb.language.types import Buffer
from blocknb.layouts import gf2

ALL = "ctas"  # the register of a mask of all CTAs of a cluster of two


class TensorMapMaker(OpLowering):
    """Lowers tensor maps to parameters, with expressions from which the host computes their fields."""

    @lowers("tensor_map")
    def tensor_map(self, op: Op) -> None:
        """Adds a map for the host to encode. The name of the result is that of the parameter."""
        kind, (base, *numbers) = op.attrs["type"], op.args
        rank, found = len(kind.box), [self.expression(x) for x in numbers]
        stored = any(user.name == "store_bulk" for user, _ in self.users.get(op.result, ()))
        dims, strides = tuple(found[:rank]), tuple(found[rank:])
        spec = MapSpec(self.func.params.index(base), kind.dtype, kind.box, kind.swizzle, dims, strides, stored)
        self.registers.set(op.result, [self.interface.add_map(spec)])

    def expression(self, value: Value) -> Any:
        """A number as the host computes it from parameters and constants (see `codegen.maps`)."""
        if value in self.func.params:
            return ("arg", self.func.params.index(value))
        if (op := self.defs.get(value)) is None:
            raise CompilerBug(f"{value} of a tensor map is not known when the kernel is launched")
        match op.name:
            case "const":
                return int(op.attrs["value"])
            case "promise":
                return self.expression(op.args[0])
            case "neg":
                return ("sub", 0, self.expression(op.args[0]))
            case "cast":
                return ("cast", value.type.dtype.short, self.expression(op.args[0]))
            case "cmp":
                return (op.attrs["pred"], *(self.expression(x) for x in op.args))
            case "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "select" as name:
                return (name, *(self.expression(x) for x in op.args))
        raise CompilerBug(f"an extent or stride of a tensor map is made by {op.name}", op.loc)


class TensorCopies(OpLowering):
    """Lowers copies between buffers and boxes of arrays."""

    def __init__(self, context: KernelContext, barriers: Mbarriers):
        super().__init__(context)
        self.barriers = barriers

    def own_half(self, found: Sequence[tuple[dict[int, int], int]], names: list[str], start: str) -> str:
        """Moves the coordinates to the half of the boxes that this CTA of a cluster copies; returns the address of their buffer."""
        emit, (first, second) = self.text.emit, (found[0], found[len(found) // 2])
        rank = emit(f"and i32 {self.threads.special('ctaid.x')}, 1")
        for axis, distance in second[0].items():
            if distance:
                names[axis] = emit(f"add i32 {names[axis]}, {emit(f'mul i32 {rank}, {distance}')}")
        return emit(f"add i32 {start}, {emit(f'mul i32 {rank}, {second[1] - first[1]}')}")

    def coordinates(self, values: Sequence[str], moved: Mapping[int, int]) -> list[str]:
        """The coordinates of a box in the order of the instruction, inner axis first."""
        names = list(values)
        for axis, distance in moved.items():
            if distance:
                names[axis] = self.text.emit(f"add i32 {names[axis]}, {distance}")
        return names[::-1]

    @lowers("copy_bulk")
    def copy(self, op: Op) -> None:
        """Copies boxes to a buffer. An mbarrier counts their bytes."""
        buffer, map, barriers, index = op.args[:4]
        start, offset = self.buffers.place(buffer)
        signal, at = self.barriers.address(barriers, index)
        made: list[Instruction] = []
        found, values = list(boxes(buffer.type, map.type, op.attrs["axes"], op.attrs.get("extents"))), op.args[4:]
        own = [self.registers.reg(v) for v in values]
        form, tail = f"cp.async.bulk.tensor.{len(own)}d.shared::cluster.global.mbarrier::complete_tx::bytes", ""
        if op.attrs.get("multicast"):
            start = self.own_half(found, own, start)
            found, form, tail = found[: len(found) // 2], f"{form}.multicast::cluster", f", {ALL}"
        keep = CacheHint.of(op, self.target)
        form, tail = form + keep.suffix, tail + keep.last(3 + len(own))
        for moved, distance in found:
            names = self.coordinates(own, moved)
            where = ", ".join(f"${3 + i}" for i in range(len(names)))
            ptx = f"{form} [$0+{offset + distance}], [$1, {{{where}}}], [$2+{at}]{tail};"
            if op.attrs.get("multicast"):
                ptx = f"{{ .reg .b16 {ALL}; mov.u16 {ALL}, 3; {ptx} }}"
            operands = [f"i32 {start}", f"ptr {self.registers.reg(map)}", f"i32 {signal}", *(f"i32 {x}" for x in names)]
            made.append((ptx, [*operands, *keep.operands], "rlr" + "r" * len(names) + "l" * len(keep.operands)))
        self.barriers.by_one(*made)

    @lowers("store_bulk")
    def store(self, op: Op) -> None:
        """Stores the boxes of a buffer and commits them as a group. With a `layout`, each warp stores its own boxes. Their distance from
        the first warp's boxes follows from the number of the warp."""
        text, (map, buffer) = self.text, op.args[:2]
        start, offset = self.buffers.place(buffer)
        layout, further = op.attrs.get("layout"), dict[int, str]()
        found = list(boxes(buffer.type, map.type, op.attrs["axes"]))
        if layout is not None:
            own, columns = gf2.Span((*layout.reg, *layout.lane)), buffer.type.shape[1]
            rows, across = op.attrs["axes"]
            found = [x for x in found if x[0][rows] * columns + x[0][across] in own]
            for axis, to in enumerate((rows, across)):
                steps = [(basis & layout.dim_mask(axis)) >> layout.dim_bits(axis).start for basis in layout.warp]
                further[to] = self.threads.of_warp(steps) if any(steps) else ""
            places = [buffer.type.layout.offset(basis) * buffer.type.dtype.bytes for basis in layout.warp]
            start = text.emit(f"add i32 {start}, {self.threads.of_warp(places)}")
        does, how = ("cp.reduce.async.bulk", ".add.tile") if op.attrs.get("adds") else ("cp.async.bulk", "")
        made: list[Instruction] = []
        for moved, distance in found:
            names = self.coordinates([self.registers.reg(v) for v in op.args[2:]], moved)
            for axis, more in further.items():
                if more:
                    names[len(names) - 1 - axis] = text.emit(f"add i32 {names[len(names) - 1 - axis]}, {more}")
            where = ", ".join(f"${2 + i}" for i in range(len(names)))
            form = f"{does}.tensor.{len(names)}d.global.shared::cta{how}.bulk_group"
            ptx = f"{form} [$1, {{{where}}}], [$0+{offset + distance}];"
            operands = [f"i32 {start}", f"ptr {self.registers.reg(map)}", *(f"i32 {x}" for x in names)]
            made.append((ptx, operands, "rl" + "r" * len(names)))
        self.barriers.by_one(*made, ("cp.async.bulk.commit_group;", [], ""), each=layout is not None)

    @lowers("store_wait")
    def wait(self, op: Op) -> None:
        """Waits until the engine has read all groups of stores, except for a number of the newest ones."""
        ptx = f"cp.async.bulk.wait_group.read {op.attrs['in_flight']};"
        self.text.asm(ptx, ["~{memory}"], [], convergent=True)


def boxes(
    type: Buffer, kind: TensorMap, axes: Sequence[int], extents: Sequence[int] | None = None
) -> Iterator[tuple[dict[int, int], int]]:
    """The boxes of a buffer, or of its first elements along each axis (`extents`). A box has its place along the axes of the map, and its
    distance from the start of the buffer in bytes."""
    rows, columns = extents or type.shape
    for row in range(0, rows, kind.box[axes[0]]):
        for column in range(0, columns, kind.box[axes[1]]):
            yield {axes[0]: row, axes[1]: column}, type.layout.offset(row * type.shape[1] + column) * type.dtype.bytes
