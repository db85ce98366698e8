"""The generator's state while it builds a kernel: random numbers, names in scope, arguments, and the current body."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocknb.fuzz import tree as t
from blocknb.fuzz.dtypes import FLOATS, INTEGERS
from blocknb.fuzz.tree import SyntaxNode, Type, op

#: Weights of the dtypes.
WEIGHTS = {"f32": 8, "f16": 3, "bf16": 2, "f64": 2, "i8": 3, "i16": 2, "i32": 6, "i64": 3}
WEIGHTS |= {"u8": 2, "u16": 1, "u32": 2, "u64": 1}
MAX_ELEMENTS = 1024


@dataclass
class GridAxis:
    """An axis of the problem, tiled by `block`; `extent` is its largest size in a launch, `count` the number of programs along it.

    `index` and `mask` name the tile of positions and the mask of in-bounds positions (for rows, a scalar and None).
    """

    index: str
    mask: str
    block: int
    extent: int
    count: int
    size: str  # the name of the argument that holds the extent

    @property
    def row(self) -> bool:
        return not self.block


@dataclass
class State:
    """The kernel so far. `scope` is a stack of names with types, `bodies` a stack of statement lists."""

    r: random.Random
    scope: list[list[tuple[str, Type]]] = field(default_factory=lambda: [[]])
    bodies: list[list[Any]] = field(default_factory=lambda: [[]])
    arguments: list[Any] = field(default_factory=list)
    helpers: list[t.Helper] = field(default_factory=list)
    axes: list[GridAxis] = field(default_factory=list)
    grid: tuple[int, ...] = (1,)
    launches: int = 2
    fixed: set[str] = field(default_factory=set)  # names that no later statement may assign
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    tag: str = ""  # part of the names of helpers, which share a module
    budget: int = 60  # number of expressions that may still be generated
    loads: int = 5  # number of loads that may still be generated
    closed: bool = False  # no arguments and no memory accesses: the body of a helper

    # ---- random choices ----

    def chance(self, p: float) -> bool:
        return self.r.random() < p

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.r.randrange(len(options))]

    def dtype(self, among: Sequence[str] = (*INTEGERS, *FLOATS)) -> str:
        return self.r.choices(among, [WEIGHTS[d] for d in among])[0]

    def weighted(self, options: dict[Any, float]) -> Any:
        return self.r.choices(list(options), list(options.values()))[0]

    # ---- names and statements ----

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self.counter)}"

    def emit(self, statement: Any) -> None:
        self.bodies[-1].append(statement)

    def let(self, value: SyntaxNode, prefix: str = "v", fixed: bool = False) -> SyntaxNode:
        """Binds a value to a new name, and returns the name."""
        name = self.name(prefix)
        self.emit(t.Let((name,), value))
        self.scope[-1].append((name, value.type))
        if fixed:
            self.fixed.add(name)
        return t.var(name, value.type)

    def assign(self, name: SyntaxNode, value: SyntaxNode) -> None:
        """Assigns another value to a name."""
        self.emit(t.Let((name.attrs["name"],), value))

    def lets(self, value: SyntaxNode, prefix: str = "v") -> list[SyntaxNode]:
        """Binds the results of an op with several results."""
        names = tuple(self.name(prefix) for _ in value.type)
        self.emit(t.Let(names, value))
        self.scope[-1].extend(zip(names, value.type, strict=True))
        return [t.var(name, type) for name, type in zip(names, value.type, strict=True)]

    @contextlib.contextmanager
    def block(self) -> Iterator[list[Any]]:
        """Opens a body with a scope of its own; yields its statements."""
        self.bodies.append([])
        self.scope.append([])
        try:
            yield self.bodies[-1]
        finally:
            self.bodies.pop()
            self.scope.pop()

    def inside_helper(self, params: Sequence[tuple[str, Type]]) -> State:
        """The state for the body of a helper that the kernel calls."""
        shared: dict[str, Any] = {"counter": self.counter, "helpers": self.helpers, "tag": self.tag}
        return State(self.r, [list(params)], launches=self.launches, budget=8, closed=True, **shared)

    def visible(self) -> list[tuple[str, Type]]:
        return [entry for frame in self.scope for entry in frame]

    def names_of(self, shape: tuple[int, ...], dtype: str | None = None) -> list[SyntaxNode]:
        """The names in scope of a shape, except pointers."""
        return [
            t.var(name, type)
            for name, type in self.visible()
            if type.shape == shape and not type.pointer and (dtype is None or type.dtype == dtype)
        ]

    # ---- arguments ----

    def array(self, dtype: str, size: int, fill: str = "small", written: bool = False, prefix: str = "x") -> t.Array:
        offset = self.pick((0, 0, 0, 0, 1, 3, 4, 8)) if dtype else 0
        found = t.Array(self.name(prefix), dtype, size, fill, offset, "", written)
        self.arguments.append(found)
        return found

    def scalar(self, dtype: str, values: Sequence[Any], prefix: str = "s", constexpr: bool = False) -> SyntaxNode:
        name = self.name(prefix)
        self.arguments.append(t.Scalar(name, dtype, tuple(values), constexpr))
        return op("arg", dtype, (), name=name, constexpr=constexpr)

    def count_up_to(self, most: int) -> SyntaxNode:
        """An argument that is `most` in the first launch, and at most that in the others."""
        return self.scalar("i32", [most] + [self.r.randrange(0, most + 1) for _ in range(self.launches - 1)], "n")

    @property
    def programs(self) -> int:
        return math.prod(self.grid)


def pointer(array: t.Array) -> SyntaxNode:
    """An array argument as a scalar pointer."""
    return SyntaxNode("arg", Type(array.dtype, (), True), attrs={"name": array.name})
