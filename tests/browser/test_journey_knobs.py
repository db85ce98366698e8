"""Features 5 and 8: sliders that recompile the kernel and show the changes; the gain from an optional pass."""

from __future__ import annotations

import pytest
from browser import eventually
from softmax import COMMENTED, fresh, listing, machine_code, milliseconds


@pytest.fixture
def knobs(softmax):
    """The card of version 3 with its knobs open. The teardown resets the knobs, and the card is that of the cell again."""
    card = softmax.card(3)
    card.open("Knobs")
    yield card
    card.open("Knobs")("text=Reset to the cell’s values").click()
    eventually(lambda: softmax.notebook.document(3), lambda found: "modified" not in found)
    settled(card)


def settled(card):
    working = ("compiling", "measuring")
    eventually(lambda: card.panel("[role=status]").text.lower(), lambda text: not text.startswith(working))


def slide(card, name, value):
    """Moves a slider with the arrow keys to a value."""
    slider = card.panel(f"[data-knob='{name}']")
    now, wanted = (int(slider.attribute("aria-valuetext")), int(value))
    while now != wanted:
        slider.press("ArrowRight" if now < wanted else "ArrowLeft")
        now = int(slider.attribute("aria-valuetext"))


def changed(card):
    """Returns the table of changes: name -> (value in the cell, current value, whether it changed)."""
    rows = card.panel(".bnb-table tbody tr")
    cells = [(rows[i]("th").text, *rows[i]("td").texts) for i in range(rows.count)]
    return {name: (before, now.removesuffix(" ◂"), now.endswith(" ◂")) for name, before, now in cells}


def test_after_a_slider_move_the_card_equals_that_of_a_fresh_compile(knobs, softmax, tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path / "cache"))
    slide(knobs, "num_warps", 4)
    slide(knobs, "BLOCK", 2048)
    eventually(lambda: changed(knobs)["BLOCK"], lambda row: row == ("1024", "2048", True))
    settled(knobs)
    gpu = fresh(tmp_path, COMMENTED, BLOCK=2048, num_warps=4)
    cpu = fresh(tmp_path, COMMENTED, "cpu", BLOCK=2048, num_warps=4)
    now = changed(knobs)
    assert now["registers, sm_90a"][1] == str(gpu.resources.registers)
    assert now["shared memory, sm_90a"][1] == f"{gpu.resources.shared_bytes} B"
    knobs.open("Passes")
    for target, trace in (("sm_90a", gpu), ("CPU", cpu)):
        knobs.target(target)
        assert knobs.panel(".bnb-stage-name").texts == [stage.name for stage in trace.stages]
        for stage in trace.stages:
            knobs.panel(f'.bnb-stage[data-name="{stage.name}"]').click()
            eventually(lambda: knobs.listing("IR").code, lambda text, stage=stage: text == listing(stage))
            assert all(note.text in knobs.panel(".bnb-about").text for note in stage.notes)
    knobs.target("sm_90a")
    knobs.open("Code")
    code = knobs.listing("Machine code")
    assert code.code == machine_code(gpu)
    saved = softmax.notebook.document(3)  # of the cell, with the change named beside it
    assert saved["launches"][-1]["constants"]["BLOCK"] == "1024"
    assert saved["modified"]["settings"] == "BLOCK=2048, num_warps=4"
    assert saved["modified"]["outputs"] == "the outputs equal those of the cell’s kernel"
    assert milliseconds(now["time"][1]) == pytest.approx(saved["modified"]["now"]["median"], rel=0.01)
    knobs.open("Knobs")
    knobs.panel(".bnb-modified").until_text("Changed: BLOCK=2048, num_warps=4", saved["modified"]["text"])


def test_switching_a_pass_off_shows_the_difference(knobs, softmax, tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path / "cache"))
    knobs.panel(".bnb-switch").having("coalesce")("input").check(False)
    eventually(lambda: softmax.notebook.document(3).get("modified"), bool)
    settled(knobs)
    assert softmax.notebook.document(3)["modified"]["settings"] == "without coalesce"
    knobs.panel(".bnb-modified").until_text("no effect on the CPU: the code is the same", "sm_90a: the code differs")
    without = fresh(tmp_path, COMMENTED, without=("coalesce",))
    assert changed(knobs)["registers, sm_90a"][1] == str(without.resources.registers)
    assert "time" in changed(knobs)
    knobs.open("Passes")(".bnb-stage").having("coalesce").until_text("disabled")
    knobs.open("Code")
    assert knobs.listing("Machine code").code == machine_code(without)


def test_time_without_a_pass_is_shown_next_to_the_time_with_it(softmax):
    card = softmax.card(3)  # run with --without pointers --baseline np.exp(x)
    rows = card.open("Bench")(".bnb-table tbody tr")
    shown = [(rows[i]("th").text, *rows[i]("td").texts) for i in range(rows.count)]
    assert [row[1] for row in shown] == ["kernel", "without a pass", "baseline"]
    assert "pointers" in shown[1][0] and shown[2][0] == "np.exp(x)"
    kept = {row["label"]: row for row in softmax.notebook.document(3)["bench"]["rows"]}
    for label, _, median, spread, ratio, _ in shown:
        assert milliseconds(median) == pytest.approx(kept[label]["time"]["median"], rel=0.01)
        assert " – " in spread and "×" in ratio
    assert shown[0][4] == "1.00×" and all("ratio" in kept[row[0]] for row in shown[1:])
