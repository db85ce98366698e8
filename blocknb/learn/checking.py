"""`check(exercise, kernel)`: runs the cases, compares with the reference, applies the rules, and says what is wrong.

Each case runs compiled with bounds checks on every device that is present, and the smallest one interpreted, too. The numbers of a case are
drawn from a new seed each time, outputs are poisoned before each launch, and inputs are compared after it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from blocknb.errors import CompilationError
from blocknb.learn.causes import findings_of
from blocknb.learn.cell import Answer, WrongCell, answer_of
from blocknb.learn.exercise import CaseResult, CheckFinding, Exercise, Prediction, Verdict
from blocknb.learn.gpu_guard import unfit_for_gpu
from blocknb.learn.notes import notes_of
from blocknb.learn.quantities import without_units
from blocknb.learn.running import SECONDS, Attempt, TimeUp, ToolMissing, Unchecked, attempt, devices_present
from blocknb.runtime.launch_context import unobserved


def check(
    exercise: Exercise | Prediction | str, answer: Any, *, seed: int | None = None, devices: Sequence[str] | None = None
) -> Verdict:
    """Checks an answer: a kernel, or the source of a cell, for an exercise; a value for a prediction.

    `exercise` is the exercise or its name. `seed` repeats an earlier check. `devices` are "cpu" and "gpu", by default those that are
    present; "interpreted" alone compiles only what rules about code need. A wrong answer of any kind gives a Verdict. Raises
    UnknownExercise, and ValueError for an unknown device.
    """
    from blocknb.learn.catalog import exercise as find

    chosen = find(exercise) if isinstance(exercise, str) else exercise
    if unknown := set(devices or ()) - {"cpu", "gpu", "interpreted"}:
        raise ValueError(f"no devices: {', '.join(map(repr, sorted(unknown)))}; give 'cpu', 'gpu' or 'interpreted'")
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    if isinstance(chosen, Prediction):
        return judged(chosen, answer)
    start = time.perf_counter()
    try:
        found = answer_of(chosen, answer)
    except WrongCell as error:
        finding = CheckFinding(error.text, "cell", True, error.line)
        return Verdict(False, chosen.name, (), (finding,), seed, time.perf_counter() - start)
    chosen_devices = devices_present() if devices is None else devices
    return _checked(chosen, found, seed, chosen_devices, start)


def _checked(exercise: Exercise, answer: Answer, seed: int, devices: Sequence[str], start: float) -> Verdict:
    """The verdict on an answer. A right one may have notes, as findings, and remarks with numbers."""
    remarks: list[str] = []
    with unobserved():  # the card shows the launch of the cell, not those of the check
        attempts = attempts_of(exercise, answer, seed, devices, remarks)
        wrong = findings_of(attempts) or broken_rules(attempts, remarks)
        findings = wrong or list(notes_of(attempts))
        remarks[:0] = numbers_of(attempts) if not wrong else ()
    counted = [made for made in attempts if made.device != "interpreted"] or attempts
    results = [CaseResult(made.case.name, made.passed, _text(made), made.device) for made in counted]
    tried = {result.name for result in results}
    results += [CaseResult(case.name, False, "not tried") for case in exercise.cases if case.name not in tried]
    passed = all(result.passed for result in results) and not wrong
    seconds = time.perf_counter() - start
    return Verdict(passed, exercise.name, tuple(results), tuple(findings), seed, seconds, notes=tuple(remarks))


def numbers_of(attempts: Sequence[Attempt]) -> list[str]:
    """The sentences of an exercise about an answer that passed."""
    numbers = attempts[0].exercise.numbers
    return [*numbers(attempts)] if numbers is not None and all(made.passed for made in attempts) else []


def launch(exercise: Exercise | str, answer: Any, case: int | str = 0, *, seed: int = 0) -> Attempt:
    """Launches an answer on one case, by its number or name, where observers such as the card see it. The Attempt has the arguments
    (`left`), the grid, and the `error`, if there is one. Raises WrongCell if the answer is no kernel, UnknownExercise, and ValueError for a
    case that the exercise lacks and for a prediction."""
    from blocknb.learn.catalog import exercise as find

    chosen = find(exercise) if isinstance(exercise, str) else exercise
    if not isinstance(chosen, Exercise):
        raise ValueError(f"{chosen.name} is a prediction, which has no kernel to launch")
    found = next((c for i, c in enumerate(chosen.cases) if case in (i, c.name)), None)
    if found is None:
        names = ", ".join(repr(c.name) for c in chosen.cases)
        raise ValueError(
            f"{chosen.name} has no case {case!r}: give a number below {len(chosen.cases)}, or one of {names}"
        )
    return attempt(chosen, answer_of(chosen, answer, own=True), found, seed)


def attempts_of(
    exercise: Exercise, answer: Answer, seed: int, devices: Sequence[str], notes: list[str]
) -> list[Attempt]:
    """The launches of all cases; only the first ones if one does not end, or cannot begin. Adds to `notes` why a device is left out.

    Nothing can stop a kernel on a GPU, so each case must pass on the CPU first, which stops it after a while."""
    found: list[Attempt] = []
    if "gpu" in devices:
        devices = ("cpu", *(device for device in devices if device != "cpu"))
    for device in devices:
        if device == "gpu" and (why := unfit_for_gpu(found)):
            notes.append(why)
            continue
        for number, case in enumerate(exercise.cases):
            found.append(attempt(exercise, answer, case, seed + number, device, SECONDS))
            if isinstance(found[-1].raised, TimeUp | WrongCell | CompilationError):
                return found
        if not all(made.passed for made in found):
            return found
    if "interpreted" not in devices:
        small = min(found[: len(exercise.cases)], key=_size)
        found.append(attempt(exercise, answer, small.case, small.seed, "interpreted"))
    return found


def broken_rules(attempts: Sequence[Attempt], notes: list[str] | None = None) -> list[CheckFinding]:
    """The parts of an answer that break the rules of an exercise, at most one finding per rule. A rule that cannot be checked counts as
    broken, unless a tool is missing: then `notes` gets a sentence."""
    found = []
    for rule in attempts[0].exercise.rules:
        for made in attempts[:1] if rule.once else [a for a in attempts if a.device == attempts[0].device]:
            try:
                breaks = next(iter(rule.check(made)), None)
            except Unchecked as error:
                text = f'could not check the rule "{rule.says or rule.name}" because {error}'
                breaks = CheckFinding(text, "unchecked")
                if isinstance(error, ToolMissing):
                    if notes is not None:
                        notes.append(text)
                    break
            if breaks:
                found.append(CheckFinding(breaks.text, breaks.kind, breaks.named, breaks.line, made.case.name))
                break
    return found


def judged(prediction: Prediction, given: Any) -> Verdict:
    """Whether an answer to a prediction is right. `given` is a value, or its text."""
    right = prediction.value
    if isinstance(given, str):
        given = without_units(given, prediction.unit)
    if matches(given, right, prediction.accepts):
        return Verdict(True, prediction.name)
    known = [(value() if callable(value) else value, text) for value, text in prediction.wrong]
    near = prediction.accepts if isinstance(prediction.accepts, int | float) else 0.0
    ways: tuple[Callable[[Any], bool], ...] = (
        lambda value: matches(given, value, 0.0),
        lambda value: matches(given, value, near) and not matches(right, value, near),
        lambda value: _same_single_error(given, value, right),
    )
    for explains in ways:
        for value, text in known:
            if explains(value):
                return Verdict(False, prediction.name, (), (CheckFinding(text, "prediction", True),))
    return Verdict(False, prediction.name, (), (CheckFinding(f"{given} is not right", "prediction"),))


def _same_single_error(given: Any, wrong: Any, right: Any) -> bool:
    """Whether a known wrong answer of several numbers errs in one of them only, and the given answer errs there in the same way."""
    if not all(isinstance(x, tuple | list) for x in (given, wrong, right)) or len(given) != len(right):
        return False
    places = [i for i, (a, b) in enumerate(zip(wrong, right, strict=True)) if not matches(a, b, 0.0)]
    return len(places) == 1 and matches(given[places[0]], wrong[places[0]], 0.0)


def matches(given: Any, right: Any, accepts: float | Collection[Any]) -> bool:
    """Whether an answer equals a value, within a relative tolerance for numbers, or is among further accepted ones."""
    if not isinstance(accepts, int | float):
        return any(matches(given, value, 0.0) for value in (right, *accepts))
    if isinstance(right, tuple | list):
        return (
            isinstance(given, tuple | list)
            and len(given) == len(right)
            and all(matches(a, b, accepts) for a, b in zip(given, right, strict=True))
        )
    if isinstance(right, bool) or not isinstance(right, int | float | np.number):
        return str(given).strip().lower() == str(right).strip().lower()
    try:
        return bool(abs(float(given) - float(right)) <= float(accepts) * abs(float(right)) + 1e-9)
    except (TypeError, ValueError):
        return False


def _size(made: Attempt) -> int:
    return sum(value.size for value in made.given.values() if isinstance(value, np.ndarray))


def _text(made: Attempt) -> str:
    if made.error:
        return made.error
    return "; ".join(
        f"{int(np.count_nonzero(flags))} of {flags.size} elements of `{name}` are wrong"
        for name, flags in made.wrong.items()
    )
