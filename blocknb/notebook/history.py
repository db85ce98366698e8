"""The history of each kernel: its versions in this and in earlier sessions of the notebook, with their times and verdicts.

A version is a changed source text; running the same text again adds a measurement to its version. Kernels are identified by qualified
name, so a kernel that is defined again in a cell continues its history. A version keeps its last card (numbers and compiled code, never
an array) and the texts of its document. A version of an earlier session (see `history_file`) has its source and its numbers only. At
most 20 versions of a kernel are kept. Each measurement is a run: of a cell, of changed knobs, or of an autotuner's configuration.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import itertools
import json
import math
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from blocknb.notebook import document, history_file, numbers
from blocknb.notebook.blobs import Blobs, read
from blocknb.notebook.observe import KernelRecord, Specialisation
from blocknb.profile.timing import Timing
from blocknb.runtime.kernel import Kernel
from blocknb.trace import Trace

if TYPE_CHECKING:
    from blocknb.tune.tuning import Trial

KEPT_VERSIONS, KEPT_KERNELS = 20, 200
_IN_HISTORY = "_tuning_in_history"  # of a kernel's dictionary: the newest tuning whose trials are runs
KEPT_RUNS, SHOWN_RUNS, KEPT_TRIALS = 200, 40, 16  # of a kernel, of its document, and the fastest of a tuning
CELL, KNOBS, AUTOTUNE = "cell", "knobs", "autotune"


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


@dataclass(frozen=True)
class VersionRun:
    """One measurement of a version: by a cell, by changed knobs, or by an autotuner, with the settings that it differs by.

    `time` is a time as a document holds it, or None; `verdict` is that of the comparison with the cell, or ""."""

    id: str
    version: str
    what: str
    settings: str
    when: str
    time: dict[str, Any] | None
    verdict: str = ""

    @property
    def entry(self) -> dict[str, Any]:
        """The run as a file and a document hold it."""
        return dict(vars(self))


@dataclass(eq=False, repr=False)
class Version:
    """One source text of a kernel.

    `number` counts from 1; `note` describes the change from the version before; `views` and `blobs` are those of its last document.
    `verdicts` are the results of `--check` by what they belong to (`_judged`), the newest last. A version of an earlier session has no
    card until it runs again; `saved` is then its entry in the file. `measurements` counts those of the card's specialization, and
    `signatures` has the argument types of the cells' launches in this session.
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
    saved: Mapping[str, Any] = field(default_factory=dict)
    signatures: list[dict[str, str]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Version {self.number}: {'not run' if self.time is None else numbers.timing(self.time)}>"

    @property
    def source(self) -> str:
        if self.card is None:
            return str(self.saved["source"])
        return self.card.views[0].trace.source if self.card.views[0].trace else ""

    @property
    def ok(self) -> bool | None:
        """The verdict on the card: of a check with the same source, constants, target and argument types. None without one."""
        if self.card is None:
            return bool(ok) if (ok := self.saved["ok"]) is not None else None
        found = self.verdicts.get(_judged(self.card))
        return None if found is None else found.ok

    @property
    def time(self) -> Timing | None:
        """The newest time of the version, with its device."""
        if self.card is None:
            return _timing(self.saved["time"])
        main = self.card.main
        return self.timing if main.timing is None else main.timing.on(numbers.place(main.compiled.target, main.device))

    @property
    def first_line(self) -> int:
        if self.card is None:
            return int(self.saved["first_line"])
        return self.card.views[0].trace.first_line if self.card.views[0].trace else 1

    def listing(self) -> dict[str, Any]:
        """The source as a blob's content."""
        text = self.source.rstrip("\n")
        return {"text": text, "lines": [self.first_line + i for i in range(text.count("\n") + 1)]}

    def entry(self) -> dict[str, Any]:
        """The version as the document lists it, without its texts."""
        if self.card is None:
            kept = {name: value for name, value in self.saved.items() if name not in ("source", "verdicts")}
            return {**kept, "earlier": True}
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
    """Identifies the code that a verdict belongs to: the source, the constants, the target and the types of the arguments."""
    trace = card.main.compiled.trace
    constants = {name: repr(value) for name, value in trace.constants.items()}
    return document.hash_of(json.dumps([card.source, constants, str(trace.target), dict(trace.signature)]))


def verdict(card: VersionCard) -> tuple[str, str] | None:
    """The line of a card's head on an earlier `--check`; None if there was none.

    The verdict counts for the same source, constants, target and argument types. Otherwise the line names the version that was checked."""
    found = all_versions(card.record.kernel)
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
    """The versions of a kernel that ran in this session, the oldest first. Each has a card."""
    return [version for version in all_versions(kernel) if version.card is not None]


def all_versions(kernel: Kernel) -> list[Version]:
    """The versions of a kernel, the oldest first, including those of earlier sessions of the notebook."""
    return list(_known(kernel).values())


def runs(kernel: Kernel) -> list[VersionRun]:
    """The measurements of a kernel, the oldest first, including those of earlier sessions of the notebook."""
    _known(kernel)
    return list(_runs.get(name_of(kernel), {}).values())


_runs: dict[str, dict[str, VersionRun]] = {}  # by kernel and id


def _known(kernel: Kernel) -> dict[str, Version]:
    """The versions of a kernel by key; the first question loads those of earlier sessions."""
    name = name_of(kernel)
    if name not in _histories:
        saved, measured = history_file.load(name)
        newest = sorted(saved.items(), key=lambda item: item[1]["number"])[-KEPT_VERSIONS:]
        _histories[name] = {key: _restored(entry) for key, entry in newest}
        _saved.update(measured)
        _runs[name] = {
            key: VersionRun(**{n: run[n] for n in VersionRun.__dataclass_fields__}) for key, run in measured.items()
        }
        while len(_histories) > KEPT_KERNELS:
            _runs.pop(_histories.popitem(last=False)[0], None)
    return _histories[name]


def _restored(entry: Mapping[str, Any]) -> Version:
    """A version of an earlier session."""
    found = Version(entry["version"], entry["number"], entry["note"], entry["first"], None, saved=entry)
    found.timing, found.measurements = _timing(entry["time"]), entry["measurements"]
    for key, kept in entry["verdicts"].items():
        if isinstance(kept, list) and len(kept) == 2:
            found.verdicts[key] = CheckVerdict(bool(kept[0]), str(kept[1]), next(_numbers))
    return found


def _timing(entry: Mapping[str, Any] | None) -> Timing | None:
    if entry is None:
        return None
    figures = {name: entry[name] for name in ("median", "low", "high", "device")}
    return Timing(runs=entry["n"], cold=bool(entry["cold"]), **figures)


def save(card: VersionCard) -> None:
    """Keeps the version of a card and the run of its cell for later sessions, with the newest times. Costs a few milliseconds."""
    kernel = card.record.kernel
    version = _known(kernel).get(document.hash_of(card.source))
    if version is None or version.card is None:
        return
    measured = _runs[name_of(kernel)]
    if (
        run := next((r for r in reversed(measured.values()) if r.what == CELL and r.version == version.key), None)
    ) and version.time:
        measured[run.id] = dataclasses.replace(run, time=version.time.entry)
    verdicts = {key: [verdict.ok, verdict.expression] for key, verdict in version.verdicts.items()}
    entry = {**version.entry(), "source": version.source, "verdicts": verdicts}
    new = {key: one.entry for key, one in measured.items() if key not in _saved or key == (run.id if run else "")}
    history_file.save(name_of(kernel), {version.key: entry}, new)
    _saved.update(new)


_saved: set[str] = set()  # the ids of runs that the file has


def add_run(
    kernel: Kernel, version: str, what: str, settings: str, time: Mapping[str, Any] | None, verdict: str = ""
) -> None:
    """Adds a run to the history; `time` is a time as a document holds it. `save` keeps it."""
    _known(kernel)
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = VersionRun(
        uuid.uuid4().hex[:16], version, what, settings, when, None if time is None else dict(time), verdict
    )
    found = _runs[name_of(kernel)]
    found[made.id] = made
    while len(found) > KEPT_RUNS:
        found.pop(next(iter(found)))


def _add_tuning(kernel: Kernel, version: str) -> None:
    """Adds the fastest configurations of a kernel's newest tuning, once."""
    found = vars(kernel).get("tuning")
    if found is None:
        return
    from blocknb.tune.tuning import MEASURED, Tuning, as_keywords  # most kernels are not tuned

    if not isinstance(found, Tuning) or found.from_disk or vars(kernel).get(_IN_HISTORY) is found:
        return
    vars(kernel)[_IN_HISTORY] = found
    timed = [t for t in found.trials if t.status == MEASURED and math.isfinite(t.median)]
    for trial in sorted(timed, key=lambda t: t.median)[:KEPT_TRIALS]:
        verdict = "the best" if trial.config is found.best else ""
        add_run(kernel, version, AUTOTUNE, as_keywords(trial.config), _trial_time(trial), verdict)


def _trial_time(trial: Trial) -> dict[str, Any]:
    """The median only: an autotuner's spread is not that of the quartiles."""
    median = float(f"{trial.median:.6g}")
    return {"n": trial.rounds, "cold": None, "median": median, "low": median, "high": median, "device": ""}


def record(card: VersionCard, ok: bool | None = None, expression: str = "") -> Version:
    """Adds a cell's measurement to the kernel's history: as a new version, or as a measurement of an existing one. `ok` is the result of
    checking `expression`."""
    kernel = card.record.kernel
    known = _known(kernel)
    _histories.move_to_end(name_of(kernel))
    key = document.hash_of(card.source)
    found = known.get(key)
    if found is None:
        newest = max(known.values(), key=lambda v: v.number, default=None)
        note = "" if newest is None else _changed(newest.source, card.source)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        found = known[key] = Version(key, newest.number + 1 if newest else 1, note, now, card)
        while len(known) > KEPT_VERSIONS:
            known.pop(next(iter(known)))
    if found.card is not None and _judged(found.card) != _judged(card):
        found.measurements = 0  # those of other code
    found.card = card
    if (signature := dict(card.main.compiled.trace.signature)) not in found.signatures:
        found.signatures.append(signature)
    if ok is not None:
        key = _judged(card)
        found.verdicts.pop(key, None)
        found.verdicts[key] = CheckVerdict(ok, expression, next(_numbers))
    if card.main.timing is not None:
        found.timing = found.time
        found.measurements += 1
        add_run(
            kernel, found.key, CELL, _settings(card, found.signatures), found.timing.entry if found.timing else None
        )
    _add_tuning(kernel, found.key)
    return found


def _settings(card: VersionCard, signatures: Sequence[Mapping[str, str]]) -> str:
    """The constants of a cell's launch, and the argument types that differ between the launches of its version (`signatures`):
    "BLOCK=64, x=*fp32"."""
    trace = card.main.compiled.trace
    types = [f"{n}={type_}" for n, type_ in trace.signature.items() if any(s.get(n) != type_ for s in signatures)]
    return ", ".join([*(f"{name}={value!r}" for name, value in trace.constants.items()), *types])


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
    found = all_versions(kernel)
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
    return {"history": {"versions": list(entries.values()), "runs": _run_entries(kernel)}, "blobs": blobs.added}


def _run_entries(kernel: Kernel) -> list[dict[str, Any]]:
    """The newest runs as a document lists them: with the number of their version instead of its key."""
    versions_by_key = {version.key: version.number for version in all_versions(kernel)}
    kept = [run for run in runs(kernel) if run.version in versions_by_key][-SHOWN_RUNS:]
    return [
        {**{n: v for n, v in run.entry.items() if n != "id"}, "version": versions_by_key[run.version]} for run in kept
    ]


def size_without_texts(kernel: Kernel) -> int:
    """The size of a history without texts, in characters."""
    entries = [{**version.entry(), "source": version.key} for version in all_versions(kernel)]
    return _size({"history": {"versions": entries, "runs": _run_entries(kernel)}, "blobs": {}})


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
