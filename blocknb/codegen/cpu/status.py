"""The status block of a launch, and the code that reads and writes it: the stop flag, and the first violation.

The block holds 64-bit words. They are a stop flag, the first violation (and a value that breaks a hint), and a bit for each read-only
argument. Two further words are the addresses of the report (see `codegen.report`) and of the context of shadow memory (see
`codegen.shadow`). The counter of programs has a cache line of its own.
"""

from __future__ import annotations

from blocknb.codegen.text import Writer

STOP, SITE, OFFSET, PROGRAM, READONLY, REPORT, SHADOW, NEXT, VALUE, STATUS_WORDS = 0, 1, 2, 3, 5, 6, 7, 8, 9, 16
PROGRAM_IDS = ("%pid0", "%pid1", "%pid2")  # i32 registers

VIOLATION = f"""
define internal void @blocknb.violation(
  ptr %status, i64 %site, i64 %offset, i64 %value, i32 %pid0, i32 %pid1, i32 %pid2
) noinline cold nounwind {{
  %place = getelementptr i64, ptr %status, i64 {SITE}
  %claim = cmpxchg ptr %place, i64 0, i64 %site seq_cst seq_cst
  %first = extractvalue {{ i64, i1 }} %claim, 1
  br i1 %first, label %report, label %done
report:
  %o = getelementptr i64, ptr %status, i64 {OFFSET}
  store i64 %offset, ptr %o
  %v = getelementptr i64, ptr %status, i64 {VALUE}
  store i64 %value, ptr %v
  %p = getelementptr i64, ptr %status, i64 {PROGRAM}
  store i32 %pid0, ptr %p
  %p1 = getelementptr i32, ptr %p, i64 1
  store i32 %pid1, ptr %p1
  %p2 = getelementptr i32, ptr %p, i64 2
  store i32 %pid2, ptr %p2
  store atomic i64 1, ptr %status release, align 8
  br label %done
done:
  ret void
}}
"""


def load_word(w: Writer, base: str, index: int) -> str:
    """Loads the i64 number `index` from a pointer on."""
    place = w.value(f"getelementptr inbounds i64, ptr {base}, i64 {index}")
    return w.value(f"load i64, ptr {place}")


def poll(w: Writer) -> None:
    """Leaves the kernel if the stop flag is set."""
    on = w.fresh("on")
    flag = w.value("load volatile i64, ptr %status")
    w.branch(w.value(f"icmp eq i64 {flag}, 0"), on, "leave")
    w.place(on)


def violation(w: Writer, site: str, index: str, value: str = "0") -> None:
    """Reports that a site (an i64, from 1) failed at element `index`, whose value has the bits `value` (an i64)."""
    ids = ", i32 ".join(PROGRAM_IDS)
    w.do(f"call void @blocknb.violation(ptr %status, i64 {site}, i64 {index}, i64 {value}, i32 {ids})")
