"""Compares the results and the times of two compilers, and prints them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from blocknb.bench.rows import Row
from blocknb.bench.suite.table import geometric_mean

SLOW = 0.9  # Triton's time over ours, below which a kernel counts as slow
TOLERANCE = 0.02  # the largest difference of results, as a ratio of norms


def problem(checks: dict[str, Row], files: dict[str, str]) -> str:
    """The difference between the results of two compilers; "" if they agree. With a reference, an error may be twice Triton's."""
    failed = [f"{name}: {check['error']}" for name, check in checks.items() if "error" in check]
    if failed:
        return "; ".join(failed)
    ours, theirs = (np.load(files[name]) for name in checks)
    if len(ours.files) != len(theirs.files):
        return f"{len(ours.files)} results, and {len(theirs.files)} by Triton"
    errors = list(zip(*(check["errors"] for check in checks.values()), strict=True))
    for index, name in enumerate(ours.files):
        apart = difference(ours[name], theirs[name])
        if errors:
            mine, other = errors[index]
            if not mine <= max(2 * other, 1e-6):
                return f"result {index}: error {mine:.2g}, by Triton {other:.2g}"
        elif not apart <= TOLERANCE:
            return f"result {index} differs by {apart:.2g}"
    return ""


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of a - b over the norm of b, where both are finite; infinity if they are not finite in the same places."""
    if a.shape != b.shape:
        return float("inf")
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)):
        return float("inf")
    return float(np.linalg.norm(a[finite] - b[finite]) / (np.linalg.norm(b[finite]) + 1e-30))


def matched(case: str, ours: Sequence[Row], theirs: Sequence[Row], problem: str) -> list[Row]:
    """A row per kernel: the k-th launch of a name by one compiler belongs to the k-th launch of the name by the other."""
    a, b = _medians(ours), _medians(theirs)
    rows: list[Row] = []
    for key in a:
        if key not in b:
            rows.append({"case": case, "kernel": key[0], "problem": "Triton launched it less often"})
            continue
        rows.append({"case": case, "kernel": key[0], "triton": b[key], "blocknb": a[key], "ratio": b[key] / a[key]})
        if problem:
            rows[-1]["problem"] = problem
    rows += [{"case": case, "kernel": key[0], "problem": "blocknb launched it less often"} for key in b if key not in a]
    if problem and not any("ratio" in row for row in rows):  # the results differ, whatever was launched
        rows.append({"case": case, "kernel": "", "problem": problem})
    return rows


def _medians(rounds: Sequence[Row]) -> dict[tuple[str, int], float]:
    """The median microseconds by name and number of the launch, over all rounds and repeats."""
    names: list[str] = rounds[0]["kernels"]
    count: dict[str, int] = {}
    found = {}
    for place, name in enumerate(names):
        count[name] = count.get(name, 0) + 1
        times = [repeat[place] for answer in rounds for repeat in answer["times"]]
        found[name, count[name]] = statistics.median(times)
    return found


def line(row: Row) -> str:
    """A kernel as a line of the table."""
    where = f"{row['case']:55} {row['kernel']:45}"
    if "ratio" not in row:
        return f"{where} {row['problem'] or 'same results'}"
    wrong = f"  WRONG: {row['problem']}" if "problem" in row else ""
    return f"{where} {row['triton']:9.1f} {row['blocknb']:9.1f} us {row['ratio']:6.2f}{wrong}"


def compiled_line(row: Row) -> str:
    """A compiled kernel as a line of the table."""
    if "error" in row:
        return f"{row['case']:55} {row['kernel']:45} REFUSED: {row['error']}"
    return f"{row['case']:55} {row['kernel']:45} {row['registers']:4} registers {row['spills']:6} bytes spilled"


def summary(rows: Sequence[Row]) -> str:
    """The geometric mean, the share of slow kernels, the slowest, and the failures."""
    timed = [row for row in rows if "ratio" in row]
    mean = geometric_mean(row["ratio"] for row in timed)
    slow = sorted((row for row in timed if row["ratio"] < SLOW), key=lambda row: row["ratio"])
    failed = list(dict.fromkeys((row["case"], row["problem"]) for row in rows if row.get("problem")))
    if mean is None:
        lines = ["no kernel was measured"]
    else:
        lines = [f"{len(timed)} kernels: Triton's time over blocknb's, geometric mean {mean:.3f}; {len(slow)} below {SLOW:g} "
                 f"({len(slow) / len(timed):.1%})"]  # fmt: skip
    lines += [f"  slow: {line(row)}" for row in slow]
    lines += [f"  failed: {case}: {text}" for case, text in failed]
    return "\n".join(lines)


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of the summary."""
    timed = [row["ratio"] for row in rows if "ratio" in row]
    return {"kernels": len(timed), "mean": geometric_mean(timed), "slow": sum(ratio < SLOW for ratio in timed)}
