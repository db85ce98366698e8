"""The quick tier's samples: a stable hash of a name decides whether `make test` runs a test, or only `make test-full`.

The hash spreads a sample over all kernels, and a new kernel moves no other one in or out of it.
"""

from __future__ import annotations

from zlib import crc32


def part(name: str, count: int) -> int:
    """The number of the part, 0 to `count` - 1, that holds the name."""
    return crc32(name.encode()) % count


def chosen(name: str, one_in: int) -> bool:
    """Whether the name is in the sample of one in so many."""
    return part(name, one_in) == 0
