"""Lowers what a kernel reports: records in a buffer that the launch reads afterwards.

The kernel gets the buffer, and in checked mode the extents of arrays, as hidden parameters after its own. A fault must not trap, since a
trap destroys the context. Prints must not go to the output of the process, which no notebook shows. (With `debug="trap"` a failed assertion
does both, as in CUDA. The launch then needs no buffer, and the host does not wait for the kernel.) A thread that owns an element to report
takes a record's number from a counter, in a function that is not inlined. The reader restores the order by the *event*. It is the number of
reports that the program has made so far, which is the same in all of its threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.gpu.element_types import llvm_type, num_registers
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.report import RECORD, REGIONS
from blocknb.ir.core import Op, Value
from blocknb.ir.report import NO_ARGUMENT, Access, assertion, prints


class ReportLowering(OpLowering):
    """Lowers prints, assertions, and checked mode's reports of accesses outside of arrays."""

    @lowers("print")
    def print(self, op: Op) -> None:
        """Records the elements that are printed."""
        event = self.next_event()
        for i, site in enumerate(prints(op)):
            value = op.args[i] if op.args else None
            number = self.interface.add_site(site)
            self.report("print", number, event, value, [""] if value is None else [""] * num_registers(value))

    @lowers("assert")
    def check(self, op: Op) -> None:
        """Records the elements for which a condition is false. With `debug="trap"`, a false condition stops the kernel instead."""
        if self.func.attrs.get("debug") == "trap" and not self.func.attrs.get("checked"):
            self.stop(op)
            return
        event, (condition, *values) = self.next_event(), op.args
        bad = [self.text.emit(f"xor i1 {name}, true") for name in self.registers.regs(condition)]
        self.report("assert", self.interface.add_site(assertion(op)), event, values[0] if values else condition, bad)

    def stop(self, op: Op) -> None:
        """Calls `__assertfail` where a condition is false: CUDA prints the message, and the next synchronization has the error."""
        bad = [self.text.emit(f"xor i1 {name}, true") for name in dict.fromkeys(self.registers.regs(op.args[0]))]
        some = bad[0]
        for other in bad[1:]:
            some = self.text.emit(f"or i1 {some}, {other}")
        stop, done = self.text.new_label("stop"), self.text.new_label("passed")
        self.text.do(f"br i1 {some}, label %{stop}, label %{done}")
        self.text.open_chunk()
        self.text.start(stop)
        file, line = (op.loc.file, op.loc.line) if op.loc is not None else ("", 0)
        message, name, function = map(self.message, (op.attrs["message"], file, self.func.name))
        self.text.declared["declare void @__assertfail(ptr, ptr, i32, ptr, i64)"] = None
        self.text.do(f"call void @__assertfail(ptr {message}, ptr {name}, i32 {line}, ptr {function}, i64 1)")
        self.text.do(f"br label %{done}")
        self.text.open_chunk()
        self.text.start(done)
        self.text.open_chunk()

    def message(self, text: str) -> str:
        """The address of a text in global memory, as a generic pointer. Equal texts share one."""
        data = text.encode() + b"\0"
        helpers = self.text.helpers
        known = next((name for name, line in helpers.items() if line.endswith(escaped(data))), "")
        name = known or f"@blocknb.message.{len(helpers)}"
        helpers[name] = f"{name} = internal addrspace(1) constant [{len(data)} x i8] {escaped(data)}"
        return f"addrspacecast (ptr addrspace(1) {name} to ptr)"

    @lowers("outside")
    def outside(self, op: Op) -> None:
        """Records the addresses that lie outside of their array."""
        event, (pointer, bad), argument = self.next_event(), op.args, op.attrs["argument"]
        site = Access(op.loc, op.attrs["action"], argument, pointer.type.dtype.element.bytes)
        number = self.interface.add_site(site)
        self.report("outside", number, event, pointer, self.registers.regs(bad), argument)

    def next_event(self) -> str:
        """The number of this event, an i32."""
        self.text.once(("event",), self.make_counter)
        old = self.text.emit("load i32, ptr %event, align 4")
        self.text.do(f"store i32 {self.text.emit(f'add i32 {old}, 1')}, ptr %event, align 4")
        return old

    def make_counter(self) -> str:
        """Makes the counter of events."""
        self.text.do("%event = alloca i32, align 4")
        self.text.do("store i32 0, ptr %event, align 4")
        return "%event"

    def report(
        self, kind: str, site: int, event: str, value: Value | None, on: Sequence[str], argument: int | None = None
    ) -> None:
        """Records each element whose register in `on` (an i1; "": always) is true. The thread that owns the element writes its record."""
        layout = value.type.layout if value is not None and value.type.shape else None
        owner, element = self.threads.owner(layout), layout.register_indices if layout is not None else (0,)
        chosen = list(
            dict.fromkeys(element.index(i) for i in element)
        )  # one register of each element, without replicas
        conditions = [self.text.both(on[r], owner) for r in chosen]
        thread = self.threads.thread_index(layout.lane, layout.warp) if layout is not None else "0"
        some, guarded = conditions[0], all(conditions)
        for other in conditions[1:] if guarded else ():
            some = self.text.emit(f"or i1 {some}, {other}")
        label, done = self.text.new_label("say"), self.text.new_label("said")
        self.text.do(f"br i1 {some}, label %{label}, label %{done}" if guarded else f"br label %{label}")
        self.text.open_chunk()
        self.text.start(label)
        words = self.identity(site, event)
        for r, condition in zip(chosen, conditions, strict=True):
            bits = self.payload(value, r, argument)
            index = self.text.emit(f"xor i32 {thread}, {element[r]}") if element[r] else thread
            self.record(kind, [*words[:2], pair(self.text, words[2], index), bits], condition or "true")
        self.text.do(f"br label %{done}")
        self.text.open_chunk()
        self.text.start(done)
        self.text.open_chunk()

    def identity(self, site: int, event: str) -> tuple[str, str, str]:
        """Site and event, program x and y, and program z (an i32)."""
        x, y, z = (self.threads.place("program_id", axis) for axis in range(3))
        return pair(self.text, str(site), event), pair(self.text, x, y), z

    def payload(self, value: Value | None, register: int, argument: int | None) -> str:
        """The bits of an element, or the offset of an address in the array of an argument."""
        if value is None:
            return "0"
        name, dtype = self.registers.element(value, register), value.type.dtype
        if argument is not None:
            here = self.text.emit(f"ptrtoint {llvm_type(dtype)} {name} to i64")
            start = (
                "0" if argument == NO_ARGUMENT else self.text.emit(f"ptrtoint {llvm_type(dtype)} %p{argument} to i64")
            )
            return self.text.emit(f"sdiv i64 {self.text.emit(f'sub i64 {here}, {start}')}, {dtype.element.bytes}")
        bits = self.text.as_integer(name, llvm_type(dtype), dtype.bits)
        return bits if dtype.bits == 64 else self.text.emit(f"zext i{dtype.bits} {bits} to i64")

    def record(self, kind: str, words: Sequence[str], on: str) -> None:
        """Calls the function, which is not inlined, that takes a record number and writes the record if there is room."""
        name, region = "blocknb.record", REGIONS[kind]
        self.interface.reports = True
        add = '"@$3 atom.relaxed.gpu.global.add.u64 $0, [$1], $2;", "=l,l,l,b,0,~{memory}"'
        put = '"@$3 st.global.v2.b64 [$0], {$1, $2};", "l,l,l,b,~{memory}"'
        shift = (8 * RECORD).bit_length() - 1
        params = "ptr addrspace(1) %report, i64 %counter, i64 %first, i64 %room, i64 %a, i64 %b, i64 %c, i64 %d, i1 %on"
        self.text.helpers[name] = f"""define internal void @{name}({params}) noinline nounwind {{
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
        where = f"i64 {8 * region.counter}, i64 {8 * region.first}, i64 {region.room}"
        self.text.do(
            f"call void @{name}(ptr addrspace(1) %report, {where}, {', '.join(f'i64 {w}' for w in words)}, i1 {on})"
        )


def escaped(data: bytes) -> str:
    """Bytes as a constant of LLVM."""
    return 'c"' + "".join(f"\\{byte:02X}" for byte in data) + '"'


def pair(text: TextWriter, low: str, high: str) -> str:
    """Two i32 in an i64."""
    a, b = text.emit(f"zext i32 {low} to i64"), text.emit(f"zext i32 {high} to i64")
    return text.emit(f"or i64 {a}, {text.emit(f'shl i64 {b}, 32')}")
