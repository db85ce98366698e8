"""Where in the grid the program of a number stands, once `program_swizzle` has chosen groups of columns."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from blocknb.ir.build import Builder
from blocknb.ir.core import Value
from blocknb.language import types as t

#: Programs along x in CTAs of their own, beyond which each keeps its place: with 65535 along y, which are the most, all have a number.
MOST_ALONG_X = 1 << 16
NUMBERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv, "rem": operator.mod, "min": min,
}  # fmt: skip


def place(do: Callable[..., Any], number: Any, across: Any, down: Any, width: Any) -> tuple[Any, Any]:
    """Where in a grid of `across` x `down` programs the one of a number stands, 0 <= number < across * down: (x, y). Groups of `width`
    columns come one after another, the last may be narrower; in each of them x counts fastest. `do(name, a, b)` does the arithmetic: of
    numbers, of values of the IR, or of those of LLVM."""
    group = do("mul", width, down)
    first = do("mul", do("div", number, group), width)
    inside, columns = do("rem", number, group), do("min", do("sub", across, first), width)
    return do("add", first, do("rem", inside, columns)), do("div", inside, columns)


def arithmetic(builder: Builder) -> Callable[[str, Value, Value], Value]:
    """The `do` of values of the IR: i32 that are not negative, which without a sign are divided in half as many instructions."""

    def do(name: str, a: Value, b: Value) -> Value:
        if name not in ("div", "rem"):
            return builder.value(name, a, b)
        found = builder.value(name, *(builder.value("cast", x, dtype=t.uint32) for x in (a, b)))
        return builder.value("cast", found, dtype=t.int32)

    return do


def place_of(number: int, across: int, down: int, width: int) -> tuple[int, int]:
    """The same of plain numbers."""
    return place(lambda name, a, b: NUMBERS[name](a, b), number, across, down, width)
