"""The three facts at the top of a card: the time with its share of the roof, the verdict of the check, and the device.

`headline(card)` returns entries (label, value, details). The page shows the value in bold and the details below it; the other facts of
the card are folded. The share of the roof needs ceilings that were measured before (`blocknb.profile.ceilings`): a card measures none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blocknb.notebook import numbers
from blocknb.notebook.observe import Specialisation
from blocknb.profile.timing import Timing

MOST_PERCENT = 105  # a higher share means that the data stayed in a cache, so that the ceiling does not apply

#: The facts that explain a wrong result, in the order of the headline.
EXPLAINED = ("first wrong", "cause")

Entry = tuple[str, str, list[str]]


def headline(card: Any) -> list[Entry]:
    """The three entries of a Card. Makes no measurement."""
    made: Specialisation = card.main
    local = "workers" not in card.parts  # the ceilings of this machine are not those of a worker
    return [_time(made, card.whole and local), _check(card.facts, card.parts.get("modified")), _device(card, made)]


def _time(made: Specialisation, whole: bool) -> Entry:
    found = made.timing
    if found is None:
        return "time", "not measured" if made.launches else "not launched", []
    how = f"{f'median of {found.runs}' if found.runs > 1 else '1 launch'}, {'cold' if found.cold else 'warm'}"
    speed = numbers.rate(made)
    share = share_of_roof(made, found) if whole else ""
    rate = f"{numbers.rate_text(speed.value, speed.unit)}{f', {share}' if share else ''}" if speed else share
    return "time", numbers.time(found.median), [how, *([rate] if rate else [])]


def share_of_roof(made: Specialisation, time: Timing) -> str:
    """ "62 % of the memory roof"; "" without measured ceilings, or if the launch is faster than they allow."""
    from blocknb.profile.ceilings import known
    from blocknb.profile.replay import work_of
    from blocknb.profile.roof import nearest

    if not made.launches or (limits := known(made.device)) is None:
        return ""
    name, percent = nearest(work_of(made.compiled, made.arguments, made.grid), time.median, made.compiled, limits)
    if name is None or percent is None or percent > MOST_PERCENT:
        return ""
    return f"{percent:.0f} % of the {name} roof"


def _check(facts: list[tuple[str, str]], modified: Mapping[str, Any] | None) -> Entry:
    if modified is not None:
        value = "✗ WRONG" if modified["verdict"] == "wrong" else "not checked"
        return "check", value, [f"changed to `{modified['settings']}`", *filter(None, [modified["outputs"]])]
    for label, text in facts:
        if label == "check":
            said, _, rest = text.partition(": ")
            value, _, note = said.partition(" (")  # "correct (in an earlier run of the same code)"
            found = [f"{name}: {why}" for name, why in facts if name in EXPLAINED]
            return "check", value, [*([note.rstrip(")")] if note else []), rest, *found]
    last = next((text for label, text in facts if label == "last checked"), None)
    return "check", "not checked", [f"last checked: {last}"] if last else []


def _device(card: Any, made: Specialisation) -> Entry:
    launched = f"grid {numbers.grid(made.grid)}, {numbers.width(made.compiled)}" if made.launches else "compiled only"
    return "device", card.views[0].place, [launched]
