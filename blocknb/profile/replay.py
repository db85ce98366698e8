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
from blocknb.profile.work import BUDGET, QUICK, Work, count
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kernel import Kernel, Launch
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import Grid, captured
from blocknb.runtime.prepared_launch import PreparedLaunch, prepare
from blocknb.runtime.summary import scalars_of
from blocknb.trace import Stages


@dataclass(frozen=True, eq=False)
class Replay:
    """One launch. `given` holds the arguments by name, `arguments` their summaries; `ready` is the launch if it is prepared already."""

    kernel: Kernel
    compiled: Compiled
    grid: Grid
    given: Mapping[str, Any]
    arguments: Mapping[str, Mapping[str, Any]]
    device: int
    ready: PreparedLaunch | None = None

    def __call__(self) -> None:
        """Starts the kernel, without the work of Python that precedes a launch."""
        self._prepared()

    @cached_property
    def _prepared(self) -> PreparedLaunch:
        return self.ready or prepare(self.kernel, self.grid, self.given)

    @property
    def gpu(self) -> bool:
        return self.device != HOST

    @cached_property
    def work(self) -> Work:
        return work_of(self.compiled, self.arguments, self.grid)


def work_of(compiled: Compiled, arguments: Mapping[str, Mapping[str, Any]], grid: Grid, quick: bool = False) -> Work:
    """The work of a launch, from its compilation, the summaries of its arguments and its grid.

    All views of a launch ask here, and the launch is counted once. A quick count has a smaller budget, and no bytes if there are dots.
    """
    stages = compiled.trace.stages
    if not len(stages):
        why = "the trace of the compilation has no stages"
        return Work(None, None, None, exact=False, why_flops=why, why_bytes=why)
    func, scalars = stages[0].after, scalars_of(arguments)
    sizes = {name: int(summary.get("bytes", 0)) for name, summary in arguments.items() if "bytes" in summary}
    key = (grid, tuple(scalars.items()), tuple(sizes.items()))
    last, found, was_quick = _COUNTED.get(stages, (None, None, False))
    if found is None or last != key or (was_quick and not quick):
        unique = not quick or all(op.name != "dot" for op in func.ops())
        found = count(func, scalars, grid, sizes, QUICK if quick else BUDGET, unique)
        _COUNTED[stages] = (key, found, quick)
    return found


#: For the stages of each compilation its newest launch (grid, scalars, sizes), the work, and whether the count was quick. A kernel that is
#: defined again with the same source has another Compiled, but the same stages.
_COUNTED: WeakKeyDictionary[Stages, tuple[Any, Work, bool]] = WeakKeyDictionary()


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
