"""Cards in a saved notebook are small, and readable without the lab extension."""

from __future__ import annotations

import json
import re
from itertools import takewhile

import nbformat
import pytest
from bs4 import BeautifulSoup
from first_kernels import CELLS, SETUP
from nbconvert import HTMLExporter
from test_card import Reader

from blocknb.notebook import document, html
from blocknb.notebook.blobs import read


@pytest.fixture(scope="module")
def saved(kernel_process):
    """A notebook with the first kernels, executed and saved as by JupyterLab."""
    cells = []
    assert kernel_process.run(SETUP).status == "ok"
    for text in CELLS.values():
        answer = kernel_process.run(text)
        assert answer.status == "ok", answer.error_text
        made = [
            nbformat.v4.new_output(o["type"], data=o["data"], metadata={})
            for o in answer.outputs
            if o["type"] == "display_data"
        ]
        cells.append(nbformat.v4.new_code_cell(text, outputs=made))
    return nbformat.v4.new_notebook(cells=cells)


def cards(notebook):
    """The MIME bundle of each kernel's card."""
    found = [output.data for cell in notebook.cells for output in cell.outputs if document.MIME in output.data]
    assert [card[document.MIME]["kernel"] for card in found] == [*CELLS]
    return found


def test_a_notebook_with_three_cards_stays_under_500_kb(saved):
    nbformat.validate(saved)
    assert len(nbformat.writes(saved).encode()) < 500_000
    for card in cards(saved):
        assert len(json.dumps(card, ensure_ascii=False).encode()) <= 150_000


def test_a_card_offers_text_html_and_the_document_and_no_widget(saved):
    for card in cards(saved):
        assert set(card) == {"text/plain", "text/html", document.MIME}


def test_nbconvert_shows_every_card_without_scripts_and_within_30_kb(saved):
    page, _ = HTMLExporter().from_notebook_node(saved)
    shown = BeautifulSoup(page, "html.parser").select(".blocknb-card")
    assert len(shown) == len(CELLS) and document.MIME not in page
    for card, element in zip(cards(saved), shown, strict=True):
        assert len(card["text/html"].encode()) <= 30_000 and len(str(element).encode()) <= 30_000
        assert element.get_text() == BeautifulSoup(card["text/html"], "html.parser").get_text()
        tags = {tag.name for tag in element.find_all(True)}
        assert tags <= {
            "style",
            "div",
            "b",
            "table",
            "tr",
            "th",
            "td",
            "code",
            "details",
            "summary",
            "span",
            "pre",
            "i",
            "u",
        }
        assert {name for tag in element.find_all(True) for name in tag.attrs} <= {"class", "open"}


def test_the_static_card_has_kernel_time_notes_final_ir_and_one_line_on_installing(saved):
    for card in cards(saved):
        made, reader = card[document.MIME], Reader(card["text/html"])
        text, facts = reader.text, dict(made["facts"])
        assert reader.open == []
        assert made["kernel"] in text and f"def {made['kernel']}(" in text
        assert facts["time"] in text and re.match(r"[\d.]+ (ns|µs|ms)", facts["time"])
        view = next(v for v in made["views"] if v.get("target", "").startswith("sm_"))
        notes = [note["text"] for stage in view["stages"] for note in stage["notes"] if note["line"]]
        assert notes and all(note in text for note in notes)
        final = read(made["blobs"], view["stages"][-1]["text"])["text"].split("\n")
        shown = list(takewhile(lambda line: line in text, final))
        assert len(shown) > 10
        lines = [line for line in text.split("\n") if "pip install blocknb" in line]
        assert lines == [html.INSTALL.replace("`", "")]


def test_plain_text_is_a_short_form_of_the_card(saved):
    for card in cards(saved):
        made, text = card[document.MIME], card["text/plain"]
        lines = text.split("\n")
        assert lines[0].startswith(f"{made['kernel']}: ran on ") and len(lines) < 60
        for label, fact in made["facts"]:
            assert re.search(rf"^  {re.escape(label)} +{re.escape(fact)}$", text, re.M), label
        assert re.search(r"^    line \d+: [•○▲] \w+: ", text, re.M)
        assert re.search(rf"^  more in {made['kernel']}\.latest\S*\.trace: ", text, re.M)
        assert not re.search(r"&\w+;|</\w+>", text)
