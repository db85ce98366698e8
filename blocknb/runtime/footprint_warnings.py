"""Warnings about launches that the user asked to check: `checked=True`, `--checked`, and interpreted launches.

Before such a launch its footprint is made, within a small budget. What is certain and wrong, a race or a store outside of an array, becomes
a FootprintWarning with its line. A launch of the same kernel, grid and types is examined once. Other launches cost nothing.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from blocknb.errors import KernelError, Loc, SyntaxUnsupported, display_file
from blocknb.footprint.access_log import Budget
from blocknb.footprint.follow import footprint
from blocknb.footprint.value import FootprintFinding
from blocknb.runtime.binding import Binding, caller
from blocknb.runtime.footprints import launch_of
from blocknb.runtime.kinds import Kind
from blocknb.runtime.launch_context import Grid
from blocknb.runtime.launchable import Launchable

BUDGET = Budget(seconds=0.5, runs=4_000_000, elements=1 << 26)
MOST_KEPT = 1024  # launches per kernel that are remembered as examined
#: Kinds of findings that other checks of these launches raise, with the element.
RAISED = frozenset({"outside", "failure"})


class FootprintWarning(UserWarning):
    """A launch is certainly wrong, though it may run without an error: a race, or several values for one element."""


def examine(
    kernel: Launchable,
    binding: Binding,
    kinds: Sequence[Kind],
    raws: Sequence[Any],
    values: Sequence[Any],
    sizes: Grid,
    interpreted: bool = False,
) -> None:
    """Warns about what is wrong with a launch, the first time that its kernel, kinds and grid occur. An interpreted kernel that calls host
    functions, such as `print` and `breakpoint`, is left out: they run in the interpreter, and only there."""
    seen = vars(kernel).setdefault("_examined", set())
    key = (tuple(kinds), sizes, binding.names)
    if key in seen or 0 in sizes:
        return
    if len(seen) >= MOST_KEPT:
        seen.clear()
    seen.add(key)
    try:
        launch = launch_of(kernel, binding, kinds, raws, values, sizes, _refused if interpreted else None)
        found = footprint(launch, BUDGET)
    except (
        KernelError
    ):  # of Python that only the interpreter runs, or of an argument without an extent: the launch itself decides
        return
    for finding in found.errors:
        if finding.kind not in RAISED:
            _warn(kernel, finding)


def _refused(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls the functions by which the front end itself computes constants, and refuses those of the user."""
    if function in (bool, operator.getitem):
        return function(*args, **kwargs)
    raise SyntaxUnsupported(f"the kernel calls {getattr(function, '__name__', function)}")


def _warn(kernel: Launchable, finding: FootprintFinding) -> None:
    where: Loc | None = caller()
    message = f"{kernel.__name__}: {finding}"
    if where is None:
        warnings.warn(message, FootprintWarning, stacklevel=2)
    else:
        warnings.warn_explicit(message, FootprintWarning, display_file(where.file), where.line)
