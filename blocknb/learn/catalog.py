"""The exercises that exist: those of the course's units, of files that `load` reads, and of packages.

A unit is a module of `blocknb.learn.units` with `UNIT` and `EXERCISES`. A file or a package (entry point "blocknb.exercises", which names
such a module) has `EXERCISES`, and may have `UNIT`. A package that fails to load is named in one line on stderr, and left out.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import runpy
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

# Loaded before the function `units`, whose name in the package it would take.
from blocknb.learn import units as course
from blocknb.learn.exercise import Exercise, Prediction, Unit

#: Exercises of files and packages: unit (or None) and exercises by the name of their origin.
_loaded: dict[str, tuple[Unit | None, tuple[Exercise | Prediction, ...]]] = {}
_course: dict[str, tuple[Unit | None, tuple[Exercise | Prediction, ...]]] = {}


class UnknownExercise(KeyError):
    """There is no exercise of the name. The text lists similar names."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show the quoted message


def load(path: str | Path) -> tuple[Exercise | Prediction, ...]:
    """Reads a file of exercises, again if it was read before, and returns them. Raises ValueError if it holds none, and the errors
    of its Python."""
    file = Path(path).expanduser().resolve()
    folder = str(file.parent)
    sys.path.insert(0, folder)
    try:
        names = runpy.run_path(str(file))
    finally:
        sys.path.remove(folder)
    _loaded[str(file)] = _in(names, str(path))
    return _loaded[str(file)][1]


def _in(names: Mapping[str, Any], origin: str) -> tuple[Unit | None, tuple[Exercise | Prediction, ...]]:
    found = tuple(names.get("EXERCISES", ()))
    if not found or not all(isinstance(item, Exercise | Prediction) for item in found):
        raise ValueError(f"{origin} has no exercises: define EXERCISES = (Exercise(...), ...)")
    return names.get("UNIT"), found


def _sources() -> list[tuple[Unit | None, tuple[Exercise | Prediction, ...]]]:
    if not _course:
        found = {}  # all or nothing: an error below must appear again next time
        for module in sorted(info.name for info in pkgutil.iter_modules(course.__path__)):
            if module.startswith("unit"):
                found[module] = _in(vars(importlib.import_module(f"{course.__name__}.{module}")), module)
        for point in entry_points(group="blocknb.exercises"):
            try:
                found[f"{point.name} of {point.value}"] = _in(vars(point.load()), point.name)
            except Exception as error:  # of someone else's package: the others are as good as before
                text = (
                    f"the entry point {point.name} = {point.value} brings no exercises: {type(error).__name__}: {error}"
                )
                print(f"blocknb: {text.splitlines()[0]}", file=sys.stderr)
        _course.update(found)
    return [*_course.values(), *_loaded.values()]


def units() -> tuple[Unit, ...]:
    """The units, by number."""
    return tuple(sorted({unit for unit, _ in _sources() if unit is not None}, key=lambda unit: unit.number))


def exercises(unit: Unit | int | None = None) -> tuple[Exercise | Prediction, ...]:
    """All exercises and predictions, or those of a unit, in the order of the course. A file's exercise replaces one of the same name."""
    number = unit.number if isinstance(unit, Unit) else unit
    found: dict[str, Exercise | Prediction] = {}
    ordered = sorted(_sources(), key=lambda source: source[0].number if source[0] is not None else sys.maxsize)
    for mine, items in ordered:
        if number is None or (mine is not None and mine.number == number):
            found |= {item.name: item for item in items}
    return tuple(found.values())


def unit_of(name: str) -> Unit | None:
    """The unit that an exercise belongs to; None for one of a file without a unit."""
    return next((unit for unit, items in reversed(_sources()) if any(item.name == name for item in items)), None)


def exercise(name: str) -> Exercise | Prediction:
    """The exercise or prediction of a name. Raises UnknownExercise."""
    found = {item.name: item for item in exercises()}
    if name in found:
        return found[name]
    close = difflib.get_close_matches(name, found, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`blocknb learn list` shows all"
    raise UnknownExercise(f"there is no exercise {name!r}: {hint}")
