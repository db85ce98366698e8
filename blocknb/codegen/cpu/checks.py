"""Bounds checks of the CPU's code: the kernel reports an access that would leave its array, and returns.

The bounds are those of the argument that the pointer comes from. Where only the launch decides that, `carried_bounds` carries the
owner with the pointer, and the owner selects the bounds. One comparison checks a contiguous row. Vector comparisons check each
lane of other rows. If a check fails, a cold block finds the first lane at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from blocknb.codegen.cpu.builder import KernelBuilder, ScalarNames
from blocknb.codegen.cpu.status import violation
from blocknb.codegen.report import Site
from blocknb.codegen.scalar_math.register_types import constant
from blocknb.codegen.text import vector_type
from blocknb.ir.core import Op
from blocknb.ir.provenance import UNOWNED
from blocknb.ir.report import access
from blocknb.language import types as t
from blocknb.passes.support.carried_bounds import Guard

EVERYWHERE = ("0", "0", "-1")  # address, lower and upper bound of memory that no argument describes
NOWHERE = ("0", "0", "0")  # of memory without a byte


@dataclass(frozen=True)
class AccessBounds:
    """The bounds with which a check compares an access: i64 operands, of `width` lanes (1: scalars that hold for all lanes)."""

    number: str
    start: str
    lower: str
    upper: str
    size: int
    width: int = 1


class BoundsChecks:
    """Emits bounds checks, and numbers the sites that may fail, from `first_site` on.

    `guards`: the guard of each access by op id. `owners` has the owner's register of an access in a loop nest and its width (1: the same
    for all lanes).
    """

    def __init__(self, code: KernelBuilder, guards: Mapping[int, Guard], scalars: ScalarNames, first_site: int):
        self.code, self.guards, self.scalars, self.first_site = code, guards, scalars, first_site
        self.sites: list[Site] = []
        self.owners: dict[Op, tuple[str, int]] = {}
        self._numbers: dict[Op, int] = {}
        #: For each pointer argument: the bytes of its array if that is read-only, else 0.
        self._read_only_bytes: dict[int, str] = {}

    def load_read_only(self, readonly: str) -> None:
        """Computes which arrays the kernel must not store to, from the bits of read-only arguments (an i64)."""
        c = self.code
        for argument, (_, lower, upper) in self.code.bounds.items():
            bit = c.w.value(f"trunc i64 {c.binary('lshr', readonly, str(min(argument, 63)), 'i64', 1)} to i1")
            size = c.select(bit, c.i64("sub", upper, lower), "0", "i64", 1)
            self.scalars.types[size] = "i64"
            self._read_only_bytes[argument] = size

    # -- sites -----------------------------------------------------------------------------------------------------------

    def guard(self, op: Op) -> Guard | None:
        return self.guards.get(op.id)

    def place(self, op: Op, lane: str | None = None) -> AccessBounds | None:
        """The bounds of an access; None if it is not checked. `lane` (an i64) selects the owner of one lane if lanes have different
        owners."""
        if (guard := self.guard(op)) is None:
            return None
        size = op.args[0].type.dtype.element.bytes
        cases = self._cases(op, guard)
        if guard.carried is None:
            ((_, known),) = cases
            return AccessBounds(*known, size)
        c = self.code
        owner, width = self.owners[op] if op in self.owners else (self.scalars.of(guard.carried), 1)
        if lane is not None:
            owner, width = c.w.value(f"extractelement {vector_type('i32', width)} {owner}, i64 {lane}"), 1
        *others, (_, chosen) = cases
        values: list[str] = [c.splat(value, "i64", width) for value in chosen]
        for argument, candidate in reversed(others):
            is_owner = c.w.value(f"icmp eq {vector_type('i32', width)} {owner}, {constant(argument, t.int32, width)}")
            splats = [c.splat(value, "i64", width) for value in candidate]
            values = [c.select(is_owner, a, b, "i64", width) for a, b in zip(splats, values, strict=True)]
        number, start, lower, upper = values
        return AccessBounds(number, start, lower, upper, size, width)

    def _cases(self, op: Op, guard: Guard) -> list[tuple[int, tuple[str, str, str, str]]]:
        """For each possible owner: its number, and (site number, address, lower, upper)."""
        owners = guard.possible
        if op not in self._numbers:
            self._numbers[op] = self.first_site + len(self.sites)
            self.sites += [access(op, owner) for owner in owners]
        unowned = EVERYWHERE if guard.foreign else NOWHERE
        bounds = [unowned if owner == UNOWNED else self._bounds(owner, guard) for owner in owners]
        return [(owner, (str(self._numbers[op] + i), *bounds[i])) for i, owner in enumerate(owners)]

    def _bounds(self, argument: int, guard: Guard) -> tuple[str, str, str]:
        """(address, lower, upper) of an argument. If the guard of a store asks for it, a read-only array counts as empty."""
        start, lower, upper = self.code.bounds[argument]
        if guard.asks_readonly:
            upper = self.code.i64("sub", upper, self._read_only_bytes[argument])
        return start, lower, upper

    def _read_only_hits(self, guard: Guard, addresses: str, width: int) -> list[tuple[int, str]]:
        """For each argument: whether an address lies in its array and the array is read-only. Used for pointers that may belong to no
        argument."""
        if not (guard.foreign and guard.asks_readonly):
            return []
        c, found = self.code, []
        for argument in self._read_only_bytes:
            lower, size = self.code.bounds[argument][1], self._read_only_bytes[argument]
            distance = c.binary("sub", addresses, c.splat(lower, "i64", width), "i64", width)
            hit = c.w.value(f"icmp ult {vector_type('i64', width)} {distance}, {c.splat(size, 'i64', width)}")
            found.append((argument, hit))
        return found

    def number(self, site: Site) -> int:
        """Adds a site that is not an access, and returns its number."""
        self.sites.append(site)
        return self.first_site + len(self.sites) - 1

    # -- leaving the kernel ----------------------------------------------------------------------------------------------

    def fail(self, bad: str, number: int, index: str, value: str = "0") -> None:
        """Leaves the kernel if the i1 `bad` is true, and reports element `index` and its `value` (i64) at the site of that number."""
        _, on = self._guard(bad)
        self._leave(str(number), index, on, value)

    def _guard(self, bad: str) -> tuple[str, str]:
        w = self.code.w
        cold, on = w.fresh("outside"), w.fresh("inside")
        w.branch(bad, cold, on, ", !prof !0")
        w.place(cold)
        return cold, on

    def _report(self, op: Op, place: AccessBounds, address: str, on: str) -> None:
        """Ends the cold block: the address is outside."""
        c, guard = self.code, self.guard(op)
        assert guard is not None
        for argument, hit in self._read_only_hits(guard, address, 1):
            site = str(self._numbers[op] + guard.possible.index(argument))
            place = replace(place, number=c.select(hit, site, place.number, "i64", 1))
        offset = c.binary("ashr", c.i64("sub", address, place.start), str(place.size.bit_length() - 1), "i64", 1)
        self._leave(place.number, offset, on)

    def _leave(self, number: str, index: str, on: str, value: str = "0") -> None:
        w = self.code.w
        site = str(int(number) + 1) if number.isdigit() else w.value(f"add i64 {number}, 1")
        violation(w, site, index, value)
        w.jump("leave")
        w.place(on)

    # -- comparisons -----------------------------------------------------------------------------------------------------

    def _outside(self, op: Op, address: str, place: AccessBounds, width: int = 1) -> str:
        """Whether an element at an address is not within the bounds."""
        guard = self.guard(op)
        assert guard is not None
        bad = self._beyond(address, place, width)
        for _, hit in self._read_only_hits(guard, address, width):
            bad = self.code.binary("or", bad, hit, "i1", width)
        return bad

    def _beyond(self, address: str, place: AccessBounds, width: int, reach: str = "0") -> str:
        """Whether an element at an address is outside of the bounds, or one that lies `reach` bytes further on.

        The lower bound is compared as a signed number. Arrays lie below 2^63, so an address from 2^63 on, such as one that wrapped around,
        is less than it. The sum that is compared with the upper bound then stays below 2^64.
        """
        c, ty = self.code, vector_type("i64", width)
        lower, upper = place.lower, place.upper
        if place.width != width:
            lower, upper = c.splat(lower, "i64", width), c.splat(upper, "i64", width)
        below = c.w.value(f"icmp slt {ty} {address}, {lower}")
        end = address if reach == "0" else c.i64("add", address, reach)
        end = c.binary("add", end, constant(place.size, t.int64, width), "i64", width)
        return c.binary("or", below, c.w.value(f"icmp ugt {ty} {end}, {upper}"), "i1", width)

    # -- accesses --------------------------------------------------------------------------------------------------------

    def scalar(self, op: Op, address: str, mask: str | None) -> None:
        """Checks one element at an i64 address."""
        if (place := self.place(op)) is None:
            return
        bad = self._outside(op, address, place)
        if mask is not None:
            bad = self.code.binary("and", bad, mask, "i1", 1)
        _, on = self._guard(bad)
        self._report(op, place, address, on)

    def by_lane(self, op: Op) -> bool:
        """Whether a row needs a check per lane, because the ends of the row do not decide."""
        guard = self.guard(op)
        return guard is not None and bool(guard.foreign) and guard.asks_readonly

    def row_outside(self, op: Op, base: str, step: int, count: str) -> str:
        """Whether any of the elements at base, base + step, ... (bytes), `count` of them (an i64; none if negative), is outside."""
        if self.by_lane(op):
            return self._row_or_read_only(op, base, step, count)
        place = self.place(op)
        return "false" if place is None else self._row_outside(place, base, step, count)

    def _row_outside(self, place: AccessBounds, base: str, step: int, count: str) -> str:
        c = self.code
        low, reach = self._reach(base, step, count)
        bad = self._beyond(low, place, 1, reach)
        if not count.isdigit():
            bad = c.binary("and", bad, c.w.value(f"icmp sgt i64 {count}, 0"), "i1", 1)
        return bad

    def _reach(self, base: str, step: int, count: str) -> tuple[str, str]:
        """The lowest address of a row, and how far the highest is from it."""
        c = self.code
        reach = c.binary("mul", c.i64("sub", count, "1"), str(abs(step)), "i64", 1)
        return base if step > 0 else c.i64("sub", base, reach), reach

    def _row_or_read_only(self, op: Op, base: str, step: int, count: str) -> str:
        """Whether an element is outside, or the row may overlap a read-only array."""
        c, place = self.code, self.place(op)
        assert place is not None
        bad = self._row_outside(place, base, step, count)
        low, reach = self._reach(base, step, count)
        high = c.i64("add", low, reach)
        for argument, size in self._read_only_bytes.items():
            lower = self.code.bounds[argument][1]
            end = c.i64("add", lower, size)
            below = c.w.value(f"icmp ult i64 {low}, {end}")
            above = c.w.value(f"icmp ugt i64 {c.binary('add', high, str(place.size), 'i64', 1)}, {lower}")
            some = c.w.value(f"icmp ne i64 {size}, 0")
            meets = c.binary("and", c.binary("and", below, above, "i1", 1), some, "i1", 1)
            bad = c.binary("or", bad, meets, "i1", 1)
        return bad

    def row(self, op: Op, base: str, step: int, count: str) -> None:
        """Checks the elements of a row (see `row_outside`)."""
        if (place := self.place(op)) is None:
            return
        c = self.code
        _, on = self._guard(self._row_outside(place, base, step, count))
        # The first element may be outside. Otherwise this number of steps stays inside.
        top = c.i64("sub", place.upper, str(place.size))
        room = c.i64("sub", top, base) if step > 0 else c.i64("sub", base, place.lower)
        steps = c.binary("add", c.binary("sdiv", room, str(abs(step)), "i64", 1), "1", "i64", 1)
        lane = c.select(self._outside(op, base, place), "0", steps, "i64", 1)
        address = c.binary("add", base, c.i64("mul", lane, str(step)), "i64", 1)
        self._report(op, place, address, on)

    def lanes(self, op: Op, addresses: str, mask: str | None, width: int) -> None:
        """Checks a vector of i64 addresses where the mask is on."""
        if width == 1:
            self.scalar(op, addresses, mask)
            return
        if (place := self.place(op)) is None:
            return
        c, ty = self.code, vector_type("i64", width)
        bad = self._outside(op, addresses, place, width)
        if mask is not None:
            bad = c.binary("and", bad, mask, "i1", width)
        _, on = self._guard(c.any(bad, width))
        bits = c.w.value(f"bitcast <{width} x i1> {bad} to i{width}")
        lane = c.w.value(f"call i{width} @llvm.cttz.i{width}(i{width} {bits}, i1 true)")
        address = c.w.value(f"extractelement {ty} {addresses}, i{width} {lane}")
        if place.width > 1:
            wide = c.convert("zext", lane, f"i{width}", "i64", 1) if width < 64 else lane
            place = self.place(op, wide)
            assert place is not None
        self._report(op, place, address, on)
