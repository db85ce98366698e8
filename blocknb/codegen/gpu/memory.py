"""Loads and stores of global memory.

Registers that lie side by side in memory are one access of up to four 32-bit (or two 64-bit) words (see `registers`). An access whose
address differs from another one's by a constant, by the affine facts, uses that address with an immediate offset.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.analysis.accesses import accesses, equal_registers
from blocknb.analysis.effects import mask_of
from blocknb.codegen.gpu.cache_hints import CacheHint
from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.element_types import memory_bits
from blocknb.codegen.gpu.piece_loops import PieceLoops
from blocknb.codegen.gpu.registers import Words, split_words
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Op, is_volatile
from blocknb.passes.support.emission import AT_USE

#: The constraint of an operand of inline PTX by its width.
LETTER = {8: "r", 16: "h", 32: "r", 64: "l"}


class GlobalMemory(OpLowering):
    """Lowers loads and stores."""

    def __init__(self, context: KernelContext, pieces: PieceLoops):
        super().__init__(context)
        self.pieces = pieces

    @lowers("load")
    def load(self, op: Op) -> None:
        """Issues every access of a load. A user that reads an element unpacks it from its word."""
        words: Words = {}
        equal = equal_registers(self.facts, op)
        for registers in accesses(self.facts, op):
            if (first := (registers[0] & ~equal,)) in words:
                words[registers] = words[first]
            else:
                words |= self.read(op, registers)
        self.registers.arrive(op, words)

    def stream(self, op: Op) -> None:
        """Postpones a load: the first user of a register or word issues the access that loads it."""
        access = {register: registers for registers in accesses(self.facts, op) for register in registers}
        known = self.registers.words[op.result] = {}

        def fetch(registers: tuple[int, ...]) -> None:
            for piece, name in self.read(op, access[registers[0]]).items():
                self.text.remember(known, piece, name)

        self.registers.fetch[op.result] = fetch

    def read(self, op: Op, registers: tuple[int, ...]) -> Words:
        """Issues one access of a load and returns its words."""
        bits, mask = memory_bits(op.result.type.dtype), mask_of(op)
        self.text.accesses += 1
        address = self.addresses.of(op.args[0], registers[0])
        pieces = split_words(registers, bits)
        predicate = self.registers.predicate(mask, registers[0])
        plain = predicate in ("", "true") and not any(op.attrs.get(x) for x in ("cache", "evict", "sem"))
        width = bits * len(pieces[0])
        if plain and op.result not in self.registers.streamed:
            pointer = self.text.advanced(*address, 1)
            got = self.text.load_words(pointer, 1, len(pieces), width, bool(op.attrs.get("volatile")))
        else:  # otherwise LLVM would merge equal loads of two consumers, and keep a streamed tile
            defaults = ["0"] * len(pieces)
            if len(op.args) > 2:
                other = op.args[2]
                defaults = [self.registers.word(other, piece if other.type.shape else (0,)) for piece in pieces]
            keep = CacheHint.of(op, self.target)
            guard = "" if predicate == "true" else predicate
            got = predicated_load(self.text, op, address, width, guard, defaults, keep)
        return dict(zip(pieces, got, strict=True))

    @lowers("store")
    def store(self, op: Op) -> None:
        """Stores a tile access by access. It computes the operands of all accesses of a piece before the first store of the piece."""
        text, (pointer, value) = self.text, op.args[:2]
        mask, owner = mask_of(op), self.threads.owner(pointer.type.layout if pointer.type.shape else None)
        bits = memory_bits(value.type.dtype)

        def write(together: Sequence[tuple[int, ...]]) -> None:
            made = []
            for registers in together:
                text.accesses += 1
                address = self.addresses.of(pointer, registers[0])
                pieces = split_words(registers, bits)
                words = [self.registers.word(value, piece) for piece in pieces]
                predicate = text.both(self.registers.predicate(mask, registers[0]), owner)
                made.append((address, words, predicate, bits * len(pieces[0])))
            for address, words, predicate, width in made:
                if predicate or op.attrs.get("cache") or op.attrs.get("evict"):
                    predicated_store(text, op, address, words, width, predicate, CacheHint.of(op, self.target))
                else:
                    text.store_words(text.advanced(*address, 1), 1, words, width)

        maker = self.defs.get(value)
        if maker is not None and maker.attrs.get("emit") == AT_USE:
            write(accesses(self.facts, op))
        else:
            self.pieces.consume(op, accesses(self.facts, op), write)


# -- inline PTX, which has no 8-bit registers: a byte is in 32 bits


def modifiers(op: Op) -> str:
    """The cache operator (PTX ISA, cache operators) and eviction hint of a load or store. Volatile loads and acquires take neither."""
    if op.attrs.get("volatile") or op.attrs.get("sem"):
        return ""
    cache, evict = op.attrs.get("cache") or "", op.attrs.get("evict") or ""
    if evict in ("evict_first", "evict_last") and not cache:
        return f".L1::{evict}"
    return cache


def register_type(bits: int) -> str:
    """The LLVM type of the register that holds a word of a size in bits in inline PTX."""
    return "i16" if bits == 16 else f"i{max(bits, 32)}"


def form(bits: int, count: int) -> str:
    """The suffix of an instruction that moves several words."""
    return f"{f'.v{count}' if count > 1 else ''}.b{bits}"


def predicated_load(
    text: TextWriter,
    op: Op,
    address: tuple[str, int],
    bits: int,
    predicate: str,
    defaults: Sequence[str],
    keep: CacheHint,
) -> list[str]:
    """Writes a load that returns the defaults, and reads no memory, if the predicate is off."""
    (name, distance), n, register = address, len(defaults), register_type(bits)
    outs = ", ".join(f"${i}" for i in range(n))
    target = f"{{{outs}}}" if n > 1 else outs
    guard = f"@${n + 1} " if predicate else ""
    order = ".acquire.sys" if op.attrs.get("sem") else ".volatile" if op.attrs.get("volatile") else ""
    where = f"[${n}+{distance}]" if distance else f"[${n}]"
    last = keep.last(n + 1 + (1 + n) * bool(predicate))
    ptx = f"{guard}ld{order}.global{modifiers(op)}{keep.suffix}{form(bits, n)} {target}, {where}{last};"
    constraints, operands = [f"={LETTER[bits]}"] * n + ["l"], [f"ptr addrspace(1) {name}"]
    clobbers = ["~{memory}"] if is_volatile(op) else []  # LLVM's back end would move other accesses across it
    if predicate:
        constraints += ["b", *(str(i) for i in range(n))]
        wide = (text.emit(f"zext i8 {v} to i32") if bits == 8 and v != "0" else v for v in defaults)
        operands += [f"i1 {predicate}", *(f"{register} {v}" for v in wide)]
    constraints, operands = [*constraints, *["l"] * len(keep.operands)], [*operands, *keep.operands]
    call = f'asm sideeffect "{ptx}", "{",".join([*constraints, *clobbers])}"({", ".join(operands)})'
    results = text.results(call, [register] * n)
    return [text.emit(f"trunc i32 {x} to i8") for x in results] if bits == 8 else results


def predicated_store(
    text: TextWriter,
    op: Op,
    address: tuple[str, int],
    words: Sequence[str],
    bits: int,
    predicate: str,
    keep: CacheHint,
) -> None:
    """Writes a store that does nothing if the predicate is off."""
    (name, distance), n = address, len(words)
    if bits == 8:
        words = [text.emit(f"zext i8 {w} to i32") for w in words]
    ins = ", ".join(f"${i + 1}" for i in range(n))
    source = f"{{{ins}}}" if n > 1 else ins
    where = f"[$0+{distance}]" if distance else "[$0]"
    ptx = f"st.global{modifiers(op)}{keep.suffix}{form(bits, n)} {where}, {source}{keep.last(n + 1)};"
    operands = [f"ptr addrspace(1) {name}", *(f"{register_type(bits)} {w}" for w in words), *keep.operands]
    # Without the clobber LLVM's back end moves an earlier load down past it, into the branch that uses the loaded value.
    text.asm(ptx, ["l", *[LETTER[bits]] * n, *["l"] * len(keep.operands), "~{memory}"], operands, on=predicate)
