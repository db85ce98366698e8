"""The position in the grid of the program with a given number, after `program_swizzle` has chosen groups of columns."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from blocknb.ir.build import Builder
from blocknb.ir.core import Value
from blocknb.language import types as t

#: The most CTAs along x for which programs are reordered; times 65535 along y, the maximum, all programs still have an i32 number.
MOST_ALONG_X = 1 << 16
NUMBERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv, "rem": operator.mod, "min": min,
}  # fmt: skip


def place(do: Callable[..., Any], number: Any, across: Any, down: Any, width: Any) -> tuple[Any, Any]:
    """The position (x, y) of a program in a grid of `across` x `down` programs, with 0 <= number < across * down. A column is the programs
    with one x. Groups of `width` columns follow each other, and the last may be narrower. Within a group x varies fastest. `do(name, a, b)`
    does the arithmetic on ints, on values of the IR, or on LLVM values."""
    group = do("mul", width, down)
    first = do("mul", do("div", number, group), width)
    inside, columns = do("rem", number, group), do("min", do("sub", across, first), width)
    return do("add", first, do("rem", inside, columns)), do("div", inside, columns)


def arithmetic(builder: Builder) -> Callable[[str, Value, Value], Value]:
    """The `do` for values of the IR: non-negative i32. Unsigned division takes half as many instructions."""

    def do(name: str, a: Value, b: Value) -> Value:
        if name not in ("div", "rem"):
            return builder.value(name, a, b)
        found = builder.value(name, *(builder.value("cast", x, dtype=t.uint32) for x in (a, b)))
        return builder.value("cast", found, dtype=t.int32)

    return do


def place_of(number: int, across: int, down: int, width: int) -> tuple[int, int]:
    """The position of a program as plain ints."""
    return place(lambda name, a, b: NUMBERS[name](a, b), number, across, down, width)
