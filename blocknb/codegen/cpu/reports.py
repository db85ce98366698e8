"""Prints and assertions of a kernel.

A print writes one record per element to the report of the launch, numbered by the report's counter (see `codegen.report`). An assertion
that fails is a violation like an access outside of an array: it is reported, and leaves the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowers
from blocknb.codegen.cpu.copies import TileCopies
from blocknb.codegen.cpu.status import PROGRAM_IDS, REPORT
from blocknb.codegen.report import RECORD, REGIONS
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.ir.core import Op, Value
from blocknb.ir.report import assertion, prints
from blocknb.language.types import DType, Pointer

PRINT_REGION = REGIONS["print"]
PRINT = f"""
define internal void @blocknb.print(ptr %status, i64 %site, i32 %pid0, i32 %pid1, i32 %pid2, i64 %index, i64 %bits) noinline nounwind {{
  %word = getelementptr i64, ptr %status, i64 {REPORT}
  %report = load ptr, ptr %word
  %counter = getelementptr i64, ptr %report, i64 {PRINT_REGION.counter}
  %number = atomicrmw add ptr %counter, i64 1 monotonic
  %fits = icmp ult i64 %number, {PRINT_REGION.room}
  br i1 %fits, label %write, label %done
write:
  %distance = mul i64 %number, {RECORD}
  %first = add i64 %distance, {PRINT_REGION.first}
  %place = getelementptr i64, ptr %report, i64 %first
  %event = shl i64 %number, 32
  %a = or i64 %site, %event
  store i64 %a, ptr %place
  %x = zext i32 %pid0 to i64
  %y = zext i32 %pid1 to i64
  %y.high = shl i64 %y, 32
  %b = or i64 %x, %y.high
  %place.1 = getelementptr i64, ptr %place, i64 1
  store i64 %b, ptr %place.1
  %z = zext i32 %pid2 to i64
  %index.high = shl i64 %index, 32
  %c = or i64 %z, %index.high
  %place.2 = getelementptr i64, ptr %place, i64 2
  store i64 %c, ptr %place.2
  %place.3 = getelementptr i64, ptr %place, i64 3
  store i64 %bits, ptr %place.3
  br label %done
done:
  ret void
}}
"""


class Reports(VersionPart):
    """Lowers prints and assertions."""

    def __init__(self, context: VersionContext, copies: TileCopies):
        super().__init__(context)
        self.copies = copies

    @lowers("assert")
    def assertion(self, op: Op) -> None:
        """Leaves the kernel at the first element that does not hold."""
        number = self.checks.number(assertion(op))
        values = [self.copies.row_major(value) for value in op.args[1:] if value.type.shape]
        with self._elements(op.args[0]) as (index, holds):
            bits = "0"
            if values:
                bits = self.tiles.read(values[0], self.tiles.element(values[0], index), 1)
            elif op.args[1:]:
                bits = self.scalars.of(op.args[1])
            self.checks.fail(self.code.w.value(f"xor i1 {holds}, true"), number, index, bits)

    @lowers("print")
    def print(self, op: Op) -> None:
        """Writes a record for each element of each operand."""
        for i, site in enumerate(prints(op)):
            number = self.checks.number(site)
            if not op.args:
                self._record(number, "0", "0")
                continue
            with self._elements(op.args[i]) as (index, value):
                self._record(number, index, self._bits(value, op.args[i].type.dtype))

    @contextmanager
    def _elements(self, value: Value) -> Iterator[tuple[str, str]]:
        """A loop over the elements in row-major order: the number of each (an i64) and the element itself."""
        if not value.type.shape:
            yield "0", self.scalars.of(value)
            return
        buffer, c = self.copies.row_major(value), self.code
        with c.w.counted("0", str(math.prod(value.type.shape)), 1) as index:
            place = self.tiles.element(buffer, index)
            yield index, self.tiles.read(buffer, place, 1)

    def _bits(self, value: str, dtype: DType | Pointer) -> str:
        """The bits of an element in an i64."""
        if isinstance(dtype, Pointer):
            return value
        if dtype.is_float:
            integer = DType(f"int{dtype.bits}", f"i{dtype.bits}", "int", dtype.bits)
            value = casts.bitcast(self.code, value, dtype, integer, 1)
        kind = f"i{dtype.bits}" if dtype.is_float else register_type(dtype)
        return value if kind == "i64" else self.code.w.value(f"zext {kind} {value} to i64")

    def _record(self, site: int, index: str, bits: str) -> None:
        """Writes one record, unless the report is full."""
        self.code.helpers["blocknb.print"] = PRINT
        ids = ", i32 ".join(PROGRAM_IDS)
        self.code.w.do(f"call void @blocknb.print(ptr %status, i64 {site}, i32 {ids}, i64 {index}, i64 {bits})")
