"""Reduces a failing program (delta debugging): removes lines, opens nests, and replaces values by constants while it still fails.

A candidate that the front end refuses, or whose addresses leave their arrays, fails in another way. So nothing here needs dependence
information.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fuzz.program import Line, Program

Body = tuple[Line, ...]


def failure(program: Program, check: Callable[[Program], Any]) -> str:
    """The kind of failure of a check, without details that depend on sizes; "" if the check succeeds."""
    try:
        check(program)
    except Exception as error:
        return f"{type(error).__name__} {re.sub('[^a-z ]', '', str(error).lower())[:30]}"
    return ""


def shrink(program: Program, check: Callable[[Program], Any]) -> Program:
    """A program with the same failure from which no single line can be removed."""
    wanted = failure(program, check)
    assert wanted, "the program does not fail"
    smaller = True
    while smaller:
        smaller = False
        for ways in (chunks, removals, openings, constants):
            at = 0
            while (body := nth(ways(program.body), at)) is not None:
                candidate = replace(program, body=body)
                if failure(candidate, check) == wanted:
                    program, smaller = candidate, True
                else:
                    at += 1
    return without_arguments(program)


def nth(ways: Iterator[Body], at: int) -> Body | None:
    return next((body for i, body in enumerate(ways) if i == at), None)


def chunks(body: Body) -> Iterator[Body]:
    """Variants without a half, a quarter... of the outermost lines."""
    size = len(body) // 2
    while size > 1:
        for start in range(0, len(body), size):
            yield body[:start] + body[start + size :]
        size //= 2


def everywhere(body: Body, change: Callable[[Line], Iterator[Body]]) -> Iterator[Body]:
    """Variants of the body with one line, at any depth, changed by `change`; last lines first."""
    for i, line in reversed(list(enumerate(body))):
        for instead in change(line):
            yield body[:i] + instead + body[i + 1 :]
        for inner in everywhere(line.body, change):
            if inner:
                yield (*body[:i], replace(line, body=inner), *body[i + 1 :])


def removals(body: Body) -> Iterator[Body]:
    def change(line: Line) -> Iterator[Body]:
        if not re.match(r"k\d+ \+= 1", line.text):  # without it a while loop never ends
            yield ()

    return everywhere(body, change)


def openings(body: Body) -> Iterator[Body]:
    """Variants with a nest replaced by its body."""

    def change(line: Line) -> Iterator[Body]:
        if line.body:
            yield line.body

    return everywhere(body, change)


def constants(body: Body) -> Iterator[Body]:
    """Variants without masks and nonzero starts."""

    def change(line: Line) -> Iterator[Body]:
        if line.body or "=" not in line.text:
            return
        for pattern, instead in (
            (r", mask=.*\)$", ")"),
            (r", other=.*\)$", ")"),
            (r" & \(bl\.arange.*?\)(?=\)|,)", ""),
        ):
            if (text := re.sub(pattern, instead, line.text)) != line.text:
                yield (Line(text),)

    return everywhere(body, change)


def without_arguments(program: Program) -> Program:
    """Removes unused arguments."""
    used = set(re.findall(r"\w+", "".join(line.render("") for line in program.body)))
    arrays = tuple(a for a in program.arrays if a.name in used)
    return replace(program, arrays=arrays, numbers={k: v for k, v in program.numbers.items() if k in used})
