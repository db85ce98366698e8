"""Launches that can be repeated as often as one likes without changing anything that the user has.

A Replay holds a kernel, its grid and its arguments, of which the memory that the kernel writes is a copy. `work` is what it does (see
`work`), from which a time becomes a rate. `captured_by(call)` has the replays of the launches that a call would make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blocknb.errors import LaunchError
from blocknb.profile.work import Work, count, scalars_of
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kernel import Kernel, Launch
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import Grid, captured


@dataclass(frozen=True, eq=False)
class Replay:
    """One launch. `given` are arguments by name, `arguments` their summaries."""

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


def work_of(compiled: Compiled, arguments: Mapping[str, Mapping[str, Any]], grid: Grid) -> Work:
    """The work of a launch from what is kept of it."""
    stages = compiled.trace.stages
    if not len(stages):
        why = "the stages of the compilation are not there"
        return Work(None, None, None, {}, {}, {}, None, 0, 0, False, why, why)
    sizes = {name: int(summary.get("bytes", 0)) for name, summary in arguments.items() if "bytes" in summary}
    return count(stages[0].after, scalars_of(arguments), grid, sizes)


def captured_by(call: Callable[[], Any]) -> list[Replay]:
    """What a call launches, nothing of which is launched now. Raises LaunchError where a launch cannot be repeated."""
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
