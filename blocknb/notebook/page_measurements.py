"""Measurements that the page requests for a card: a roofline, a sweep, or a comparison in turns, as the options of the cell make them.

The page sends what the user chose in an empty view. The results have the form of the results of cell options (`options.Found`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blocknb.errors import LaunchError
from blocknb.notebook import option_baseline, option_sweep, option_without
from blocknb.notebook.card import Card
from blocknb.notebook.options import Found, finish


def measure(card: Card, what: str, content: Mapping[str, Any], shell: Any) -> Found:
    """Measures "roofline", "sweep" (`axis`, `values`) or "bench" (`baseline`) for the kernel of a card.

    Raises LaunchError for an unknown `what`, UsageError for values or an expression that cannot be read, and what a launch raises."""
    if what not in MEASURES:
        raise LaunchError(f"no measurement is called {what!r}", hint=f"the measurements are {', '.join(MEASURES)}")
    return MEASURES[what](card, content, shell)


def _roofline(card: Card, content: Mapping[str, Any], shell: Any) -> Found:
    from blocknb.notebook.roofline import earlier, roofline

    kernel = card.record.kernel
    return Found(parts={"roofline": roofline(kernel, versions=earlier(kernel)).part})


def _sweep(card: Card, content: Mapping[str, Any], shell: Any) -> Found:
    found = Found()
    axis = option_sweep.axis(f"{content['axis']}={content['values']}", shell)
    option_sweep.after((axis,), card.record, shell, found)
    return found


def _bench(card: Card, content: Mapping[str, Any], shell: Any) -> Found:
    """The kernel against an expression; without one, against the kernel without each optional pass that changed it."""
    given = str(content.get("baseline", "")).strip()
    if given:
        return finish({"baseline": option_baseline.prepare([given], shell)}, card.record, shell)
    stages = card.main.compiled.trace.stages
    names = [stage.name for stage in stages if stage.optional and stage.changed and not stage.skipped]
    if not names:
        raise LaunchError("no optional pass changed this kernel", hint="give an expression to compare the kernel with")
    return finish({"without": option_without.prepare([[name] for name in names], shell)}, card.record, shell)


#: The measurements by the key of their view.
MEASURES: dict[str, Callable[[Card, Mapping[str, Any], Any], Found]] = {
    "roofline": _roofline,
    "sweep": _sweep,
    "bench": _bench,
}
