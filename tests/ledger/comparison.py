"""The file of the ledger, and what has changed in it: for the better, for the worse, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path(__file__).parents[1] / "golden" / "sass_ledger.txt"
#: Counters of which less is better, the most important first; the first one that differs decides.
WORSE_IF_MORE = ("spill", "refused", "ldg", "stg", "async", "lds", "sts", "bar", "atom", "code", "regs")


def read(file: Path = FILE) -> tuple[str, dict[str, str]]:
    """The version of ptxas and the lines by kernel; "" and none where there is no file."""
    if not file.exists():
        return "", {}
    head, *rest = file.read_text().splitlines()
    return head.removeprefix("# sm_90a, ptxas "), dict(line.split(" | ", 1) for line in rest)


def write(version: str, lines: Mapping[str, str], file: Path = FILE) -> None:
    """Writes the file, sorted by kernel."""
    rows = [f"{name} | {line}" for name, line in sorted(lines.items())]
    file.write_text("\n".join([f"# sm_90a, ptxas {version}", *rows]) + "\n")


def totals(line: str) -> dict[str, int]:
    """Each counter of a line; a group by widths or names counts all of its instructions."""
    found: dict[str, int] = {}
    for word in line.split("  "):
        name, _, value = word.partition(" ")
        numbers = re.findall(r":(\d+)", value)
        found[name] = sum(map(int, numbers)) if numbers else int(value) if value.isdigit() else 1
    return found


def verdict(before: str, after: str) -> str:
    """ "better", "worse" or "other": by the first of `WORSE_IF_MORE` that differs."""
    old, new = totals(before), totals(after)
    for name in WORSE_IF_MORE:
        if old.get(name, 0) != new.get(name, 0):
            return "worse" if new.get(name, 0) > old.get(name, 0) else "better"
    return "other"


def changes(before: Mapping[str, str], after: Mapping[str, str], whole: bool) -> list[str]:
    """A text for each kernel whose line differs, the worse ones first; with `whole`, also for kernels that are gone."""
    found: list[tuple[str, str]] = []
    for name, line in after.items():
        if name not in before:
            found.append(("new", f"new     {name}\n          + {line}"))
        elif before[name] != line:
            word = verdict(before[name], line)
            found.append((word, f"{word:<7} {name}\n          - {before[name]}\n          + {line}"))
    found += [("gone", f"gone    {name}") for name in before if whole and name not in after]
    order = ("worse", "better", "other", "new", "gone")
    return [text for _, text in sorted(found, key=lambda one: (order.index(one[0]), one[1]))]


def summary(texts: Iterable[str]) -> str:
    """How many kernels became better and worse."""
    words = [text.split()[0] for text in texts]
    counts = [f"{words.count(word)} {word}" for word in ("worse", "better", "other", "new", "gone") if word in words]
    return ", ".join(counts) or "nothing changed"
