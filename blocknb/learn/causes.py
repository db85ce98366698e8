"""From a failed attempt to sentences about the cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from blocknb.learn.exercise import CheckFinding
from blocknb.learn.rules import never_stored
from blocknb.learn.running import Attempt


def findings_of(attempts: Sequence[Attempt]) -> Iterator[CheckFinding]:
    """The findings about failed attempts, the most useful first."""
    failed = [made for made in attempts if not made.passed]
    if not failed:
        return
    made = failed[0]
    if made.error:
        yield CheckFinding(made.error, "error", True, made.line, made.case.name)
        return
    if text := never_stored(made):
        yield CheckFinding(text, "footprint", True, None, made.case.name)
    yield from _elements(made)


def _elements(made: Attempt) -> Iterator[CheckFinding]:
    for name, flags in made.wrong.items():
        index = tuple(int(i) for i in np.argwhere(flags)[0])
        got, want = made.left[name][index], np.broadcast_to(made.want[name], flags.shape)[index]
        place = f"[{', '.join(map(str, index))}]" if index else ""
        text = f"`{name}`{place} is {got:.6g}, not {want:.6g}: {int(flags.sum())} of {flags.size} elements are wrong"
        yield CheckFinding(text, "element", False, None, made.case.name)
