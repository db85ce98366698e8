"""`prove(exercise)`: tests an exercise by right and wrong answers, and returns a ProofReport.

The solution and the alternatives must pass with several seeds, interpreted and compiled. The skeleton, the mistakes, cheats, and mutants of
the solution must be refused; a mistake's verdict must name it. A mutant that is accepted shows a hole in the cases or rules, or is right:
then `Exercise.equivalent` lists it with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from blocknb.errors import KernelError
from blocknb.learn.cell import Answer, WrongCell, answer_of
from blocknb.learn.checking import broken_rules, check, judged, matches
from blocknb.learn.code_rules import gpu_code
from blocknb.learn.exercise import Exercise, Prediction
from blocknb.learn.mistake_matching import answer_in
from blocknb.learn.mutants import Mutant, cheats, mutants
from blocknb.learn.running import Attempt, attempt
from blocknb.runtime.launch_context import unobserved

FEWEST_MISTAKES, FEWEST_ALTERNATIVES = 8, 5
SEEDS = (1, 2, 3)
SECONDS = 2.0  # of the launch of a mutant
TARGETS = ("sm_80", "sm_90a")


@dataclass
class ProofReport:
    """The result of `prove`. `failures` are sentences; the exercise is sound if there are none. `unnamed` are mistakes that are refused
    without their name, `survivors` mutants that are accepted and not listed as equivalent. Counts are (good, tried)."""

    name: str
    failures: list[str] = field(default_factory=list)
    mistakes: tuple[int, int] = (0, 0)
    named: tuple[int, int] = (0, 0)
    alternatives: tuple[int, int] = (0, 0)
    cheats: tuple[int, int] = (0, 0)
    mutants: tuple[int, int] = (0, 0)
    equivalent: int = 0
    unnamed: list[str] = field(default_factory=list)
    survivors: list[Mutant] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        counts = {k: getattr(self, k) for k in ("mistakes", "named", "cheats", "mutants", "alternatives")}
        head = ", ".join(f"{good} of {tried} {name}" for name, (good, tried) in counts.items() if tried)
        lines = [
            f"{self.name}: {'sound' if self.sound else f'{len(self.failures)} failures'}; {head or 'prediction'} ({self.seconds:.1f} s)"
        ]
        return "\n".join([*lines, *(f"  {text}" for text in self.failures)])

    __repr__ = __str__


def prove(
    exercise: Exercise | Prediction, *, seeds: Iterable[int] = SEEDS, compiled: bool = True, course: bool = True
) -> ProofReport:
    """Tests an exercise. With `compiled` False, answers only run interpreted, and the solution is not compiled for a GPU: quicker, and
    enough while an exercise is written. `course`: demand eight mistakes and five alternatives, as for the course's exercises."""
    report = ProofReport(exercise.name)
    start = time.perf_counter()
    if isinstance(exercise, Prediction):
        report.failures += _prediction(exercise)
    else:
        with unobserved():
            _exercise(exercise, report, tuple(seeds), compiled, course)
    report.seconds = time.perf_counter() - start
    return report


def _prediction(item: Prediction) -> Iterator[str]:
    value = item.value
    if not judged(item, value).passed:
        yield f"the answer {value!r} is refused"
    if not isinstance(item.accepts, int | float):
        yield from (f"the accepted answer {v!r} is refused" for v in item.accepts if not judged(item, v).passed)
    if not item.wrong:
        yield "it explains no wrong answer: give `wrong`"
    for given, text in item.wrong:
        wrong = given() if callable(given) else given
        verdict = judged(item, wrong)
        if verdict.passed or verdict.findings[0].text != text:
            yield f"the wrong answer {wrong!r} is {'accepted' if verdict.passed else 'not explained by its sentence'}"
    if matches("no answer", value, item.accepts):
        yield "any text is accepted"
    if not item.question.strip():
        yield "it has no question"


def _exercise(exercise: Exercise, report: ProofReport, seeds: tuple[int, ...], compiled: bool, course: bool) -> None:
    try:
        answer = answer_of(exercise, exercise.solution)
    except WrongCell as error:
        report.failures.append(f"the solution is no answer: {error.text}")
        return
    report.failures += _text(exercise, course)
    report.failures += _solution(exercise, answer, seeds, compiled)
    if report.failures:
        return  # nothing below says anything about an exercise whose solution fails
    devices = None if compiled else ("interpreted",)
    if check(exercise, exercise.skeleton, seed=seeds[0], devices=devices).passed:
        report.failures.append("the skeleton passes: the blanks leave nothing to do")
    _mistakes(exercise, report, seeds[0], devices)
    _cheats(exercise, answer, report, seeds[0])
    _mutants(exercise, answer, report, seeds)
    good = 0
    for number, source in enumerate(exercise.alternatives, 1):
        verdicts = [check(exercise, source, seed=seed, devices=devices) for seed in seeds]
        bad = next((verdict for verdict in verdicts if not verdict.passed), None)
        good += bad is None
        if bad is not None:
            report.failures.append(f"alternative {number} is refused (seed {bad.seed}): {bad.headline}")
    report.alternatives = good, len(exercise.alternatives)


def _text(exercise: Exercise, course: bool) -> Iterator[str]:
    if not (3 if course else 2) <= len(exercise.hints) <= 3:
        wanted = "three" if course else "two or three"
        yield f"it has {len(exercise.hints)} hints: give {wanted}, a question, the place, and the line"
    if not exercise.task.strip():
        yield "it has no task"
    if exercise.skeleton.strip() == exercise.solution.strip():
        yield "the skeleton is the solution: give `blanks`"
    if len(exercise.cases) < 3:
        yield f"it has {len(exercise.cases)} cases: give a friendly, a ragged and a tiny one"
    if course and len(exercise.mistakes) < FEWEST_MISTAKES:
        yield f"it has {len(exercise.mistakes)} mistakes, and {FEWEST_MISTAKES} are wanted"
    if course and len(exercise.alternatives) < FEWEST_ALTERNATIVES:
        yield f"it has {len(exercise.alternatives)} alternatives, and {FEWEST_ALTERNATIVES} are wanted"


def _solution(exercise: Exercise, answer: Answer, seeds: tuple[int, ...], compiled: bool) -> Iterator[str]:
    for seed in seeds:
        for devices in (("interpreted",), ("cpu",)) if compiled else (("interpreted",),):
            verdict = check(exercise, exercise.solution, seed=seed, devices=devices)
            if not verdict.passed:
                yield f"the solution is refused ({devices[0]}, seed {seed}): {verdict.headline}"
                return
    if not compiled:
        return
    made = attempt(exercise, answer, exercise.cases[0], seeds[0])
    for target in TARGETS:
        try:
            code = gpu_code(made, target).compiled
        except KernelError as error:
            yield f"the solution does not compile for {target}: {error.message}"
        else:
            if "cubin" not in code.artifacts and code.trace.resources.registers is None:
                yield f"the solution was not assembled for {target}: is ptxas installed?"


def _mistakes(exercise: Exercise, report: ProofReport, seed: int, devices: tuple[str, ...] | None) -> None:
    refused = named = 0
    for mistake in exercise.mistakes:
        try:
            source = mistake.applied(exercise.solution)
        except ValueError as error:
            report.failures.append(str(error))
            continue
        verdict = check(exercise, source, seed=seed, devices=devices)
        if verdict.passed:
            report.failures.append(f"a mistake passes: {mistake.says}")
            continue
        refused += 1
        if mistake.says in verdict.cause:
            named += 1
        else:
            report.unnamed.append(mistake.says)
            report.failures.append(f"the mistake {mistake.says!r} is refused as: {verdict.headline}")
    report.mistakes, report.named = (refused, len(exercise.mistakes)), (named, len(exercise.mistakes))


def _cheats(exercise: Exercise, answer: Answer, report: ProofReport, seed: int) -> None:
    tried = refused = 0
    for what, source in cheats(exercise, answer):
        tried += 1
        if accepted(exercise, source, seed):
            report.failures.append(f"a cheat passes: it {what}")
        else:
            refused += 1
    report.cheats = refused, tried


def _mutants(exercise: Exercise, answer: Answer, report: ProofReport, seeds: tuple[int, ...]) -> None:
    given = exercise.cases[0].make(np.random.default_rng(0))
    scalars = tuple(p.name for p in answer.base.source.parameters if isinstance(given.get(p.name), int))
    killed = tried = 0
    lines = exercise.solution.split("\n")
    changed: dict[str, set[str]] = {}  # the lines that a key without a line stands for
    unused = dict.fromkeys(exercise.equivalent)
    for mutant in mutants(exercise.solution, scalars):
        line = lines[mutant.line - 1].strip().rstrip(":")
        if mutant.text in exercise.equivalent:
            changed.setdefault(mutant.text, set()).add(line)
        if listed := {mutant.text, f"{line}: {mutant.text}"} & exercise.equivalent.keys():
            unused = {key: None for key in unused if key not in listed}
            report.equivalent += 1
            continue
        tried += 1
        if all(accepted(exercise, mutant.source, seed) for seed in seeds[:2]):
            report.survivors.append(mutant)
            report.failures.append(f"a mutant passes, line {mutant.line}: {mutant.text}")
        else:
            killed += 1
    report.mutants = killed, tried
    report.failures += [f"`equivalent` lists {text!r}, which is no mutant of the solution" for text in unused]
    for text, found in changed.items():
        if len(found) > 1:
            report.failures.append(
                f"`equivalent` excuses {text!r} in {len(found)} lines: write the line, too, such as {f'{min(found)}: {text}'!r}"
            )


def accepted(exercise: Exercise, source: str, seed: int) -> bool:
    """Whether a cell passes, interpreted, with all rules: without a search for the cause of a failure, the smallest case first."""
    answer = answer_in(exercise, source)
    if not isinstance(answer, Answer):
        return False
    made: list[Attempt] = []
    for number in sorted(range(len(exercise.cases)), key=lambda n: _size(exercise, n)):
        made.append(attempt(exercise, answer, exercise.cases[number], seed + number, "interpreted", SECONDS))
        if not made[-1].passed:
            return False
    made.sort(key=lambda m: exercise.cases.index(m.case))
    return not broken_rules(made)


def _size(exercise: Exercise, number: int) -> int:
    arguments = exercise.cases[number].make(np.random.default_rng(0))
    return sum(value.size for value in arguments.values() if isinstance(value, np.ndarray))
