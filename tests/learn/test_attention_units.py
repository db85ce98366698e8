"""Units 11 and 12: the rule about skipped blocks, the answers about the timeline, and the example of an exercise of one's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blocknb import learn
from blocknb.learn.cell import answer_of
from blocknb.learn.running import attempt
from blocknb.learn.units.attention_cases import attention64, attention_case, causal64, skips_blocks
from blocknb.learn.units.attention_causal import ATTN_3
from blocknb.learn.units.attention_model import attention_timeline

COURSE = Path(__file__).parents[2] / "notebooks" / "course"
END = "tl.minimum(N, (tl.program_id(0) + 1) * BM)"
SETTINGS = {"BM": 128, "BN": 128, "num_warps": 8}


def broken(source: str, number: int = 0) -> list[str]:
    """What breaks the rule about skipped blocks, for an answer to attn-3 whose result is right."""
    made = attempt(ATTN_3, answer_of(ATTN_3, source), ATTN_3.cases[number], 1, "interpreted")
    assert made.passed
    return [finding.text for finding in skips_blocks.check(made)]


def test_loops_that_end_at_the_diagonal_skip_blocks() -> None:
    for number in range(len(ATTN_3.cases)):
        assert not broken(ATTN_3.solution, number)
        assert not broken(ATTN_3.solution.replace(END, "(tl.program_id(0) + 1) * BM"), number)


def test_a_loop_over_all_keys_skips_nothing() -> None:
    assert broken(ATTN_3.solution.replace(END, "N")) == [
        "the programs load 32 blocks of keys, and 20 of them hold a key that counts: end the loop earlier"
    ]


def test_masked_loads_are_no_skipped_blocks() -> None:
    source = ATTN_3.solution.replace(END, "N").replace("n[:, None] < N", f"n[:, None] < {END}")
    (text,) = broken(source)
    assert text == "24 loads have a mask that turns all lanes off: end the loop, and do not only mask its loads"


def test_causal_attention_of_the_last_query_sees_all_keys() -> None:
    given = attention_case("normal", 9, BM=16, BN=8).make(np.random.default_rng(1))
    arrays = {name: given[name] for name in ("q", "k", "v", "scale")}
    causal, full = causal64(**arrays)["out"], attention64(**arrays)["out"]
    assert np.allclose(causal[-1], full[-1])
    assert np.allclose(causal[0], given["v"][0])
    assert not np.allclose(causal[3], full[3], atol=0.01)


@pytest.mark.parametrize(("name", "answer"), [("attn-4-clocks", (1024, 1024)), ("attn-4-head", (2, 1))])
def test_a_prediction_about_the_timeline_computes_its_answer(name: str, answer: tuple[int, int]) -> None:
    item = learn.exercise(name)
    assert isinstance(item, learn.Prediction)
    assert item.value == answer


@pytest.mark.full
def test_the_timeline_shows_what_the_notebook_says_about_it() -> None:
    busy = [attention_timeline(D=64, num_stages=stages, **SETTINGS).busy for stages in (1, 2, 4)]
    assert busy[1] > busy[0] + 0.05
    assert busy[2] == pytest.approx(busy[1], abs=0.005)
    assert attention_timeline(D=128, num_stages=2, **SETTINGS).busy > busy[1] + 0.05


def test_the_example_of_unit_12_is_short_and_sound() -> None:
    cells = json.loads((COURSE / "12_your_own.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    (source,) = (text.split("\n", 1)[1] for text in sources if text.startswith("%%writefile mine.py\n"))
    assert source.count("\n") < 35
    names: dict[str, tuple[learn.Exercise, ...]] = {}
    exec(source, names)
    (item,) = names["EXERCISES"]
    report = learn.prove(item, compiled=False, course=False, seeds=(1,))
    assert report.sound, report
    assert f"%%blockkernel --exercise {item.name}\n{item.skeleton.rstrip()}" in sources


def test_unit_12_names_the_file_of_its_exercises_without_the_folder_of_the_installation(capsys) -> None:
    cells = json.loads((COURSE / "12_your_own.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = (text for cell in cells if "unit12_your_own" in (text := "".join(cell["source"])))
    exec("import blocknb\n" + source, {})
    assert capsys.readouterr().out == "blocknb/learn/units/unit12_your_own.py\n"


def test_the_hints_of_a_file_are_two_or_three() -> None:
    said = str(
        learn.prove(replace(learn.exercise("scan-1"), hints=("One?",)), compiled=False, course=False, seeds=(1,))
    )
    assert "1 hints: give two or three" in said
