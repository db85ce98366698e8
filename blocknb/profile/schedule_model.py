"""The schedule model of `timeline`: a discrete-event simulation of one multiprocessor.

Each warp role (a consumer warpgroup or the producer warp) is a coroutine. The roles share copies, mbarriers and functional units. An
event queue resumes the role with the earliest clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from blocknb.analysis.effects import mask_of
from blocknb.analysis.partial_evaluation import factored_tiles
from blocknb.analysis.partial_evaluation.evaluator import (
    BOXES,
    AccessedTile,
    Batch,
    Event,
    Observer,
    PartialEvaluator,
    Policy,
    Undecided,
    box_operands,
    line_number,
)
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.language.ops import ACCESSES, ATOMICS, OPS, PRESERVING, REDUCTIONS, named
from blocknb.layouts import wgmma
from blocknb.profile.copy_log import BufferStage, CopyLog
from blocknb.profile.timeline_spans import Rates, Timeline, TimelineSpan

SPECIAL = named("special_unit")
#: The operands that are an index of a stage, a parity or a predicate.
NUMBERS = {
    "stage": slice(1, 2),
    "await": slice(1, 3),
    "expect": slice(1, 3),
    "arrive": slice(1, 3),
    "copy_bulk": slice(3, 4),
}


def operands(op: Op) -> list[Value]:
    """The operands of an op whose values the model needs."""
    found = list(op.args[NUMBERS[op.name]]) if op.name in NUMBERS else []
    if op.name in BOXES:
        return [*found, box_operands(op).map, *box_operands(op).start]
    mask = mask_of(op) if op.name in ACCESSES else None
    return found if mask is None else [*found, mask]


@dataclass(eq=False)
class BarrierPhases:
    """An mbarrier as in `ir.mbarriers.Mbarrier`, with the time at which its last phase ended."""

    arrivals: int
    phase: int = 0
    pending: int = 0
    bytes: int = 0
    ended: float = 0.0
    waiting: list[tuple[int, ScheduledRole]] = field(default_factory=list)
    number: int = 0  # unique in the model

    def __post_init__(self) -> None:
        self.pending = self.arrivals


class ScheduleModel:
    """The state that the roles of a multiprocessor share, and the event queue."""

    def __init__(self, func: Func, scalars: Mapping[str, Any], grid: Any, ctas: int, rates: Rates, most: int):
        self.func, self.rates, self.left = func, rates, most
        self.evaluator = PartialEvaluator(func, scalars, grid, Policy("refuse"), operands, ctas=ctas)
        self.events: list[tuple[float, int, Any]] = []
        self.order = itertools.count()
        self.free: dict[str, float] = {}  # the time from which each unit is free
        self.copies = CopyLog()
        self.spans: list[TimelineSpan] = []
        self.now, self.cut = 0.0, False
        self.flops = self.bytes = 0

    def begin(self, number: int) -> None:
        self.now = max([self.now, *(s.end for s in self.spans)])
        warps = self.func.attrs.get("num_warps", 4)
        batch = self.evaluator.batch(np.array([number]), Observer())
        ScheduledRole(self, "consumer", warps, batch, {}, self.now).go(self.func.body)

    def at(self, time: float, what: Any) -> None:
        heapq.heappush(self.events, (time, next(self.order), what))

    def run(self) -> None:
        while self.events and self.left > 0:
            self.now, _, what = heapq.heappop(self.events)
            what()
        self.cut = self.left <= 0

    def take(self, unit: str, start: float, clocks: float) -> tuple[float, float]:
        """Reserves a unit that serves one request at a time. Returns the start and the end."""
        begin = max(start, self.free.get(unit, 0.0))
        self.free[unit] = begin + clocks
        return begin, begin + clocks

    def arrive(self, barrier: BarrierPhases, times: int, bytes: int = 0) -> None:
        barrier.pending -= times
        barrier.bytes += bytes
        if barrier.pending <= 0 and barrier.bytes == 0:
            barrier.phase, barrier.pending, barrier.ended = barrier.phase + 1, barrier.arrivals, self.now
            waiting, barrier.waiting = barrier.waiting, []
            for parity, agent in waiting:
                if barrier.phase & 1 == parity:
                    barrier.waiting.append((parity, agent))
                else:
                    self.at(self.now, agent.resume)

    def fetch(self, op: Op, stage: BufferStage, bytes: int, start: float, key: Any) -> float:
        """Starts a copy to a stage and returns its completion time. Copies with the same key count as one."""
        _, sent = self.take("memory", start, bytes / self.rates.memory)
        landed = sent + self.rates.latency
        self.copies.add(op, stage, bytes, start, landed, key)
        return landed

    def reads(self, stage: BufferStage, end: float) -> int:
        """Records that an op reads a stage up to `end`. Returns the index of the copy it reads; -1 if there is none."""
        return self.copies.read(stage, self.now, end)

    def result(self) -> Timeline:
        """The timeline: lanes of copies, then lanes of roles."""
        found, lanes = self.copies.numbered()
        spans = [
            replace(s, number=found[s.number].number, stage=found[s.number].stage) if s.number >= 0 else s
            for s in self.spans
        ]
        workers = list(dict.fromkeys(s.lane for s in spans))
        return Timeline(
            (*lanes, *sorted(workers, key=lambda lane: (lane != "producer", lane))),
            (*found, *_joined(spans)),
            self.cut,
            self.flops,
            self.bytes,
        )


class ScheduledRole(Observer):
    """A consumer warpgroup or the producer warp: its values and its clock."""

    def __init__(
        self,
        machine: ScheduleModel,
        lane: str,
        warps: int,
        batch: Batch,
        ready: dict,
        now: float,
        consumer_group: int = 0,
    ):
        self.machine, self.lane, self.warps = machine, lane, warps
        self.batch = replace(batch, env=dict(batch.env), observer=self, consumer_group=consumer_group)
        self.env: dict[Any, Any] = self.batch.env
        self.ready: dict[Value, float] = ready
        self.now = now
        self.products: list[float] = []  # ends of the products in flight
        self.stores: list[float] = []
        self.copied: dict[Value, int] = {}  # the copy that a tile in registers came from
        self.groups: list[float] = [now]
        self.group, self.number = 0, next(machine.order)
        self.walk: Generator[Any, None, Any] | None = None

    def go(self, block: Block) -> None:
        self.walk = self.machine.evaluator.walk(block, self.batch)
        self.machine.at(self.now, self.resume)

    def resume(self) -> None:
        """Runs the role until it yields to another role or waits for an mbarrier."""
        assert self.walk is not None
        self.now = max(self.now, self.machine.now)
        for wish in self.walk:
            if self.machine.left <= 0:
                return
            if wish is None:
                self.machine.at(self.now, self.resume)
                return
            barrier, parity = wish
            if barrier.phase & 1 == parity:
                barrier.waiting.append((parity, self))
                return

    def passes(self, targets: Sequence[Value], sources: Sequence[Value]) -> None:
        times = [self.ready.get(source, 0.0) for source in sources]
        self.ready.update(zip(targets, times, strict=True))

    def scalar(self, value: Value) -> int:
        """The number that an index, a parity or a predicate has. Raises Undecided if it depends on loaded data."""
        found = self.env.get(value)
        if not isinstance(found, tuple):
            raise Undecided(f"the number `{value.name}` of the schedule depends on loaded data")
        return int(factored_tiles.whole(found).reshape(-1)[0])

    def accessed(self, op: Op) -> tuple[int, int]:
        """The bytes of the accessed tile, and those that the mask lets through, which count as bytes of the launch."""
        tile: AccessedTile = self.machine.evaluator.accessed(op, self.batch)
        moved = tile.active(1) * tile.element_bytes
        self.machine.bytes += moved
        return math.prod(tile.shape) * tile.element_bytes, moved

    def event(self, op: Op, batch: Batch) -> Event:
        self.machine.left -= 1
        match op.name:
            case "mbarriers":
                self.env[op.result] = [
                    BarrierPhases(op.attrs["arrivals"], number=next(self.machine.order))
                    for _ in range(op.attrs["stages"])
                ]
            case "alloc":
                self.env[op.result] = BufferStage(op.id, op.result.name.split(".")[0], 0, 1)
            case "stage":
                buffer, name = self.env[op.args[0]], op.result.name.split(".")[0]
                index = self.scalar(op.args[1])
                self.env[op.result] = BufferStage(
                    buffer.buffer, _named(name, buffer.name), index, op.args[0].type.stages
                )
            case _:
                yield from self.asynchronous(op)

    def asynchronous(self, op: Op) -> Generator[Any, None, None]:
        """Runs asynchronous copies, products and stores, and the waits for them. `plain` runs all other ops."""
        match op.name:
            case "await":
                yield None
                begin = self.now
                yield self.env[op.args[0]][self.scalar(op.args[1])], self.scalar(op.args[2])
                self.span("wait", begin, self.now, op, op.args[0].name.split(".")[0])
            case "expect" | "arrive":
                yield None
                if len(op.args) < 3 or self.scalar(op.args[2]):
                    times = self.warps if op.name == "arrive" else 1
                    barrier = self.env[op.args[0]][self.scalar(op.args[1])]
                    self.machine.arrive(barrier, times, op.attrs.get("bytes", 0))
            case "copy_bulk":
                yield None
                self.copy_bulk(op)
            case "copy_async":
                yield None
                self.copy_async(op)
            case "commit":
                self.groups.append(0.0)
                self.group += 1
            case "wait":
                done = self.groups[: len(self.groups) - 1 - op.attrs["in_flight"]]
                yield from self.sleep(max(done, default=0.0), op, "copies")
            case "dot":
                yield from self.dot(op)
            case "dot_wait":
                yield from self.finish(op, op.attrs.get("in_flight", 0))
                self.ready.update(dict.fromkeys(op.results, self.now))
            case "store_wait":
                pending = op.attrs["in_flight"]
                yield from self.sleep(max(self.stores[: len(self.stores) - pending], default=0.0), op, "stores")
            case _:
                yield from self.plain(op)

    def plain(self, op: Op) -> Generator[Any, None, None]:
        """Runs a synchronous op, which begins when its operands are ready."""
        name = op.name
        arrays = name in ("load", "store", "store_bulk") or name in ATOMICS
        if arrays or name in ("local_store", "local_load"):
            yield from self.sleep(max((self.ready.get(a, 0.0) for a in op.args), default=0.0), op, "loads")
        if arrays:
            yield from self.access(op)
        elif name in ("local_store", "local_load"):
            buffer = op.args[0].type
            kind = "store" if name == "local_store" else "arithmetic"
            yield from self.work(kind, "shared", buffer.bytes / self.machine.rates.shared, op, buffer.bytes)
            stage = self.env[op.args[0]]
            if name == "local_load":
                self.copied[op.result] = self.machine.reads(stage, self.now)
            elif self.copied.get(op.args[1], -1) >= 0:
                self.machine.copies.newest[stage.buffer, stage.index] = [self.copied[op.args[1]]]
        else:
            ready = max((self.ready.get(a, 0.0) for a in op.args), default=0.0)
            self.ready.update(dict.fromkeys(op.results, ready))
            if name in PRESERVING and len(op.args) == 1 and op.args[0] in self.copied:
                self.copied[op.result] = self.copied[op.args[0]]
            if clocks := self.clocks(op):
                yield from self.arithmetic(op, clocks)

    def access(self, op: Op) -> Event:
        """Runs a load, a store or an atomic of an array, in registers or by the copy engine."""
        size, moved = self.accessed(op)
        clocks = size / self.machine.rates.memory
        if op.name == "load":
            into = BufferStage(op.id, op.result.name.split(".")[0] or f"load {op.id}", 0, 0)
            self.ready.pop(op.result, None)
            if moved:
                self.ready[op.result] = self.machine.fetch(op, into, size, self.now, (op.id, self.now))
                self.copied[op.result] = self.machine.copies.newest[into.buffer, 0][-1]
        elif op.name == "store_bulk":
            begin, end = self.machine.take("memory", self.now, clocks)
            self.stores.append(end)
            self.span("store", begin, end, op, "copy engine", size, f"{self.lane} stores" if self.lane else "")
        else:
            yield from self.work("store", "memory", clocks, op, size)

    def clocks(self, op: Op) -> float:
        """The clocks of float arithmetic. Index arithmetic is mostly folded into addresses and takes none."""
        if op.name in REDUCTIONS:
            return float(op.args[0].type.size / self.machine.rates.lanes)
        if OPS[op.name].kind not in ("elementwise", "assembly") or not op.results or not op.result.type.shape:
            return 0.0
        kinds = [value.type.dtype for value in (op.result, *op.args)]
        if not any(getattr(kind, "is_float", False) for kind in kinds):
            return 0.0
        return float(op.result.type.size / self.machine.rates.lanes)

    def roles(self, op: Op, batch: Batch, evaluator: PartialEvaluator) -> Event:
        groups = op.attrs.get("consumer_groups", 1)
        for number in range(groups):
            lane = f"consumer {number}" if groups > 1 else "consumer"
            made = ScheduledRole(
                self.machine, lane, op.attrs["warps"][0] // groups, batch, dict(self.ready), self.now, number
            )
            made.go(op.blocks[0])
        made = ScheduledRole(self.machine, "producer", 1, batch, dict(self.ready), self.now)
        made.go(op.blocks[1])
        yield from ()

    def copy_bulk(self, op: Op) -> None:
        stage: BufferStage = self.env[op.args[0]]
        index, (size, _), machine = self.scalar(op.args[3]), self.accessed(op), self.machine
        if extents := op.attrs.get("extents"):
            size = math.prod(extents) * op.args[0].type.dtype.bytes
        barrier: BarrierPhases = self.env[op.args[2]][index]
        stage = replace(stage, name=op.args[1].name.split(".")[0] or stage.name)  # of the array
        landed = machine.fetch(op, stage, size, self.now, (barrier.number, barrier.phase))
        machine.at(landed, lambda: machine.arrive(barrier, 0, -size))

    def copy_async(self, op: Op) -> None:
        size, moved = self.accessed(op)
        if not moved:
            return
        stage: BufferStage = self.env[op.args[0]]
        landed = self.machine.fetch(op, stage, size, self.now, (self.number, self.group, stage.index))
        self.groups[-1] = max(self.groups[-1], landed)

    def dot(self, op: Op) -> Generator[Any, None, None]:
        yield from self.sleep(max((self.ready.get(a, 0.0) for a in op.args), default=0.0), op, "operands")
        yield None
        (m, n), k = op.result.type.shape[-2:], op.args[0].type.shape[-1]
        n = op.attrs.get("columns", n)
        instr, rates = op.attrs.get("instr", ""), self.machine.rates
        by_engine = wgmma.is_name(instr)
        speed = (rates.product if by_engine else rates.product / 2) * 2 / op.args[0].type.dtype.bytes
        self.machine.flops += 2 * k * op.result.type.size * n // op.result.type.shape[-1]
        begin, end = self.machine.take("product", self.now, m * n * k / (speed if instr else rates.lanes))
        read = [self.machine.reads(s, end) for s in map(self.env.get, op.args) if isinstance(s, BufferStage)]
        held = [self.copied[a] for a in op.args if a in self.copied]
        number = max([*read, *held], default=-1)
        self.machine.spans.append(
            TimelineSpan(
                f"{self.lane} MMA", "product", begin, end, instr or "multiply-adds", line_number(op), op.id, -1, number
            )
        )
        self.products.append(end)
        self.ready.update(dict.fromkeys(op.results, 0.0 if by_engine else end))
        if by_engine:
            yield from self.finish(op, op.attrs.get("in_flight", 0))

    def finish(self, op: Op, pending: int) -> Generator[Any, None, None]:
        """Waits until at most `pending` products are in flight."""
        done = self.products[: len(self.products) - pending]
        del self.products[: len(done)]
        yield from self.sleep(max(done, default=0.0), op, "")

    def sleep(self, until: float, op: Op, what: str) -> Generator[Any, None, None]:
        if until > self.now:
            begin, self.now = self.now, until
            yield None
            if what:
                self.span("wait", begin, self.now, op, what)

    def work(self, kind: str, unit: str, clocks: float, op: Op, size: int = 0) -> Generator[Any, None, None]:
        begin, self.now = self.machine.take(unit, self.now, clocks)
        self.span(kind, begin, self.now, op, op.name, size)
        yield None
        for value in op.results:
            self.ready[value] = self.now

    def arithmetic(self, op: Op, clocks: float) -> Generator[Any, None, None]:
        """Runs float arithmetic, pipelined with its operands: it begins with their first elements and ends after their last. The special
        function unit computes exp2."""
        needed = max((self.ready.get(a, 0.0) for a in op.args), default=0.0)
        yield from self.sleep(needed - clocks, op, "")
        begin, end = self.machine.take("lanes", self.now, clocks)
        self.now = max(end, needed)
        if op.name in SPECIAL:
            _, end = self.machine.take("special", begin, op.result.type.size / self.machine.rates.special)
            self.span("arithmetic", begin, end, op, op.name)
        else:
            self.span("arithmetic", begin, self.now, op, op.name)
        for value in op.results:
            self.ready[value] = max(end, self.now)
        yield None

    def span(self, kind: str, start: float, end: float, op: Op, what: str, size: int = 0, lane: str = "") -> None:
        if end > start:
            made = TimelineSpan(lane or self.lane, kind, start, end, what, line_number(op), op.id, bytes=size)
            self.machine.spans.append(made)


def _joined(spans: list[TimelineSpan]) -> list[TimelineSpan]:
    """Joins adjacent spans of arithmetic or of stores in a lane into one."""
    found: list[TimelineSpan] = []
    for span in sorted(spans, key=lambda s: (s.lane, s.start)):
        last = found[-1] if found else None
        joins = last and span.kind in ("arithmetic", "store") and (last.lane, last.kind) == (span.lane, span.kind)
        if last and joins and span.start - last.end < 1:
            what = last.what if last.what == span.what else span.kind
            found[-1] = replace(last, end=max(last.end, span.end), what=what, bytes=last.bytes + span.bytes)
        else:
            found.append(span)
    return found


def _named(name: str, buffer: str) -> str:
    return buffer if not name or name.isdigit() else name
