"""Lowers atomics: one predicated instruction for each element that a thread owns, or for a vector of sums.

Some operations have no instruction. The maximum of floats compares their bits. It is a signed maximum if the new value is positive, and an
unsigned minimum if it is negative. Below sm_90, bf16 is added in a loop of compare-and-swap. If a thread executes several atomics, one
fence before and one after order them, which costs less than ordering each. If the result is unused, the instruction is `red`, which returns
no value. (PTX ISA: atom, red, fence.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blocknb.analysis.accesses import accesses
from blocknb.analysis.effects import global_operands, mask_of, orders
from blocknb.codegen.gpu.element_types import llvm_type
from blocknb.codegen.gpu.memory import LETTER
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.ir.core import Op, Value
from blocknb.language import types as t

SEMANTICS = {(False, False): "relaxed", (True, False): "acquire", (False, True): "release", (True, True): "acq_rel"}


@dataclass(frozen=True)
class AtomicStep:
    """The common properties of the atomics of one op. `used`: an op reads the old values."""

    kind: str
    dtype: t.DType
    scope: str
    semantics: str
    used: bool

    @property
    def reduces(self) -> bool:
        """Whether the step may be `red`, which does not acquire."""
        return not self.used and self.semantics in ("relaxed", "release") and self.kind not in ("xchg", "cas")


class Atomics(OpLowering):
    """Lowers atomics. `users` tells whether a result is used."""

    @lowers("atomic", "atomic_cas")
    def atomic(self, op: Op) -> None:
        """Lowers an atomic. The old values go to registers, or to the op's buffer if it has one."""
        pointer = global_operands(op)[0]
        layout = pointer.type.layout if pointer.type.shape else None
        acquires, releases = orders(op)
        element = layout.register_indices if layout is not None else (0,)
        own = {element.index(i) for i in element}  # replicas of an element in other registers make no step
        steps = [registers for registers in accesses(self.facts, op) if own.issuperset(registers)]
        fenced = (acquires or releases) and self.takes_several(op, steps, acquires)
        kind, used = op.attrs.get("kind", "cas"), not op.results or op.result in self.users
        semantics = "relaxed" if fenced else SEMANTICS[acquires, releases]
        form = AtomicStep(kind, pointer.type.dtype.element, op.attrs["scope"], semantics, used)
        if fenced and releases:
            self.fence(op)
        owner = self.threads.owner(layout)
        old = self.steps(op, form, steps, owner)
        if fenced and acquires:
            self.fence(op)
        if used and op.results:
            dtype = op.result.type.dtype
            names = [self.text.from_integer(old[element.index(i)], llvm_type(dtype), dtype.bits) for i in element]
            self.registers.set(op.result, names)
        elif used:
            self.publish(op, old, owner)

    def takes_several(self, op: Op, steps: Sequence[tuple[int, ...]], acquires: bool) -> bool:
        """Whether the access needs several instructions per thread, or one without acquire semantics, such as `red` on a vector."""
        vector = any(len(registers) > 1 for registers in steps)
        return len(steps) > 1 or not self.is_one_instruction(op) or (vector and acquires)

    def steps(self, op: Op, form: AtomicStep, steps: Sequence[tuple[int, ...]], owner: str) -> dict[int, str]:
        """Issues the atomics of the given registers, and returns the old values by register."""
        (pointer, *operands), mask = global_operands(op), mask_of(op)
        values = operands[: 1 if op.name == "atomic" else 2]
        old: dict[int, str] = {}
        for registers in steps:
            r = registers[0]
            on = self.text.both(self.registers.predicate(mask, r), owner)
            words = [self.as_word(v, x) for x in registers for v in values]
            if len(registers) > 1:
                self.add_vector(op, form, r, words, on)
            else:
                old[r] = self.step(form, self.registers.element(pointer, r), words, on)
        return old

    def as_word(self, value: Value, register: int) -> str:
        """An operand as an integer of its width."""
        dtype = value.type.dtype
        return self.text.as_integer(self.registers.element(value, register), llvm_type(dtype), dtype.bits)

    def is_one_instruction(self, op: Op) -> bool:
        """Whether the hardware does the atomic on one element by one instruction."""
        kind, dtype = op.attrs.get("kind", "cas"), global_operands(op)[0].type.dtype.element
        return not (dtype.is_float and kind in ("max", "min")) and not self.swaps(dtype, kind)

    def swaps(self, dtype: t.DType, kind: str) -> bool:
        """Whether an addition needs a compare-and-swap loop: one of bf16, below sm_90."""
        return dtype == t.bfloat16 and kind == "add" and self.target.capability < 90

    def fence(self, op: Op) -> None:
        """Orders the atomics of the op with the accesses before or after it."""
        self.text.asm(f"fence.acq_rel.{op.attrs['scope']};", ["~{memory}"], [])

    # -- one element

    def step(self, form: AtomicStep, address: str, words: Sequence[str], on: str) -> str:
        """Writes the atomic on one element. Returns the old value as an integer of its width, or zero if `on` is false."""
        if form.kind in ("max", "min") and form.dtype.is_float:
            return self.float_extremum(form, address, words[0], on)
        if self.swaps(form.dtype, form.kind):
            return self.add_by_swaps(address, words[0], on)
        return self.instruction(form, f"{operation(form.kind)}.{suffix(form.kind, form.dtype)}", address, words, on)

    def instruction(self, form: AtomicStep, what: str, address: str, words: Sequence[str], on: str) -> str:
        """Writes `atom`, or `red` if the result is unused and the op does not acquire. The result is tied to a zero, which it keeps if the
        predicate is off."""
        bits, first = form.dtype.bits, 0 if form.reduces else 1
        inputs = [f"ptr addrspace(1) {address}", *(f"i{bits} {w}" for w in words)]
        constraints = ["l"] + [LETTER[bits]] * len(words)
        places = ", ".join(f"${first + 1 + i}" for i in range(len(words)))
        guard, order = "", f"{form.semantics}.{form.scope}.global"
        if on:
            guard = f"@${first + 1 + len(words)} "
            inputs.append(f"i1 {on}")
            constraints.append("b")
        if form.reduces:
            self.text.asm(f"{guard}red.{order}.{what} [$0], {places};", [*constraints, "~{memory}"], inputs)
            return ""
        if on:
            inputs.append(f"i{bits} 0")
            constraints.append("0")
        ptx = f"{guard}atom.{order}.{what} $0, [$1], {places};"
        constraints = [f"={LETTER[bits]}", *constraints, "~{memory}"]
        return self.text.emit(f'call i{bits} asm sideeffect "{ptx}", "{",".join(constraints)}"({", ".join(inputs)})')

    def add_vector(self, op: Op, form: AtomicStep, register: int, words: Sequence[str], on: str) -> None:
        """Adds fp32, fp16 or bf16 numbers side by side (PTX ISA: red, `.vec_32_bit` and `.vec_16_bit`)."""
        name, distance = self.addresses.of(op.args[0], register)
        count, bits = len(words), form.dtype.bits
        inputs = [f"ptr addrspace(1) {name}", *(f"i{bits} {w}" for w in words)]
        places = ", ".join(f"${1 + i}" for i in range(count))
        where = f"[$0+{distance}]" if distance else "[$0]"
        what = f"noftz.v{count}.{form.dtype.short}" if bits == 16 else f"v{count}.{form.dtype.short}"
        ptx = f"red.{form.semantics}.{form.scope}.global.add.{what} {where}, {{{places}}};"
        self.text.asm(ptx, ["l", *[LETTER[bits]] * count, "~{memory}"], inputs, on=on)

    def float_extremum(self, form: AtomicStep, address: str, word: str, on: str) -> str:
        """The maximum or minimum of floats, by their bits: these are ordered as signed integers if positive, and reversed as unsigned
        integers if negative."""
        text, bits = self.text, form.dtype.bits
        negative = text.emit(f"icmp slt i{bits} {word}, 0")
        positive = text.emit(f"xor i1 {negative}, true")
        other = "min" if form.kind == "max" else "max"
        up = self.instruction(form, f"{form.kind}.s{bits}", address, [word], text.both(on, positive))
        down = self.instruction(form, f"{other}.u{bits}", address, [word], text.both(on, negative))
        return text.emit(f"or i{bits} {up}, {down}") if form.used else ""

    def add_by_swaps(self, address: str, word: str, on: str) -> str:
        """Adds bf16 by compare and swap, in a loop in a function of its own."""
        name = "blocknb.atomic_add_bf16"
        swap = '"atom.relaxed.gpu.global.cas.b16 $0, [$1], $2, $3;", "=h,l,h,h,~{memory}"'
        self.text.helpers[
            name
        ] = f"""define internal i16 @{name}(ptr addrspace(1) %p, i16 %x, i1 %on) noinline nounwind {{
entry:
  br i1 %on, label %start, label %off
start:
  %x.wide = zext i16 %x to i32
  %x.high = shl i32 %x.wide, 16
  %y = bitcast i32 %x.high to float
  %first = load atomic volatile i16, ptr addrspace(1) %p monotonic, align 2
  br label %again
again:
  %old = phi i16 [ %first, %start ], [ %found, %again ]
  %old.wide = zext i16 %old to i32
  %old.high = shl i32 %old.wide, 16
  %old.float = bitcast i32 %old.high to float
  %sum = fadd float %old.float, %y
  %narrow = fptrunc float %sum to bfloat
  %new = bitcast bfloat %narrow to i16
  %found = call i16 asm sideeffect {swap}(ptr addrspace(1) %p, i16 %old, i16 %new)
  %done = icmp eq i16 %found, %old
  br i1 %done, label %end, label %again
end:
  ret i16 %old
off:
  ret i16 0
}}"""
        return self.text.emit(f"call i16 @{name}(ptr addrspace(1) {address}, i16 {word}, i1 {on or 'true'})")

    # -- results for all

    def publish(self, op: Op, old: Mapping[int, str], owner: str) -> None:
        """The owners write the old values to shared memory. A barrier and a read follow in the IR."""
        text, (buffer, pointer) = self.text, op.args[:2]
        bits = buffer.type.dtype.bits
        done = text.new_label("published")
        if owner:
            write = text.new_label("publish")
            text.do(f"br i1 {owner}, label %{write}, label %{done}")
            text.open_chunk()
            text.start(write)
        if pointer.type.shape:
            layout = pointer.type.layout
            where = self.buffers.elements(buffer, layout.lane, layout.warp)
            for r, name in old.items():
                text.store_words(where.pointer(layout.register_indices[r]), 3, [name], bits)
        else:
            text.store_words(self.buffers.start(buffer), 3, [old[0]], bits)
        if owner:
            text.do(f"br label %{done}")
            text.open_chunk()
            text.start(done)
            text.open_chunk()


def operation(kind: str) -> str:
    """The name of an atomic's operation in PTX."""
    return "exch" if kind == "xchg" else kind


def suffix(kind: str, dtype: t.DType) -> str:
    """The type suffix of each operation in PTX."""
    if kind in ("and", "or", "xor", "xchg", "cas"):
        return f"b{dtype.bits}"
    if dtype.bits == 16:
        return f"noftz.{dtype.short}"
    if dtype.is_float:
        return dtype.short
    signed = dtype.is_signed and not (kind == "add" and dtype.bits == 64)
    return f"{'s' if signed else 'u'}{dtype.bits}"
