"""The course in the browser: an exercise of unit 1 fails, its cause and a hint are read, it passes, and the progress shows it; a prediction
opens its tabs. With --full, also other units, and three units in Notebook 7."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, eventually
from laboratory import SCRIPT, Card, Lab, Notebook, complaints
from test_other_applications import APPLICATIONS, environment

from blocknb import learn
from blocknb.learn.command import copy_course

ADD = learn.exercise("add-1")


class Course:
    """An open notebook of the course. Cells are found by a word of their source."""

    def __init__(self, notebook: Notebook, folder: Path):
        self.notebook = notebook
        saved = json.loads((folder / Path(notebook.path).name).read_text("utf-8"))
        self.sources = ["".join(cell["source"]) for cell in saved["cells"]]
        notebook.run(self.find("%load_ext"))

    def find(self, word: str) -> int:
        return next(i for i, source in enumerate(self.sources) if source.startswith("%") and word in source)

    def answer(self, exercise: str, source: str) -> Card:
        """Replaces the kernel of an exercise's cell, runs it, and returns its card."""
        cell = self.find(f"--exercise {exercise}\n")
        first = self.sources[cell].split("\n", 1)[0]
        self.notebook.write(cell, f"{first}\n{source}")
        self.notebook.run(cell)
        return self.notebook.card(cell)

    def said(self, cell: int) -> str:
        """The text of the only output of a cell."""
        (output,) = self.notebook.output(cell)
        return output["data"]["text/plain"]


@pytest.fixture
def folder(lab: Lab) -> Path:
    copy_course(lab.folder / "course")
    return lab.folder / "course"


@pytest.fixture
def unit1(lab: Lab, page, folder: Path) -> Iterator[Course]:
    notebook = Notebook(page, "course/01_blocks.ipynb")
    yield Course(notebook, folder)
    notebook.close()


def test_fail_an_exercise_read_the_cause_take_a_hint_pass_and_see_the_progress(unit1: Course) -> None:
    pass_after_a_hint(unit1)


def pass_after_a_hint(unit1: Course) -> None:
    wrong = ADD.solution.replace("at < n", "at <= n")
    unit1.answer("add-1", wrong)
    card = unit1.answer("add-1", wrong)
    cell = unit1.find("--exercise add-1")
    card.until_state("live")
    head = card(".bnb-verdict-head")
    assert "not yet" in head.text
    assert "at <= n" in card(".bnb-findings").text
    card(".bnb-next .bnb-button").click()
    eventually(lambda: card(".bnb-hint").texts, lambda hints: hints and ADD.hints[0].split("?")[0] in hints[0])
    card('.bnb-findings .bnb-button:has-text("line")')[0].click()
    eventually(lambda: unit1.notebook.lit(cell), lambda lit: lit == [7])
    card = unit1.answer("add-1", ADD.solution)
    eventually(lambda: card(".bnb-verdict-head").text, lambda text: "passed" in text)
    assert card("[role=tab]").texts[:3] == ["Step", "Launch", "Footprint"]
    progress = unit1.find("%progress")
    unit1.notebook.run(progress)
    assert "1 of 7" in unit1.said(progress)
    eventually(lambda: unit1.notebook.page.run(BROKEN), lambda broken: broken == [])


#: The addresses of pictures in the text of the notebook that the page could not load.
BROKEN = """() => [...document.querySelectorAll('.jp-MarkdownCell img')]
  .filter((image) => image.complete && !image.naturalWidth).map((image) => image.src)"""


@pytest.mark.full  # course.test.ts tests the same without a browser
def test_an_answer_in_the_card_opens_the_tabs_that_tell(unit1: Course) -> None:
    cell = unit1.find("--predict predict-blocks")
    unit1.notebook.run(cell)
    card = unit1.notebook.card(cell)
    card.until_state("live")
    assert "would tell the answer" in card.open("Footprint").text
    assert not card(".bnb-fold").visible
    card(".bnb-answer").fill("9, 240")
    card(".bnb-answer").press("Enter")
    eventually(lambda: card(".bnb-question").text, lambda text: "not right" in text and "round up" in text)
    eventually(lambda: card.panel.text, lambda text: "would tell" not in text)
    assert "grid" in card.facts["launch"]
    assert unit1.notebook.document(cell)["question"]["answer"] == "9, 240"


@pytest.mark.full
@pytest.mark.parametrize(("name", "exercise"), [("04_reductions", "max-1"), ("08_matrix_product", "gemm-1")])
def test_exercises_of_other_units_fail_as_skeletons_and_pass(name, exercise, page, folder: Path) -> None:
    course = Course(Notebook(page, f"course/{name}.ipynb"), folder)
    try:
        pass_after_the_skeleton(course, exercise)
    finally:
        course.notebook.close()


def pass_after_the_skeleton(course: Course, exercise: str) -> None:
    cell = course.find(f"--exercise {exercise}")
    course.notebook.run(cell)
    assert "is still there" in course.said(cell)
    card = course.answer(exercise, learn.exercise(exercise).solution)
    eventually(lambda: card(".bnb-verdict-head").text, lambda text: "passed" in text)


def reach_the_goal(unit10: Course) -> None:
    pass_after_the_skeleton(unit10, "gemm-6")
    notes = unit10.notebook.card(unit10.find("--exercise gemm-6"))(".bnb-notes li").texts
    assert "HGMMA.64x256x16" in notes[0]


@pytest.mark.full
def test_three_units_of_the_course_work_in_notebook_7(browser: Browser, tmp_path: Path) -> None:
    app, packages = APPLICATIONS["Notebook 7"]
    lab = Lab(tmp_path / "lab", environment(tmp_path / "venv", packages), app)
    journeys = {
        "01_blocks": pass_after_a_hint,
        "04_reductions": lambda unit: pass_after_the_skeleton(unit, "max-1"),
        "10_latency": reach_the_goal,
    }
    try:
        copy_course(lab.folder / "course")
        for name, journey in journeys.items():
            page = browser.open(SCRIPT)
            page.goto(f"{lab.url}/notebooks/course/{name}.ipynb?token=t")
            page.until("() => !!window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel")
            journey(Course(Notebook.in_front(page), lab.folder / "course"))
            # of Notebook's own code
            assert [error for error in complaints(page) if "/static/notebook/" not in error] == []
            page.close()
    finally:
        lab.close()
