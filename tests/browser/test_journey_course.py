"""The course in the browser: an exercise fails, its cause and a hint are read, it passes, and the progress shows it; and a prediction."""

from __future__ import annotations

from pathlib import Path

from browser import eventually
from laboratory import Lab, Notebook

WRONG = """%%blockkernel --exercise add-1
@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at) + tl.load(y + at, mask=inside), mask=inside)
"""
RIGHT = WRONG.replace("tl.load(x + at)", "tl.load(x + at, mask=inside)")


def test_fail_an_exercise_read_the_cause_take_a_hint_pass_and_see_the_progress(
    lab: Lab, notebook: Notebook, tmp_path: Path, screenshots: Path
) -> None:
    notebook.run(notebook.add(f"import os; os.environ['BLOCKNB_PROGRESS'] = {str(tmp_path / 'progress.json')!r}"))
    cell = notebook.add(WRONG)
    notebook.run(cell)
    card = notebook.card(cell)
    notebook.run(cell)
    card = notebook.complete(cell)
    verdict = card(".bnb-verdict-head")
    print(verdict.text)
    card.page.screenshot(screenshots / "course_fail.png") if hasattr(card.page, "screenshot") else None
    eventually(lambda: card(".bnb-next .bnb-button").texts, bool)
    card(".bnb-next .bnb-button").click()
    eventually(lambda: card(".bnb-hint").texts, bool)
    card(".bnb-findings .bnb-button").click()
    card.page.screenshot(screenshots / "course_hint.png") if hasattr(card.page, "screenshot") else None
    print(notebook.lit(cell))
    notebook.write(cell, RIGHT)
    notebook.run(cell)
    card = notebook.complete(cell)
    print(verdict.text)
    card.page.screenshot(screenshots / "course_pass.png") if hasattr(card.page, "screenshot") else None
    last = notebook.add("%progress")
    notebook.run(last)
    print(notebook.output(last)[0]["data"]["text/plain"])
