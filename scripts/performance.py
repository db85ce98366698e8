"""Keeps the timings on a GPU by commit, and draws them.

    python scripts/performance.py add FILE [--commit C]   append the results of `blocknb bench ... --json FILE`; by default C is HEAD
    python scripts/performance.py draw                    write docs/performance/timings.svg from docs/performance/timings.json

Measure and add the benchmarks that a commit has changed. A row of the table belongs to one benchmark and one peer at one commit. `low`,
`mean` and `high` are ratios of times, the peer's over blocknb's, over all `shapes`: the lowest, the geometric mean and the highest. The
mean or the highest is null where it is not known. `add` draws, too. The table has one row per line, ordered by date, so that its diff is
readable.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
TABLE, PLOT = (ROOT / "docs" / "performance" / name for name in ("timings.json", "timings.svg"))
FIELDS = ("commit", "date", "device", "benchmark", "peer", "shapes", "low", "mean", "high")
Row = dict[str, Any]


def read(file: Path = TABLE) -> list[Row]:
    """The rows of the table, the oldest first."""
    return json.loads(file.read_text()) if file.exists() else []


def text_of(rows: Iterable[Row]) -> str:
    """The table as JSON, one row per line. Rows of one date keep their order."""
    ordered = sorted(rows, key=lambda row: row["date"])
    lines = [json.dumps({name: row[name] for name in FIELDS}) for row in ordered]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def rows_of(results: dict[str, Any], commit: str, device: str = "a GPU") -> list[Row]:
    """The rows of the JSON of `blocknb bench` on a GPU: kernels by benchmark and peer, and the host time of launches. `device` is the
    device of the launches, which the results of `blocknb bench launch` do not name.

    Raises ValueError for results that are not those of a GPU.
    """
    found: list[Row] = []
    date = datetime.date.today().isoformat()
    for run in results.get("kernels", ()):
        if run["threads"] is not None:
            raise ValueError(f"{run['device']} is no GPU: the table holds times on GPUs")
        device, date = run["device"], run["date"][:10]
        ratios: dict[tuple[str, str], list[float]] = {}
        for row in run["rows"]:
            for peer, ratio in row["ratios"].items():
                ratios.setdefault((row["benchmark"], peer), []).append(ratio["value"])
        found += [
            _row(commit, date, device, benchmark, peer, f"{len(values)} shapes", values)
            for (benchmark, peer), values in ratios.items()
        ]
    times = {row["peer"]: row["us"] for row in results.get("launch", ()) if "us" in row}
    for name, ours in times.items():
        if name.startswith("blocknb") and (peer := times.get("Triton" + name.removeprefix("blocknb"))):
            kind = name.removeprefix("blocknb").strip(", ") or "five arguments"
            found.append(_row(commit, date, device, "launch", "Triton", kind, [peer / ours]))
    return found


def _row(commit: str, date: str, device: str, benchmark: str, peer: str, shapes: str, ratios: Sequence[float]) -> Row:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    numbers = (round(value, 3) for value in (min(ratios), mean, max(ratios)))
    return dict(
        zip(FIELDS, (commit, date, device.removeprefix("NVIDIA "), benchmark, peer, shapes, *numbers), strict=True)
    )


# -- the plot: a panel for each benchmark and peer, whose points are commits

WIDTH, HEIGHT, COLUMNS, LEFT, TOP = 300, 120, 3, 44, 30
INK, LINE, FAINT = "#1f2328", "#0969da", "#d0d7de"


def drawn(rows: Sequence[Row]) -> str:
    """The SVG: panels in the order of the table; a vertical line from the lowest to the highest ratio, and a point at the mean."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        detail = f" ({row['shapes']})" if row["benchmark"] == "launch" else ""
        panels.setdefault(f"{row['benchmark']}{detail} / {row['peer']}", []).append(row)
    height = -(-len(panels) // COLUMNS) * HEIGHT + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{COLUMNS * WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (title, members) in enumerate(panels.items()):
        parts += _panel(title, members, number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, rows: Sequence[Row], left: int, top: int) -> list[str]:
    least = min(0.8, *(row["low"] for row in rows))
    most = max(1.25, *map(_top, rows))
    low, span = math.log(least) - 0.05, math.log(most / least) + 0.1
    inner, bottom = WIDTH - LEFT - 16, top + HEIGHT - 22
    step = inner / len(rows)

    def y(ratio: float) -> float:
        return round(bottom - (math.log(ratio) - low) / span * (HEIGHT - TOP - 22), 1)

    parts = [f'<text x="{left + 8}" y="{top + 18}" fill="{INK}" font-weight="bold">{escape(title)}</text>']
    for ratio in dict.fromkeys((round(least, 2), 1.0, round(most, 2))):
        parts.append(f'<text x="{left + LEFT - 6}" y="{y(ratio) + 3}" fill="{INK}" text-anchor="end">{ratio:g}</text>')
        parts.append(_line(left + LEFT, y(ratio), left + LEFT + inner, y(ratio), INK if ratio == 1 else FAINT))
    for number, row in enumerate(rows):
        x = round(left + LEFT + step * (number + 0.5), 1)
        middle = row["mean"] or math.sqrt(row["low"] * _top(row))
        parts.append(f"<g><title>{escape(_said(row))}</title>")
        parts.append(_line(x, y(row["low"]), x, y(_top(row)), LINE, 3))
        parts.append(
            f'<circle cx="{x}" cy="{y(middle)}" r="3.5" fill="{LINE if row["mean"] else "#ffffff"}" stroke="{LINE}"/></g>'
        )
        parts.append(f'<text x="{x}" y="{bottom + 14}" fill="{INK}" text-anchor="middle">{row["commit"]}</text>')
    return parts


def _top(row: Row) -> float:
    return row["high"] or row["mean"]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{colour}" stroke-width="{width}"/>'


def _said(row: Row) -> str:
    mean = "" if row["mean"] is None else f", mean {row['mean']:g}"
    return f"{row['commit']}, {row['date']}, {row['device']}, {row['shapes']}: {row['low']:g} to {_top(row):g}{mean}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    add = verbs.add_parser("add", help="append the results of `blocknb bench ... --json FILE`, and draw")
    add.add_argument("file", type=Path)
    add.add_argument("--commit", default="HEAD", help="the commit that was measured")
    add.add_argument("--device", default="a GPU", help="the GPU, for the results of `blocknb bench launch` alone")
    verbs.add_parser("draw", help="write the plot")
    options = parser.parse_args()
    if options.verb == "add" and not options.file.is_file():
        parser.error(f"there is no file {options.file}")
    rows = read()
    if options.verb == "add":
        command = ["git", "rev-parse", "--short=8", options.commit]
        commit = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        new = rows_of(json.loads(options.file.read_text()), commit, options.device)
        measured = {(row["commit"], row["device"], row["benchmark"], row["peer"], row["shapes"]) for row in new}
        kept = [r for r in rows if (r["commit"], r["device"], r["benchmark"], r["peer"], r["shapes"]) not in measured]
        rows = [*kept, *new]
        TABLE.write_text(text_of(rows))
        print(f"{len(new)} rows of {commit}")
    PLOT.write_text(drawn(read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
