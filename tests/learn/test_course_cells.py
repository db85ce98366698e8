"""The course in a shell: `%%blockkernel --exercise`, `--predict`, and the line magics, with the progress in a folder of the test."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from blocknb import learn, load_ipython_extension
from blocknb.learn import cells, progress
from blocknb.notebook.completion import candidates
from blocknb.notebook.document import MIME

ADD = learn.exercise("add-1")
STARTED = ADD.skeleton.replace("at = ...", "at = 3")  # and `inside` is still missing
PREDICTIONS = """
from blocknb.learn import Prediction

EXERCISES = (
    Prediction(
        name="predict-programs-and-lanes", title="How many?", question="How many programs? How many lanes?",
        answer=lambda: (10, 240), wrong=(((9, 240), "9 programs cover 9,216 elements: round up"),),
        hints=("a", "b", "Divide `n`."), reveals="Footprint",
    ),
)
"""
ASKING = """%%blockkernel --predict programs-and-lanes
@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

x = np.ones(1000, np.float32)
out = np.empty_like(x)
double[8](x, out, 1000, BLOCK=128)
"""


class Session:
    """A shell. `run` runs a cell and returns what it displayed; `errors` are the names of the exceptions so far."""

    def __init__(self) -> None:
        self.shell: Any = InteractiveShell(colors="nocolor")
        self.shown: list[dict[str, Any]] = []
        self.inputs: list[str] = []
        self.shell.display_pub.publish = lambda data, *args, **kwargs: self.shown.append(data)
        self.shell.set_next_input = lambda text, replace=False: self.inputs.append(text)
        load_ipython_extension(self.shell)

    def run(self, cell: str) -> list[dict[str, Any]]:
        self.shown.clear()
        self.shell.run_cell(cell, store_history=True).raise_error()
        return list(self.shown)

    def exercise(self, source: str, name: str = "add-1") -> dict[str, Any]:
        (found,) = self.run(f"%%blockkernel --exercise {name}\n{source}")
        return found

    def text(self, cell: str) -> str:
        (found,) = self.run(cell)
        return found["text/plain"]


@pytest.fixture(scope="module")
def shell() -> Session:
    return Session()


@pytest.fixture
def session(shell: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("BLOCKNB_PROGRESS", str(tmp_path / "progress.json"))
    cells.current.clear()
    shell.inputs.clear()
    return shell


def test_a_failed_exercise_heads_the_card_with_its_cause_and_the_second_failure_offers_a_hint(session: Session) -> None:
    wrong = ADD.solution.replace("tl.load(y + at", "tl.load(x + at")
    first = session.exercise(wrong)
    verdict = first[MIME]["verdict"]
    assert (verdict["passed"], verdict["hint"], verdict["tries"]) == (False, 0, 1)
    assert verdict["findings"]
    assert [case[1] for case in verdict["cases"]] == [False] * len(ADD.cases)
    assert first["text/plain"].startswith("✗ add-1: 0 of")
    assert "✗ add-1" in first["text/html"].replace("<b>", "")
    assert dict(first[MIME]["facts"])["check"].startswith("✗ WRONG")
    second = session.exercise(wrong)
    assert second[MIME]["verdict"]["hint"] == 1
    assert "%hint" in second["text/plain"]


def test_the_card_of_an_exercise_is_the_learners_and_has_the_launch(session: Session) -> None:
    document = session.exercise(ADD.solution)[MIME]
    assert document["teaching"]["learn"] is True
    assert all("packed" in document["teaching"][view] for view in ("step", "launch", "footprint"))
    assert document["verdict"]["passed"]
    assert document["verdict"]["shown"] == ADD.cases[0].name
    assert dict(document["facts"])["check"].startswith("correct")


def test_without_a_launch_the_verdict_is_the_output(session: Session) -> None:
    for source, said in [
        ("def add(x, y, out, n, BLOCK):\n    pass", "write @blocknb.kernel"),
        ("y = 3", "defines no kernel"),
        (ADD.skeleton, "`...` is still there".replace("`", "")),
    ]:
        found = session.exercise(source)
        assert MIME not in found
        assert said in found["text/plain"]
    unmasked = ADD.solution.replace("inside = at < n", "inside = at >= 0")
    assert session.exercise(unmasked)[MIME]["verdict"]["shown"] == ADD.cases[0].name  # the others end with an error


@pytest.mark.sampled(2)
def test_a_quiet_cell_shows_the_verdict_without_the_card(session: Session) -> None:
    (found,) = session.run(f"%%blockkernel --exercise add-1 --quiet\n{ADD.solution}")
    assert MIME not in found
    assert found["text/plain"].startswith("✓ add-1: passed")


@pytest.mark.sampled(2)
def test_a_verdict_without_a_card_is_shown_next_to_the_cards_of_other_kernels(session: Session) -> None:
    other = ASKING.split("\n", 1)[1]
    shown = session.run(f"%%blockkernel --exercise add-1\nimport numpy as np\n{other}\n{ADD.skeleton}")
    assert [MIME in found for found in shown] == [True, False]
    assert "is still there" in shown[1]["text/plain"]


def test_an_error_in_the_body_is_the_cells_own_and_no_try(session: Session) -> None:
    with pytest.raises(NameError):
        session.exercise("@blocknb.kernel\ndef add(x):\n    pass\nundefined")
    assert progress.of("add-1").tries == 0


def test_the_untouched_cell_of_a_notebook_is_no_try(session: Session) -> None:
    assert "is still there" in session.exercise(ADD.skeleton)["text/plain"]
    assert progress.load() == {}


def test_an_unknown_exercise_stops_the_cell_and_names_a_similar_one(session: Session) -> None:
    with pytest.raises(Exception, match="did you mean .*add-1"):
        session.exercise("touched = 1", name="add-11")
    assert "touched" not in session.shell.user_ns


def test_hints_come_one_by_one_and_the_solution_opens_after_three_tries(session: Session) -> None:
    session.exercise(STARTED)
    assert [session.text("%hint").split(": ")[0] for _ in range(4)] == [
        f"add-1, hint {number} of 3" for number in (1, 2, 3, 3)
    ]
    assert "2 more tries" in session.text("%solution")
    session.exercise(STARTED)
    session.exercise(STARTED)
    text = session.text("%solution")
    assert "- " in text
    assert "+     at = pid * BLOCK + tl.arange(0, BLOCK)" in text
    assert progress.of("add-1").solution
    assert session.exercise(ADD.solution)[MIME]["verdict"]["passed"]
    assert "the solution" in session.text("%solution add-1")


@pytest.mark.sampled(2)
def test_progress_counts_what_passed_and_keeps_the_passing_source(session: Session) -> None:
    session.exercise(STARTED)
    session.exercise(ADD.solution)
    session.exercise(STARTED)  # a later failure takes nothing away
    done = progress.of("add-1")
    assert (done.tries, bool(done.passed), done.source.strip()) == (2, True, ADD.solution.strip())
    assert done.last.strip() == STARTED.strip()
    table = session.text("%progress")
    assert "1 of " in table
    assert str(progress.path()) in table
    assert "✓ 2 tries" in session.text("%exercises")


def test_progress_that_is_not_kept_has_no_path(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKNB_PROGRESS", "0")
    first = session.text("%progress").split("\n")[0]
    assert first.endswith("BLOCKNB_PROGRESS=0: your progress ends with this kernel")
    assert "/0" not in first


def test_exercise_shows_the_task_and_adds_the_skeleton_as_the_next_cell(session: Session) -> None:
    assert ADD.task.split("\n")[0] in session.text("%exercise add-1")
    assert session.inputs == [f"%%blockkernel --exercise add-1\n{ADD.skeleton.rstrip()}"]


def test_an_unanswered_prediction_hides_the_facts_until_its_answer(session: Session, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PREDICTIONS)
    name = "predict-programs-and-lanes"
    assert name in session.text(f"%exercises {tmp_path / 'mine.py'}")
    session.run("import numpy as np, blocknb, blocknb.language as tl")
    (asked,) = session.run(ASKING)
    document = asked[MIME]
    assert document["question"]["closed"] == ["footprint", "launch", "step"]
    assert [label for label, _ in document["facts"]] == ["prediction"]
    assert document["headline"] == []
    assert "grid" not in asked["text/plain"] + asked["text/html"].partition("</style>")[2]
    (opened,) = session.run(f"%predict {name} 9, 240")
    assert "not right. 9 programs cover 9,216 elements: round up" in opened["text/plain"]
    assert opened[MIME]["show"] == ["footprint"]
    assert "grid 8" in dict(opened[MIME]["facts"])["launch"]
    assert "✓ right" in session.run(f"%predict {name} 10, 5 * 48")[0]["text/plain"]
    assert progress.of(name).answers == ("9, 240", "10, 240")
    assert session.run(ASKING)[0][MIME]["question"]["right"]  # an answered card stays open
    assert "10, 240" in session.text("%solution")


def test_an_error_in_an_answer_is_no_wrong_answer(session: Session) -> None:
    session.run("def sectors(lanes):\n    return 4 + lanes")
    with pytest.raises(UsageError, match="`sectors\\(lane\\)` raises NameError: name 'lane' is not defined"):
        session.run("%predict predict-sectors-offset sectors(lane)")
    assert not progress.of("predict-sectors-offset").answers
    assert "✓ right" in session.text("%predict predict-sectors-offset sectors(1)")


def test_names_of_exercises_complete(session: Session) -> None:
    assert "add-1" in candidates("%%blockkernel --exercise ad", session.shell)[1]
    assert "add-1" in candidates("%hint ", session.shell)[1]
    assert "--exercise" in candidates("%%blockkernel --ex", session.shell)[1]


@pytest.mark.sampled(2)
def test_a_page_asks_for_hints_of_its_card(session: Session) -> None:
    from blocknb.learn.lessons import card_hint

    part = session.exercise(ADD.solution.replace("at < n", "at > n"))[MIME]["verdict"]
    for number, text in enumerate(ADD.hints, 1):
        part = card_hint(part)
        assert part["hints"][-1] == text
        assert part["hint"] == (number + 1 if number < 3 else 0)
    assert progress.of("add-1").hints == 3
    json.dumps(part)


def test_the_grid_of_an_earlier_cell_does_not_count(session: Session) -> None:
    goal = learn.exercise("gemm-6")
    kernel, grid = goal.solution.split("grid = ")
    session.run(f"import blocknb\ngrid = {grid}")
    verdict = session.exercise(kernel, "gemm-6")["text/plain"]
    assert "the cell defines no grid, and that of an earlier cell does not count" in verdict
    assert progress.of("gemm-6").tries == 1


@pytest.mark.full  # three seconds
def test_the_goal_of_the_course_shows_its_numbers(session: Session) -> None:
    goal = learn.exercise("gemm-6")
    found = session.exercise(f"%precision 3\n{goal.solution}", "gemm-6")
    notes = found[MIME]["verdict"]["notes"]
    assert len(notes) == 4
    assert re.fullmatch(r"wgmma in the SASS for sm_90a: \d+ HGMMA\.64x256x16\.F32", notes[0])
    assert re.fullmatch(r"\d+ registers per thread, 0 bytes of spills", notes[1])
    busy = re.fullmatch(r"products are under way for (\d+)% of the modelled time for 4096 x 4096 x 4096", notes[2])
    assert busy and 70 <= int(busy[1]) <= 100
    error = re.match(r"the largest error against float64 is ([\d.e-]+) of the element", notes[3])
    assert error and 0 < float(error[1]) < 2**-10
    assert all(note in found["text/plain"] for note in notes)


def test_without_a_file_the_progress_lasts_as_long_as_the_process(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKNB_PROGRESS", "0")
    monkeypatch.setattr(progress, "_unsaved", {})
    shown = [session.text("%hint add-1") for _ in range(4)]
    assert [text.split(":")[0][-6:] for text in shown] == ["1 of 3", "2 of 3", "3 of 3", "3 of 3"]


def test_a_page_that_asks_for_what_a_card_has_not_gets_a_sentence(session: Session) -> None:
    from blocknb.notebook.live import REQUESTS, _cards

    session.exercise(ADD.solution)
    live = next(reversed(_cards.values()))
    for what in ("hint", "predict"):
        live.cell.parts.pop("verdict", None)
        assert "run the cell again" in REQUESTS[what](live, {})["error"]


STRIDED = """%%blockkernel --predict sectors:{array}
@blocknb.kernel
def strided(x, out, STEP: tl.constexpr):
    i = tl.arange(0, 32)
    tl.store(out + i, tl.load(x + STEP * i))

strided[1,](np.ones(256, np.float32), np.zeros(32, np.float32), STEP={step}, num_warps=1)
"""


def test_a_cell_asks_for_the_sectors_of_its_own_launch(session: Session) -> None:
    session.run("import numpy as np, blocknb, blocknb.language as tl")
    for step, sectors in ((1, 4), (2, 8)):
        (asked,) = session.run(STRIDED.format(array="x", step=step))
        question = asked[MIME]["question"]
        assert (question["answer"], question["closed"][0]) == ("", "tiles")
        assert "Program 0 loads elements of x" in asked["text/plain"]
        (right,) = session.run(f"%predict sectors:x {sectors}")
        assert "✓ right" in right["text/plain"]
    (wrong,) = session.run("%predict sectors:x 4")
    assert "4 would be enough for these elements, if they were neighbours" in wrong["text/plain"]
    assert "sectors:x" not in progress.load()
    with pytest.raises(UsageError, match="`z` is in no load or store of program 0; ask about one of x, out"):
        session.run(STRIDED.format(array="z", step=1))
    with pytest.raises(UsageError, match="no cell asks for sectors:y"):
        session.run("%predict sectors:y 4")
