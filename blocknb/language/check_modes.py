"""The values of the launch option `checked`: which mistakes a launch looks for at run time."""

from __future__ import annotations

from typing import Any

#: The names that `checked` may hold, separated by commas. Each includes the bounds checks.
NAMES = ("bounds", "race", "init", "all")
NOTHING: frozenset[str] = frozenset()


def parse_checks(checked: Any) -> frozenset[str]:
    """The checks that a value of `checked` asks for, beyond those of the device's default. Raises ValueError for other values."""
    if checked is None or checked is False:
        return NOTHING
    if checked is True:
        return frozenset(["bounds"])
    names = frozenset(name.strip() for name in checked.split(",")) if isinstance(checked, str) else NOTHING
    if not names or not names <= set(NAMES):
        raise ValueError(f"checked is {checked!r}")
    return frozenset(["bounds", "race", "init"]) if "all" in names else frozenset({"bounds", *names})
