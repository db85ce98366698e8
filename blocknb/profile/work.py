"""The work of a launch: operations, unique bytes, issued bytes and atomics, counted from the tile IR with masks evaluated.

`count(func, scalars, grid)` evaluates all programs (see `evaluate`), or a sample of them if all would take too long. It counts:

- *flops*: an add, sub, mul, div, rem, min or max of floats is one, an fma two, a dot 2 M N K. A special function (exp, sqrt, ...) is one
  and is also counted by name. Comparisons, selections, casts and signs are free. A reduction of n elements is n - 1 of its combines.
  An element counts only if its loads were not masked off and a store needs it.
- *issued flops*: the same for all elements of the tiles, masked off or not. The hardware executes these.
- *unique bytes*: the bytes that loads read, each once, plus the bytes that stores write, each once. Memory moves at least these.
- *issued bytes*: the bytes of every access of every program. The caches serve these.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.ir.core import Func, Op, Value
from blocknb.language.ops import ATOMICS, MASK_AT, OPS, REDUCTIONS, named
from blocknb.profile import factored_tiles
from blocknb.profile.evaluate import WINDOW, Batch, Evaluator, TooMuch, Unknown, line, reshaped
from blocknb.profile.factored_tiles import FactoredTile
from blocknb.profile.unique_bytes import Touched, touch

BUDGET = 1.5e9  # evaluated elements; each takes about a nanosecond
LARGEST = 1 << 22  # elements of the largest array
LEAST_SAMPLE = 32  # programs
FLOPS = {name: spec.cost.flops for name, spec in OPS.items() if spec.cost is not None and spec.cost.flops}
SPECIAL = named("special_function")
VIEWS = named("view")
ALL = None  # a mask that is on everywhere
_MOVES = named("move") | {"trans"}  # `trans` is a view, but a transposed square tile has the shape of its operand
Masks = frozenset[Value] | None
MasksOf = Callable[[Value], Masks]
Uses = Iterator[tuple[Value, Masks]]


@dataclass(frozen=True)
class Work:
    """The work of a launch. A number is None if it depends on data; `why_flops` or `why_bytes` then gives the reason.

    `read` and `written`: unique bytes by array. `special`: special functions by name, which `flops` includes. `atomics`: updates of
    single elements. `programs`: how many programs were evaluated; if not all, the numbers are scaled up and `exact` is False.
    """

    flops: int | None
    issued_flops: int | None
    dot_flops: int | None
    special: Mapping[str, int]
    read: Mapping[str, int]
    written: Mapping[str, int]
    issued_bytes: int | None
    atomics: int
    programs: int
    exact: bool = True
    why_flops: str = ""
    why_bytes: str = ""

    @classmethod
    def unknown(cls, why: str) -> Work:
        """The work of a launch that cannot be evaluated."""
        return cls(None, None, None, {}, {}, {}, None, 0, 0, False, why, why)

    @property
    def unique_bytes(self) -> int | None:
        return None if self.why_bytes else sum(self.read.values()) + sum(self.written.values())

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity: flops per unique byte."""
        return self.flops / self.unique_bytes if self.flops is not None and self.unique_bytes else None


def count(
    func: Func,
    scalars: Mapping[str, Any],
    grid: tuple[int, int, int],
    sizes: Mapping[str, int] | None = None,
    budget: float = BUDGET,
) -> Work:
    """Counts the work of a launch of a tile-level Func, in about a second at most.

    `scalars`: the run-time numbers by parameter name. `sizes`: the bytes of the arrays by name, an upper bound of the unique bytes when
    only a sample of the programs is evaluated."""
    programs = math.prod(grid)
    try:
        chosen, step = _chosen(func, scalars, grid, programs, budget)
        found = _Counter(func, scalars, grid, 4 * budget)
        for at in range(0, len(chosen), step):
            found.follow(chosen[at : at + step])
    except TooMuch:
        return Work.unknown("even one program takes too long to evaluate")
    return found.result(len(chosen), programs, sizes or {})


def scalars_of(arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the numbers in the summaries of a launch's arguments, with the sizes and strides of tensor descriptors."""
    from blocknb.frontend.descriptors import field_names

    found = {name: s["value"] for name, s in arguments.items() if s["kind"] == "scalar"}
    for name, s in arguments.items():
        if "parts" in s:
            found |= dict(zip(field_names(name, len(s["shape"]))[1:], s["parts"], strict=True))
    return found


def _chosen(
    func: Func, scalars: Mapping[str, Any], grid: tuple[int, int, int], programs: int, budget: float
) -> tuple[np.ndarray, int]:
    """Returns the program numbers to evaluate, and the batch size: all programs, or an evenly spread sample that the budget allows.

    The cost of a batch is estimated from a batch of one and a batch of LEAST_SAMPLE programs."""
    everyone = np.arange(programs)
    some = min(LEAST_SAMPLE, programs)
    if programs <= some:
        return everyone, some
    cost: list[tuple[int, int]] = []
    peak = 1.0
    for n in (1, some):
        probe = _Counter(func, scalars, grid, budget)
        try:
            probe.follow(np.linspace(0, programs - 1, n).astype(np.int64))
        except TooMuch:
            if n == 1:
                raise
            fewer = max(1, int(budget / (cost[0][0] + cost[0][1])))  # their control flow differs
            return np.unique(np.linspace(0, programs - 1, min(fewer, some)).astype(np.int64)), some
        cost.append((probe.overhead, probe.elements))
        peak = probe.peak
    step = max(some, int(LARGEST / peak))
    (overhead, one), (more, many) = cost
    each, fixed = max(0.0, (many - one) / (some - 1)), max(overhead, more)
    batches = -(-programs // step)
    if batches * (fixed + one) + programs * each <= budget:
        return everyone, step
    per_program = each + (fixed + one) / step
    return np.unique(np.linspace(0, programs - 1, max(some, int(budget / per_program))).astype(np.int64)), step


@dataclass
class _Tally:
    useful: int = 0
    issued: int = 0
    dot: int = 0
    special: Counter = field(default_factory=Counter)


class _Counter(Evaluator):
    def __init__(self, func: Func, scalars: Mapping[str, Any], grid: tuple[int, int, int], budget: float):
        super().__init__(func, scalars, grid, budget)
        self.tally, self.issued_bytes, self.atomics = _Tally(), 0, 0
        self.reads, self.writes = Touched(), Touched()
        self.why_flops = self.why_bytes = ""
        self.demand = demands(func)

    def result(self, followed: int, programs: int, sizes: Mapping[str, int]) -> Work:
        exact, factor = followed == programs, programs / max(1, followed)
        scale = lambda n: n if exact else round(n * factor)  # noqa: E731
        tables = []
        for touched in (self.reads, self.writes):
            table = {self.names[window]: n for window, n in touched.by_window(WINDOW).items()}
            if not exact:
                table = {name: min(scale(n), sizes.get(name, scale(n))) for name, n in table.items()}
            tables.append(table)
        tally, no_flops = self.tally, bool(self.why_flops)
        return Work(
            None if no_flops else scale(tally.useful),
            None if no_flops else scale(tally.issued),
            None if no_flops else scale(tally.dot),
            {name: scale(n) for name, n in tally.special.items()},
            tables[0],
            tables[1],
            None if self.why_bytes else scale(self.issued_bytes),
            scale(self.atomics),
            followed,
            exact,
            self.why_flops,
            self.why_bytes,
        )

    def unsure(self, op: Op, why: str) -> None:
        self.why_flops = self.why_flops or why
        self.why_bytes = self.why_bytes or why

    # ---- one op

    def work(self, op: Op, batch: Batch) -> None:
        match op.name:
            case "load" | "store" | "atomic" | "atomic_cas":
                self.access(op, batch)
            case "dot":
                self.dot(op, batch)
            case name if name in REDUCTIONS:
                self.combine(op, batch)
            case "asm":
                self.why_flops = self.why_flops or f"the operations of the assembly {line(op)} are unknown"
            case name if name in FLOPS:
                if getattr(op.result.type.dtype, "is_float", False):
                    self.elementwise(op, batch)
        self.validity(op, batch)

    def access(self, op: Op, batch: Batch) -> None:
        pointer = op.args[0]
        position = MASK_AT.get(op.name)
        given = op.args[position] if position is not None and len(op.args) > position else None
        address, mask = batch.env.get(pointer), ALL if given is None else batch.env.get(given)
        size, shape = pointer.type.dtype.element.bytes, pointer.type.shape
        for value, what in ((address, "the address"), (mask, "the mask")):
            if isinstance(value, Unknown):
                self.why_bytes = self.why_bytes or f"{what} of the {op.name} {line(op)} depends on {value.why}"
                if mask is not ALL and not isinstance(mask, tuple):
                    return
        active = self.number(shape, mask, batch)
        self.issued_bytes += active * size * self.scale
        if op.name in ATOMICS:
            self.atomics += active * self.scale
        if isinstance(address, tuple) and active:
            for touched, on in ((self.reads, op.name != "store"), (self.writes, op.name != "load")):
                if on:
                    self.spend(touch(touched, address, mask, shape, size), batch.size)

    def number(self, shape: tuple[int, ...], mask: FactoredTile | None, batch: Batch) -> int:
        """Counts the elements of a mask that are on, in the tiles of all programs."""
        if mask is ALL:
            return math.prod(shape) * batch.size
        return int(factored_tiles.true_counts(mask, shape, batch.size).sum())

    def elementwise(self, op: Op, batch: Batch) -> None:
        each = FLOPS[op.name]
        useful = self.number(op.result.type.shape, self.useful(op.result, op.args, batch), batch) * self.scale
        self.add(each * useful, each * op.result.type.size * batch.size * self.scale)
        if op.name in SPECIAL:
            self.tally.special[op.name] += useful

    def add(self, useful: int, issued: int, dot: int = 0) -> None:
        self.tally.useful += useful
        self.tally.issued += issued
        self.tally.dot += dot

    def dot(self, op: Op, batch: Batch) -> None:
        a, b, _ = op.args
        (m, k), n = a.type.shape[-2:], b.type.shape[-1]
        issued = 2 * k * op.result.type.size * batch.size * self.scale
        live_a, live_b = (self.live(v, batch) for v in (a, b))
        wanted = self.demanded(op.result, batch)
        rows, columns, inner = _dot_parts(live_a, live_b, wanted)
        if rows is None or len(a.type.shape) > 2:
            self.add(issued, issued, issued)
            return
        sides = ((rows, m), (columns, n), (inner, k))
        counts = [factored_tiles.true_counts(mask, (size,), batch.size) for mask, size in sides]
        useful = 2 * int(math.prod(counts).sum()) * self.scale
        self.add(useful, issued, useful)
        left, right = _sides(live_a, 0), _sides(live_b, 1)
        if left is not None and right is not None:
            result = (*(p[:, :, None] for p in left), *(p[:, None, :] for p in right))
            if any(p.size > 1 for p in result):
                batch.env["live", op.result] = factored_tiles.gathered(result)

    def combine(self, op: Op, batch: Batch) -> None:
        each = sum(
            FLOPS.get(inner.name, 0)
            for inner in op.blocks[0].ops
            if inner.results and getattr(inner.result.type.dtype, "is_float", False)
        )
        shape, axis = op.args[0].type.shape, op.attrs["axis"]
        lanes = math.prod(shape) // shape[axis]
        live = self.live(op.args[0], batch)
        if live is ALL:
            useful = lanes * (shape[axis] - 1) * batch.size
        else:
            some = _any(live, axis, shape)
            useful = self.number(shape, live, batch) - self.number(shape[:axis] + shape[axis + 1 :], some, batch)
        self.add(each * useful * self.scale, each * lanes * (shape[axis] - 1) * batch.size * self.scale)

    # ---- which elements are real

    def live(self, value: Value, batch: Batch) -> FactoredTile | None:
        return batch.env.get(("live", value), ALL)

    def demanded(self, value: Value, batch: Batch) -> FactoredTile | None:
        masks = self.demand.get(value)
        if masks is None or len(masks) != 1:
            return ALL
        found = batch.env.get(next(iter(masks)))
        return found if isinstance(found, tuple) else ALL

    def useful(self, value: Value, args: tuple[Value, ...], batch: Batch) -> FactoredTile | None:
        found = [self.demanded(value, batch), *(self.live(a, batch) for a in args)]
        parts = {id(p): p for mask in found if mask is not ALL for p in mask}
        return factored_tiles.gathered(parts.values()) if parts else ALL

    def validity(self, op: Op, batch: Batch) -> None:
        """Records which elements of a result come from loads that were not masked off."""
        if not op.results or op.name in ("reduce", "dot"):
            return
        env = batch.env
        match op.name:
            case "load":
                if len(op.args) > 1 and isinstance(env.get(op.args[1]), tuple):
                    env["live", op.result] = env[op.args[1]]
            case name if name in VIEWS:
                if ("live", op.args[0]) in env:
                    env["live", op.result] = reshaped(op, env["live", op.args[0]])
            case "scan":
                for result, arg in zip(op.results, op.args, strict=True):
                    if ("live", arg) in env:
                        env["live", result] = env["live", arg]
            case _:
                parts = {id(p): p for a in op.args for p in env.get(("live", a), ())}
                if parts and all(a.type.shape == op.result.type.shape for a in op.args):
                    env["live", op.result] = factored_tiles.gathered(parts.values())


def demands(func: Func) -> dict[Value, Masks]:
    """Finds for each value the masks of the stores that its elements reach, by a backward data-flow analysis over the whole function.

    An element counts as useful only where such a mask is on. A value that is also used in another way has None."""
    found: dict[Value, Masks] = {}

    def of(value: Value) -> Masks:
        return found.get(value, frozenset())

    ops = list(func.ops())[::-1]
    for _ in range(2 + max(_depth(op) for op in ops) if ops else 0):
        for op in ops:
            for value, masks in _USES.get(op.name, _other_uses)(op, of):
                old = of(value)
                found[value] = None if old is None or masks is None else old | masks
    return found


def _store_uses(op: Op, of: MasksOf) -> Uses:
    if len(op.args) > 2:
        yield op.args[1], frozenset([op.args[2]])
    else:
        yield from _other_uses(op, of)


def _for_uses(op: Op, of: MasksOf) -> Uses:
    ends = op.blocks[0].terminator.args
    for result, inside, *sources in zip(op.results, op.blocks[0].args[1:], op.args[3:], ends, strict=True):
        for source, value in itertools.product(sources, (result, inside)):
            yield source, of(value)


def _if_uses(op: Op, of: MasksOf) -> Uses:
    for result, *sources in zip(op.results, *(block.terminator.args for block in op.blocks), strict=True):
        for source in sources:
            yield source, of(result)


def _dot_uses(op: Op, of: MasksOf) -> Uses:
    yield op.args[2], of(op.result)
    yield from ((value, None) for value in op.args[:2])


def _other_uses(op: Op, of: MasksOf) -> Uses:
    """Elementwise ops pass the masks on to operands of the same shape."""
    one = len(op.results) == 1 and not op.blocks and op.name not in _MOVES
    for value in op.args:
        yield value, of(op.result) if one and value.type.shape == op.result.type.shape else None


#: How an op uses its operands, by op name. The terminator `yield` belongs to `for` and `if`.
_USES: Mapping[str, Callable[[Op, MasksOf], Uses]] = {
    "store": _store_uses,
    "atomic": _store_uses,
    "for": _for_uses,
    "if": _if_uses,
    "yield": lambda op, of: iter(()),
    "dot": _dot_uses,
}


def _depth(op: Op) -> int:
    return 1 + max((_depth(inner) for block in op.blocks for inner in block.ops), default=0)


def _sides(live: FactoredTile | None, side: int) -> FactoredTile | None:
    """The mask of rows (side 0) or columns (side 1) of a matrix, as parts [programs or 1, size or 1]; None if the mask is not a product
    of a row mask and a column mask."""
    if live is ALL:
        return (np.ones((1, 1), bool),)
    split = factored_tiles.by_axis(live, 2)
    if split is None:
        return None
    alone, by = split
    return (by[side], alone[:, None])


def _dot_parts(a: FactoredTile | None, b: FactoredTile | None, wanted: FactoredTile | None) -> tuple[Any, Any, Any]:
    """The masks of the rows, columns and inner indices that a dot needs; None if a mask is not a product of masks per axis."""
    found = [_sides(mask, side) for mask in (a, b, wanted) for side in (0, 1)]
    sides = [side for side in found if side is not None]
    if len(sides) < len(found):
        return None, None, None
    a_rows, a_inner, b_inner, b_columns, rows, columns = sides
    return (
        factored_tiles.gathered(a_rows + rows),
        factored_tiles.gathered(b_columns + columns),
        factored_tiles.gathered(a_inner + b_inner),
    )


def _any(mask: FactoredTile, axis: int, shape: tuple[int, ...]) -> FactoredTile:
    """Reduces a mask along an axis by logical or."""
    split = factored_tiles.by_axis(mask, len(shape))
    if split is None:
        return (np.any(factored_tiles.whole(mask), axis=1 + axis),)
    alone, by = split
    rest = [i for i in range(len(shape)) if i != axis]
    expand = lambda array, at: array.reshape(len(array), *[1] * at, -1, *[1] * (len(rest) - 1 - at))  # noqa: E731
    parts = [expand(by[i], at) for at, i in enumerate(rest)]
    own = (alone & by[axis].any(1)) if len(alone) == len(by[axis]) or 1 in (len(alone), len(by[axis])) else alone
    return factored_tiles.gathered([*parts, own.reshape(-1, *[1] * len(rest))])
