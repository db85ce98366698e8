"""What a kernel on a GPU says: records in a buffer that the launch reads afterwards.

The kernel gets the buffer, and in checked mode the extents of arrays, as hidden parameters behind its own. A fault must not trap, which
would take the context with it, and printing must not go to the process' own output, which no notebook shows. The threads that own
elements with something to say take numbers from a counter, each for itself and out of line; the order is put right when the report is
read, by the *event*, which counts what a program has said and is the same in all of its threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blocknb.codegen.gpu_math import llvm_type
from blocknb.codegen.gpu_memory import as_integer, both
from blocknb.codegen.report import RECORD, REGIONS, Site
from blocknb.ir.core import Op, Value
from blocknb.ir.report import NO_ARGUMENT, Access, Assertion, prints

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator


def emit(g: Generator, op: Op) -> None:
    event = next_event(g)
    match op.name:
        case "print":
            for i, site in enumerate(prints(op)):
                told = op.args[i] if op.args else None
                tell(g, "print", add_site(g, site), event, told, [""] if told is None else [""] * registers(told))
        case "assert":
            (condition,) = op.args
            bad = [g.emit(f"xor i1 {name}, true") for name in g.regs(condition)]
            number = add_site(g, Assertion(op.loc, op.attrs["message"], condition.type.shape))
            tell(g, "assert", number, event, condition, bad)
        case "outside":
            pointer, bad_value = op.args
            argument = op.attrs["argument"]
            number = add_site(g, Access(op.loc, op.attrs["action"], argument, pointer.type.dtype.element.bytes))
            tell(g, "outside", number, event, pointer, g.regs(bad_value), argument)


def registers(value: Value) -> int:
    return value.type.layout.num_registers if value.type.shape else 1


def add_site(g: Generator, site: Site) -> int:
    g.sites.append(site)
    return len(g.sites) - 1


def inside(g: Generator, op: Op, address: str) -> str:
    """Whether the address is one where an element of the array begins: one comparison, since what lies below wraps around."""
    argument = op.attrs["argument"]
    g.extents[argument] = None
    number = g.emit(f"ptrtoint {llvm_type(op.args[0].type.dtype)} {address} to i64")
    return g.emit(f"icmp ult i64 {g.emit(f'sub i64 {number}, %low{argument}')}, %span{argument}")


def next_event(g: Generator) -> str:
    """The number of what is said now, an i32."""
    if ("event",) not in g.memo:
        g.memo["event",] = "%event"
        with g.writing(g.entry, ""):
            g.sink.append("  %event = alloca i32, align 4")
            g.do("store i32 0, ptr %event, align 4")
    old = g.emit("load i32, ptr %event, align 4")
    g.do(f"store i32 {g.emit(f'add i32 {old}, 1')}, ptr %event, align 4")
    return old


def tell(
    g: Generator, kind: str, site: int, event: str, value: Value | None, on: Sequence[str], argument: int | None = None
) -> None:
    """A record for each element whose register is on (an i1; "": always), by the thread that owns it."""
    layout = value.type.layout if value is not None and value.type.shape else None
    owner, element = g.owner(layout), layout.register_indices if layout is not None else (0,)
    chosen = list(dict.fromkeys(element.index(i) for i in element))  # registers that hold one element again say it once
    conditions = [both(g, on[r], owner) for r in chosen]
    thread = g.thread_index(layout.lane, layout.warp) if layout is not None else "0"
    some, guarded = conditions[0], all(conditions)
    for other in conditions[1:] if guarded else ():
        some = g.emit(f"or i1 {some}, {other}")
    label, done = g.new_label("say"), g.new_label("said")
    g.do(f"br i1 {some}, label %{label}, label %{done}" if guarded else f"br label %{label}")
    g.open_chunk()
    g.start(label)
    words = head(g, site, event)
    for r, condition in zip(chosen, conditions, strict=True):
        bits = payload(g, value, r, argument) if kind != "assert" else "0"
        index = g.emit(f"xor i32 {thread}, {element[r]}") if element[r] else thread
        record(g, kind, [*words[:2], pair(g, words[2], index), bits], condition or "true")
    g.do(f"br label %{done}")
    g.open_chunk()
    g.start(done)
    g.open_chunk()


def head(g: Generator, site: int, event: str) -> tuple[str, str, str]:
    """Site and event, program x and y, and program z (an i32)."""
    x, y, z = (g.place("program_id", axis) for axis in range(3))
    return pair(g, str(site), event), pair(g, x, y), z


def pair(g: Generator, low: str, high: str) -> str:
    """Two i32 in an i64."""
    a, b = g.emit(f"zext i32 {low} to i64"), g.emit(f"zext i32 {high} to i64")
    return g.emit(f"or i64 {a}, {g.emit(f'shl i64 {b}, 32')}")


def payload(g: Generator, value: Value | None, register: int, argument: int | None) -> str:
    """The bits of an element, or the offset of an address in the array of an argument."""
    if value is None:
        return "0"
    name, dtype = g.reg(value, register if value.type.shape else 0), value.type.dtype
    if argument is not None:
        here = g.emit(f"ptrtoint {llvm_type(dtype)} {name} to i64")
        start = "0" if argument == NO_ARGUMENT else g.emit(f"ptrtoint {llvm_type(dtype)} %p{argument} to i64")
        return g.emit(f"sdiv i64 {g.emit(f'sub i64 {here}, {start}')}, {dtype.element.bytes}")
    bits = as_integer(g, name, llvm_type(dtype), dtype.bits)
    return bits if dtype.bits == 64 else g.emit(f"zext i{dtype.bits} {bits} to i64")


def record(g: Generator, kind: str, words: Sequence[str], on: str) -> None:
    """Takes a number and writes the record if there is room: in a function, which is no concern of the code around it."""
    name, region = "blocknb.record", REGIONS[kind]
    g.reports = True
    add = '"@$3 atom.relaxed.gpu.global.add.u64 $0, [$1], $2;", "=l,l,l,b,0,~{memory}"'
    put = '"@$3 st.global.v2.b64 [$0], {$1, $2};", "l,l,l,b,~{memory}"'
    shift = (8 * RECORD).bit_length() - 1
    given = "ptr addrspace(1) %report, i64 %counter, i64 %first, i64 %room, i64 %a, i64 %b, i64 %c, i64 %d, i1 %on"
    text = f"""define internal void @{name}({given}) noinline nounwind {{
entry:
  %count = getelementptr i8, ptr addrspace(1) %report, i64 %counter
  %number = call i64 asm sideeffect {add}(ptr addrspace(1) %count, i64 1, i1 %on, i64 0)
  %fits = icmp ult i64 %number, %room
  %keep = and i1 %on, %fits
  %distance = shl i64 %number, {shift}
  %offset = add i64 %distance, %first
  %place = getelementptr i8, ptr addrspace(1) %report, i64 %offset
  %second = getelementptr i8, ptr addrspace(1) %place, i64 16
  call void asm sideeffect {put}(ptr addrspace(1) %place, i64 %a, i64 %b, i1 %keep)
  call void asm sideeffect {put}(ptr addrspace(1) %second, i64 %c, i64 %d, i1 %keep)
  ret void
}}"""
    g.helpers[name] = text
    where = f"i64 {8 * region.counter}, i64 {8 * region.first}, i64 {region.room}"
    g.do(f"call void @{name}(ptr addrspace(1) %report, {where}, {', '.join(f'i64 {w}' for w in words)}, i1 {on})")


def parameters(g: Generator) -> list[str]:
    """The hidden parameters, behind the kernel's own."""
    report = ["ptr addrspace(1) align 16 %report"] if g.reports else []
    return report + [text for i in sorted(g.extents) for text in (f"i64 %low{i}", f"i64 %span{i}")]
