"""The document's part "teaching": what the Step, Launch and Footprint views show, each under its key, packed like the tiles.

Nothing of it is computed or imported unless a cell option asks for it (`options.py`), or the page of a live card does. The page gets as
much as is useful to look at; the notebook saves at most `SAVED` characters of each view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from blocknb.errors import KernelError
from blocknb.notebook.blobs import pack

if TYPE_CHECKING:
    from blocknb.notebook.card import Card
    from blocknb.notebook.teaching.launch_tiles import LaunchMachine

KEY = "teaching"
SAVED = 30_000  # characters of one view in a saved card
LIVE = 3_000_000  # characters of one view on the page of a live card
#: The request, and the limits of what is answered, largest first.
Writer = Callable[["Card", Mapping[str, Any], Sequence[int]], list[dict[str, Any]]]


def parts_of(card: Card, view: str, asked: Mapping[str, Any], limits: Sequence[int]) -> list[dict[str, Any]]:
    """The part of a view ("step", "launch" or "footprint") within each of the limits, packed; or why there is none.

    `asked` may have the `programs` of a step, or the `first` program of a launch.
    """
    try:
        found = [pack(part) for part in WRITERS[view](card, asked, limits)]
    except KernelError as error:
        hint = f"; {error.hint}" if error.hint else ""
        return [{"why": f"{error.message}{hint}."}] * len(limits)
    return [
        {"packed": text} if len(text) <= limit else {"why": TOO_LARGE}
        for text, limit in zip(found, limits, strict=True)
    ]


TOO_LARGE = "The view does not fit into the saved card. Run the cell again."


def answer(card: Card, asked: Mapping[str, Any]) -> tuple[dict[str, Any], Card]:
    """The answer to a page that shows a view, and the card that has the view in its document."""
    view = str(asked["part"])
    if view not in WRITERS:
        return {"error": f"there is no view {view!r}"}, card
    shown, saved = parts_of(card, view, asked, (LIVE, SAVED))
    kept = {**card.parts.get(KEY, {}), view: saved}
    return {"part": shown, "saved": saved}, _with(card, kept)


def _with(card: Card, teaching: Mapping[str, Any]) -> Card:
    return replace(card, parts={**card.parts, KEY: teaching})


def of_other_code(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a card for other code of its kernel: without what the views showed of the old code."""
    kept = {view: value for view, value in parts.get(KEY, {}).items() if view not in WRITERS}
    others = {key: value for key, value in parts.items() if key != KEY}
    return {**others, **({KEY: kept} if kept else {})}


def _step(card: Card, asked: Mapping[str, Any], limits: Sequence[int]) -> list[dict[str, Any]]:
    from blocknb.notebook.teaching import step_view

    programs = [int(program) for program in asked.get("programs", (0,))][:2]
    return step_view.step_parts(card.record.kernel, card.main, programs or [0], limits)


def _launch(card: Card, asked: Mapping[str, Any], limits: Sequence[int]) -> list[dict[str, Any]]:
    from blocknb.notebook.teaching import launch_tiles
    from blocknb.notebook.teaching.arguments import footprint_of

    found, order, runs_on = footprint_of(card.record.kernel, card.main), _launch_order(card), _machine(card)
    first = max(0, min(int(asked.get("first", 0)), found.log.launch.programs - 1))
    parts = []
    for limit in limits:
        most = launch_tiles.MOST_STEPS
        part = launch_tiles.launch_part(found, order, runs_on, card.file, first, most)
        while len(pack(part)) > limit and most > 1:
            most //= 2
            part = launch_tiles.launch_part(found, order, runs_on, card.file, first, most)
        parts.append(part)
    return parts


def _footprint(card: Card, asked: Mapping[str, Any], limits: Sequence[int]) -> list[dict[str, Any]]:
    from blocknb.notebook.teaching import footprint_view
    from blocknb.notebook.teaching.arguments import footprint_of

    found = footprint_of(card.record.kernel, card.main)
    parts = []
    for limit in limits:
        scale = 1
        part = footprint_view.footprint_part(found, card.file)
        while len(pack(part)) > limit and scale < footprint_view.ROWS:
            scale *= 2
            part = footprint_view.footprint_part(found, card.file, scale)
        parts.append(part)
    return parts


WRITERS: dict[str, Writer] = {"step": _step, "launch": _launch, "footprint": _footprint}


def _launch_order(card: Card) -> list[int] | None:
    """The numbers of the programs in the order in which the displayed GPU launches them; None: the order of the grid."""
    from blocknb.notebook.teaching.launch_tiles import MOST_ORDERED

    found = card.tiles[1]
    if found is None or found.width is None or found.programs_launched > MOST_ORDERED:
        return None
    x, y, _ = card.main.grid
    ids = map(found.place, range(found.programs_launched))
    return [i + x * (j + y * k) for i, j, k in ids]


def _machine(card: Card) -> LaunchMachine | None:
    """The GPU of the displayed code: the device that ran it, or the usual chip of its architecture."""
    from blocknb.notebook.teaching.launch_tiles import MULTIPROCESSORS, LaunchMachine
    from blocknb.profile.occupancy import occupancy
    from blocknb.runtime import machine

    view = next((v for v in card.views if v.trace is not None and v.trace.target.is_gpu), None)
    if view is None or view.trace is None:
        return None
    held = occupancy(view.trace.target, view.trace.resources)
    each = held.blocks_per_sm if held is not None else 1
    if card.main.compiled.target.is_gpu and card.main.device >= 0:
        count = machine.properties(card.main.device)["multiprocessor_count"]
        return LaunchMachine(view.place, count, each)
    known = MULTIPROCESSORS.get(str(view.trace.target).rstrip("a"))
    return None if known is None else LaunchMachine(*known, each)
