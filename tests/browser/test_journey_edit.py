"""The IR after a pass is edited in the card. The result replaces the code, a wrong text shows its place, and a saved page has no edit."""

from __future__ import annotations

import re

import pytest
from browser import eventually
from softmax import COMMENTED, fresh, listing


@pytest.fixture
def passes(softmax):
    """The Passes view of version 3, for the GPU. The teardown discards the edits."""
    card = softmax.card(3)
    card.open("Passes")
    card.target("sm_90a")
    choose(card, "simplify")
    yield card
    if card.panel("button:text-is('Cancel')").count:
        card.panel("button:text-is('Cancel')").click()
    if card.panel("button:text-is('Discard edits')").visible:
        card.panel("button:text-is('Discard edits')").click()
    eventually(lambda: edited(softmax), lambda found: not found)


def choose(card, name):
    card.panel(f'.bnb-stage[data-name="{name}"]').click()


def edited(softmax):
    """The edited stages of the saved document."""
    views = softmax.notebook.document(3)["views"]
    return [stage["name"] for view in views for stage in view.get("stages", ()) if stage.get("edited")]


def opened(card):
    """Opens the editor and returns its field."""
    card.panel("button:text-is('Edit')").click()
    return card.panel("textarea").wait()


def test_the_code_of_an_edited_text_replaces_the_card_and_can_be_discarded(
    passes, softmax, screenshots, tmp_path, monkeypatch
):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path / "cache"))
    trace = fresh(tmp_path, COMMENTED)
    stage = trace.stages["simplify"]
    field = opened(passes)
    assert field.value == stage.text
    text = re.sub(r"= div (.*f32)", r"= mul \1", stage.text)
    assert text != stage.text
    field.fill(text)
    passes.screenshot(screenshots / "edit.png")
    passes.panel("button:text-is('Compile')").click()
    passes.panel("text=Compiled from the edited IR after simplify.").wait()
    made = stage.edit(text).trace
    for name in ("simplify", made.stages[-1].name):
        choose(passes, name)
        code = passes.listing("IR")
        eventually(lambda code=code: code.code, lambda shown, name=name: shown == listing(made.stages[name]))
    eventually(lambda: edited(softmax), lambda found: found == ["simplify"])
    assert "edited" in passes.panel(".bnb-stage").having("simplify").text
    passes.screenshot(screenshots / "edited.png")
    passes.panel("button:text-is('Discard edits')").click()
    eventually(lambda: edited(softmax), lambda found: not found)
    choose(passes, "simplify")
    code = passes.listing("IR")
    eventually(lambda: code.code, lambda shown: shown == listing(stage))


def test_a_wrong_text_shows_its_line_and_selects_the_place(passes, screenshots):
    field = opened(passes)
    field.fill(field.value.replace("= div", "= dvi", 1))
    passes.panel("button:text-is('Compile')").click()
    said = passes.panel("[role=alert]").until_text("no op is called dvi")
    line = next(line for line in field.value.splitlines() if "= dvi" in line)
    assert line.strip() in said
    assert "^^^" in said
    assert "did you mean" in said
    passes.screenshot(screenshots / "edit-problem.png")
    passes.panel("button:text-is('Cancel')").click()
    passes.listing("IR")
