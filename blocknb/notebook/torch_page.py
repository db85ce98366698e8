"""The kernels of a compiled model as data for the page: a table, the graph of the fusion, and a card for each kernel.

The document has kind "torch". Its part `torch` has the rows, the placed graphs, the reasons, the times and the trend
(`labextension/src/core/torch_part.ts` declares it). A live page asks for the card of a row; a page without one has the cards of the rows
with the largest share of the time, as far as they fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blocknb.errors import KernelError
from blocknb.notebook import (
    extension,
    failed_compile,
    fusion_layout,
    live,
    live_pages,
    numbers,
    program_lines,
    torch_table,
)
from blocknb.notebook.card import Card, View
from blocknb.notebook.concurrent_compile import DEFAULT_VIEW
from blocknb.notebook.document import MIME, SCHEMA, hash_of
from blocknb.notebook.live import LiveCard
from blocknb.torch.inductor.fusion_graph import OperatorGraph

LIMIT, HTML_LIMIT = 600_000, 250_000  # bytes of the whole output, and of its static page
GRAPHS_LIMIT = 200_000  # bytes of the graphs
LARGEST_CARD = 120_000  # characters of a saved card
MOST_ROWS = 500
#: The requests of the card of a row. Its launch cannot be repeated, so no request runs the kernel again.
CARD_REQUESTS = ("blob", "tiles", "changes", "export", "teach")


def torch_kernels_bundle(kernels: Any) -> dict[str, Any]:
    """The output of a cell, by MIME type: text, a page without scripts, and the document."""
    bundle: dict[str, Any] = {
        "text/plain": repr(kernels),
        "text/html": torch_table.torch_kernels_html(kernels, HTML_LIMIT),
    }
    page = TorchPage(kernels)
    model = live_pages.register(page.export, page.requests)
    return bundle | {MIME: page.document(LIMIT - _size(bundle), model)}


class TorchPage:
    """The page of a table of kernels, and the cards of its rows once they were asked for."""

    def __init__(self, kernels: Any):
        self.kernels = kernels
        self.cards: dict[int, LiveCard] = {}
        self.requests = {"card": self._card_document, "of_card": self._card_request}

    def document(self, budget: int, model: str | None = None) -> dict[str, Any]:
        """The document. `budget` bounds it, in bytes. Without a page that answers, it has the cards that fit."""
        part = torch_part(self.kernels)
        made = {
            "schema": SCHEMA,
            "kind": "torch",
            "kernel": part["title"],
            "version": hash_of(json.dumps([row["name"] for row in part["rows"]])),
            "model": model,
            "headline": _headline(self.kernels),
            "facts": [["about", text] for text in torch_table.about(self.kernels)],
            "source": {"file": "", "first_line": 1, "text": "", "hash": ""},
            "launches": [],
            "views": [],
            "blobs": {},
            "left_out": [],
            "torch": part,
        }
        if model is None or not extension.answers:
            part["cards"] = self._cards(budget - _size(made))
        return made

    def export(self) -> str:
        """One file with the page, the viewer and the cards of all rows."""
        from blocknb.notebook import export

        static = torch_table.torch_kernels_html(self.kernels)
        return export.filled(torch_table.title_of(self.kernels), export.script(self.document(1 << 40)), static)

    def _cards(self, budget: int) -> dict[str, Any]:
        """The cards that fit, by row; those with the largest share of the time first."""
        found: dict[str, Any] = {}
        rows = list(enumerate(self.kernels))[:MOST_ROWS]
        for i, _ in sorted(rows, key=lambda row: -(self.kernels.share(row[1]) or 0)):
            if budget < LARGEST_CARD // 4:
                break
            made = self.card(i, target=None).document(min(budget, LARGEST_CARD))
            if (size := _size(made)) <= budget:
                found[str(i)] = made
                budget -= size
        return found

    def card(self, row: int, target: str | None = DEFAULT_VIEW) -> Card:
        """The card of a row, with the code for a GPU next to the code that ran on a CPU."""
        kernel = self.kernels[row]
        expression = f"found[{row}]"
        made = torch_table.card_of(kernel, f"{expression}.trace")
        if target is None or kernel.compiled.target.is_gpu:
            return made
        return Card(made.record, (*made.views, _gpu_view(kernel.compiled, expression, target)))

    def _live(self, row: int) -> LiveCard:
        if row not in self.cards:
            self.cards[row] = LiveCard(self.card(row))
        return self.cards[row]

    def _card_document(self, page: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"document": self._live(int(data["row"])).card.document(2 * LARGEST_CARD)}

    def _card_request(self, page: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a request of the card of a row."""
        asked = data["ask"]
        if asked.get("what") not in CARD_REQUESTS:
            return {
                "error": "the launch of a generated kernel cannot be repeated: copy its source to a %%blockkernel cell"
            }
        card = self._live(int(data["row"]))
        card.report = page.report
        return live.REQUESTS[asked["what"]](card, asked)


def _gpu_view(compiled: Any, expression: str, target: str) -> View:
    call = f"{expression}.compiled.retarget({target!r}).trace"
    try:
        return View("view", target, target, call, compiled.retarget(target).trace)
    except KernelError as error:
        return View("view", target, target, call, None, failed_compile.reason(error), failed_compile.stages_of(error))


# ---- the part of the document --------------------------------------------------------------------------------------------------


def torch_part(kernels: Any) -> dict[str, Any]:
    """The part `torch` of a document, without cards."""
    files = kernels.graphs
    place = {file.path: i for i, file in enumerate(files)}
    rows = [_row(kernels, kernel, place) for kernel in list(kernels)[:MOST_ROWS]]
    return {
        "title": torch_table.title_of(kernels),
        "rows": rows,
        "more_rows": max(0, len(kernels) - MOST_ROWS),
        "graphs": _graphs(files, rows),
        "breaks": [
            {"reason": found.reason, "line": _line(found.line), "graph": i}
            for i, file in enumerate(files)
            if (found := file.graph_break) is not None
        ],
        "trend": list(kernels.trend),
    }


def _headline(kernels: Any) -> list[list[Any]]:
    """The compiled and the eager step as the page shows them first: label, time or launches, and details."""
    found: list[list[Any]] = []
    for row in torch_table.step_rows(kernels):
        moved = "unknown bytes" if row["bytes"] is None else f"at least {numbers.size(row['bytes'])} read and written"
        launches = numbers.plural(row["launches"], "launch") if row["launches"] == 1 else f"{row['launches']} launches"
        timed = kernels.steps[row["label"]] if row["time"] else None
        value = launches if timed is None else numbers.time(timed.median)
        details = [] if timed is None else [f"{launches}; {numbers.timing(timed)}"]
        found.append([f"{row['label']} step", value, [*details, row["what"], moved]])
    if kernels.milliseconds:
        found.append(["sum of the kernels", numbers.time(kernels.milliseconds), []])
    return found


def _row(kernels: Any, kernel: Any, place: Mapping[str, int]) -> dict[str, Any]:
    launch = kernel.launch
    not_launched = "not launched"
    roof, percent = (None, None) if launch is None else launch.roof
    time = None if launch is None or launch.time is None else launch.time.entry
    return {
        "name": kernel.name,
        "configuration": kernel.configuration,
        "grid": "" if launch is None else numbers.grid(launch.grid),
        "launches": kernel.launches if launch is not None else 0,
        "lines": [_line(line) for line in kernel.lines],
        "operators": list(kernel.operators),
        "time": time,
        "share": kernels.share(kernel),
        "bytes": kernel.bytes,
        "flops": kernel.flops,
        "exact": launch is None or launch.work.exact,
        "roof": roof,
        "percent": percent,
        "why_time": not_launched if launch is None else launch.why,
        "why_bytes": not_launched if launch is None else launch.work.why_bytes or "",
        "why_flops": not_launched if launch is None else launch.work.why_flops or "",
        "groups": [[place[site.file.path], site.group] for site in kernel.sites if site.group >= 0],
    }


def _line(line: tuple[str, int, str] | None) -> list[str] | None:
    """["In[3]:7", the file, the text]."""
    if line is None:
        return None
    file, number, text = line
    return [f"{program_lines.named(file)}:{number}", file, text.strip()[:200]]


def _graphs(files: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The placed graphs; those that do not fit have a size of 0 and no contents."""
    found, spent = [], 0
    of_rows = {(graph, group): i for i, row in reversed(list(enumerate(rows))) for graph, group in row["groups"]}
    for i, file in enumerate(files):
        made = _graph(file.graph, {group: row for (graph, group), row in of_rows.items() if graph == i})
        spent += _size(made)
        if spent > GRAPHS_LIMIT:
            made |= {"width": 0, "height": 0, "operators": [], "nodes": [], "groups": [], "edges": [], "unfused": []}
        found.append(made)
    return found


def _graph(graph: OperatorGraph, rows: Mapping[int, int]) -> dict[str, Any]:
    picture = fusion_layout.placed(graph)
    shown = {group.group: n for n, group in enumerate(picture.groups)}
    return {
        "name": graph.name,
        "width": round(picture.width),
        "height": round(picture.height),
        "operators": [
            [one.operator, one.original, one.result, [_input(graph, i) for i in one.inputs[:12]], _line(one.line)]
            for one in graph.operators
        ],
        "nodes": [
            [shown[one.group], one.operator, one.label, round(one.x), round(one.y), round(one.width)]
            for one in picture.operators
        ],
        "groups": [
            {
                "kind": graph.groups[box.group].kind,
                "call": graph.groups[box.group].call,
                "label": box.label,
                "row": rows.get(box.group, -1),
                "box": [round(box.x), round(box.y), round(box.width), round(box.height)],
            }
            for box in picture.groups
        ],
        "edges": [[edge.start, edge.end, edge.path] for edge in picture.edges],
        "unfused": [
            [shown[one.first], shown[one.second], one.reason, _first_line(graph, one.second)]
            for one in graph.unfused
            if one.first in shown and one.second in shown
        ],
    }


def _first_line(graph: OperatorGraph, group: int) -> list[str] | None:
    lines = [graph.operators[i].line for i in graph.groups[group].operators]
    return _line(next((line for line in lines if line is not None), None))


def _input(graph: OperatorGraph, index: int) -> str:
    """An operand as text: "mul_3: float32[8, 64]"."""
    one = graph.operators[index]
    return f"{one.name}: {one.result}" if one.result else one.name


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
