"""Stores the texts of a document: each once, under the hash of its content, compressed by gzip and encoded in base64.

A listing's content is `{"text": ..., "lines": [...], "ops": [...]}`. `lines` gives the source line of each line of text (0: none), and
`ops` the op id of each line of IR (-1: none). If the kernel calls helpers in other files, `inner` gives the line in the helper (0: none;
see `helper_sources`). Two steps before gzip make it small:

- Generated code repeats lines in which only numbers grow: registers, ops, offsets. So a long listing is stored as `templates`, which are
  its distinct lines with a mark for each number. `rows` gives the template of each line. `numbers` are differences to the numbers of the
  last line with the same template. That is columnar storage with delta coding, as in log compressors such as CLP. `lines` and `ops` are
  differences, too. The 2,700 ops of an unrolled loop take a thirtieth of what gzip alone takes, and less time.
- A pass changes few lines. So IR is stored as the difference to the IR of another stage, its base, where that is shorter. The packed text
  is then followed by a space and the hash of the base. Its content is a list of parts: `[first, end]` for lines of the base, or lines as
  content. A base is stored before the texts that need it.

A document may come from a stranger, and a kilobyte of gzip can hold a megabyte, so `read` and `unpack` have a limit.
`labextension/src/core/inflate.ts` reads the same format, within limits of its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

NAMED = 40  # characters that a text's hash adds to a document: where it is stored, and where it is referred to
#: Characters that `read` and `unpack` inflate at most, as in inflate.ts.
MOST = 1 << 28
#: The longest chain of bases. A kernel has fewer stages.
MOST_BASES = 500
#: zlib's level. The higher ones take three times as long for 3 % less.
LEVEL = 6
#: A difference with this share of lines of its base is stored without a look at the size of the whole text.
KEPT = 0.97
#: The mark for a number in a template. A text that contains it is stored as it is.
MARK = "\x7f"
_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,8})(?![0-9])")

Row = tuple[str, int, int, int]  # a line, its source line, its op, and its line in a helper


class InflationLimit(ValueError):
    """A text inflates to more characters than a reader accepts."""

    def __init__(self, limit: int):
        super().__init__(
            f"a text of this document inflates to more than {limit} characters, so the document is damaged or hostile; "
            "run the cell again to make a new one"
        )


#: The packed texts of the last documents, by their hash and that of their base.
_PACKED: dict[tuple[str, str | None], str] = {}
KEPT_PACKED = 256


class Blobs:
    """Texts by hash, within a budget (characters of base64); texts that are in `stored` cost nothing."""

    def __init__(self, budget: int, stored: Mapping[str, str] | None = None):
        self.left, self.stored, self.added = budget, dict(stored or {}), dict[str, str]()
        self.left_out: list[dict[str, Any]] = []
        self._listings: dict[str, Mapping[str, Any]] = {}  # the listings of IR that were added

    def add(self, content: Mapping[str, Any], what: str, call: str, base: str | None = None) -> str:
        """Stores a content if it fits, and returns its hash. If it does not fit, `left_out` gets the call that returns it.

        `base` is the hash of IR that was added before and shares most of its lines.
        """
        raw = _json(content)
        name = _hash(raw)
        if "ops" in content:
            self._listings[name] = content
        if name in self.stored:
            return name
        if self.left > 0 and self.add_packed(name, self._remembered(name, content, raw, base)):
            return name
        self.left_out.append({"what": what, "bytes": len(raw), "call": call, "text": name})
        return name

    def add_packed(self, name: str, packed: str) -> bool:
        """Stores a text that another document packed; returns whether it fits and its base, if it has one, is stored."""
        if name not in self.stored:
            base = packed.partition(" ")[2]
            if len(packed) + NAMED > self.left or (base and base not in self.stored):
                return False
            self.left -= len(packed) + NAMED
            self.stored[name] = self.added[name] = packed
        return True

    def _remembered(self, name: str, content: Mapping[str, Any], raw: bytes, base: str | None) -> str:
        """The packed text, from the last documents if one of them had it: a cell that runs again has the same texts."""
        key = name, base if base in self.stored and base in self._listings else None
        if (packed := _PACKED.pop(key, None)) is None:
            packed = self._packed(content, raw, key[1])
        _PACKED[key] = packed  # the newest last
        while len(_PACKED) > KEPT_PACKED:
            _PACKED.pop(next(iter(_PACKED)), None)
        return packed

    def _packed(self, content: Mapping[str, Any], raw: bytes, base: str | None) -> str:
        if base is None:
            return _compressed(_shorter(content, raw))
        parts = _difference(_rows(self._listings[base]), _rows(content))
        difference = f"{pack(parts)} {base}"
        own = sum(len(part["lines"]) for part in parts if isinstance(part, dict))
        if own <= (1 - KEPT) * len(content["lines"]):
            return difference
        return min(difference, _compressed(_shorter(content, raw)), key=len)


def name_of(content: Mapping[str, Any]) -> str:
    """The hash under which a document stores a content."""
    return _hash(_json(content))


def read(blobs: Mapping[str, str], name: str, limit: int = MOST) -> dict[str, Any]:
    """The content of a text by its hash. Raises KeyError, and InflationLimit if it or its bases inflate to more than `limit` characters."""
    return _read(blobs, name, _Inflated(limit))


def pack(content: Any) -> str:
    """JSON, gzipped, in base64."""
    return _compressed(_shorter(content, _json(content)))


def unpack(packed: str, limit: int = MOST) -> Any:
    """Inverts `pack`. Raises InflationLimit if the content has more than `limit` characters, and ValueError if it is incomplete."""
    return _expanded(_inflated(packed, inflated := _Inflated(limit)), inflated)


class _Inflated:
    """Counts what one call inflates."""

    def __init__(self, limit: int):
        self.limit = self.left = limit
        self.seen = set[str]()

    def visit(self, name: str) -> None:
        """Counts a text in a chain of bases."""
        if name in self.seen or len(self.seen) >= MOST_BASES:
            raise ValueError("the texts of this document refer to each other in a circle, or in too long a chain")
        self.seen.add(name)

    def take(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise InflationLimit(self.limit)


def _read(blobs: Mapping[str, str], name: str, inflated: _Inflated) -> dict[str, Any]:
    inflated.visit(name)
    packed, _, base = blobs[name].partition(" ")
    found = _inflated(packed, inflated)
    if not base:
        content: dict[str, Any] = _expanded(found, inflated)
        return content
    rows, made = _rows(_read(blobs, base, inflated)), list[Row]()
    for part in found:
        added = rows[slice(*part)] if isinstance(part, list) else _rows(_expanded(part, inflated))
        inflated.take(sum(len(text) + 1 for text, *_ in added))
        made += added
    return _content(made)


def _inflated(packed: str, inflated: _Inflated) -> Any:
    machine = zlib.decompressobj(wbits=31)
    try:
        raw = machine.decompress(base64.b64decode(packed), inflated.left + 1)
    except zlib.error as error:
        raise ValueError(f"a text of this document is damaged: {error}") from None
    inflated.take(len(raw))
    if not machine.eof:
        raise ValueError("a text of this document ends too early")
    return json.loads(raw)


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


def _compressed(raw: bytes) -> str:
    return base64.b64encode(gzip.compress(raw, LEVEL, mtime=0)).decode()


def _rows(content: Mapping[str, Any]) -> list[Row]:
    lines = content["lines"]
    inner = content.get("inner") or [0] * len(lines)
    return list(zip(content["text"].split("\n"), lines, content["ops"], inner, strict=True))


def _content(rows: list[Row]) -> dict[str, Any]:
    texts, lines, ops, inner = (list(column) for column in zip(*rows, strict=True))
    return {"text": "\n".join(texts), "lines": lines, "ops": ops, **({"inner": inner} if any(inner) else {})}


# ---- templates -------------------------------------------------------------------------------------------------------------


def _shorter(content: Any, raw: bytes) -> bytes:
    """The JSON of a content: of its templates if it is a listing that these make shorter."""
    is_listing = isinstance(content, Mapping) and "text" in content and "lines" in content
    if not is_listing or MARK in content["text"]:
        return raw
    return min(raw, _json(_templates(content)), key=len)


def _templates(content: Mapping[str, Any]) -> dict[str, Any]:
    text, templates = content["text"], dict[str, int]()
    found = list(map(int, _NUMBER.findall(text)))
    rows, numbers, last, at = list[int](), list[int](), dict[int, list[int]](), 0
    for line in _NUMBER.sub(MARK, text).split("\n"):
        row = templates.setdefault(line, len(templates))
        rows.append(row)
        if count := line.count(MARK):
            now = found[at : at + count]
            at += count
            numbers += [a - b for a, b in zip(now, last.get(row, [0] * count), strict=True)]
            last[row] = now
    made = {"templates": list(templates), "rows": rows, "numbers": numbers, "lines": _steps(content["lines"])}
    return made | {key: _steps(content[key]) for key in ("ops", "inner") if key in content}


def _expanded(content: Any, inflated: _Inflated) -> Any:
    """Inverts `_templates`; any other content stays as it is."""
    if not isinstance(content, dict) or "templates" not in content:
        return content
    pieces = [template.split(MARK) for template in content["templates"]]
    sizes = [sum(map(len, row)) + len(row) for row in pieces]
    inflated.take(sum(sizes[row] for row in content["rows"]))
    numbers, last, texts = iter(content["numbers"]), [[0] * (len(row) - 1) for row in pieces], list[str]()
    for row in content["rows"]:
        now = last[row] = [number + next(numbers) for number in last[row]]
        first, *rest = pieces[row]
        texts.append(first + "".join(f"{number}{piece}" for number, piece in zip(now, rest, strict=True)))
    made = {"text": "\n".join(texts), "lines": list(accumulate(content["lines"]))}
    return made | {key: list(accumulate(content[key])) for key in ("ops", "inner") if key in content}


def _steps(values: Sequence[int]) -> list[int]:
    """Each value as the difference to the one before."""
    return [a - b for a, b in zip(values, [0, *values], strict=False)]


# ---- differences -----------------------------------------------------------------------------------------------------------


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
