"""From failed attempts to sentences, the most useful first: the cause where it is known, else the place.

The first one is a mistake of the exercise that gives the same results (`mistake_matching`), else one change of the kernel that repairs it
(`repairs`). Then come the error of the launch, facts of the footprint, and patterns of the IR and of the wrong numbers (`generic_causes`).
The last one names the first wrong elements, with the program that stored them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from blocknb.errors import ElementError, HintError, KernelError
from blocknb.learn import generic_causes
from blocknb.learn.cell import WrongCell
from blocknb.learn.exercise import CheckFinding
from blocknb.learn.mistake_matching import fitting, sentences
from blocknb.learn.repairs import repaired
from blocknb.learn.rules import footprint_errors, never_stored
from blocknb.learn.running import Attempt, TimeUp, region_text

MOST = 4  # findings of a verdict


def findings_of(attempts: Sequence[Attempt]) -> list[CheckFinding]:
    """The findings about failed attempts, the most useful first."""
    compiled = any(made.device != "interpreted" for made in attempts)
    failed = [made for made in attempts if not made.passed and (made.device != "interpreted" or not compiled)]
    if not failed:
        return [f for made in attempts if not made.passed for f in _unlike(made)]
    # A cell that cannot run one case, as with an empty grid, says more about the wrong elements of another.
    made = next((made for made in failed if isinstance(made.raised, WrongCell)), failed[0])
    found = [replace(finding, case=finding.case or made.case.name) for finding in _all(made, attempts)]
    different = {finding.text: finding for finding in reversed(found)}
    ordered = list(reversed(different.values()))
    failures = [finding for finding in ordered if finding.kind == "failure"]
    return [finding for finding in ordered if finding.kind != "failure"][:MOST] + failures


def _all(made: Attempt, attempts: Sequence[Attempt]) -> Iterator[CheckFinding]:
    if isinstance(made.raised, WrongCell):
        yield CheckFinding(made.error, "cell", True, made.line)
        return
    if isinstance(made.raised, TimeUp):
        yield CheckFinding(made.error, "error", True, made.line)
        return
    mistakes = list(_searched(lambda: _mistakes(made, attempts)))
    yield from mistakes
    if made.raised is None:
        try:
            _ = made.footprint  # the attempt keeps it
        except Exception as error:
            made.footprint = None  # the searches do without it
            yield _failure(error)
    patterns = [] if made.raised is not None else _found(made, generic_causes.of_values, generic_causes.of_numbers)
    if not mistakes and not any(f.named for f in patterns) and (made.raised is None or _outside(made)):
        yield from _searched(lambda: repaired([a for a in attempts if a.device == made.device]))
    if made.error:
        yield CheckFinding(made.error, "error", True, made.line)
        if isinstance(made.raised, KernelError) and made.raised.hint:
            yield CheckFinding(made.raised.hint, "error", True)
        if made.raised is not None:
            return
    yield from _found(made, never_stored, footprint_errors, generic_causes.of_accesses)
    yield from patterns
    yield from _found(made, elements)


def _outside(made: Attempt) -> bool:
    """Whether an address outside of an array ended the launch, and not a hint that does not hold, whose error says what is wrong."""
    return isinstance(made.raised, ElementError) and not isinstance(made.raised, HintError)


def _found(made: Attempt, *searches: Callable[[Attempt], Iterator[CheckFinding]]) -> list[CheckFinding]:
    return [found for search in searches for found in _searched(functools.partial(search, made))]


def _mistakes(made: Attempt, attempts: Sequence[Attempt]) -> Iterator[CheckFinding]:
    for text in sentences(fitting([a for a in attempts if a.device == made.device])):
        yield CheckFinding(text, "mistake", True)


def _searched(search: Callable[[], Iterator[CheckFinding]]) -> Iterator[CheckFinding]:
    """The findings of a search. An error of the search is no error of the learner: the answer stays wrong, and a last finding keeps the
    exception."""
    try:
        yield from search()
    except Exception as error:
        yield _failure(error)


def _failure(error: Exception) -> CheckFinding:
    text = f"the search for the cause raised {type(error).__name__}: {error}; please report it"
    return CheckFinding(f"{text}, with what `raise verdict.findings[-1].raised` shows", "failure", raised=error)


def elements(made: Attempt) -> Iterator[CheckFinding]:
    """The first wrong element of each output, where the wrong ones are, and the program that stored it."""
    for name, flags in made.wrong.items():
        index = tuple(int(i) for i in np.argwhere(flags)[0])
        got, want = made.left[name][index], np.broadcast_to(made.want[name], flags.shape)[index]
        shown = made.parameter(name)
        place = f"[{', '.join(map(str, index))}]" if index else ""
        several = f"; {region_text(shown, flags)} wrong" if flags.sum() > 1 else ""
        text = f"`{shown}`{place} is {_number(got)}, not {_number(want)}{_stored_by(made, shown, index)}{several}"
        yield CheckFinding(text, "element")


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _stored_by(made: Attempt, shown: str, index: tuple[int, ...]) -> str:
    seen = made.footprint
    array = seen.arrays.get(shown) if seen is not None else None
    if seen is None or array is None:
        return ""
    for verb, accesses in (("stored", array.stores), ("updated", array.atomics)):
        if accesses:
            table = accesses.to_numpy()[index]
            if table["first"] >= 0:
                one, last = (seen.log.launch.spelled(int(table[n])) for n in ("first", "last"))
                return f", {verb} by program {one}" if one == last else f", {verb} by programs {one} to {last}"
    return ""


def _unlike(made: Attempt) -> Iterator[CheckFinding]:
    """An answer that is right compiled and wrong interpreted. An error of the interpreter alone is no finding."""
    if made.wrong:
        yield CheckFinding(
            "the compiled result is right, and the interpreted one is wrong: does it depend on the order?", "element"
        )
