"""The place in the grid of a program that has a CTA to itself, where the pass `program_swizzle` has found one to be better than the CTA's
own.

The hardware starts CTAs in the order of their numbers, x first, so a CTA's number in its plane of the grid says when it begins. Numbers are
32 bits without a sign; where there are so many that these may not do, each keeps its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.passes.support import program_order

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

ARITHMETIC = {"add": "add i32", "sub": "sub i32", "mul": "mul i32", "div": "udiv i32", "rem": "urem i32"}


def program_id(g: Generator, axis: int) -> str:
    """The program's place along x or y, worked out at the kernel's head."""
    if ("place", axis) not in g.memo:
        with g.writing(g.entry, ""):
            g.memo.update({("place", i): found for i, found in enumerate(places(g))})
    return g.memo["place", axis]


def places(g: Generator) -> tuple[str, str]:
    def do(name: str, a: str, b: str) -> str:
        if name == "min":
            return g.call("i32", "llvm.umin.i32", ("i32", a), ("i32", b))
        return g.emit(f"{ARITHMETIC[name]} {a}, {b}")

    own, (across, down) = ([g.launched(what, i) for i in range(2)] for what in ("program_id", "num_programs"))
    number = do("add", own[0], do("mul", own[1], across))
    x, y = program_order.place(do, number, across, down, str(g.func.attrs["order"]))
    few = g.emit(f"icmp ule i32 {across}, {program_order.MOST_ALONG_X}")
    return g.emit(f"select i1 {few}, i32 {x}, i32 {own[0]}"), g.emit(f"select i1 {few}, i32 {y}, i32 {own[1]}")
