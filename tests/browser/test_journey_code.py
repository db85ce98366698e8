"""Feature 1: links between the input cell and all levels of code, in both directions, until the cell's source changes."""

from __future__ import annotations

import pytest
from browser import eventually


@pytest.mark.parametrize(
    ("level", "opcode", "statement"),
    [
        ("PTX", "ex2.approx", "tl.exp"),
        ("PTX", "st.global", "tl.store"),
        ("SASS", "MUFU.EX2", "tl.exp"),
        ("SASS", "STG.E", "tl.store"),
    ],
)
def test_hovering_over_an_instruction_highlights_its_line_in_the_input_cell(softmax, level, opcode, statement):
    notebook, card = softmax.notebook, softmax.card(3)
    card.open("Code")("select[aria-label='Level on the right']").choose(level)
    code = card.listing("Machine code")
    eventually(lambda: code.code, lambda text: opcode in text)
    wanted = softmax.line_of(3, statement)
    code.line(code.find(opcode)).hover()
    eventually(lambda: notebook.lit(3), lambda lit: lit == [wanted])
    ir = card.listing("IR")
    said = [ir.code.split("\n")[i - 1] for i in eventually(lambda: ir.lit, bool)]
    assert any(statement.removeprefix("tl.") in line for line in said)
    card.leave()  # moves the pointer away from the listing
    eventually(lambda: notebook.lit(3), lambda lit: lit == [])


def test_hovering_over_a_line_of_the_input_cell_highlights_it_at_every_level(softmax):
    notebook, card = softmax.notebook, softmax.card(3)
    panel = card.open("Code")
    ir, code = card.listing("IR"), card.listing("Machine code")
    for level, opcode in (("PTX", "st.global"), ("SASS", "STG.E"), ("PTX", "st.global")):
        panel("select[aria-label='Level on the right']").choose(level)
        eventually(lambda: code.code, lambda text, opcode=opcode: opcode in text)
        notebook.show(3)(".jp-InputArea .cm-line")[softmax.line_of(3, "tl.store") - 1].hover()
        eventually(lambda: code.lit, bool)
        code.line(code.find(opcode))  # scrolls to the line, because the editor highlights visible lines only
        lit = [code.code.split("\n")[i - 1] for i in eventually(lambda: code.lit, bool)]
        assert any(opcode in line for line in lit) and not any("ex2" in line.lower() for line in lit)
        lit = [ir.code.split("\n")[i - 1] for i in ir.lit]
        assert any("store" in line for line in lit) and not any(" exp" in line for line in lit)
        card.leave()
        eventually(lambda: code.lit, lambda found: found == [])


def test_selected_line_stays_highlighted_and_the_keyboard_selects_it_too(softmax):
    notebook, card = softmax.notebook, softmax.card(3)
    card.open("Code")
    code = card.listing("Machine code")
    code.line(code.find("ex2.approx")).click()
    card.leave()
    assert notebook.lit(3) == [softmax.line_of(3, "tl.exp")]
    card.panel(".bnb-explained")[1].until_text("ex2.approx")
    for _ in range(400):  # moves down to the store, line by line
        code.press("ArrowDown")
        if notebook.lit(3) == [softmax.line_of(3, "tl.store")]:
            break
    assert notebook.lit(3) == [softmax.line_of(3, "tl.store")]
    code.press("Control+Home")
    eventually(lambda: notebook.lit(3), lambda lit: lit == [])


def test_cell_with_another_source_is_not_linked(softmax):
    notebook, card = softmax.notebook, softmax.card(3)
    card.open("Code")
    code = card.listing("Machine code")
    text = notebook.source(3)
    notebook.write(3, text.replace("tl.exp(", "tl.exp2("))
    card(".bnb-stale").wait()
    code.line(code.find("ex2.approx")).hover()
    assert eventually(lambda: code.lit, bool)
    assert notebook.lit(3) == []
    assert "tl.exp(" in card.listing("Source of the kernel").code  # the source of the card
    notebook.write(3, text)
    card(".bnb-stale").wait("detached")
    card.leave()
    code.line(code.find("ex2.approx")).hover()
    eventually(lambda: notebook.lit(3), lambda lit: lit == [softmax.line_of(3, "tl.exp")])
    card.leave()
