"""Lowers scans: registers in sequence, then lanes by shuffles (Sklansky, "Conditional-Sum Addition Logic", 1960).

An index along the axis is a row of bits, each of which is a register bit or a lane bit of the layout. The pass `layout_assignment` keeps
warp bits out. The lowest bits that are register bits give each thread runs of consecutive elements. The code scans each run in
sequence, and then the totals of the runs, bit by bit from the lowest. In the step of a bit, each run whose index has the bit set adds the
total of the preceding half, which the last run of that half holds. That run is in a register known at compile time, and in a lane that
differs from the reader's in known bits. At the end each run combines the total of all earlier runs with its elements. A reverse scan
exchanges the meanings of the bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.element_types import llvm_type
from blocknb.codegen.gpu.math import ElementwiseMath, Values
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.gpu.warp_shuffles import from_lane
from blocknb.ir.core import Op
from blocknb.layouts.linear import Layout


class Scans(OpLowering):
    """Lowers scans within a warp."""

    def __init__(self, context: KernelContext, math: ElementwiseMath):
        super().__init__(context)
        self.math = math

    @lowers("scan")
    def scan(self, op: Op) -> None:
        """Combines each element with all before it along an axis."""
        layout = op.args[0].type.layout
        bits = hardware_bits(layout, op.attrs["axis"])
        run = 0  # the low bits that are register bits
        while run < len(bits) and bits[run][0] == "reg":
            run += 1
        scanner = Scanner(self.text, self.math, op, bits[:run], bits[run:])
        values = [tuple(self.registers.reg(x, register) for x in op.args) for register in range(layout.num_registers)]
        values = scanner.within_runs(values)
        if run < len(bits):
            values = scanner.across_runs(values)
        for i, result in enumerate(op.results):
            self.registers.set(result, [value[i] for value in values])


def hardware_bits(layout: Layout, axis: int) -> list[tuple[str, int]]:
    """For each bit of the index along the axis, low bit first, the register bit or lane bit that holds it."""
    held = {basis: (kind, position) for kind, position, basis in layout.bits()}
    bits = [held[1 << bit] for bit in layout.dim_bits(axis)]
    assert all(kind != "warp" for kind, _ in bits), "a scan along an axis that several warps share"
    return bits


@dataclass
class Scanner:
    """One scan: `low` are the bits of a run's elements, `high` those of the runs."""

    text: TextWriter
    math: ElementwiseMath
    op: Op
    low: list[tuple[str, int]]
    high: list[tuple[str, int]]

    @property
    def reverse(self) -> bool:
        """Whether the scan runs from the end."""
        return bool(self.op.attrs.get("reverse"))

    def registers(self, bits: list[tuple[str, int]]) -> int:
        """A mask of the register bits among these."""
        return sum(1 << position for kind, position in bits if kind == "reg")

    def last(self, register: int, bits: list[tuple[str, int]]) -> int:
        """The register in which all these bits select the last element."""
        mask = self.registers(bits)
        return register & ~mask if self.reverse else register | mask

    def combine(self, before: Values, after: Values) -> Values:
        """The combine block on two elements in order."""
        return self.math.combined(self.op, before, after)

    def select(self, condition: str, yes: Values, no: Values) -> Values:
        """One of two elements."""
        if condition == "true" or yes == no:
            return yes
        kinds = [llvm_type(x.type.dtype) for x in self.op.args]
        return tuple(
            self.text.emit(f"select i1 {condition}, {kind} {a}, {kind} {b}")
            for kind, a, b in zip(kinds, yes, no, strict=True)
        )

    def within_runs(self, values: list[Values]) -> list[Values]:
        """Scans each run, element after element."""
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
        """Scans the totals of the runs, and combines the total of all earlier runs with each element."""
        mask = self.registers(self.low)
        runs = [r for r in range(len(values)) if not r & mask]
        totals = {r: values[self.last(r, self.low)] for r in runs}
        before: dict[int, Values] = {}
        has = dict.fromkeys(runs, "false")  # whether a run has predecessors: a constant, or an i1
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
        """If the bit of run r is set (`later`), puts the carry before the prefix of the run."""
        if has[r] == "false":
            before[r], has[r] = carry, later
            return
        joined = self.select(has[r], self.combine(carry, before[r]), carry)
        before[r] = self.select(later, joined, before[r])
        has[r] = "true" if "true" in (later, has[r]) else self.text.emit(f"or i1 {has[r]}, {later}")

    def published(self, values: Values, kind: str, position: int, lower: list[tuple[str, int]]) -> Values:
        """The values of the last lane of the preceding half."""
        lanes = sum(1 << at for where, at in lower if where == "lane")
        if kind == "reg" and not lanes:
            return values
        set_bits, clear = (0, lanes) if self.reverse else (lanes, 0)
        if kind == "lane":
            set_bits, clear = (set_bits | 1 << position, clear) if self.reverse else (set_bits, clear | 1 << position)
        memo: dict = self.text.memo
        key, text = ("carry", values, set_bits, clear), self.text
        if key not in memo:
            lane = text.emit(f"or i32 %lane, {set_bits}") if set_bits else "%lane"
            lane = text.emit(f"and i32 {lane}, {31 & ~clear}") if clear else lane
            found = (from_lane(text, v, x.type.dtype, lane) for v, x in zip(values, self.op.args, strict=True))
            text.remember(memo, key, tuple(found))
        return memo[key]

    def lane_is_later(self, position: int) -> str:
        """Whether the thread's lane is in the second half."""

        def later() -> str:
            bit = self.text.emit(f"and i32 %lane, {1 << position}")
            return self.text.emit(f"icmp {'eq' if self.reverse else 'ne'} i32 {bit}, 0")

        return self.text.once(("later", position, self.reverse), later)
