"""Stores the texts of a document: each once, under the hash of its content, compressed by gzip and encoded in base64.

A listing's content is `{"text": ..., "lines": [...], "ops": [...]}`. `lines` gives the source line of each line of text (0: none), and
`ops` the op id of each line of IR (-1: none). A pass changes few lines. So IR is stored as the difference to the IR of another stage, its
base, where that is shorter. The packed text is then followed by a space and the hash of the base. Its content is a list of parts:
`[first, end]` for lines of the base, or lines as content. A base is stored before the texts that need it.
`labextension/src/core/inflate.ts` reads the same format, within limits.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from typing import Any

NAMED = 40  # characters that a text's hash adds to a document: where it is stored, and where it is referred to

Row = tuple[str, int, int]  # a line, its source line and its op


class Blobs:
    """Texts by hash, within a budget (characters of base64); texts that are in `stored` cost nothing."""

    def __init__(self, budget: int, stored: Mapping[str, str] | None = None):
        self.left, self.stored, self.added = budget, dict(stored or {}), dict[str, str]()
        self.left_out: list[dict[str, Any]] = []
        self._listings: dict[str, list[Row]] = {}  # the listings of IR that were added

    def add(self, content: Mapping[str, Any], what: str, call: str, base: str | None = None) -> str | None:
        """Stores a content and returns its hash, or None if it does not fit; then `left_out` gets the call that returns it.

        `base` is the hash of IR that was added before and shares most of its lines.
        """
        raw = _json(content)
        name = hashlib.sha256(raw).hexdigest()[:16]
        if "ops" in content:
            self._listings[name] = _rows(content)
        if name in self.stored:
            return name
        if self.left > 0:
            packed = [pack(content)]
            if base is not None:
                packed.append(f"{pack(_difference(self._listings[base], self._listings[name]))} {base}")
            if self.add_packed(name, min(packed, key=len)):
                return name
        self.left_out.append({"what": what, "bytes": len(raw), "call": call})
        return None

    def add_packed(self, name: str, packed: str) -> bool:
        """Stores a text that another document packed; returns whether it fits and its base, if it has one, is stored."""
        if name not in self.stored:
            base = packed.partition(" ")[2]
            if len(packed) + NAMED > self.left or (base and base not in self.stored):
                return False
            self.left -= len(packed) + NAMED
            self.stored[name] = self.added[name] = packed
        return True


def read(blobs: Mapping[str, str], name: str) -> dict[str, Any]:
    """The content of a text by its hash. Raises KeyError."""
    packed, _, base = blobs[name].partition(" ")
    found = unpack(packed)
    if not base:
        return found
    rows, made = _rows(read(blobs, base)), list[Row]()
    for part in found:
        made += rows[slice(*part)] if isinstance(part, list) else _rows(part)
    return _content(made)


def pack(content: Any) -> str:
    """JSON, gzipped, in base64."""
    return base64.b64encode(gzip.compress(_json(content), mtime=0)).decode()


def unpack(packed: str) -> Any:
    """Inverts `pack`."""
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _rows(content: Mapping[str, Any]) -> list[Row]:
    return list(zip(content["text"].split("\n"), content["lines"], content["ops"], strict=True))


def _content(rows: list[Row]) -> dict[str, Any]:
    texts, lines, ops = (list(column) for column in zip(*rows, strict=True))
    return {"text": "\n".join(texts), "lines": lines, "ops": ops}


def _difference(old: list[Row], new: list[Row]) -> list[list[int] | dict[str, Any]]:
    """The parts that make up `new`: runs of lines of `old`, and new lines."""
    places = {row: place for place, row in reversed([*enumerate(old)])}
    parts: list[list[int] | dict[str, Any]] = []
    own: list[Row] = []
    at = 0
    while at < len(new):
        first = end = places.get(new[at], len(old))
        while end < len(old) and at < len(new) and old[end] == new[at]:
            end, at = end + 1, at + 1
        if first == end:
            own.append(new[at])
            at += 1
        if own and (first < end or at == len(new)):
            parts.append(_content(own))
            own = []
        if first < end:
            parts.append([first, end])
    return parts
