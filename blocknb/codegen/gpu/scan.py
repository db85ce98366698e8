"""Lowers scans: registers in sequence, then lanes by shuffles (Sklansky, "Conditional-Sum Addition Logic", 1960), then warps.

An index along the axis is a row of bits. Each of them is a register bit, a lane bit or a warp bit of the layout; warp bits are the highest.
The lowest bits that are register bits give each thread runs of consecutive elements. The code scans each run in sequence, and then the
totals of the runs, bit by bit from the lowest. In the step of a bit, each run whose index has the bit set adds the total of the preceding
half. The last run of that half holds it. That run is in a register known at compile time, and in a lane that differs from the reader's in
known bits. A shuffle then fetches the total of all earlier runs, which each element of the run is combined with. A reverse scan exchanges
the meanings of the bits.

Between warps the IR moves the totals. A `reduce` that names its scan gives the total of each warp, and the scan takes those of all warps.
Both share one computation of the runs.
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

HardwareBits = list[tuple[str, int]]


class Scans(OpLowering):
    """Lowers scans, and the reductions that give a scan the totals of the warps."""

    def __init__(self, context: KernelContext, math: ElementwiseMath):
        super().__init__(context)
        self.math = math

    @lowers("scan")
    def scan(self, op: Op) -> None:
        """Combines each element with all before it along an axis."""
        count = len(op.results)
        scanner, runs = self.scanned_runs(op)
        outside = self.before_warp(op, scanner) if len(op.args) > count else None
        values = scanner.whole(*runs, outside)
        for i, result in enumerate(op.results):
            self.registers.set(result, [value[i] for value in values])

    def totals(self, op: Op) -> None:
        """The total of each warp, by a reduction whose `scan` names a scan of the same operands."""
        scanner, (_, totals) = self.scanned_runs(op)
        slices = op.args[0].type.layout.slice_registers(op.attrs["axis"])
        by_slice = {slices[r]: scanner.last_of_all(totals, r) for r in totals}
        for i, result in enumerate(op.results):
            self.registers.set(result, [by_slice[number][i] for number in sorted(by_slice)])

    def scanned_runs(self, op: Op) -> tuple[Scanner, tuple[list[Values], dict[int, Values]]]:
        """The elements scanned within their runs, and the totals of the runs scanned within the warp."""
        tiles = op.args[: len(op.results)]
        layout = tiles[0].type.layout
        bits = hardware_bits(layout, op.attrs["axis"])
        run = 0  # the low bits that are register bits
        while run < len(bits) and bits[run][0] == "reg":
            run += 1
        if bits[run:] != sorted(bits[run:], key=lambda bit: (bit[0] == "reg", bit[1] if bit[0] == "lane" else 0)):
            run = 0  # the run before a run is not in the lane or register before
        scanner = Scanner(self.text, self.math, op, bits[:run], bits[run:])
        memo: dict = self.text.memo
        key = ("runs of scan", op.attrs.get("scan"))
        if key[1] is not None and key in memo:
            return scanner, memo[key]
        values = [tuple(self.registers.reg(x, register) for x in tiles) for register in range(layout.num_registers)]
        values = scanner.within_runs(values)
        found = values, scanner.across_runs(values)
        if key[1] is not None:
            self.text.remember(memo, key, found)
        return scanner, found

    def before_warp(self, op: Op, scanner: Scanner) -> tuple[str, list[Values]]:
        """Whether warps come before this one, and for each register the total of those on its slice."""
        count, axis = len(op.results), op.attrs["axis"]
        layout, gathered = op.args[0].type.layout, op.args[count].type.layout
        slice_of, start = gathered.slice_registers(axis), gathered.dim_bits(axis).start
        slices: dict[int, dict[int, Values]] = {}
        for register, index in enumerate(gathered.register_indices):
            part = (index & gathered.dim_mask(axis)) >> start
            values = tuple(self.registers.reg(x, register) for x in op.args[count:])
            slices.setdefault(slice_of[register], {})[part] = values
        warps = [position for position, basis in enumerate(layout.warp) if basis & layout.dim_mask(axis)]
        number = self.threads.thread_index(
            [0] * 5, [1 << warps.index(p) if p in warps else 0 for p in range(len(layout.warp))]
        )
        found = {index: scanner.before(number, parts) for index, parts in slices.items()}
        last = len(slices[0]) - 1
        some = self.text.emit(f"icmp ne i32 {number}, {last if scanner.reverse else 0}")
        return some, [found[index] for index in layout.slice_registers(axis)]


def hardware_bits(layout: Layout, axis: int) -> HardwareBits:
    """For each bit of the index along the axis within a warp, low bit first, the register bit or lane bit that holds it."""
    held = {basis: (kind, position) for kind, position, basis in layout.bits()}
    bits = [held[1 << bit] for bit in layout.dim_bits(axis)]
    while bits and bits[-1][0] == "warp":
        bits.pop()
    assert all(kind != "warp" for kind, _ in bits), "warps hold parts of a scan's axis that are not consecutive"
    return bits


@dataclass
class Scanner:
    """One scan: `low` are the bits of a run's elements, `high` those of the runs."""

    text: TextWriter
    math: ElementwiseMath
    op: Op
    low: HardwareBits
    high: HardwareBits

    @property
    def reverse(self) -> bool:
        """Whether the scan runs from the end."""
        return bool(self.op.attrs.get("reverse"))

    def registers(self, bits: HardwareBits) -> int:
        """A mask of the register bits among these."""
        return sum(1 << position for kind, position in bits if kind == "reg")

    def lanes(self, bits: HardwareBits) -> int:
        """A mask of the lane bits among these."""
        return sum(1 << position for kind, position in bits if kind == "lane")

    def last(self, register: int, bits: HardwareBits) -> int:
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
            for kind, a, b in zip(kinds, yes, no, strict=False)
        )

    # -- steps

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

    def across_runs(self, values: list[Values]) -> dict[int, Values]:
        """For the first register of each run, the total of the run and of all earlier ones of the warp."""
        mask = self.registers(self.low)
        totals = {r: values[self.last(r, self.low)] for r in range(len(values)) if not r & mask}
        for number, (kind, position) in enumerate(self.high):
            lower, new = self.high[:number], dict(totals)
            for r in totals:
                if kind == "reg" and bool(r >> position & 1) == self.reverse:
                    continue
                sibling = r ^ 1 << position if kind == "reg" else r
                carry = self.published(totals[self.last(sibling, lower)], kind, position, lower)
                later = "true" if kind == "reg" else self.lane_is_later(position)
                new[r] = self.select(later, self.combine(carry, totals[r]), totals[r])
            totals = new
        return totals

    def whole(
        self, values: list[Values], totals: dict[int, Values], outside: tuple[str, list[Values]] | None
    ) -> list[Values]:
        """Combines each element with the total of everything before its run: in the warp, and `outside` of it."""
        mask, result = self.registers(self.low), list(values)
        before: dict[int, tuple[str, Values]] = dict.fromkeys(totals, ("false", ()))
        if mask:
            before = {r: self.before_run(totals, r) for r in totals}
        for r in totals:
            has, carry = before[r]
            if outside is not None:
                some, theirs = outside[0], outside[1][r]
                joined = theirs if has == "false" else self.select(has, self.combine(theirs, carry), theirs)
                carry = joined if has == "false" else self.select(some, joined, carry)
                has = some if has == "false" else has if has == "true" else self.text.emit(f"or i1 {has}, {some}")
            before[r] = has, carry
        for r in range(len(values)):
            has, carry = before[r & ~mask]
            own = values[r] if mask else totals[r]
            result[r] = own if has == "false" else self.select(has, self.combine(carry, own), own)
        return result

    def before_run(self, totals: dict[int, Values], r: int) -> tuple[str, Values]:
        """Whether runs of the warp come before this one, and their total: that of the run before, in the lane or register before."""
        previous = self.register_before(r)
        lanes = self.lanes(self.high)
        if not lanes:
            return ("false", ()) if previous is None else ("true", totals[previous])
        own = self.from_lane_before(totals[r], lanes)
        if previous is None:
            return self.text.once(("has before", lanes, self.reverse), lambda: self.compare_lane("ne", lanes)), own
        first = self.text.once(("is first", lanes, self.reverse), lambda: self.compare_lane("eq", lanes))
        return "true", self.select(first, self.from_lane_before(totals[previous], lanes), own)

    def register_before(self, r: int) -> int | None:
        """The register that holds the runs before those of register r; None for the first one."""
        for kind, position in self.high:
            if kind == "reg":
                r ^= 1 << position
                if bool(r >> position & 1) == self.reverse:
                    return r
        return None

    def compare_lane(self, how: str, lanes: int) -> str:
        """Compares the thread's place among these lane bits with the first one."""
        place = self.text.emit(f"and i32 %lane, {lanes}")
        return self.text.emit(f"icmp {how} i32 {place}, {lanes if self.reverse else 0}")

    def from_lane_before(self, values: Values, lanes: int) -> Values:
        """The values of the lane before by these lane bits; the first lane gets those of the last one."""

        def lane_before() -> str:
            text, low = self.text, lanes & -lanes
            if self.reverse:  # the bits in between pass the carry on
                moved = text.emit(f"add i32 {text.emit(f'or i32 %lane, {31 & ~lanes}')}, {low}")
            else:
                moved = text.emit(f"add i32 {text.emit(f'and i32 %lane, {lanes}')}, {-low}")
            moved = text.emit(f"and i32 {moved}, {lanes}")
            return moved if lanes == 31 else text.emit(f"or i32 {moved}, {text.emit(f'and i32 %lane, {31 & ~lanes}')}")

        return self.shuffled(values, self.text.once(("lane before", lanes, self.reverse), lane_before))

    def last_of_all(self, totals: dict[int, Values], r: int) -> Values:
        """The total of the warp on the slice of register r, in all lanes."""
        values, lanes = totals[self.last(r, self.high)], self.lanes(self.high)
        if not lanes:
            return values
        bits = f"and i32 %lane, {31 & ~lanes}" if self.reverse else f"or i32 %lane, {lanes}"
        return self.shuffled(values, self.text.once(("last lane", bits), lambda: self.text.emit(bits)))

    def before(self, number: str, parts: dict[int, Values]) -> Values:
        """The total of the parts before part `number`, an i32; anything for the first one."""
        order = sorted(parts, reverse=self.reverse)
        total = found = parts[order[0]]
        for part in order[1:-1]:
            total = self.combine(total, parts[part])
            later = self.text.emit(f"icmp {'slt' if self.reverse else 'sgt'} i32 {number}, {part}")
            found = self.select(later, total, found)
        return found

    def published(self, values: Values, kind: str, position: int, lower: HardwareBits) -> Values:
        """The values of the last lane of the preceding half."""
        lanes = self.lanes(lower)
        if kind == "reg" and not lanes:
            return values
        set_bits, clear = (0, lanes) if self.reverse else (lanes, 0)
        if kind == "lane":
            set_bits, clear = (set_bits | 1 << position, clear) if self.reverse else (set_bits, clear | 1 << position)

        def source() -> str:
            lane = self.text.emit(f"or i32 %lane, {set_bits}") if set_bits else "%lane"
            return self.text.emit(f"and i32 {lane}, {31 & ~clear}") if clear else lane

        return self.shuffled(values, self.text.once(("last lane of half", set_bits, clear), source))

    def shuffled(self, values: Values, lane: str) -> Values:
        """The values of the lane with this number."""
        memo: dict = self.text.memo
        key = ("shuffled", values, lane)
        if key not in memo:
            found = (from_lane(self.text, v, x.type.dtype, lane) for v, x in zip(values, self.op.args, strict=False))
            self.text.remember(memo, key, tuple(found))
        return memo[key]

    def lane_is_later(self, position: int) -> str:
        """Whether the thread's lane is in the second half."""

        def later() -> str:
            bit = self.text.emit(f"and i32 %lane, {1 << position}")
            return self.text.emit(f"icmp {'eq' if self.reverse else 'ne'} i32 {bit}, 0")

        return self.text.once(("later", position, self.reverse), later)
