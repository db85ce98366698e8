"""What a kernel on the CPU says: prints, element by element, and assertions.

A program is one thread, and so takes its numbers from the report's counter in the order of what it says: the number is the event. An
assertion that fails is a violation like an access outside of an array: it is told, and the kernel left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from blocknb.codegen.cpu import memory
from blocknb.codegen.report import RECORD, REGIONS
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import SIZES, register_type
from blocknb.codegen.scalar_math.structured import counted
from blocknb.ir.core import Op, Value
from blocknb.ir.report import Assertion, prints
from blocknb.language.types import DType, Pointer

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter

STATUS_WORD = 6  # of the status block: the report's address


def emit(e: Emitter, op: Op) -> None:
    if op.name == "assert":
        number = e.checks.number(Assertion(op.loc, op.attrs["message"], op.args[0].type.shape))
        with elements(e, op.args[0]) as (index, holds):
            e.checks.fail(e.code.w.value(f"xor i1 {holds}, true"), number, index)
        return
    for i, site in enumerate(prints(op)):
        number = e.checks.number(site)
        if not op.args:
            say(e, number, "0", "0")
            continue
        with elements(e, op.args[i]) as (index, value):
            say(e, number, index, bits_of(e, value, op.args[i].type.dtype))


@contextmanager
def elements(e: Emitter, value: Value) -> Iterator[tuple[str, str]]:
    """A loop over the elements in row-major order: the number of each (an i64) and the element itself."""
    if not value.type.shape:
        yield "0", e.scalar(value)
        return
    buffer, c = e.row_major(value), e.code
    with counted(c.w, "0", str(math.prod(value.type.shape)), 1) as index:
        place = c.w.value(f"getelementptr inbounds {buffer.element}, ptr {e.buffer_base(buffer)}, i64 {index}")
        raw = memory.load_vector(c, place, buffer.element, 1, SIZES[buffer.element])
        yield index, casts.from_scratch(c, raw, buffer.dtype, 1)


def bits_of(e: Emitter, value: str, dtype: DType | Pointer) -> str:
    """The bits of an element in an i64."""
    if isinstance(dtype, Pointer):
        return value
    if dtype.is_float:
        integer = DType(f"int{dtype.bits}", f"i{dtype.bits}", "int", dtype.bits)
        value = casts.bitcast(e.code, value, dtype, integer, 1)
    kind = f"i{dtype.bits}" if dtype.is_float else register_type(dtype)
    return value if kind == "i64" else e.code.w.value(f"zext {kind} {value} to i64")


def say(e: Emitter, site: int, index: str, bits: str) -> None:
    region, w = REGIONS["print"], e.code.w
    e.code.helpers["blocknb.print"] = f"""
define internal void @blocknb.print(ptr %status, i64 %site, i32 %pid0, i32 %pid1, i32 %pid2, i64 %index, i64 %bits) noinline nounwind {{
  %word = getelementptr i64, ptr %status, i64 {STATUS_WORD}
  %report = load ptr, ptr %word
  %counter = getelementptr i64, ptr %report, i64 {region.counter}
  %number = atomicrmw add ptr %counter, i64 1 monotonic
  %fits = icmp ult i64 %number, {region.room}
  br i1 %fits, label %write, label %done
write:
  %distance = mul i64 %number, {RECORD}
  %first = add i64 %distance, {region.first}
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
    ids = ", i32 ".join(e.program_ids())
    w.do(f"call void @blocknb.print(ptr %status, i64 {site}, i32 {ids}, i64 {index}, i64 {bits})")
