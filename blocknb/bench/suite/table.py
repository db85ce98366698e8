"""Formats measured rows, geometric means by peer, and the JSON of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from blocknb.bench.suite.definition import shape_text
from blocknb.bench.suite.measure import OURS, MeasuredRow, Ratio

WIDTH = 21


def header(name: str, peers: Sequence[str], unit: str) -> str:
    """The header line of one benchmark."""
    columns = "".join(f" {'x ' + peer:>{WIDTH - 1}}" for peer in peers)
    return f"{name:<24}{'':6}{'ms':>10}{unit:>9}{columns}"


def line(row: MeasuredRow, peers: Sequence[str]) -> str:
    """One row: shape and dtype, our milliseconds and rate, and the ratio of each peer's time to ours with quartiles."""
    ours = row.times.get(OURS)
    start = f"  {shape_text(row.case.shape):<22}{row.case.dtype:<6}"
    start += f"{ours.median:>10.4f}{row.rate:>9.4g}" if ours else f"{_word(row, OURS):>19}"
    return start + "".join(f" {_cell(row, peer):>{WIDTH - 1}}" for peer in peers)


def _cell(row: MeasuredRow, peer: str) -> str:
    ratio = row.ratio(peer)
    if ratio is not None:
        return ratio_text(ratio)
    return f"{row.times[peer].median:.4f} ms" if peer in row.times else _word(row, peer)


def _word(row: MeasuredRow, peer: str) -> str:
    problem = row.problems.get(peer, "")
    return "-" if problem in ("", "none") else problem.partition(":")[0]


def ratio_text(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def problems(row: MeasuredRow) -> list[str]:
    """One line per peer that failed or gave wrong results."""
    return [f"    {peer} {text}" for peer, text in row.problems.items() if text != "none"]


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean; None without values. Raises ValueError for a value that is not positive."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def means(rows: Sequence[MeasuredRow], peers: Sequence[str]) -> dict[str, tuple[float, float, str, int]]:
    """The statistics of each peer: the geometric mean of its ratios, the lowest ratio, the case of the lowest, and the number of cases."""
    found = {}
    for peer in peers:
        ratios = [(ratio.value, str(row.case)) for row in rows if (ratio := row.ratio(peer)) is not None]
        mean = geometric_mean(value for value, _ in ratios)
        if mean is not None:
            found[peer] = (mean, *min(ratios), len(ratios))
    return found


def summary(name: str, rows: Sequence[MeasuredRow], peers: Sequence[str]) -> list[str]:
    """The summary lines of a benchmark, for peers with more than one case."""
    return [
        f"  {name} against {peer}: geometric mean {mean:.2f} of {count}, lowest {low:.2f} ({where})"
        for peer, (mean, low, where, count) in means(rows, peers).items()
        if count > 1
    ]


def as_json(row: MeasuredRow, peers: Sequence[str]) -> dict[str, Any]:
    """A row as JSON: milliseconds and ratios, each with quartiles, and problems."""
    ratios = {peer: ratio for peer in peers if (ratio := row.ratio(peer)) is not None}
    return {
        "benchmark": row.case.name,
        "shape": list(row.case.shape),
        "dtype": row.case.dtype,
        "amount": row.amount,
        "rate": row.rate,
        "unit": row.unit,
        "ms": {
            peer: {"median": t.median, "low": t.low, "high": t.high, "runs": t.runs} for peer, t in row.times.items()
        },
        "ratios": {peer: {"value": r.value, "low": r.low, "high": r.high} for peer, r in ratios.items()},
        "relative errors": row.errors,
        "configurations": row.configs,
        "problems": {peer: text for peer, text in row.problems.items() if text != "none"},
    }
