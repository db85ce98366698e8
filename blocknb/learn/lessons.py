"""The line magics of the course: `%exercise`, `%exercises`, `%hint`, `%solution`, `%predict` and `%progress`.

`blocknb.notebook.course` declares them and the options `--exercise` (`cells`) and `--predict` (`predictions`), and calls this module.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

from IPython.core.error import UsageError

from blocknb.learn import catalog, help_texts, listing, predictions, progress
from blocknb.learn.cells import add_verdict, begin_exercise, check_cell, current, found
from blocknb.learn.exercise import Exercise, Prediction
from blocknb.learn.predictions import add_question, predict
from blocknb.learn.sector_question import PREFIX, SectorQuestion
from blocknb.notebook import html

MOST_ANSWER = 1000  # characters of an answer from a page

__all__ = ["add_question", "add_verdict", "begin_exercise", "check_cell", "predict"]


def begin_prediction(name: str, shell: Any) -> Prediction | SectorQuestion:
    """The prediction that a cell asks: one of the course, or `sectors:x` about its own launch. Raises UsageError."""
    if name.startswith(PREFIX):
        return SectorQuestion(name.removeprefix(PREFIX))
    return predictions.prediction(name)


def names(word: str, exercises: bool = False, predictions: bool = False) -> list[str]:
    """The names of exercises and predictions that begin with a word, in the order of the course."""
    kinds = (*((Exercise,) if exercises else ()), *((Prediction,) if predictions else ()))
    return [i.name for i in catalog.exercises() if isinstance(i, kinds) and i.name.startswith(word)]


def chosen(line: str, magic: str) -> Exercise | Prediction:
    """The item that a magic names, else that of the newest cell, else that of the newest try. Raises UsageError."""
    name = line.strip() or (current[0] if current else "")
    if not name:
        done = {n: p for n, p in progress.load().items() if p.when}
        name = max(done, key=lambda n: done[n].when, default="")
    if not name:
        raise UsageError(f"name an exercise: %{magic} add-1")
    item = found(name)
    current[:] = [name]
    return item


def exercise(line: str, shell: Any) -> None:
    """Implements `%exercise`."""
    name = line.strip()
    if not name:
        done = progress.load()
        left = [i.name for i in catalog.exercises() if not done.get(i.name, progress.ItemProgress()).passed]
        if not left:
            _say(shell, "You have passed all exercises.")
            return
        name = left[0]
    item = found(name)
    current[:] = [name]
    if isinstance(item, Prediction):
        shell.set_next_input(f"%predict {name} ")
        predict(name, shell)
        return
    rules = "\n".join(f"- {rule.says}" for rule in item.rules if getattr(rule, "says", ""))
    text = f"**{item.name}: {item.title}**\n\n{item.task.strip()}" + (f"\n\n{rules}" if rules else "")
    shell.display_pub.publish({"text/plain": text, "text/markdown": text})
    shell.set_next_input(f"%%blockkernel --exercise {name}\n{item.skeleton.rstrip()}")


def exercises(line: str, shell: Any) -> None:
    """Implements `%exercises`."""
    if file := line.strip().strip("'\""):
        try:
            loaded = catalog.load(file)
        except (OSError, ValueError) as error:
            raise UsageError(f"%exercises {file}: {error}") from None
        _say(shell, f"Loaded {', '.join(f'`{item.name}`' for item in loaded)}. `%exercise {loaded[0].name}` begins.")
        return
    shell.display_pub.publish(listing.table(progress.load()))


def show_progress(line: str, shell: Any) -> None:
    """Implements `%progress`."""
    place = str(progress.path()) if progress.is_kept() else "BLOCKNB_PROGRESS=0: your progress ends with this kernel"
    shell.display_pub.publish(listing.summary(progress.load(), place))


def hint(line: str, shell: Any) -> None:
    """Implements `%hint`."""
    item = chosen(line, "hint")
    number, text = help_texts.next_hint(item)
    if not number:
        _say(shell, f"{item.name} has no hints.")
        return
    rest = len(item.hints) - number
    more = f"`%hint` shows the next one ({rest} left)." if rest else "This is the last hint."
    said = f"**{item.name}, hint {number} of {len(item.hints)}.** {text}\n\n{more}"
    plain = f"{item.name}, hint {number} of {len(item.hints)}: {text}\n{more}".replace("`", "")
    shell.display_pub.publish({"text/plain": plain, "text/markdown": said})


def solution(line: str, shell: Any) -> None:
    """Implements `%solution`."""
    item = chosen(line, "solution")
    done = progress.of(item.name)
    if left := help_texts.tries_left(item, done):
        tries = "1 more try" if left == 1 else f"{left} more tries"
        _say(shell, f"The solution of `{item.name}` opens after {tries}, or when you pass. `%hint` helps.")
        return
    if not done.passed:
        progress.update(item.name, lambda old: replace(old, solution=True))
    if isinstance(item, Prediction):
        value = item.value
        shown = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
        _say(shell, f"{item.name}: the answer is {shown}. {item.hints[-1] if item.hints else ''}".strip())
        return
    shell.display_pub.publish(_difference(item, done.last))


def _difference(item: Exercise, own: str) -> dict[str, Any]:
    lines = help_texts.solution_diff(item, own) if own.strip() else []
    changed = any(line[0] != " " for line in lines)
    if not changed:
        lines = [f"  {line}" for line in item.solution.strip("\n").split("\n")]
    shades = {"-": "rgba(220,38,38,.15)", "+": "rgba(46,160,67,.2)"}
    rows = "".join(
        f'<span style="display:block;background:{shades.get(line[0], "none")}">{escape(line.rstrip())}</span>'
        for line in lines
    )
    about = "− your cell, + the solution" if changed else "the solution"
    text = f"{item.name}: {about}\n{help_texts.diff_text(item, own)}"
    return {"text/plain": text, "text/html": f"<div><b>{escape(item.name)}</b> {about}</div><pre>{rows}</pre>"}


def _say(shell: Any, text: str) -> None:
    shell.display_pub.publish({"text/plain": text.replace("`", ""), "text/html": html.message(text)})


# ---- requests of a live card -----------------------------------------------------------------------------------------------


def card_hint(part: dict[str, Any]) -> dict[str, Any]:
    """The part "verdict" of a card with the next hint in it."""
    item = found(part["exercise"])
    number, text = help_texts.next_hint(item)
    shown = [*part["hints"], text] if text not in part["hints"] else part["hints"]
    return {**part, "hints": shown, "hint": number + 1 if number < len(item.hints) else 0}


def card_answer(part: dict[str, Any], text: str) -> dict[str, Any]:
    """The part "question" of a card with an answer to it. A page sends the text, so it is read as a literal and never run."""
    return predictions.answer(predictions.prediction(part["name"]), text[:MOST_ANSWER])
