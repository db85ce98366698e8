"""Generates random programs that load, store and update a few integer arrays repeatedly, to test the order of accesses.

Tiles are so long that they are strip-mined if a thread has few registers. Addresses run forwards, backwards, shifted or in columns.
Values are permuted, reduced and kept across stores before they are stored themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from blocknb.language import types as t
from fuzz.program import Array, Line, Program

PLACES = ("at", "at", "at", "{last} - at", "at + 1", "at ^ 5")


def generate(seed: int, size: int = 512) -> Program:
    """The program of a seed. `size` is the minimal number of elements of its tiles, which are strip-mined if there are few warps."""
    return Places(seed, size).program()


class Places:
    """One program under construction."""

    def __init__(self, seed: int, size: int):
        self.rng, self.seed = random.Random(seed), seed
        self.size = size
        self.dtype = self.rng.choice((t.int32, t.int32, t.int64, t.float32))
        self.grid = self.rng.choice((1, 1, 2))
        self.rows = self.rng.choice((1, 1, 1, 1, 4, 32))
        self.shape = f"({self.rows}, {self.size // self.rows})" if self.rows > 1 else f"({self.size},)"
        self.arrays = [
            Array(name, self.dtype, self.grid * (self.size + 8), "whole", self.rng.choice((0, 0, 1))) for name in "abcd"
        ]
        #: Most arrays are always accessed at the same offsets.
        self.places = {name: self.rng.choice((PLACES[:1], PLACES[:1], PLACES[:1], PLACES)) for name in "abcd"}
        self.written = "".join(self.rng.sample("abcd", self.rng.choice((1, 2))))
        self.values: list[str] = []
        self.count = 0

    def program(self) -> Program:
        rng, size = self.rng, self.size
        at = f"bl.arange(0, {size})"
        if self.rows > 1:
            columns = size // self.rows
            at = f"bl.arange(0, {self.rows})[:, None] * {columns} + bl.arange(0, {columns})[None, :]"
        lines = [Line("pid = bl.program_id(0)"), Line(f"at = {at}")]
        lines += [Line(f"p{a.name} = {a.name} + pid * {size + 8}") for a in self.arrays]
        lines += [self.load() for _ in range(2)]
        for _ in range(rng.randint(3, 7)):
            if rng.random() < 0.08:
                kept = list(self.values)
                inside = [line for _ in range(rng.randint(1, 3)) for line in self.step()]
                self.values = kept
                lines.append(Line(f"for k in range({rng.choice((1, 2))}):", tuple(inside)))
            else:
                lines += self.step()
        for value in rng.sample(self.values, min(rng.choice((0, 1, 2)), len(self.values))):
            name = f"out{len(self.arrays)}"
            self.arrays.append(Array(name, self.dtype, self.grid * size, "poison"))
            lines.append(Line(f"bl.store({name} + pid * {size} + at, {value})"))
        return Program(self.seed, tuple(lines), tuple(self.arrays), {}, self.grid, rng.choice((1, 1, 1, 2)))

    def step(self) -> list[Line]:
        ways: list[Callable[[], Line]] = [self.load, self.load, self.store, self.store, self.compute, self.compute]
        ways += [self.permute, self.reduce, self.rng.choice((self.compute, self.update))]
        return [self.rng.choice(ways)()]

    def fresh(self) -> str:
        self.count += 1
        self.values.append(f"v{self.count}")
        return self.values[-1]

    def pick(self) -> str:
        return self.rng.choice(self.values[-4:])

    def source(self) -> str:
        """The array of a load: often one that is also stored to."""
        return self.place(self.written if self.rng.random() < 0.5 else "abcd")

    def place(self, names: str = "abcd") -> str:
        """A tile of pointers into one of some arrays, all to different elements."""
        name = self.rng.choice(names)
        return f"p{name} + ({self.rng.choice(self.places[name]).format(last=self.size - 1)})"

    def mask(self) -> str:
        return self.rng.choice(("", "", f", mask=at < {self.size - 7}", ", mask=at % 2 == 0"))

    def load(self) -> Line:
        where, mask = self.source(), self.mask()
        return Line(f"{self.fresh()} = bl.load({where}{mask}{', other=0' if mask else ''})")

    def store(self) -> Line:
        return Line(f"bl.store({self.place(self.written)}, {self.pick()}{self.mask()})")

    def compute(self) -> Line:
        a, b = self.pick(), self.pick()
        made = self.rng.choice((f"{a} - {b}", f"bl.maximum({a}, {b})", f"{a} + 1", f"bl.where({a} > {b}, {a}, 3)"))
        return Line(f"{self.fresh()} = {made}")

    def permute(self) -> Line:
        a, rows = self.pick(), self.rng.choice((2, 16, self.size // 4))
        return Line(
            f"{self.fresh()} = bl.reshape(bl.trans(bl.reshape({a}, ({rows}, {self.size // rows}))), {self.shape})"
        )

    def reduce(self) -> Line:
        a = self.pick()
        return Line(f"{self.fresh()} = {a} + bl.max({a}, {'1)[:, None]' if self.rows > 1 else '0)'}")

    def update(self) -> Line:
        if self.dtype == t.float32 or self.rng.random() < 0.5:
            return Line("bl.debug_barrier()")
        return Line(f"bl.atomic_add({self.place(self.written)}, {self.pick()}{self.mask()})")
