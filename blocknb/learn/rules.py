"""Rules that an answer must follow in addition to a right result, each with a sentence about what it found.

A `Rule` receives an `Attempt` whose result is right. Rules about memory read the footprint, on every case. Rules about code compile the
kernel for a GPU, without one, on the first case.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from blocknb.footprint.runs import as_slices, spans
from blocknb.learn.exercise import CheckFinding, Rule
from blocknb.learn.running import Attempt


def _stored_once(made: Attempt) -> Iterator[CheckFinding]:
    seen = made.footprint
    if seen is None or seen.sampled:
        return
    for found in seen.findings:
        if found.kind == "race" and "both store" in found.text:
            line = found.loc.outermost.line if found.loc else None
            yield CheckFinding(found.text + (f": {found.hint}" if found.hint else ""), "footprint", True, line)
            return


def _no_race(made: Attempt) -> Iterator[CheckFinding]:
    seen = made.footprint
    if seen is None:
        return
    for found in seen.findings:
        if found.kind in ("race", "lanes") and found.level == "error":
            line = found.loc.outermost.line if found.loc else None
            yield CheckFinding(found.text + (f": {found.hint}" if found.hint else ""), "footprint", True, line)
            return


stored_once = Rule("stored_once", "One program stores each element of the output, and stores it once.", _stored_once)
no_race = Rule("no_race", "No program reads what another program writes.", _no_race)


def never_stored(made: Attempt) -> str:
    """The elements of outputs that no program stores, as a sentence, or ""."""
    seen = made.footprint
    if seen is None or seen.sampled:
        return ""
    names = dict(zip(made.left, made.left, strict=True))
    for name in made.exercise.outputs:
        array = seen.arrays.get(names.get(name, name))
        if array is None or array.atomics:
            continue
        flags = np.asarray(array.stores.count == 0)
        if flags.any():
            return f"`{name}`: {int(flags.sum())} of {flags.size} elements are never stored: {as_slices(spans(flags.reshape(-1)))}"
    return ""
