"""The document's parts "verdict" and "question" as text and as HTML: the verdict on an exercise, and the question of a prediction.

`blocknb.learn` makes the parts; this module and `labextension/src/core/verdict.ts` show them. While a question has no answer, the card
hides its facts, and the page keeps the tabs in `closed` shut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from blocknb.notebook.html import marked

VERDICT, QUESTION = "verdict", "question"
Fact = tuple[str, str]


def awaits_prediction(parts: Mapping[str, Any]) -> bool:
    """Whether the card asks a question that has no answer yet."""
    asked = parts.get(QUESTION)
    return asked is not None and not asked["answer"]


def prediction_facts(parts: Mapping[str, Any]) -> list[Fact]:
    """The facts of a card that asks: how to answer."""
    return [("prediction", f"answer first: `%predict {parts[QUESTION]['name']} ...`")]


def text(parts: Mapping[str, Any]) -> str:
    """The lines above a card's text, with a line end; "" without the parts."""
    found = []
    if (verdict := parts.get(VERDICT)) is not None:
        found.append(f"{sign(verdict)} {verdict['exercise']}: {verdict['headline']}")
        found += [f"    {line}" for line in _below(verdict)]
        found += [f"  {line}" for line in next_steps(verdict)]
    if (asked := parts.get(QUESTION)) is not None:
        found += [asked["question"].strip(), f"  {answered(asked)}"]
    return "".join(f"{line}\n" for line in found).replace("`", "")


def html(parts: Mapping[str, Any]) -> str:
    """The block above a page without scripts; "" without the parts."""
    found = ""
    if (verdict := parts.get(VERDICT)) is not None:
        items = "".join(f"<li>{marked(line)}</li>" for line in _below(verdict))
        cases = " &nbsp; ".join(_case(case) for case in verdict["cases"])
        more = " ".join(marked(line) for line in next_steps(verdict))
        found += (
            f"<div><b>{sign(verdict)} {escape(verdict['exercise'])}</b> &nbsp;{marked(verdict['headline'])}</div>"
            f"{f'<ul>{items}</ul>' if items else ''}<div>{cases}</div>{f'<div>{more}</div>' if more else ''}"
        )
    if (asked := parts.get(QUESTION)) is not None:
        paragraphs = "".join(f"<p>{marked(p)}</p>" for p in asked["question"].strip().split("\n\n"))
        found += f"{paragraphs}<div>{marked(answered(asked))}</div>"
    return f'<div class="blocknb-verdict">{found}</div>\n' if found else ""


def bundle(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The output of a cell whose kernel has no card."""
    parts = {VERDICT: verdict}
    return {"text/plain": text(parts).rstrip("\n"), "text/html": html(parts)}


def sign(verdict: Mapping[str, Any]) -> str:
    """A check mark, or a cross."""
    return "✓" if verdict["passed"] else "✗"


def finding_text(finding: Mapping[str, Any]) -> str:
    """ "50x100: nothing is stored (line 4)"."""
    case = f"{finding['case']}: " if finding["case"] else ""
    return f"{case}{finding['text']}" + (f" (line {finding['line']})" if finding["line"] else "")


def _below(verdict: Mapping[str, Any]) -> list[str]:
    """The lines below the headline: the other findings, and the notes."""
    return [*map(finding_text, verdict["findings"][1:]), *verdict.get("notes", ())]


def next_steps(verdict: Mapping[str, Any]) -> list[str]:
    """The next steps of a learner: the hints that were shown, the next hint, the solution."""
    found = [f"Hint {number}: {hint}" for number, hint in enumerate(verdict["hints"], 1)]
    if verdict["hint"]:
        found.append(f"`%hint` shows hint {verdict['hint']} of {verdict['of']}.")
    if verdict["solution"]:
        found.append("`%solution` shows the solution.")
    return found


def answered(asked: Mapping[str, Any]) -> str:
    """The state of the question in one line: open, or answered right or wrong."""
    if not asked["answer"]:
        return f"Answer with `%predict {asked['name']} ...`. Then the card opens {_tabs(asked['reveals'])}."
    mark = "✓ right" if asked["right"] else "✗ not right"
    return f"Your answer: {asked['answer']} {mark}" + (f". {asked['text']}" if asked["text"] else "")


def _tabs(titles: Sequence[str]) -> str:
    return f"the {' and '.join(titles)} tab{'s' * (len(titles) > 1)}" if titles else "all tabs"


def _case(case: Sequence[Any]) -> str:
    name, passed, device = case[:3]
    where = f" ({escape(device)})" if device != "cpu" else ""
    return f"{'✓' if passed else '✗'} {escape(name)}{where}"
