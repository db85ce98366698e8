"""Flips and gathers of the GPU code generator.

A flip takes each element from a place at a distance that is known when compiling: another register, another lane by a butterfly, or
(across warps) a buffer in shared memory. A gather reads from a buffer at an index known only at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.codegen.gpu_math import llvm_type
from blocknb.codegen.gpu_memory import SharedAddress, arrive, memory_bits, shared_load
from blocknb.codegen.gpu_warp import butterfly
from blocknb.ir.core import Op
from blocknb.language.types import Buffer
from blocknb.layouts import gf2

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator


def emit(g: Generator, op: Op) -> None:
    if op.name == "gather":
        gather(g, op)
    elif isinstance(op.args[0].type, Buffer):
        flip_in_buffer(g, op)
    else:
        flip_in_warp(g, op)


def flip_in_warp(g: Generator, op: Op) -> None:
    """Element i ^ mask is in the place that differs by the hardware bits that add up to the mask: a register, a butterfly."""
    x = op.args[0]
    layout = x.type.layout
    place = gf2.solve((*layout.reg, *layout.lane), op.attrs["mask"] << layout.dim_bits(op.attrs["axis"]).start)
    assert place is not None, "a flip across warps goes through shared memory"
    register, lane = place & layout.num_registers - 1, place >> len(layout.reg)
    names = g.regs(x)
    names = [names[r ^ register] for r in range(len(names))]
    g.set(op.result, [butterfly(g, name, x.type.dtype, lane) for name in names] if lane else names)


def flip_in_buffer(g: Generator, op: Op) -> None:
    """From a buffer, each register of the element that lies `mask` away."""
    buffer, layout = op.args[0], op.result.type.layout
    bits = memory_bits(buffer.type.dtype)
    where = SharedAddress(g, buffer, layout.lane, layout.warp)
    mask = op.attrs["mask"] << layout.dim_bits(op.attrs["axis"]).start
    words: dict[tuple[int, ...], str] = {}
    for register, index in enumerate(layout.register_indices):
        words[(register,)] = shared_load(g, where.pointer(index ^ mask), [(register,)], bits)[0]
    arrive(g, op, words)


def gather(g: Generator, op: Op) -> None:
    """From a row-major buffer, the elements that an index names along an axis."""
    buffer, index = op.args
    layout, axis, bits = index.type.layout, op.attrs["axis"], memory_bits(buffer.type.dtype)
    low, high = layout.dim_bits(axis).start, layout.dim_bits(axis).stop
    size = buffer.type.shape[axis]
    over = low + size.bit_length() - 1  # where the axes before this one begin in the buffer

    def beside(place: int) -> int:
        return place >> high << over | place & (1 << low) - 1

    thread = g.thread_index([beside(b) for b in layout.lane], [beside(b) for b in layout.warp])
    kind = llvm_type(index.type.dtype)
    words: dict[tuple[int, ...], str] = {}
    for register, place in enumerate(layout.register_indices):
        wanted = g.reg(index, register)
        if kind != "i32":
            wanted = g.emit(f"{'trunc' if kind == 'i64' else 'zext'} {kind} {wanted} to i32")
        at = g.emit(f"shl i32 {g.emit(f'and i32 {wanted}, {size - 1}')}, {low}")
        at = g.emit(f"or i32 {at}, {g.emit(f'xor i32 {thread}, {beside(place)}')}")
        pointer = g.emit(f"getelementptr i8, ptr addrspace(3) @shared, i32 {g.offsets[buffer]}")
        pointer = g.emit(f"getelementptr i{bits}, ptr addrspace(3) {pointer}, i32 {at}")
        words[(register,)] = shared_load(g, pointer, [(register,)], bits)[0]
    arrive(g, op, words)
