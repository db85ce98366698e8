"""Measures the launches of generated kernels during a recorded run: each on copies of what it writes, just before the real launch.

At that moment the arguments have the contents of the step: Inductor later reuses buffers for other values. A copy takes the whole storage
of a tensor, so its strides and overlaps stay. The copies get their first contents again before each repetition, outside of the time. The
caches are flushed. On a GPU, events of torch enclose the launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from blocknb.errors import KernelError
from blocknb.language.types import Pointer
from blocknb.profile import ceilings
from blocknb.profile.replay import work_of
from blocknb.profile.roof import nearest
from blocknb.profile.timing import Timing, TorchClock, clock_of, interleaved
from blocknb.profile.work import Work
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kinds import HOST
from blocknb.torch.inductor.kept import ArgumentKeeper, KeptArguments

ROUNDS, SECONDS = 20, 0.1  # per kernel
MOST_SECONDS = 60.0  # of all measurements of one record


@dataclass(frozen=True, eq=False)
class MeasuredLaunch:
    """A launch that was measured. `arguments` are summaries by name: bytes of tensors, values of numbers. `time` is None if the launch was
    not repeated; `why` says why. `kept` are the arguments before the launch; without them `why_not_kept` says why."""

    compiled: Compiled
    grid: tuple[int, int, int]
    device: int
    arguments: dict[str, dict[str, Any]]
    time: Timing | None = None
    why: str = ""
    kept: KeptArguments | None = None
    why_not_kept: str = ""

    @cached_property
    def work(self) -> Work:
        """The operations and unique bytes, counted from the IR at the first use."""
        stages = self.compiled.trace.stages
        dots = bool(stages) and any(op.name == "dot" for op in stages[0].after.ops())
        return work_of(self.compiled, self.arguments, self.grid, quick=not dots)

    @cached_property
    def roof(self) -> tuple[str | None, float | None]:
        """The ceiling that bounds the launch first, and the percentage of it that the time reaches; (None, None) if unknown. Without the
        bytes or the operations it is unknown which ceiling comes first."""
        limits = known_ceilings(self.device)
        if limits is None or self.time is None or None in (self.work.unique_bytes, self.work.flops):
            return None, None
        return nearest(self.work, self.time.median, self.compiled, limits)


def known_ceilings(device: int) -> Any:
    """The ceilings of a device if they were measured before, else None. Nothing is measured here."""
    try:
        return ceilings.known(device)
    except (ImportError, KernelError):  # the name of a GPU comes from CuPy, which may be missing
        return None


@dataclass(eq=False)
class LaunchMeter:
    """Measures launches, equal ones once: the same code, grid, shapes and numbers. `spent` is in seconds."""

    keeper: ArgumentKeeper = field(default_factory=ArgumentKeeper)
    spent: float = 0.0
    _known: dict[Any, MeasuredLaunch] = field(default_factory=dict)

    @cached_property
    def _cpu_clock(self) -> Callable[[Callable[[], Any]], float]:
        return clock_of(False)

    def measure(
        self, compiled: Compiled, start: Callable[..., None], grid: tuple[int, int, int], values: Sequence[Any]
    ) -> MeasuredLaunch:
        """Measures the launch `start(grid, raws, values)`, which must not have run yet."""
        arguments = {
            name: _summary(value, kind) for (name, kind), value in zip(compiled.parameters, values, strict=True)
        }
        key = id(compiled), grid, repr(arguments)
        if key not in self._known:
            begin = time.perf_counter()
            measured = self._measured(compiled, start, grid, values, arguments)
            kept, why = self.keeper.keep(compiled, values)
            self._known[key] = replace(measured, kept=kept, why_not_kept=why)
            self.spent += time.perf_counter() - begin
        return self._known[key]

    def _measured(
        self, compiled: Compiled, start: Callable[..., None], grid: Any, values: Sequence[Any], arguments: Any
    ) -> MeasuredLaunch:
        import torch

        gpu = compiled.target.is_gpu
        device = torch.cuda.current_device() if gpu else HOST
        made = lambda *found: MeasuredLaunch(compiled, grid, device, arguments, *found)  # noqa: E731
        if gpu and torch.cuda.is_current_stream_capturing():
            return made(None, "CUDA graphs capture the launch, which cannot be repeated meanwhile")
        if self.spent > MOST_SECONDS:
            return made(None, f"the measurements have taken {MOST_SECONDS:.0f} s, their limit")
        try:
            written = _WrittenCopies(compiled, values)
            clock = TorchClock(True) if gpu else self._cpu_clock
        except torch.OutOfMemoryError:
            return made(None, "there is no memory for copies of what the kernel writes")
        copies = written.values
        raws = [value.data_ptr() if hasattr(value, "data_ptr") else value for value in copies]
        call = lambda: start(grid, raws, copies)  # noqa: E731

        def restored(call: Callable[[], Any]) -> float:
            written.restore()
            return clock(call)

        times = interleaved({"": call}, gpu=gpu, rounds=ROUNDS, warmup=1, seconds=SECONDS, clock=restored)
        return made(times.get(""), "" if times else "the measurement was interrupted")


class _WrittenCopies:
    """The arguments of a launch, with copies of the storages that it writes. `restore` gives them the contents of the originals."""

    def __init__(self, compiled: Compiled, values: Sequence[Any]):
        import torch

        named = [(name, value) for (name, _), value in zip(compiled.parameters, values, strict=True)]
        self.pairs: dict[int, tuple[Any, Any]] = {}
        for name, value in named:
            if name in compiled.stored and (own := value.untyped_storage()).data_ptr() not in self.pairs:
                self.pairs[own.data_ptr()] = own.clone(), own

        def copied(value: Any) -> Any:
            pair = self.pairs.get(value.untyped_storage().data_ptr()) if hasattr(value, "untyped_storage") else None
            if pair is None:
                return value
            empty = torch.empty(0, dtype=value.dtype, device=value.device)
            return empty.set_(pair[0], value.storage_offset(), value.size(), value.stride())

        self.values = [copied(value) for _, value in named]

    def restore(self) -> None:
        for copy, own in self.pairs.values():
            copy.copy_(own)


def _summary(value: Any, kind: Any) -> dict[str, Any]:
    if isinstance(kind, Pointer):
        shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
        size = value.numel() * value.element_size()
        return {"kind": "array", "type": str(kind), "shape": shape, "strides": strides, "bytes": size}
    return {"kind": "scalar", "type": str(kind), "value": value}


def step_times(steps: dict[str, Callable[[], Any]], gpu: bool) -> Any:
    """The times of whole steps in turns, with warm caches, as Timings by name."""
    clock = TorchClock(False) if gpu else None
    return interleaved(steps, gpu=gpu, rounds=20, warmup=2, seconds=2.0, cold=False, clock=clock)
