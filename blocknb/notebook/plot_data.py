"""The numbers behind the plots of a document: the lines of a sweep, the cells of its heat map, the points of a roofline.

Matplotlib (`plots`), the tables (`measurements`) and the page (labextension/src/core/plot/series.ts) all draw these numbers. The tests of
both sides compare theirs with labextension/tests/fixtures/plotted.json. A number is None where nothing was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Numbers = list[float | None]
#: For each unit of a part: the least largest value from which a unit fits, that unit, and the factor to it. The first row that fits counts.
UNITS: dict[str, tuple[tuple[float, str, float], ...]] = {
    "ms": ((1e4, "s", 1e-3), (1.0, "ms", 1.0), (1e-3, "µs", 1e3), (0.0, "ns", 1e6)),
    "TFLOP/s": ((1.0, "TFLOP/s", 1.0), (1e-3, "GFLOP/s", 1e3), (0.0, "MFLOP/s", 1e6)),
    "GFLOP/s": ((1e3, "TFLOP/s", 1e-3), (1.0, "GFLOP/s", 1.0), (0.0, "MFLOP/s", 1e3)),
    "GB/s": ((1.0, "GB/s", 1.0), (0.0, "MB/s", 1e3)),
}


@dataclass(frozen=True)
class PlottedSeries:
    """One line: the median with its quartiles for each point of the sweep."""

    label: str
    kind: str
    median: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True)
class PlottedSweep:
    """The lines of a sweep in a `unit`. With two axes, the points are those of the first axis, each with all values of the second."""

    unit: str
    series: list[PlottedSeries]


def fitting(unit: str, largest: float) -> tuple[str, float]:
    """The unit in which `largest` reads well, and the factor to it from `unit`."""
    rows = UNITS[unit]
    return next(((name, factor) for least, name, factor in rows if largest >= least), rows[-1][1:])


def sweep(part: Mapping[str, Any], show: str | None = None) -> PlottedSweep:
    """The lines of a part "sweep" as it was measured, or as "time" or "rate". Raises ValueError if the sweep has no rates."""
    unit, columns = _shown(part, show)
    known = [v for _, series in columns for v in series[0] if v is not None]
    name, factor = fitting(unit, max(known, default=0.0))
    made = [
        PlottedSeries(s["label"], s["kind"], *([None if v is None else v * factor for v in column] for column in found))
        for s, found in columns
    ]
    return PlottedSweep(name, made)


def _shown(
    part: Mapping[str, Any], show: str | None
) -> tuple[str, list[tuple[Mapping[str, Any], tuple[Numbers, Numbers, Numbers]]]]:
    """The unit of the part or milliseconds, and for each series its median, low and high."""
    if show not in (None, "time", "rate"):
        raise ValueError(f"show is {show!r}; write 'time' or 'rate'")
    is_time = part["unit"] == "ms"
    if show == "rate" and is_time:
        raise ValueError("this sweep has times only, because the work of its launches cannot be counted")
    if show != "time" or is_time:
        return part["unit"], [(s, (s["median"], s["low"], s["high"])) for s in part["series"]]
    amounts = part.get("amounts")
    if amounts is None:
        raise ValueError("this sweep comes from an older version, which kept the rates only")
    return "ms", [(s, _times(amounts, s)) for s in part["series"]]


def times(part: Mapping[str, Any]) -> list[tuple[Numbers, Numbers, Numbers]]:
    """The milliseconds of each series: median, low and high. Raises ValueError for an old part without them."""
    return [columns for _, columns in _shown(part, "time")[1]]


def _times(amounts: Sequence[float | None], series: Mapping[str, Any]) -> tuple[Numbers, Numbers, Numbers]:
    """Milliseconds from rates: the highest rate is the least time."""

    def inverse(column: Iterable[float | None]) -> Numbers:
        return [a / v if a and v else None for a, v in zip(amounts, column, strict=True)]

    return inverse(series["median"]), inverse(series["high"]), inverse(series["low"])


def is_logarithmic(values: Sequence[Any]) -> bool:
    """Whether an axis with these values is logarithmic by default."""
    numbers = [v for v in values if _number(v)]
    if len(numbers) < len(values) or not numbers or min(numbers) <= 0 or min(numbers) == max(numbers):
        return False
    return max(numbers) / min(numbers) >= 8 or all(math.log2(v).is_integer() for v in numbers)


def positions(values: Sequence[Any]) -> list[float] | None:
    """The places of values on a numeric axis; None for an axis of names."""
    return [float(v) for v in values] if all(map(_number, values)) else None


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def roofline(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of a part "roofline" that a plot can show: label, kind, FLOP per unique byte, TFLOP/s."""
    return [
        {
            "label": p["label"],
            "kind": p["kind"],
            "intensity": p["flops"] / p["bytes"],
            "rate": p["flops"] / p["time"]["median"] / 1e9,
        }
        for p in part["points"]
        if p.get("flops") and p.get("bytes")
    ]


def timed(entries: Iterable[tuple[str, Mapping[str, Any] | None]]) -> PlottedSweep:
    """The times of labelled entries (rows of a benchmark, versions) in a unit that fits; entries without a time are left out."""
    known = [(label, time) for label, time in entries if time is not None]
    unit, factor = fitting("ms", max((t["median"] for _, t in known), default=0.0))
    return PlottedSweep(
        unit, [PlottedSeries(n, "", *([t[k] * factor] for k in ("median", "low", "high"))) for n, t in known]
    )
