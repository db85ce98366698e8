"""Vector loads and stores as LLVM text: contiguous, masked, gathered and scattered."""

from __future__ import annotations

from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.register_types import SIZES
from blocknb.codegen.scalar_math.structured import guarded, when
from blocknb.codegen.text import vector_type


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
    """Loads `width` contiguous elements from the pointer `place`; lanes whose mask is off get `other` (zero if None)."""
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
    """Stores `width` contiguous elements where the mask is on. `streaming` stores are non-temporal, and have no mask."""
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
    """The same value in a form that LLVM does not recognise as a truncation.

    With AVX-512, LLVM 22 miscompiles a masked store of truncated integers if it finds that the mask holds for one lane alone. It stores
    that lane at its width before the truncation, which overwrites the neighbours. An exclusive or with a zero that LLVM cannot see
    through prevents it.
    """
    opaque = c.w.value('call i32 asm "", "=r,0"(i32 0)')
    zero = opaque if element == "i32" else c.w.value(f"trunc i32 {opaque} to {element}")
    return c.w.value(f"xor {vector_type(element, width)} {value}, {c.splat(zero, element, width)}")


def gather(
    c: InstructionBuilder, addresses: str, element: str, width: int, align: int, mask: str | None, other: str | None
) -> str:
    """Loads elements from a vector of i64 addresses."""
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
    """Stores elements to a vector of i64 addresses; the last of several lanes with one address wins."""
    if width == 1:
        store_vector(c, pointer(c, addresses), value, element, 1, align, mask)
        return
    ty = vector_type(element, width)
    places = c.w.value(f"inttoptr <{width} x i64> {addresses} to <{width} x ptr>")
    mask = mask or "splat (i1 true)"
    operands = f"{ty} {value}, <{width} x ptr> align {align} {places}, <{width} x i1> {mask}"
    c.w.do(f"call void @llvm.masked.scatter.v{width}{_suffix(element)}.v{width}p0({operands})")


def lane_addresses(c: InstructionBuilder, place: str, step: int, width: int) -> str:
    """The addresses place, place + step, ... in bytes, as a vector of i64."""
    first = c.w.value(f"ptrtoint ptr {place} to i64")
    return c.binary("add", c.splat(first, "i64", width), c.iota("i64", width, step), "i64", width)


def load_strided(c: InstructionBuilder, place: str, element: str, width: int, step: int) -> str:
    """Loads elements of scratch that are `step` elements apart, from the pointer `place` on."""
    size = SIZES[element]
    if step == 1 or width == 1:
        return load_vector(c, place, element, width, size)
    return gather(c, lane_addresses(c, place, step * size, width), element, width, size, None, None)


def store_strided(c: InstructionBuilder, place: str, value: str, element: str, width: int, step: int) -> None:
    """Stores elements to places of scratch that are `step` elements apart."""
    size = SIZES[element]
    if step == 1 or width == 1:
        store_vector(c, place, value, element, width, size)
    else:
        scatter(c, lane_addresses(c, place, step * size, width), value, element, width, size, None)


def _suffix(element: str) -> str:
    return {"float": "f32", "double": "f64"}.get(element, element)
