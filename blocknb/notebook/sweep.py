"""A sweep: the time of a kernel over one or two parameters (a tile size, a problem size), against baselines, with spread.

Each point gives launches (`replays`), which are repeated on copies of what they write, with cold caches. First each point is compiled,
checked and timed a few times. Then all points and their baselines are timed in turns. So a change of the clock rate or of the machine's
load affects all of them. Only these times count, unless an interrupt prevents them. The work counted from the IR converts times to TFLOP/s
(kernels with dots) or GB/s. Without a count, the sweep shows times.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocknb.errors import KernelError, LaunchError
from blocknb.notebook import numbers, plot_data, repeats
from blocknb.notebook.measurements import Measurements
from blocknb.notebook.progress import Progress
from blocknb.profile import noise, timing
from blocknb.profile.replay import Replay
from blocknb.profile.timing import Timing
from blocknb.profile.work import Work

SECONDS = 0.3  # to measure one point, all candidates together
ROUNDS = 20
MOST_POINTS = 200


class WrongOutputs(Exception):
    """A value of the axis changes what the kernel computes; the message says how. Its time does not count."""


Clock = Callable[[Callable[[], Any]], float]
#: From a point (the value of the axis, or a tuple of values for two axes) to its launches.
Replays = Callable[[Any], Sequence[Replay]]
Baselines = Callable[[Any], Mapping[str, Callable[[], Any]]]
Setting = Callable[[Any], contextlib.AbstractContextManager[Any]]


@dataclass
class Series:
    """One line of a sweep: median, low and high for each point, None if there is none.

    `kind` is "kernel", "baseline", or "roof" (the ceiling of a device). `device` is set if the lines belong to several devices."""

    label: str
    kind: str
    median: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    device: str = ""

    def add(self, numbers: tuple[float, float, float] | None) -> None:
        for column, number in zip((self.median, self.low, self.high), numbers or (None,) * 3, strict=True):
            column.append(number)

    def scale(self, factor: float) -> None:
        """Multiplies all numbers, for another unit."""
        for column in (self.median, self.low, self.high):
            column[:] = [None if v is None else v * factor for v in column]


@dataclass(repr=False)
class Sweep(Measurements):
    """The measurements. `axis` is a name, `values` its values so far, `unit` GB/s, TFLOP/s, GFLOP/s or ms; `notes` name the values left
    out. A second axis has a name and values in `second`, and then a series has all its values for the first value, and so on. `amounts` is
    what, divided by milliseconds, gives a number in the unit. `answer` is a sentence about the best point; `undecided`: no point is the
    best. `busy` says why the times may be wrong. `runs` is the fewest launches for a number, all with cold caches on the `device`."""

    key = "sweep"

    kernel: str
    axis: str
    values: list[Any] = field(default_factory=list)
    unit: str = "ms"
    series: list[Series] = field(default_factory=list)
    cancelled: bool = False
    notes: list[str] = field(default_factory=list)
    answer: str = ""
    undecided: bool = False
    busy: str = ""
    runs: int = 0
    device: str = ""
    second: tuple[str, list[Any]] | None = None
    amounts: list[float | None] = field(default_factory=list)

    @property
    def part(self) -> dict[str, Any]:
        """The part "sweep" of a document."""
        rounded = lambda column: [None if v is None else float(f"{v:.5g}") for v in column]  # noqa: E731
        made: dict[str, Any] = {
            "axis": self.axis,
            "values": _plain(self.values),
            "unit": self.unit,
            "n": self.runs,
            "cold": True,
            "device": self.device,
            "series": [
                {"label": s.label, "kind": s.kind}
                | ({"device": s.device} if s.device else {})
                | {name: rounded(getattr(s, name)) for name in ("median", "low", "high")}
                for s in self.series
            ],
        }
        if self.second:
            made["second"] = {"axis": self.second[0], "values": _plain(self.second[1])}
        if self.unit != "ms":
            made["amounts"] = [None if v is None else float(f"{v:.9g}") for v in self.amounts]
        if self.answer:
            made["answer"] = self.answer
        if self.undecided:
            made["undecided"] = True
        if self.notes:
            made["notes"] = self.notes
        return made | ({"cancelled": True} if self.cancelled else {})

    @property
    def points(self) -> list[tuple[Any, ...]]:
        """The points in the order of the series: one value, or two."""
        return list(itertools.product(self.values, *([self.second[1]] if self.second else [])))

    def records(self) -> list[dict[str, Any]]:
        """A row for each point and series: the axes, the label, the kind, `ms` with its quartiles, and the rate with its quartiles."""
        part, found = self.part, list[dict[str, Any]]()
        names = [self.axis, *([self.second[0]] if self.second else [])]
        times = plot_data.times(part)
        for i, point in enumerate(self.points):
            for series, (median, low, high) in zip(part["series"], times, strict=True):
                row = {**dict(zip(names, point, strict=True)), "label": series["label"], "kind": series["kind"]}
                row |= {"ms": median[i], "ms_low": low[i], "ms_high": high[i]}
                if self.unit != "ms":
                    row |= {"rate": series["median"][i], "rate_low": series["low"][i], "rate_high": series["high"][i]}
                    row["unit"] = self.unit
                found.append({**row, "device": series.get("device", self.device)})
        return found

    def text(self) -> str:
        """A plain table."""
        shown = plot_data.sweep(self.part)
        names = [self.axis, *([self.second[0]] if self.second else [])]
        head = [*names, *(f"{s.label} ({shown.unit})" for s in shown.series)]
        rows = [
            [*map(str, point), *("" if (v := s.median[i]) is None else numbers.digits(v) for s in shown.series)]
            for i, point in enumerate(self.points)
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in (head, *rows)]
        partial = ["The sweep was interrupted. These results are partial."] if self.cancelled else []
        return "\n".join([*([self.answer] if self.answer else []), *lines, *self.notes, *partial])


def _plain(values: Iterable[Any]) -> list[Any]:
    """Values as JSON holds them: NumPy's numbers as Python's, and other objects as text."""
    found = [value.item() if hasattr(value, "item") else value for value in values]
    return [value if isinstance(value, (int, float, str, bool)) else str(value) for value in found]


@dataclass(eq=False)
class _Point:
    """A point that can be timed: its candidates by label, the work of its launches, and its times so far."""

    value: Any
    candidates: dict[str, Callable[[], Any]]
    work: Work | None
    gpu: bool
    held: int
    times: dict[str, Timing]


def run(
    kernel: str,
    axis: str | tuple[str, str],
    values: Iterable[Any],
    replays: Replays,
    baselines: Baselines = lambda value: {},
    clock: Clock | None = None,
    setting: Setting = contextlib.nullcontext,
    ahead: Callable[[Sequence[Any], Progress], None] = lambda values, progress: None,
) -> Sweep:
    """Measures each value inside its `setting`. A value whose kernel cannot be compiled or launched, or whose outputs are wrong, is left
    out, with a note.

    With two axes, the values are pairs. `ahead` may compile for all values before the first measurement.
    """
    values = list(values)
    first, second = (axis, None) if isinstance(axis, str) else axis
    # Before the measurement, whose own threads load the machine, too.
    found = Sweep(kernel, first, second=(second, []) if second else None, busy=noise.busy())
    points: list[_Point] = []
    group: list[_Point] = []  # those whose arrays are alive
    groups = 0
    try:
        with Progress(2 * len(values), f"sweep of {axis if isinstance(axis, str) else ' and '.join(axis)}") as progress:
            ahead(values, progress)
            for value in values:
                progress.step(_named(axis, value))
                with setting(value):
                    made = _prepared(found, axis, value, replays, baselines, clock)
                if found.cancelled and made is None:
                    break
                if made is None:
                    continue
                if group and made.held + sum(p.held for p in group) > repeats.copies_limit(made.gpu):
                    _in_turns(found, group, clock, setting, progress)
                    group, groups = [], groups + 1
                points.append(made)
                group.append(made)
                if found.cancelled:
                    break
            if group and not found.cancelled:
                _in_turns(found, group, clock, setting, progress)
    except KeyboardInterrupt:
        found.cancelled = True
    if groups:
        found.notes.append(
            f"The points were timed in {groups + 1} groups, because the arrays of all do not fit into memory."
        )
    _fill(found, values, points)
    return found


def _named(axis: str | tuple[str, str], value: Any) -> str:
    """ "BLOCK = 64", or "BLOCK = 64, num_warps = 4"."""
    pairs = [(axis, value)] if isinstance(axis, str) else zip(axis, value, strict=True)
    return ", ".join(f"{name} = {one}" for name, one in pairs)


def _prepared(
    found: Sweep,
    axis: str | tuple[str, str],
    value: Any,
    replays: Replays,
    baselines: Baselines,
    clock: Clock | None,
) -> _Point | None:
    """One point with a few times; None if it was left out."""
    try:
        launches = list(replays(value))
        if not launches:
            raise LaunchError("the expression launched no kernel")
        candidates = {found.kernel: _all(launches), **baselines(value)}
        launches[0]()  # compiles and loads, and fails here if the target lacks resources
    except WrongOutputs as error:
        found.notes.append(f"{_named(axis, value)}: ✗ WRONG, {error}")
        return None
    except KernelError as error:
        found.notes.append(f"{_named(axis, value)}: {numbers.complaint(error)}")
        return None
    found.device = numbers.place(launches[0].compiled.target, launches[0].device)
    gpu = launches[0].gpu
    times = timing.interleaved(
        candidates, gpu=gpu, rounds=timing.LEAST_ROUNDS, warmup=2, seconds=SECONDS / 2, clock=clock
    )
    found.cancelled = times.cancelled
    if found.kernel not in times:
        return None
    work = launches[0].work if len(launches) == 1 else total([r.work for r in launches])
    held = sum(int(a.get("bytes", 0)) for r in launches if r.given for a in r.arguments.values())
    return _Point(value, candidates, work, gpu, held, dict(times))


def _in_turns(found: Sweep, group: list[_Point], clock: Clock | None, setting: Setting, progress: Progress) -> None:
    """Times all candidates of some points in turns, each inside the setting of its point."""
    names = {f"{i}.{label}": (point, label) for i, point in enumerate(group) for label in point.candidates}
    # A call of its own for each name: a baseline may be one function for all points.
    calls = {name: functools.partial(point.candidates[label]) for name, (point, label) in names.items()}
    inside = {id(calls[name]): point.value for name, (point, _) in names.items()}
    measure = clock or timing.clock_of(group[0].gpu)

    def timed(call: Callable[[], Any]) -> float:
        with setting(inside[id(call)]):
            return measure(call)

    def going(times: Mapping[str, Sequence[float]]) -> Iterable[str]:
        rounds = max(map(len, times.values()))
        progress.say(f"in turns, round {rounds + 1} of at most {ROUNDS}")
        return calls

    seconds = SECONDS * len(group)
    times = timing.interleaved(
        calls,
        gpu=group[0].gpu,
        rounds=ROUNDS,
        warmup=0,
        seconds=seconds,
        clock=timed,
        going=going,  # type: ignore[arg-type]
    )
    found.cancelled = found.cancelled or times.cancelled
    whole = not times.cancelled
    for name, (point, label) in names.items():
        if name in times and (whole or times[name].runs >= timing.LEAST_ROUNDS):
            point.times[label] = times[name]
    for point in group:
        point.candidates.clear()  # frees their arrays


def _all(launches: Sequence[Replay]) -> Callable[[], None]:
    if len(launches) == 1:
        return launches[0]

    def call() -> None:
        for launch in launches:
            launch()

    return call


def total(works: Sequence[Work]) -> Work | None:
    """The total work of several launches; bytes are added per launch."""
    if any(w.flops is None or w.unique_bytes is None for w in works):
        return None
    adding: Callable[[str], int] = lambda name: sum(getattr(w, name) or 0 for w in works)  # noqa: E731
    return Work(
        adding("flops"),
        adding("issued_flops"),
        adding("dot_flops"),
        adding("issued_dot_flops"),
        {},
        {"": sum(sum(w.read.values()) for w in works)},
        {"": sum(sum(w.written.values()) for w in works)},
        adding("issued_bytes"),
        adding("atomics"),
        adding("programs"),
        all(w.exact for w in works),
    )


def _fill(found: Sweep, values: Sequence[Any], points: Sequence[_Point]) -> None:
    """Converts times to series in a unit that all points support."""
    found.unit = _unit([point.work for point in points])
    measured = {_key(point.value): point for point in points}
    rows = [measured.get(key) for key in _grid(found, values, points, measured)]
    labels = list(dict.fromkeys(label for point in points for label in point.times))
    found.runs = min((time.runs for point in points for time in point.times.values()), default=0)
    found.series = [Series(label, "kernel" if label == found.kernel else "baseline") for label in labels]
    for point in rows:
        found.amounts.append(None if point is None else _amount(found.unit, point.work))
        for series in found.series:
            series.add(None if point is None else _numbers(found.unit, point, series.label))
    fit_unit(found)


def fit_unit(found: Sweep) -> None:
    """Converts rates below 1 TFLOP/s to GFLOP/s."""
    if found.unit == "TFLOP/s" and max((v or 0 for s in found.series for v in s.median), default=1) < 1:
        found.unit = "GFLOP/s"
        found.amounts = [None if v is None else v * 1e3 for v in found.amounts]
        for series in found.series:
            series.scale(1e3)


def _grid(found: Sweep, values: Sequence[Any], points: Sequence[_Point], measured: Collection[str]) -> list[str]:
    """Fills in the values of the axes; returns the keys of the points in the order of the series."""
    if found.second is None:
        found.values = [point.value for point in points]
        return [_key(value) for value in found.values]
    columns = [list(dict.fromkeys(v[i] for v in values if _key(v) in measured)) for i in (0, 1)]
    found.values, found.second = columns[0], (found.second[0], columns[1])
    return [_key(pair) for pair in itertools.product(*columns)]


def _numbers(unit: str, point: _Point, label: str) -> tuple[float, float, float] | None:
    time = point.times.get(label)
    return None if time is None else in_unit(unit, time, point.work)


def _key(value: Any) -> str:
    return repr(value)  # a value may be a list


def _unit(works: Sequence[Work | None]) -> str:
    """The unit that all values support."""
    if works and all(w is not None and w.dot_flops for w in works):
        return "TFLOP/s"
    return "GB/s" if works and all(w is not None and w.unique_bytes for w in works) else "ms"


def _amount(unit: str, work: Work | None) -> float | None:
    """The amount of work: divided by milliseconds, it gives a rate in the unit. None for the unit ms."""
    if unit == "ms" or work is None:
        return None
    return (work.flops or 0) / 1e9 if unit == "TFLOP/s" else (work.unique_bytes or 0) / 1e6


def in_unit(unit: str, time: Timing, work: Work | None) -> tuple[float, float, float]:
    """Median, low and high of a rate, or of the time where the unit is ms."""
    amount = _amount(unit, work)
    if amount is None:
        return time.median, time.low, time.high
    low, high = (amount / t if t else math.inf for t in (time.high, time.low))
    return amount / time.median, low, high
