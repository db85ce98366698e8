"""The quick tier's samples: a stable hash of a test's name decides whether `make test` runs it, or only `make test-full`.

The hash spreads a sample over all kernels, and a new kernel does not move the others in or out of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import pytest


def chosen(name: str, one_in: int) -> bool:
    """Whether the name is in the sample of one in so many."""
    return crc32(name.encode()) % one_in == 0


def sample(values: Iterable[Any], one_in: int) -> list[Any]:
    """Parameters of a test: a quick run takes those that `chosen` gives, `--full` takes all. A tuple holds several parameters."""
    made = []
    for value in values:
        several = value if isinstance(value, tuple) else (value,)
        quick = chosen("/".join(map(str, several)), one_in)
        made.append(pytest.param(*several, marks=() if quick else pytest.mark.full))
    return made
