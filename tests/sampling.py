"""The quick tier's samples: a stable hash of a name decides whether `make test` runs a test, or only `make test-full`.

The hash spreads a sample over all kernels, and a new kernel moves no other one in or out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32


def part(name: str, count: int) -> int:
    """The number of the part, 0 to `count` - 1, that holds the name."""
    return crc32(name.encode()) % count


def chosen(name: str, one_in: int) -> bool:
    """Whether the name is in the sample of one in so many."""
    return part(name, one_in) == 0


def sample(cases: Mapping[str, Mapping[str, Any]], one_in: int, each: Iterable[str] = ()) -> set[str]:
    """The names in the sample of one in so many cases (values of parameters by name), with each value of the parameters `each`.

    A value that the hash leaves out adds one case: of those that have it, the one whose name has the smallest hash.
    """
    ordered = sorted(cases, key=lambda name: crc32(name.encode()))
    found = {name for name in ordered if chosen(name, one_in)}
    for parameter in each:
        seen = {_key(cases[name][parameter]) for name in found}
        for name in ordered:
            if (value := _key(cases[name][parameter])) not in seen:
                seen.add(value)
                found.add(name)
    return found


def _key(value: Any) -> Any:
    """A value itself, or its text if a set cannot hold it."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
