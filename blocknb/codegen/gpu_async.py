"""Asynchronous copies of the GPU code generator: cp.async from global to shared memory, past the registers, and slots of rings.

An instruction copies 4, 8 or 16 bytes for a thread; how many of them are read it takes from a register, and the rest are zeros, so
that a mask costs nothing. The trick is in the addresses: what a thread adds to a buffer's base, swizzle and all, is computed once
in the entry block, and a slot of a ring adds one number to it, for all instructions that differ by a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.analysis.accesses import accesses
from blocknb.analysis.effects import mask_of
from blocknb.codegen import gpu_memory
from blocknb.ir.core import Op

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator


def emit(g: Generator, op: Op) -> None:
    match op.name:
        case "slot":
            slot(g, op)
        case "copy_async":
            copy(g, op)
        case "commit":
            g.call("void", "llvm.nvvm.cp.async.commit.group")
        case "wait":
            g.call("void", "llvm.nvvm.cp.async.wait.group", ("i32", str(op.attrs["pending"])))


def slot(g: Generator, op: Op) -> None:
    ring, index = op.args
    g.offsets[op.result] = g.offsets[ring]
    g.slots[op.result] = g.emit(f"mul i32 {g.reg(index)}, {ring.type.slot.bytes}")


def copy(g: Generator, op: Op) -> None:
    buffer, pointer = op.args[:2]
    layout, mask, owner = pointer.type.layout, mask_of(op), g.owner(pointer.type.layout)
    size = buffer.type.dtype.bytes * op.attrs["vec"]
    where = gpu_memory.SharedAddress(g, buffer, layout.lane, layout.warp)
    name = f"llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
    for registers in accesses(g.facts, op):
        g.accesses += 1
        target = where.pointer(layout.register_indices[registers[0]])
        base, distance = gpu_memory.address(g, pointer, registers[0])
        source = gpu_memory.offset_pointer(g, base, distance, 1)
        predicate = "true" if mask is None else g.reg(mask, registers[0])
        args = [("ptr addrspace(3)", target), ("ptr addrspace(1)", source)]
        if owner:
            guarded(g, owner, predicate, target, source, size)
        elif predicate == "true":
            g.call("void", name, *args)
        else:
            g.call("void", name + ".s", *args, ("i32", read(g, predicate, size)))


def read(g: Generator, predicate: str, size: int) -> str:
    """How many bytes are read: all or none."""
    key = ("bytes", predicate, size)
    if key not in g.memo:
        return g.remember(g.memo, key, g.emit(f"select i1 {predicate}, i32 {size}, i32 0"))
    return g.memo[key]


def guarded(g: Generator, owner: str, predicate: str, target: str, source: str, size: int) -> None:
    """A copy that one of several threads with the same elements does for all."""
    cache, amount = "cg" if size == 16 else "ca", read(g, predicate, size) if predicate != "true" else str(size)
    text = f"@$3 cp.async.{cache}.shared.global [$0], [$1], {size}, $2;"
    operands = f"ptr addrspace(3) {target}, ptr addrspace(1) {source}, i32 {amount}, i1 {owner}"
    g.do(f'call void asm sideeffect "{text}", "l,l,r,b"({operands})')
