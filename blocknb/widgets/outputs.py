"""The output of a widget: a document that a page shows without a kernel, with the id of the live widget inside.

ipywidgets puts only the id of a model into a notebook. After a restart the page has nothing for the id. So a widget's output contains the
documents of its kernels and the values of the traits. This holds for a view, for a box with views, and for the controls of `interact` that
move a view. The page shows the documents, and replaces them by the live widget where the kernel has it
(labextension/src/lab/widget_output.ts). Voila creates all widgets itself, so there the output is that of ipywidgets.
"""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Iterator
from html import escape
from typing import Any

import ipywidgets

from blocknb.notebook import html
from blocknb.notebook.blobs import pack, unpack
from blocknb.notebook.card import Card
from blocknb.notebook.document import MIME, SCHEMA, content_of
from blocknb.notebook.sections import stage_sections

#: The traits that say what a view shows.
STATE = ("target", "stage", "stage_index", "compared_with", "op", "line", "program", "iteration")
#: The parts of a document that one view needs, by the key of the view and of the part.
_PARTS = frozenset(("knobs", "history", "diff", "bench", "roofline", "sweep", "tiles", "timeline"))
#: The views that need the texts. Other views need the part with their key, or the whole document.
_TEXTS = frozenset(("code", "passes", "diff"))
_LONGEST_TEXT = 200  # characters of a widget of another package, or of a repr
_STATIC_LIMIT = 20_000  # bytes of the page without scripts, for all views together


def in_voila() -> bool:
    """Whether this kernel runs for a page of Voila, which sets the variable of the Common Gateway Interface."""
    return os.environ.get("SERVER_SOFTWARE", "").startswith("voila")


def bundle(widget: Any) -> dict[str, Any]:
    """The output of a view, or of a box with views, by MIME type."""
    if in_voila():
        return dict(ipywidgets.Widget._repr_mimebundle_(widget))
    views = list(_views(widget))
    documents: list[Any] = []
    for view in views:
        if view.document is not None and view.document not in documents:
            documents.append(view.document)
    contents = [_needed(d.content, {view.key for view in views if view.document is d}) for d in documents]
    for document, content in zip(documents, contents, strict=True):
        _add_programs(content, document.card, {view.program for view in views if view.document is document})
    root = _composed(widget, documents)
    return {
        "text/plain": _short(repr(widget)),
        "text/html": "".join(_static(view, _STATIC_LIMIT // len(views)) for view in views)
        or html.message(_text(widget)),
        MIME: {**_EMPTY, "widget": {"model": widget.model_id, "root": root, "documents": contents}},
    }


_EMPTY: dict[str, Any] = {
    "schema": SCHEMA,
    "kind": "widget",
    "kernel": "",
    "version": "",
    "facts": [],
    "source": {"file": "", "first_line": 1, "text": "", "hash": ""},
    "launches": [],
    "views": [],
    "blobs": {},
    "left_out": [],
}


def _is_view(widget: Any) -> bool:
    return hasattr(widget, "document") and hasattr(widget, "key")


def _views(widget: Any) -> Iterator[Any]:
    if _is_view(widget):
        yield widget
    elif isinstance(widget, ipywidgets.Box):
        for child in widget.children:
            yield from _views(child)


def _composed(widget: Any, documents: list[Any]) -> dict[str, Any]:
    """The description of a widget, as `Composed` in labextension/src/core/schema.ts."""
    if _is_view(widget) and widget.document is not None:
        at = documents.index(widget.document)
        return {"view": widget.key, "document": at, "model": widget.model_id, "state": widget.state}
    if isinstance(widget, ipywidgets.Box):
        box = "row" if isinstance(widget, ipywidgets.HBox) else "column"
        return {"box": box, "children": [_composed(child, documents) for child in widget.children]}
    if isinstance(widget, ipywidgets.Output):
        for output in widget.outputs:
            if "image/png" in output.get("data", {}):
                return {"png": output["data"]["image/png"], "model": widget.model_id}
    return {"text": _text(widget), "model": widget.model_id}


def _text(widget: Any) -> str:
    """The text that stands for a widget of another package."""
    if isinstance(widget, ipywidgets.Output):
        data = [output.get("data", {}).get("text/plain", output.get("text", "")) for output in widget.outputs]
        return "\n".join(text.rstrip() for text in data)
    value, label = getattr(widget, "value", None), getattr(widget, "description", "")
    if isinstance(value, str | bool | int | float):
        return _short(f"{label}: {value}" if label else str(value))
    return _short(repr(widget))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _needed(content: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """A document without the parts that no view of these keys shows."""
    if not keys <= _PARTS | _TEXTS:
        return {**content, "model": None}
    kept = {name: part for name, part in content.items() if name not in _PARTS or name in keys}
    if not keys & (_TEXTS | {"history"}):
        kept |= {"blobs": {}, "left_out": []}
    kept.pop("deferred", None)
    return {**kept, "model": None}


def _add_programs(content: dict[str, Any], card: Card | None, wanted: set[int | None]) -> None:
    """Adds the accesses of the programs that the views show. A document has those of the first few programs."""
    found = None if card is None else card.tiles[1]
    if found is None or "packed" not in content.get("tiles", {}):
        return
    part = unpack(content["tiles"]["packed"])
    numbers = {number for number in wanted if number is not None and 0 <= number < found.programs_launched}
    part["programs"] |= {
        str(number): found.program(number) for number in numbers if str(number) not in part["programs"]
    }
    content["tiles"] = {**content["tiles"], "packed": pack(part)}


# ---- without scripts ----


def _static(view: Any, limit: int) -> str:
    """A view as HTML for a page without scripts: a comparison as a unified diff, and the facts of the card for other views."""
    card = None if view.document is None else view.document.card
    if card is None:
        return html.message(f"`{view!r}`")
    if view.key != "diff":
        return card.html(limit)
    text = "\n".join(_unified(view))
    cut = "" if len(text) <= limit else "\n…"
    return f"{html.message(f'`{view!r}`')}<pre>{escape(text[:limit])}{cut}</pre>"


def _unified(view: Any) -> list[str]:
    """The comparison that the page shows: without a stage, of the last one that changed something."""
    names, trace = view.stages, view.trace
    if not names or trace is None:
        return []
    changed = [i for i, stage in enumerate(trace.stages) if i and stage.changed]
    right = names.index(view.stage) if view.stage in names else max(changed, default=0)
    left = names.index(view.compared_with) if view.compared_with in names else max(right - 1, 0)
    listings = {section.key: content_of(section)["text"] for section in stage_sections(trace, "", "")}
    a, b = (listings[names[i]].splitlines() for i in (left, right))
    return list(difflib.unified_diff(a, b, names[left], names[right], lineterm=""))


# ---- boxes ----


def _show_box(box: Any, include: Any = None, exclude: Any = None) -> Any:
    """Renders a box for IPython: as a document if it has or moves a view of blocknb, else as ipywidgets does."""
    return bundle(box) if any(_views(box)) or _moves_a_view(box) else box._repr_mimebundle_()


def _moves_a_view(box: Any) -> bool:
    """Whether a box is the controls of `interact` for a function that uses a view."""
    function = inspect.unwrap(box.f) if isinstance(box, ipywidgets.interactive) else None
    if not inspect.isfunction(function):
        return False
    used = inspect.getclosurevars(function)
    return any(_is_view(value) for value in [*used.nonlocals.values(), *used.globals.values()])


def install() -> None:
    """Lets IPython render boxes with views of blocknb as documents. Does nothing outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        shell.display_formatter.mimebundle_formatter.for_type(ipywidgets.Box, _show_box)
