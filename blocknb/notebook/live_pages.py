"""The comparisons that pages show live: a page may ask for the comparison as a file."""

from __future__ import annotations

import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from blocknb import forks

KEPT = 32  # comparisons that pages can ask for


@dataclass(eq=False)
class LivePage:
    """A comparison that a page may save as a file: `export` makes the text of the file."""

    export: Callable[[], str]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    report: Callable[[dict[str, Any]], None] = lambda content: None


_pages: OrderedDict[str, LivePage] = OrderedDict()
_lock = threading.Lock()
forks.renewed(sys.modules[__name__], _lock=threading.Lock)


def enrol(export: Callable[[], str]) -> str:
    """Registers a comparison, as long as it is among the newest KEPT; returns its id."""
    page = LivePage(export)
    with _lock:
        _pages[page.id] = page
        while len(_pages) > KEPT:
            _pages.popitem(last=False)
    return page.id


def page(name: str) -> LivePage | None:
    """The comparison with this id, if it is still registered."""
    return _pages.get(name)
