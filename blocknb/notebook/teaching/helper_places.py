"""The lines of a recorded program that lie in helpers, as numbers, and the texts of these helpers.

A line of the kernel is its own number. A line of a helper, of the same cell or of another, is `key * LINES + line`, as in `inner` of a
document (see `helper_sources.py`).
"""

from __future__ import annotations

from typing import Any

from blocknb.errors import Loc
from blocknb.frontend.source import Source
from blocknb.notebook.helper_sources import helper_at, inner


class HelperPlaces:
    """The numbers of the places that a run of the kernel `source` recorded. `helpers` collects the texts of the helpers, by key."""

    def __init__(self, source: Source):
        self.file, self.first = source.file, source.first_line
        self.last = source.first_line + source.text.rstrip("\n").count("\n")
        self.helpers: dict[str, dict[str, Any]] = {}

    def number(self, loc: Loc) -> int | None:
        """The number of a line; None in a function whose text a card does not show, such as one of the library."""
        if loc.file == self.file and self.first <= loc.line <= self.last:
            return loc.line
        if (found := helper_at(loc.file, loc.line)) is None:
            return None
        self.helpers[str(found.key)] = found.to_json()
        return inner((found, loc.line))

    def chain(self, loc: Loc | None) -> list[int]:
        """The numbers from the line of the kernel to the innermost line; [0] without a place."""
        found: list[int] = []
        while loc is not None:
            if (number := self.number(loc)) is not None:
                found.insert(0, number)
            loc = loc.caller
        return found or [0]
