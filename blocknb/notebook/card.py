"""The card of a kernel: its launches, its speed and every stage of its compilation, as the output of a cell.

`card_of(record, target)` gathers the facts and compiles what the cell did not compile, such as GPU code on a machine without a GPU.
`Card.bundle()` renders them as HTML, text and a document. They have at most 150 kB together, and 600 kB for a large kernel; the HTML has
30 of them. A card shows the specialization of the newest launch in full, and the others as rows. Making a card launches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from blocknb.errors import KernelError
from blocknb.notebook import (
    document,
    extension,
    failed_compile,
    headline,
    history,
    html,
    memory,
    numbers,
    plots,
    sections,
    static_plots,
    tiles,
    timelines,
    verdicts,
)
from blocknb.notebook.concurrent_compile import DEFAULT_VIEW
from blocknb.notebook.observe import KernelRecord, Specialisation
from blocknb.notebook.sections import Section
from blocknb.passes.support.carried_bounds import COUNTED
from blocknb.profile.timeline_spans import Timeline
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kernel import Kernel
from blocknb.trace import Trace

LIMIT = 600_000  # bytes of a card's whole output
ORDINARY = 150_000  # bytes of an output up to which texts of earlier versions are added
HTML_LIMIT = 29_500  # bytes of the static page; the document gets the rest
SPARE = 6_000  # characters for the document's facts, source and launches
HISTORY = 10_000  # the fewest characters for the versions of the kernel
SHOWN_ROWS = 12
SHOWN_NOTES = 12


@dataclass(frozen=True)
class View:
    """One target of the card.

    `role` is "ran" for code that was launched, "compiled" for code that was only compiled, and "view" for code that is only displayed. A
    view whose compilation failed has an `error` and no trace; `partial` has the stages that ran. `label` is short ("CPU"), `place` long.
    `expression` returns the trace in the notebook.
    """

    role: str
    label: str
    place: str
    expression: str
    trace: Trace | None
    error: str = ""
    partial: Trace | None = None

    @property
    def heading(self) -> str:
        """The label and the role of the target as a heading."""
        device = "CPU" if self.place.startswith("cpu") else "GPU"
        return {"ran": "ran on ", "compiled": "compiled for ", "view": f"{device} view: "}[self.role] + self.place


@dataclass(frozen=True)
class Card:
    """Everything that a card shows.

    The `views` begin with the code that ran; `opened` holds the keys of unfolded sections. The results of cell options are in
    `more_facts` (label and text) and in `parts`, which go into the document. A card that is not `whole` postpones the slow parts, and its
    page requests them when it is painted.
    """

    record: KernelRecord
    views: tuple[View, ...]
    opened: Collection[str] = field(default=())
    more_facts: tuple[tuple[str, str], ...] = ()
    parts: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = True
    _listed: dict[Any, list[Section]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Card of {self.name}: {self.where}>"

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.record.kernel.__name__

    @property
    def main(self) -> Specialisation:
        """The specialization of the newest launch."""
        assert self.record.latest is not None
        return self.record.latest

    @property
    def where(self) -> str:
        """ "ran on CPU; GPU view: sm_90a", or "ran on NVIDIA H200 (sm_90a)"."""
        return "; ".join(view.heading for view in self.views)

    @property
    def source(self) -> str:
        """The kernel's source text."""
        return self.main.compiled.source.text

    @property
    def file(self) -> str:
        """The name of the file or cell with the kernel's source."""
        return self.main.compiled.trace.file

    @cached_property
    def facts(self) -> list[tuple[str, str]]:
        """The facts at the top of the card, as labels and texts."""
        if verdicts.awaits_prediction(self.parts):
            return verdicts.prediction_facts(self.parts)
        made, found = self.main, []
        if made.launches:
            count = "" if self.record.launches == 1 else f"{self.record.launches} launches, "
            found.append(("launch", f"{count}grid {numbers.grid(made.grid)}, {numbers.width(made.compiled)}"))
            found += numbers.times(made)
        tuned = vars(self.record.kernel).get("tuning")
        if tuned is not None and tuned.best is not None and _holds(made, tuned.best.kwargs):
            found.append(("tuned", f"{tuned.headline}: `{self.name}.tuning`"))
        found += self._resource_facts()
        for view in self.views:
            if view.trace is not None and (text := numbers.checked(view.trace, made.arguments)):
                found.append(("bounds" if len(self.views) == 1 else f"bounds, {view.label}", text))
        found += self._edit_facts()
        found += self.more_facts
        for view in self.views:
            if view.trace is not None:
                label = "compiled" if len(self.views) == 1 else f"compiled, {view.label}"
                found.append((label, numbers.compile_time(view.trace)))
        if loaded := extension.page():
            found.append(("page", loaded))
        warnings = [
            warning for view in self.views if view.trace is not None for warning in view.trace.resources.warnings
        ]
        return found + [("warning", warning) for warning in dict.fromkeys(warnings)]

    def _resource_facts(self) -> Iterator[tuple[str, str]]:
        """The resources that each target's code takes, or the reason why there is no code."""
        for view in self.views:
            if view.trace is None:
                yield view.label, f"✗ {view.error}" if view.partial else view.error
            elif text := numbers.resources(view.trace.resources):
                held = numbers.occupied(view.trace.target, view.trace.resources)
                yield view.label, f"{text}, {held}" if held else text

    def _edit_facts(self) -> Iterator[tuple[str, str]]:
        """The stages whose IR the user edited, by target."""
        for view in self.views:
            if names := [stage.name for stage in view.trace.stages if stage.edited] if view.trace else []:
                label = "edited" if len(self.views) == 1 else f"edited, {view.label}"
                yield label, f"the IR after {', '.join(names)}"

    @cached_property
    def rows(self) -> list[list[str]]:
        """The specialisations as a table with its head; empty when there is only one."""
        made = list(self.record.specialisations.values())
        if len(made) < 2:
            return []
        table = [["specialization", "launches", "grid", "time", "rate"]]
        for row, text in list(zip(made, numbers.differing(made), strict=True))[:SHOWN_ROWS]:
            speed = numbers.rate(row)
            assert row.timing is not None  # each was launched
            cells = [f"`{text}`", str(row.launches), numbers.grid(row.grid), numbers.time(row.timing.median)]
            table.append([*cells, speed.short if speed else ""])
        if len(made) > SHOWN_ROWS:
            table.append([f"and {len(made) - SHOWN_ROWS} more", "", "", "", ""])
        return table

    @cached_property
    def sections(self) -> list[Section]:
        """The folds in order: the source, then each stage down to machine code."""
        traced = [(view, view.trace) for view in self.views if view.trace is not None]
        stages, _ = next(((v, t) for v, t in traced if t.target.is_gpu), traced[0])
        found = [sections.source_section([t for _, t in traced], stages.expression, "")]
        columns = [(view.label, t) for view, t in traced]
        found.append(sections.times_section(columns, traced[0][0].expression, ""))
        if (drawn := self.timeline[1]) is not None:
            found.append(timelines.section(drawn, stages.expression, ""))
        if "memory" in self.parts:
            found.append(memory.section(self.parts["memory"]))
        found += self._stage_sections(stages)
        for view, _ in sorted(traced, key=lambda pair: pair[0] is not stages):
            whole = self.whole or bool({"sass", "assembly", "all"} & set(self.opened))
            found += self._code_sections(view, whole)
        return found

    def _stage_sections(self, view: View) -> list[Section]:
        """The sections of a view's stages, made once."""
        key = view.heading, "stages"
        trace = view.trace or view.partial
        if trace is not None and key not in self._listed:
            self._listed[key] = sections.stage_sections(trace, view.expression, view.heading)
        return self._listed.get(key, [])

    def _code_sections(self, view: View, whole: bool) -> list[Section]:
        """The sections of a view's code, made once."""
        key = view.heading, whole
        trace = view.trace or view.partial
        if trace is not None and key not in self._listed:
            self._listed[key] = sections.code_sections(trace, view.expression, view.heading, whole)
        return self._listed.get(key, [])

    @cached_property
    def tiles(self) -> tuple[dict[str, Any], tiles.TileView | None]:
        """The document's part on memory accesses, and the object that serves further programs to the page."""
        return tiles.offered(self.main, [view.trace for view in self.views])

    @cached_property
    def timeline(self) -> tuple[dict[str, Any], Timeline | None]:
        """The document's timeline part, and the Timeline for the static picture."""
        return timelines.offered(self.main, [view.trace for view in self.views])

    # ---- renderings ----

    @property
    def kept_sections(self) -> list[Section]:
        """The sections of a page without scripts: the source with its notes, the final IR, and the requested sections."""
        if verdicts.awaits_prediction(self.parts):
            return []
        final = next((s for s in reversed(self.sections) if s.language == "ir"), None)
        wanted = {"source", "timeline", *self.opened}
        if memory.is_measured(self.parts.get("memory", {"pools": []})):
            wanted.add("memory")
        return [s for s in self.sections if "all" in wanted or s.key in wanted or s is final]

    def html(self, limit: int = HTML_LIMIT, footer: str = html.INSTALL) -> str:
        """The static page: the plots of the parts, then at most `limit` bytes."""
        opened = {"source", *self.opened}
        page = html.render((self.name, self.where), self.facts, self.rows, self.kept_sections, opened, limit, footer)
        return verdicts.html(self.parts) + static_plots.figures(self.parts) + page

    def text(self) -> str:
        """The card as plain text: the facts, the notes by line, and the expressions that give more."""
        width = max(len(label) for label, _ in self.facts)
        head = verdicts.text(self.parts)
        lines = [f"{head}{self.name}: {self.where}", *(f"  {label.ljust(width)}  {text}" for label, text in self.facts)]
        for row in self.rows:
            lines.append("    " + "  ".join(cell.replace("`", "") for cell in row))
        notes = [] if verdicts.awaits_prediction(self.parts) else self._note_lines()
        lines += ["  notes", *notes[:SHOWN_NOTES]] if notes else []
        if len(notes) > SHOWN_NOTES:
            lines.append(f"    and {len(notes) - SHOWN_NOTES} more: {self.views[-1].expression}.notes")
        lines += [
            f"    {line.text}" for s in self.sections if s.key == "memory" and s.key in self.opened for line in s.lines
        ]
        for view in self.views:
            names = [s.key for s in self.sections if s.group == view.heading]
            lines += [f"  more in {view.expression}: {', '.join(names)}"] if names else []
        return "\n".join(lines)

    def _note_lines(self) -> list[str]:
        found, number = [], 0
        for line in self.sections[0].lines:
            number = line.line or number
            if line.note and not line.text.endswith(COUNTED):  # the facts contain that number
                found.append(f"    {f'line {number}' if number else 'kernel'}: {line.text.strip()}")
        return found

    def document(self, budget: int) -> dict[str, Any]:
        """The card as data; `budget` bounds views and blobs, in characters."""
        targets = []
        for view in self.views:
            listings = [*self._stage_sections(view), *self._code_sections(view, self.whole)]
            trace = view.trace or view.partial
            targets.append(document.DocumentTarget(view.role, view.label, view.place, trace, listings, view.error))
        launches = [_launched(made) for made in self.record.specialisations.values()]
        part, drawn = self.tiles[0], self.timeline[0]
        sentences = self._change_sentences() if self.whole else None
        made = document.build(
            self.name, self.facts, launches[:SHOWN_ROWS], targets, budget - len(json.dumps([part, drawn, sentences]))
        )
        more = dict(self.parts)
        made["blobs"] |= more.pop("blobs", {})
        if not self.whole:
            made["deferred"] = True
        made["headline"] = [] if verdicts.awaits_prediction(self.parts) else headline.headline(self)
        if sentences is not None:
            made["changes"] = sentences
        return {**made, "show": list(self.opened), "tiles": part, "timeline": drawn, **more}

    def _change_sentences(self) -> dict[str, Any]:
        """The document's part on what each pass changed."""
        from blocknb.notebook import change_sentences  # the first document of a card does without

        return change_sentences.part([view.trace for view in self.views])

    def bundle(self, limit: int = LIMIT, **more: Any) -> dict[str, Any]:
        """The output of the cell, by MIME type, of at most `limit` bytes without pictures; `more` goes into the document."""
        bundle: dict[str, Any] = {"text/plain": self.text(), "text/html": self.html(), **plots.images(self.parts)}
        pictures = _bytes([bundle.get("image/png", ""), static_plots.figures(self.parts)])  # beyond the limit
        left = limit + pictures - _bytes(bundle) - _bytes(more) - _bytes(dict(self.parts)) - SPARE
        made = self.document(left - max(HISTORY, history.size_without_texts(self.record.kernel) + SPARE // 4))
        history.keep_texts(self, made)
        left -= _bytes(made) - SPARE - _bytes(dict(self.parts))
        past_left = left if limit > LIMIT else min(left, max(ORDINARY - (limit - left), HISTORY))
        if past := history.part(self.record.kernel, made["version"], made["blobs"], past_left - SPARE // 4):
            made["blobs"] |= past.pop("blobs")
            made |= past
        return bundle | {document.MIME: {**made, **more}}


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _holds(made: Specialisation, constants: Mapping[str, Any]) -> bool:
    """Whether a launch had these constants, as far as the kernel has parameters of these names."""
    had = made.compiled.trace.constants
    return all(had[name] == value for name, value in constants.items() if name in had)


def _launched(made: Specialisation) -> dict[str, Any]:
    speed, here = numbers.rate(made), numbers.place(made.compiled.target, made.device)
    return {
        "target": str(made.compiled.target),
        "device": made.device,
        "grid": list(made.grid),
        "launches": made.launches,
        "time": None if made.timing is None else made.timing.on(here).entry,
        "first": None if made.first is None else made.first.on(here).entry,
        "not_repeated": made.why,
        "rate": None if speed is None else {"value": speed.value, "unit": speed.unit},
        "signature": dict(made.compiled.trace.signature),
        "constants": {name: repr(value) for name, value in made.compiled.trace.constants.items()},
    }


def card_of(record: KernelRecord, target: str | None = None, opened: Collection[str] = ()) -> Card:
    """The card of a KernelRecord, with the code for each of the targets that `target` names, separated by commas, next to the code that
    ran. After a run on the CPU, `target` is sm_90a by default."""
    assert record.latest is not None
    made, name = record.latest.compiled, record.kernel.__name__
    role = "ran" if record.latest.launches else "compiled"
    label, place = str(made.target) if made.target.is_gpu else "CPU", numbers.place(made.target, record.latest.device)
    views = [View(role, label, place, f"{name}.latest.trace", made.trace)]
    if target is None and not made.target.is_gpu:
        target = DEFAULT_VIEW
    own = (str(made.target), "cpu" if not made.target.is_gpu else "")
    for other in dict.fromkeys((target or "").split(",")):
        if other and other not in own:
            views.append(_other_view(made, name, other))
    return Card(record, tuple(views), opened)


def _other_view(made: Compiled, name: str, target: str) -> View:
    """The view of a target that the code did not run on."""
    expression = f"{name}.latest.retarget({target!r}).trace"
    try:
        return View("view", target, target, expression, made.retarget(target, made.options["without"]).trace)
    except KernelError as error:
        why = failed_compile.reason(error)
        return View("view", target, target, expression, None, why, failed_compile.stages_of(error))


def newest(record: KernelRecord) -> Card:
    """The card of a KernelRecord as its cell showed it, with the results of the cell's options; otherwise a new card."""
    shown = (version.card for version in history.versions(record.kernel))
    return next((card for card in shown if card.record is record), None) or card_of(record)


def example(kernel: Kernel) -> str:
    """An example launch: "add[grid](x, y, out, n, BLOCK=...)"."""
    given = [f"{p.name}=..." if p.constexpr or p.keyword_only else p.name for p in kernel.source.parameters]
    return f"{kernel.__name__}[grid]({', '.join(given)})"
