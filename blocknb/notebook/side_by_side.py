"""Compares two or more compilations on one page: `blocknb.compare(a, b)` and `%blockdiff a b`.

A side is a kernel, a version of it, a target or a setting of a knob: source, IR, machine code, resources and time. The first side is the
base; each other one is compared with it. The page says where the two part first, and what changed at each level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blocknb.errors import LaunchError
from blocknb.ir_diff.code_alignment import CodeDifference, compare_code
from blocknb.ir_diff.compilations import line_map, match_traces
from blocknb.ir_diff.listings import aligned_lines, runs
from blocknb.ir_diff.sentences import sentences
from blocknb.notebook import change_sentences, diffs, document, export, extension, html, live_pages, numbers, sections
from blocknb.notebook.blobs import Blobs, pack
from blocknb.notebook.card import Card
from blocknb.profile.timing import Timing
from blocknb.runtime import whole_files
from blocknb.trace import Trace

LIMIT = 300_000  # bytes of the saved page
MOST_SIDES = 6
CODE = ("llvm", "ptx", "sass", "assembly")


@dataclass(frozen=True)
class ComparedSide:
    """One column: a label that is unique on the page, a compilation, and the time of its launches, if there were any."""

    label: str
    trace: Trace
    time: Timing | None = None

    @cached_property
    def sections(self) -> dict[str, sections.Section]:
        """The listings by key: the names of stages, and the levels of code."""
        found = sections.stage_sections(self.trace, "", "") + sections.code_sections(self.trace, "", "")
        return {section.key: section for section in found}

    @property
    def stages(self) -> list[str]:
        """The names of the stages in order."""
        return [stage.name for stage in self.trace.stages]


class SideBySide:
    """Two or more compilations next to each other. Show it as the value of a cell, or export it as one file."""

    def __init__(self, sides: Sequence[ComparedSide]):
        if not 2 <= len(sides) <= MOST_SIDES:
            raise LaunchError(
                f"a comparison has 2 to {MOST_SIDES} sides, not {len(sides)}",
                hint="write blocknb.compare(a, b), or blocknb.compare(a, targets=['sm_80', 'sm_90a'])",
            )
        self.sides = tuple(sides)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self.bundle()

    def bundle(self, limit: int = LIMIT) -> dict[str, Any]:
        """The page as the output of a cell, by MIME type; texts beyond `limit` characters are left out."""
        text = self.text()
        page = f"<pre>{html.marked(text)}</pre>"
        found = self.document(limit)
        if extension.answers:
            found["model"] = live_pages.register(self.page)
        return {"text/plain": text, "text/html": page, document.MIME: found}

    def export_html(self, path: str | Path) -> Path:
        """Writes the page to one HTML file that needs no network and no kernel; returns its path."""
        file = Path(path)
        whole_files.write_text(file, self.page())
        return file

    def page(self) -> str:
        """The text of that file."""
        title = " and ".join(side.label for side in self.sides)
        static = f"<pre>{html.marked(self.text())}</pre>"
        return export.filled(title, export.script(self.document(export.EVERYTHING)), static)

    def text(self) -> str:
        """The comparison as plain text: where the sides part, and the sentences on the last IR and the machine code."""
        lines = []
        for pair in self.pairs:
            lines += [f"{self.sides[0].label} and {pair['label']}: {pair['first']}"]
            for level in pair["levels"]:
                if level["key"] == pair["last"] or level["key"] in CODE:
                    lines += [f"  {level['key']}", *(f"    {each['text']}" for each in level["sentences"])]
        return "\n".join(lines)

    @cached_property
    def pairs(self) -> list[dict[str, Any]]:
        """The base compared with each other side."""
        return [_pair(self.sides[0], side) for side in self.sides[1:]]

    def document(self, limit: int) -> dict[str, Any]:
        """The page as data."""
        blobs = Blobs(limit)
        found = [_side(side, blobs) for side in self.sides]
        pairs = [{**pair, "side": i} for i, pair in enumerate(self.pairs, 1)]
        first = self.sides[0].trace
        empty: dict[str, Any] = {"facts": [], "launches": [], "views": [], "version": ""}
        source = {"file": first.file, "first_line": first.first_line, "text": first.source, "hash": ""}
        return {
            "schema": document.SCHEMA,
            "kind": "compare",
            "kernel": " and ".join(side.label for side in self.sides),
            **empty,
            "source": source,
            "compare": {"sides": found, "packed": pack(pairs)},
            "blobs": blobs.stored,
            "left_out": blobs.left_out,
        }


def _side(side: ComparedSide, blobs: Blobs) -> dict[str, Any]:
    """A side as the document holds it. The last stage and the machine code are stored first."""
    trace, found = side.trace, dict[str, str | None]()
    body = trace.source.rstrip("\n")
    lines = [trace.first_line + i for i in range(body.count("\n") + 1)]
    source = blobs.add({"text": body, "lines": lines}, f"source ({side.label})", "")
    keys = [*reversed(side.stages), *CODE]
    base = None
    for key in sorted(keys, key=lambda key: key not in (side.stages[-1], "ptx", "sass")):
        if (section := side.sections.get(key)) is not None:
            is_ir = section.language == "ir"
            name = blobs.add(document.content_of(section), f"{key} ({side.label})", "", base if is_ir else None)
            found[key], base = name, name if is_ir and name else base
    return {
        "label": side.label,
        "kernel": trace.name,
        "target": str(trace.target),
        "constants": {name: repr(value) for name, value in trace.constants.items()},
        "options": {name: repr(value) for name, value in trace.options.items() if name in ("num_warps", "num_stages")},
        "first_line": trace.first_line,
        "source": source,
        "levels": [{"key": key, "language": side.sections[key].language, "text": found[key]} for key in found],
        "resources": document.resources_of(trace),
        "time": None if side.time is None else side.time.entry,
    }


def _pair(a: ComparedSide, b: ComparedSide) -> dict[str, Any]:
    """The base and another side: the first place where they part, and each level that both have."""
    levels = [_source_level(a, b)]
    common = [name for name in a.stages if name in b.stages]
    levels += [_ir_level(a, b, name) for name in common]
    levels += [_code_level(a, b, key) for key in CODE if key in a.sections and key in b.sections]
    parting = next((level for level in levels if level["differs"]), None)
    return {
        "label": b.label,
        "first": _first(parting),
        "parts_at": None if parting is None else parting["key"],
        "last": common[-1],
        "levels": levels,
    }


def _first(parting: Mapping[str, Any] | None) -> str:
    """The first place where two sides part, as a sentence."""
    if parting is None:
        return "all levels are the same"
    if parting["key"] == "source":
        return f"they part in the source: {parting['sentences'][0]['text']}"
    where = "in the IR of the front end" if parting["key"] == "parse" else f"at `{parting['key']}`"
    differences = parting["sentences"]
    return f"the source is the same; they part {where}" + (f": {differences[0]['text']}" if differences else "")


def _level(key: str, differs: bool, differences: Iterable[Any], same: Any, aligned: Any) -> dict[str, Any]:
    listed = [change_sentences.entry(sentence) for sentence in differences]
    return {"key": key, "differs": differs, "sentences": listed, "same": same, "aligned": aligned}


def _source_level(a: ComparedSide, b: ComparedSide) -> dict[str, Any]:
    lines, _ = line_map(a.trace, b.trace)
    first_a, first_b = a.trace.first_line, b.trace.first_line
    pairs = [(i - first_a, j - first_b) for i, j in lines.items()]
    one, two = (side.trace.source.rstrip("\n").split("\n") for side in (a, b))
    differences = []
    if one != two:
        at = next((i for i, (x, y) in enumerate(zip(one, two, strict=False)) if x != y), min(len(one), len(two)))
        shown = two[at].strip() if at < len(two) else "the end"
        text = f"line {first_b + at} is `{shown}`"
        text += f" instead of `{one[at].strip()}`" if at < len(one) else ""
        differences.append({"text": text, "weight": 100, "before": [], "after": [], "lines": [first_b + at]})
    return {"key": "source", "differs": one != two, "sentences": differences, "same": runs(pairs), "aligned": []}


def _ir_level(a: ComparedSide, b: ComparedSide, name: str) -> dict[str, Any]:
    matching = match_traces(a.trace, b.trace, a.stages.index(name), b.stages.index(name))
    same, aligned = aligned_lines(matching)
    differences = sentences(matching, compared=True)
    return _level(name, bool(differences), differences, same, aligned)


def _code_level(a: ComparedSide, b: ComparedSide, key: str) -> dict[str, Any]:
    one, two = (document.content_of(side.sections[key]) for side in (a, b))
    resources = (a.trace.resources, b.trace.resources) if key in ("ptx", "sass") else None
    language = "asm" if key == "assembly" else key
    found: CodeDifference = compare_code(one["text"], two["text"], language, one["lines"], two["lines"], resources)
    aligned = [pair for pair in found.pairs if pair not in found.same]
    return _level(key, not found.is_same, found.sentences, runs(sorted(found.same)), runs(aligned))


# ---- what a user names -------------------------------------------------------------------------------------------------------


def compare(*items: Any, targets: Sequence[str] = (), labels: Sequence[str] = ()) -> SideBySide:
    """Compares kernels, versions, targets or settings of a knob: source, IR, machine code, resources and times, side by side.

    An item is a kernel that was launched or compiled (`softmax`), or a version by its name in the notebook (`"softmax@1"`). It may also be
    a compilation (`softmax.compile(..., BLOCK=2048)`, or a Trace). With `targets`, each item is compiled for each of them. `labels` replace
    the labels. The first side is the base. Raises LaunchError for an item that was not launched or compiled, and for fewer than two sides.
    """
    found = [made for item in items for made in _sides(item, targets)]
    if labels and len(labels) != len(found):
        raise LaunchError(f"{len(labels)} labels for {len(found)} sides", hint="give each side a label")
    names = list(labels) or _unique([side.label for side in found], found)
    return SideBySide([ComparedSide(name, side.trace, side.time) for name, side in zip(names, found, strict=True)])


def _sides(item: Any, targets: Sequence[str]) -> list[ComparedSide]:
    from blocknb.runtime.compile import Compiled

    label, compiled, trace, time = "", None, None, None
    item = getattr(item, "kernel", item) if not isinstance(item, Compiled | Trace | str) else item
    if isinstance(item, Trace):
        label, trace = item.name, item
    elif isinstance(item, Compiled):
        label, compiled, trace = item.name, item, item.trace
    else:
        label, compiled, trace, time = _of_card(item)
    if not targets:
        return [ComparedSide(label, trace, time)]
    if compiled is None:
        raise LaunchError(
            "a Trace cannot be compiled for other targets", hint="pass the kernel, or kernel.compile(...)"
        )
    traces = [compiled.retarget(target).trace for target in targets]
    return [
        ComparedSide(f"{label} on {target}", found, time if str(found.target) == str(compiled.target) else None)
        for target, found in zip(targets, traces, strict=True)
    ]


def _of_card(item: Any) -> tuple[str, Any, Trace, Timing | None]:
    """The newest card of a kernel, or of a version by name. Returns its label, the Compiled, the trace for a GPU if there is one, and the
    time."""
    from blocknb.notebook.card import example, newest
    from blocknb.notebook.observe import record_of
    from blocknb.runtime.kernel import Kernel

    if isinstance(item, str):
        from IPython.core.getipython import get_ipython

        if (shell := get_ipython()) is None:
            raise LaunchError(
                f"{item!r} names a kernel of a notebook, and this program runs in none",
                hint="pass the kernel, kernel.compile(...) or a Trace",
            )
        named = diffs.side(item, shell)
        side = of_card(named.card, named.label, named.target)
        return side.label, named.card.main.compiled, side.trace, side.time
    if not isinstance(item, Kernel):
        raise LaunchError(
            f"compare takes kernels, and got an object of type {type(item).__name__}",
            hint='pass kernels that were launched, versions such as "softmax@1", kernel.compile(...) or Traces',
        )
    if (record := record_of(item)) is None:
        raise LaunchError(f"{item.__name__} has not been launched, so it cannot be compared", hint=example(item))
    card = newest(record)
    side = of_card(card, item.__name__)
    return side.label, card.main.compiled, side.trace, side.time


def of_card(card: Card, label: str, target: str = "") -> ComparedSide:
    """The side that shows a card: its code for a GPU if there is some, or for `target`, and the time of its newest launch."""
    main = card.main
    place = numbers.place(main.compiled.target, main.device)
    time = None if main.timing is None or target not in ("", str(main.compiled.target)) else main.timing.on(place)
    return ComparedSide(label, diffs.trace_of(card, target), time)


def _unique(labels: Sequence[str], sides: Sequence[ComparedSide]) -> list[str]:
    """Unique labels: with the constants, options and targets in which the sides differ."""
    if len(set(labels)) == len(labels):
        return list(labels)
    facts = [{**side.trace.constants, **_chosen(side.trace), "target": str(side.trace.target)} for side in sides]
    telling = [name for name in facts[0] if len({repr(fact.get(name)) for fact in facts}) > 1]
    found = [
        f"{label} ({', '.join(f'{name}={fact.get(name)}' for name in telling)})" if telling else f"{label} ({i})"
        for i, (label, fact) in enumerate(zip(labels, facts, strict=True), 1)
    ]
    return found if len(set(found)) == len(found) else [f"{label} ({i})" for i, label in enumerate(labels, 1)]


def _chosen(trace: Trace) -> dict[str, Any]:
    return {name: trace.options.get(name) for name in ("num_warps", "num_stages", "without")}
