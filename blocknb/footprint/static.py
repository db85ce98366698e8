"""The footprint of a launch whose addresses and masks follow from its arguments, by partial evaluation of all programs at once.

Programs are followed in batches. A load from an array that the kernel never stores to gives its data. So a launch stays static if it loads
an index array, a mask or a bound from memory. Where a value depends on memory that the kernel changes, `NotStatic` asks for a recorded run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
    Undecided,
    Unknown,
    line,
    window,
)
from blocknb.analysis.partial_evaluation.values import access_operands
from blocknb.analysis.provenance import Provenance
from blocknb.footprint.access_log import AccessLog, Budget, BudgetExceeded, NotStatic
from blocknb.footprint.launch import ArrayLayout, MemoryLaunch
from blocknb.footprint.runs import runs_of
from blocknb.ir.core import Op
from blocknb.language.ops import ACCESSES, OPS
from blocknb.language.types import Pointer

PROBE = 16  # programs of the first batch, which tells the size of the others
BATCH = 1 << 21  # elements of the largest array of a batch


def changed(launch: MemoryLaunch) -> set[int]:
    """The parameters of arrays that the kernel may store to, and of those that share memory with one of them."""
    provenance, found = Provenance(launch.func), set()
    pointers = {array.parameter for array in launch.arrays}
    for op in launch.func.ops():
        if OPS[op.name].writes == "global" or op.name == "asm":
            for value in op.args:
                origins = provenance.of(value)
                found |= (
                    {i for i in origins if isinstance(i, int)} if all(isinstance(i, int) for i in origins) else pointers
                )
    for region in launch.regions:
        mine = {array.parameter for array in region.arrays}
        found |= mine if mine & found else set()
    return found


def follow(launch: MemoryLaunch, budget: Budget, kind: type[AccessLog] = AccessLog) -> AccessLog:
    """The access log of all programs, or of a sample of them if the budget does not allow more. Raises NotStatic."""
    log = kind(launch)
    evaluator = _LoadingEvaluator(launch, budget)
    observer = _AccessLogger(evaluator, log, budget)
    deadline = budget.deadline()
    done: list[np.ndarray] = []
    for batch in _batches(launch.programs, lambda: max(1, int(BATCH / evaluator.peak))):
        try:
            evaluator.follow(batch, observer)
        except Undecided as error:
            raise NotStatic(error.message) from None
        except (TooMuch, BudgetExceeded):
            observer.forget(batch)
            log.why = "" if done else "one program alone takes longer than the budget"
            break
        done.append(batch)
        if time.monotonic() > deadline:
            break
    log.programs = np.sort(np.concatenate(done)) if done else np.empty(0, np.int64)
    return log


def _batches(programs: int, size: Callable[[], int]) -> Iterator[np.ndarray]:
    """Batches of neighbouring programs: those of the start, of the end, then evenly spread ones. `size` is called after the first batch."""
    if not programs:  # an empty grid is a launch that does nothing
        return
    first = min(PROBE, programs)
    yield np.arange(first)
    step = size()
    parts = [np.arange(at, min(at + step, programs)) for at in range(first, programs, step)]
    if parts:
        yield parts.pop()
    stride = max(1, len(parts) // 8)
    for offset in range(stride):
        yield from parts[offset::stride]


class _LoadingEvaluator(PartialEvaluator):
    """An evaluator that knows the data of arrays which the kernel does not change."""

    def __init__(self, launch: MemoryLaunch, budget: Budget):
        wants = lambda op: access_operands(op) if op.name in ACCESSES else ()  # noqa: E731
        super().__init__(launch.func, launch.scalars, launch.grid, Policy("refuse"), wants, budget.elements * 16)
        self.launch, self.changed = launch, changed(launch)
        self.data: dict[int, np.ndarray] = {}

    def compute(self, op: Op, batch: Batch) -> None:
        if op.name == "load":
            found = self.loaded(op, batch)
            if found is not None:
                batch.env[op.result] = (found,)
                self.spend(found.size, batch.size)
                return
        super().compute(op, batch)

    def loaded(self, op: Op, batch: Batch) -> np.ndarray | None:
        """The elements that a load returns, [programs or 1, *tile]; None if they are unknown."""
        tile = self.accessed(op, batch)
        if isinstance(tile.address, Unknown) or isinstance(tile.mask, Unknown) or op.attrs.get("volatile"):
            return None
        address = factored_tiles.whole(tile.address)
        on = np.ones((1,) * address.ndim, bool) if tile.mask is None else factored_tiles.whole(tile.mask)
        address, on = np.broadcast_arrays(address, on)
        array = self.array_of(address[on])
        dtype = op.result.type.dtype
        if array is None or array.parameter in self.changed or isinstance(dtype, Pointer):
            return None
        data = self.contents(array)
        offsets = address - window(array.parameter) + array.address - array.low
        inside = on & (offsets >= 0) & (offsets <= len(data) - tile.element_bytes) & (offsets % tile.element_bytes == 0)
        if (on & ~inside).any():
            return None
        whole = data[: len(data) // tile.element_bytes * tile.element_bytes].view(dtype.numpy)
        values = np.zeros(address.shape, dtype.numpy)
        if len(op.args) > 2:
            other = batch.env.get(op.args[2])
            if not isinstance(other, tuple):
                return None
            values = np.array(np.broadcast_to(factored_tiles.whole(other), address.shape), dtype.numpy)
        values[inside] = whole[offsets[inside] // tile.element_bytes]
        return values

    def contents(self, array: ArrayLayout) -> np.ndarray:
        if array.parameter not in self.data:
            self.data[array.parameter] = self.launch.contents(array, array.low, array.high)
        return self.data[array.parameter]

    def array_of(self, addresses: np.ndarray) -> ArrayLayout | None:
        """The array of some addresses; None if they lead to several, or to none."""
        if not addresses.size:
            return None
        low, high = int(addresses.min()) >> WINDOW_BITS, int(addresses.max()) >> WINDOW_BITS
        return self.launch.by_parameter.get(low - 1) if low == high else None


class _AccessLogger(Observer):
    """Adds the accesses of the batches that it follows to an access log."""

    def __init__(self, evaluator: _LoadingEvaluator, log: AccessLog, budget: Budget):
        self.evaluator, self.log, self.budget = evaluator, log, budget
        self.limit = time.monotonic() + max(1.0, 2 * budget.seconds)  # for a batch that has begun, too
        self.seen: dict[int, np.ndarray] = {}  # how often each program has run an op

    def event(self, op: Op, batch: Batch) -> None:
        if op.name == "asm" and not op.attrs["pure"]:
            raise NotStatic(f"the inline assembly {line(op)} may access memory")
        if op.name not in ACCESSES:
            return
        tile = self.evaluator.accessed(op, batch)
        for value, what in ((tile.address, "the address"), (tile.mask, "the mask")):
            if isinstance(value, Unknown):
                raise NotStatic(f"{what} of the {op.name} {line(op)} depends on {value.why}")
        assert not isinstance(tile.address, Unknown)
        assert not isinstance(tile.mask, Unknown)
        x, y, _ = self.evaluator.grid
        programs = batch.ids[0] + x * (batch.ids[1] + y * batch.ids[2])
        seen = self.seen.setdefault(op.id, np.zeros(self.log.launch.programs, np.int32))
        runs = runs_of(tile.address, tile.mask, tile.shape, tile.element_bytes, programs, seen[programs])
        seen[programs] += 1
        self.log.executed[programs] += 1
        self.log.active[np.unique(runs.programs)] += 1
        if len(runs):
            self.add(op, runs, tile.active(batch.size))
        if self.log.runs > self.budget.runs or time.monotonic() > self.limit:
            raise BudgetExceeded

    def add(self, op: Op, runs: Any, issued: int) -> None:
        """Adds the runs to the logs of their arrays: usually one."""
        windows = runs.starts >> WINDOW_BITS
        numbers = windows[:1] if (windows == windows[0]).all() else np.unique(windows)
        for number in numbers.tolist():
            array = self.evaluator.launch.by_parameter.get(number - 1)
            if array is None:
                raise NotStatic(f"the address of the {op.name} {line(op)} lies in no array")
            mine = runs if len(numbers) == 1 else runs.chosen(np.flatnonzero(windows == number))
            shift = window(array.parameter) - (array.address - array.low)
            self.log.add(op, array, mine.scaled(shift, 1), issued if len(numbers) == 1 else 0)

    def forget(self, batch: np.ndarray) -> None:
        """Removes the programs of a batch that was not followed to its end."""
        for accesses in self.log.accesses.values():
            accesses.parts = [p.chosen(np.flatnonzero(~np.isin(p.programs, batch))) for p in accesses.parts]
        self.log.executed[batch] = self.log.active[batch] = 0
