"""The options `--step`, `--launch-view`, `--footprint` and `--learn`: what a card shows of the views that teach, without a live kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from blocknb.notebook.options import Found, Option

if TYPE_CHECKING:
    from blocknb.notebook.card import Card


def programs_of(text: Any, shell: Any) -> list[int]:
    """The programs that `--step` names: one or two numbers."""
    if text is None:
        return []
    try:
        found = [int(word) for word in str(text).split(",")]
    except ValueError:
        found = []
    if not 1 <= len(found) <= 2 or min(found) < 0:
        raise UsageError(f"--step takes one or two programs, such as --step 3 or --step 0,5; not {text!r}")
    return found


def with_views(card: Card, asked: Mapping[str, Any], learn: bool) -> Card:
    """The card with the views that the options of its cell name. `asked` are the values of `prepare`; `learn` is the setting of the
    session."""
    learn = learn if asked.get("learn") is None else asked["learn"] == "on"
    wanted: dict[str, dict[str, Any]] = {}
    if asked.get("step") or learn:
        wanted["step"] = {"programs": asked.get("step") or [0]}
    wanted |= {
        view: {} for view, key in (("launch", "launch_view"), ("footprint", "footprint")) if asked.get(key) or learn
    }
    if not wanted:
        return card
    from blocknb.notebook.teaching import part

    found: dict[str, Any] = {"learn": True} if learn else {}
    for view, content in wanted.items():
        found[view] = part.parts_of(card, view, content, (part.SAVED,))[0]
    opened = card.opened or (() if learn else tuple(wanted)[:1])
    return replace(card, parts={**card.parts, part.KEY: found}, opened=opened)


def _after(value: Any, record: Any, shell: Any, found: Found) -> None:
    """Nothing: `with_views` needs the card, which does not exist yet."""


CELL_OPTIONS = (
    Option(
        "--step",
        {
            "nargs": "?",
            "const": "0",
            "metavar": "PROGRAMS",
            "help": "Save the values of one or two programs, line by line, and open the Step view: --step 3, --step 0,5.",
        },
        _after,
        programs_of,
    ),
    Option(
        "--launch-view",
        {
            "nargs": "?",
            "const": "on",
            "choices": ("on",),
            "help": "Save the tiles of the programs on the arrays, in launch order, and open the Launch view.",
        },
        _after,
    ),
    Option(
        "--footprint",
        {
            "nargs": "?",
            "const": "on",
            "choices": ("on",),
            "help": "Save which program stores and loads each element, and open the Footprint view.",
        },
        _after,
    ),
    Option(
        "--learn",
        {
            "nargs": "?",
            "const": "on",
            "choices": ("on", "off"),
            "help": "Show the card for learners: the Step, Launch and Footprint views first, and the compiler's stages on request. "
            "`%%config BlockMagics.learn = True` makes it the default.",
        },
        _after,
        complete=lambda word: [value for value in ("on", "off") if value.startswith(word)],
    ),
)
