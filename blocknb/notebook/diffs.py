"""`%blockdiff A B`: two kernels, two versions of one kernel, or two passes, next to each other on a card and as a unified diff in text.

A side is `softmax` (the newest version of a kernel) or `softmax@2` (a version by number); `softmax@sm_80` compiles it for a target. A
suffix such as `:coalesce` selects the IR after that pass. Without it, the page shows all levels (`side_by_side`).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from blocknb.notebook import document, history, sections, static_diff
from blocknb.notebook.blobs import Blobs
from blocknb.notebook.card import Card, newest
from blocknb.notebook.observe import record_of
from blocknb.target import UnknownTarget
from blocknb.trace import Trace

_SIDE = re.compile(r"(?P<name>[\w.]+)(@(?P<number>\d+))?(@(?P<target>sm_\w+|cpu[\w:-]*))?(:(?P<stage>\w+))?$")


@dataclass(frozen=True)
class Side:
    """One side: its card, its label, its version, and its text as a blob's content. `stage` is "" for the source.

    `target` is the target that the side names, or ""."""

    card: Card
    label: str
    version: str
    stage: str
    content: dict[str, Any]
    target: str = ""


def side(text: str, shell: Any, target: str = "") -> Side:
    """Parses the text of a side; `target` is for one that names no target. Raises UsageError with the possible names."""
    found = _SIDE.match(text)
    if found is None:
        raise UsageError(f"{text!r} is not a kernel, kernel@version, kernel@target or kernel:pass")
    kernel = kernel_of(found["name"], shell)
    known = history.versions(kernel)
    if found["number"]:
        chosen = next((v for v in known if v.number == int(found["number"])), None)
        if chosen is None:
            there = ", ".join(f"{kernel.__name__}@{v.number}" for v in known) or "none"
            raise UsageError(f"there is no version {text}; the versions are: {there}")
        card, version, source = chosen.card, chosen.key, chosen.listing()
    else:
        record = record_of(kernel)
        if record is None:
            raise UsageError(f"{kernel.__name__} has not been launched yet")
        card, version = newest(record), document.hash_of(kernel.source.text)
        body = card.source.rstrip("\n")
        first = kernel.source.first_line
        source = {"text": body, "lines": [first + i for i in range(body.count("\n") + 1)]}
    target = found["target"] or target
    if not found["stage"]:
        return Side(card, text, version, "", source, target)
    return Side(card, text, version, found["stage"], _stage(card, found["stage"], target), target)


def kernel_of(name: str, shell: Any) -> Any:
    """The kernel that a name in the notebook refers to, also inside an autotuner. Raises UsageError."""
    from blocknb.runtime.interface import KernelInterface
    from blocknb.runtime.kernel import Kernel

    first, *rest = name.split(".")
    value = shell.user_ns.get(first)
    for part in rest:
        value = getattr(value, part, None)
    while isinstance(value, KernelInterface) and not isinstance(value, Kernel):
        value = getattr(value, "fn", None)
    if not isinstance(value, Kernel):
        raise UsageError(f"{name!r} is not a kernel")
    return value


def trace_of(card: Card, target: str = "") -> Trace:
    """The compilation of a card for a target; by default that for a GPU, if it has one. Raises UsageError for an unknown target."""
    traces = [view.trace for view in card.views if view.trace is not None]
    if not target:
        return next((t for t in traces if t.target.is_gpu), traces[0])
    found = next((t for t in traces if str(t.target) == target), None)
    try:
        return found or card.main.compiled.retarget(target).trace
    except UnknownTarget as error:
        raise UsageError(f"{error.message}; {error.hint}") from None


def _stage(card: Card, name: str, target: str) -> dict[str, Any]:
    trace = trace_of(card, target)
    for section in sections.stage_sections(trace, "", ""):
        if section.key == name:
            return document.content_of(section)
    raise UsageError(f"there is no pass {name!r}; the passes are: {', '.join(stage.name for stage in trace.stages)}")


def part(a: Side, b: Side, blobs: Blobs) -> dict[str, Any]:
    """The document's part "diff"."""
    return {
        "diff": {
            "by_op": a.card.record is b.card.record and bool(a.stage and b.stage) and a.target == b.target,
            **{
                key: {
                    "label": s.label,
                    "version": s.version,
                    "language": "ir" if s.stage else "python",
                    "first_line": 1 if s.stage else s.content["lines"][0],
                    "text": blobs.add(s.content, s.label, ""),
                }
                for key, s in (("a", a), ("b", b))
            },
        }
    }


def static_page(a: Side, b: Side) -> str:
    """The diff as HTML for pages without the extension."""
    return static_diff.rendered((a.label, a.content["text"]), (b.label, b.content["text"]))


def unified(a: Side, b: Side) -> str:
    """The unified diff as plain text, or a message if the texts are equal."""
    one, two = (s.content["text"].splitlines() for s in (a, b))
    lines = list(difflib.unified_diff(one, two, a.label, b.label, lineterm=""))
    return "\n".join(lines) if lines else f"{a.label} and {b.label} are identical"
