"""Measurements that the page requests for a card: a roofline, a sweep, or a comparison in turns, as the options of the cell make them.

The page sends what the user chose in an empty view. The results have the form of the results of cell options (`options.Found`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.error import UsageError

from blocknb.errors import LaunchError
from blocknb.notebook import option_baseline, option_sweep, option_without
from blocknb.notebook.card import Card
from blocknb.notebook.options import Found, finish


def measure(card: Card, what: str, content: Mapping[str, Any], shell: Any) -> Found:
    """Measures "roofline", "sweep" (`axis`, `values`) or "bench" (`baseline`) for the kernel of a card.

    Raises LaunchError for an unknown `what`; UsageError for values or an expression that cannot be read, and if the arrays of the launch
    no longer exist; and what a launch raises."""
    if what not in MEASURES:
        raise LaunchError(f"no measurement is called {what!r}", hint=f"the measurements are {', '.join(MEASURES)}")
    return MEASURES[what](card, content, shell)


def _roofline(card: Card, content: Mapping[str, Any], shell: Any) -> Found:
    from blocknb.notebook.roofline import earlier, roofline

    kernel = card.record.kernel
    return Found(parts={"roofline": roofline(kernel, versions=earlier(kernel)).part})


def _sweep(card: Card, content: Mapping[str, Any], shell: Any) -> Found:
    found = Found()
    axis = _axis(str(content["axis"]), str(content["values"]).strip(), shell)
    _require_arrays(card)
    try:
        option_sweep.after((axis,), card.record, shell, found)
    except UsageError as error:
        raise UsageError(_without_option(error)) from error
    return found


def _axis(name: str, values: str, shell: Any) -> option_sweep.SweepAxis:
    """The values that the user typed. Raises UsageError with what is wrong, and what to write."""
    hint = f"Write the values of {name} separated by commas, such as 64, 128, 256, or a range, such as 64..1024."
    if not values:
        raise UsageError(f"There are no values. {hint}")
    try:
        return option_sweep.axis(f"{name}={values}", shell)
    except Exception as error:  # what the user typed is an expression, which may raise anything
        raise UsageError(f"`{values}` cannot be read: {_without_option(error)}. {hint}") from error


def _without_option(error: Exception) -> str:
    """The first line of an error, without the option that the user of a page did not type."""
    return re.sub(r"^--sweep\b[^:]*: ", "", str(error).split("\n")[0]).rstrip(".")


def _require_arrays(card: Card) -> None:
    """Raises UsageError if an array of the launch of the cell no longer exists. A card keeps no array alive."""
    made = card.record.latest
    if made is not None and made.snapshot is not None and not made.snapshot.alive:
        raise UsageError(
            f"The arrays of this launch of {card.record.kernel.__name__} no longer exist: "
            "their names were deleted or hold other arrays now. Run the cell again, then measure."
        )


def _bench(card: Card, content: Mapping[str, Any], shell: Any) -> Found:
    """The kernel against an expression; without one, against the kernel without each optional pass that changed it."""
    _require_arrays(card)
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
