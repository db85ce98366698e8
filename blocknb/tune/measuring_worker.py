"""The worker's side of tuning on a cluster: opens a search once per worker, and measures the configurations that the client sends.

A search arrives as one `Parcel` per worker. It holds the tuner with its kernel, the configurations and the arguments of the launch. Later
tasks send numbers of configurations. One measurement runs at a time in a process, also if several clients tune.
"""

from __future__ import annotations

import collections
import math
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocknb.errors import KernelError
from blocknb.runtime import cache
from blocknb.tune import store
from blocknb.tune.config import Config
from blocknb.tune.race import SPILLS, Race
from blocknb.tune.tuning import Tuning

_OPEN = 16  # searches that a worker keeps
#: The part of `rep` that a task spends on a configuration. It decides what enters the final, which measures the fastest again.
SHARE = 0.5
_searches: collections.OrderedDict[tuple[str, str], WorkerSearch] = collections.OrderedDict()
_lock = threading.Lock()
_measuring = threading.Lock()


@dataclass(frozen=True)
class Parcel:
    """A search in pickled form, as an array of bytes: (tuner, configurations, args, kwargs)."""

    data: Any


@dataclass(frozen=True)
class Opened:
    """A worker's description of its device: `kind` is the model, `device` is unique, `resources` are those that the worker declares.

    `known` is the tuning that its disk cache holds for this kind of device, or None. `folder` names that cache, or is "" if choices are
    not kept.
    """

    kind: str
    device: str
    resources: tuple[str, ...]
    known: Tuning | None
    folder: str


@dataclass(frozen=True)
class Measurement:
    """The result for one configuration: the milliseconds of its rounds or the answer of a `do_bench`, or why it is out.

    `low_spill`: its code is known not to spill heavily, so configurations that do need no measurement on any worker."""

    number: int
    values: tuple[float, ...] = ()
    answer: Any = None
    out: tuple[str, str] | None = None
    error: KernelError | None = None
    low_spill: bool = False


@dataclass
class WorkerRace(Race):
    """A race among some configurations on one worker. The client reports the refused ones."""

    errors: dict[Config, KernelError] = field(default_factory=dict)
    spilled: dict[Config, int] = field(default_factory=dict)

    def refuse(self, config: Config, error: KernelError) -> None:
        self.out[config] = self.refusal(error)
        self.failure = self.errors[config] = error

    def refuse_spilling(self, spilled: Mapping[Config, int]) -> None:
        self.spilled.update(spilled)
        super().refuse_spilling(spilled)


class WorkerSearch:
    """A search on one worker. `bound` is the least median of all workers in milliseconds; `stopped` ends the measurement."""

    def __init__(self, parcel: Parcel):
        import cloudpickle

        self.tuner, self.configs, self.args, self.kwargs = cloudpickle.loads(parcel.data)
        self.bound, self.stopped, self.warm = math.inf, False, False

    @property
    def gpu(self) -> int | None:
        return store.gpu_of(self.tuner.arg_names, self.args, self.kwargs)

    def place(self, configs: Sequence[Config]) -> store.StorePlace | None:
        """The entry of the disk cache for this kind of device."""
        key = self.tuner.tuning_key(self.args, self.kwargs)
        place: store.StorePlace | None = self.tuner.store_place(key, configs, self.args, self.kwargs)
        return place

    def measured(self, numbers: Sequence[int], low_spill: bool, final: bool) -> list[Measurement]:
        """Races some configurations. `low_spill` is that of the Race. Nothing is returned after a stop."""
        # In the final, all run here; a time of another device must not exclude them.
        race = WorkerRace(
            self.tuner.__name__,
            final=final,
            finalists=final,
            warmups=0 if self.warm else 1,  # the last task has warmed the device up, and each first run loads the code
            low_spill=low_spill,
            share=1.0 if final else SHARE,
            seen=lambda: (math.inf if final else self.bound, self.stopped),
        )
        with _measuring:
            self.tuner.race_here(race, [self.configs[number] for number in numbers], self.args, self.kwargs)
            self.warm = True
        return [] if self.stopped else [self._measurement(race, number) for number in numbers]

    def _measurement(self, race: WorkerRace, number: int) -> Measurement:
        config = self.configs[number]
        values = tuple(race.values.get(config, ()))
        low_spill = race.spilled.get(config, SPILLS + 1) <= SPILLS
        answer, out, error = race.answers.get(config), race.out.get(config), race.errors.get(config)
        return Measurement(number, values, answer, out, error, low_spill)


def _search(name: str, parcel: Parcel) -> WorkerSearch:
    """The search of this worker. Workers that are threads of one process have one each."""
    from distributed import get_worker

    key = name, get_worker().address
    with _lock:
        if key not in _searches:
            _searches[key] = WorkerSearch(parcel)
            while len(_searches) > _OPEN:
                _searches.popitem(last=False)
        return _searches[key]


def open_search(name: str, parcel: Parcel) -> Opened:
    """Opens a search on this worker, and says what it runs on."""
    from distributed import get_worker

    worker, search = get_worker(), _search(name, parcel)
    gpu, place = search.gpu, search.place(search.configs)
    found = None if place is None else place.read()
    known = found and Tuning(search.tuner.__name__, {}, tuple(found[0]), found[1], from_disk=True)
    return Opened(
        store.device_kind(gpu),
        worker.address if gpu is None else store.unique_name(gpu),
        tuple(getattr(worker.state, "total_resources", {})),
        known,
        f"{socket.gethostname()}:{cache.shared().root}" if place is not None else "",
    )


def prepare(name: str, parcel: Parcel, numbers: tuple[int, ...]) -> None:
    """Compiles configurations of an open search in parallel. Errors appear when they are measured."""
    search = _search(name, parcel)
    search.tuner.compile_ahead([search.configs[number] for number in numbers], search.args, search.kwargs)


def measure(
    name: str, parcel: Parcel, numbers: tuple[int, ...], bound: float, low_spill: bool, final: bool
) -> list[Measurement]:
    """Measures configurations of an open search. Raises the errors of a launch, other than those that refuse one configuration.

    `bound` is the least median of all workers in milliseconds, `low_spill` whether one of them has code that does not spill heavily."""
    search = _search(name, parcel)
    search.bound = min(search.bound, bound)
    return search.measured(numbers, low_spill, final)


def set_bound(name: str, bound: float) -> None:
    """Tells the searches of this process the least median, which stops slower configurations."""
    for (found, _), search in list(_searches.items()):
        if found == name:
            search.bound = min(search.bound, bound)


def stop(name: str) -> None:
    """Ends a search in this process, and frees its arguments. Measurements that run end after their round."""
    with _lock:
        for key in [key for key in _searches if key[0] == name]:
            _searches.pop(key).stopped = True


def keep(name: str, parcel: Parcel, tuning: Tuning) -> None:
    """Writes a finished tuning into the disk cache of this worker."""
    search = _search(name, parcel)
    if (place := search.place([trial.config for trial in tuning.trials])) is not None:
        place.write(tuning)
