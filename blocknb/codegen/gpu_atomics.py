"""Atomics of the GPU code generator: one predicated instruction for each element that a thread owns, or for a vector of fp32 sums.

What the hardware lacks is made of what it has. The maximum of floats is that of their bits: as signed integers where the new value
is positive, and the minimum of unsigned ones where it is negative. bf16 below sm_90 adds in a loop of compare and swap. A thread
that makes several steps orders them by one fence before and one after, which costs less than ordering every step, and where nobody
looks at the result the instruction is `red`, whose answer does not travel back. (PTX ISA: atom, red, fence.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blocknb.analysis.accesses import accesses
from blocknb.analysis.effects import global_operands, mask_of, orders
from blocknb.codegen.gpu_math import llvm_type
from blocknb.codegen.gpu_memory import LETTER, SharedAddress, address, as_integer, both, plain_store
from blocknb.ir.core import Op, Value
from blocknb.language import types as t

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

SEMANTICS = {(False, False): "relaxed", (True, False): "acquire", (False, True): "release", (True, True): "acq_rel"}


def emit(g: Generator, op: Op) -> None:
    """The atomic, with its results in registers or in the buffer that the op has."""
    pointer, *operands = global_operands(op)
    values = operands[: 1 if op.name == "atomic" else 2]
    layout = pointer.type.layout if pointer.type.shape else None
    used = not op.results or op.result in g.users
    ordering = orders(op)
    # Registers that hold one element again make one step.
    element = layout.register_indices if layout is not None else (0,)
    own = {element.index(i) for i in element}
    steps = [registers for registers in accesses(g.facts, op) if own.issuperset(registers)]
    vector = any(len(registers) > 1 for registers in steps)  # `red` on a vector does not acquire
    fenced = any(ordering) and (len(steps) > 1 or not is_one_instruction(g, op) or (vector and ordering[0]))
    if fenced and ordering[1]:
        fence(g, op)
    mask, owner = mask_of(op), g.owner(layout)
    old: dict[int, str] = {}
    sem = "relaxed" if fenced else SEMANTICS[ordering]
    for registers in steps:
        r = registers[0]
        on = both(g, own_register(g, mask, r) if mask is not None else "", owner)
        words = [as_word(g, v, x) for x in registers for v in values]
        if len(registers) > 1:
            add_vector(g, op, r, words, on, sem)
            continue
        old[r] = step(g, op, pointer.type.dtype.element, own_register(g, pointer, r), words, on, sem, used)
    if fenced and ordering[0]:
        fence(g, op)
    if not used:
        return
    if op.results:
        g.set(op.result, [from_word(g, old[element.index(i)], op.result.type.dtype) for i in element])
    else:
        publish(g, op, old, owner)


def own_register(g: Generator, value: Value, register: int) -> str:
    return g.reg(value, register if value.type.shape else 0)


def as_word(g: Generator, value: Value, register: int) -> str:
    kind = llvm_type(value.type.dtype)
    return as_integer(g, own_register(g, value, register), kind, value.type.dtype.bits)


def from_word(g: Generator, name: str, dtype: t.DType) -> str:
    kind = llvm_type(dtype)
    return name if kind == f"i{dtype.bits}" else g.emit(f"bitcast i{dtype.bits} {name} to {kind}")


def is_one_instruction(g: Generator, op: Op) -> bool:
    kind, dtype = op.attrs.get("kind", "cas"), global_operands(op)[0].type.dtype.element
    return not (dtype.is_float and kind in ("max", "min")) and not in_a_loop(g, dtype, kind)


def in_a_loop(g: Generator, dtype: t.DType, kind: str) -> bool:
    """bf16 is added by the hardware from sm_90 on."""
    return dtype == t.bfloat16 and kind == "add" and g.target.capability < 90


def fence(g: Generator, op: Op) -> None:
    g.do(f'call void asm sideeffect "fence.acq_rel.{op.attrs["scope"]};", "~{{memory}}"()')


# -- one element


def step(
    g: Generator, op: Op, dtype: t.DType, address: str, words: Sequence[str], on: str, sem: str, used: bool
) -> str:
    """The atomic on one element; what was there before as an integer of its width, zero where `on` does not hold."""
    kind, bits = op.attrs.get("kind", "cas"), dtype.bits
    if kind in ("max", "min") and dtype.is_float:
        return float_extremum(g, op, kind, bits, address, words[0], on, sem, used)
    if in_a_loop(g, dtype, kind):
        return add_in_a_loop(g, address, words[0], on)
    return instruction(g, op, f"{operation(kind)}.{suffix(kind, dtype)}", bits, address, words, on, sem, used)


def operation(kind: str) -> str:
    return "exch" if kind == "xchg" else kind


def suffix(kind: str, dtype: t.DType) -> str:
    """The type, as PTX wants it for each operation."""
    if kind in ("and", "or", "xor", "xchg", "cas"):
        return f"b{dtype.bits}"
    if dtype.bits == 16:
        return f"noftz.{dtype.short}"
    if dtype.is_float:
        return dtype.short
    signed = dtype.is_signed and not (kind == "add" and dtype.bits == 64)
    return f"{'s' if signed else 'u'}{dtype.bits}"


def instruction(
    g: Generator, op: Op, what: str, bits: int, address: str, words: Sequence[str], on: str, sem: str, used: bool
) -> str:
    """`atom`, or `red` where the result is unused and the op does not acquire. Tied to zero, so that off means zero."""
    letter, scope = LETTER[bits], op.attrs["scope"]
    reduces = not used and sem in ("relaxed", "release") and not what.startswith(("exch", "cas"))
    first = 0 if reduces else 1
    inputs = [f"ptr addrspace(1) {address}", *(f"i{bits} {w}" for w in words)]
    constraints = ["l"] + [letter] * len(words)
    places = ", ".join(f"${first + 1 + i}" for i in range(len(words)))
    guard = ""
    if on:
        guard = f"@${first + 1 + len(words)} "
        inputs.append(f"i1 {on}")
        constraints.append("b")
    if reduces:
        text = f"{guard}red.{sem}.{scope}.global.{what} [$0], {places};"
        g.do(f'call void asm sideeffect "{text}", "{",".join([*constraints, "~{memory}"])}"({", ".join(inputs)})')
        return ""
    if on:
        inputs.append(f"i{bits} 0")
        constraints.append("0")
    text = f"{guard}atom.{sem}.{scope}.global.{what} $0, [$1], {places};"
    constraints = [f"={letter}", *constraints, "~{memory}"]
    return g.emit(f'call i{bits} asm sideeffect "{text}", "{",".join(constraints)}"({", ".join(inputs)})')


def add_vector(g: Generator, op: Op, register: int, words: Sequence[str], on: str, sem: str) -> None:
    """Adds fp32 numbers side by side (PTX ISA: red, `.vec_32_bit`)."""
    name, distance = address(g, op.args[0], register)
    count = len(words)
    inputs = [f"ptr addrspace(1) {name}", *(f"i32 {w}" for w in words)] + ([f"i1 {on}"] if on else [])
    constraints = ["l", *["r"] * count] + (["b"] if on else []) + ["~{memory}"]
    guard = f"@${count + 1} " if on else ""
    places = ", ".join(f"${1 + i}" for i in range(count))
    where = f"[$0+{distance}]" if distance else "[$0]"
    text = f"{guard}red.{sem}.{op.attrs['scope']}.global.add.v{count}.f32 {where}, {{{places}}};"
    g.do(f'call void asm sideeffect "{text}", "{",".join(constraints)}"({", ".join(inputs)})')


def float_extremum(
    g: Generator, op: Op, kind: str, bits: int, address: str, word: str, on: str, sem: str, used: bool
) -> str:
    """Bits order like signed integers above zero and, seen as unsigned ones, backwards below."""
    negative = g.emit(f"icmp slt i{bits} {word}, 0")
    positive = g.emit(f"xor i1 {negative}, true")
    other = "min" if kind == "max" else "max"
    up = instruction(g, op, f"{kind}.s{bits}", bits, address, [word], both(g, on, positive), sem, used)
    down = instruction(g, op, f"{other}.u{bits}", bits, address, [word], both(g, on, negative), sem, used)
    return g.emit(f"or i{bits} {up}, {down}") if used else ""


def add_in_a_loop(g: Generator, address: str, word: str, on: str) -> str:
    """bf16 by compare and swap, in a function of its own: the loop is no concern of the code around it."""
    name = "blocknb.atomic_add_bf16"
    swap = '"atom.relaxed.gpu.global.cas.b16 $0, [$1], $2, $3;", "=h,l,h,h,~{memory}"'
    g.helpers[name] = f"""define internal i16 @{name}(ptr addrspace(1) %p, i16 %x, i1 %on) noinline nounwind {{
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
    return g.emit(f"call i16 @{name}(ptr addrspace(1) {address}, i16 {word}, i1 {on or 'true'})")


# -- results for all


def publish(g: Generator, op: Op, old: dict[int, str], owner: str) -> None:
    """The owners write the old values to shared memory; a barrier and a read follow in the IR."""
    buffer, pointer = op.args[:2]
    bits = buffer.type.dtype.bits
    done = g.new_label("published")
    if owner:
        write = g.new_label("publish")
        g.do(f"br i1 {owner}, label %{write}, label %{done}")
        g.open_chunk()
        g.start(write)
    if pointer.type.shape:
        layout = pointer.type.layout
        where = SharedAddress(g, buffer, layout.lane, layout.warp)
        for r, name in old.items():
            plain_store(g, where.pointer(layout.register_indices[r]), 3, [name], bits)
    else:
        place = g.emit(f"getelementptr i8, ptr addrspace(3) @shared, i32 {g.offsets[buffer]}")
        plain_store(g, place, 3, [old[0]], bits)
    if owner:
        g.do(f"br label %{done}")
        g.open_chunk()
        g.start(done)
        g.open_chunk()
