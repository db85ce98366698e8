"""The live pages that are not cards: comparisons, which a page may ask for as a file, and the kernels of a model."""

from __future__ import annotations

import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blocknb import forks

KEPT = 32  # pages


@dataclass(eq=False)
class LivePage:
    """A page that a kernel answers: `export` makes the text of a file, and `requests` has by name what else the page may ask for."""

    export: Callable[[], str]
    requests: Mapping[str, Callable[[LivePage, dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    report: Callable[[dict[str, Any]], None] = lambda content: None


_pages: OrderedDict[str, LivePage] = OrderedDict()
_lock = threading.Lock()
forks.renewed(sys.modules[__name__], _lock=threading.Lock)


def register(export: Callable[[], str], requests: Mapping[str, Any] | None = None) -> str:
    """Registers a page, as long as it is among the newest KEPT; returns its id."""
    page = LivePage(export, requests or {})
    with _lock:
        _pages[page.id] = page
        while len(_pages) > KEPT:
            _pages.popitem(last=False)
    return page.id


def page(name: str) -> LivePage | None:
    """The page with this id, if it is still registered."""
    return _pages.get(name)
