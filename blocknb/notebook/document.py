"""The card as data: one JSON document under one MIME type, which a page can show with no kernel behind it.

`application/vnd.blocknb.v1+json` has a `kind` (here "compile") and a `schema` number. Every listing is a blob, named by the
hash of its content and stored once, gzipped and in base64, however many stages share it; stages and code refer to blobs by that
hash. A blob's text is JSON: `{"text": ..., "lines": [...], "ops": [...]}`, where `lines` gives the source line of each line of
text and `ops` the id of its op (0 and -1: none). Each stage says what it did to every op, by id. What does not fit into the
budget is listed in `left_out`, with its call. `labextension/src/core/schema.ts` is the reader's view of the same.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blocknb.notebook.changes import changes
from blocknb.notebook.sections import Section
from blocknb.profile.occupancy import occupancy
from blocknb.trace import Stage, Trace

MIME = "application/vnd.blocknb.v1+json"
SCHEMA = 2
# What is stored first when not everything fits: the last stage's IR, what the machine runs, the other stages, LLVM last. A kernel that is
# there gives the page what was left out.
_ORDER = {
    "ptx": -1,
    "sass": -1,
    "assembly": -1,
    "llvm": 1,
}  # of stages the last one comes first; a live kernel gives those left out

NAMED = 40  # characters that a text's name adds to a document: before it, and where it is referred to


class Blobs:
    """Texts by hash, as long as the budget (characters of base64) lasts; what `stored` has already costs nothing."""

    def __init__(self, budget: int, stored: Mapping[str, str] | None = None):
        self.left, self.stored, self.added = budget, dict(stored or {}), dict[str, str]()
        self.left_out: list[dict[str, Any]] = []

    def add(self, content: Mapping[str, Any], what: str, call: str) -> str | None:
        """The content's hash, or None if it does not fit any more; then `left_out` says how to get it."""
        raw = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        name = hashlib.sha256(raw).hexdigest()[:16]
        if name in self.stored:
            return name
        packed = "" if self.left <= 0 else base64.b64encode(gzip.compress(raw, mtime=0)).decode()
        if packed and self.add_packed(name, packed):
            return name
        self.left_out.append({"what": what, "bytes": len(raw), "call": call})
        return None

    def add_packed(self, name: str, packed: str) -> bool:
        """Stores what another document packed; whether it fits."""
        if name not in self.stored:
            if len(packed) + NAMED > self.left:
                return False
            self.left -= len(packed) + NAMED
            self.stored[name] = self.added[name] = packed
        return True


def hash_of(text: str) -> str:
    """The hash that names a source text, and so a version of a kernel."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unpack(packed: str) -> dict[str, Any]:
    """What `Blobs` stored, again as data."""
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@dataclass(frozen=True)
class Target:
    """One target as the document shows it. `role` is "ran", "compiled" or "view"; a target that could not be compiled for has an
    `error` and no trace."""

    role: str
    label: str
    place: str
    trace: Trace | None
    sections: Sequence[Section] = ()
    error: str = ""


def build(
    kernel: str,
    facts: Sequence[tuple[str, str]],
    launches: Sequence[Mapping[str, Any]],
    targets: Sequence[Target],
    budget: int = 50_000,
) -> dict[str, Any]:
    """The document. `budget` bounds views and blobs, in characters; the rest is small."""
    skeleton = [_view(target, Blobs(0)) for target in targets]
    blobs = Blobs(budget - len(json.dumps(skeleton, ensure_ascii=False)))
    made = [_view(target, blobs) for target in targets]
    first = next(target.trace for target in targets if target.trace is not None)
    source = {"file": first.file, "first_line": first.first_line, "text": first.source}
    source["hash"] = hash_of(first.source)
    return {
        "schema": SCHEMA,
        "kind": "compile",
        "kernel": kernel,
        "version": source["hash"],
        "facts": [list(fact) for fact in facts],
        "source": source,
        "launches": list(launches),
        "views": made,
        "blobs": blobs.stored,
        "left_out": blobs.left_out,
    }


def _view(target: Target, blobs: Blobs) -> dict[str, Any]:
    trace, head = target.trace, {"role": target.role, "label": target.label, "place": target.place}
    if trace is None:
        return {**head, "error": target.error}
    there = [section for section in target.sections if not section.later]
    last = trace.stages[-1].name if trace.stages else ""
    by_key = {
        s.key: _blob(s, blobs) for s in sorted(there, key=lambda s: -2 if s.key == last else _ORDER.get(s.key, 0))
    }
    counts = [sum(1 for _ in stage.after.ops()) for stage in trace.stages]
    return {
        **head,
        "target": str(trace.target),
        "signature": dict(trace.signature),
        "constants": {name: repr(value) for name, value in trace.constants.items()},
        "options": {name: repr(value) for name, value in trace.options.items()},
        "stages": [
            _stage(stage, trace, by_key.get(stage.name), count, count - before, first=i == 0)
            for i, (stage, count, before) in enumerate(zip(trace.stages, counts, [0, *counts], strict=False))
        ],
        "code": {key: by_key[key] for key in ("llvm", "ptx", "sass", "assembly") if by_key.get(key)},
        "later": [section.key for section in target.sections if section.later],
        "resources": _resources(trace),
        "warnings": list(trace.resources.warnings),
        "milliseconds": {name: round(ms, 4) for name, ms in trace.milliseconds.items()},
        "from_cache": trace.from_cache,
    }


def _resources(trace: Trace) -> dict[str, Any]:
    names = ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "threads")
    found = {name: getattr(trace.resources, name) for name in names}
    held = occupancy(trace.target, trace.resources)
    if held is None:
        return {**found, "occupancy": None}
    return {**found, "occupancy": {**asdict(held), "advice": list(held.advice), "percent": round(held.percent, 1)}}


def _stage(stage: Stage, trace: Trace, text: str | None, ops: int, delta: int, first: bool) -> dict[str, Any]:
    found = changes(stage.before, stage.after)
    return {
        "name": stage.name,
        "title": stage.title,
        "doc": stage.doc,
        "optional": stage.optional,
        "skipped": stage.skipped,
        "changed": first or stage.changed,
        "milliseconds": round(stage.milliseconds, 4),
        "ops": ops,
        "delta": delta,
        "text": text,
        "notes": [_note(note, trace) for note in stage.notes],
        "made": [op.id for op in stage.after.ops()] if first else list(found.made),
        "moved": list(found.moved),
        "retyped": list(found.retyped),
        "deleted": list(found.deleted),
        "origin": {str(op): list(was) for op, was in found.origin.items()},
    }


def _note(note: Any, trace: Trace) -> dict[str, Any]:
    from blocknb.notebook.sections import line_of

    return {"text": note.text, "kind": note.kind, "op": note.op, "line": line_of(note.loc, trace.file)}


def _blob(section: Section, blobs: Blobs) -> str | None:
    return blobs.add(content_of(section), f"{section.title} ({section.group})", section.call)


def content_of(section: Section) -> dict[str, Any]:
    """A listing as a blob holds it: its text without notes, and the line and op of each line."""
    code = [line for line in section.lines if not line.note]
    content: dict[str, Any] = {"text": "\n".join(line.text for line in code)}
    content["lines"] = [line.line or 0 for line in code]
    if section.language == "ir":
        content["ops"] = [-1 if line.op is None else line.op for line in code]
    return content
