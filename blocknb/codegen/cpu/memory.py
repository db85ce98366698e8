"""The memory of a program: tiles in scratch, and accesses to the user's arrays, which `checks` checks.

Scratch is one block of bytes a thread; buffers get their places at compile time, and a place is used again once its last reader
has been emitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.register_types import SIZES, constant, memory_type, register_type, scratch_type
from blocknb.codegen.scalar_math.structured import guarded, when
from blocknb.codegen.text import vector_type
from blocknb.ir.core import Op

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter

LINE = 64  # bytes of a cache line, and of the widest vector
PAGE = (
    4096  # places that are a multiple of this apart share the few lines of one cache set, and stores seem to meet loads
)


@dataclass(eq=False)
class Buffer:
    """A tile in scratch: byte offset, size, the dtype it is stored as, and the stride in elements of each axis.

    With `panel` = (axis of k, axis of n, width) it is laid out for the microkernel instead: panels of `width` columns, in each
    the rows one after another. `holders` are the values whose tile it is; without any, its place is free.
    """

    offset: int
    bytes: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    panel: tuple[int, int, int] | None = None
    holders: set = field(default_factory=set)

    @property
    def element(self) -> str:
        return scratch_type(self.dtype)

    def row_major(self) -> bool:
        return self.panel is None and self.strides == row_major(self.shape)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements; 0 along axes of size one."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(0 if n == 1 else step)
        step *= n
    return tuple(reversed(strides))


def strides_along(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """Strides with `axis` running fastest and the others in row-major order."""
    if axis is None:
        return row_major(shape)
    order = [a for a in range(len(shape)) if a != axis] + [axis]
    packed = row_major(tuple(shape[a] for a in order))
    return tuple(packed[order.index(a)] for a in range(len(shape)))


class Scratch:
    """Places of buffers by first fit; `bytes` is the most that was in use."""

    def __init__(self) -> None:
        self.bytes = 0
        self._taken: list[tuple[int, int]] = []

    def allocate(self, size: int, maker: Op | None = None) -> int:
        """The offset of `size` bytes, which `maker` writes."""
        size = -(-size // LINE) * LINE
        if size >= PAGE // 4:
            size += 5 * LINE  # tiles are powers of two, and loops read them side by side
        at = 0
        for start, end in sorted(self._taken):
            if start - at >= size:
                break
            at = max(at, end)
        self._taken.append((at, at + size))
        self.bytes = max(self.bytes, at + size)
        return at

    def free(self, offset: int) -> None:
        self._taken = [(a, b) for a, b in self._taken if a != offset]


def pointer(c: InstructionBuilder, address: str) -> str:
    """An i64 address as an LLVM pointer."""
    return c.w.value(f"inttoptr i64 {address} to ptr")


def load_vector(
    c: InstructionBuilder,
    place: str,
    element: str,
    width: int,
    align: int,
    mask: str | None = None,
    other: str | None = None,
    volatile: bool = False,
) -> str:
    """`width` neighbouring elements from the pointer `place`; where the mask is off, `other` (zero if None)."""
    ty = vector_type(element, width)
    if mask is None:
        return c.w.value(f"load {'volatile ' if volatile else ''}{ty}, ptr {place}, align {align}")
    if other is None:
        other = "zeroinitializer" if width > 1 else "0" if element.startswith("i") else "0.0"
    if width == 1:
        return guarded(c.w, mask, element, other, lambda: c.w.value(f"load {ty}, ptr {place}, align {align}"))
    operands = f"ptr align {align} {place}, <{width} x i1> {mask}, {ty} {other}"
    return c.w.value(f"call {ty} @llvm.masked.load.v{width}{_suffix(element)}.p0({operands})")


def store_vector(
    c: InstructionBuilder,
    place: str,
    value: str,
    element: str,
    width: int,
    align: int,
    mask: str | None = None,
    streaming: bool = False,
) -> None:
    """`width` neighbouring elements to the pointer `place`, where the mask is on; past the cache if `streaming`, without a mask."""
    ty = vector_type(element, width)
    if mask is None:
        c.w.do(f"store {ty} {value}, ptr {place}, align {align}{', !nontemporal !1' if streaming else ''}")
    elif width == 1:
        when(c.w, mask, lambda: c.w.do(f"store {ty} {value}, ptr {place}, align {align}"))
    else:
        if element in ("i8", "i16", "i32"):
            value = _not_truncated(c, value, element, width)
        c.w.do(
            f"call void @llvm.masked.store.v{width}{_suffix(element)}.p0({ty} {value}, ptr align {align} {place}, <{width} x i1> {mask})"
        )


def _not_truncated(c: InstructionBuilder, value: str, element: str, width: int) -> str:
    """The same value, in a form that LLVM does not take for a truncation.

    With AVX-512, LLVM 22 makes a masked store of truncated integers, whose mask it finds to hold for one lane alone, a store of
    that lane as it was before it was truncated, which overwrites its neighbours. Hence an exclusive or with a zero that LLVM
    cannot see through.
    """
    opaque = c.w.value('call i32 asm "", "=r,0"(i32 0)')
    zero = opaque if element == "i32" else c.w.value(f"trunc i32 {opaque} to {element}")
    return c.w.value(f"xor {vector_type(element, width)} {value}, {c.splat(zero, element, width)}")


def gather(
    c: InstructionBuilder, addresses: str, element: str, width: int, align: int, mask: str | None, other: str | None
) -> str:
    """Elements from a vector of i64 addresses."""
    if width == 1:
        return load_vector(c, pointer(c, addresses), element, 1, align, mask, other)
    ty = vector_type(element, width)
    places = c.w.value(f"inttoptr <{width} x i64> {addresses} to <{width} x ptr>")
    mask = mask or "splat (i1 true)"
    other = other or "zeroinitializer"
    operands = f"<{width} x ptr> align {align} {places}, <{width} x i1> {mask}, {ty} {other}"
    return c.w.value(f"call {ty} @llvm.masked.gather.v{width}{_suffix(element)}.v{width}p0({operands})")


def scatter(
    c: InstructionBuilder, addresses: str, value: str, element: str, width: int, align: int, mask: str | None
) -> None:
    """Elements to a vector of i64 addresses; of lanes that meet in one place the last wins."""
    if width == 1:
        store_vector(c, pointer(c, addresses), value, element, 1, align, mask)
        return
    ty = vector_type(element, width)
    places = c.w.value(f"inttoptr <{width} x i64> {addresses} to <{width} x ptr>")
    mask = mask or "splat (i1 true)"
    operands = f"{ty} {value}, <{width} x ptr> align {align} {places}, <{width} x i1> {mask}"
    c.w.do(f"call void @llvm.masked.scatter.v{width}{_suffix(element)}.v{width}p0({operands})")


def _suffix(element: str) -> str:
    return {"float": "f32", "double": "f64"}.get(element, element)


def element_size(buffer: Buffer) -> int:
    return SIZES[buffer.element]


def scalar_load(e: Emitter, op: Op, address: str, mask: str | None, other: str | None) -> str:
    """One element, checked, from an i64 address into a register."""
    c, dtype = e.code, op.args[0].type.dtype.element
    e.checks.scalar(op, address, mask)
    element = memory_type(dtype)

    def read() -> str:
        load = "load volatile" if op.attrs.get("volatile") else "load"
        raw = c.w.value(f"{load} {element}, ptr {pointer(c, address)}, align {dtype.bytes}")
        if op.attrs.get("volatile"):  # LLVM may move other loads across a volatile one
            c.w.do("fence acquire")
        return casts.from_memory(c, raw, dtype, 1)

    if mask is None or mask == "true":
        return read()
    return guarded(c.w, mask, register_type(dtype), other or constant(0, dtype), read)


def scalar_store(e: Emitter, op: Op, address: str, value: str, mask: str | None) -> None:
    c, dtype = e.code, op.args[0].type.dtype.element
    e.checks.scalar(op, address, mask)

    def write() -> None:
        c.w.do(
            f"store {memory_type(dtype)} {casts.to_memory(c, value, dtype, 1)}, ptr {pointer(c, address)}, align {dtype.bytes}"
        )

    if mask is None or mask == "true":
        write()
    else:
        when(c.w, mask, write)
