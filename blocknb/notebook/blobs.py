"""Texts as a document stores them: each once, under the hash of its content, gzipped and in base64.

A listing's content is `{"text": ..., "lines": [...], "ops": [...]}`: `lines` gives the source line of each line of text, `ops` of IR the
id of its op (0 and -1: none). A pass changes few lines, so IR is stored as the difference to that of another stage, its base, where
that is shorter: then a space and the base's hash stand behind what is packed, a list of parts, each of them either `[first, end]`,
these lines of the base, or lines as content. A base is stored before whatever needs it.
`labextension/src/core/schema.ts` reads the same.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from typing import Any

NAMED = 40  # characters that a text's name adds to a document: before it, and where it is referred to

Row = tuple[str, int, int]  # a line, its source line and its op


class Blobs:
    """Texts by hash, as long as the budget (characters of base64) lasts; what `stored` has already costs nothing."""

    def __init__(self, budget: int, stored: Mapping[str, str] | None = None):
        self.left, self.stored, self.added = budget, dict(stored or {}), dict[str, str]()
        self.left_out: list[dict[str, Any]] = []
        self._listings: dict[str, list[Row]] = {}  # of IR, those that were added

    def add(self, content: Mapping[str, Any], what: str, call: str, base: str | None = None) -> str | None:
        """The content's hash, or None if it does not fit any more; then `left_out` says how to get it. `base`: the hash of IR that
        was added before and has most of its lines."""
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
        """Stores what another document packed; whether it fits, and its base, if it has one, is there."""
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
    """What `pack` was given."""
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _rows(content: Mapping[str, Any]) -> list[Row]:
    return list(zip(content["text"].split("\n"), content["lines"], content["ops"], strict=True))


def _content(rows: list[Row]) -> dict[str, Any]:
    texts, lines, ops = (list(column) for column in zip(*rows, strict=True))
    return {"text": "\n".join(texts), "lines": lines, "ops": ops}


def _difference(old: list[Row], new: list[Row]) -> list[list[int] | dict[str, Any]]:
    """The parts that `new` is made of: runs of lines of `old`, and lines of its own."""
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
