"""`%%blockkernel --predict NAME` and `%predict NAME ANSWER`: a question whose answer the card shows only after the learner's.

The card of the cell hides its facts, and its page keeps the tabs with the answer shut. The first answer opens them, whether it is right or
not; the progress keeps it. `%predict` then shows the open card again, so it works in front ends without the extension and in nbconvert.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from IPython.core.error import UsageError

from blocknb.learn import progress
from blocknb.learn.cells import current, found
from blocknb.learn.checking import judged
from blocknb.learn.exercise import Prediction
from blocknb.learn.progress import ItemProgress
from blocknb.learn.quantities import without_units
from blocknb.learn.sector_question import PREFIX, SectorQuestion
from blocknb.notebook import verdicts

#: The tabs that show the same answer, by the tab that a prediction names.
RELATED = {
    "footprint": ("footprint", "launch", "step"),
    "launch": ("launch", "footprint", "step"),
    "step": ("step", "launch", "footprint"),
    "tiles": ("tiles", "roofline", "code", "passes"),
    "resources": ("resources", "code", "passes"),
    "code": ("code", "passes"),
}

#: The newest record of a kernel that asks a question, by the prediction's name.
_asking: dict[str, Any] = {}

#: The questions about launches (`sector_question`), and their answers since the last run of the cell.
_own: dict[str, Prediction] = {}
_answers: dict[str, ItemProgress] = {}


def prediction(name: str) -> Prediction:
    """The prediction of a name, which may lack `predict-`. Raises UsageError."""
    from blocknb.learn.catalog import exercises

    if name.startswith(PREFIX):
        if name not in _own:
            raise UsageError(f"no cell asks for {name}: run one that begins with %%blockkernel --predict {name}")
        return _own[name]
    known = {item.name: item for item in exercises() if isinstance(item, Prediction)}
    if made := known.get(name) or known.get(f"predict-{name}"):
        return made
    found(name)  # an unknown name
    raise UsageError(f"{name} is an exercise, not a prediction: answer it with %%blockkernel --exercise {name}")


def question_part(asked: Prediction) -> dict[str, Any]:
    """The document's part "question". `closed` are the keys of the tabs that stay shut while `answer` is empty."""
    done = _answers.get(asked.name, ItemProgress()) if asked.name in _own else progress.of(asked.name)
    answer = done.answers[-1] if done.answers else ""
    verdict = judged(asked, value_of(asked, answer)) if answer else None
    key = asked.reveals.lower()
    return {
        "name": asked.name,
        "title": asked.title,
        "question": asked.question,
        "reveals": [asked.reveals] if asked.reveals else [],
        "closed": list(RELATED.get(key, (key,))) if key else [],
        "answer": answer,
        "right": bool(verdict and verdict.passed),
        "text": verdict.findings[0].text if verdict and verdict.findings else "",
    }


def add_question(asked: Prediction | SectorQuestion, record: Any, found: Any) -> None:
    """Adds the question to the findings of options about a kernel. Raises UsageError for one that its launch does not answer."""
    if isinstance(asked, SectorQuestion):
        asked = asked.about(record)
        _own[asked.name] = asked
        _answers.pop(asked.name, None)
    found.parts[verdicts.QUESTION] = question_part(asked)
    _asking[asked.name] = record


def value_of(asked: Prediction, answer: str, names: dict[str, Any] | None = None) -> Any:
    """The value of an answer: its text if the right answer is a text, else its value, in the unit of the prediction; several words make a
    tuple. With `names`, which only the user's own %predict gives, an answer may be an expression. A text from a page is never run."""
    if isinstance(asked.value, str):
        return answer.strip().strip("'\"")
    answer = without_units(answer, asked.unit)
    for text in (answer, ", ".join(answer.replace(",", " ").split())):
        try:
            return ast.literal_eval(text) if names is None else eval(text, dict(names))
        except Exception as error:  # a text, or something else that is no expression
            if names is not None and _computes(text):
                raise UsageError(f"%predict: `{text}` raises {type(error).__name__}: {error}") from None
    return answer


def _computes(text: str) -> bool:
    """Whether a text is an expression with a call or an operator, so that an error in it is no wrong answer."""
    try:
        return any(isinstance(node, ast.Call | ast.BinOp) for node in ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError):
        return False


def answer(asked: Prediction, text: str, shell: Any = None) -> dict[str, Any]:
    """Keeps an answer and returns the document's part "question" with it. Without a `shell`, an expression is a text."""
    value = value_of(asked, text, shell.user_ns if shell is not None else None)
    verdict = judged(asked, value)
    shown = text if isinstance(value, str) else written(value, asked.unit)
    if asked.name in _own:
        old = _answers.get(asked.name, ItemProgress())
        _answers[asked.name] = old.tried(asked.hash, verdict.passed, answer=shown)
    else:
        current[:] = [asked.name]
        progress.update(asked.name, lambda old: old.tried(asked.hash, verdict.passed, answer=shown))
    part = question_part(asked)
    text = verdict.findings[0].text if verdict.findings else ""
    return {**part, "answer": shown, "right": verdict.passed, "text": text}


def written(value: Any, unit: str) -> str:
    """The value as an answer that `value_of` reads."""
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return f"{value} {unit}".rstrip()


def predict(line: str, shell: Any) -> None:
    """Implements `%predict`."""
    from blocknb.notebook import live
    from blocknb.notebook.card import newest

    name, _, text = line.strip().partition(" ")
    if not name:
        raise UsageError("%predict takes a prediction and an answer: %predict predict-blocks 10, 240")
    asked = prediction(name)
    if not text.strip():
        shown = {"text/plain": f"{asked.question.strip()}\n%predict {asked.name} ...", "text/markdown": _asked(asked)}
        shell.display_pub.publish(shown)
        return
    part = answer(asked, text.strip(), shell)
    record = _asking.get(asked.name)
    if record is None:
        shell.display_pub.publish({"text/plain": verdicts.answered(part).replace("`", ""), "text/html": _line(part)})
        return
    card = newest(record)
    card = replace(card, parts={**card.parts, verdicts.QUESTION: part}, opened=(part["closed"] or [""])[:1])
    shell.display_pub.publish(live.bundle(card))


def _asked(asked: Prediction) -> str:
    return f"**{asked.title}**\n\n{asked.question.strip()}\n\nAnswer with `%predict {asked.name} ...`"


def _line(part: dict[str, Any]) -> str:
    from blocknb.notebook import html

    return html.message(verdicts.answered(part))
