"""Loads, stores and shared memory of the GPU code generator.

Memory is moved in *words*: the registers that lie side by side in memory are one access of up to four 32-bit (or two 64-bit)
words, and a word may hold two halves or four bytes. Words stay words until an element is asked for, so what goes from global to
shared memory, or from shared memory into a tensor core, is never taken apart. An access whose address differs from another one's
by a constant, by the affine facts, uses that one's address with an immediate offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blocknb.analysis.accesses import accesses
from blocknb.analysis.effects import mask_of
from blocknb.codegen import gpu_matrix, gpu_roles, gpu_stream
from blocknb.codegen.gpu_math import ElementType, as_tf32, llvm_type
from blocknb.errors import CompilerBug
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import MatrixAccess, MatrixStep, ldmatrix_plan, vector_access
from blocknb.target import Target

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

LETTER = {8: "r", 16: "h", 32: "r", 64: "l"}


def emit(g: Generator, op: Op) -> None:
    match op.name:
        case "load":
            load(g, op)
        case "store":
            store(g, op)
        case "alloc":
            g.offsets[op.result] = op.attrs["offset"]
        case "local_store":
            if not gpu_matrix.store(g, op):
                local_store(g, op)
        case "local_load":
            local_load(g, op)
        case "fence":
            g.do('call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"() #1')
        case "warp_barrier":
            g.call("void", "llvm.nvvm.bar.warp.sync", ("i32", "-1"))
        case "barrier":
            gpu_roles.barrier(g)


# -- words: registers that travel together


def word_bits(element_bits: int, count: int) -> int:
    """The width of the words in which `count` neighbouring elements travel."""
    return max(element_bits, min(32, element_bits * count))


def split(registers: Sequence[int], element_bits: int) -> list[tuple[int, ...]]:
    """The registers of one access, word by word."""
    per = max(1, word_bits(element_bits, len(registers)) // element_bits)
    return [tuple(registers[i : i + per]) for i in range(0, len(registers), per)]


def word(g: Generator, value: Value, registers: tuple[int, ...]) -> str:
    """An integer that holds these registers side by side, the first one lowest."""
    while (op := g.defs.get(value)) is not None and op.name == "part":
        registers = tuple(whole(g, value, register)[1] for register in registers)
        value = op.args[0]
    known = g.words.setdefault(value, {})
    if registers not in known and (deferred := g.deferred.get(value)) is not None:
        deferred(registers)
    return known[registers] if registers in known else g.remember(known, registers, pack(g, value, registers))


def whole(g: Generator, part: Value, register: int) -> tuple[Value, int]:
    """The tile that a `part` is of, and the register there that is its register."""
    op = g.defs[part]
    axis, index, count = (op.attrs[name] for name in ("axis", "index", "count"))
    return op.args[0], op.args[0].type.layout.part_registers(axis, index, count)[register]


def pack(g: Generator, value: Value, registers: tuple[int, ...]) -> str:
    dtype = value.type.dtype
    kind, bits = llvm_type(dtype), memory_bits(dtype)
    if dtype == t.int1:
        parts = [g.emit(f"zext i1 {g.reg(value, r)} to i8") for r in registers]
        kind = "i8"
    elif (source := halves_of_singles(g, value)) is not None and len(registers) == 2:
        return pack_halves(g, source, registers, kind)
    else:
        parts = [g.reg(value, r) for r in registers]
    if len(parts) == 1:
        return as_integer(g, parts[0], kind, bits)
    return combine(g, parts, kind, bits)


def combine(g: Generator, parts: Sequence[str], kind: str, bits: int) -> str:
    """Elements side by side in one integer."""
    vector, name = f"<{len(parts)} x {kind}>", "undef"
    for i, part in enumerate(parts):
        name = g.emit(f"insertelement {vector} {name}, {kind} {part}, i32 {i}")
    return g.emit(f"bitcast {vector} {name} to i{bits * len(parts)}")


def halves_of_singles(g: Generator, value: Value) -> Value | None:
    """The fp32 tile that `value` is the 16-bit rounding of, if it is just that: pairs of them convert in one instruction."""
    op = g.defs.get(value)
    native = g.target.capability >= 80
    if (
        native
        and op is not None
        and op.name == "cast"
        and value.type.dtype in (t.float16, t.bfloat16)
        and op.args[0].type.dtype == t.float32
    ):
        return op.args[0]
    return None


def pack_halves(g: Generator, source: Value, registers: tuple[int, ...], kind: str) -> str:
    low, high = (g.reg(source, r) for r in registers)
    pair = g.emit(f"insertelement <2 x float> undef, float {low}, i32 0")
    pair = g.emit(f"insertelement <2 x float> {pair}, float {high}, i32 1")
    halves = g.emit(f"fptrunc <2 x float> {pair} to <2 x {kind}>")
    return g.emit(f"bitcast <2 x {kind}> {halves} to i32")


def as_integer(g: Generator, name: str, kind: str, bits: int) -> str:
    if kind.startswith("ptr"):
        return g.emit(f"ptrtoint {kind} {name} to i64")
    return name if kind == f"i{bits}" else g.emit(f"bitcast {kind} {name} to i{bits}")


def memory_bits(dtype: ElementType) -> int:
    return max(8, dtype.bits)


def unpack(g: Generator, value: Value, index: int) -> str:
    """One register out of the word that it arrived in."""
    if (value in g.streamed or value in g.again.loads) and not any(index in registers for registers in g.words[value]):
        g.deferred[value]((index,))
    dtype = value.type.dtype
    kind, bits = llvm_type(dtype), memory_bits(dtype)
    registers, name = next(((r, n) for r, n in g.words[value].items() if index in r), ((), ""))
    if not registers:
        raise CompilerBug(f"register {index} of {value} never arrived")
    if len(registers) > 1:
        element = "i8" if dtype == t.int1 else kind
        vector = f"<{len(registers)} x {element}>"
        key = ("vector", name, vector)
        if key not in g.memo:
            g.memo[key] = g.emit(f"bitcast i{bits * len(registers)} {name} to {vector}")
        piece = g.emit(f"extractelement {vector} {g.memo[key]}, i32 {registers.index(index)}")
        return g.emit(f"trunc i8 {piece} to i1") if dtype == t.int1 else piece
    if dtype == t.int1:
        return g.emit(f"trunc i8 {name} to i1")
    if kind.startswith("ptr"):
        return g.emit(f"inttoptr i64 {name} to {kind}")
    return name if kind == f"i{bits}" else g.emit(f"bitcast i{bits} {name} to {kind}")


def arrive(g: Generator, op: Op, words: dict[tuple[int, ...], str], value: Value | None = None) -> None:
    """Registers a value whose words are there (what a load or its like brought, or a `value` that stands for it); elements are unpacked
    when asked for, right here."""
    value = op.result if value is None else value
    g.words[value] = words
    chunk = g.open_chunk()
    g.lazy[value] = (op, chunk, g.dbg)
    g.open_chunk()


# -- global memory


def address(g: Generator, pointer: Value, register: int) -> tuple[str, int]:
    """The address of a register as (name, constant bytes): a nearby register's address where the distance is a constant."""
    if not pointer.type.shape:
        return g.reg(pointer), 0
    while (
        op := g.defs.get(pointer)
    ) is not None and op.name == "part":  # whose addresses are near those of other parts
        pointer, register = whole(g, pointer, register)
    layout = pointer.type.layout
    strides = constant_strides(g, pointer, layout)
    base, distance = 0, 0
    for position in range(len(layout.reg)):
        if not register >> position & 1:
            continue
        if position in strides:
            distance += strides[position]
        else:
            base |= 1 << position
    return g.reg(pointer, base), distance


def constant_strides(g: Generator, pointer: Value, layout: Layout) -> dict[int, int]:
    """For the register bits that move the address by a constant: that many bytes.

    The bit must move the index by addition, so no other bit of the place may share an index bit with it.
    """
    if pointer not in g.strides:
        found: dict[int, int] = {}
        for position, basis in enumerate(layout.reg):
            others = [b for p, b in enumerate(layout.reg) if p != position] + [*layout.lane, *layout.warp]
            if any(basis & other for other in others):
                continue
            distance = 0
            for axis in range(len(layout.shape)):
                steps = (basis & layout.dim_mask(axis)) >> layout.dim_bits(axis).start
                stride = g.facts.stride(pointer, axis) if steps else 0
                if not isinstance(stride, int):
                    break
                distance += steps * stride * pointer.type.dtype.element.bytes
            else:
                found[position] = distance
        g.strides[pointer] = found
    return g.strides[pointer]


def offset_pointer(g: Generator, name: str, distance: int, space: int) -> str:
    return g.emit(f"getelementptr i8, ptr addrspace({space}) {name}, i64 {distance}") if distance else name


def load(g: Generator, op: Op) -> None:
    words: dict[tuple[int, ...], str] = {}
    for registers in accesses(g.facts, op):
        words |= read(g, op, registers)
    arrive(g, op, words)


def read(g: Generator, op: Op, registers: tuple[int, ...]) -> dict[tuple[int, ...], str]:
    """One access of a load: the words that it brings."""
    dtype, mask = op.result.type.dtype, g.masks.get(op, mask_of(op))
    other = op.args[2] if len(op.args) > 2 else None
    g.accesses += 1
    name, distance = address(g, op.args[0], registers[0])
    pieces = split(registers, memory_bits(dtype))
    predicate = g.reg(mask, registers[0] if mask.type.shape else 0) if mask is not None else ""
    plain = predicate in ("", "true") and not any(op.attrs.get(x) for x in ("cache", "evict", "sem"))
    if plain and op.result not in g.streamed:
        got = plain_load(g, name, distance, pieces, memory_bits(dtype), bool(op.attrs.get("volatile")))
    else:  # streamed: LLVM would keep what two consumers load alike
        defaults = (
            [word(g, other, piece if other.type.shape else (0,)) for piece in pieces] if other is not None else []
        )
        predicate = "" if predicate == "true" else predicate
        got = predicated_load(g, op, name, distance, pieces, memory_bits(dtype), predicate, defaults)
    return dict(zip(pieces, got, strict=True))


def stream(g: Generator, op: Op) -> None:
    """A load that happens access by access, whenever a register or word of it is asked for."""
    access = {register: registers for registers in accesses(g.facts, op) for register in registers}
    known = g.words[op.result] = {}

    def fetch(registers: tuple[int, ...]) -> None:
        for piece, name in read(g, op, access[registers[0]]).items():
            g.remember(known, piece, name)

    g.deferred[op.result] = fetch


def plain_load(
    g: Generator, name: str, distance: int, pieces: Sequence, element_bits: int, volatile: bool
) -> list[str]:
    bits = element_bits * len(pieces[0])
    kind = f"i{bits}" if len(pieces) == 1 else f"<{len(pieces)} x i{bits}>"
    pointer = offset_pointer(g, name, distance, 1)
    loaded = g.emit(
        f"load {'volatile ' if volatile else ''}{kind}, ptr addrspace(1) {pointer}, align {bits * len(pieces) // 8}"
    )
    if volatile:  # LLVM may move other loads across a volatile one
        g.do('call void asm sideeffect "", "~{memory}"()')
    if len(pieces) == 1:
        return [loaded]
    return [g.emit(f"extractelement {kind} {loaded}, i32 {i}") for i in range(len(pieces))]


def modifiers(op: Op) -> str:
    """The cache operator (PTX ISA, cache operators) and eviction hint of a load or store. Volatile loads take neither."""
    if op.attrs.get("volatile"):
        return ""
    cache, evict = op.attrs.get("cache") or "", op.attrs.get("evict") or ""
    if evict in ("evict_first", "evict_last") and not cache:
        return f".L1::{evict}"
    return cache


def predicated_load(
    g: Generator,
    op: Op,
    name: str,
    distance: int,
    pieces: Sequence,
    element_bits: int,
    predicate: str,
    defaults: Sequence[str],
) -> list[str]:
    """Inline PTX: where the predicate is off nothing is read and the results are the defaults (zero)."""
    bits, n = element_bits * len(pieces[0]), len(pieces)
    narrow = bits == 8  # inline PTX has no 8-bit registers
    letter, register = LETTER[bits], 16 if bits == 16 else max(bits, 32)
    outs = ", ".join(f"${i}" for i in range(n))
    target = f"{{{outs}}}" if n > 1 else outs
    guard = f"@${n + 1} " if predicate else ""
    volatile = ".acquire.sys" if op.attrs.get("sem") else ".volatile" if op.attrs.get("volatile") else ""
    where = f"[${n}+{distance}]" if distance else f"[${n}]"
    text = f"{guard}ld{volatile}.global{modifiers(op)}{f'.v{n}' if n > 1 else ''}.b{bits} {target}, {where};"
    constraints = [f"={letter}"] * n + ["l"]
    operands = [f"ptr addrspace(1) {name}"]
    if predicate:
        constraints.append("b")
        operands.append(f"i1 {predicate}")
        constraints += [str(i) for i in range(n)]
        values = list(defaults) or ["0"] * n
        operands += [f"i{register} {g.emit(f'zext i8 {v} to i32') if narrow and v != '0' else v}" for v in values]
    kind = f"i{register}" if n == 1 else "{" + ", ".join([f"i{register}"] * n) + "}"
    got = g.emit(f'call {kind} asm sideeffect "{text}", "{",".join(constraints)}"({", ".join(operands)})')
    results = [got] if n == 1 else [g.emit(f"extractvalue {kind} {got}, {i}") for i in range(n)]
    return [g.emit(f"trunc i32 {x} to i8") for x in results] if narrow else results


def store(g: Generator, op: Op) -> None:
    pointer, value = op.args[:2]
    mask, owner = mask_of(op), g.owner(pointer.type.layout if pointer.type.shape else None)
    bits = memory_bits(value.type.dtype)

    def write(together: Sequence[tuple[int, ...]]) -> None:
        made = []
        for registers in together:
            g.accesses += 1
            name, distance = address(g, pointer, registers[0])
            pieces = split(registers, bits)
            words = [word(g, value, piece) for piece in pieces]
            predicate = g.reg(mask, registers[0] if mask.type.shape else 0) if mask is not None else ""
            made.append((name, distance, words, both(g, predicate, owner), bits * len(pieces[0])))
        for name, distance, words, predicate, wide in made:
            if predicate or op.attrs.get("cache") or op.attrs.get("evict"):
                predicated_store(g, op, name, distance, words, wide, predicate)
            else:
                plain_store(g, offset_pointer(g, name, distance, 1), 1, words, wide)

    if value in g.late:
        write(accesses(g.facts, op))
    else:
        gpu_stream.in_pieces(g, op, accesses(g.facts, op), write)


def both(g: Generator, a: str, b: str) -> str:
    a, b = ("" if x == "true" else x for x in (a, b))
    return g.emit(f"and i1 {a}, {b}") if a and b else a or b


def plain_store(g: Generator, pointer: str, space: int, words: Sequence[str], bits: int) -> None:
    kind, name = f"i{bits}", words[0]
    if len(words) > 1:
        kind, name = f"<{len(words)} x i{bits}>", "undef"
        for i, part in enumerate(words):
            name = g.emit(f"insertelement {kind} {name}, i{bits} {part}, i32 {i}")
    g.do(f"store {kind} {name}, ptr addrspace({space}) {pointer}, align {bits * len(words) // 8}")


def predicated_store(
    g: Generator, op: Op, name: str, distance: int, words: Sequence[str], bits: int, predicate: str
) -> None:
    n = len(words)
    if bits == 8:
        words = [g.emit(f"zext i8 {w} to i32") for w in words]
    register = 16 if bits == 16 else max(bits, 32)
    ins = ", ".join(f"${i + 1}" for i in range(n))
    guard = f"@${n + 1} " if predicate else ""
    source = f"{{{ins}}}" if n > 1 else ins
    text = f"{guard}st.global{modifiers(op)}{f'.v{n}' if n > 1 else ''}.b{bits} [$0{f'+{distance}' if distance else ''}], {source};"
    operands = [f"ptr addrspace(1) {name}", *(f"i{register} {w}" for w in words)] + (
        [f"i1 {predicate}"] if predicate else []
    )
    # Without the clobber LLVM's back end moves an earlier load down past it, into the branch that uses what was loaded.
    constraints = ["l"] + [LETTER[bits]] * n + (["b"] if predicate else []) + ["~{memory}"]
    g.do(f'call void asm sideeffect "{text}", "{",".join(constraints)}"({", ".join(operands)})')


# -- shared memory


class SharedAddress:
    """Addresses in a buffer for one layout: (thread part XOR constant) plus constant, the first XOR only where bits meet."""

    def __init__(self, g: Generator, buffer: Value, lane: Sequence[int], warp: Sequence[int]):
        self.g, self.base, self.slot = g, g.offsets[buffer], g.slots.get(buffer, "")
        self.shared, self.bytes = buffer.type.layout, memory_bits(buffer.type.dtype) // 8
        lane, warp = ([self.shared.offset(b) * self.bytes for b in bases] for bases in (lane, warp))
        self.reach = 0
        for basis in (*lane, *warp):
            self.reach |= basis
        self.thread = g.thread_index(lane, warp)

    def pointer(self, index: int) -> str:
        """The address of the element whose flat index is the thread's part XOR `index`."""
        return offset_pointer(self.g, *self.place(index), 3)

    def place(self, index: int) -> tuple[str, int]:
        """The same as (name, constant bytes)."""
        g, offset = self.g, self.shared.offset(index) * self.bytes
        meet = offset & self.reach
        key = ("shared", self.thread, meet)
        if key not in g.memo:
            with g.writing(g.entry, ""):
                name = g.emit(f"xor i32 {self.thread}, {meet}") if meet else self.thread
                g.memo[key] = g.emit(f"getelementptr i8, ptr addrspace(3) @shared, i32 {name}")
        base, constant = g.memo[key], self.base + (offset & ~self.reach)
        if self.slot:
            key = ("slot", base, self.slot)
            if key not in g.memo:
                g.remember(g.memo, key, g.emit(f"getelementptr i8, ptr addrspace(3) {base}, i32 {self.slot}"))
            base = g.memo[key]
        return base, constant


def local_store(g: Generator, op: Op) -> None:
    buffer, value = op.args
    layout, bits = value.type.layout, memory_bits(value.type.dtype)
    where = SharedAddress(g, buffer, layout.lane, layout.warp)
    for registers in vector_access(layout, buffer.type.layout, bits).groups:
        pieces = split(registers, bits)
        if op.attrs.get("tf32"):
            words = [as_tf32(g, g.reg(value, r)) for r in registers]
        else:
            words = [word(g, value, piece) for piece in pieces]
        plain_store(g, where.pointer(layout.register_indices[registers[0]]), 3, words, bits * len(pieces[0]))


def local_load(g: Generator, op: Op) -> None:
    """Reads a tile from shared memory; for a tensor core next in line, fragment by fragment where it is consumed."""
    buffer, layout = op.args[0], op.attrs["layout"]
    bits = memory_bits(buffer.type.dtype)
    if layout is None:
        name = g.emit(f"getelementptr i8, ptr addrspace(3) @shared, i32 {g.offsets[buffer]}")
        arrive(g, op, {(0,): shared_load(g, name, [(0,)], bits)[0]})
        return
    matrix = matrix_access(op, g.target)
    words: dict[tuple[int, ...], str] = {}
    if matrix is not None:
        where = SharedAddress(g, buffer, matrix.lane, matrix.warp)
        fetch = MatrixFetch(g, where, matrix, words)
        # What the tensor core takes are words of neighbouring registers; a buffer that runs the other way gives others.
        paired = all(registers == tuple(range(registers[0], registers[-1] + 1)) for registers in fetch.by_word)
        if paired and g.consumed_by_next_dot(op):
            g.words[op.result] = words
            g.deferred[op.result] = fetch
            return
        for step in matrix.steps:
            fetch.step(step)
    else:
        where = SharedAddress(g, buffer, layout.lane, layout.warp)
        for registers in vector_access(layout, buffer.type.layout, bits).groups:
            pieces = split(registers, bits)
            pointer = where.pointer(layout.register_indices[registers[0]])
            words.update(zip(pieces, shared_load(g, pointer, pieces, bits), strict=True))
    arrive(g, op, words)


def matrix_access(op: Op, target: Target) -> MatrixAccess | None:
    """How a local_load goes through ldmatrix, or None when it is plain loads."""
    buffer, layout = op.args[0].type, op.attrs["layout"]
    if layout is None or target.capability < 75:
        return None
    bits = memory_bits(buffer.dtype)
    matrix = ldmatrix_plan(layout, buffer.layout, bits)
    return matrix if matrix is not None and bits * len(matrix.steps[0].registers[0]) == 32 else None


class MatrixFetch:
    """Issues the ldmatrix that brings a word, and files the words that come with it."""

    def __init__(self, g: Generator, where: SharedAddress, matrix: MatrixAccess, words: dict[tuple[int, ...], str]):
        self.g, self.where, self.matrix, self.words = g, where, matrix, words
        self.by_word = {registers: step for step in matrix.steps for registers in step.registers}

    def __call__(self, registers: tuple[int, ...]) -> None:
        self.step(self.by_word[registers])

    def step(self, step: MatrixStep) -> None:
        g, count = self.g, self.matrix.count
        kind = "i32" if count == 1 else "{" + ", ".join(["i32"] * count) + "}"
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if self.matrix.trans else ''}.b16.p3"
        got = g.call(kind, name, ("ptr addrspace(3)", self.where.pointer(step.base)))
        for i, registers in enumerate(step.registers):
            self.words[registers] = got if count == 1 else g.emit(f"extractvalue {kind} {got}, {i}")


def shared_load(g: Generator, pointer: str, pieces: Sequence, element_bits: int) -> list[str]:
    bits = element_bits * len(pieces[0])
    kind = f"i{bits}" if len(pieces) == 1 else f"<{len(pieces)} x i{bits}>"
    loaded = g.emit(f"load {kind}, ptr addrspace(3) {pointer}, align {bits * len(pieces) // 8}")
    if len(pieces) == 1:
        return [loaded]
    return [g.emit(f"extractelement {kind} {loaded}, i32 {i}") for i in range(len(pieces))]
