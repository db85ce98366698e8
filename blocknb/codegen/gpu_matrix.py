"""stmatrix in the GPU code generator: fragments of a tensor core go to shared memory eight rows of 16 bytes at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.codegen import gpu_memory
from blocknb.ir.core import Op
from blocknb.layouts.shared import stmatrix_plan

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator


def store(g: Generator, op: Op) -> bool:
    """Writes a local_store as stmatrix, if the target has it and it is the shorter way; whether it did."""
    buffer, value = op.args
    if g.target.capability < 90 or op.attrs.get("tf32"):
        return False
    matrix = stmatrix_plan(value.type.layout, buffer.type.layout, gpu_memory.memory_bits(value.type.dtype))
    if matrix is None:
        return False
    where = gpu_memory.SharedAddress(g, buffer, matrix.lane, matrix.warp)
    name = f"llvm.nvvm.stmatrix.sync.aligned.m8n8.x{matrix.count}{'.trans' if matrix.trans else ''}.b16.p3"
    for step in matrix.steps:
        words = [("i32", gpu_memory.word(g, value, registers)) for registers in step.registers]
        g.call("void", name, ("ptr addrspace(3)", where.pointer(step.base)), *words)
    return True
