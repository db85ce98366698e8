"""The building blocks of random programs: names and their bounds, lines, shapes, arguments, and memory accesses.

Every value carries its bounds. Floats hold small integers as long as their arithmetic is exact in their dtype. Beyond that, they carry a
bound on the rounding error, and only continuous functions may use them. Nothing is undefined: addresses are in bounds (or masked off),
and a store writes each element once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from blocknb.language import types as t
from blocknb.language.types import DType
from fuzz.program import Array, Line

DIGITS = {t.float16: 11, t.bfloat16: 8, t.float32: 24, t.float64: 53}
LARGEST = {t.float16: 3e4, t.bfloat16: 1e30, t.float32: 1e30, t.float64: 1e100}
INTEGERS = [t.int32, t.int32, t.int32, t.int64, t.int8, t.int16, t.uint8, t.uint16, t.uint32, t.uint64]
FLOATS = [t.float32, t.float32, t.float32, t.float16, t.float16, t.bfloat16, t.float64]
SIZES = [1, 2, 4, 8, 16, 16, 32, 32, 64, 64, 128, 256]
MAX_SIZE = 4096  # elements of a tile
SPELLED = {t.float16: "float16", t.bfloat16: "bfloat16", t.float32: "float32", t.float64: "float64"}

Shape = tuple[int, ...]


def spelled(dtype: DType) -> str:
    return f"bl.{SPELLED.get(dtype, dtype.name)}"


@dataclass(frozen=True)
class Var:
    """A name in the program. `bound`: the largest magnitude; `error`: 0 when every implementation has the same bits;
    `whole`: a float that holds integers, exactly. `nonnegative` matters for casts to unsigned integers."""

    name: str
    dtype: DType
    shape: Shape = ()
    bound: float = math.inf
    error: float = 0.0
    whole: bool = False
    nonnegative: bool = False

    @property
    def exact(self) -> bool:
        return self.error == 0


def int_bound(dtype: DType, bound: float) -> float:
    """The bound of an integer result: all of the dtype when it may wrap."""
    largest = 2.0 ** (dtype.bits - (dtype.kind == "int"))
    return bound if bound < largest else largest


def epsilon(dtype: DType) -> float:
    return 2.0 ** -DIGITS[dtype]


class Refused(Exception):
    """A random choice that cannot be completed; the writer makes another one."""


class Writer:
    """The lines, names, arguments and memory accesses of a program under construction."""

    def __init__(self, seed: int):
        self.rng, self.seed = random.Random(seed), seed
        self.grid = self.rng.choice([1, 1, 2, 3])
        self.arrays: dict[str, Array] = {}
        self.numbers: dict[str, int] = {}
        self.blocks: list[list[Line]] = [[]]
        self.scopes: list[list[Var]] = [[]]
        self.count = self.depth = self.work = 0
        m, n = self.rng.choice(SIZES), self.rng.choice(SIZES)
        while m * n > MAX_SIZE:
            m, n = self.rng.choice(SIZES), self.rng.choice(SIZES)
        k = self.rng.choice([1, 2, 4, 8])
        self.shapes: list[Shape] = [(m, n), (m, n), (m,), (n,), (n, m), (m, 1), (1, n), (m * n,)]
        if m * n * k <= MAX_SIZE:
            self.shapes += [(k, m, n), (m, k, n), (m, k)]
        if m * n * k * 2 <= MAX_SIZE:
            self.shapes.append(self.rng.choice([(k, 2, m, n), (2, m, k, n), (m, k, n, 2)]))
        self.dtypes = self.rng.sample(FLOATS, 2) + self.rng.sample(INTEGERS, 2)

    # -- names and lines -----------------------------------------------------------------------------------------------

    def line(self, text: str, body: Iterable[Line] = ()) -> None:
        self.blocks[-1].append(Line(text, tuple(body)))

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def keep(self, var: Var) -> Var:
        self.scopes[-1].append(var)
        return var

    def define(self, expression: str, **facts: object) -> Var:
        """A new name for an expression; `facts` are the fields of its Var."""
        var = Var(self.fresh(), **facts)  # type: ignore[arg-type]
        self.line(f"{var.name} = {expression}")
        return self.keep(var)

    def number(self, value: int, prefix: str = "n") -> str:
        """A run-time number as an argument: an existing one of that value, or a new one."""
        same = [name for name, number in self.numbers.items() if number == value]
        if same and self.rng.random() < 0.5:
            return same[0]
        name = self.fresh(prefix)
        self.numbers[name] = value
        return name

    def visible(self) -> list[Var]:
        return [var for scope in self.scopes for var in scope]

    def pick(self, accept: Callable[[Var], bool] = lambda v: True) -> Var:
        found = [v for v in self.visible() if accept(v)]
        if not found:
            raise Refused
        return self.rng.choice(found[-5:] if self.rng.random() < 0.6 else found)

    def attempt(self, step: Callable[[], object]) -> None:
        """Makes a step, or undoes it completely."""
        lines, scope = len(self.blocks[-1]), len(self.scopes[-1])
        saved = dict(self.arrays), dict(self.numbers)
        try:
            step()
        except Refused:
            del self.blocks[-1][lines:]
            del self.scopes[-1][scope:]
            self.arrays, self.numbers = saved

    def rounded(self, dtype: DType, bound: float, error: float, whole: bool) -> dict:
        """Bound, error and wholeness of a float result, given the error that its operands bring and whether they are whole."""
        if not bound <= LARGEST[dtype]:
            raise Refused
        if whole and bound <= 2 ** DIGITS[dtype]:
            return {"dtype": dtype, "bound": bound, "whole": True, "error": 0.0}
        return {"dtype": dtype, "bound": bound, "error": error + 4 * epsilon(dtype) * bound}

    # -- shapes --------------------------------------------------------------------------------------------------------

    def shape(self) -> Shape:
        return self.rng.choice(self.shapes)

    def fit(self, name: str, own: Shape, shape: Shape) -> str | None:
        """`name` of shape `own` indexed so that it broadcasts to `shape`; None when it cannot."""
        if own in (shape, ()):
            return name
        choices: list[list[str]] = []

        def place(i: int, axis: int, index: list[str]) -> None:
            if axis == len(shape):
                if i == len(own):
                    choices.append(index)
                return
            if i < len(own) and own[i] in (1, shape[axis]):
                place(i + 1, axis + 1, [*index, ":"])
            place(i, axis + 1, [*index, "None"])

        place(0, 0, [])
        if not choices:
            return None
        index = self.rng.choice(choices)
        return name if "None" not in index else f"{name}[{', '.join(index)}]"

    def fitting(self, shape: Shape, accept: Callable[[Var], bool]) -> tuple[Var, str]:
        """A variable that broadcasts to the shape, and its expression."""
        found = [(v, text) for v in self.visible() if accept(v) and (text := self.fit(v.name, v.shape, shape))]
        if not found:
            raise Refused
        return self.rng.choice(found[-4:] if self.rng.random() < 0.6 else found)

    def spread(self, parts: Sequence[str]) -> list[str]:
        """One-dimensional tiles, each along its own axis of a tile of as many."""
        if len(parts) == 1:
            return list(parts)
        indexed = []
        for axis, part in enumerate(parts):
            index = ", ".join(":" if other == axis else "None" for other in range(len(parts)))
            indexed.append(f"{part}[{index}]")
        return indexed

    # -- memory --------------------------------------------------------------------------------------------------------

    def array(self, dtype: DType, content: str) -> str:
        if content != "poison":
            readable = [a for a in self.arrays.values() if a.name.startswith("in")]
            same = [a.name for a in readable if (a.dtype, a.content) == (dtype, content)]
            if same and self.rng.random() < 0.6:
                return self.rng.choice(same)
        name = self.fresh("out" if content == "poison" else "in")
        self.arrays[name] = Array(name, dtype, 1, content, self.rng.choice([0, 0, 0, 1, 3]))
        return name

    def reach(self, name: str, size: int) -> None:
        self.arrays[name] = replace(self.arrays[name], size=max(size, self.arrays[name].size))

    def strides(self, shape: Shape, injective: bool) -> list[int]:
        """Elements from one index to the next along each axis: row-major, column-major or between, padded or not."""
        rng, strides, step = self.rng, [0] * len(shape), 1
        axes = list(reversed(range(len(shape))))
        if rng.random() < 0.35:
            rng.shuffle(axes)
        for axis in axes:
            strides[axis] = step
            step = step * shape[axis] + rng.choice([0, 0, 0, 0, 1, 4, 16])
        if not injective and rng.random() < 0.2:
            strides[rng.randrange(len(shape))] = rng.choice([0, 2, 3])
        return strides

    def offsets(self, shape: Shape, injective: bool) -> tuple[str, list[str], int]:
        """Writes the offsets of a tile. Returns their name, its parts by axis, and one more than the largest."""
        rng = self.rng
        strides = self.strides(shape, injective)
        reach, parts = 1, []
        for n, stride in zip(shape, strides, strict=True):
            start = rng.choice([0, 0, 0, 0, 4, n])
            part = self.fresh("i")
            self.line(f"{part} = bl.arange({start}, {start + n})" if start else f"{part} = bl.arange(0, {n})")
            if rng.random() < 0.1:
                self.line(f"{part} = {2 * start + n - 1} - {part}")
            if not injective and rng.random() < 0.12:
                divisor = rng.choice([1, 2, 3, 4, 8, 16])
                self.line(f"{part} = {part} {rng.choice(['%', '//'])} {self.maybe_number(divisor)}")
            if rng.random() < 0.1:
                narrow = [t.int16] if math.prod(shape) <= 256 else []
                self.line(f"{part} = {part}.to({spelled(rng.choice([t.int64, t.uint32, *narrow]))})")
            reach += (start + n - 1) * abs(stride)
            parts.append(part)
        terms = []
        for text, stride in zip(self.spread(parts), strides, strict=True):
            terms.append(text if stride == 1 else f"{text} * {self.maybe_number(stride, 's')}")
        name = self.fresh("o")
        if rng.random() < 0.15 and len(shape) > 1 and strides == self.plain_strides(shape):
            self.line(f"{name} = bl.reshape(bl.arange(0, {math.prod(shape)}), {shape})")
        else:
            self.line(f"{name} = {' + '.join(terms)}")
        if rng.random() < 0.4:
            start = rng.choice([1, 4, 16, 16, 64, 5])
            self.line(f"{name} = {name} + {self.maybe_number(start)}")
            reach += start
        return name, parts, reach

    @staticmethod
    def plain_strides(shape: Shape) -> list[int]:
        return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]

    def maybe_number(self, value: int, prefix: str = "n") -> str:
        """A number as a literal, or as an argument of the kernel."""
        return str(value) if self.rng.random() < 0.6 else self.number(value, prefix)

    def mask(self, shape: Shape, parts: Sequence[str] = ()) -> str | None:
        """A mask for an access of this shape, as text: limits along axes, or an existing condition."""
        rng = self.rng
        if rng.random() < 0.4:
            return None
        if rng.random() < 0.3:
            try:
                return self.fitting(shape, lambda v: v.dtype == t.int1 and v.exact)[1]
            except Refused:
                pass
        tests = []
        for n, text in zip(shape, self.spread([f"bl.arange(0, {n})" for n in shape]), strict=True):
            if rng.random() < 0.7:
                limit = rng.choice([0, n // 2, n - 1, n, n, n + 5, rng.randint(0, n)])
                tests.append(f"({text} {rng.choice(['<', '<', '<=', '>=', '!='])} {self.maybe_number(limit)})")
        return " & ".join(tests) or None

    def load(self) -> None:
        rng = self.rng
        dtype, shape = rng.choice(self.dtypes), self.shape()
        content = rng.choice(["normal", "normal", "special"]) if dtype.is_float and rng.random() < 0.4 else "whole"
        if rng.random() < 0.1:
            dtype, content = t.int1, "whole"
        array = self.array(dtype, content)
        self.read(array, dtype, shape, content)

    def read(self, array: str, dtype: DType, shape: Shape, content: str) -> Var:
        rng = self.rng
        offsets, parts, reach = self.offsets(shape, injective=False)
        if rng.random() < 0.15:
            try:  # a gather
                _, text = self.fitting(shape, lambda v: v.dtype in (t.int32, t.int64) and bool(v.shape))
                self.line(f"{offsets} = {offsets} * 0 + ({text} & {reach - 1 | 15})")
                reach = (reach - 1 | 15) + 1
            except Refused:
                pass
        mask = self.mask(shape, parts)
        size = reach
        if rng.random() < 0.2:  # elements beyond the array are masked off
            size = rng.randint(1, reach)
            test = f"({offsets} < {self.maybe_number(size)})"
            mask = test if mask is None else f"{mask} & {test}"
            name = self.fresh("in")
            self.arrays[name] = replace(self.arrays[array], name=name, size=size)
            array = name
        program = rng.choice([0, 0, 16, 7]) if self.grid > 1 and size == reach else 0
        self.reach(array, size + program * (self.grid - 1))
        pointer = f"{array} + {offsets}"
        if program:
            pointer = f"{array} + pid * {self.maybe_number(program)} + {offsets}"
        arguments = [pointer] + ([f"mask={mask}"] if mask else [])
        bound = {"normal": 4.0, "whole": 6.0, "special": math.inf}[content]
        if mask and rng.random() < 0.5:
            other = rng.choice(["True", "False"]) if dtype == t.int1 else str(rng.randint(0, 5))
            arguments.append(f"other={other}")
        return self.define(
            f"bl.load({', '.join(arguments)})", dtype=dtype, shape=shape, bound=bound, whole=content == "whole"
        )

    def scalar_load(self) -> None:
        dtype = self.rng.choice(self.dtypes)
        array = self.array(dtype, "whole")
        at = self.rng.choice([0, 1, 5])
        self.reach(array, at + self.grid)
        self.define(f"bl.load({array} + {at} + pid)", dtype=dtype, bound=6, whole=True)

    def store_any(self) -> None:
        self.store(self.pick(lambda v: v.name != "pid"))

    def store(self, var: Var) -> tuple[str, DType]:
        """Stores a value into an array of its own, each program into its own part."""
        array = self.array(var.dtype, "poison")
        if not var.shape:
            self.reach(array, self.grid)
            self.line(f"bl.store({array} + pid, {var.name})")
            self.leaves(array, var)
            return array, var.dtype
        shape = var.shape
        offsets, parts, reach = self.offsets(shape, injective=True)
        mask = self.mask(shape, parts)
        self.reach(array, reach * self.grid)
        base = f"{array} + pid * {self.maybe_number(reach)}" if self.grid > 1 else array
        self.line(f"bl.store({base} + {offsets}, {var.name}{f', mask={mask}' if mask else ''})")
        self.leaves(array, var)
        return array, var.dtype

    def leaves(self, array: str, var: Var) -> None:
        error = self.arrays[array].error
        self.arrays[array] = replace(self.arrays[array], error=max(error, 2 * var.error))

    def exchange(self) -> None:
        """Writes a tile to an array and reads it back in another order; the array has initial contents."""
        rng = self.rng
        var = self.pick(lambda v: bool(v.shape) and v.dtype.bits > 1 and v.exact)
        size = math.prod(var.shape)
        name = self.fresh("both")
        self.arrays[name] = Array(name, var.dtype, size * self.grid, "whole", rng.choice([0, 0, 1]))
        base = name
        if self.grid > 1:
            base = self.fresh("p")
            self.line(f"{base} = {name} + pid * {self.maybe_number(size)}")
        axes = list(range(len(var.shape)))
        rng.shuffle(axes)
        offsets = self.dense(var.shape, axes)
        mask = self.mask(var.shape)
        before = f"bl.load({base} + {offsets})" if rng.random() < 0.3 else None
        if before:
            old = self.define(before, dtype=var.dtype, shape=var.shape, bound=max(6, var.bound), whole=var.whole)
        self.line(f"bl.store({base} + {offsets}, {var.name}{f', mask={mask}' if mask else ''})")
        shape = rng.choice([s for s in self.shapes if math.prod(s) == size] or [var.shape])
        axes = list(range(len(shape)))
        rng.shuffle(axes)
        back = self.dense(shape, axes)
        read = self.define(
            f"bl.load({base} + {back})", dtype=var.dtype, shape=shape, bound=max(6, var.bound), whole=var.whole
        )
        if rng.random() < 0.4:  # and again, what was read under it
            target = self.dense(shape, axes[::-1])
            self.line(f"bl.store({base} + {target}, {read.name})")
        if before and old.shape == shape:
            self.keep(old)

    def dense(self, shape: Shape, axes: Sequence[int]) -> str:
        """Offsets that fill 0..size, the first of `axes` slowest."""
        strides, step = [0] * len(shape), 1
        for axis in reversed(axes):
            strides[axis] = step
            step *= shape[axis]
        parts = self.spread([f"bl.arange(0, {n})" for n in shape])
        name = self.fresh("o")
        self.line(f"{name} = " + " + ".join(f"{part} * {stride}" for part, stride in zip(parts, strides, strict=True)))
        return name
