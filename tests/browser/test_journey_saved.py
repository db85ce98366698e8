"""Feature 10: the cards of a saved notebook work without a kernel, and an exported page works offline."""

from __future__ import annotations

import json

import pytest
from browser import eventually
from laboratory import MIME, SCRIPT, VIEWS, Card, Notebook


def explore(card):
    """Uses all functions of a card that need no kernel."""
    assert card.titles == [*VIEWS]
    card.open("Code")
    code = card.listing("Machine code")
    card.panel("[aria-label='Level on the right']").choose("PTX")
    eventually(lambda: code.code, lambda text: "ex2.approx" in text)
    code.line(code.find("ex2.approx")).hover()
    ir = card.listing("IR")
    assert any("exp" in ir.code.split("\n")[i - 1] for i in eventually(lambda: ir.lit, bool))
    source = card.listing("Source of the kernel")
    assert [source.code.split("\n")[i - 1] for i in source.lit] == [
        "    powers = tl.exp(values - tl.max(values, axis=0))"
    ]
    card.leave()
    card.open("Passes")(".bnb-stage").having("layout_assignment").click()
    card.panel("[aria-label='Compare with']").choose("parse")
    card.panel(".bnb-summary").until_text("Ops:")
    assert "registers" in card.open("Resources").text and "%" in card.panel.text
    card.open("Tiles")(".bnb-stage").having("load x").until_text("sectors per request")
    card.open("Bench").until_text("np.exp(x)", "interquartile range")
    card.open("History")(".bnb-table tbody tr").having("✗ wrong").wait()
    knobs = card.open("Knobs")
    knobs.until_text("nobs need a live kernel")
    assert knobs("input:not([disabled])").count == 0


def test_saved_card_works_without_a_kernel(softmax, page):
    softmax.notebook.save()
    saved = json.loads((softmax.lab.folder / softmax.path).read_text("utf-8"))
    cards = [o for c in saved["cells"] for o in c["outputs"] if MIME in o.get("data", {})]
    assert len(cards) >= 3
    sizes = [
        {kind: len(json.dumps(data, ensure_ascii=False).encode()) for kind, data in card["data"].items()}
        for card in cards
    ]
    assert all(sum(found.values()) - found.get("image/png", 0) <= 155_000 for found in sizes), sizes
    alone = softmax.lab.write("alone.ipynb", [saved["cells"][0], saved["cells"][3]])
    notebook = Notebook(page, alone, start=False)
    assert page.run("() => !blocknb.panel().sessionContext.session")
    card = notebook.card(1)
    assert card.state == "saved"
    explore(card)
    notebook.close(shut_down=False)


@pytest.mark.parametrize(("colours", "background"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 17, 17)")])
def test_exported_page_works_offline(softmax, browser, colours, background):
    cell = softmax.notebook.add("softmax.export_html('exported.html')")
    softmax.notebook.run(cell)
    alone = browser.open(SCRIPT, colorScheme=colours)
    alone.set_offline(True)
    alone.goto((softmax.lab.folder / "exported.html").as_uri())
    card = Card(alone, ".bnb-card")
    card.wait()
    assert card.state == "saved"
    assert card.run("(card) => getComputedStyle(card).backgroundColor") == background
    explore(card)
    assert alone.requested() == [(softmax.lab.folder / "exported.html").as_uri()]
    assert alone.errors() == []
    alone.close()
