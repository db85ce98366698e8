"""Abstract interpretation of a launch: computes the addresses, masks and iteration counts of many programs at once, without memory.

The evaluator computes only the values that an address, a mask, a bound or a condition depends on, by the NumPy meaning in the op table
and as factored tiles (see `factored_tiles`). Subclasses count all other ops. Programs that take different branches continue as separate
batches. A value that depends on loaded data is `Unknown`, with the reason. The evaluator computes the masks of a block before its loops,
because the mask of a store after a loop tells which elements inside the loop are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.analysis.provenance import flows
from blocknb.ir.core import Block, Func, Op, Value, walk
from blocknb.ir.interp_tile import elementwise, numpy_dtype
from blocknb.ir.traversal import reachable
from blocknb.language.ops import ACCESSES, OPS, STRUCTURED, TERMINATORS, named
from blocknb.language.types import Pointer
from blocknb.profile import factored_tiles
from blocknb.profile.addresses import access_operands, control_operands
from blocknb.profile.factored_tiles import FactoredTile

SHAPES = named("shape")

WINDOW = 40  # address bits of the window of one array
OVERHEAD = 20_000  # cost of visiting an op, in elements; an element takes about a nanosecond
MOST_ROUNDS = 100_000  # iterations of a while loop


class TooMuch(Exception):
    """The evaluation of the launch exceeds the budget."""


@dataclass(frozen=True)
class Unknown:
    """A value that is unknown before the launch. `why` completes the sentence "... depends on"."""

    why: str


@dataclass
class Batch:
    """Programs that take the same path: their ids along the three axes of the grid, and the known values. The key ("live", value) holds the
    mask of the elements of a value that count."""

    ids: tuple[np.ndarray, np.ndarray, np.ndarray]
    env: dict[Any, Any]

    @property
    def size(self) -> int:
        return len(self.ids[0])

    def part(self, chosen: np.ndarray) -> Batch:
        env = {key: _of(value, chosen, self.size) for key, value in self.env.items()}
        return Batch(tuple(axis[chosen] for axis in self.ids), env)


class Evaluator:
    """Walks the body of a tile-level Func for batches of programs.

    A subclass overrides `work(op, batch)`, called for each op except control flow, and `unsure(op, why)`, called for control flow that
    depends on unknown values.
    """

    def __init__(self, func: Func, scalars: Mapping[str, Any], grid: tuple[int, int, int], budget: float):
        self.func, self.grid, self.budget = func, grid, budget
        self.overhead, self.elements, self.scale = 0, 0, 1
        self.peak = 1.0  # elements per program of the largest array
        self.needed = needed(func)
        self.start: dict[Any, Any] = {}
        self.names: dict[int, str] = {}
        for i, param in enumerate(func.params):
            name = func.hints[i].name if func.hints else param.name
            if param.type.is_pointer:
                self.names[i + 1] = name
                self.start[param] = (np.full(1, (i + 1 << WINDOW) + (1 << WINDOW - 1), np.int64),)
            elif name in scalars:
                self.start[param] = (np.full(1, scalars[name]).astype(param.type.dtype.numpy),)
            else:
                self.start[param] = Unknown(f"the argument `{name}`")

    def follow(self, programs: np.ndarray) -> None:
        """Walks programs, given by linear index (axis 0 of the grid varies fastest). Raises TooMuch beyond the budget."""
        x, y, _ = self.grid
        batch = Batch((programs % x, programs // x % y, programs // (x * y)), dict(self.start))
        self.block(self.func.body, batch)

    # ---- to be overridden

    def work(self, op: Op, batch: Batch) -> None: ...

    def unsure(self, op: Op, why: str) -> None: ...

    # ---- control flow

    def block(self, block: Block, batch: Batch) -> list[Any]:
        for op in block.ops:
            for value in op.results:
                batch.env.pop(value, None)
                batch.env.pop(("live", value), None)
        for op in block.ops:
            if self.early(op) and all(a in batch.env for a in op.args):
                self.compute(op, batch)
        for op in block.ops:
            self.spend(0, batch.size)
            if op.name in TERMINATORS:
                return [batch.env.get(a) for a in op.args]
            if op.name in STRUCTURED:
                if counted(op):
                    getattr(self, f"_{op.name}")(op, batch)
                else:
                    self.forget(op, batch, f"the {op.name} {line(op)}")
                continue
            if self.early(op) and op.results[0] not in batch.env:
                self.compute(op, batch)
            self.work(op, batch)
        return []

    def early(self, op: Op) -> bool:
        return OPS[op.name].kind != "control" and any(value in self.needed for value in op.results)

    def forget(self, op: Op, batch: Batch, why: str) -> None:
        for value in op.results:
            batch.env[value] = Unknown(why)

    def known(self, batch: Batch, values: Sequence[Value]) -> tuple[list[np.ndarray], str]:
        """Scalars as arrays [programs], or the reason why one is unknown."""
        arrays = []
        for value in values:
            found = batch.env.get(value)
            if type(found) is not tuple:
                return [], found.why if isinstance(found, Unknown) else "a value that the analysis does not track"
            arrays.append(np.broadcast_to(factored_tiles.whole(found).reshape(-1), batch.size))
        return arrays, ""

    def _for(self, op: Op, batch: Batch) -> None:
        limits, why = self.known(batch, op.args[:3])
        if why:
            self.unsure(op, f"the iteration count of the loop {line(op)} depends on {why}")
            return self.forget(op, batch, why)
        lower, upper, step = (limit.astype(np.int64) for limit in limits)
        trips = np.maximum(0, -((lower - upper) // np.where(step == 0, 1, step)))
        same = self.same_work(op)
        ways, inverse = np.unique(np.stack([step, trips * same], 1), axis=0, return_inverse=True)
        results: list[tuple[np.ndarray, list[Any]]] = []
        for i, (by, _) in enumerate(ways.tolist()):
            chosen = np.flatnonzero(inverse.reshape(-1) == i)
            group = batch if len(ways) == 1 else batch.part(chosen)
            if same:
                results.append((chosen, self.once(op, group, int(trips[chosen[0]]))))
            else:
                results += self.loop(op, group, chosen, lower, by, trips)
        self.merge(op, batch, results)
        return None

    def same_work(self, op: Op) -> bool:
        """Whether all iterations do the same work: the body accesses no memory and has no control flow."""
        inside = op.blocks[0].ops
        return not any(o.name in ACCESSES or (o.blocks and OPS[o.name].kind == "control") for o in inside)

    def once(self, op: Op, batch: Batch, trips: int) -> list[Any]:
        """Walks one iteration and scales its work by the iteration count."""
        (block,), why = op.blocks, Unknown(f"the loop {line(op)}")
        batch.env.update(dict.fromkeys(block.args, why))
        if trips:
            self.scale *= trips
            self.block(block, batch)
            self.scale //= trips
        return [why if trips else batch.env.get(a) for a in op.args[3:]]

    def loop(
        self, op: Op, batch: Batch, members: np.ndarray, lower: np.ndarray, by: int, trips: np.ndarray
    ) -> list[tuple[np.ndarray, list[Any]]]:
        """Walks the iterations one by one, for the programs that have not finished. Returns the results by groups of programs.

        `members` are indices into `lower` and `trips`. Different lower bounds do not split the batch: the row loop of a
        persistent kernel begins at the program id.
        """
        (block,), carried, results = op.blocks, [batch.env.get(a) for a in op.args[3:]], []
        index, *rest = block.args
        for number in range(int(trips[members].max())):
            on = trips[members] > number
            if not on.all():
                left, gone = np.flatnonzero(on), np.flatnonzero(~on)
                results.append((members[gone], [_of(value, gone, len(on)) for value in carried]))
                carried = [_of(value, left, len(on)) for value in carried]
                batch, members = batch.part(left), members[left]
            first = lower[members]
            at = (first[:1] if (first == first[0]).all() else first) + number * by
            batch.env[index] = (at.astype(index.type.dtype.numpy),)
            batch.env.update(zip(rest, carried, strict=True))
            carried = self.block(block, batch)
        return [*results, (members, carried)]

    def _if(self, op: Op, batch: Batch) -> None:
        found, why = self.known(batch, op.args[:1])
        if why:
            self.unsure(op, f"the branch taken by the `if` {line(op)} depends on {why}")
            return self.forget(op, batch, why)
        results = []
        for block, way in zip(op.blocks, (True, False), strict=True):
            chosen = np.flatnonzero(found[0].astype(bool) == way)
            if len(chosen):
                results.append((chosen, self.block(block, batch if len(chosen) == batch.size else batch.part(chosen))))
        self.merge(op, batch, results)
        return None

    def _while(self, op: Op, batch: Batch) -> None:
        before, after = op.blocks
        carried, everyone = [batch.env.get(a) for a in op.args], np.arange(batch.size)
        results: list[tuple[np.ndarray, list[Any]]] = []
        rest, members = batch, everyone
        for _ in range(MOST_ROUNDS):
            rest.env.update(zip(before.args, carried, strict=True))
            passed = self.block(before, rest)
            go, why = self.known(rest, before.terminator.args[:1])
            if why:
                self.unsure(op, f"the iteration count of the loop {line(op)} depends on {why}")
                return self.forget(op, batch, why)
            on = go[0].astype(bool)
            if not on.all():
                ended = rest.part(np.flatnonzero(~on))
                results.append((members[~on], [ended.env.get(a) for a in before.terminator.args[1:]]))
                if not on.any():
                    return self.merge(op, batch, results)
                rest, members = rest.part(np.flatnonzero(on)), members[on]
                passed = [None, *(rest.env.get(a) for a in before.terminator.args[1:])]
            rest.env.update(zip(after.args, passed[1:], strict=True))
            carried = self.block(after, rest)
        self.unsure(op, f"the loop {line(op)} has more than {MOST_ROUNDS} iterations")
        return self.forget(op, batch, "a loop with too many iterations")

    def merge(self, op: Op, batch: Batch, results: list[tuple[np.ndarray, list[Any]]]) -> None:
        """Joins the results of an op from groups of programs."""
        for i, value in enumerate(op.results):
            groups = [(chosen, values[i]) for chosen, values in results]
            if len(groups) == 1:
                batch.env[value] = groups[0][1]
            elif all(type(found) is tuple for _, found in groups):
                batch.env[value] = factored_tiles.joined(groups, batch.size)
            else:
                missing = next(
                    (f for _, f in groups if isinstance(f, Unknown)),
                    Unknown("a value that the analysis does not track"),
                )
                batch.env[value] = missing

    # ---- values

    def spend(self, elements: int, programs: int) -> None:
        self.overhead += OVERHEAD
        self.elements += elements
        self.peak = max(self.peak, elements / programs)
        if self.overhead + self.elements > self.budget:
            raise TooMuch

    def compute(self, op: Op, batch: Batch) -> None:
        args: list[Any] = [batch.env.get(a) for a in op.args]
        bad = next((a for a in args if type(a) is not tuple), None)
        found: Any
        if not OPS[op.name].pure:  # memory, reductions and scans, assembly
            found = Unknown(f"the value loaded {line(op)}" if op.name == "load" else f"the {op.name} {line(op)}")
        elif bad is not None or any(a is None for a in args):
            found = bad if isinstance(bad, Unknown) else Unknown("a value that the analysis does not track")
        else:
            found = self.value(op, args, batch)
            self.spend(sum(p.size for p in found) if type(found) is tuple else 0, batch.size)
        for value in op.results:
            batch.env[value] = found

    def value(self, op: Op, args: list[FactoredTile], batch: Batch) -> FactoredTile | Unknown:
        type, rank = op.result.type, len(op.result.type.shape)
        match op.name:
            case "const":
                return (np.full((1,) * (1 + rank), op.attrs["value"]).astype(numpy_dtype(type.dtype)),)
            case "program_id":
                return (batch.ids[op.attrs["axis"]].astype(np.int32),)
            case "num_programs":
                return (np.full(1, self.grid[op.attrs["axis"]], np.int32),)
            case "arange":
                return (np.arange(op.attrs["start"], op.attrs["end"], dtype=np.int32)[None],)
            case name if name in SHAPES:
                return reshaped(op, args[0])
            case "promise":
                return args[0]
        if OPS[op.name].kind != "elementwise":
            return Unknown(f"the {op.name} {line(op)}")
        return lazily(op, args) or written_out(op, args)


def _of(value: Any, chosen: np.ndarray, programs: int) -> Any:
    """The known value for a subset of the programs."""
    return factored_tiles.take(value, chosen, programs) if type(value) is tuple else value


def reshaped(op: Op, parts: FactoredTile) -> FactoredTile:
    """Applies a shape op to each part."""
    rank = len(op.result.type.shape)
    match op.name:
        case "splat":
            return tuple(p.reshape(-1, *[1] * rank) for p in parts)
        case "broadcast":
            return parts
        case "expand_dims":
            return tuple(np.expand_dims(p, 1 + op.attrs["axis"]) for p in parts)
        case "trans":
            order = (0, *(1 + axis for axis in op.attrs["perm"]))
            return tuple(p.transpose(order) for p in parts)
    old = op.args[0].type.shape
    return tuple(
        p.reshape(-1, *[1] * rank)
        if p.size == len(p)
        else np.broadcast_to(p, (len(p), *old)).reshape(len(p), *op.result.type.shape)
        for p in parts
    )


def lazily(op: Op, args: list[FactoredTile]) -> FactoredTile | None:
    """The result of an op as a factored tile, computed part by part; None if the op needs the whole arrays."""
    type = op.result.type.dtype
    if op.name == "cmp":
        kind = op.args[0].type.dtype
        small = isinstance(kind, Pointer) or (kind.is_integer and (kind.is_signed or kind.bits < 64))
        return factored_tiles.decided(op.attrs["pred"], *args) if small else None
    if isinstance(type, Pointer):
        if op.name == "ptradd":
            size = op.args[0].type.dtype.element.bytes
            moved = factored_tiles.scaled(tuple(p.astype(np.int64) for p in args[1]), np.asarray(size, np.int64))
            return None if moved is None else factored_tiles.add(args[0], moved)
        return None
    if op.name == "and" and type.kind == "bool":
        return factored_tiles.gathered((*args[0], *args[1]))
    return _integers_lazily(op, args) if type.kind in ("int", "uint") else None


def _integers_lazily(op: Op, args: list[FactoredTile]) -> FactoredTile | None:
    """The same for integer arithmetic."""
    type = op.result.type.dtype
    match op.name:
        case "add":
            return factored_tiles.add(*args)
        case "mul":
            for a, b in (args, args[::-1]):
                if len(b) == 1 and b[0].size == len(b[0]):
                    return factored_tiles.scaled(a, b[0])
        case "cast":
            source, low_high = op.args[0].type.dtype, np.iinfo(type.numpy)
            if source.kind in ("int", "uint"):
                low, high = factored_tiles.bounds(args[0])
                ends = [f(p) for p in args[0] for f in (np.min, np.max)]
                if low_high.min <= min(low, *ends) and max(high, *ends) <= low_high.max:
                    return tuple(p.astype(type.numpy) for p in args[0])
    return None


def written_out(op: Op, args: list[FactoredTile]) -> FactoredTile:
    """The result of an op by its NumPy meaning, on arrays that are broadcast only as far as necessary."""
    return (elementwise(op, np.broadcast_arrays(*map(factored_tiles.whole, args))),)


def needed(func: Func) -> set[Value]:
    """The values from which addresses, masks, bounds and conditions are computed."""
    sources: dict[Value, list[Value]] = {}
    wanted: list[Value] = []
    for op in func.ops():
        if op.name in ACCESSES:
            wanted += access_operands(op)
        elif op.name in STRUCTURED:
            wanted += control_operands(op)
            sources |= flows(op)
        elif OPS[op.name].kind in ("elementwise", "shape"):
            sources |= {value: list(op.args) for value in op.results}
    return set(reachable(wanted, lambda value: sources.get(value, ())))


def counted(op: Op) -> bool:
    """Whether the blocks of an op contain accesses or arithmetic."""
    return any(
        inner.name in ACCESSES or OPS[inner.name].kind in ("dot", "reduce", "elementwise", "assembly")
        for block in op.blocks
        for inner in walk(block)
    )


def line(op: Op) -> str:
    return f"in line {op.loc.line}" if op.loc is not None else "in the kernel"
