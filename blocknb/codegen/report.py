"""The form in which machine code writes prints, failed assertions and faulty accesses, and `decode`, which reads it.

A report is one block of 64-bit words. It begins with a counter for each kind of record. Then comes a region of records for each kind. That
for faults is short, since the first ones suffice, and that for prints is long. A thread takes a number from the counter and, if there is
room, writes the record of that number. So the counters show how many records were lost. To use a report again, zero its counters. A record
has four words: site and event, program x and y, program z and element, and a value. The value has the bits of an element that is printed or
that breaks a hint. Or it is the offset of an access, in elements from the pointer that was passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.ir import report as words_of
from blocknb.ir.report import Access, Assertion, Overrun, Print, Printed, Program

HEADER = 4  # words
RECORD = 4  # words


@dataclass(frozen=True)
class Region:
    """The records of one kind: the index of the word that counts them, the index of the first word, and how many have room."""

    counter: int
    first: int
    room: int


_FAULTS, _PRINTS = 1 << 10, 1 << 15
REGIONS = {
    "outside": Region(0, HEADER, _FAULTS),
    "assert": Region(1, HEADER + RECORD * _FAULTS, _FAULTS),
    "print": Region(2, HEADER + RECORD * 2 * _FAULTS, _PRINTS),
}
WORDS = HEADER + RECORD * (2 * _FAULTS + _PRINTS)

Site = Access | Assertion | Print | Overrun
#: The arguments that are arrays: the name, its address, and the bytes that may be accessed (from, to).
Arrays = Mapping[int, tuple[str, int, int, int]]


@dataclass(frozen=True)
class ReportRecord:
    """The fields of one record."""

    site: int
    event: int
    program: Program
    index: int
    payload: int


@dataclass(frozen=True)
class Report:
    """The report of one launch: `printed` of `total_printed` lines, and the first error."""

    printed: tuple[Printed, ...]
    total_printed: int
    error: KernelError | None

    @property
    def text(self) -> str:
        """The printed lines."""
        return words_of.lines(self.printed, self.total_printed)


def counted(words: np.ndarray, kind: str) -> int:
    """How many records of a kind were written, which have room."""
    region = REGIONS[kind]
    return min(int(words[region.counter]), region.room)


def records(words: np.ndarray, kind: str) -> list[ReportRecord]:
    """The records of a kind."""
    region, count = REGIONS[kind], counted(words, kind)
    table = words[region.first : region.first + RECORD * count].reshape(count, RECORD)
    low, high = (table[:, :3] & 0xFFFFFFFF).tolist(), (table[:, :3] >> 32 & 0xFFFFFFFF).tolist()
    return [
        ReportRecord(a[0], b[0], (a[1], b[1], a[2]), b[2], payload)
        for a, b, payload in zip(low, high, table[:, 3].tolist(), strict=True)
    ]


def decode(words: np.ndarray, sites: Sequence[Site], arrays: Arrays) -> Report:
    """The report in words of int64."""
    printed = []
    for r in records(words, "print"):
        site: Any = sites[r.site]
        value = None if site.dtype is None else words_of.value_of(r.payload, site.dtype)
        printed.append(Printed(site, r.program, r.event, r.index, value))
    return Report(tuple(printed), int(words[REGIONS["print"].counter]), _error(words, sites, arrays))


def _error(words: np.ndarray, sites: Sequence[Site], arrays: Arrays) -> KernelError | None:
    """The error for the first fault in the order of programs, among those that were recorded."""
    faults = [r for kind in ("outside", "assert") for r in records(words, kind)]
    if not faults:
        return None
    first = min(faults, key=lambda r: (*r.program[::-1], r.event, r.index))
    site = sites[first.site]
    if isinstance(site, Assertion):
        total = int(words[REGIONS["assert"].counter])
        return words_of.assertion_error(site, first.program, first.index, total, first.payload)
    assert isinstance(site, Access), "only accesses and assertions fail"
    name, reach, total = "", (0, -1), int(words[REGIONS["outside"].counter])
    if site.argument != words_of.NO_ARGUMENT:
        name, address, lower, upper = arrays[site.argument]
        reach = words_of.reach(address, lower, upper, site.bytes)
    return words_of.access_error(site, name, first.program, first.payload, reach, total)
