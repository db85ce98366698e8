"""Records what a cell launches: one KernelRecord per kernel, and one Specialisation for each compiled form of it.

An Observation listens to `runtime.launch_context.observers` while a `%%blockkernel` cell runs. It keeps numbers and compiled code.
For `--check` it also keeps copies, from before the newest launch, of the arrays that a kernel both loads and stores. The newest
KernelRecord of each kernel stays reachable, so that naming the kernel in a later cell shows its card again.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from blocknb import forks
from blocknb.profile.timing import Timing, summary
from blocknb.runtime import launch_context
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kernel import Kernel, Launch
from blocknb.runtime.launch_context import Grid, this_thread
from blocknb.runtime.launch_snapshot import LaunchCopies, LaunchSnapshot

KEPT_TIMES = 10_000  # per specialization; later launches are counted, but their times are dropped
MOST_COPIED = 1 << 28  # bytes of the copies that one cell makes for `--check`


#: The compiled code that was launched before. Its next launch is warm.
_launched: weakref.WeakSet[Compiled] = weakref.WeakSet()


@dataclass(eq=False)
class Specialisation:
    """One compiled form of a kernel and its launches. `arguments`, `grid` and `snapshot` are those of the newest launch.

    `first_cold`: the first of the launches was the first one of its code, which includes loading the code and touching new memory.
    `before` has the copies of `Observation` that belong to the newest launch. `repeats` are the times of repetitions on copies, and `why`
    says why there are none (see `repeats`); both are empty before. `busy` says why the times may be wrong."""

    compiled: Compiled
    device: int
    grid: Grid = (0, 0, 0)
    arguments: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    launches: int = 0
    milliseconds: list[float] = field(default_factory=list)
    snapshot: LaunchSnapshot | None = None
    before: LaunchCopies | None = None
    first_cold: bool = True
    repeats: Timing | None = None
    why: str = ""
    busy: str = ""

    def __repr__(self) -> str:
        return f"<Specialisation of {self.compiled.name}: {self.launches} launches, grid {self.grid}>"

    def add(self, launch: Launch) -> None:
        self.grid, self.arguments, self.snapshot = launch.grid, launch.arguments, launch.snapshot
        if not self.launches:
            self.first_cold = self.compiled not in _launched
            _launched.add(self.compiled)
        self.launches += 1
        if len(self.milliseconds) < KEPT_TIMES:
            self.milliseconds.append(launch.milliseconds)

    @property
    def first(self) -> Timing | None:
        """The time of the first launch."""
        return summary(self.milliseconds[:1], self.first_cold) if self.milliseconds else None

    @property
    def timing(self) -> Timing | None:
        """The time of a launch as a card states it: of the repetitions, else of the launches after the first, else of the first."""
        if self.repeats is not None:
            return self.repeats
        return summary(self.milliseconds[1:], cold=False) if len(self.milliseconds) > 1 else self.first


@dataclass(eq=False)
class KernelRecord:
    """One kernel as a cell used it. `specialisations` are in the order of their first launch; `latest` was launched last."""

    kernel: Kernel
    specialisations: dict[int, Specialisation] = field(default_factory=dict)
    latest: Specialisation | None = None

    def __repr__(self) -> str:
        return f"<KernelRecord of {self.kernel.__name__}: {self.launches} launches>"

    @property
    def launches(self) -> int:
        return sum(s.launches for s in self.specialisations.values())

    def add(self, launch: Launch, before: LaunchCopies | None = None) -> None:
        key = id(launch.compiled)  # a Compiled lives as long as its Specialisation, which holds it
        found = self.specialisations.get(key)
        if found is None:
            found = self.specialisations[key] = Specialisation(launch.compiled, launch.device)
        found.add(launch)
        found.before = before
        self.latest = found

    def drop_copies(self) -> None:
        """Frees what the Observation copied for `--check`."""
        for made in self.specialisations.values():
            made.before = None


# The newest record is in its kernel's own dictionary; a global table would keep every redefined kernel alive.
_NEWEST = "_notebook_record"


def record_of(kernel: Kernel) -> KernelRecord | None:
    """The newest record of a kernel: of the last observed cell that launched it, or of a later compilation."""
    found, compiled = vars(kernel).get(_NEWEST), kernel.latest
    if compiled is None:
        return None
    if found is not None and found.latest is not None and found.latest.compiled is compiled:
        return found
    bare = KernelRecord(kernel)
    bare.latest = Specialisation(compiled, -1)
    return bare


@contextlib.contextmanager
def without_recording(kernel: Kernel) -> Iterator[None]:
    """Inside, launches and compilations leave the kernel's newest record, `latest` and `last_launch` unchanged, and print nothing."""
    before = kernel.latest, kernel.last_launch, vars(kernel).get(_NEWEST)
    muted_before, this_thread.muted = this_thread.muted, True
    try:
        yield
    finally:
        this_thread.muted = muted_before
        kernel.latest, kernel.last_launch, vars(kernel)[_NEWEST] = before


class Observation:
    """Collects launches between `start` and `stop` in `records`, by kernel in the order of first launches."""

    def __init__(self, copies: bool = False) -> None:
        self.records: dict[Kernel, KernelRecord] = {}
        self._copies, self._copied = copies, 0
        self._before: dict[int, LaunchCopies] = {}  # by thread, from the beginning of a launch to its end
        self._lock = threading.Lock()
        forks.renewed(self, _lock=threading.Lock)  # a cell may launch from several threads

    def start(self) -> None:
        launch_context.observers.append(self._record_launch)
        if self._copies:
            launch_context.preludes.append(self._begins)

    def stop(self) -> None:
        if self._record_launch in launch_context.observers:
            launch_context.observers.remove(self._record_launch)
        if self._begins in launch_context.preludes:
            launch_context.preludes.remove(self._begins)
        self._before.clear()  # of launches that failed

    def _begins(self, kernel: Kernel, compiled: Compiled, snapshot: LaunchSnapshot | None) -> None:
        updated = compiled.stored & compiled.loaded
        self._before.pop(threading.get_ident(), None)
        if snapshot is None or not updated:
            return
        self._copied += snapshot.copied_bytes(updated)
        if self._copied <= MOST_COPIED and (copies := snapshot.copies(updated)) is not None:
            self._before[threading.get_ident()] = copies

    def _record_launch(self, launch: Launch) -> None:
        with self._lock:
            record = self.records.get(launch.kernel)
            if record is None:
                record = self.records[launch.kernel] = vars(launch.kernel)[_NEWEST] = KernelRecord(launch.kernel)
            record.add(launch, self._before.pop(threading.get_ident(), None))
