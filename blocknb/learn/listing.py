"""The exercises as a table, and the learner's progress by unit, as text and as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from blocknb.learn import catalog
from blocknb.learn.exercise import Exercise, Prediction, Unit
from blocknb.learn.progress import ItemProgress
from blocknb.notebook import html

NOTHING = ItemProgress()
BAR = 10  # characters of a bar


def groups() -> list[tuple[Unit | None, tuple[Exercise | Prediction, ...]]]:
    """The units with their items, and the items of files without a unit."""
    found: list[tuple[Unit | None, tuple[Exercise | Prediction, ...]]] = [
        (unit, catalog.exercises(unit)) for unit in catalog.units()
    ]
    rest = tuple(item for item in catalog.exercises() if catalog.unit_of(item.name) is None)
    return [*found, *([(None, rest)] if rest else [])]


def title(unit: Unit | None) -> str:
    """ "1 Blocks"."""
    return "other exercises" if unit is None else f"{unit.number} {unit.title}"


def state(item: Exercise | Prediction, done: ItemProgress) -> str:
    """The learner's work on an item in a few words."""
    if not done.tries:
        return "hint read" if done.hints else ""
    tries = "1 try" if done.tries == 1 else f"{done.tries} tries"
    hints = f", {done.hints} hint{'s' * (done.hints > 1)}" if done.hints else ""
    seen = ", after the solution" if done.solution else ""
    old = ", the exercise has changed since" if done.hash != item.hash else ""
    return f"{'✓ ' if done.passed else ''}{tries}{hints}{seen}{old}"


def bar(passed: int, count: int) -> str:
    """A bar of ten characters."""
    full = BAR * passed // count if count else 0
    return "█" * full + "░" * (BAR - full)


def table(done: Mapping[str, ItemProgress]) -> dict[str, Any]:
    """All exercises by unit, as an output."""
    rows = [["unit", "exercise", "title", "progress"]]
    for unit, items in groups():
        for number, item in enumerate(items):
            rows.append(
                ["" if number else title(unit), item.name, item.title, state(item, done.get(item.name, NOTHING))]
            )
    count = len(rows) - 1
    return _output("Exercises", f"{count} exercises and predictions", rows)


def summary(done: Mapping[str, ItemProgress], place: str) -> dict[str, Any]:
    """The progress by unit, as an output. `place` says where it is stored."""
    rows, passed, count = [["unit", "", "passed", "tried", "next"]], 0, 0
    for unit, items in groups():
        found = [(item, done.get(item.name, NOTHING)) for item in items]
        good = [item for item, work in found if work.passed]
        tried = [f"{item.name} ({work.tries})" for item, work in found if work.tries and not work.passed]
        left = next((item.name for item, work in found if not work.passed), "")
        rows.append([title(unit), bar(len(good), len(items)), f"{len(good)} of {len(items)}", ", ".join(tried), left])
        passed, count = passed + len(good), count + len(items)
    return _output("Progress", f"{passed} of {count} passed; {place}", rows)


def _output(name: str, about: str, rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    head, *body = rows
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    page = (
        f'<div class="blocknb-card"><style>{html.STYLE}</style>\n<div class=bn-head><b>{escape(name)}</b> &nbsp;'
        f"{escape(about)}</div><table class=bn-rows><tr>{titles}</tr>{cells}</table></div>"
    )
    return {"text/plain": "\n".join([f"{name}: {about}", *lines]), "text/html": page}
