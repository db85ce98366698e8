"""Tuning on a Dask cluster: sends configurations to the workers, and gathers their times by kind of device.

Dask moves the data and runs the tasks; this module decides which worker measures what. Each worker measures a few configurations at a
time, as on one device (`race`). Times of different models are never compared: each kind of device measures all configurations, and
gets a choice of its own. Workers of one kind share the work, and tell each other the best median, which stops slower configurations.
First, each worker compiles its share: one long parallel compilation is faster than one per task. It measures nothing meanwhile. The front
end holds Python's lock for milliseconds, and a launch that waits for it would count as time of the kernel. Then it measures its share, and
helps others with theirs. At the end, one worker of each kind runs the fastest configurations in turns.

If a worker dies, another one measures its configurations. An interrupt keeps all results, and the next search continues.
"""

from __future__ import annotations

import collections
import contextlib
import math
import queue
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from blocknb.runtime import parallel_compile
from blocknb.tune import measuring_worker, store
from blocknb.tune.config import Config
from blocknb.tune.measuring_worker import Measurement, Opened, Parcel
from blocknb.tune.pruning import AutotunerError
from blocknb.tune.race import FINALISTS, Race
from blocknb.tune.searches import SharedTrials
from blocknb.tune.tuning import MEASURED, Tuning, as_keywords

MOST = 16  # configurations of a task, which a killed worker loses
SHARE = 4  # tasks per worker, so that fast and slow workers end together
POLL_SECONDS = 0.5  # seconds between two looks at the list of workers
BROADCAST_RATIO = 0.9  # workers hear of a median below this multiple of the best one that they know
FETCHING = 5.0  # seconds for the result of a finished task
KEEPING = 10.0  # seconds in which workers write the choice
KEPT = 2**20  # bytes of a parcel that goes through the scheduler, where Dask is slow with large data
#: Addresses of schedulers on this machine, whose workers usually are, too.
LOCAL = ("inproc://", "tcp://127.0.0.1", "tls://127.0.0.1")
PATIENCE = 300.0  # seconds without any worker before the search fails; a cluster may queue new ones


def tuned(
    client: Any, tuner: Any, race: Race, shared: SharedTrials, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Tuning]:
    """Tunes on the cluster of a client. Returns a Tuning by kind of device.

    The results for the kind that a launch of these arguments runs on go into `race`. If the cluster has no such device, a warning names
    the kind that takes its place. Raises AutotunerError without workers or cloudpickle, and the errors of launches.
    """
    try:
        import cloudpickle
    except ImportError:
        raise AutotunerError("tuning on a cluster needs cloudpickle", hint='pip install "blocknb[dask]"') from None

    data = cloudpickle.dumps((tuner, shared.configs, args, {n: v for n, v in kwargs.items() if n != "warmup"}))
    search = ClusterSearch(client, tuner.__name__, shared, data, race.kinds)
    here = store.device_kind(store.gpu_of(tuner.arg_names, args, kwargs))
    begin = time.perf_counter()
    try:
        try:
            search.run()
        finally:
            for one in race.kinds.values():
                one.seconds += time.perf_counter() - begin
            if race.kinds:
                chosen = here if here in race.kinds else max(race.kinds, key=lambda kind: len(race.kinds[kind].values))
                race.take(race.kinds[chosen])
        found = {kind: shared.tuning(race.kinds[kind]) for kind in search.kinds}
        search.keep({kind: one for kind, one in found.items() if one.best is not None and not one.from_disk})
    finally:
        search.close()
    if chosen != here:
        warnings.warn(
            f"the cluster has no {here}; launches here use the choice of {chosen}", RuntimeWarning, stacklevel=2
        )
    return found


@dataclass(eq=False)
class Member:
    """A worker of the cluster, with the task that it runs. `share` are the numbers that it has compiled at the start of a search."""

    address: str
    opened: Opened | None = None
    future: Any = None
    numbers: tuple[int, ...] = ()
    final: bool = False
    measures: bool = False
    share: frozenset[int] = frozenset()


@dataclass(eq=False)
class DeviceSearch:
    """The search on one kind of device. `pending` are the numbers that no worker has measured, `final` those of the last comparison.

    `low_spill`: a worker has code that does not spill heavily, so all workers leave out what does."""

    kind: str
    race: Race
    pending: collections.deque[int] = field(default_factory=collections.deque)
    final: tuple[int, ...] | None = None
    low_spill: bool = False
    seen: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        #: The least median in milliseconds with its configuration.
        self.best: tuple[float, Config | None] = math.inf, None
        for config in [*self.race.values, *self.race.answers]:
            self.update_best(config)

    def update_best(self, config: Config) -> None:
        """Compares a new trial with the best one."""
        trial = self.race.trial(config)
        if trial.status == MEASURED and trial.median < self.best[0]:
            self.best = trial.median, config


class ClusterSearch:
    """One search. `races` holds what earlier searches have measured, by kind of device, and is continued."""

    def __init__(self, client: Any, kernel: str, shared: SharedTrials, data: bytes, races: dict[str, Race]):
        self.client, self.kernel, self.configs, self.data = client, kernel, shared.configs, data
        first = {id(config) for config in shared.tried}
        self.tried = [number for number, config in enumerate(self.configs) if id(config) in first]
        self.name, self.races = uuid.uuid4().hex, races
        self.members: dict[str, Member] = {}
        self.kinds: dict[str, DeviceSearch] = {}
        self.done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sent: Any = None
        self.last_poll, self.without = -math.inf, time.monotonic()
        self.step: Callable[[str], None] = lambda text: None

    def run(self) -> None:
        """Measures all configurations on every kind of device. Raises AutotunerError without workers, and the errors of launches."""
        while any(member.opened is None for member in self._poll_workers()) or not self.members:
            self._finish_one()
        total = sum(len(one.pending) for one in self.kinds.values())
        with parallel_compile.shows(total, f"{self.kernel}: tuning on {len(self.members)} workers") as self.step:
            self._prepare()
            while self._assign():
                self._finish_one()
                self._poll_workers()

    def keep(self, tunings: Mapping[str, Tuning]) -> None:
        """Writes each choice once into every cache folder of the workers. A worker that dies meanwhile has none."""
        folders = {(m.opened.folder, m.opened.kind): m for m in self.members.values() if m.opened is not None}
        tasks = [
            self.client.submit(
                measuring_worker.keep, self.name, self.sent, tunings[kind], workers=[member.address], pure=False
            )
            for (folder, kind), member in folders.items()
            if folder and kind in tunings
        ]
        end = time.monotonic() + KEEPING
        while time.monotonic() < end and not all(task.done() for task in tasks):
            time.sleep(0.01)

    def close(self) -> None:
        """Frees the arguments of the search on the workers, and ends what still runs."""
        self.client.cancel([member.future for member in self.members.values() if member.future is not None])
        self._broadcast(measuring_worker.stop, self.name)

    # ---- workers

    def _poll_workers(self) -> list[Member]:
        """Looks from time to time which workers there are. The configurations of one that is gone become pending."""
        now = time.monotonic()
        if now - self.last_poll >= POLL_SECONDS:
            self.last_poll, there = now, set(self.client.nthreads())
            for address in [address for address in self.members if address not in there]:
                self._requeue(self.members.pop(address))
            self.members.update({address: Member(address) for address in there - self.members.keys()})
            self._check(now)
            new = [member for member in self.members.values() if member.opened is None and member.future is None]
            for member in new if new and self._send() else ():
                self._submit(member, measuring_worker.open_search)
        return list(self.members.values())

    def _check(self, now: float) -> None:
        """Waits some time for workers to return, and then gives up a kind of device, or the search."""
        if self.members:
            self.without = now
        elif now - self.without > PATIENCE:
            raise AutotunerError(f"no worker is left to tune {self.kernel}", hint="start workers, and tune again")
        for search in self.kinds.values():
            if any(m.opened is not None and m.opened.kind == search.kind for m in self.members.values()):
                search.seen = now
            elif search.pending and now - search.seen > PATIENCE:
                text = f"no {search.kind} is left: {len(search.pending)} configurations of {self.kernel} are not measured there"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
                search.pending.clear()

    def _requeue(self, member: Member) -> None:
        if member.opened is not None:
            search = self.kinds[member.opened.kind]
            if member.final:
                search.final = None
            else:
                search.pending.extendleft(reversed(member.numbers))
            if member.measures:  # another worker of the device takes over
                twins = (m for m in self.members.values() if m.opened and m.opened.device == member.opened.device)
                if (twin := next(twins, None)) is not None:
                    twin.measures = True
        if member.future is not None:
            self.client.cancel([member.future])
        member.future, member.numbers = None, ()

    def _send(self) -> bool:
        """Sends the parcel, which each worker gets once. Returns False if a worker dies meanwhile.

        The scheduler keeps a small one, also after all workers have died. A large one lies on a worker, from which the others get it."""
        if self.sent is None:
            parcel = Parcel(np.frombuffer(self.data, np.uint8))  # Dask sends the memory of an array without copies
            if len(self.data) <= KEPT:
                self.sent = self.client.submit(Parcel, parcel.data, key=f"tuning-{uuid.uuid4().hex}")
                return True
            local = self.client.scheduler.address.startswith(LOCAL)
            for direct in (
                (True, None) if local else (None,)
            ):  # a tunnel has such an address, too; then the scheduler sends it
                with contextlib.suppress(OSError, KeyError):  # of Dask, which looks up workers that are gone
                    self.sent = self.client.scatter(parcel, hash=False, direct=direct, timeout=POLL_SECONDS)
                    break
        return self.sent is not None

    def _submit(self, member: Member, task: Callable[..., Any], *args: Any) -> None:
        uses = {"GPU": 1} if member.opened and "GPU" in member.opened.resources else None
        member.future = self.client.submit(
            task, self.name, self.sent, *args, workers=[member.address], resources=uses, pure=False, retries=0
        )
        member.future.add_done_callback(lambda future: self.done.put((member, future)))

    def _broadcast(self, function: Callable[..., None], *args: Any) -> None:
        """Calls a function on all workers, next to their tasks, and waits for none."""
        addresses = list(self.members)

        async def call() -> None:
            with contextlib.suppress(OSError):  # the client may close meanwhile, and then nobody waits for the workers
                await self.client.run(function, *args, workers=addresses, on_error="ignore")

        if addresses:
            self.client.loop.add_callback(call)

    # ---- work

    def _prepare(self) -> None:
        """Makes each worker compile its share of the configurations. If it dies, they are compiled when they are measured."""
        for search in self.kinds.values() if self._send() else ():
            team = self._team(search)
            for place, member in enumerate(team):
                member.share = frozenset(list(search.pending)[place :: len(team)])
                if len(member.share) > 1:
                    self._submit(member, measuring_worker.prepare, tuple(sorted(member.share)))

    def _team(self, search: DeviceSearch) -> list[Member]:
        """The workers that measure for a kind of device."""
        return [m for m in self.members.values() if m.opened and m.opened.kind == search.kind and m.measures]

    def _assign(self) -> bool:
        """Gives work to idle workers. Returns whether anything is left to do."""
        for member in self.members.values() if self.members and self._send() else ():
            if member.future is None and member.opened is not None and member.measures:
                search = self.kinds[member.opened.kind]
                if (work := self._next(search, member))[0]:
                    member.numbers, member.final = work
                    self._submit(member, measuring_worker.measure, work[0], search.best[0], search.low_spill, work[1])
        busy = any(member.future is not None for member in self.members.values())
        return busy or any(search.pending for search in self.kinds.values()) or not self.members

    def _next(self, search: DeviceSearch, member: Member) -> tuple[tuple[int, ...], bool]:
        """The numbers that an idle worker of a kind measures next, its own share first, and whether they are the final."""
        team = self._team(search)
        if search.pending:
            size = min(MOST, max(1, math.ceil(len(search.pending) / (SHARE * len(team)))))
            chosen = tuple(sorted(search.pending, key=lambda number: number not in member.share)[:size])
            search.pending = collections.deque(number for number in search.pending if number not in chosen)
            return chosen, False
        if search.final is not None or search.race.known or any(m.numbers for m in team):
            return (), False
        trials = [search.race.trial(self.configs[number]) for number in self.tried]
        fastest = sorted((t.median, n) for t, n in zip(trials, self.tried, strict=True) if t.status == MEASURED)
        search.final = tuple(number for _, number in fastest[:FINALISTS])
        return (search.final, True) if len(search.final) > 1 else ((), False)

    def _finish_one(self) -> None:
        """Waits for a task, at most until the next look at the workers, and takes its result."""
        try:
            member, future = self.done.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return
        if member.future is not future:  # of a worker that was gone
            return
        member.future = None
        if future.status != "finished":
            self._failed(member, future)
            return
        try:
            result = future.result(timeout=FETCHING)
        except (
            TimeoutError,
            CancelledError,
        ):  # the worker died after the measurement, and has taken the result with it
            self._remove_worker(member)
            return
        if isinstance(result, Opened):
            self._open(member, result)
        elif result is not None:  # a worker that has compiled its share answers None
            self._take(member, result)

    def _failed(self, member: Member, future: Any) -> None:
        """A task that ended without a result: the launch failed, or the worker died and took the parcel with it."""
        error = future.exception() if future.status == "error" else None
        if error is not None and not type(error).__module__.startswith("distributed"):
            raise error
        self._remove_worker(member)

    def _remove_worker(self, member: Member) -> None:
        """Gives back the work of a member whose worker is gone. If there is a worker at its address, the next look finds it."""
        self.members.pop(member.address, None)
        self._requeue(member)
        self.sent = None

    def _open(self, member: Member, opened: Opened) -> None:
        devices = {m.opened.device for m in self.members.values() if m.opened is not None and m.measures}
        member.opened, member.measures = opened, opened.device not in devices
        if opened.kind in self.kinds:
            return
        race = self.races.setdefault(opened.kind, Race(self.kernel))
        if opened.known is not None:
            trials = zip(self.configs, opened.known.trials, strict=True)
            race.known = {config: replace(trial, config=config) for config, trial in trials}
        done = {*race.values, *race.answers, *race.out, *race.known}
        pending = [number for number in self.tried if self.configs[number] not in done]
        # Small tiles come first: the first tasks are the largest, and tell the others which times are slow and that code need not spill.
        # Configurations that may be slow come last, one by one, when much is known. Shares, which are every second one, have equal costs of
        # compilation.
        pending.sort(key=lambda number: self.configs[number].compile_cost)
        self.kinds[opened.kind] = DeviceSearch(opened.kind, race, collections.deque(pending))

    def _take(self, member: Member, measured: Sequence[Measurement]) -> None:
        assert member.opened is not None
        search = self.kinds[member.opened.kind]
        before = search.best[0]
        for one in measured:
            self._record(search.race, one)
            search.update_best(self.configs[one.number])
            search.low_spill = search.low_spill or one.low_spill
        member.numbers, member.final, was_final = (), False, member.final
        least, config = search.best
        if least < before * BROADCAST_RATIO:
            self._broadcast(measuring_worker.set_bound, self.name, least)
        best = f", best {as_keywords(config)} ({least:.4g} ms)" if config is not None else ""
        for _ in () if was_final else measured:
            self.step(f"{len(self.members)} workers{best}")

    def _record(self, race: Race, one: Measurement) -> None:
        config = self.configs[one.number]
        if one.error is not None:
            race.refuse(config, one.error)
        elif one.out is not None:
            race.out[config] = one.out
        if one.values:
            race.values[config] = list(one.values)
        if one.answer is not None:
            race.answers[config] = one.answer
