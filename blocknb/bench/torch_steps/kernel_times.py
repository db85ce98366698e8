"""The times of generated kernels on the GPU, from torch's profiler (CUPTI), while captured steps are replayed in turns.

The events of a replay come in the order of its launches. So the events with names of generated kernels are divided among the replays by
their numbers, which are known.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Launched = Mapping[str, Sequence[str]]  # names of launched kernels, by peer


def profiled(
    calls: Mapping[str, Callable[[], Any]], names: Launched, flush: Callable[[], Any], rounds: int
) -> dict[str, list[list[float]]]:
    """The microseconds of each launch in `names`, by peer and round. Raises ValueError if the profiler saw other launches."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    order: list[str] = []
    shuffled = random.Random(0)
    with profile(activities=[ProfilerActivity.CUDA]) as session:
        for _ in range(rounds):
            for peer in shuffled.sample(list(calls), len(calls)):
                order.append(peer)
                flush()
                calls[peer]()
                torch.cuda.synchronize()
    events = [(e.start_ns(), e.name(), e.duration_ns()) for e in session.profiler.kineto_results.events()]
    return divided(events, names, order)


def divided(
    events: Sequence[tuple[int, str, int]], names: Launched, order: Sequence[str]
) -> dict[str, list[list[float]]]:
    """The microseconds of each launch by peer and round, from (start, name, duration) in ns. `order` has the peer of each replay. Raises
    ValueError if other kernels ran, or in another order."""
    wanted = {name for peer in names for name in names[peer]}
    own = sorted(event for event in events if event[1] in wanted)
    expected = [name for peer in order for name in names[peer]]
    if [name for _, name, _ in own] != expected:
        raise ValueError(
            f"the profiler saw {len(own)} launches of generated kernels, or another order of {len(expected)}"
        )
    found: dict[str, list[list[float]]] = {peer: [] for peer in names}
    at = 0
    for peer in order:
        count = len(names[peer])
        found[peer].append([duration / 1e3 for _, _, duration in own[at : at + count]])
        at += count
    return found


def by_kernel(times: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, tuple[float, int]]:
    """(the sum of the medians in microseconds, launches) of each kernel name."""
    found: dict[str, tuple[float, int]] = {}
    for name, values in zip(names, zip(*times, strict=True), strict=True):
        total, count = found.get(name, (0.0, 0))
        found[name] = total + statistics.median(values), count + 1
    return found


def sums(times: Sequence[Sequence[float]]) -> list[float]:
    """The time inside generated kernels by round, in milliseconds."""
    return [sum(launches) / 1e3 for launches in times]
