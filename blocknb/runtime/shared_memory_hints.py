"""The changes that make a kernel fit into the shared memory of its target: smaller constants, by the buffers whose shapes contain them.

A buffer that is 256 wide for `BN=256` takes half with `BN=128`. The estimate assumes that the passes decide as before, so it says "about".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blocknb.errors import OutOfResources, SharedBuffer

SHOWN = 3  # buffers that an error lists
LEAST = 16  # the smallest value of a constant that is suggested


def explained(error: OutOfResources, constants: Mapping[str, Any]) -> str:
    """The hint of an error on shared memory: its largest buffers, and the constants with which the rest would fit."""
    largest = sorted(error.buffers, key=lambda buffer: -buffer.bytes)[:SHOWN]
    listed = ", ".join(f"{buffer.bytes} bytes for {buffer.text}{_line(buffer)}" for buffer in largest)
    more = len(error.buffers) - len(largest)
    parts = [error.hint or "", f"the largest buffers: {listed}" + (f", and {more} more" if more else "")]
    parts += [" or ".join(fitting)] if (fitting := list(_fitting(error, constants))) else []
    return "; ".join(filter(None, parts))


def _line(buffer: SharedBuffer) -> str:
    return f" (line {buffer.line})" if buffer.line else ""


def _fitting(error: OutOfResources, constants: Mapping[str, Any]) -> Iterator[str]:
    """For each value of the constants: a smaller power of two with which the kernel would fit."""
    names: dict[int, list[str]] = {}
    for name, value in constants.items():
        if isinstance(value, int) and not isinstance(value, bool) and value > LEAST:
            names.setdefault(value, []).append(name)
    for value, named in names.items():
        smaller = value // 2
        while smaller >= LEAST:
            total = _total(error.buffers, value, smaller)
            if total <= error.limit:
                chosen = " and ".join(f"{name}={smaller}" for name in named)
                yield f"{chosen} would fit, with about {total} bytes"
                break
            smaller //= 2


def _total(buffers: Sequence[SharedBuffer], value: int, smaller: int) -> int:
    """The bytes of the buffers that live at the same time, at most, if a constant with this value becomes smaller."""
    sizes = [(buffer, _size(buffer, value, smaller)) for buffer in buffers]
    return max(sum(size for other, size in sizes if other.first <= at.first <= other.last) for at in buffers)


def _size(buffer: SharedBuffer, value: int, smaller: int) -> int:
    size = buffer.bytes
    for extent in buffer.shape:
        if extent == value:
            size = size * smaller // extent
    return size
