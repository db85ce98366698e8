"""Measures one step: compiles it by both compilers, checks their results, and times both in turns, as CUDA graphs with a cold L2 cache.

On a CPU there is no CUDA graph, and eager takes the place of Triton: the check is the same, and the ratio says little.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

from blocknb.bench.suite.measure import Ratio, one_line, ratio_of
from blocknb.bench.torch_steps import errors, kernel_times
from blocknb.bench.torch_steps.definition import RandomTensors, TorchStep
from blocknb.bench.torch_steps.peers import EAGER, OURS, TRITON, CapturedStep, compiled, launches
from blocknb.profile.timing import CleanTorchClock, Timing, TorchClock, interleaved, summary


@dataclass
class TorchRow:
    """The measurement of a step. Times are by peer: of the whole step (`times`), and inside its generated kernels (`inside`), both in
    milliseconds. `kernels` has (microseconds, launches) by peer and kernel. `launched` has the launched kernels by peer, `configs` their
    configurations, and `by_blocknb` how many of ours blocknb compiled. `problems` says why a time is missing."""

    step: TorchStep
    peer: str
    times: dict[str, Timing] = field(default_factory=dict)
    inside: dict[str, Timing] = field(default_factory=dict)
    kernels: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    launched: dict[str, list[str]] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    by_blocknb: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> Ratio | None:
        """The peer's time of a step over ours."""
        return _ratio(self.times, self.peer)

    @property
    def kernel_ratio(self) -> Ratio | None:
        """The peer's time inside generated kernels over ours."""
        return _ratio(self.inside, self.peer)


def _ratio(times: dict[str, Timing], peer: str) -> Ratio | None:
    ours, other = times.get(OURS), times.get(peer)
    return None if ours is None or other is None else ratio_of(ours, other)


@dataclass
class TorchSession:
    """The state that all steps of a run share. `device` is "cuda" or "cpu"."""

    device: str
    rounds: int = 30
    seed: int = 1
    clean: bool = False
    cancelled: bool = False

    @property
    def peer(self) -> str:
        return TRITON if self.device == "cuda" else EAGER


def measure(session: TorchSession, step: TorchStep) -> TorchRow:
    """Checks and times a step. A compiler that fails, or gives wrong results, is not timed, and the row has the reason."""
    import torch

    row = TorchRow(step, session.peer)
    torch._dynamo.reset()
    random = RandomTensors(session.device, session.seed)
    first, fresh = step.draw(random), step.draw(random)
    exact = step.exact(fresh)
    eager = [value.clone() for value in step.results(step.bound(), fresh)]
    row.errors[EAGER] = errors.largest(eager, exact, eager)
    calls: dict[str, CapturedStep] = {}
    for peer in (OURS, session.peer):
        try:
            captured = _captured(row, peer, first)
            got = captured.on(fresh)
            row.errors[peer] = errors.largest(got, exact, eager)
            if why := errors.wrong(got, exact, eager, random.dtype):
                row.problems[peer] = f"wrong: {why}"
            else:
                calls[peer] = captured
        except Exception as error:  # a compiler may raise anything; the other one is measured anyway
            row.problems[peer] = f"failed: {one_line(error)}"
    del exact, eager
    _clean_up()
    _timed(session, row, calls)
    calls.clear()
    _clean_up()
    return row


def _captured(row: TorchRow, peer: str, inputs: list[Any]) -> CapturedStep:
    """Compiles and captures a step. Notes the kernels that a call launches."""
    run, step = compiled(row.step, peer), row.step
    step.results(run, inputs)
    with launches() as found:
        step.results(run, inputs)
    row.launched[peer] = [one.name for one in found]
    row.configs[peer] = {one.name: one.config for one in found}
    if peer == OURS:
        row.by_blocknb = sum(one.compiler == OURS for one in found)
    elif any(one.compiler == OURS for one in found):
        raise ValueError("blocknb compiled kernels of the other backend")
    return CapturedStep(step, run, inputs)


def _timed(session: TorchSession, row: TorchRow, calls: dict[str, CapturedStep]) -> None:
    gpu = session.device == "cuda"
    clock = (
        (CleanTorchClock if session.clean else TorchClock)(True) if gpu else None
    )  # a new one: it knows calls by their ids
    timings = interleaved(calls, gpu=gpu, rounds=session.rounds, warmup=2, clock=clock)
    session.cancelled = session.cancelled or timings.cancelled
    row.times = dict(timings)
    if clock is None or not calls:
        return
    names = {peer: row.launched[peer] for peer in calls}
    try:
        found = kernel_times.profiled(calls, names, clock.fill, max(session.rounds // 3, 3))
    except Exception as error:  # no CUPTI: the times of whole steps stand alone
        row.problems["profiler"] = one_line(error)
        return
    for peer, times in found.items():
        row.inside[peer] = summary(kernel_times.sums(times))
        row.kernels[peer] = kernel_times.by_kernel(times, names[peer])


def _clean_up() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
