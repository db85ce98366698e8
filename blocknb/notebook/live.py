"""The kernel's end of a live card: one comm per card, opened by the page that shows it (labextension/src/lab/live.ts).

The page opens the comm with the id in the document. A kernel that still has the card greets the page; any other kernel closes the comm,
so that the page shows the card as disconnected. A request has a number, a name and content. Its answer carries the number and the result,
or an `error` message. The thread that runs cells answers requests in order, so that nothing is compiled or launched while a cell runs. A
KeyboardInterrupt ends the current request, not the kernel.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from IPython.core.error import UsageError

from blocknb import forks
from blocknb.errors import CompilationInterrupted, KernelError
from blocknb.notebook import (
    compile_status,
    course,
    document,
    extension,
    history,
    html,
    knobs,
    live_pages,
    numbers,
    repeats,
    verdicts,
)
from blocknb.notebook.blobs import read
from blocknb.notebook.card import Card, example, newest
from blocknb.notebook.observe import record_of
from blocknb.runtime.kernel import Kernel
from blocknb.trace import Trace

KEPT = 100  # cards; the oldest become disconnected


class LiveCard:
    """A card that a page may query. `card` is what the page shows now, and `cell` is the card of the run cell; a changed knob replaces
    the former only.

    `unedited` is the card from before the first edit of a stage, or None without an edit. `report` sends the page something before the
    answer to its current request. `failed` is the Trace of a change that failed to compile while the page shows that.
    """

    def __init__(self, card: Card):
        self.card = self.cell = card
        self.id = uuid.uuid4().hex
        self.unedited: Card | None = None
        self.failed: Trace | None = None
        self.report: Callable[[dict[str, Any]], None] = lambda content: None
        self._texts: dict[str, str] = {}

    def listing(self, name: str) -> Any:
        """Any listing of the card by its hash, including those that did not fit into the document. Raises KeyError."""
        if name not in self._texts:
            self._texts = replace(self.cell, whole=True).document(1 << 40)["blobs"]
            if self.card is not self.cell:
                self._texts |= replace(self.card, whole=True).document(1 << 40)["blobs"]
        for texts in (self._texts, *(version.blobs for version in history.versions(self.card.record.kernel))):
            if name in texts:
                return read(texts, name)
        raise KeyError(name)


_cards: OrderedDict[str, LiveCard] = OrderedDict()
_lock = threading.RLock()
forks.renewed(sys.modules[__name__], _lock=threading.RLock)


def register(card: Card) -> LiveCard:
    """Registers a card for queries from pages, as long as it is among the newest KEPT."""
    live = LiveCard(card)
    with _lock:
        _cards[live.id] = live
        while len(_cards) > KEPT:
            _cards.popitem(last=False)
    return live


def bundle(card: Card) -> dict[str, Any]:
    """The output of a live card. If a page can request the rest, slow parts are postponed."""
    return registered(card)[1]


def registered(card: Card) -> tuple[LiveCard, dict[str, Any]]:
    """A live card, and its output (see `bundle`)."""
    if extension.answers and card.whole:
        later = replace(card, whole=False)
        history.replace_card(card, later)
        card = later
    elif card.whole:
        repeats.repeat(card.record)
    live = register(card)
    return live, card.bundle(model=live.id, knobs=knobs.offered(card))


def repeat(card: Card) -> None:
    """Repeats the launch of a card within BEFORE_CELL seconds, unless its page has asked for that, or a request is being answered."""
    if card.main.repeats is None and not card.main.why and _lock.acquire(blocking=False):
        try:
            repeats.repeat(card.record, repeats.BEFORE_CELL)
            history.save(card)
        finally:
            _lock.release()


def opened(comm: Any, message: dict[str, Any]) -> None:
    """Handles a comm with the target "blocknb.card", which a page opens for its card or its comparison."""
    name = message["content"]["data"].get("card")
    if (page := live_pages.page(name)) is not None:
        known = {**PAGE_REQUESTS, **page.requests}
        comm.on_msg(lambda received: _answer(comm, page, received["content"]["data"], known))
        comm.send({"hello": page.id})
        return
    live = _cards.get(name)
    if live is None:
        comm.close()
        return
    live.failed = None
    if "modified" in live.card.parts:
        live.card = live.cell  # the page shows the saved document, which is that of the run cell
    comm.on_msg(lambda received: _answer(comm, live, received["content"]["data"], REQUESTS))
    comm.send({"hello": live.id})


def _answer(
    comm: Any,
    live: Any,
    data: dict[str, Any],
    requests: Mapping[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] | None = None,
) -> None:
    """Answers a request of the page of a LiveCard, or of a live_pages.LivePage with its `requests`."""
    number = data.get("id")
    try:
        with _lock, compile_status.sent_to(lambda text: live.report({"status": text})):
            live.report = lambda content: comm.send({"id": number, "progress": True, **content})
            answer = (requests or REQUESTS)[data.get("what", "")](live, data)
    except KernelError as error:
        answer = {"error": numbers.complaint(error)}
    except KeyboardInterrupt:
        answer = {"error": "interrupted"}
    except UsageError as error:  # a sentence on what the user typed on the page
        answer = {"error": str(error)}
    except (
        Exception
    ) as error:  # an error in the user's grid function or in blocknb: the page needs an answer in any case
        answer = {"error": f"{type(error).__name__}: {error}"}
    comm.send({"id": number, **answer})


def _blob(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    return {"listing": live.listing(data["hash"])}


def _change_knobs(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """Applies changed knobs; returns the document of the result. The notebook saves that of the run cell, with the result named in it.

    The page gets the code and its resources before their comparison with the run cell, which takes a second or two."""
    live.failed = None
    if knobs.are_the_cells(live.cell, data["knobs"]):
        live.card, live.unedited = live.cell, None
        return _shown(live)
    begun = False

    def compiled_only(card: Card) -> None:
        nonlocal begun
        shown = _document(live, replace(card, whole=False))
        del shown["deferred"]  # the page asks for it after the comparison
        begun = True
        live.report({"document": shown})

    try:
        changed = knobs.with_knobs(live.cell, data["knobs"], bool(data.get("run", True)), compiled_only)
    except BaseException as error:
        if failed := _failed(live, error, data["knobs"]):
            live.card, live.unedited = live.cell, None
            return failed
        if begun:
            live.report({"document": _document(live, live.card)})  # what the page showed before
        raise
    repeats.repeat(live.cell.record)  # the page may not have requested them yet
    live.cell = replace(live.cell)
    live.card = replace(changed, whole=False)
    live.unedited = None  # the change compiled the kernel itself
    modified = live.card.parts["modified"]
    if modified["now"] is not None:
        version = document.hash_of(live.cell.source)
        history.add_run(
            live.cell.record.kernel, version, history.KNOBS, modified["settings"], modified["now"], modified["verdict"]
        )
        history.save(live.cell)
    return _shown_and_saved(live)


def _shown_and_saved(live: LiveCard) -> dict[str, Any]:
    """The document to show, and the one to save: that of the run cell, which names what the user changed after it."""
    modified = live.card.parts.get("modified")
    if modified is None:
        return _shown(live)
    kept = replace(live.cell, parts={**live.cell.parts, "modified": modified})
    kept = replace(kept, more_facts=(*live.cell.more_facts, *live.card.more_facts))
    return {**_shown(live), "saved": _document(live, kept)}


def _failed(live: LiveCard, error: BaseException, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The document of a change whose compilation failed after some passes, and the one to save; None for another error."""
    from blocknb.notebook import failed_change, failed_compile

    trace = failed_compile.stages_of(error)
    if trace is None or not isinstance(error, KernelError | CompilationInterrupted):
        return None
    live.failed = trace
    shown = {**failed_change.shown(live.cell, error, trace, wanted), "model": live.id}
    kept = replace(live.cell, parts={**live.cell.parts, "modified": shown["modified"]})
    return {"document": shown, "saved": _document(live, kept)}


def _measure(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """Measures what a view of the page shows, for the run cell, and adds it to the card."""
    from IPython.core.getipython import get_ipython

    from blocknb.notebook import page_measurements

    before = live.cell
    found = page_measurements.measure(before, str(data["view"]), data, get_ipython())
    facts = (*before.more_facts, *found.facts)
    live.cell = replace(before, parts={**before.parts, **found.parts}, more_facts=facts)
    history.replace_card(before, live.cell)
    live.card = live.cell if live.card is before else replace(live.card, parts={**live.card.parts, **found.parts})
    return _shown_and_saved(live)


def _stage_text(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The IR after a stage, as the user edits it."""
    from blocknb.notebook import edits

    if live.failed is not None:
        return {"error": "this compilation failed; change the knob or the edit back to edit a stage"}
    return {"text": edits.stage_text(live.card, int(data["view"]), data["stage"])}


def _edit(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """Compiles on from an edited stage; without a stage, drops all edits. A wrong text gives its place instead of a document."""
    if data.get("stage") is None:
        live.card, live.unedited, live.failed = live.unedited or live.card, None, None
        return _shown(live)
    from blocknb.notebook import edits
    from blocknb.runtime.stage_edit import EditError

    before = live.unedited or live.card
    try:
        live.card = replace(edits.with_edit(live.card, int(data["view"]), data["stage"], data["text"]), whole=False)
    except EditError as error:
        loc = error.loc
        place = {} if loc is None else {"line": loc.line, "column": loc.column, "end_column": loc.end_column}
        return {"problem": {"message": error.message, "hint": error.hint or "", **place}}
    except (KernelError, CompilationInterrupted) as error:
        if failed := _failed(live, error, {}):
            live.unedited = before
            return failed
        raise
    live.unedited = before
    return _shown(live)


def _whole(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The document including the postponed parts: machine code, and the repetitions of the launch."""
    later = live.card
    if later is live.cell:
        repeats.repeat(later.record)
    live.card = replace(later, whole=True)
    if later is live.cell:
        live.cell = live.card
    history.replace_card(later, live.card)
    if live.card is live.cell:
        history.save(live.card)  # now with the times of the repetitions
    return _shown(live)


def _shown(live: LiveCard) -> dict[str, Any]:
    live._texts = {}
    return {"document": _document(live, live.card)}


def _document(live: LiveCard, card: Card) -> dict[str, Any]:
    found: dict[str, Any] = card.bundle(model=live.id, knobs=knobs.offered(card))[document.MIME]
    return found


def _export(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The card of the run cell as one HTML file."""
    from blocknb.notebook import export

    return {"page": export.page(replace(live.cell, whole=True))}


def _versions(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """All listings of another version of the card's kernel."""
    for version in history.versions(live.card.record.kernel):
        if version.key == data["version"]:
            return {"views": history.texts(version)}
    return {"error": "the kernel has discarded this version"}


def _compare(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The page that compares two versions of the card's kernel at all levels."""
    from blocknb.notebook import export, side_by_side

    kernel = live.card.record.kernel
    known = {version.key: version for version in history.versions(kernel)}
    wanted = [known.get(key) for key in data["versions"]]
    if any(version is None or version.card is None for version in wanted):
        return {
            "error": "the kernel has discarded a version, or it is of an earlier session: run it again to compare its code"
        }
    sides = [side_by_side.of_card(v.card, f"{kernel.__name__}@{v.number}") for v in wanted if v is not None]
    return {"document": side_by_side.SideBySide(sides).document(export.EVERYTHING)}


def _tiles(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The accesses of one program (of one op if it is named) in one iteration of the loops."""
    part, found = live.card.tiles
    if found is None:
        return {"error": part["why"]}
    accesses = found.program(int(data["program"]), int(data.get("iteration", 0)))
    return {"accesses": {op: a for op, a in accesses.items() if data.get("op") in (None, int(op))}}


def _teach(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The content of the Step, Launch or Footprint view, and the part of it that the notebook saves."""
    from blocknb.notebook.teaching import part as teaching

    old = live.card
    found, live.card = teaching.answer(old, data)
    if old is live.cell:
        live.cell = live.card
        history.replace_card(old, live.card)
    return found


def _changes(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The sentences on the difference of two stages of one target, by number."""
    from blocknb.notebook import change_sentences

    trace = live.failed or live.card.views[int(data["view"])].trace
    return {"sentences": [] if trace is None else change_sentences.between(trace, int(data["a"]), int(data["b"]))}


def _hint(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The verdict on an exercise with the next hint in it."""
    if verdicts.VERDICT not in live.cell.parts:
        return {"error": "this card has no exercise: run the cell again"}
    part = course.lessons().card_hint(live.cell.parts[verdicts.VERDICT])
    _replace_part(live, verdicts.VERDICT, part)
    return {"verdict": part}


def _predict(live: LiveCard, data: dict[str, Any]) -> dict[str, Any]:
    """The card after an answer to its question."""
    if verdicts.QUESTION not in live.cell.parts:
        return {"error": "this card asks no question: run the cell again"}
    if not str(data.get("answer", "")).strip():
        return {"error": "the answer is empty"}
    part = course.lessons().card_answer(live.cell.parts[verdicts.QUESTION], str(data["answer"]))
    _replace_part(live, verdicts.QUESTION, part)
    return _shown(live)


def _replace_part(live: LiveCard, key: str, part: dict[str, Any]) -> None:
    """Replaces a part of the card of the cell and of the shown card."""
    before, same = live.cell, live.card is live.cell
    live.cell = replace(before, parts={**before.parts, key: part})
    live.card = live.cell if same else replace(live.card, parts={**live.card.parts, key: part})
    history.replace_card(before, live.cell)


#: The requests that a page may send, by name; each handler takes the card and the content, and returns the content of the answer.
REQUESTS: dict[str, Callable[[LiveCard, dict[str, Any]], dict[str, Any]]] = {
    "blob": _blob,
    "turn": _change_knobs,
    "stage_text": _stage_text,
    "edit": _edit,
    "whole": _whole,
    "export": _export,
    "version": _versions,
    "compare": _compare,
    "tiles": _tiles,
    "teach": _teach,
    "changes": _changes,
    "measure": _measure,
    "hint": _hint,
    "predict": _predict,
}


#: The requests of a page without a card of its own.
PAGE_REQUESTS: dict[str, Callable[[live_pages.LivePage, dict[str, Any]], dict[str, Any]]] = {
    "export": lambda page, data: {"page": page.export()}
}


def bundle_of(kernel: Kernel) -> dict[str, Any]:
    """The bundle of a kernel's newest card; of a kernel that was never launched, how to launch it."""
    record = record_of(kernel)
    if record is None:
        text = f"{kernel!r}: not launched yet. Launch it with {example(kernel)}"
        return {
            "text/plain": text,
            "text/html": html.message(f"`{kernel!r}` has not been launched yet. Launch it with `{example(kernel)}`."),
        }
    return bundle(newest(record))
