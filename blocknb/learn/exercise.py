"""The values of an exercise: `Exercise`, its `Case`s, `Mistake`s and blanks, `Prediction`, and the `Verdict` of a check.

An exercise holds one right cell (`solution`). The skeleton that learners get is the solution with its blanks, and a mistake is a small
change of the solution. So both always match the solution. Everything here is data; `checking` and `causes` decide.
"""

from __future__ import annotations

import ast
import hashlib
import html
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

#: The distance from 1 to the next number of a dtype.
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass(frozen=True)
class Unit:
    """A unit of the course. `minutes` is the time that a reader needs."""

    number: int
    title: str
    minutes: int

    @property
    def name(self) -> str:
        """The unit's name in commands: "unit1"."""
        return f"unit{self.number}"


@dataclass(frozen=True, eq=False)
class Case:
    """One launch that a kernel must get right. `make(rng)` returns the arguments by name, in the order of the kernel's parameters: NumPy
    arrays, numbers, and constants. The check calls it with a new random generator for each run."""

    name: str
    make: Callable[[np.random.Generator], dict[str, Any]]


@dataclass(frozen=True)
class Mistake:
    """A typical wrong answer and the sentence that names it. It is a change of the solution: `patch` is (old, new), `patches` are several,
    each of which changes every occurrence of `old`; or `source` is a whole cell."""

    says: str
    patch: tuple[str, str] | None = None
    patches: tuple[tuple[str, str], ...] = ()
    source: str = ""

    def applied(self, solution: str) -> str:
        """The wrong cell. Raises ValueError if the solution does not contain the text that a patch changes."""
        if self.source:
            return self.source
        for old, new in (*([self.patch] if self.patch else ()), *self.patches):
            if old not in solution:
                raise ValueError(f"the mistake {self.says!r} changes {old!r}, which the solution does not contain")
            solution = solution.replace(old, new)
        return solution


@dataclass(frozen=True)
class Blank:
    """Lines `first` to `last` of the solution, 1-based and inclusive, that the skeleton leaves to the learner. `says` is the comment there.
    `keep` replaces the lines; by default it is `...`, or `name = ...` for one assignment."""

    first: int
    last: int
    says: str = ""
    keep: str = ""


@dataclass(frozen=True)
class Tolerance:
    """How far a right result may be from the float64 reference. The limit is the rounding of `additions` additions in `dtype` of terms as
    large as `scale`. The rounding of the result to the dtype of its array is added."""

    additions: int = 1
    dtype: str = "float32"
    scale: float = 1.0

    def limits(self, stored: str) -> tuple[float, float]:
        """(relative, absolute) for an output of the dtype `stored`."""
        each, last = EPSILON[self.dtype], EPSILON.get(stored, 0.0)
        return 4 * max(each, last), 2 * self.scale * (each * (self.additions + 4) + last)


@dataclass(frozen=True)
class CheckFinding:
    """A sentence about an answer. `named`: it names the cause of the failure, not only its place. `kind` is "mistake", "footprint",
    "generic", "error", "element", "rule", "cell", "prediction", "note" or "failure". A "note" is about a right answer. A "failure" means
    that the search for a cause raised the exception `raised`. `line` is 1-based in the cell, or None."""

    text: str
    kind: str
    named: bool = False
    line: int | None = None
    case: str = ""
    raised: Exception | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text + (f" (line {self.line})" if self.line is not None else "")


@dataclass(frozen=True)
class Rule:
    """A rule that an answer must follow in addition to a right result. `check(attempt)` yields what breaks it. `says` is the rule as a
    sentence of the task. `once`: the rule is about code, and the first case decides."""

    name: str
    says: str
    check: Callable[[Any], Iterator[CheckFinding]] = field(repr=False, compare=False)
    once: bool = False


@dataclass(frozen=True)
class CourseItem:
    """The base of exercises and predictions. `name` is "softmax-1", `title` a short imperative sentence. `hints` are three: a question, the
    place, the line. `setup` is source that runs before a cell, in addition to the imports np, blocknb and tl."""

    name: str
    title: str
    hints: tuple[str, ...] = field(default=(), kw_only=True)
    setup: str = field(default="", kw_only=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Exercise(CourseItem):
    """A task for a kernel, and all that a check of an answer needs.

    `task` is Markdown. `grid` is called with all arguments and constants by name; it is None if the learner's cell defines `grid`.
    `outputs` are the arguments that the kernel must fill; they hold NaN or the extreme integer before a launch, except those in `updated`,
    which keep the contents that the case gives them. `reference` is called with copies of the arguments by name and returns the
    outputs by name, in float64 where they are floats. `solution` is the source of a cell. Code rules examine the first case, so put the
    friendly one first. `equivalent` lists mutants of the solution that are no mistakes, with the reason: "old -> new", or
    "LINE: old -> new" if several lines contain `old`. LINE is the text of the line, without its indent and a colon at its end.
    `numbers` is called with the Attempts of an answer that passed; its sentences stand below the verdict.
    """

    task: str
    cases: tuple[Case, ...]
    outputs: tuple[str, ...]
    grid: Callable[..., tuple[int, ...]] | None
    reference: Callable[..., dict[str, Any]]
    rules: tuple[Rule, ...]
    solution: str
    blanks: tuple[tuple[int, int] | Blank, ...]
    mistakes: tuple[Mistake, ...]
    alternatives: tuple[str, ...] = ()
    tolerance: Tolerance | float = Tolerance()
    equivalent: Mapping[str, str] = field(default_factory=dict)
    updated: tuple[str, ...] = ()
    numbers: Callable[[Sequence[Any]], Iterable[str]] | None = None

    @cached_property
    def skeleton(self) -> str:
        """The cell that learners start from: the solution with its blanks."""
        lines: list[str | None] = list(self.solution.strip("\n").split("\n"))
        for given in self.blanks:
            blank = given if isinstance(given, Blank) else Blank(*given)
            old = [line or "" for line in lines[blank.first - 1 : blank.last]]
            indent = old[0][: len(old[0]) - len(old[0].lstrip())]
            keep = blank.keep or _kept("\n".join(line[len(indent) :] for line in old))
            comment = f"  # {blank.says}" if blank.says else ""
            new = [indent + line for line in keep.split("\n")]
            lines[blank.first - 1] = "\n".join([*new[:-1], new[-1] + comment])
            lines[blank.first : blank.last] = [None] * (blank.last - blank.first)
        return "\n".join(line for line in lines if line is not None) + "\n"

    @cached_property
    def hash(self) -> str:
        """A short text that changes with the exercise's task and solution."""
        return hashlib.sha256(f"{self.name}\0{self.task}\0{self.solution}".encode()).hexdigest()[:12]


def _kept(text: str) -> str:
    """The remains of the lines of a blank: the name of a single assignment."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return "..."
    return f"{ast.unparse(statement.targets[0])} = ..." if isinstance(statement, ast.Assign) else "..."


@dataclass(frozen=True, kw_only=True)
class Prediction(CourseItem):
    """A question that a learner answers before the card shows the answer.

    `answer` is the value, or computes it. An answer is a number, a text, or a tuple of them. `accepts` is a relative tolerance for numbers,
    or a collection of further right answers. `wrong` explains typical wrong answers: (value, or a function that computes it; sentence).
    `unit` is that of the answer, such as "µs", "B" or "%": then "0.36 ms" is a number, too (`quantities`). `reveals` names the tab of the
    card that stays closed until an answer is given; "" for none.
    """

    question: str
    answer: Any
    accepts: float | Collection[Any] = 0.0
    wrong: tuple[tuple[Any, str], ...] = ()
    reveals: str = ""
    unit: str = ""

    @property
    def value(self) -> Any:
        """The right answer."""
        return self.answer() if callable(self.answer) else self.answer

    @cached_property
    def hash(self) -> str:
        """A short text that changes with the question."""
        return hashlib.sha256(f"{self.name}\0{self.question}".encode()).hexdigest()[:12]


@dataclass(frozen=True)
class CaseResult:
    """The result of one case. `text` is empty if it passed, else what is wrong. `device` is "cpu", "gpu" or "interpreted"."""

    name: str
    passed: bool
    text: str = ""
    device: str = "cpu"


@dataclass(frozen=True)
class Verdict:
    """The result of a check. `findings` are sorted, the most useful first. `seed` reproduces the check: `check(name, kernel, seed=seed)`.
    `notes` are sentences that refuse nothing: numbers of an answer that passed, and launches that were left out."""

    passed: bool
    exercise: str
    cases: tuple[CaseResult, ...] = ()
    findings: tuple[CheckFinding, ...] = ()
    seed: int = 0
    seconds: float = 0.0
    hints: int = field(default=0, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """One line: `3 of 4 cases · 50x100: out[:, 64:100] never stored · hint 1`. If all results are right and a rule is broken, it
        begins with `not accepted, although 4 of 4 cases give the right result`. A right answer may have a note."""
        names = list(dict.fromkeys(result.name for result in self.cases))
        good = [name for name in names if all(r.passed for r in self.cases if r.name == name)]
        said = [f"{len(good)} of {len(names)} cases"] if names else []
        if self.passed:
            return " · ".join(["passed", *said, *map(str, self.findings)])
        if names and len(good) == len(names):  # a rule is broken, or only the interpreted launch is wrong
            said = [f"not accepted, although {said[0]} give the right result"]
        for finding in self.findings[:1]:
            said.append((f"{finding.case}: " if finding.case else "") + str(finding))
        return " · ".join([*said, *([f"hint {self.hints}"] if self.hints else [])]) or "not passed"

    @property
    def cause(self) -> str:
        """The sentence that names the cause, or "" if it is not known."""
        return next((finding.text for finding in self.findings if finding.named), "")

    def __str__(self) -> str:
        lines = [f"{self.exercise}: {self.headline}"]
        lines += [f"  {finding.case + ': ' if finding.case else ''}{finding}" for finding in self.findings[1:]]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        mark, rest = "✓" if self.passed else "✗", self.findings[1:]
        texts = [*((f.case + ": " if f.case else "") + str(f) for f in rest), *self.notes]
        items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
        body = f"<ul>{items}</ul>" if items else ""
        return f"<div><strong>{mark} {html.escape(self.exercise)}</strong> {html.escape(self.headline)}{body}</div>"


def listed(texts: Sequence[str]) -> str:
    """ "`a`, `b` and `c`": names in a sentence."""
    quoted = [f"`{text}`" for text in texts]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))
