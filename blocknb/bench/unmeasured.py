"""The measurements that a run lacks: libraries that are missing, peers and cases that failed, results that were wrong.

The rows of benchmarks name it in a few ways. `problem` and `error` are texts of one row, `problems` has texts by peer, and `missing` and
`left out` have texts by library. `blocknb bench` lists all of them at its end, and its exit status is then not 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SHOWN = 20  # lines per benchmark
LEFT_OUT = "left out: "  # begins the reason of a peer that the device cannot have, which misses nothing
#: The keys whose values say which row it is, in the order in which they are shown.
_NAMES = (
    "device",
    "benchmark",
    "case",
    "kernel",
    "what",
    "layer",
    "step",
    "contestant",
    "peer",
    "by",
    "shape",
    "dtype",
)


def unmeasured(rows: Sequence[Any]) -> list[str]:
    """A line for each thing that the rows of a benchmark could not measure, each once."""
    return list(dict.fromkeys(_lines(rows, "")))


def _lines(rows: Sequence[Any], threads: str) -> Iterator[str]:
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        if isinstance(row.get("rows"), list):  # a document of ready-made kernels
            several = f" ({row['threads']} threads)" if (row.get("threads") or 1) > 1 else ""
            yield from (f"{peer}: {why}" for peer, why in row.get("missing", {}).items())
            yield from _lines(row["rows"], several)
            continue
        named = " ".join(_text(row[name]) for name in _NAMES if row.get(name)) + threads
        yield from (f"{named}: {row[key]}" for key in ("problem", "error") if row.get(key))
        problems = row.get("problems") or {}
        yield from (f"{named}, {peer}: {why}" for peer, why in problems.items() if not why.startswith(LEFT_OUT))


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def summary(found: Mapping[str, Sequence[str]]) -> str:
    """The lines by benchmark as one text; "" if everything was measured."""
    parts = []
    for name, lines in found.items():
        parts += [f"  {name}: {line}" for line in lines[:SHOWN]]
        parts += [f"  {name}: and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n".join(["\nNot measured", *parts]) if parts else ""
