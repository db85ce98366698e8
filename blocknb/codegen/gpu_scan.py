"""Scans of the GPU code generator: registers in sequence, then lanes by shuffles.

An index along the axis is a row of bits, each of which is a register bit or a lane bit of the layout (the pass `layout_assignment` sees to
it that no warp bit is among them). The lowest of them that are register bits make runs of consecutive elements within a thread:
these are scanned one after another. What remains is to scan the totals of the runs, bit by bit from below (Sklansky): where the
bit is set, the total of everything in the half before comes first, and that is held at one known place, where all lower bits are
set: a register number known when compiling, and a lane that differs from the reader's in known bits. Along with each total goes
what stands before its run, which the elements of the run are combined with at the end. A reverse scan is the same with the
bits' meanings exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blocknb.codegen.gpu_math import llvm_type
from blocknb.codegen.gpu_warp import combined, from_lane
from blocknb.ir.core import Op
from blocknb.layouts.linear import Layout

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

Values = tuple[str, ...]  # one name for each operand


def scan(g: Generator, op: Op) -> None:
    layout = op.args[0].type.layout
    bits = hardware_bits(layout, op.attrs["axis"])
    run = 0  # the low bits that are register bits
    while run < len(bits) and bits[run][0] == "reg":
        run += 1
    scanner = Scanner(g, op, bits[:run], bits[run:])
    values = [tuple(g.reg(x, register) for x in op.args) for register in range(layout.num_registers)]
    values = scanner.within_runs(values)
    if run < len(bits):
        values = scanner.across_runs(values)
    for i, result in enumerate(op.results):
        g.set(result, [value[i] for value in values])


def hardware_bits(layout: Layout, axis: int) -> list[tuple[str, int]]:
    """For each bit of the index along the axis, low bit first, the register or lane bit that it is."""
    held = {basis: (kind, position) for kind, position, basis in layout.bits()}
    bits = [held[1 << bit] for bit in layout.dim_bits(axis)]
    assert all(kind != "warp" for kind, _ in bits), "a scan along an axis that several warps share"
    return bits


@dataclass
class Scanner:
    """One scan: `low` are the bits of a run's elements, `high` those of the runs."""

    g: Generator
    op: Op
    low: list[tuple[str, int]]
    high: list[tuple[str, int]]

    @property
    def reverse(self) -> bool:
        return bool(self.op.attrs.get("reverse"))

    def registers(self, bits: list[tuple[str, int]]) -> int:
        """A mask of the register bits among these."""
        return sum(1 << position for kind, position in bits if kind == "reg")

    def last(self, register: int, bits: list[tuple[str, int]]) -> int:
        """The register where all these bits have the value that comes last."""
        mask = self.registers(bits)
        return register & ~mask if self.reverse else register | mask

    def combine(self, before: Values, after: Values) -> Values:
        return combined(self.g, self.op, before, after)

    def select(self, condition: str, yes: Values, no: Values) -> Values:
        if condition == "true" or yes == no:
            return yes
        kinds = [llvm_type(x.type.dtype) for x in self.op.args]
        return tuple(
            self.g.emit(f"select i1 {condition}, {kind} {a}, {kind} {b}")
            for kind, a, b in zip(kinds, yes, no, strict=True)
        )

    def within_runs(self, values: list[Values]) -> list[Values]:
        """Each run by itself, element after element."""
        result, mask = list(values), self.registers(self.low)
        for start in (r for r in range(len(values)) if not r & mask):
            order = [start]
            for _, position in self.low:
                order += [r | 1 << position for r in order]
            for before, at in zip(
                *((order[::-1][:-1], order[::-1][1:]) if self.reverse else (order, order[1:])), strict=False
            ):
                result[at] = self.combine(result[before], values[at])
        return result

    def across_runs(self, values: list[Values]) -> list[Values]:
        """Scans the totals of the runs, and puts what stands before a run in front of its elements."""
        mask = self.registers(self.low)
        runs = [r for r in range(len(values)) if not r & mask]
        totals = {r: values[self.last(r, self.low)] for r in runs}
        before: dict[int, Values] = {}
        has = dict.fromkeys(runs, "false")  # whether anything stands before a run: known, or an i1
        single = not mask  # a run is one element: its total is the result
        for number, (kind, position) in enumerate(self.high):
            lower, new = self.high[:number], dict(totals)
            for r in runs:
                if kind == "reg" and bool(r >> position & 1) == self.reverse:
                    continue
                sibling = r ^ 1 << position if kind == "reg" else r
                carry = self.published(totals[self.last(sibling, lower)], kind, position, lower)
                later = "true" if kind == "reg" else self.lane_is_later(position)
                new[r] = self.select(later, self.combine(carry, totals[r]), totals[r])
                if not single:
                    self.prepend(r, carry, later, before, has)
            totals = new
        if single:
            return [totals[r] for r in range(len(values))]
        result = list(values)
        for r in range(len(values)):
            run = r & ~mask
            if has[run] != "false":
                result[r] = self.select(has[run], self.combine(before[run], values[r]), values[r])
        return result

    def prepend(self, r: int, carry: Values, later: str, before: dict[int, Values], has: dict[int, str]) -> None:
        """Where this bit says `later`, the carry stands before all that stood before run r."""
        if has[r] == "false":
            before[r], has[r] = carry, later
            return
        joined = self.select(has[r], self.combine(carry, before[r]), carry)
        before[r] = self.select(later, joined, before[r])
        has[r] = "true" if "true" in (later, has[r]) else self.g.emit(f"or i1 {has[r]}, {later}")

    def published(self, values: Values, kind: str, position: int, lower: list[tuple[str, int]]) -> Values:
        """The values as the last lane of the half before has them."""
        g = self.g
        lanes = sum(1 << at for where, at in lower if where == "lane")
        if kind == "reg" and not lanes:
            return values
        set_bits, clear = (0, lanes) if self.reverse else (lanes, 0)
        if kind == "lane":
            set_bits, clear = (set_bits | 1 << position, clear) if self.reverse else (set_bits, clear | 1 << position)
        key = ("carry", values, set_bits, clear)
        if key not in g.memo:
            lane = g.emit(f"or i32 %lane, {set_bits}") if set_bits else "%lane"
            lane = g.emit(f"and i32 {lane}, {31 & ~clear}") if clear else lane
            found = tuple(from_lane(g, v, x.type.dtype, lane) for v, x in zip(values, self.op.args, strict=True))
            g.remember(g.memo, key, found)  # type: ignore[arg-type]
        return g.memo[key]  # type: ignore[return-value]

    def lane_is_later(self, position: int) -> str:
        """Whether the own lane lies in the half that comes second."""
        g, key = self.g, ("later", position, self.reverse)
        if key not in g.memo:
            with g.writing(g.entry, ""):
                bit = g.emit(f"and i32 %lane, {1 << position}")
                g.memo[key] = g.emit(f"icmp {'eq' if self.reverse else 'ne'} i32 {bit}, 0")
        return g.memo[key]
