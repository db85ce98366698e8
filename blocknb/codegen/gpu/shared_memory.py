"""Shared memory: addresses in buffers, loads and stores, ldmatrix and stmatrix (PTX ISA)."""

from __future__ import annotations

from blocknb.codegen.gpu.buffers import SharedAddress
from blocknb.codegen.gpu.casts import as_tf32
from blocknb.codegen.gpu.element_types import memory_bits
from blocknb.codegen.gpu.registers import Words, split_words
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Op
from blocknb.layouts.shared import MatrixAccess, MatrixStep, ldmatrix_plan, stmatrix_plan, vector_access
from blocknb.target import Target


class SharedMemory(OpLowering):
    """Lowers reads and writes of buffers, and the fences and barriers between them."""

    @lowers("alloc")
    def alloc(self, op: Op) -> None:
        """Records the offset of a buffer."""
        self.buffers.offsets[op.result] = op.attrs["offset"]

    @lowers("fence")
    def fence(self, op: Op) -> None:
        """Orders writes to shared memory before reads by the TMA engine and wgmma (the async proxy)."""
        self.text.asm("fence.proxy.async.shared::cta;", ["~{memory}"], [], convergent=True)

    @lowers("warp_barrier")
    def warp_barrier(self, op: Op) -> None:
        """The lanes of each warp wait for each other."""
        self.threads.warp_barrier()

    @lowers("barrier")
    def barrier(self, op: Op) -> None:
        """The threads of the program wait for each other."""
        self.threads.barrier()

    @lowers("local_store")
    def local_store(self, op: Op) -> None:
        """Writes a tile to a buffer."""
        if self.store_matrices(op):
            return
        buffer, value = op.args
        layout, bits = value.type.layout, memory_bits(value.type.dtype)
        where = self.buffers.elements(buffer, layout.lane, layout.warp)
        for registers in vector_access(layout, buffer.type.layout, bits).groups:
            pieces = split_words(registers, bits)
            if op.attrs.get("tf32"):
                words = [as_tf32(self.text, self.registers.reg(value, r)) for r in registers]
            else:
                words = [self.registers.word(value, piece) for piece in pieces]
            pointer = where.pointer(layout.register_indices[registers[0]])
            self.text.store_words(pointer, 3, words, bits * len(pieces[0]))

    def store_matrices(self, op: Op) -> bool:
        """Writes fragments of a tensor core by stmatrix, eight rows of 16 bytes at a time. It does so only if the target has stmatrix and
        it takes fewer instructions. Returns whether it did."""
        buffer, value = op.args
        if self.target.capability < 90 or op.attrs.get("tf32"):
            return False
        matrix = stmatrix_plan(value.type.layout, buffer.type.layout, memory_bits(value.type.dtype))
        if matrix is None:
            return False
        where = self.buffers.elements(buffer, matrix.lane, matrix.warp)
        name = matrix_intrinsic("stmatrix", matrix)
        for step in matrix.steps:
            words = [("i32", self.registers.word(value, registers)) for registers in step.registers]
            self.text.call("void", name, ("ptr addrspace(3)", where.pointer(step.base)), *words)
        return True

    @lowers("local_load")
    def local_load(self, op: Op) -> None:
        """Reads a tile from shared memory. If an MMA follows, it reads its fragments one by one, just before it uses them."""
        buffer, layout = op.args[0], op.attrs["layout"]
        bits = memory_bits(buffer.type.dtype)
        if layout is None:
            pointer = self.buffers.start(buffer)
            self.registers.arrive(op, {(0,): self.text.load_words(pointer, 3, 1, bits)[0]})
            return
        matrix = matrix_access(op, self.target)
        words: Words = {}
        if matrix is not None:
            where = self.buffers.elements(buffer, matrix.lane, matrix.warp)
            fetch = LdmatrixFetch(self.text, where, matrix, words)
            # A tensor core takes words of neighbouring registers. A buffer that is contiguous along the other axis has other words.
            paired = all(registers == tuple(range(registers[0], registers[-1] + 1)) for registers in fetch.by_word)
            if paired and self.lookahead.feeds_next_mma(op):
                self.registers.words[op.result] = words
                self.registers.fetch[op.result] = fetch
                return
            for step in matrix.steps:
                fetch.step(step)
        else:
            where = self.buffers.elements(buffer, layout.lane, layout.warp)
            for registers in vector_access(layout, buffer.type.layout, bits).groups:
                pieces = split_words(registers, bits)
                pointer = where.pointer(layout.register_indices[registers[0]])
                got = self.text.load_words(pointer, 3, len(pieces), bits * len(pieces[0]))
                words.update(zip(pieces, got, strict=True))
        self.registers.arrive(op, words)


def matrix_access(op: Op, target: Target) -> MatrixAccess | None:
    """The ldmatrix instructions of a local_load; None if plain loads execute it."""
    buffer, layout = op.args[0].type, op.attrs["layout"]
    if layout is None or target.capability < 75:
        return None
    bits = memory_bits(buffer.dtype)
    matrix = ldmatrix_plan(layout, buffer.layout, bits)
    return matrix if matrix is not None and bits * len(matrix.steps[0].registers[0]) == 32 else None


def matrix_intrinsic(instruction: str, matrix: MatrixAccess) -> str:
    """The name of the intrinsic for ldmatrix or stmatrix."""
    return f"llvm.nvvm.{instruction}.sync.aligned.m8n8.x{matrix.count}{'.trans' if matrix.trans else ''}.b16.p3"


class LdmatrixFetch:
    """Issues the ldmatrix that loads a word, and records the other words that it loads."""

    def __init__(self, text: TextWriter, where: SharedAddress, matrix: MatrixAccess, words: Words):
        self.text, self.where, self.matrix, self.words = text, where, matrix, words
        self.by_word = {registers: step for step in matrix.steps for registers in step.registers}

    def __call__(self, registers: tuple[int, ...]) -> None:
        """Loads the word of these registers."""
        self.step(self.by_word[registers])

    def step(self, step: MatrixStep) -> None:
        """Issues one instruction."""
        count = self.matrix.count
        kind = "i32" if count == 1 else "{" + ", ".join(["i32"] * count) + "}"
        name = matrix_intrinsic("ldmatrix", self.matrix)
        got = self.text.call(kind, name, ("ptr addrspace(3)", self.where.pointer(step.base)))
        for i, registers in enumerate(step.registers):
            self.words[registers] = got if count == 1 else self.text.emit(f"extractvalue {kind} {got}, {i}")
