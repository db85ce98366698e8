"""The sentence that answers a sweep: the best point, which points are within noise of it, and its comparison with the cell.

A point is the best only if there is a measurable difference, and the machine was not busy. The interquartile range of some other point must
lie outside of its own, or the comparison with the cell in turns must find it faster. Otherwise the sentence says that there is no
difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb.notebook import numbers, plot_data
from blocknb.profile import noise

if TYPE_CHECKING:
    from blocknb.notebook.sweep import Series, Sweep
    from blocknb.notebook.sweep_launches import ConstantSweep
    from blocknb.profile.noise import TimeRatio

MOST_NAMED = 8  # points that the sentence names as within noise


def answer(made: Sweep, constant: ConstantSweep | None = None) -> None:
    """Sets `answer` of a sweep, and `undecided` if no point is the best.

    The best point of a ConstantSweep is compared with the other points, and with the cell in turns."""
    kernel = next((s for s in made.series if s.kind == "kernel"), None)
    made.undecided = True
    if kernel is None:
        made.answer = "; ".join(made.notes) or "interrupted before the first value was measured"
        return
    ranked = Ranked.of(made, kernel)
    ratio, interrupted = _in_turns(made, ranked, constant)
    verdict = "noise" if ratio is None else ratio.verdict
    made.undecided = bool(made.busy) or (ranked.all_near and verdict != "faster")
    if made.undecided:
        parts = [_undecided(made, ranked)]
    else:
        parts = [_best(made, ranked), *_within_noise(made, ranked, None if ratio is None else constant)]
    if ratio is not None and constant is not None and (not made.undecided or verdict == "slower"):
        parts.append(_against(made, ranked.best, ratio, constant.cell))
    made.answer = "; ".join([*parts, *_omitted(made), *(["interrupted"] if interrupted else [])])


def _in_turns(made: Sweep, ranked: Ranked, constant: ConstantSweep | None) -> tuple[TimeRatio | None, bool]:
    """The best point against the cell in turns, unless it is the cell's own or the machine is busy; and whether an interrupt came."""
    value = _value(made, ranked.best)
    if constant is None or made.cancelled or made.busy or constant.value in (None, value):
        return None, made.cancelled
    ratio = constant.against_cell(value)
    return ratio, ratio is None


def _omitted(made: Sweep) -> list[str]:
    found = [note for note in made.notes if note.startswith(f"{made.axis} = ")]
    return [f"{numbers.plural(len(found), 'value')} omitted ({found[0]})"] if found else []


@dataclass(frozen=True)
class Ranked:
    """The `known` points of a sweep by number, the one with the best median, and those whose interquartile ranges overlap its own."""

    kernel: Series
    known: list[int]
    best: int
    near: list[int]

    @classmethod
    def of(cls, made: Sweep, kernel: Series) -> Ranked:
        """Ranks the points of a kernel's series, of which at least one was measured."""
        known = [i for i, median in enumerate(kernel.median) if median is not None]
        best = (min if made.unit == "ms" else max)(known, key=lambda i: kernel.median[i] or 0.0)
        return cls(kernel, known, best, [i for i in known if i != best and _overlap(kernel, i, best)])

    @property
    def all_near(self) -> bool:
        """Whether there are several points, and no range lies outside of that of the best."""
        return len(self.known) > 1 and len(self.near) == len(self.known) - 1


def _best(made: Sweep, ranked: Ranked) -> str:
    """ "BLOCK over 3 values, best at 64: 12.3 GB/s"; a single value is not called the best."""
    best, count = ranked.best, len(ranked.known)
    word = "" if count == 1 else "best at "
    return f"{_measured(made, count)}, {word}{_named(made, best)}: {_amounts(made, ranked.kernel, [best])}"


def _undecided(made: Sweep, ranked: Ranked) -> str:
    """Why no point is the best, with the range of the medians."""
    kernel, known = ranked.kernel, ranked.known
    if made.busy:
        seen = f"the best median is {_amounts(made, kernel, [ranked.best])} at {_named(made, ranked.best)}"
        return f"{_measured(made, len(known))}: no value is named the best, because {made.busy}; {seen}"
    names = [_named(made, i) for i in known]
    span = f"{names[0]} to {names[-1]}" if len(names) > 2 and not made.second else " and ".join(names)
    span = f"all {len(names)} points" if made.second else span
    medians = _amounts(made, kernel, known)
    return f"{_measured(made, len(known))}: no difference beyond noise: {span} are equal (a median of {medians})"


def _amounts(made: Sweep, kernel: Series, points: Sequence[int]) -> str:
    """The medians of some points in a unit that fits: "12.1 GB/s", or "12.1 to 12.4 GB/s"."""
    medians = [median for i in points if (median := kernel.median[i]) is not None]
    unit, factor = plot_data.fitting(made.unit, max(medians))
    ends = dict.fromkeys(numbers.digits(end * factor) for end in (min(medians), max(medians)))
    return f"{' to '.join(ends)} {unit}"


def _measured(made: Sweep, count: int) -> str:
    """ "BLOCK over 3 values", or "BLOCK and num_warps over 6 points"."""
    if made.second:
        return f"{made.axis} and {made.second[0]} over {numbers.plural(count, 'point')}"
    return f"{made.axis} over {numbers.plural(count, 'value')}"


def _value(made: Sweep, i: int) -> Any:
    """A point as a ConstantSweep names it: a value, or a tuple of values for two axes."""
    point = made.points[i]
    return point[0] if len(point) == 1 else point


def _named(made: Sweep, i: int) -> str:
    point = made.points[i]
    return str(point[0]) if len(point) == 1 else f"({', '.join(map(str, point))})"


def _overlap(series: Series, i: int, j: int) -> bool:
    """Whether the interquartile ranges of two points overlap."""
    low = [series.low[i], series.low[j]]
    high = [series.high[i], series.high[j]]
    return max(v for v in low if v is not None) <= min(v for v in high if v is not None)


def _within_noise(made: Sweep, ranked: Ranked, covered: ConstantSweep | None) -> list[str]:
    """ "256 and 8192 are within noise of it: the interquartile ranges overlap". Another sentence has the point of the cell, `covered`."""
    points = [i for i in ranked.near if covered is None or _value(made, i) != covered.value]
    names = [_named(made, i) for i in points]
    if len(names) > MOST_NAMED:
        names = [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
    if not names:
        return []
    listed = f"{', '.join(names[:-1])} and {names[-1]} are" if len(names) > 1 else f"{names[0]} is"
    return [f"{listed} within noise of it: the interquartile ranges overlap"]


def _against(made: Sweep, best: int, ratio: TimeRatio, cell: str) -> str:
    """ "64 takes 1.01 times the time of the cell’s 1024 (0.93 to 1.11), within noise", or that it is faster or slower."""
    if ratio.pairs < noise.LEAST_PAIRS:
        return numbers.ratio(ratio, cell)
    verb = "is" if ratio.verdict == "faster" else "takes"
    return f"{_named(made, best)} {verb} {numbers.ratio(ratio, cell)}"
