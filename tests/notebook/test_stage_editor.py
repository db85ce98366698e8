"""Edits of a stage in the card: the result replaces the target that was edited, wrong texts name their place, and arrays stay unchanged."""

from __future__ import annotations

import re
import weakref

import numpy as np
import pytest
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.notebook import card, live
from blocknb.runtime.edited_kernel import EditedKernel


@blocknb.kernel
def doubled(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(out + at, mask=at < n) + tl.load(x + at, mask=at < n), mask=at < n)


def make_page():
    """A live card of a launch on the CPU with a GPU view, and the arrays of the launch."""
    x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    shown = card.card_of(observed(lambda: doubled[8,](x, out, 1000, BLOCK=128)))
    return live.LiveCard(shown), x, out


@pytest.fixture
def page():
    return make_page()


def ask(page, what, **content):
    return live.REQUESTS[what](page, content)


def subtracting(text):
    changed, count = re.subn(r"= add (.*tile<128xf32)", r"= sub \1", text)
    assert count == 1
    return changed


def edited_stages(view):
    return [stage["name"] for stage in view["stages"] if stage.get("edited")]


def test_an_edit_of_the_code_that_ran_is_measured_on_copies(page):
    live_card, x, out = page
    before = live_card.card
    text = ask(live_card, "stage_text", view=0, stage="pointers")["text"]
    assert text == before.views[0].trace.stage("pointers").text
    made = ask(live_card, "edit", view=0, stage="pointers", text=subtracting(text))["document"]
    assert [edited_stages(view) for view in made["views"]] == [["pointers"], []]
    assert [view["role"] for view in made["views"]] == ["ran", "view"]
    assert isinstance(live_card.card.main.compiled, EditedKernel)
    assert live_card.card.main.launches > 1
    assert made["launches"][0]["time"]["median"] > 0
    assert (out == 1).all()
    assert (x == 1).all()
    assert doubled.latest is before.main.compiled


def test_an_edit_of_a_view_is_compiled_and_leaves_the_code_that_ran(page):
    live_card, *_ = page
    main = live_card.card.main
    ptx = live_card.card.views[1].trace.ptx
    text = ask(live_card, "stage_text", view=1, stage="layout_assignment")["text"]
    made = ask(live_card, "edit", view=1, stage="layout_assignment", text=subtracting(text))["document"]
    assert [edited_stages(view) for view in made["views"]] == [[], ["layout_assignment"]]
    assert live_card.card.main is main
    assert len(re.findall(r"\bsub(?:\.rn)?\.f32", live_card.card.views[1].trace.ptx)) > 0
    assert not re.search(r"\bsub(?:\.rn)?\.f32", ptx)
    stage = next(stage for stage in made["views"][1]["stages"] if stage.get("edited"))
    assert stage["notes"][-1]["text"] == "the IR after this pass was edited by hand"
    assert ["edited, sm_90a", "the IR after layout_assignment"] in made["facts"]


def test_edits_can_be_discarded_and_a_knob_discards_them(page):
    live_card, *_ = page
    before = live_card.card
    for name in ("simplify", "pointers"):
        text = ask(live_card, "stage_text", view=1, stage=name)["text"]
        text = subtracting(text) if name == "simplify" else text
        assert "document" in ask(live_card, "edit", view=1, stage=name, text=text)
    assert [s.name for s in live_card.card.views[1].trace.stages if s.edited] == ["pointers"]
    made = ask(live_card, "edit", stage=None)["document"]
    assert live_card.card is before
    assert not any(edited_stages(view) for view in made["views"])
    ask(
        live_card, "edit", view=0, stage="pointers", text=ask(live_card, "stage_text", view=0, stage="pointers")["text"]
    )
    made = ask(live_card, "turn", knobs={"constants": {"BLOCK": 256}})["document"]
    assert not any(edited_stages(view) for view in made["views"])
    again = ask(live_card, "edit", stage=None)["document"]  # nothing to discard
    assert again["launches"][0]["constants"]["BLOCK"] == "256"


def test_an_edit_after_a_knob_has_the_constants_of_the_knob(page):
    live_card, *_ = page
    ask(live_card, "turn", knobs={"constants": {"BLOCK": 256}, "num_warps": 8})
    text = ask(live_card, "stage_text", view=0, stage="pointers")["text"]
    text, count = re.subn(r"= add (.*tile<256xf32)", r"= sub \1", text)
    assert count == 1
    made = ask(live_card, "edit", view=0, stage="pointers", text=text)["document"]
    assert made["views"][0]["role"] == "ran"
    assert made["launches"][0]["constants"]["BLOCK"] == "256"
    assert edited_stages(made["views"][0]) == ["pointers"]


def test_a_wrong_text_names_its_place_and_changes_nothing(page):
    live_card, *_ = page
    before = live_card.card
    text = before.views[1].trace.stage("simplify").text.replace("= add", "= ad", 1)
    problem = ask(live_card, "edit", view=1, stage="simplify", text=text)["problem"]
    line = text.splitlines()[problem["line"] - 1]
    assert line[problem["column"] : problem["end_column"]] == "ad"
    assert "no op is called ad" in problem["message"]
    assert re.search(r"did you mean .*\badd\b", problem["hint"])
    assert live_card.card is before


def test_a_card_with_an_edit_holds_no_array_and_edits_without_them_are_compiled_only(collect):
    live_card, x, out = make_page()
    text = subtracting(ask(live_card, "stage_text", view=0, stage="pointers")["text"])
    assert ask(live_card, "edit", view=0, stage="pointers", text=text)["document"]["views"][0]["role"] == "ran"
    held = [weakref.ref(x), weakref.ref(out)]
    del x, out
    collect()
    assert [reference() for reference in held] == [None, None]
    made = ask(live_card, "edit", view=0, stage="pointers", text=text)["document"]
    assert made["views"][0]["role"] == "compiled"
    assert edited_stages(made["views"][0]) == ["pointers"]


def test_an_unknown_target_or_stage_is_an_error(page):
    live_card, *_ = page
    sent = []
    comm = type("Comm", (), {"send": lambda self, data: sent.append(data)})()
    live._answer(comm, live_card, {"id": 1, "what": "stage_text", "view": 5, "stage": "simplify"})
    live._answer(comm, live_card, {"id": 2, "what": "stage_text", "view": 0, "stage": "simplfy"})
    assert "the card has no stages for target 5" in sent[0]["error"]
    assert "did you mean simplify" in sent[1]["error"]
