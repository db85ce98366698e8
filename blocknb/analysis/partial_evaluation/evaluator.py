"""The walk of a partial evaluation: control flow, program ids, and the events of batches of programs.

A batch is a set of programs that take the same path. Where they take different branches, or loops of different lengths, the evaluator
splits the batch and joins the results. The masks of a block are computed before its loops. The mask of a store after a loop tells which
elements inside the loop are needed. `Policy` says what happens where a bound or a condition depends on loaded data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blocknb.analysis.effects import global_operands, mask_of
from blocknb.analysis.partial_evaluation import factored_tiles
from blocknb.analysis.partial_evaluation.factored_tiles import FactoredTile
from blocknb.analysis.partial_evaluation.values import needed, results_of
from blocknb.errors import Unsupported
from blocknb.ir.core import Block, Func, Op, Value, walk
from blocknb.language.ops import ACCESSES, OPS, TERMINATORS, named

Walk = Generator[Any, None, list[Any]]
Event = Generator[Any, None, None]
BOXES = named("box_copy")
CONTROL = ("for", "if", "while", "roles")
WINDOW_BITS = 42  # of the addresses of one array
OVERHEAD = 20_000  # cost of visiting an op, in elements; an element takes about a nanosecond
MOST_ITERATIONS = 1024  # of a loop beyond the selected iteration, if its results are needed
MOST_ROUNDS = 100_000  # iterations of a while loop
UNTRACKED = "a value that the analysis does not track"


class TooMuch(Exception):
    """The evaluation of the launch exceeds the budget."""


class Undecided(Unsupported):
    """Control flow depends on loaded data, which a partial evaluation does not have."""


@dataclass(frozen=True)
class Unknown:
    """A value that is unknown before the launch. `why` completes the sentence "... depends on"."""

    why: str


@dataclass(frozen=True)
class Policy:
    """How far a walk follows control flow.

    `unknown`: what it does at a bound or condition that depends on loaded data. It skips the op ("skip"), raises Undecided ("refuse"), or
    walks the body of a loop once and both branches of an `if` ("assume"). `iteration`: loops report this iteration, or the last one if it
    comes earlier; None reports all. `scale`: the loops of which one iteration counts for all. They are none (""), those whose iterations do
    the same work ("equal loops"), or "every loop".
    """

    unknown: str
    iteration: int | None = None
    scale: str = ""


class Observer:
    """Receives the events of a batch; every method may be overridden."""

    def event(self, op: Op, batch: Batch) -> Event | None:
        """An op without control flow. A generator suspends the walk where it yields."""

    def unsure(self, op: Op, why: str) -> None:
        """Control flow with accesses or arithmetic is skipped."""

    def iteration(self, block: Block) -> None:
        """An iteration of a loop begins."""

    def passes(self, targets: Sequence[Value], sources: Sequence[Value]) -> None:
        """Values flow to the arguments of a block or to the results of an op."""

    def roles(self, op: Op, batch: Batch, evaluator: PartialEvaluator) -> Event:
        """The blocks of warp roles; by default one after another."""
        for block in op.blocks:
            yield from evaluator.walk(block, batch)


@dataclass
class Batch:
    """Programs that take the same path: their ids along the axes of the grid, and the known values. `scale`: how often the current block
    counts. `iterations`: those of the innermost loop; None if unknown. Events are reported if `reported`."""

    ids: tuple[np.ndarray, np.ndarray, np.ndarray]
    env: dict[Any, Any]
    observer: Observer
    consumer_group: int = 0
    scale: int = 1
    iterations: int | None = 1
    reported: bool = True

    @property
    def size(self) -> int:
        return len(self.ids[0])

    def part(self, chosen: np.ndarray) -> Batch:
        env = {key: _of(value, chosen, self.size) for key, value in self.env.items()}
        return replace(self, ids=tuple(axis[chosen] for axis in self.ids), env=env)


@dataclass(frozen=True)
class AccessedTile:
    """The elements of an array that an op accesses: addresses and mask as factored tiles of `shape`. A mask of None is on everywhere."""

    address: FactoredTile | Unknown
    mask: FactoredTile | Unknown | None
    shape: tuple[int, ...]
    element_bytes: int

    def active(self, programs: int) -> int:
        """The number of accessed elements over all programs of a batch. A mask that depends on data counts as on."""
        if not isinstance(self.mask, tuple):
            return math.prod(self.shape) * programs
        return int(factored_tiles.true_counts(self.mask, self.shape, programs).sum())


class PartialEvaluator:
    """Evaluates a Func for the scalars and the grid of a launch. `wants(op)` returns the operands whose values a client needs; `ctas` is
    the number of CTAs of a persistent kernel (by default one per program). Raises TooMuch beyond the budget."""

    def __init__(
        self,
        func: Func,
        scalars: Mapping[str, Any],
        grid: tuple[int, int, int],
        policy: Policy,
        wants: Callable[[Op], Iterable[Value]],
        budget: float = math.inf,
        ctas: int | None = None,
    ):
        self.func, self.grid, self.policy, self.budget = func, grid, policy, budget
        self.ctas = math.prod(grid) if ctas is None else ctas
        self.overhead, self.elements = 0, 0
        self.peak = 1.0  # elements per program of the largest array
        self.guesses: dict[int, str] = {}  # assumed control flow by op id, with the reason
        self.needed = needed(func, wants)
        self.maps = {op.result: op for op in func.ops() if op.name == "tensor_map"}
        self.names = [h.name for h in func.hints] if func.hints else [p.name for p in func.params]
        self.start: dict[Any, Any] = {}
        for i, (param, name) in enumerate(zip(func.params, self.names, strict=True)):
            if param.type.is_pointer:
                self.start[param] = (np.full(1, window(i), np.int64),)
            elif name in scalars:
                self.start[param] = (np.full(1, scalars[name]).astype(param.type.dtype.numpy),)
            else:
                self.start[param] = Unknown(f"the argument `{name}`")

    def batch(self, programs: np.ndarray, observer: Observer) -> Batch:
        """The batch of programs given by linear index; axis 0 of the grid varies fastest."""
        x, y, _ = self.grid
        return Batch((programs % x, programs // x % y, programs // (x * y)), dict(self.start), observer)

    def follow(self, programs: np.ndarray, observer: Observer) -> None:
        """Walks programs to their end."""
        with np.errstate(all="ignore"):
            for _ in self.walk(self.func.body, self.batch(programs, observer)):
                pass

    # ---- control flow

    def walk(self, block: Block, batch: Batch) -> Walk:
        """Walks a block; returns the operands of its terminator."""
        env = batch.env
        for op in block.ops:
            for value in op.results:
                env.pop(value, None)
        for op in block.ops:
            if op.results and OPS[op.name].pure and self.needs(op) and all(a in env for a in op.args):
                self.compute(op, batch)
        for op in block.ops:
            self.spend(0, batch.size)
            if op.name in TERMINATORS:
                return [env.get(a) for a in op.args]
            if op.name in CONTROL:
                yield from getattr(self, f"_{op.name}")(op, batch)
                continue
            if op.name == "local_store":
                env["stored", op.args[0]] = env.get(op.args[1])
            elif self.needs(op) and op.results[0] not in env:
                self.compute(op, batch)
            event = batch.observer.event(op, batch) if batch.reported else None
            if event is not None:
                yield from event
        return []

    def needs(self, op: Op) -> bool:
        return any(value in self.needed for value in op.results)

    def known(self, batch: Batch, values: Sequence[Value]) -> tuple[list[np.ndarray], str]:
        """Scalars as arrays [programs], or the reason why one is unknown."""
        arrays = []
        for value in values:
            found = batch.env.get(value)
            if type(found) is not tuple:
                return [], found.why if isinstance(found, Unknown) else UNTRACKED
            arrays.append(np.broadcast_to(factored_tiles.whole(found).reshape(-1), batch.size))
        return arrays, ""

    def assumes(self, op: Op, batch: Batch, what: str, why: str) -> bool:
        """Applies the policy to control flow that depends on unknown values. Returns whether to walk the blocks.

        The results become unknown.
        """
        batch.env.update(dict.fromkeys(op.results, Unknown(why)))
        if self.policy.unknown == "refuse":
            raise Undecided(f"the {op.name} {line(op)} depends on loaded data")
        if self.policy.unknown == "assume":
            self.guesses[op.id] = why
            return True
        if counted(op):
            batch.observer.unsure(op, f"{what} {line(op)} depends on {why}")
        return False

    def _roles(self, op: Op, batch: Batch) -> Event:
        yield from batch.observer.roles(op, batch, self)

    def _for(self, op: Op, batch: Batch) -> Event:
        limits, why = self.known(batch, op.args[:3])
        if why:
            if self.assumes(op, batch, "the iteration count of the loop", why):
                yield from self.once(op.blocks[0], batch, [batch.env.get(a) for a in (op.args[0], *op.args[3:])])
            return
        lower, upper, step = (limit.astype(np.int64) for limit in limits)
        counts = np.maximum(0, -((lower - upper) // np.where(step == 0, 1, step)))
        equal = self.policy.scale == "equal loops" and not self.needs(op) and same_work(op)
        same = equal or self.policy.scale == "every loop"
        ways, inverse = np.unique(np.stack([step, counts * same], 1), axis=0, return_inverse=True)
        results: list[tuple[np.ndarray, list[Any]]] = []
        for i, (by, _) in enumerate(ways.tolist()):
            chosen = np.flatnonzero(inverse.reshape(-1) == i)
            group = batch if len(ways) == 1 else batch.part(chosen)
            if same:
                middle = None if equal else lower[chosen] + counts[chosen] // 2 * by
                results.append((chosen, (yield from self.scaled(op, group, int(counts[chosen[0]]), middle))))
            else:
                results += yield from self.loop(op, group, chosen, lower, by, counts)
        self.merge(op, batch, results)

    def once(self, block: Block, batch: Batch, given: Sequence[Any]) -> Event:
        """Walks the body of a loop with an unknown iteration count."""
        before, batch.iterations = batch.iterations, None
        batch.env.update(zip(block.args, given, strict=True))
        yield from self.walk(block, batch)
        batch.iterations = before

    def scaled(self, op: Op, batch: Batch, count: int, index: np.ndarray | None) -> Walk:
        """Walks one iteration, which counts for all: any iteration, or the one with this index."""
        (block,), why = op.blocks, Unknown(f"the loop {line(op)}")
        batch.env.update(dict.fromkeys(block.args, why))
        if index is not None:
            batch.env[block.args[0]] = (index.astype(block.args[0].type.dtype.numpy),)
        if count:
            batch.scale *= count
            yield from self.walk(block, batch)
            batch.scale //= count
        return [why if count else batch.env.get(a) for a in op.args[3:]]

    def loop(
        self, op: Op, batch: Batch, members: np.ndarray, lower: np.ndarray, by: int, counts: np.ndarray
    ) -> Generator[Any, None, list[tuple[np.ndarray, list[Any]]]]:
        """Walks the iterations one by one, for the programs that have not finished. Returns the results by groups of programs.

        `members` are indices into `lower` and `counts`. Different lower bounds do not split the batch: the row loop of a
        persistent kernel begins at the program id.
        """
        (block,), carried, results = op.blocks, [batch.env.get(a) for a in op.args[3:]], []
        (index, *rest), given, last = block.args, op.args[3:], self.policy.iteration
        outer, before = batch, (batch.iterations, batch.reported)
        batch.iterations = int(counts[members].max())
        for number in range(batch.iterations):
            if last is not None and number > last + MOST_ITERATIONS * self.needs(op):
                carried = [Unknown(f"the loop {line(op)}")] * len(carried)
                break
            on = counts[members] > number
            if not on.all():
                left, gone = np.flatnonzero(on), np.flatnonzero(~on)
                results.append((members[gone], [_of(value, gone, len(on)) for value in carried]))
                carried = [_of(value, left, len(on)) for value in carried]
                batch, members = batch.part(left), members[left]
            first = lower[members]
            at = (first[:1] if (first == first[0]).all() else first) + number * by
            batch.reported = before[1] and (last is None or number <= last)
            if batch.reported:
                batch.observer.iteration(block)
            batch.env[index] = (at.astype(index.type.dtype.numpy),)
            batch.env.update(zip(rest, carried, strict=True))
            batch.observer.passes(rest, given)
            carried, given = (yield from self.walk(block, batch)), block.terminator.args
        batch.observer.passes(op.results, given)
        outer.iterations, outer.reported = before
        return [*results, (members, carried)]

    def _if(self, op: Op, batch: Batch) -> Event:
        found, why = self.known(batch, op.args[:1])
        if why:
            for block in op.blocks if self.assumes(op, batch, "the branch taken by the `if`", why) else ():
                yield from self.walk(block, batch)
            return
        results = []
        for block, way in zip(op.blocks, (True, False), strict=True):
            chosen = np.flatnonzero(found[0].astype(bool) == way)
            if len(chosen):
                part = batch if len(chosen) == batch.size else batch.part(chosen)
                results.append((chosen, (yield from self.walk(block, part))))
                batch.observer.passes(op.results, block.terminator.args)
        self.merge(op, batch, results)

    def _while(self, op: Op, batch: Batch) -> Event:
        (before, after), last, outer = op.blocks, self.policy.iteration, (batch.iterations, batch.reported)
        carried, rest, members = [batch.env.get(a) for a in op.args], batch, np.arange(batch.size)
        results: list[tuple[np.ndarray, list[Any]]] = []
        batch.iterations, given = None, op.args
        for number in range(MOST_ROUNDS):
            rest.observer.passes(before.args, given)
            rest.env.update(zip(before.args, carried, strict=True))
            passed, given = (yield from self.walk(before, rest)), after.terminator.args
            for targets in (after.args, op.results):
                rest.observer.passes(targets, before.terminator.args[1:])
            go, why = self.known(rest, before.terminator.args[:1])
            if why:
                if self.assumes(op, batch, "the iteration count of the loop", why):
                    yield from self.once(after, rest, passed[1:])
                break
            on = go[0].astype(bool)
            if not on.all():
                ended = np.flatnonzero(~on)
                results.append((members[ended], [_of(value, ended, len(on)) for value in passed[1:]]))
                if not on.any():
                    self.merge(op, batch, results)
                    break
                left = np.flatnonzero(on)
                passed = [_of(value, left, len(on)) for value in passed]
                rest, members = rest.part(left), members[left]
            rest.observer.iteration(after)
            rest.env.update(zip(after.args, passed[1:], strict=True))
            carried = yield from self.walk(after, rest)
            if last is not None and number >= last:
                batch.env.update(dict.fromkeys(op.results, Unknown(f"the loop {line(op)}")))
                break
        else:
            self.assumes(op, batch, f"the loop of more than {MOST_ROUNDS} iterations", UNTRACKED)
        batch.iterations, batch.reported = outer

    def merge(self, op: Op, batch: Batch, results: list[tuple[np.ndarray, list[Any]]]) -> None:
        """Joins the results of an op from groups of programs."""
        for i, value in enumerate(op.results):
            groups = [(chosen, values[i]) for chosen, values in results]
            if len(groups) == 1:
                batch.env[value] = groups[0][1]
            elif all(type(found) is tuple for _, found in groups):
                batch.env[value] = factored_tiles.joined(groups, batch.size)
            else:
                missing = (found for _, found in groups if isinstance(found, Unknown))
                batch.env[value] = next(missing, Unknown(UNTRACKED))

    # ---- values

    def spend(self, elements: int, programs: int) -> None:
        self.overhead += OVERHEAD
        self.elements += elements
        self.peak = max(self.peak, elements / programs)
        if self.overhead + self.elements > self.budget:
            raise TooMuch

    def compute(self, op: Op, batch: Batch) -> None:
        """Sets the results of an op, as far as they are known."""
        env = batch.env
        args: list[Any] = [env.get(a) for a in op.args]
        if op.name == "local_load":
            env[op.result] = env.get(("stored", op.args[0]), Unknown(UNTRACKED))
            return
        found: Any = self.place(op, batch)
        bad = next((a for a in args if type(a) is not tuple), None)
        if OPS[op.name].reads or OPS[op.name].kind == "memory":
            why = f"the value loaded {line(op)}" if op.name == "load" else f"the {op.name} {line(op)}"
            found = Unknown(why)
        elif bad is not None or any(a is None for a in args):
            found = bad if isinstance(bad, Unknown) else Unknown(UNTRACKED)
        elif found is None:
            found = results_of(op, args, env, self.func) or Unknown(f"the {op.name} {line(op)}")
        if type(found) is not list:
            found = [found] * len(op.results)
        env.update(zip(op.results, found, strict=True))
        self.spend(sum(p.size for p in found[0]) if type(found[0]) is tuple else 0, batch.size)

    def place(self, op: Op, batch: Batch) -> FactoredTile | None:
        """The result of an op that reads the position of the program or the CTA. A CTA has one program."""
        match op.name:
            case "program_id":
                return (batch.ids[op.attrs["axis"]].astype(np.int32),)
            case "num_programs":
                return (np.full(1, self.grid[op.attrs["axis"]], np.int32),)
            case "cta_id":
                x, y, _ = self.grid
                return ((batch.ids[0] + x * (batch.ids[1] + y * batch.ids[2])).astype(np.int32),)
            case "num_ctas":
                return (np.full(1, self.ctas, np.int32),)
            case "consumer_group_id":
                return (np.full(1, batch.consumer_group, np.int32),)
        return None

    # ---- accesses

    def accessed(self, op: Op, batch: Batch) -> AccessedTile:
        """The elements of an array that a load, store, atomic or copy accesses."""
        if op.name in BOXES:
            return self.box(op, batch)
        pointer, mask = global_operands(op)[0], mask_of(op)
        address, on = (batch.env.get(v) if v is not None else None for v in (pointer, mask))
        return AccessedTile(
            Unknown(UNTRACKED) if address is None else address,
            Unknown(UNTRACKED) if on is None and mask is not None else on,
            pointer.type.shape,
            pointer.type.dtype.element.bytes,
        )

    def box(self, op: Op, batch: Batch) -> AccessedTile:
        """The elements that the copy engine moves, in the shape of the buffer. The mask is off for elements outside of the array, and for
        those that the engine does not move."""
        parts, made = box_operands(op), self.maps.get(box_operands(op).map)
        shape, size, rank = parts.buffer.type.shape, parts.map.type.dtype.bytes, len(parts.start)
        found: list[Any] = [batch.env.get(a) for a in (*(made.args if made is not None else ()), *parts.start)]
        bad = next((f for f in found if type(f) is not tuple), None)
        if bad is not None or made is None or None in found:
            why = bad if isinstance(bad, Unknown) else Unknown(UNTRACKED)
            return AccessedTile(why, why, shape, size)
        scalars = [factored_tiles.whole(f).astype(np.int64).reshape(-1, *[1] * len(shape)) for f in found]
        copied = op.attrs.get("extents", shape)
        extents, strides = scalars[1 : rank + 1], [*scalars[rank + 1 : len(made.args)], np.ones(1, np.int64)]
        address, inside = [scalars[0]], []
        for axis, start in enumerate(scalars[len(made.args) :]):
            along, end = np.zeros(1, np.int64), 1
            if axis in op.attrs["axes"]:
                at = op.attrs["axes"].index(axis)
                end = copied[at]
                along = np.arange(shape[at]).reshape(1, *(-1 if i == at else 1 for i in range(len(shape))))
            address += [start * strides[axis] * size, along * strides[axis] * size]
            inside.append((start + along >= 0) & (start + along < extents[axis]) & (along < end))
        return AccessedTile(factored_tiles.gathered(address), factored_tiles.gathered(inside), shape, size)


@dataclass(frozen=True)
class BoxOperands:
    """The operands of a `copy_bulk` or `store_bulk`: the buffer in shared memory, the tensor map, and the coordinates."""

    buffer: Value
    map: Value
    start: tuple[Value, ...]


def box_operands(op: Op) -> BoxOperands:
    if op.name == "copy_bulk":
        return BoxOperands(op.args[0], op.args[1], op.args[4:])
    return BoxOperands(op.args[1], op.args[0], op.args[2:])


def window(number: Any) -> Any:
    """The address of the array that the parameter of that number points to, or of each number in an array."""
    return (number + 1 << WINDOW_BITS) + (1 << WINDOW_BITS - 1)


def _of(value: Any, chosen: np.ndarray, programs: int) -> Any:
    """The known value for a subset of the programs."""
    return factored_tiles.take(value, chosen, programs) if type(value) is tuple else value


def same_work(op: Op) -> bool:
    """Whether all iterations do the same work: the body accesses no memory and has no control flow."""
    inside = op.blocks[0].ops
    return not any(o.name in ACCESSES or (o.blocks and OPS[o.name].kind == "control") for o in inside)


def counted(op: Op) -> bool:
    """Whether the blocks of an op contain accesses or arithmetic."""
    kinds = ("dot", "reduce", "elementwise", "assembly")
    return any(o.name in ACCESSES or OPS[o.name].kind in kinds for block in op.blocks for o in walk(block))


def line(op: Op) -> str:
    """ "in line 7": the line of the kernel, also for an op of a function that the kernel calls."""
    return f"in line {line_number(op)}" if op.loc is not None else "in the kernel"


def line_number(op: Op) -> int:
    """The line of the kernel; 0 if the op has none."""
    loc = op.loc
    while loc is not None and loc.caller is not None:
        loc = loc.caller
    return loc.line if loc is not None else 0
