"""The work of a launch: operations, unique bytes, issued bytes and atomics, counted from the tile IR with masks evaluated.

`count(func, scalars, grid)` follows all programs (see `analysis.partial_evaluation`). Where that costs too much, it follows a
sample and reports its size. Where one program costs too much, it estimates the flops from the middle iteration of each loop.

- *flops*: add, sub, mul, div, rem, min and max of floats count one, and fma counts two. A dot counts 2 M N K. A special function (exp,
  sqrt, ...) counts one and is also listed by name. A reduction of n elements counts n - 1 combines. Comparisons, selections, casts and
  signs count nothing. An operation counts only for elements that were loaded under a true mask and that a stored element needs.
- *issued flops*: the same count for all elements of the tiles, including padding. The hardware executes these.
- *unique bytes*: the bytes that loads access, each once, plus those that stores access, each once. Memory moves at least these.
- *issued bytes*: the bytes of every access of every program. The caches serve these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from blocknb.analysis.partial_evaluation import factored_tiles
from blocknb.analysis.partial_evaluation.evaluator import (
    WINDOW_BITS,
    Batch,
    Observer,
    PartialEvaluator,
    Policy,
    TooMuch,
    Unknown,
    line,
)
from blocknb.analysis.partial_evaluation.factored_tiles import FactoredTile
from blocknb.analysis.partial_evaluation.values import access_operands, reshaped
from blocknb.analysis.provenance import flows
from blocknb.analysis.used_columns import UsedColumns
from blocknb.ir.core import Func, Op, Value
from blocknb.language.ops import ACCESSES, ATOMICS, OPS, REDUCTIONS, named
from blocknb.profile.unique_bytes import Touched, touch

BUDGET = 1.5e9  # elements evaluated; each takes about a nanosecond
QUICK = 2e8  # the budget of a quick count
LARGEST = 1 << 22  # elements of the largest array of a batch
LEAST_SAMPLE = 32
FLOPS = {name: spec.cost.flops for name, spec in OPS.items() if spec.cost is not None and spec.cost.flops}
SPECIAL = named("special_function")
VIEWS = named("view")
ALL = None  # of masks: everything


@dataclass(frozen=True)
class Work:
    """The counted work of a launch. A number is None if it depends on loaded data; `why_flops` and `why_bytes` give the reason.
    `issued_bytes` depends on masks, not on addresses.

    `read` and `written` are unique bytes by array. `special` counts special functions by name; `flops` includes them. `atomics` counts
    single updates. `programs` is the number of programs followed. If it is less than the grid, the numbers are scaled up and `exact` is
    False. It is also False if the flops are an estimate from one iteration of each loop.
    """

    flops: int | None
    issued_flops: int | None
    dot_flops: int | None
    issued_dot_flops: int | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    read: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    issued_bytes: int | None = None
    atomics: int = 0
    programs: int = 0
    exact: bool = True
    why_flops: str = ""
    why_bytes: str = ""

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
    unique: bool = True,
) -> Work:
    """Counts the work of a launch of a tile-level Func.

    `scalars` are the run-time numbers by parameter name. `sizes` are the bytes of the arrays; they bound the unique bytes of a sample.
    `budget` limits the elements evaluated; the default takes about a second. Without `unique` the unique bytes, which take the most time,
    are not counted.
    """
    programs = math.prod(grid)
    try:
        chosen, step = _chosen(func, scalars, grid, programs, budget, unique)
        found = _Counter(func, scalars, grid, 4 * budget, unique)
        for at in range(0, len(chosen), step):
            found.follow(chosen[at : at + step])
    except TooMuch:
        return _estimate(func, scalars, grid)
    return found.result(len(chosen), programs, sizes or {})


def _estimate(func: Func, scalars: Mapping[str, Any], grid: tuple[int, int, int]) -> Work:
    """The flops of a launch whose programs are too long to follow: for each loop, the middle iteration of some programs counts for all."""
    programs = math.prod(grid)
    some = np.unique(np.linspace(0, programs - 1, LEAST_SAMPLE).astype(np.int64))
    found = _Counter(func, scalars, grid, math.inf, False, scale="every loop")
    found.follow(some)
    found.why_bytes, found.masked_by_data = "one program alone exceeds the budget of the count", True
    return replace(found.result(len(some), programs, {}), exact=False, read={}, written={})


def argument_bytes(arguments: Mapping[str, Mapping[str, Any]], loaded: Iterable[str], stored: Iterable[str]) -> int:
    """Bytes of the arrays that a launch reads plus bytes of those it writes: each element counted once for each.

    `arguments` are the summaries of a Launch. An upper bound of the unique bytes moved: a kernel may leave parts untouched.
    """
    size = {name: int(summary.get("bytes", 0)) for name, summary in arguments.items()}
    return sum(size.get(name, 0) for name in loaded) + sum(size.get(name, 0) for name in stored)


def _chosen(
    func: Func, scalars: Mapping[str, Any], grid: tuple[int, int, int], programs: int, budget: float, unique: bool
) -> tuple[np.ndarray, int]:
    """The programs to follow, evenly spread over the grid, and the batch size. The costs of one program and of a small sample tell how
    many programs the budget allows."""
    everyone = np.arange(programs)
    some = min(LEAST_SAMPLE, programs)
    if programs <= some:
        return everyone, some
    cost: list[tuple[int, int]] = []
    peak = 1.0
    for n in (1, some):
        probe = _Counter(func, scalars, grid, budget, unique)
        try:
            probe.follow(np.linspace(0, programs - 1, n).astype(np.int64))
        except TooMuch:
            if n == 1:
                raise
            fewer = max(
                1, int(budget / (cost[0][0] + cost[0][1]))
            )  # programs that branch differently cannot share a batch
            return np.unique(np.linspace(0, programs - 1, min(fewer, some)).astype(np.int64)), some
        cost.append((probe.evaluator.overhead, probe.evaluator.elements))
        peak = probe.evaluator.peak
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
    issued_dot: int = 0
    special: Counter = field(default_factory=Counter)


class _Counter(Observer):
    """Counts the work of the programs that it follows."""

    def __init__(
        self,
        func: Func,
        scalars: Mapping[str, Any],
        grid: tuple[int, int, int],
        budget: float,
        unique: bool = True,
        scale: str = "equal loops",
    ):
        self.evaluator = PartialEvaluator(func, scalars, grid, Policy("skip", scale=scale), _operands, budget)
        self.tally, self.issued_bytes, self.atomics = _Tally(), 0, 0
        self.reads, self.writes = Touched(), Touched()
        self.unique = unique
        self.why_flops, self.why_bytes = "", "" if unique else "the unique bytes were not counted"
        self.masked_by_data = False
        self.demand, used = demands(func), UsedColumns(func)
        self.used = {op.id: used.of(op) for op in func.ops() if op.name == "dot" and len(op.result.type.shape) == 2}

    def follow(self, programs: np.ndarray) -> None:
        """Counts programs given by linear index. Raises TooMuch beyond the budget."""
        self.evaluator.follow(programs, self)

    def result(self, followed: int, programs: int, sizes: Mapping[str, int]) -> Work:
        exact, factor = followed == programs, programs / max(1, followed)

        def scale(n: int) -> int:
            return n if exact else round(n * factor)

        tables = []
        for touched in (self.reads, self.writes):
            table = {self.evaluator.names[i - 1]: n for i, n in touched.by_window(WINDOW_BITS).items()}
            if not exact:
                table = {name: min(scale(n), sizes.get(name, scale(n))) for name, n in table.items()}
            tables.append(table)
        tally, no_flops = self.tally, bool(self.why_flops)
        return Work(
            None if no_flops else scale(tally.useful),
            None if no_flops else scale(tally.issued),
            None if no_flops else scale(tally.dot),
            None if no_flops else scale(tally.issued_dot),
            {name: scale(n) for name, n in tally.special.items()},
            tables[0],
            tables[1],
            None if self.masked_by_data else scale(self.issued_bytes),
            scale(self.atomics),
            followed,
            exact,
            self.why_flops,
            self.why_bytes,
        )

    def unsure(self, op: Op, why: str) -> None:
        self.why_flops = self.why_flops or why
        self.why_bytes, self.masked_by_data = self.why_bytes or why, True

    # ---- one op

    def event(self, op: Op, batch: Batch) -> None:
        for value in op.results:
            batch.env.pop(("live", value), None)
        match op.name:
            case name if name in ACCESSES:
                self.access(op, batch)
            case "dot":
                self.dot(op, batch)
            case name if name in REDUCTIONS:
                self.combine(op, batch)
            case "asm":
                self.why_flops = self.why_flops or f"the work of the inline assembly {line(op)} is unknown"
            case name if name in FLOPS:
                if getattr(op.result.type.dtype, "is_float", False):
                    self.elementwise(op, batch)
        self.validity(op, batch)

    def access(self, op: Op, batch: Batch) -> None:
        found = self.evaluator.accessed(op, batch)
        for value, what in ((found.address, "the address"), (found.mask, "the mask")):
            if isinstance(value, Unknown):
                self.why_bytes = self.why_bytes or f"{what} of the {op.name} {line(op)} depends on {value.why}"
        if isinstance(found.mask, Unknown):
            self.masked_by_data = True
            return
        active = found.active(batch.size)
        self.issued_bytes += active * found.element_bytes * batch.scale
        if op.name in ATOMICS:
            self.atomics += active * batch.scale
        if self.unique and isinstance(found.address, tuple) and active:
            for touched, on in ((self.reads, op.name != "store"), (self.writes, op.name != "load")):
                if on:
                    looked = touch(touched, found.address, found.mask, found.shape, found.element_bytes)
                    self.evaluator.spend(looked, batch.size)

    def number(self, shape: tuple[int, ...], mask: FactoredTile | None, batch: Batch) -> int:
        """The number of true elements of a mask over all programs of a batch."""
        if mask is ALL:
            return math.prod(shape) * batch.size
        return int(factored_tiles.true_counts(mask, shape, batch.size).sum())

    def elementwise(self, op: Op, batch: Batch) -> None:
        each = FLOPS[op.name]
        useful = self.number(op.result.type.shape, self.useful(op.result, op.args, batch), batch) * batch.scale
        self.add(each * useful, each * op.result.type.size * batch.size * batch.scale)
        if op.name in SPECIAL:
            self.tally.special[op.name] += useful

    def add(self, useful: int, issued: int, is_dot: bool = False) -> None:
        self.tally.useful += useful
        self.tally.issued += issued
        if is_dot:
            self.tally.dot += useful
            self.tally.issued_dot += issued

    def dot(self, op: Op, batch: Batch) -> None:
        a, b, _ = op.args
        (m, k), n = a.type.shape[-2:], b.type.shape[-1]
        used = self.used.get(op.id, n)  # wgmma does not compute the other columns
        issued = 2 * k * op.result.type.size * used // n * batch.size * batch.scale
        live_a, live_b = (self.live(v, batch) for v in (a, b))
        wanted = self.demanded(op.result, batch)
        if "stacked" in op.attrs:
            self.add(issued, issued, True)
            return
        rows, columns, inner = _dot_parts(live_a, live_b, wanted)
        if rows is None or len(a.type.shape) > 2:
            self.add(issued, issued, True)
            return
        columns = factored_tiles.gathered((*columns, (np.arange(n) < used)[None]))
        found = factored_tiles.true_counts(rows, (m,), batch.size) * factored_tiles.true_counts(
            columns, (n,), batch.size
        )
        useful = 2 * int((found * factored_tiles.true_counts(inner, (k,), batch.size)).sum()) * batch.scale
        self.add(useful, issued, True)
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
        self.add(each * useful * batch.scale, each * lanes * (shape[axis] - 1) * batch.size * batch.scale)

    # ---- which elements count

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
        """Records which elements of a result come from elements that a mask kept."""
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


def _operands(op: Op) -> list[Value]:
    return access_operands(op) if op.name in ACCESSES else []


Masks = frozenset[Value] | None  # None: the value has another use than a store


def demands(func: Func) -> dict[Value, Masks]:
    """For each value the masks of the stores that it reaches element by element; None if it has any other use, too."""
    found: dict[Value, Masks] = {}
    ops = list(func.ops())[::-1]
    for _ in range(2 + max(_depth(op) for op in ops) if ops else 0):
        for op in ops:
            for value, masks in _demanded_by(op, found):
                old = found.get(value, frozenset())
                found[value] = None if old is None or masks is None else old | masks
    return found


def _demanded_by(op: Op, found: Mapping[Value, Masks]) -> Iterator[tuple[Value, Masks]]:
    """Yields the operands of an op with the masks of the stores to which the op passes them on."""
    match op.name:
        case "store" | "atomic" if len(op.args) > 2:
            yield op.args[1], frozenset([op.args[2]])
        case "for" | "if":
            for target, sources in flows(op):
                for source in sources:
                    yield source, found.get(target, frozenset())
        case "yield":  # `flows` of the op around it has its operands
            pass
        case "dot":
            yield op.args[2], found.get(op.result, frozenset())
            yield from ((value, None) for value in op.args[:2])
        case _:
            one = len(op.results) == 1 and not op.blocks and not OPS[op.name].has("permutes")
            for value in op.args:
                same = one and value.type.shape == op.result.type.shape
                yield value, found.get(op.result, frozenset()) if same else None


def _depth(op: Op) -> int:
    return 1 + max((_depth(inner) for block in op.blocks for inner in block.ops), default=0)


def _sides(live: FactoredTile | None, side: int) -> FactoredTile | None:
    """The mask of the rows (side 0) or columns (side 1) of a matrix, as parts [programs or 1, size or 1]. None if the matrix mask is not a
    product of both."""
    if live is ALL:
        return (np.ones((1, 1), bool),)
    split = factored_tiles.by_axis(live, 2)
    if split is None:
        return None
    alone, by = split
    return (by[side], alone[:, None])


def _dot_parts(a: FactoredTile | None, b: FactoredTile | None, wanted: FactoredTile | None) -> tuple[Any, Any, Any]:
    """Masks of the rows, columns and inner indices that a dot needs; None if a mask is not a product of masks of one axis."""
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
    """Whether any element along an axis is true."""
    split = factored_tiles.by_axis(mask, len(shape))
    if split is None:
        return (np.any(factored_tiles.whole(mask), axis=1 + axis),)
    alone, by = split
    rest = [i for i in range(len(shape)) if i != axis]
    expand = lambda array, at: array.reshape(len(array), *[1] * at, -1, *[1] * (len(rest) - 1 - at))  # noqa: E731
    parts = [expand(by[i], at) for at, i in enumerate(rest)]
    own = (alone & by[axis].any(1)) if len(alone) == len(by[axis]) or 1 in (len(alone), len(by[axis])) else alone
    return factored_tiles.gathered([*parts, own.reshape(-1, *[1] * len(rest))])
