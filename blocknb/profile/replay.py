"""Launches that can be repeated for measurements without a change to the arrays of the user.

A Replay holds a kernel, its grid and its arguments. The arrays that the kernel writes are copies. `Replay.work` counts the work of the
launch, from which a measured time gives a rate. `captured_by(call)` returns the replays of the launches that a call would make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from blocknb.errors import LaunchError
from blocknb.profile.work import BUDGET, Work, count, scalars_of
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kernel import Kernel, Launch
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import Grid, captured


@dataclass(frozen=True, eq=False)
class Replay:
    """One launch. `given` holds the arguments by name, `arguments` their summaries."""

    kernel: Kernel
    compiled: Compiled
    grid: Grid
    given: Mapping[str, Any]
    arguments: Mapping[str, Mapping[str, Any]]
    device: int

    def __call__(self) -> None:
        self.kernel.launch(self.grid, **self.given)

    @property
    def gpu(self) -> bool:
        return self.device != HOST

    @cached_property
    def work(self) -> Work:
        return work_of(self.compiled, self.arguments, self.grid)


def work_of(compiled: Compiled, arguments: Mapping[str, Mapping[str, Any]], grid: Grid, budget: float = BUDGET) -> Work:
    """The work of a launch, from its compilation, the summaries of its arguments and its grid.

    All views of a launch ask here, and the launch is counted once. A count with a smaller budget is replaced if it is not exact.
    """
    stages = compiled.trace.stages
    if not len(stages):
        why = "the trace of the compilation has no stages"
        return Work(None, None, None, exact=False, why_flops=why, why_bytes=why)
    sizes = {name: int(summary.get("bytes", 0)) for name, summary in arguments.items() if "bytes" in summary}
    scalars = scalars_of(arguments)
    known = _COUNTED.setdefault(compiled, {})
    key = (grid, tuple(scalars.items()), tuple(sizes.items()))
    found, spent = known.get(key, (None, 0.0))
    if found is None or (not found.exact and spent < budget):
        found = count(stages[0].after, scalars, grid, sizes, budget)
        known.clear()  # the newest launch of a compilation is the one that is shown
        known[key] = (found, budget)
    return found


#: The work of the newest launch by compilation, with the budget of its count.
_COUNTED: WeakKeyDictionary[Compiled, dict[Any, tuple[Work, float]]] = WeakKeyDictionary()


def captured_by(call: Callable[[], Any]) -> list[Replay]:
    """Runs a call and captures its launches instead of starting them. Raises LaunchError if a written array cannot
    be copied."""
    found: list[Replay] = []

    def take(launch: Launch) -> None:
        given = launch.snapshot.arguments(launch.compiled.stored) if launch.snapshot is not None else None
        if given is None:
            raise LaunchError(
                f"{launch.kernel.__name__} cannot be measured: an array that it writes cannot be copied",
                hint="launch it on NumPy arrays, CuPy arrays or tensors",
            )
        found.append(Replay(launch.kernel, launch.compiled, launch.grid, given, launch.arguments, launch.device))

    with captured(take):
        call()
    return found
