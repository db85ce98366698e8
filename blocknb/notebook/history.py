"""The history of each kernel: its versions in this session, with their times and whether their results were right.

A version is a changed source text; running the same text again adds a measurement to its version. Kernels are identified by qualified
name, so a kernel that is defined again in a cell continues its history. A version keeps its last card (numbers and compiled code, never
an array) and the texts of its document. At most 20 versions of a kernel are kept.
"""

from __future__ import annotations

import datetime
import difflib
import itertools
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from blocknb.notebook import document, numbers
from blocknb.notebook.blobs import Blobs, read
from blocknb.notebook.observe import KernelRecord, Specialisation
from blocknb.profile.timing import Timing
from blocknb.runtime.kernel import Kernel
from blocknb.trace import Trace

KEPT_VERSIONS, KEPT_KERNELS = 20, 200


class Viewed(Protocol):
    """One target of a card, as the history needs it."""

    @property
    def trace(self) -> Trace | None: ...


class VersionCard(Protocol):
    """A card, as the history needs it."""

    @property
    def record(self) -> KernelRecord: ...
    @property
    def views(self) -> Sequence[Viewed]: ...
    @property
    def main(self) -> Specialisation: ...
    @property
    def source(self) -> str: ...
    def document(self, budget: int) -> dict[str, Any]:
        """The card as data."""
        ...


@dataclass(eq=False)
class Version:
    """One source text of a kernel.

    `number` counts from 1; `note` describes the change from the version before; `views` and `blobs` are those of its last document.
    `verdicts` are the results of `--check` by what they belong to (`_judged`), the newest last.
    """

    key: str
    number: int
    note: str
    first: str
    card: Any  # the VersionCard that was recorded
    verdicts: dict[str, CheckVerdict] = field(default_factory=dict)
    timing: Timing | None = None
    measurements: int = 0
    views: list[dict[str, Any]] = field(default_factory=list)
    blobs: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.card.views[0].trace.source if self.card.views[0].trace else ""

    @property
    def ok(self) -> bool | None:
        """The verdict on the card: of a check with the same source, constants, target and argument types. None without one."""
        found = self.verdicts.get(_judged(self.card))
        return None if found is None else found.ok

    @property
    def time(self) -> Timing | None:
        """The newest time of the version, with its device."""
        main = self.card.main
        return self.timing if main.timing is None else main.timing.on(numbers.place(main.compiled.target, main.device))

    @property
    def first_line(self) -> int:
        return self.card.views[0].trace.first_line if self.card.views[0].trace else 1

    def listing(self) -> dict[str, Any]:
        """The source as a blob's content."""
        text = self.source.rstrip("\n")
        return {"text": text, "lines": [self.first_line + i for i in range(text.count("\n") + 1)]}

    def entry(self) -> dict[str, Any]:
        """The version as the document lists it, without its texts."""
        speed, main = numbers.rate(self.card.main), self.card.main
        traces = [main.compiled.trace, *(v.trace for v in self.card.views if v.trace is not None)]
        trace = next((t for t in traces if t.target.is_gpu), None)  # of the code that ran, if that is GPU code
        found = trace.resources if trace else None
        return {
            "version": self.key,
            "number": self.number,
            "note": self.note,
            "first": self.first,
            "first_line": self.first_line,
            "constants": {n: repr(v) for n, v in main.compiled.trace.constants.items()},
            "time": None if self.time is None else self.time.entry,
            "measurements": self.measurements,
            "rate": None if speed is None else {"value": speed.value, "unit": speed.unit},
            "target": None if trace is None else str(trace.target),
            "registers": found.registers if found else None,
            "shared_bytes": found.shared_bytes if found else None,
            "spill_bytes": found.spill_bytes if found else None,
            "ok": self.ok,
        }


@dataclass(frozen=True)
class CheckVerdict:
    """The result of a `--check`: whether its `expression` held, and the count of verdicts in this session, which orders them."""

    ok: bool
    expression: str
    number: int


_numbers = itertools.count()


def _judged(card: VersionCard) -> str:
    """What a verdict belongs to: the source, the constants, the target and the types of the arguments."""
    trace = card.main.compiled.trace
    constants = {name: repr(value) for name, value in trace.constants.items()}
    return document.hash_of(json.dumps([card.source, constants, str(trace.target), dict(trace.signature)]))


def verdict(card: VersionCard) -> tuple[str, str] | None:
    """The line of a card's head on an earlier `--check`; None if there was none.

    The verdict counts for the same source, constants, target and argument types. Otherwise the line names the version that was checked."""
    found = versions(card.record.kernel)
    checked = [(v, key, known) for v in found for key, known in v.verdicts.items()]
    if not checked:
        return None
    own = next((known for _, key, known in checked if key == _judged(card)), None)
    if own is not None:
        return "check", f"{'correct' if own.ok else '✗ WRONG'} (in an earlier run of the same code): `{own.expression}`"
    version, _, last = max(checked, key=lambda item: item[2].number)
    this = version.key == document.hash_of(card.source)
    what = "this version with other constants, types or target" if this else f"version {version.number}"
    return "last checked", f"{what}, {'correct' if last.ok else 'wrong'}: `{last.expression}`"


_histories: OrderedDict[str, dict[str, Version]] = OrderedDict()


def name_of(kernel: Kernel) -> str:
    return f"{kernel.source.function.__module__}.{kernel.source.function.__qualname__}"


def versions(kernel: Kernel) -> list[Version]:
    """The versions of a kernel, the oldest first."""
    return list(_histories.get(name_of(kernel), {}).values())


def record(card: VersionCard, ok: bool | None = None, expression: str = "") -> Version:
    """Adds a cell's measurement to the kernel's history: as a new version, or as a measurement of an existing one. `ok` is the result of
    checking `expression`."""
    kernel = card.record.kernel
    known = _histories.setdefault(name_of(kernel), {})
    _histories.move_to_end(name_of(kernel))
    while len(_histories) > KEPT_KERNELS:
        _histories.popitem(last=False)
    key = document.hash_of(card.source)
    found = known.get(key)
    if found is None:
        newest = max(known.values(), key=lambda v: v.number, default=None)
        note = "" if newest is None else _changed(newest.source, card.source)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        found = known[key] = Version(key, newest.number + 1 if newest else 1, note, now, card)
        while len(known) > KEPT_VERSIONS:
            known.pop(next(iter(known)))
    found.card = card
    if ok is not None:
        key = _judged(card)
        found.verdicts.pop(key, None)
        found.verdicts[key] = CheckVerdict(ok, expression, next(_numbers))
    if card.main.timing is not None:
        found.timing = found.time
        found.measurements += 1
    return found


def replace_card(old: VersionCard, new: VersionCard) -> None:
    """Replaces the card of a version by another card of the same measurement."""
    for version in versions(old.record.kernel):
        if version.card is old:
            version.card = new


def keep_texts(card: VersionCard, made: Mapping[str, Any]) -> None:
    """Keeps the texts of a document with the version it shows, for documents of later versions."""
    for version in versions(card.record.kernel):
        if version.card is card:
            version.views, version.blobs = list(made["views"]), dict(made["blobs"])


def part(kernel: Kernel, current: str, stored: Mapping[str, str], budget: int) -> dict[str, Any] | None:
    """The parts "history" and "blobs" of a document; None for a kernel without history.

    The blobs hold the sources of all versions, and the stages of the newest other versions while the budget (characters) lasts. If not
    even the names of the stages fit, these are left out.
    """
    found = versions(kernel)
    if not found:
        return None
    entries = {v.key: v.entry() for v in found}
    blobs = Blobs(budget - size_without_texts(kernel), stored)
    for version in reversed(found):
        name = blobs.add(version.listing(), "source", "")
        entries[version.key]["source"] = name if name in blobs.stored else None
    for version in reversed(found):
        if version.key == current:
            continue
        views = [view for view in version.views if "stages" in view]
        names = _size([_stages(view, version, Blobs(1 << 40)) for view in views])  # with all texts
        if names < blobs.left:
            blobs.left -= names
            entries[version.key]["views"] = [_stages(view, version, blobs) for view in views]
    return {"history": {"versions": list(entries.values())}, "blobs": blobs.added}


def size_without_texts(kernel: Kernel) -> int:
    """The size of a history without texts, in characters."""
    entries = [{**version.entry(), "source": version.key} for version in versions(kernel)]
    return _size({"history": {"versions": entries}, "blobs": {}})


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def _stages(view: Mapping[str, Any], version: Version, blobs: Blobs) -> dict[str, Any]:
    """The stages of one target of a version, each with its text's hash, or null if the text does not fit.

    The last stage is stored first, since the others are stored as differences.
    """
    stages: list[dict[str, Any]] = []
    for stage in reversed(view["stages"]):
        packed = version.blobs.get(stage["text"] or "")
        fits = packed is not None and blobs.add_packed(stage["text"], packed)
        stages.append({"name": stage["name"], "text": stage["text"] if fits else None})
    return {"target": view["target"], "label": view["label"], "stages": stages[::-1]}


def texts(version: Version) -> list[dict[str, Any]]:
    """All stages of a version with their listings, for a page with a running kernel."""
    made = version.card.document(1 << 40)
    found = []
    for view in made["views"]:
        if "stages" in view:
            stages = [
                {"name": s["name"], "listing": read(made["blobs"], s["text"])} for s in view["stages"] if s["text"]
            ]
            found.append({"target": view["target"], "label": view["label"], "stages": stages})
    return found


def _changed(before: str, now: str) -> str:
    """ "+2 −1 lines"."""
    lines = list(difflib.ndiff(before.splitlines(), now.splitlines()))
    return f"+{sum(x[:2] == '+ ' for x in lines)} −{sum(x[:2] == '- ' for x in lines)} lines"
