"""Units 8 to 10: the notebooks hold the skeletons of the exercises, predictions compute their answers, and rules find what they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blocknb.learn import check, exercise, exercises
from blocknb.learn.cell import answer_of
from blocknb.learn.exercise import Exercise, Prediction
from blocknb.learn.running import Attempt, prepared
from blocknb.learn.units.matrix_half import tuned
from blocknb.learn.units.matrix_rules import busy_share, room_for, rounds_busy, tiles_fetched

COURSE = Path(__file__).parents[2] / "notebooks" / "course"
NOTEBOOKS = {8: "08_matrix_product.ipynb", 9: "09_tensor_cores.ipynb", 10: "10_latency.ipynb"}


def cells(number):
    found = json.loads((COURSE / NOTEBOOKS[number]).read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def made(name, source):
    """An attempt of the first case, as rules get it, without a launch."""
    found = exercise(name)
    case = found.cases[0]
    return Attempt(found, answer_of(found, source), case, 1, given=prepared(found, case, 1))


@pytest.mark.parametrize("number", NOTEBOOKS)
def test_a_notebook_holds_every_exercise_of_its_unit_with_its_skeleton(number):
    sources = cells(number)
    for item in exercises(number):
        if isinstance(item, Exercise):
            (source,) = [s for s in sources if s.split("\n")[0].startswith(f"%%blockkernel --exercise {item.name}")]
            assert source.split("\n", 1)[1].strip() == item.skeleton.strip()
        else:
            assert any(s.startswith(f"%predict {item.name}") for s in sources)


@pytest.mark.parametrize("number", NOTEBOOKS)
def test_no_cell_of_a_notebook_holds_a_solution(number):
    for item in exercises(number):
        if isinstance(item, Exercise):
            assert not any(item.solution.strip() in source for source in cells(number))


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("predict-tiles", (65, 16)),
        ("predict-bank", (32, 1, 1)),
        ("predict-fma", (32768, 512, 8)),
        ("predict-ring", (96, 2)),
    ],
)
def test_a_prediction_computes_its_answer(name, answer):
    item = exercise(name)
    assert isinstance(item, Prediction)
    assert item.value == answer
    assert check(item, answer).passed
    for value, sentence in item.wrong:
        assert check(item, value).cause == sentence


def test_tiles_in_groups_are_few_and_tiles_in_order_many():
    solution = exercise("gemm-4").solution
    rule = tiles_fetched(1 / 3)
    assert not list(rule.check(made("gemm-4", solution)))
    plain = solution.replace("inside // height", "inside % across").replace("inside % height", "inside // across")
    (finding,) = rule.check(made("gemm-4", plain))
    assert "row by row" in finding.text
    assert "2 tiles of `a` and 96 of `b`" in finding.text


def test_a_tile_that_fills_the_registers_leaves_no_room():
    rule = room_for(2)
    assert not list(rule.check(made("fit-1", tuned(8, 3, 128, 128, 32))))
    (finding,) = rule.check(made("fit-1", tuned(8, 3, 128, 256, 64)))
    assert "the registers are full" in finding.text


def test_the_last_round_of_tiles_counts():
    assert busy_share(2304, 128, 256) == pytest.approx(162 / 264)
    assert busy_share(2304, 128, 64) == pytest.approx(648 / 660)
    (finding,) = rounds_busy(0.85, 2304).check(made("wave-1", tuned(8, 3, 128, 128, 64)))
    assert "324 tiles" in finding.text


def test_a_constant_without_a_value_is_a_finding_and_no_exception():
    source = (
        tuned(8, 3, 128, 128, 64).replace("BM: tl.constexpr = 128", "ROWS: tl.constexpr = 128").replace("BM", "ROWS")
    )
    (finding,) = rounds_busy(0.85, 2304).check(made("wave-1", source))
    assert "BM and BN have no values" in finding.text


def test_an_empty_grid_of_one_case_explains_the_holes_of_another():
    goal = exercise("gemm-6")
    source = goal.solution.replace("blocknb.cdiv(M, BM) * blocknb.cdiv(N, BN)", "M // BM * (N // BN)")
    source = source.replace(
        "BM: tl.constexpr = 128, BN: tl.constexpr = 256", "BM: tl.constexpr = 64, BN: tl.constexpr = 64"
    )
    verdict = check(goal, source, seed=1, devices=("cpu",))
    assert "3x8, K=8: the grid has 0 programs for M=3, N=8" in verdict.headline
    assert verdict.headline.endswith("round up with blocknb.cdiv")
