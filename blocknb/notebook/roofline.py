"""The roofline model (Williams, Waterman, Patterson 2009): how close kernels come to the limits of their device.

Ceilings are measured on the device, and work is counted from the IR. A point is a launch: its operations per unique byte (see
`profile.work`) and its rate. Launches are timed with cold caches, on copies of what they write. They take turns with the baselines and with
earlier versions of the kernel, which form a trajectory. The roof of a point is the lower of two limits. One is the memory bandwidth, for
the point's mix of reads and writes, times the intensity. The other is the rate of the arithmetic that the kernel uses. Hardware counters
are shown only if a tool for them is found, and otherwise the card states that there is none.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blocknb.errors import LaunchError
from blocknb.notebook import numbers
from blocknb.notebook.measurements import Measurements
from blocknb.notebook.observe import KernelRecord, Specialisation, record_of, without_recording
from blocknb.profile import noise
from blocknb.profile.ceilings import Ceilings, ceilings, remeasured
from blocknb.profile.replay import Replay, captured_by, work_of
from blocknb.profile.roof import nearest
from blocknb.profile.timing import Timing, Timings, interleaved
from blocknb.profile.work import Work
from blocknb.runtime.compile import Compiled
from blocknb.runtime.interface import KernelInterface
from blocknb.runtime.kernel import Kernel

SECONDS, ROUNDS = 1.0, 30
MOST_VERSIONS = 8  # earlier versions drawn with a kernel
ERROR = 1.05  # a point above its roof by a smaller factor is within the error of measurement
COUNTERS = "hardware counters: {}"


@dataclass(frozen=True)
class Point:
    """One launch. `flops`, `bytes` (unique) and `issued_bytes` are None if they cannot be counted.

    `roof` names the nearest ceiling, and `percent` is the share of it that the launch reaches.
    """

    label: str
    kind: str
    flops: int | None
    bytes: int | None
    time: Timing
    issued_bytes: int | None = None
    version: str | None = None
    roof: str | None = None
    percent: float | None = None
    about: str = ""

    @property
    def milliseconds(self) -> float:
        """The median of the time."""
        return self.time.median

    @property
    def entry(self) -> dict[str, Any]:
        made = {name: getattr(self, name) for name in ("label", "kind", "flops", "bytes")}
        made["time"] = self.time.entry
        more = {name: getattr(self, name) for name in ("issued_bytes", "version", "roof", "percent", "about")}
        return made | {name: value for name, value in more.items() if value not in (None, "")}


@dataclass(repr=False)
class Roofline(Measurements):
    """The ceilings and points of one device. `kernel` is the name of the first kernel."""

    key = "roofline"

    limits: Ceilings
    points: list[Point] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kernel: str = "roofline"

    @property
    def part(self) -> dict[str, Any]:
        rows = [
            {"name": c.name, "unit": c.unit, "value": float(f"{c.value:.5g}"), "low": float(f"{c.low:.5g}")}
            | {"high": float(f"{c.high:.5g}"), "how": c.how}
            for c in self.limits.items
        ]
        made: dict[str, Any] = {"device": self.limits.device, "measured": self.limits.measured, "ceilings": rows}
        made["age"] = self.limits.age
        made["points"] = [point.entry for point in self.points]
        missing = [f"{name} was not measured: {why}" for name, why in self.limits.missing]
        return made | {"note": " ".join(f"{note.rstrip('.')}." for note in (*self.notes, *missing))}

    def records(self) -> list[dict[str, Any]]:
        """A row for each point: its work, `ms` with its quartiles, TFLOP/s, GB/s of unique bytes, and its share of the nearest roof."""
        return [_record_of(point) for point in self.points]

    def text(self) -> str:
        """The points as a plain table, then the ceilings."""
        head = ["", "time", "FLOP", "unique bytes", "FLOP/byte", "arithmetic", "memory", "% of ceiling"]
        rows = [head, *(_row(point) for point in self.points)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(t.ljust(w) if not i else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        limits = [f"  {c.name}: {numbers.rate_text(c.value, c.unit)}, measured by {c.how}" for c in self.limits.items]
        part = self.part
        age = f", {numbers.age(self.limits.age)} ago" if self.limits.age is not None else ""
        title = f"ceilings of {part['device']}, measured {part['measured']}{age}"
        return "\n".join([*lines, title, *limits, part["note"]])


def _record_of(point: Point) -> dict[str, Any]:
    made = point.entry
    time, ms = made.pop("time"), point.milliseconds
    rates = {"tflops": None if point.flops is None else point.flops / ms / 1e9}
    rates |= {"gbytes": None if point.bytes is None else point.bytes / ms / 1e6}
    intensity = {"flop_per_byte": point.flops / point.bytes if point.flops is not None and point.bytes else None}
    return made | {"ms": time["median"], "ms_low": time["low"], "ms_high": time["high"]} | rates | intensity


def _row(point: Point) -> list[str]:
    count = lambda n: "unknown" if n is None else f"{n:,}"  # noqa: E731
    rate = lambda n, scale, unit: "" if n is None else numbers.rate_text(n / point.milliseconds / scale, unit)  # noqa: E731
    ratio = numbers.digits(point.flops / point.bytes) if point.flops is not None and point.bytes else ""
    near = f"{point.percent:.0f} % of {point.roof}" if point.percent is not None else ""
    label = point.label if point.kind == "kernel" else f"{point.label} ({point.kind})"
    return [
        label, numbers.timing(point.time), count(point.flops), count(point.bytes), ratio, rate(point.flops, 1e9, "TFLOP/s"),
        rate(point.bytes, 1e6, "GB/s"), near,
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Subject:
    """One launch that becomes a point: how to repeat it, or its time in the cell if it cannot be repeated."""

    label: str
    compiled: Compiled
    device: int
    work: Work
    kernel: Kernel
    replay: Replay | None = None
    time: Timing | None = None
    version: str | None = None


def _add_point(found: Roofline, one: Subject, time: Any) -> None:
    """Adds a subject if it has a time, and notes the doubts about it."""
    if one.replay is None and time is not None:
        state = "cold" if time.cold else "warm"
        found.notes.append(f"{one.label} cannot be launched again; its time was measured in its cell, {state}")
    if time is not None:
        kind = "version" if one.version else "kernel"
        found.points.append(point(one.label, kind, one.work, time, one.compiled, found.limits, one.version))
    found.notes += _caveats(one.label, one.work) if one.version is None else []


def roofline(
    *subjects: Any,
    baselines: Mapping[str, Callable[[], Any]] | None = None,
    versions: Sequence[Subject] = (),
    limits: Ceilings | None = None,
    clock: Callable[[Callable[[], Any]], float] | None = None,
) -> Roofline:
    """The roofline of launches, on the device of the first one.

    A subject is a kernel, as the last `%%blockkernel` cell launched it, or a function without arguments that launches kernels. Launches
    are repeated on copies of what they write. `baselines` do the same work as the first subject and are called directly; `versions` are
    launches of its earlier versions. `limits` are measured or read from the cache by default. Raises LaunchError for a kernel that no
    such cell launched.
    """
    all_found = [one for subject in subjects for one in _subjects(subject)]
    if not all_found:
        raise LaunchError("a roofline needs a launched kernel, or a function that launches one")
    all_found = _distinct(all_found, set(baselines or ()))
    first = all_found[0]
    found = Roofline(limits or ceilings(first.device), kernel=first.kernel.__name__)
    all_found += versions
    here = [one for one in all_found if one.device == first.device]
    found.notes += [f"{one.label} ran on another device and is omitted" for one in all_found if one not in here]
    times = _times(here, baselines or {}, clock)
    if times.cancelled:
        found.notes.append("the measurement was interrupted, so the results are partial")
    _add_points(found, first, here, times, baselines or {})
    if limits is None and not times.cancelled and (high := _above_roof(found.points)):
        found = _with_ceilings_again(found, first, here, times, baselines or {}, high)
    if high := _above_roof(found.points):
        found.notes.append(
            f"above the ceiling: {', '.join(high)}. Part of the data may stay in a cache, or the ceilings were measured "
            "on a busy machine (`blocknb bench ceilings` measures them again)"
        )
    if why := noise.busy([point.time for point in found.points]):
        found.notes.append(why)
    found.notes.append(counters(first.compiled.target.is_gpu))
    return found


def _distinct(subjects: Sequence[Subject], taken: set[str]) -> list[Subject]:
    """The subjects with labels of their own, by which they are timed: a kernel may be launched twice, and a baseline may have its name."""
    found = []
    for one in subjects:
        numbered = (f"{one.label} ({number})" for number in itertools.count(2))
        label = one.label if one.label not in taken else next(text for text in numbered if text not in taken)
        taken.add(label)
        found.append(replace(one, label=label))
    return found


def _times(
    here: Sequence[Subject],
    baselines: Mapping[str, Callable[[], Any]],
    clock: Callable[[Callable[[], Any]], float] | None,
) -> Timings:
    """Times the subjects that can be repeated in turns with the baselines."""
    calls: dict[str, Callable[[], Any]] = {one.label: one.replay for one in here if one.replay is not None}
    with contextlib.ExitStack() as stack:
        for one in here:
            stack.enter_context(without_recording(one.kernel))
        gpu = here[0].compiled.target.is_gpu
        return interleaved(calls | dict(baselines), gpu=gpu, rounds=ROUNDS, seconds=SECONDS, clock=clock)


def _add_points(
    found: Roofline, first: Subject, here: Sequence[Subject], times: Timings, baselines: Mapping[str, Any]
) -> None:
    place = numbers.place(first.compiled.target, first.device)
    for one in here:
        time = times.get(one.label) or one.time
        _add_point(found, one, None if time is None else time.on(place))
    for name in baselines:
        if name in times:
            made = point(name, "baseline", first.work, times[name].on(place), first.compiled, found.limits)
            found.points.append(made)
    found.points.sort(key=lambda p: ("kernel", "baseline", "version").index(p.kind))


def _with_ceilings_again(
    old: Roofline,
    first: Subject,
    here: Sequence[Subject],
    times: Timings,
    baselines: Mapping[str, Any],
    high: Sequence[str],
) -> Roofline:
    """The same launches below ceilings that are measured again, because a launch was above one."""
    found = Roofline(remeasured(first.device, old.limits), kernel=old.kernel)
    _add_points(found, first, here, times, baselines)
    found.notes.insert(
        0,
        f"{', '.join(high)} was above the ceilings of {old.limits.measured}, so these were measured again: the higher rates count",
    )
    return found


def _subjects(subject: Any) -> list[Subject]:
    if not isinstance(subject, KernelInterface):
        return [Subject(r.kernel.__name__, r.compiled, r.device, r.work, r.kernel, r) for r in captured_by(subject)]
    record = launched_record(subject)
    made, kernel = record.latest, record.kernel
    assert made is not None
    work, replay = work_of(made.compiled, made.arguments, made.grid), _replay(record, made)
    return [Subject(kernel.__name__, made.compiled, made.device, work, kernel, replay, made.timing)]


def point(
    label: str, kind: str, work: Work, time: Timing, compiled: Any, limits: Ceilings, version: str | None = None
) -> Point:
    """Makes a point with its nearest roof."""
    roof, percent = nearest(work, time.median, compiled, limits)
    about = "" if work.exact else f"extrapolated from {work.programs} programs"
    return Point(
        label,
        kind,
        work.flops,
        work.unique_bytes,
        time,
        work.issued_bytes,
        version,
        roof,
        percent,
        about,
    )


def launched_record(kernel: Any) -> KernelRecord:
    while not isinstance(kernel, Kernel):  # unwraps autotuners and heuristics
        kernel = vars(kernel)["fn"]
    found = record_of(kernel)
    if found is None or found.latest is None or not found.latest.launches:
        raise LaunchError(
            f"{kernel.__name__} was not launched in a %%blockkernel cell",
            hint="pass a function that launches it: blocknb.roofline(lambda: kernel[grid](...))",
        )
    return found


def _replay(record: KernelRecord, made: Specialisation) -> Replay | None:
    """The last launch on copies; None if the arrays or the grid no longer exist."""
    from blocknb.notebook.knobs import why_not

    if why_not(made) or made.snapshot is None or made.snapshot.grid is None:
        return None
    given = made.snapshot.arguments(made.compiled.stored)
    if given is None:
        return None
    return Replay(record.kernel, made.compiled, made.grid, given, made.arguments, made.device)


def _caveats(label: str, work: Work) -> list[str]:
    found = []
    if work.why_flops:
        found.append(f"the operation count of {label} is unknown: {work.why_flops}")
    if work.why_bytes and work.why_bytes != work.why_flops:
        found.append(f"the byte count of {label} is unknown: {work.why_bytes}")
    if work.flops == 0:
        found.append(f"{label} has no floating-point operations, so only the table shows it")
    if not work.exact and not work.why_flops:
        found.append(f"the work of {label} is extrapolated from {work.programs} of its programs")
    return found


def _above_roof(points: Sequence[Point]) -> list[str]:
    """The labels of points above their roof, by more than the error of measurement."""
    return [p.label for p in points if p.percent is not None and p.percent > 100 * ERROR]


def counters(gpu: bool) -> str:
    """The note on hardware counters on this machine."""
    if not gpu:
        return COUNTERS.format("not available on a CPU")
    return COUNTERS.format(
        "run ncu (installed) on a script with the kernel"
        if shutil.which("ncu")
        else "not available, because ncu is not installed"
    )


def earlier(kernel: Any) -> list[Subject]:
    """The last launches of the newest other versions of a kernel, oldest first."""
    from blocknb.notebook import document, history

    found, current = [], document.hash_of(kernel.source.text)
    for version in [v for v in history.versions(kernel) if v.key != current][-MOST_VERSIONS:]:
        record, made = version.card.record, version.card.main
        if not made.launches:
            continue
        work, time = work_of(made.compiled, made.arguments, made.grid), made.timing
        label, replay = f"{kernel.__name__}@{version.number}", _replay(record, made)
        found.append(Subject(label, made.compiled, made.device, work, record.kernel, replay, time, version.key))
    return found
