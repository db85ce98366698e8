"""Lowers the ops that keep the account of accesses in shadow memory: one call for each element (see `codegen.shadow`)."""

from __future__ import annotations

import math
from collections.abc import Callable

from blocknb.codegen import shadow
from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowers
from blocknb.codegen.cpu.copies import TileCopies
from blocknb.codegen.cpu.status import PROGRAM_IDS, SHADOW
from blocknb.ir.core import Op


class ShadowLowering(VersionPart):
    """Lowers `shadow`, `clock_lock` and `clock_join`."""

    def __init__(self, context: VersionContext, copies: TileCopies, site_bits: int):
        super().__init__(context)
        self.copies, self.site_bits = copies, site_bits

    @lowers("shadow")
    def note(self, op: Op) -> None:
        """Notes the elements whose mask is on, unless the launch stores to none of the arrays."""
        attrs, context = op.attrs, self._context()
        if attrs["arguments"] and shadow.has_cell(attrs["action"]):
            word, bits = self._word(context, shadow.ARGUMENTS), shadow.argument_bits(attrs["arguments"])
            some = self.code.binary("and", word, str(bits), "i64", 1)
            self.code.w.when(self.code.w.value(f"icmp ne i64 {some}, 0"), lambda: self._note(op, context))
        else:
            self._note(op, context)

    def _note(self, op: Op, context: str) -> None:
        attrs, program, size = op.attrs, self._program(), op.args[0].type.dtype.element.bytes
        site, kind = attrs["site"], shadow.KINDS[attrs["action"]]

        def key() -> str:
            high = self.code.w.value(f"shl i64 {program}, {self.site_bits}")
            return self.code.w.value(f"add i64 {high}, {site + 1}")

        name, rest = shadow.call_of(attrs, program, key)
        shadow.define(self.code.helpers, shadow.CPU, name)

        def each(address: str, on: str, lane: str) -> None:
            head = f"call void @blocknb.shadow.{name}(ptr {context}, i64 {address}"
            if name != "record":
                self.code.w.do(f"{head}, i64 {size}, {rest}, i1 {on})")
                return
            high = self.code.i64("add", program, "1")
            mine = self.code.binary("or", self.code.i64("mul", high, str(1 << 32)), str(site), "i64", 1)
            self.code.w.when(on, lambda: self.code.w.do(f"{head}, i64 {mine}, i64 {lane}, i64 {kind})"))

        self._elements(op, each)

    @lowers("clock_lock")
    def lock(self, op: Op) -> None:
        """Takes or releases the lock of the clocks."""
        shadow.define(self.code.helpers, shadow.CPU, "lock")
        take = str(op.attrs["take"]).lower()
        self.code.w.do(f"call void @blocknb.shadow.lock(ptr {self._context()}, i1 {take}, ptr %status)")

    @lowers("clock_join")
    def join(self, op: Op) -> None:
        """Joins the clock of the program with those of the addresses."""
        shadow.define(self.code.helpers, shadow.CPU, "join")
        flags, program, context = shadow.join_flags(op.attrs["sem"]), self._program(), self._context()

        def each(address: str, on: str, lane: str) -> None:
            rest = f"i64 {address}, i64 {program}, {flags}, i1 {on}"
            self.code.w.do(f"call void @blocknb.shadow.join(ptr {context}, {rest})")

        self._elements(op, each)

    def _context(self) -> str:
        w = self.code.w
        return w.value(f"load ptr, ptr {w.value(f'getelementptr i64, ptr %status, i64 {SHADOW}')}")

    def _word(self, context: str, index: int) -> str:
        w = self.code.w
        return w.value(f"load i64, ptr {w.value(f'getelementptr i64, ptr {context}, i64 {index}')}")

    def _program(self) -> str:
        """The number of the program in the grid, an i64."""
        w, c = self.code.w, self.code
        x, y, z = (w.value(f"zext i32 {name} to i64") for name in PROGRAM_IDS)
        across, down = (w.value(f"zext i32 %grid{axis} to i64") for axis in range(2))
        rows = c.i64("add", y, c.i64("mul", z, down))
        return c.i64("add", x, c.i64("mul", rows, across))

    def _elements(self, op: Op, each: Callable[[str, str, str], None]) -> None:
        """Calls `each(address, mask, number)`, in a loop over the elements of a tile."""
        pointer, mask = op.args[0], op.args[1] if len(op.args) > 1 else None
        if not pointer.type.shape:
            each(self.scalars.of(pointer), "true" if mask is None else self.scalars.of(mask), "0")
            return
        addresses = self.copies.row_major(pointer)
        masks = None if mask is None else self.copies.row_major(mask)
        with self.code.w.counted("0", str(math.prod(pointer.type.shape)), 1) as index:
            address = self.tiles.read(addresses, self.tiles.element(addresses, index), 1)
            on = "true" if masks is None else self.tiles.read(masks, self.tiles.element(masks, index), 1)
            each(address, on, index)
