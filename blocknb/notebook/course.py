"""The course in a notebook: the options `--exercise` and `--predict`, and the line magics `%exercise`, `%hint`, `%progress` and so on.

This module only declares them, so that a notebook without exercises loads nothing else. `blocknb.learn` implements them; it is built on
the notebook, so `blocknb/__init__.py` hands it over with `provide`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blocknb.notebook.options import Found, Option

_provided: list[Callable[[], Any]] = []


def provide(load: Callable[[], Any]) -> None:
    """Sets the function that imports and returns the implementation (`blocknb.learn.lessons`)."""
    _provided[:] = [load]


def lessons() -> Any:
    """The module that implements what this module declares."""
    return _provided[0]()


# ---- options of cells ------------------------------------------------------------------------------------------------------


def _exercise(name: Any, shell: Any) -> Any:
    return lessons().begin_exercise(name, shell) if name is not None else None


def _check(task: Any, shell: Any, cell: str) -> dict[str, Any] | None:
    return lessons().check_cell(task, shell, cell)


def _verdict(task: Any, record: Any, shell: Any, found: Found) -> None:
    lessons().add_verdict(task, record, found)


def _prediction(names: Any, shell: Any) -> Any:
    return lessons().begin_prediction(names, shell) if names is not None else None


def _question(asked: Any, record: Any, shell: Any, found: Found) -> None:
    lessons().add_question(asked, record, found)


def _names(word: str) -> list[str]:
    return lessons().names(word, exercises=True)


def _predictions(word: str) -> list[str]:
    return lessons().names(word, predictions=True)


CELL_OPTIONS = (
    Option(
        "--exercise",
        {
            "metavar": "NAME",
            "help": "Check the kernel of this cell as the answer to an exercise of the course: --exercise add-1. The exercise brings the "
            "arrays, the grid and the launch. `np`, `tl` and `blocknb` are imported. %%exercise NAME shows the task.",
        },
        _verdict,
        _exercise,
        _names,
        run=_check,
    ),
    Option(
        "--predict",
        {
            "metavar": "NAME",
            "help": "Ask a question before the card shows its answer: --predict predict-blocks. The tabs that show the answer open after "
            "%%predict NAME ANSWER. --predict sectors:x asks how many sectors this launch touches in the array x.",
        },
        _question,
        _prediction,
        _predictions,
    ),
)


# ---- line magics -----------------------------------------------------------------------------------------------------------


def exercise(line: str, shell: Any) -> None:
    """Show an exercise and put its cell below: `%exercise add-1`. Without a name: the first one that you have not passed yet.

    A front end that cannot add a cell shows the cell's text instead.
    """
    lessons().exercise(line, shell)


def exercises(line: str, shell: Any) -> None:
    """List the exercises of the course, or load those of a file: `%exercises mine.py`."""
    lessons().exercises(line, shell)


def hint(line: str, shell: Any) -> None:
    """Show the next hint for the last exercise, or for another one: `%hint`, `%hint add-1`.

    The first hint is a question, the second one names the place, and the third one gives the line.
    """
    lessons().hint(line, shell)


def solution(line: str, shell: Any) -> None:
    """Show the solution of the last exercise, or of another one: `%solution`, `%solution add-1`.

    It opens after you have passed, or after three tries, as a difference to your own cell.
    """
    lessons().solution(line, shell)


def predict(line: str, shell: Any) -> None:
    """Answer a prediction: `%predict predict-blocks 10, 240`. Without an answer, show the question.

    The first answer is the one that your progress keeps. After it, the card opens the tabs that show the right answer.
    """
    lessons().predict(line, shell)


def progress(line: str, shell: Any) -> None:
    """Show which exercises you have passed, with how many tries and hints, and where the progress is stored."""
    lessons().show_progress(line, shell)


def _all(word: str, shell: Any) -> Sequence[str]:
    return lessons().names(word, exercises=True, predictions=True)


def _files(word: str, shell: Any) -> Sequence[str]:
    import glob

    return [name for name in sorted(glob.glob(glob.escape(word) + "*")) if name.endswith(".py")]


def _none(word: str, shell: Any) -> Sequence[str]:
    return ()


#: The line magics with the completions of their words.
LINES: dict[str, tuple[Callable[[str, Any], None], Callable[[str, Any], Sequence[str]]]] = {
    "exercise": (exercise, _all),
    "exercises": (exercises, _files),
    "hint": (hint, _all),
    "solution": (solution, _all),
    "predict": (predict, lambda word, shell: _predictions(word)),
    "progress": (progress, _none),
}
