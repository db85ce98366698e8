"""Splits a Trace into Sections: the source with its notes, each stage's IR, LLVM, PTX and machine code.

A Section is plain text with the source line of each of its lines. The HTML card, the text card and the document all render the same
Sections. The section of a stage marks with `+` the lines that the stage before did not have. Names of values follow op ids, which survive
a rebuild, so equal text means that the op did not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from blocknb.codegen.sass import Listing, assembly_lines
from blocknb.codegen.toolchain import find_ptxas, how_to_get
from blocknb.errors import KernelError, Loc
from blocknb.ir.text import print_lines
from blocknb.notebook import numbers
from blocknb.notebook.helper_sources import HelperSource, helper_of
from blocknb.target import Target
from blocknb.trace import Note, Stage, Trace


@dataclass(frozen=True, slots=True)
class ListingLine:
    """One line of a listing, with the source `line` that it belongs to; `new` means that the stage before did not have it.

    `note` is the kind of a note ("info", "missed", "warning"), "" for code; `op` is the op's id in an IR listing. `helper` is the helper in
    another file that the line was inlined from, with the line in it; `line` is then that of the call.
    """

    text: str
    line: int | None = None
    new: bool = False
    note: str = ""
    op: int | None = None
    helper: tuple[HelperSource, int] | None = None


@dataclass(frozen=True)
class Section:
    """One fold of the card.

    `key` is its name for `--show`, `call` the expression that returns all of it, `about` one sentence, and `detail` figures. `group` is
    its heading, and `language` the language of its text. `same` means that the text equals that of the section before. `later` means that
    the text is postponed, because making it is slow.
    """

    key: str
    title: str
    group: str
    lines: tuple[ListingLine, ...]
    call: str
    about: str = ""
    detail: str = ""
    language: str = "text"
    same: bool = False
    later: bool = False

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


#: The values of `--show` besides the names of stages.
KEYS = ("source", "times", "timeline", "memory", "llvm", "ptx", "sass", "assembly")
_SIGN = {"info": "•", "missed": "○", "warning": "▲"}
_ID_COMMENT = re.compile(r"\s+// \d+( was [\d,]+)?( \(.*\))?$")


def line_of(loc: Loc | None, file: str) -> int | None:
    """The line of a location in the kernel's own file; for inlined code of another file, the line of its call."""
    while loc is not None and loc.file != file and loc.caller is not None:
        loc = loc.caller
    return loc.line if loc is not None and loc.file == file else None


# ---- the source with its notes ---------------------------------------------------------------------------------------------


def source_section(traces: Iterable[Trace], expression: str, group: str) -> Section:
    """The kernel's text; below each line, the compiler's notes on it, for every target of the card."""
    traces = list(traces)
    first = traces[0]
    notes = _notes_by_line(traces)
    last = first.first_line + first.source.count("\n")
    lines = [ListingLine(text, note=kind) for text, kind in _unplaced(notes, first.first_line, last)]
    for number, text in enumerate(first.source.rstrip("\n").split("\n"), first.first_line):
        lines.append(ListingLine(text, number))
        indent = " " * (len(text) - len(text.lstrip()))
        lines += [ListingLine(f"{indent}{note}", note=kind) for note, kind in notes.get(number, ())]
    kinds = [note.kind for trace in traces for note in trace.notes]
    detail = numbers.plural(sum(line.note != "" for line in lines), "note")
    if missed := kinds.count("missed"):
        detail += f", {missed} on missed optimizations"
    about = "Source lines with the compiler's decisions"
    return Section("source", "source and notes", group, tuple(lines), f"{expression}.notes", about, detail, "python")


def _notes_by_line(traces: list[Trace]) -> dict[int | None, list[tuple[str, str]]]:
    """Maps each source line to the (text, kind) of its notes, in order. A note that several ops or targets share appears once."""
    found: dict[int | None, dict[tuple[str, str], int]] = {}
    for trace in traces:
        seen: dict[tuple[int | None, tuple[str, str]], int] = {}
        for note in trace.notes:
            place = line_of(note.loc, trace.file)
            entry = (f"{_SIGN[note.kind]} {note.origin}: {note.text}", note.kind)
            seen[place, entry] = seen.get((place, entry), 0) + 1
        for (place, entry), times in seen.items():
            row = found.setdefault(place, {})
            row[entry] = max(row.get(entry, 0), times)
    return {
        place: [(text + (f"  (×{times})" if times > 1 else ""), kind) for (text, kind), times in row.items()]
        for place, row in found.items()
    }


def _unplaced(notes: dict[int | None, list[tuple[str, str]]], first: int, last: int) -> list[tuple[str, str]]:
    """Notes on the kernel as a whole, and on lines outside of its text."""
    return [entry for place, row in notes.items() if place is None or not first <= place <= last for entry in row]


# ---- stages ----------------------------------------------------------------------------------------------------------------


def stage_sections(trace: Trace, expression: str, group: str) -> list[Section]:
    """One section per stage: the IR after it."""
    found, before = [], None
    for stage in trace.stages:
        lines = print_lines(stage.after)
        found.append(_stage_section(stage, lines, before, trace, f"{expression}.stage({stage.name!r}).text", group))
        before = lines
    return found


def _stage_section(
    stage: Stage,
    lines: list[tuple[str, int | None, int | None]],
    before: list[tuple[str, int | None, int | None]] | None,
    trace: Trace,
    call: str,
    group: str,
) -> Section:
    texts = [_ID_COMMENT.sub("", text) for text, _, _ in lines]
    known = {_ID_COMMENT.sub("", text) for text, _, _ in before} if before is not None else set(texts)
    helpers = {op.id: found for op in stage.after.ops() if (found := helper_of(op.loc, trace.file))}
    made = tuple(
        ListingLine(
            text, line, bool(text.strip()) and text not in known, op=op, helper=helpers.get(-1 if op is None else op)
        )
        for text, (_, op, line) in zip(texts, lines, strict=True)
    )
    notes = tuple(_note_line(note, trace) for note in stage.notes)
    parts = [numbers.time(stage.milliseconds)]
    if stage.skipped:
        parts = ["disabled"]
    elif before is not None:
        added, removed = sum(line.new for line in made), len(known - set(texts))
        parts.append(f"+{added} −{removed} lines" if added or removed else "no change")
    if notes:
        parts.append(numbers.plural(len(notes), "note"))
    title, same = {"parse": "front end"}.get(stage.name, stage.name), before is not None and known == set(texts)
    return Section(stage.name, title, group, notes + made, call, stage.title.rstrip("."), ", ".join(parts), "ir", same)


def _note_line(note: Note, trace: Trace) -> ListingLine:
    return ListingLine(f"{_SIGN[note.kind]} {note.text}", line_of(note.loc, trace.file), note=note.kind)


# ---- below the IR ----------------------------------------------------------------------------------------------------------


def code_sections(trace: Trace, expression: str, group: str, whole: bool = True) -> list[Section]:
    """LLVM, PTX and SASS of a GPU's trace; LLVM and assembly of a CPU's.

    Unless `whole`, machine code that was not requested yet is postponed, since disassembly takes longer than compilation.
    """
    found = []
    if trace.llvm:
        lines = tuple(ListingLine(text) for text in trace.llvm.rstrip("\n").split("\n"))
        about = "LLVM IR before optimization"
        found.append(_code("llvm", "LLVM", group, lines, f"{expression}.llvm", about, "llvm"))
    if trace.ptx:
        about = "NVIDIA's virtual instruction set, generated by LLVM"
        found.append(
            _code("ptx", "PTX", group, _listing(assembly_lines(trace.ptx), trace), f"{expression}.ptx", about, "ptx")
        )
    if trace.artifacts.get("cubin") or (trace.ptx and find_ptxas(trace.target) is None):
        later = not whole and "sass" not in vars(trace) and trace.disassembles
        found.append(_sass(trace, expression, group, later))
    if trace.artifacts.get("object"):
        later = not whole and "assembly" not in vars(trace) and trace.lists
        found.append(_assembly(trace, expression, group, later))
    return found


def _assembly(trace: Trace, expression: str, group: str, later: bool) -> Section:
    own = trace.target == Target.parse("cpu")
    about, call = f"Assembly for {'the CPU of this machine' if own else trace.target}", f"{expression}.assembly"
    if later:
        return Section("assembly", "assembly", group, (), call, about, "not generated yet", "asm", later=True)
    try:
        text = trace.assembly or ""
    except KernelError as error:
        return Section(
            "assembly", "assembly", group, (ListingLine(numbers.complaint(error)),), call, about, "not available", "asm"
        )
    title = {"x86_64": "x86 assembly", "aarch64": "Arm assembly"}.get(trace.target.isa, "assembly")
    return _code("assembly", title, group, _listing(assembly_lines(text), trace), call, about, "asm")


def _sass(trace: Trace, expression: str, group: str, later: bool) -> Section:
    about, call = "Machine code of the GPU, assembled by ptxas", f"{expression}.sass"
    if later:
        return Section("sass", "SASS", group, (), call, about, "not disassembled yet", "sass", later=True)
    tool = "nvdisasm" if trace.artifacts.get("cubin") else "ptxas"
    missing = f"SASS needs {tool}, and there is none for {trace.target} here: {how_to_get(tool)}"
    try:
        listing: Listing | None = trace.sass
    except KernelError as error:
        listing, missing = None, numbers.complaint(error)
    if listing is None:
        state = "not disassembled" if tool == "nvdisasm" else "not assembled"
        return Section("sass", "SASS", group, (ListingLine(missing),), call, about, state, "sass")
    return _code("sass", "SASS", group, _listing(listing.lines, trace), f"{call}.text", about, "sass")


def _listing(lines: Iterable, trace: Trace) -> tuple[ListingLine, ...]:
    """Lines of machine code with their lines in the kernel's own file; inlined code has the line of its call."""
    found = []
    for line in lines:
        places = [(line.file, line.line), *line.callers]
        number = next((n for file, n in places if file == trace.file), None)
        found.append(ListingLine(line.text, number))
    return tuple(found)


def _code(
    key: str, title: str, group: str, lines: tuple[ListingLine, ...], call: str, about: str, language: str
) -> Section:
    detail = numbers.plural(len(lines), "line")
    return Section(key, title, group, lines, call, about, detail, language)


def times_section(traces: Iterable[tuple[str, Trace]], expression: str, group: str) -> Section:
    """All compile times in milliseconds, one column per target."""
    traces = list(traces)
    names = list(dict.fromkeys(name for _, trace in traces for name in trace.milliseconds))
    width = max(map(len, ["stage", *names]))
    lines = [ListingLine("stage".ljust(width) + "".join(f"{label:>14}" for label, _ in traces))]
    for name in names:
        cells = (trace.milliseconds.get(name) for _, trace in traces)
        lines.append(
            ListingLine(name.ljust(width) + "".join(f"{'' if ms is None else f'{ms:.2f}':>14}" for ms in cells))
        )
    totals = (f"{trace.total_milliseconds:.2f}" for _, trace in traces)
    lines.append(ListingLine("total".ljust(width) + "".join(f"{total:>14}" for total in totals)))
    detail = " and ".join(numbers.time(trace.total_milliseconds) for _, trace in traces)
    about = "Milliseconds per stage"
    return Section("times", "compile times", group, tuple(lines), f"{expression}.milliseconds", about, detail)
