"""Which entries run together, and with which dtypes: all of them, or a sample that contains every name once."""

from __future__ import annotations

from collections.abc import Iterator

from blocknb.language.types import DType
from matrix import ENTRIES
from matrix.build import Batch, batch
from matrix.entry import Entry

#: How many entries make a kernel: what LLVM needs for one grows faster than its length.
TOGETHER = {"sample": 8, "full": 4, "gpu": 6}


def another_name(entry: Entry) -> bool:
    """Whether an entry is a method or an alias."""
    return entry.name.startswith(("tensor.", "builtin ", "blocknb.")) or entry.name.endswith("()")


def dtypes(number: int, entry: Entry, full: bool) -> tuple[DType, ...]:
    """Every dtype; two for an alias; one in a sample, in turn."""
    count = len(entry.dtypes)
    if full and not another_name(entry):
        return entry.dtypes
    return tuple(entry.dtypes[(number * 5 + i) % count] for i in range(min(count, 2 if full else 1)))


def members(room: str, full: bool) -> list[tuple[Entry, DType]]:
    chosen = [
        (i, e) for i, e in enumerate(ENTRIES) if room in e.runs and (full or another_name(e) == (room == "interpreter"))
    ]
    return [(e, x) for i, e in chosen for x in dtypes(i, e, full)]


def batches(room: str, full: bool, most: int = 2) -> Iterator[Batch]:
    """Kernels of the entries that run on the interpreter, the CPU or a GPU, entries of one kind together. In a sample there are `most`
    cases of each, and second names are for the interpreter alone."""
    chosen = members(room, full)
    if full:
        places = {id(e): i for i, e in enumerate(ENTRIES)}
        chosen.sort(key=lambda member: (member[1].name, places[id(member[0])]))
    size = TOGETHER["gpu" if room == "gpu" else "full" if full else "sample"]
    for i in range(0, len(chosen), size):
        first, last = chosen[i][0].name, chosen[i : i + size][-1][0].name
        label = f"{first} of {chosen[i][1]} to {last}" if full else f"{first} to {last}"
        yield batch(label, chosen[i : i + size], 1000 if full else most, room == "gpu")
