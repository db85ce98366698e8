"""The card as data: one JSON document under one MIME type, which a page can show without a running kernel.

`application/vnd.blocknb.v1+json` has a `kind` (here "compile") and a `schema` number. Stages and code refer to their listings, the blobs,
by the hash of their content (`notebook.blobs`). Each stage lists what it did to every op, by id. Texts beyond the budget are listed in
`left_out` with the call that returns them. Stages and code name their hashes, too, so the page can request them from a running kernel.
`labextension/src/core/schema.ts` declares the same format for the reader.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blocknb.notebook.blobs import Blobs, name_of
from blocknb.notebook.changes import changes
from blocknb.notebook.helper_sources import inlined_helpers, inner
from blocknb.notebook.sections import Section
from blocknb.profile.occupancy import occupancy
from blocknb.trace import Stage, Trace

MIME = "application/vnd.blocknb.v1+json"
SCHEMA = 4


def hash_of(text: str) -> str:
    """The hash of a source text, which identifies a version of a kernel."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class DocumentTarget:
    """One target of the document. `role` is "ran", "compiled" or "view"; if compilation failed, there is an `error`, and the
    trace, if any, has the stages that ran."""

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
    targets: Sequence[DocumentTarget],
    budget: int = 50_000,
) -> dict[str, Any]:
    """Builds the document. `budget` bounds views and blobs, in characters; the rest is small."""
    texts: list[RankedText] = []
    made = [_view(target, texts) for target in targets]
    blobs = Blobs(budget - len(json.dumps(made, ensure_ascii=False)))
    for text in sorted(texts, key=lambda text: text.rank):
        blobs.add(text.content, text.what, text.call, text.base)
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
        **inlined_helpers([target.trace for target in targets if target.trace is not None]),
    }


@dataclass(frozen=True)
class RankedText:
    """A text of the document. Texts of a lower `rank` are stored first. `what`, `call` and `base` are those of `Blobs.add`."""

    rank: int
    content: Mapping[str, Any]
    what: str
    call: str
    base: str | None = None


def _view(target: DocumentTarget, texts: list[RankedText]) -> dict[str, Any]:
    trace, head = target.trace, {"role": target.role, "label": target.label, "place": target.place}
    if trace is None:
        return {**head, "error": target.error}
    by_key = _texts([section for section in target.sections if not section.later], texts)
    counts = [sum(1 for _ in stage.after.ops()) for stage in trace.stages]
    return {
        **head,
        **({"error": target.error} if target.error else {}),
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
        "resources": resources_of(trace),
        "warnings": list(trace.resources.warnings),
        "milliseconds": {name: round(ms, 4) for name, ms in trace.milliseconds.items()},
        "from_cache": trace.from_cache,
    }


def resources_of(trace: Trace) -> dict[str, Any]:
    """The resources of a compilation, with the occupancy."""
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
        **({"edited": True} if stage.edited else {}),
        "title": stage.title,
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


def _texts(listed: Sequence[Section], texts: list[RankedText]) -> dict[str, str]:
    """The hashes of texts by key. Adds the texts with their ranks: what a reader looks at first is stored first.

    The order is the last stage, machine code, the earlier stages backwards (each as its difference to the next one), and LLVM.
    """
    stages = [section for section in reversed(listed) if section.language == "ir"]
    found, base = dict[str, str](), None
    for section in [*stages, *(section for section in listed if section.language != "ir")]:
        content, is_ir = content_of(section), section.language == "ir"
        rank = (0 if section is stages[0] else 2) if is_ir else (3 if section.key == "llvm" else 1)
        what = f"{section.title} ({section.group})"
        texts.append(RankedText(rank, content, what, section.call, base if is_ir else None))
        name = found[section.key] = name_of(content)
        base = name if is_ir else base
    return found


def content_of(section: Section) -> dict[str, Any]:
    """A listing as a blob stores it: its text without notes, the line and op of each line, and lines in helpers (`helper_sources`)."""
    code = [line for line in section.lines if not line.note]
    content: dict[str, Any] = {"text": "\n".join(line.text for line in code)}
    content["lines"] = [line.line or 0 for line in code]
    if section.language == "ir":
        content["ops"] = [-1 if line.op is None else line.op for line in code]
    if any(line.helper for line in code):
        content["inner"] = [inner(line.helper) if line.helper else 0 for line in code]
    return content
