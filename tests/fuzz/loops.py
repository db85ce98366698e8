"""Generates random loops whose loads may be issued early, on arrays that end with the last element that an iteration reads.

In the programs of `generator`, few loads follow a loop's index; here nearly all do. An address is a polynomial of the index, a pointer
that the loop advances, or an index that it loads. Steps have either sign and may be known only at run time. Loops nest, branch, and store
to other arrays and to the ones that they read. All values are integers, so that results are exact.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from blocknb.language import types as t
from fuzz.program import Array, Line, Program

DTYPES = (t.int8, t.uint8, t.int16, t.float16, t.float32, t.int32, t.int64)


def generate(seed: int) -> Program:
    return Loops(seed).program()


class Loops:
    """One program under construction. `iterations` are the values of the index in any program of the grid."""

    def __init__(self, seed: int):
        self.rng, self.seed = random.Random(seed), seed
        self.arrays: list[Array] = []
        self.numbers: dict[str, int] = {}
        self.before: list[Line] = []
        self.block = self.rng.choice((16, 32, 64, 128))
        self.rows = self.rng.choice((1, 1, 1, 2, 4))
        self.grid = self.rng.choice((1, 1, 2, 3))
        self.loads, self.shared = 0, False

    def program(self) -> Program:
        rng = self.rng
        tile = f"({self.rows}, {self.block})"
        at = f"bl.arange(0, {self.rows})[:, None] * {self.block} + bl.arange(0, {self.block})[None, :]"
        self.before += [Line("pid = bl.program_id(0)"), Line(f"at = {at}"), Line(f"total = bl.zeros({tile}, bl.int32)")]
        step = rng.choice((1, 1, 2, 5, -1, -3))
        shared = self.shared = self.grid > 1 and step > 0 and rng.random() < 0.7
        start, iterations = rng.choice((0, 0, 1, 7)), rng.choice((0, 1, 2, 3, 4, 6, 9))
        stop = start + step * iterations - rng.choice((0, 0, 1 if step > 0 else -1)) * (abs(step) > 1)
        found = sorted({i for p in range(self.grid) for i in self.turns(start, stop, step, p if shared else None)})
        head = self.head(start, stop, step, shared)
        body = self.body("i", found, depth=0)
        size = self.rows * self.block
        self.arrays.append(Array("out", t.int32, self.grid * size, "poison"))
        after = Line(f"bl.store(out + pid * {size} + at, total)")
        names = {a.name: a for a in self.arrays}
        return Program(
            self.seed, (*self.before, Line(head, tuple(body)), after), tuple(names.values()), self.numbers, self.grid,
            rng.choice((1, 2, 4)),
        )  # fmt: skip

    def turns(self, start: int, stop: int, step: int, program: int | None) -> range:
        return range(start, stop, step) if program is None else range(start + program * step, stop, step * self.grid)

    def head(self, start: int, stop: int, step: int, shared: bool) -> str:
        first, last, by = (self.number(x) for x in (start, stop, step))
        if shared:
            first, by = f"{first} + pid * {by}", f"bl.num_programs(0) * {by}"
        return f"for i in bl.range({first}, {last}, {by}, num_stages={self.rng.choice((2, 2, 3, 4))}):"

    def number(self, value: int) -> str:
        """A number as a literal, or as an argument that is unknown at compile time."""
        if self.rng.random() < 0.4:
            return str(value)
        name = f"n{len(self.numbers)}"
        self.numbers[name] = value
        return name

    def body(self, index: str, found: Sequence[int], depth: int) -> list[Line]:
        rng, lines = self.rng, []
        for _ in range(rng.randint(1, 3)):
            lines += rng.choice((self.load, self.load, self.load, self.carried, self.indirect))(index, found, depth)
        if rng.random() < 0.3:
            lines.append(Line(f"if {index} % 2 == {rng.choice((0, 1))}:", tuple(self.load(index, found, depth))))
        if depth == 0 and rng.random() < 0.3:
            inner = range(rng.choice((0, 1, 2, 3)))
            head = f"for j in bl.range({self.number(len(inner))}, num_stages={rng.choice((1, 2, 3))}):"
            numbers = [i * 4 + j for i in found for j in inner]
            lines.append(Line(head, (Line("k = i * 4 + j"), *self.body("k", numbers, 1))))
        if rng.random() < 0.5:
            lines += self.store(index, found)
        if rng.random() < 0.3:
            lines.append(Line("total += bl.sum(total) & 3"))
        return lines

    def fresh(self, dtype: t.DType, elements: int, content: str = "whole") -> str:
        name = f"x{len(self.arrays)}"
        self.arrays.append(Array(name, dtype, elements, content, self.rng.choice((0, 0, 1))))
        return name

    def place(self, index: str, found: Sequence[int], reach: int) -> tuple[str, int]:
        """(a non-negative offset that depends on the index, the array size needed for reads up to `reach`)."""
        scale = self.rng.choice((1, self.block, self.rows * self.block, -self.block, -1, 3))
        offsets = [scale * i for i in found] or [0]
        text = f"{index} * {self.number(scale)} + {self.number(-min(offsets))}"
        return text, (max(offsets) - min(offsets) + reach) if found else 0

    def masked(self, index: str, dtype: t.DType) -> tuple[str, int]:
        """(the remaining arguments of a load, how many elements of the tile it may read)."""
        size = self.rows * self.block
        if self.rng.random() < 0.4:
            return "", size
        limit = self.rng.choice((size - 1, size // 2, 3))
        mask = f"at < {self.number(limit)}"
        if self.rng.random() < 0.3:
            mask = f"({mask}) & (at > {index})"
        other = self.rng.choice(("", ", other=0", ", other=5"))
        return f", mask={mask}{other}", limit

    def added(self, value: str) -> Line:
        self.loads += 1
        name = f"v{self.loads}"
        return Line(f"total += ({value}).to(bl.int32) * {self.rng.choice((1, 2, 3))}  # {name}")

    def load(self, index: str, found: Sequence[int], depth: int) -> list[Line]:
        dtype = self.rng.choice(DTYPES)
        rest, reach = self.masked(index, dtype)
        offset, elements = self.place(index, found, reach)
        return [self.added(f"bl.load({self.fresh(dtype, elements)} + ({offset}) + at{rest})")]

    def carried(self, index: str, found: Sequence[int], depth: int) -> list[Line]:
        """A pointer that every iteration advances. Each program initializes it for its own first iteration."""
        if depth:
            return self.load(index, found, depth)
        dtype, by = self.rng.choice(DTYPES), self.rng.choice((1, self.block, 7))
        rest, reach = self.masked(index, dtype)
        iterations = max(0, len(found))
        name = self.fresh(dtype, (iterations - 1) * by + reach if iterations else 0)
        pointer = f"p{name}"
        self.before.append(Line(f"{pointer} = {name} + at" if self.rng.random() < 0.6 else f"{pointer} = {name}"))
        tile = "" if "+ at" in self.before[-1].text else " + at"
        return [self.added(f"bl.load({pointer}{tile}{rest})"), Line(f"{pointer} += {self.number(by)}")]

    def indirect(self, index: str, found: Sequence[int], depth: int) -> list[Line]:
        """A loaded index, which points to one of a few places."""
        dtype = self.rng.choice(DTYPES)
        offset, elements = self.place(index, found, 1)
        rest, reach = self.masked(index, dtype)
        places = self.fresh(t.uint8, elements)
        values = self.fresh(dtype, 6 + reach)
        row = f"r{places}"
        return [
            Line(f"{row} = bl.load({places} + ({offset})).to(bl.int32)"),
            self.added(f"bl.load({values} + {row} + at{rest})"),
        ]

    def store(self, index: str, found: Sequence[int]) -> list[Line]:
        """Stores to an array of its own, at another place in each iteration (and in each program, unless programs share the iterations).

        Sometimes the program loads the value again, in the same iteration or the next one.
        """
        size = self.rows * self.block
        low = min(found, default=0)
        apart = self.grid > 1 and not self.shared
        elements = (max(found, default=0) - low + 1) * size if found else 0
        name = self.fresh(t.int32, elements * (self.grid if apart else 1))
        part = f"pid * {elements} + " if apart else ""
        here = f"{name} + {part}({index} - {self.number(low)}) * {size} + at"
        lines = [Line(f"bl.store({here}, total + {self.number(1)})")]
        if self.rng.random() < 0.3:
            lines.insert(self.rng.randint(0, 1), self.added(f"bl.load({here})"))
        return lines
