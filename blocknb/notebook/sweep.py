"""A sweep: the time of a kernel over a tile size or a problem size, against baselines, with spread.

Each value of the axis gives launches (`replays`), which are repeated on copies of what they write, in turns with the baselines and with
cold caches. The work counted from the IR converts times to TFLOP/s (kernels with dots) or GB/s; without a count, the sweep shows times.
An interrupt ends the sweep and keeps the values that were measured.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocknb.errors import KernelError, LaunchError
from blocknb.notebook import numbers, plots
from blocknb.notebook.progress import Progress
from blocknb.profile.replay import Replay
from blocknb.profile.timing import Timing, interleaved
from blocknb.profile.work import Work

SECONDS = 0.3  # to measure one value, all candidates together
ROUNDS = 20


class WrongOutputs(Exception):
    """A value of the axis changes what the kernel computes; the message says how. Its time does not count."""


Clock = Callable[[Callable[[], Any]], float]
Replays = Callable[[Any], Sequence[Replay]]
Baselines = Callable[[Any], Mapping[str, Callable[[], Any]]]


@dataclass
class Series:
    """One line of a sweep: median, low and high for each value, None if there is none."""

    label: str
    kind: str
    median: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)

    def add(self, numbers: tuple[float, float, float] | None) -> None:
        for column, number in zip((self.median, self.low, self.high), numbers or (None,) * 3, strict=True):
            column.append(number)

    def scale(self, factor: float) -> None:
        """Multiplies all numbers, for another unit."""
        for column in (self.median, self.low, self.high):
            column[:] = [None if v is None else v * factor for v in column]


@dataclass
class Sweep:
    """The measurements. `axis` is a name, `values` its values so far, `unit` GB/s, TFLOP/s, GFLOP/s or ms; `notes` name the values left
    out. `runs` is the fewest launches behind a number, all with cold caches on the `device`."""

    kernel: str
    axis: str
    values: list[Any] = field(default_factory=list)
    unit: str = "ms"
    series: list[Series] = field(default_factory=list)
    cancelled: bool = False
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    device: str = ""

    @property
    def part(self) -> dict[str, Any]:
        """The part "sweep" of a document."""
        rounded = lambda column: [None if v is None else float(f"{v:.5g}") for v in column]  # noqa: E731
        made: dict[str, Any] = {
            "axis": self.axis,
            "values": self.values,
            "unit": self.unit,
            "n": self.runs,
            "cold": True,
            "device": self.device,
            "series": [
                {"label": s.label, "kind": s.kind}
                | {name: rounded(getattr(s, name)) for name in ("median", "low", "high")}
                for s in self.series
            ],
        }
        if self.notes:
            made["notes"] = self.notes
        return made | ({"cancelled": True} if self.cancelled else {})

    def plot(self) -> Any:
        """A matplotlib Figure."""
        return plots.sweep(self.part)

    def text(self) -> str:
        """A plain table."""
        head = [self.axis, *(f"{s.label} ({self.unit})" for s in self.series)]
        rows = [
            [str(v), *("" if s.median[i] is None else numbers.digits(s.median[i]) for s in self.series)]  # type: ignore[arg-type]
            for i, v in enumerate(self.values)
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in (head, *rows)]
        return "\n".join(
            [
                *lines,
                *self.notes,
                *(["The sweep was interrupted. These results are partial."] if self.cancelled else []),
            ]
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from blocknb.notebook.html import marked

        return {
            "text/plain": self.text(),
            "text/html": f"<pre>{marked(self.text())}</pre>",
            "image/png": plots.png(self.plot()),
        }


def run(
    kernel: str,
    axis: str,
    values: Iterable[Any],
    replays: Replays,
    baselines: Baselines = lambda value: {},
    clock: Clock | None = None,
    setting: Callable[[Any], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ahead: Callable[[Sequence[Any], Progress], None] = lambda values, progress: None,
) -> Sweep:
    """Measures each value inside its `setting`. A value whose kernel cannot be compiled or launched, or whose outputs are wrong, is left
    out, with a note.

    `ahead` may compile for all values before the first measurement.
    """
    values = list(values)
    found = Sweep(kernel, axis)
    rows: list[tuple[Any, dict[str, Timing], Work | None]] = []
    try:
        with Progress(len(values), f"sweep of {axis}") as progress:
            ahead(values, progress)
            for value in values:
                progress.step(f"{axis} = {value}")
                with setting(value):
                    if (row := _one(found, kernel, value, replays, baselines, clock)) is not None:
                        rows.append((value, *row))
                if found.cancelled:
                    break
    except KeyboardInterrupt:
        found.cancelled = True
    _fill(found, kernel, rows)
    return found


def _one(
    found: Sweep, kernel: str, value: Any, replays: Replays, baselines: Baselines, clock: Clock | None
) -> tuple[dict[str, Timing], Work | None] | None:
    """The times of one value and the work of its launches; None if the value was left out."""
    try:
        launches = list(replays(value))
        if not launches:
            raise LaunchError("the expression launched no kernel")
        candidates = {kernel: _all(launches), **baselines(value)}
        launches[0]()  # compiles and loads, and fails here if the target lacks resources
    except WrongOutputs as error:
        found.notes.append(f"{found.axis} = {value}: ✗ WRONG, {error}")
        return None
    except KernelError as error:
        found.notes.append(f"{found.axis} = {value}: {numbers.complaint(error)}")
        return None
    found.device = numbers.place(launches[0].compiled.target, launches[0].device)
    times = interleaved(candidates, gpu=launches[0].gpu, rounds=ROUNDS, warmup=2, seconds=SECONDS, clock=clock)
    found.cancelled = times.cancelled
    if kernel not in times:
        return None
    return dict(times), launches[0].work if len(launches) == 1 else total([r.work for r in launches])


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


def _fill(found: Sweep, kernel: str, rows: list[tuple[Any, dict[str, Timing], Work | None]]) -> None:
    """Converts times to series in a unit that all values support."""
    found.unit = _unit([work for _, _, work in rows])
    labels = list(dict.fromkeys(label for _, times, _ in rows for label in times))
    found.values = [value for value, _, _ in rows]
    found.runs = min((time.runs for _, times, _ in rows for time in times.values()), default=0)
    for label in labels:
        series = Series(label, "kernel" if label == kernel else "baseline")
        for _, times, work in rows:
            series.add(in_unit(found.unit, times[label], work) if label in times else None)
        found.series.append(series)
    if found.unit == "TFLOP/s" and max((v or 0 for s in found.series for v in s.median), default=1) < 1:
        found.unit = "GFLOP/s"
        for series in found.series:
            series.scale(1e3)


def _unit(works: Sequence[Work | None]) -> str:
    """The unit that all values support."""
    if works and all(w is not None and w.dot_flops for w in works):
        return "TFLOP/s"
    return "GB/s" if works and all(w is not None and w.unique_bytes for w in works) else "ms"


def in_unit(unit: str, time: Timing, work: Work | None) -> tuple[float, float, float]:
    """Median, low and high of a rate, or of the time where the unit is ms."""
    if unit == "ms" or work is None:
        return time.median, time.low, time.high
    amount = (work.flops or 0) / 1e9 if unit == "TFLOP/s" else (work.unique_bytes or 0) / 1e6
    low, high = (amount / t if t else math.inf for t in (time.high, time.low))
    return amount / time.median, low, high
