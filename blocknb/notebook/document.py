"""The card as data: one JSON document under one MIME type, which a page can show with no kernel behind it.

`application/vnd.blocknb.v1+json` has a `kind` (here "compile") and a `schema` number. Every listing is a blob, named by the
hash of its content and stored once, gzipped and in base64, however many stages share it; stages and code refer to blobs by that
hash. A blob's text is JSON: `{"text": ..., "lines": [...], "ops": [...]}`, where `lines` gives the source line of each line of
text and `ops` the id of its op (0 and -1: none). What does not fit into the budget is listed in `left_out`, with its call.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from blocknb.notebook.sections import Section
from blocknb.trace import Trace

MIME = "application/vnd.blocknb.v1+json"
SCHEMA = 1
# What is stored first when not everything fits: the IR, then what the machine runs, LLVM last.
_ORDER = {"sass": 1, "ptx": 2, "assembly": 3, "llvm": 4}


class Blobs:
    """Texts by hash, as long as the budget (characters of base64) lasts."""

    def __init__(self, budget: int):
        self.left, self.stored = budget, dict[str, str]()
        self.left_out: list[dict[str, Any]] = []

    def add(self, content: Mapping[str, Any], what: str, call: str) -> str | None:
        """The content's hash, or None if it does not fit any more; then `left_out` says how to get it."""
        raw = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        name = hashlib.sha256(raw).hexdigest()[:16]
        if name in self.stored:
            return name
        packed = "" if self.left <= 0 else base64.b64encode(gzip.compress(raw, mtime=0)).decode()
        if not packed or len(packed) > self.left:
            self.left_out.append({"what": what, "bytes": len(raw), "call": call})
            return None
        self.left -= len(packed)
        self.stored[name] = packed
        return name


def unpack(packed: str) -> dict[str, Any]:
    """What `Blobs` stored, again as data."""
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def build(
    kernel: str,
    facts: Sequence[tuple[str, str]],
    launches: Sequence[Mapping[str, Any]],
    views: Sequence[tuple[str, Trace | None, Sequence[Section], str]],
    budget: int = 50_000,
) -> dict[str, Any]:
    """The document. `views` are (role, trace, its sections, error): role is "ran" or "view", and a view that could not be compiled
    has no trace but an error. `budget` bounds views and blobs, in characters; the rest is small."""
    skeleton = [_view(*view, Blobs(0)) for view in views]
    blobs = Blobs(budget - len(json.dumps(skeleton, ensure_ascii=False)))
    made = [_view(*view, blobs) for view in views]
    first = next(trace for _, trace, _, _ in views if trace is not None)
    source = {"file": first.file, "first_line": first.first_line, "text": first.source}
    source["hash"] = hashlib.sha256(first.source.encode()).hexdigest()[:16]
    return {
        "schema": SCHEMA,
        "kind": "compile",
        "kernel": kernel,
        "facts": [list(fact) for fact in facts],
        "source": source,
        "launches": list(launches),
        "views": made,
        "blobs": blobs.stored,
        "left_out": blobs.left_out,
    }


def _view(role: str, trace: Trace | None, sections: Sequence[Section], error: str, blobs: Blobs) -> dict[str, Any]:
    if trace is None:
        return {"role": role, "error": error}
    by_key = {s.key: _blob(s, blobs) for s in sorted(sections, key=lambda s: _ORDER.get(s.key, 0))}
    stages = [
        {
            "name": stage.name,
            "title": stage.title,
            "doc": stage.doc,
            "optional": stage.optional,
            "skipped": stage.skipped,
            "milliseconds": round(stage.milliseconds, 4),
            "text": by_key.get(stage.name),
            "notes": [_note(note, trace) for note in stage.notes],
        }
        for stage in trace.stages
    ]
    resources = trace.resources
    return {
        "role": role,
        "target": str(trace.target),
        "signature": dict(trace.signature),
        "constants": {name: repr(value) for name, value in trace.constants.items()},
        "options": {name: repr(value) for name, value in trace.options.items()},
        "stages": stages,
        "code": {key: by_key[key] for key in ("llvm", "ptx", "sass", "assembly") if by_key.get(key)},
        "resources": {
            name: getattr(resources, name)
            for name in ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "threads")
        },
        "warnings": list(resources.warnings),
        "milliseconds": {name: round(ms, 4) for name, ms in trace.milliseconds.items()},
        "from_cache": trace.from_cache,
    }


def _note(note: Any, trace: Trace) -> dict[str, Any]:
    from blocknb.notebook.sections import line_of

    return {"text": note.text, "kind": note.kind, "op": note.op, "line": line_of(note.loc, trace.file)}


def _blob(section: Section, blobs: Blobs) -> str | None:
    code = [line for line in section.lines if not line.note]
    content: dict[str, Any] = {"text": "\n".join(line.text for line in code)}
    content["lines"] = [line.line or 0 for line in code]
    if section.language == "ir":
        content["ops"] = [-1 if line.op is None else line.op for line in code]
    return blobs.add(content, f"{section.title} ({section.group})", section.call)
