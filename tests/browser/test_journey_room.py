"""Room to read: panes that cover the window, views in a panel of JupyterLab, measurements from empty tabs, and the keys of a card."""

from __future__ import annotations

import pytest
from browser import eventually
from laboratory import MIME, Notebook
from softmax import CHECK, RIGHT, SETUP, WRONG, cell

DOCKED = ".bnb-dock .bnb-docked"
BOX = "(e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; }"
#: The number of lines above the middle of a listing, from its first linked line: 0 if that line is in the middle.
FROM_MIDDLE = """(content) => {
  const line = content.querySelector('.bnb-highlight-op, .bnb-highlight').getBoundingClientRect();
  const pane = content.closest('.cm-scroller').getBoundingClientRect();
  return Math.abs((line.top + line.bottom) / 2 - (pane.top + pane.bottom) / 2) / line.height;
}"""


@pytest.fixture(scope="module")
def room(lab, shared_page):
    """A notebook with a wrong and a correct version."""
    opened = Notebook(shared_page, lab.write("room.ipynb", [SETUP, cell(WRONG, CHECK), cell(RIGHT)]))
    opened.run(0, 1, 2)
    yield opened
    opened.close()


@pytest.fixture
def card(room, page):
    front = Notebook(page, room.path)
    page.until("() => !!document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .bnb-card')")
    return front.complete(2)


def test_the_header_shows_three_facts_and_folds_the_others(card, room):
    wrong = room.card(1)
    shown = wrong(".bnb-glanced")
    assert [shown[i].attribute("data-fact") for i in range(shown.count)] == ["time", "check", "device"]
    colour = "(e) => getComputedStyle(e).color"
    assert wrong(".bnb-glanced .bnb-wrong").text == "✗ WRONG"
    assert wrong(".bnb-glanced .bnb-wrong").run(colour) != wrong(".bnb-title strong").run(colour)
    wrong("[data-fact=check]").until_text("first wrong", "cause")
    assert not wrong(".bnb-facts").visible
    wrong("summary:has-text('All facts')").click()
    labels, texts = wrong(".bnb-fact-label >> visible=true"), wrong(".bnb-facts .bnb-fact-text")
    assert labels.count > 8
    for i in range(texts.count):  # each text is beside its own label, which JupyterLab's floats do not move
        text, label = texts[i].run(BOX), wrong(".bnb-facts .bnb-fact-label")[i].run(BOX)
        assert text[0] >= label[2] and abs(text[1] - label[1]) < 4
    wrong("summary:has-text('All facts')").click()


def test_a_pane_covers_the_window_and_escape_restores_it(card, page):
    card.open("Passes")
    chosen = card.panel("[role=option][aria-selected=true]")
    assert "no change" not in chosen.text and chosen.attribute("data-stage") != "0"
    pane, beside = card.panel(".bnb-listing").run(BOX), card.panel(".bnb-side").run(BOX)
    assert abs(pane[3] - beside[3]) < 4, "the pane ends where the list beside it ends"
    card.panel("button[aria-label='Hide the list of passes']").click()
    assert card.panel(".bnb-listing").run(BOX)[0] < beside[2]
    card.panel("button[aria-label='Show the list of passes']").click()
    card.panel("button:text-is('Maximise')").click()
    window = page.run("() => [0, 0, innerWidth, innerHeight]")
    assert card.panel(".bnb-main").run(BOX) == window
    assert page.run("() => document.elementFromPoint(20, 20).closest('.bnb-maximised') !== null")
    page.press(*["Tab"] * 12)
    assert page.run("() => document.activeElement.closest('.bnb-maximised') !== null"), "the focus stays in the pane"
    page.press("Escape")
    assert card.panel(".bnb-main").run(BOX)[1] > 0


def test_linked_lines_come_to_the_middle_of_a_pane(card):
    ir, machine = card.open("Code") and card.listing("IR"), card.listing("Machine code")
    ir.line(ir.find("store")).hover()
    eventually(lambda: machine.lit, bool)
    eventually(lambda: machine.run(FROM_MIDDLE), lambda lines: lines < 8)
    card.leave()


def test_a_docked_view_stays_linked_and_follows_the_next_run_of_its_cell(card, room, page):
    card.open("Passes")
    card.panel(".bnb-stages").press("d")
    card.panel(".bnb-summary").wait()
    name = card.panel("[role=option][aria-selected=true] .bnb-stage-name").text
    card("button:text-is('Dock')").click()
    dock = page(DOCKED)
    dock(".bnb-summary").wait()  # it compares the same passes
    line = dock(".cm-merge-b .cm-line:has-text('tile<')")[0]
    line.hover()
    eventually(lambda: room.lit(2), bool)  # in the cell
    eventually(lambda: card.panel(".bnb-highlight-op").count, bool)  # and in the card

    def models():
        return [output["data"][MIME]["model"] for output in room.output(2) if MIME in output.get("data", {})]

    before = models()
    card.panel(".bnb-stages").focus()
    page.press("Shift+Enter")  # runs the cell of the card
    eventually(models, lambda now: now and now != before)
    assert page.run("() => blocknb.panel().content.activeCellIndex") == 3
    page.until("() => !document.querySelector('.bnb-dock-waiting')")
    assert dock("[role=option][aria-selected=true] .bnb-stage-name").text == name
    room.complete(2).target("CPU")
    dock(".bnb-stages").until_text("parse")
    eventually(lambda: dock("[data-stage]").count, lambda n: n == len(room.document(2)["views"][0]["stages"]))
    page(".lm-TabBar-tab:has-text('softmax: Passes') .lm-TabBar-tabCloseIcon").click()


def test_an_empty_tab_measures_what_it_shows(card, room):
    card.open("Sweep")("input").fill("1024")
    card.panel("button:text-is('Measure')").click()
    card.panel("table").until_text("1024", "B/s")
    assert room.document(2)["sweep"]["values"] == [1024]
    card.open("Bench")("button:text-is('Measure')").wait()
    card.open("Roofline")("button:text-is('Measure')").wait()


@pytest.mark.full
def test_a_comparison_and_a_roofline_are_measured_from_their_tabs(card, room):
    card.open("Bench")("input").fill("np.exp(x)")
    card.panel("button:text-is('Measure')").click()
    card.panel("table").until_text("np.exp(x)")
    card.open("Roofline")("button:text-is('Measure')").click()
    card.panel("svg").wait()
    assert set(room.document(2)) >= {"bench", "roofline"}


def test_the_question_mark_is_a_button(card):
    card("button[aria-label=Keys]").click()
    card(".bnb-keys").until_text("Shift Enter", "run the cell")
    card("button[aria-label=Keys]").click()
    assert not card(".bnb-keys").visible
