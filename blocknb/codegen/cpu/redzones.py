"""Redzones: a build of CPU code that finds writes outside of scratch buffers and reads of lanes that were never written.

The technique is AddressSanitizer's (Serebryany et al., USENIX ATC 2012), for tiles in scratch. Each buffer has a place of its own,
with 64 guarded bytes on both sides. A program first fills all of scratch with a poison. In the end it tests whether the guarded bytes
still hold it; if they do not, the launch fails and names the buffer. The poison is a NaN as a float of 16, 32 or 64 bits, and a large
integer. So a result that depends on a lane that was never written is wrong, and a comparison of results finds it. The lanes of a tile
beyond the end of its row hold the same poison until `mask_bounds` writes them.

BLOCKNB_REDZONES=1 in the environment asks for this build; the tests do. Its code is several times slower.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from blocknb.codegen.cpu.buffers import CACHE_LINE, Scratch
from blocknb.ir.core import Op
from blocknb.ir.report import Overrun

POISON = (0xFB, 0x7F)  # bytes at even and at odd offsets
WORD = int.from_bytes(bytes(POISON) * 4, "little")


def wanted() -> bool:
    """Whether the environment asks for redzones."""
    return os.environ.get("BLOCKNB_REDZONES", "0") not in ("", "0")


def poison(element: str) -> str:
    """The poison as a constant of an LLVM type of scratch."""
    if element in ("float", "double"):
        return "0x7FFF6FFF60000000" if element == "float" else f"0x{WORD:016X}"
    bits = int(element[1:])
    return str(WORD & (1 << bits) - 1)


@dataclass(frozen=True)
class GuardZone:
    """Guarded bytes `start` to `end` of scratch, next to the buffer of a site."""

    start: int
    end: int
    site: Overrun


class GuardedScratch(Scratch):
    """Scratch memory in which no two buffers share bytes, and guarded bytes surround each."""

    def __init__(self) -> None:
        super().__init__()
        self.zones: list[GuardZone] = []

    def allocate(self, size: int, maker: Op | None = None) -> int:
        """The offset of `size` bytes between guarded bytes; a violation names `maker`."""
        start = self.bytes + CACHE_LINE
        end = -(-(start + size) // CACHE_LINE) * CACHE_LINE + CACHE_LINE
        site = Overrun(maker.loc if maker else None, maker.name if maker else "copy", size)
        self.zones += [GuardZone(self.bytes, start, site), GuardZone(start + size, end, site)]
        self.bytes = end
        return start

    def free(self, offset: int) -> None:
        """Does nothing, because each allocation has its own place."""


def functions(name: str, scratch: GuardedScratch, first_site: int) -> str:
    """LLVM text of `@name.poison(scratch)`, and of `@name.verify(scratch, status, program)`, which reports zone i as `first_site` + i."""
    zones = scratch.zones
    rows = ", ".join(f"[2 x i64] [i64 {zone.start}, i64 {zone.end}]" for zone in zones)
    return f"""
@{name}.zones = internal constant [{len(zones)} x [2 x i64]] [{rows}]

define internal void @{name}.poison(ptr %scratch) noinline nounwind {{
entry:
  br label %word
word:
  %i = phi i64 [ 0, %entry ], [ %next, %word ]
  %place = getelementptr i64, ptr %scratch, i64 %i
  store volatile i64 {WORD}, ptr %place
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {max(scratch.bytes, CACHE_LINE) // 8}
  br i1 %more, label %word, label %done
done:
  ret void
}}

define internal void @{name}.verify(ptr %scratch, ptr %status, i32 %pid0, i32 %pid1, i32 %pid2) noinline nounwind {{
entry:
  br label %zone
zone:
  %z = phi i64 [ 0, %entry ], [ %z.next, %zone.done ]
  %is.zone = icmp ult i64 %z, {len(zones)}
  br i1 %is.zone, label %bytes, label %done
bytes:
  %from = getelementptr [2 x i64], ptr @{name}.zones, i64 %z, i64 0
  %to = getelementptr [2 x i64], ptr @{name}.zones, i64 %z, i64 1
  %start = load i64, ptr %from
  %end = load i64, ptr %to
  br label %byte
byte:
  %i = phi i64 [ %start, %bytes ], [ %i.next, %byte.done ]
  %is.byte = icmp ult i64 %i, %end
  br i1 %is.byte, label %look, label %zone.done
look:
  %place = getelementptr i8, ptr %scratch, i64 %i
  %found = load volatile i8, ptr %place
  %odd = trunc i64 %i to i1
  %poison = select i1 %odd, i8 {POISON[1]}, i8 {POISON[0] - 256}
  %intact = icmp eq i8 %found, %poison
  br i1 %intact, label %byte.done, label %overrun
byte.done:
  %i.next = add i64 %i, 1
  br label %byte
overrun:
  %site = add i64 %z, {first_site + 1}
  call void @blocknb.violation(ptr %status, i64 %site, i64 %i, i64 0, i32 %pid0, i32 %pid1, i32 %pid2)
  br label %done
zone.done:
  %z.next = add i64 %z, 1
  br label %zone
done:
  ret void
}}
"""
