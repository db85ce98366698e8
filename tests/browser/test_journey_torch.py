"""The kernels of a compiled model on the page: table, cards, graph, reasons and trend, by pointer and keyboard, live and saved."""

from __future__ import annotations

import pytest
from browser import eventually
from laboratory import THEMES, Card, Notebook, change_theme
from test_journey_access import AXE, problems_of
from torch_notebook import COMPARED, RUN, SETUP

pytest.importorskip("torch", reason="make test-torch runs this with PyTorch")
pytestmark = pytest.mark.full


TITLES = ["Kernels", "Graph", "Reasons", "Trend"]


@pytest.fixture(scope="module")
def model(lab, shared_page):
    """The notebook, after the cell with `%%torchkernels` has run."""
    notebook = Notebook(shared_page, lab.write("torch.ipynb", [SETUP, RUN, COMPARED]))
    notebook.run(0, 1)
    yield notebook
    notebook.close()


@pytest.fixture
def table(model, page):
    """The page below the cell; cards of kernels are inside of it."""
    return page_of(model, 1)


class ModelPage(Card):
    """The page of a compiled model. It comes before the cards of kernels inside of it."""

    @property
    def panel(self):
        return self(":scope > * > [role=tabpanel]:not([hidden])")

    @property
    def state(self):
        return self(".bnb-state >> nth=0").attribute("data-state") or ""


def page_of(notebook, cell):
    notebook.show(cell)
    found = ModelPage(notebook.page, f"{notebook.cell(cell).selector} >> .bnb-card[aria-label*='generated kernels']")
    found.wait()
    return found


def names(table):
    return table(".bnb-kernel-name").texts


def test_a_row_opens_the_card_of_its_kernel_with_machine_code(table, screenshots):
    table.until_state("live")
    assert table.titles == TITLES
    softmax = next(i for i, name in enumerate(names(table)) if "softmax" in name)
    toggle = table(".bnb-kernel-name")[softmax]
    toggle.click()
    card = Card(table.page, f"{table.selector} >> .bnb-kernel-card .bnb-card")
    card.wait()
    assert toggle.attribute("aria-expanded") == "true"
    eventually(lambda: card.listing("Machine code").code, lambda text: ".target sm_90a" in text)
    card.run("(card) => card.scrollIntoView()")  # the editors render what is in sight
    code = card.listing("Machine code")
    code.line(code.find("ld.global")).hover()
    source = card.listing("Source of the kernel")
    eventually(lambda: source.lit, bool)
    assert "tl.load" in source.code.split("\n")[source.lit[0] - 1]
    card.open("Passes")(".cm-line:has-text('program_id') >> nth=0").wait()
    table.screenshot(screenshots / "torch-card.png")
    toggle.click()


def test_a_box_selects_its_row_and_a_row_its_box(table, screenshots):
    graph = table.open("Graph")
    boxes = graph(".bnb-fusion-kernel")
    boxes[0].click()
    assert boxes[0].attribute("aria-pressed") == "true"
    assert graph(".bnb-fusion-about").text.startswith(names(table)[0])
    table.screenshot(screenshots / "torch-graph.png")
    table.open("Kernels")
    assert table(".bnb-kernel-selected").attribute("data-row") == "0"
    table(".bnb-kernel")[2]("button[aria-label^='Show']").click()
    pressed = table.panel(".bnb-fusion-box[aria-pressed=true]")
    assert pressed.attribute("aria-label").startswith(names(table)[2])


def test_the_keyboard_moves_over_the_boxes_and_opens_a_card(table, page):
    table.open("Graph")(".bnb-fusion-scroll").run("(place) => place.focus()")
    page.press("Tab")
    first = page.run("() => document.activeElement.getAttribute('aria-label')")
    page.press("ArrowDown", "ArrowDown")
    assert page.run("() => document.activeElement.getAttribute('aria-label')") != first
    page.press("ArrowUp", "ArrowUp", "Enter")
    assert page.run("() => document.activeElement.getAttribute('aria-pressed')") == "true"
    for _ in range(4):
        page.press("Tab")
        if page.run("() => document.activeElement.textContent") == "Open card":
            break
    page.press("Enter")
    table.panel(".bnb-kernel-card:not([hidden]) .bnb-card").wait()
    table(".bnb-kernel-name[aria-expanded=true]").click()


def test_reasons_stand_at_the_lines_of_the_program(table):
    text = table.open("Reasons").text
    assert "torch._dynamo.graph_break()" in text
    assert "Why two kernels are not fused" in text


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_axe_finds_nothing_in_any_view(table, page, screenshots, theme):
    page.run("(script) => { (0, eval)(script); }", AXE.read_text("utf-8"))
    change_theme(page, theme)
    found = {}
    try:
        for title in TITLES:
            table.open(title)
            table.screenshot(screenshots / f"torch-{title.lower()}-{theme}.png")
            if problems := problems_of(table):
                found[title] = problems
    finally:
        change_theme(page, "light")
    assert found == {}


def test_a_second_run_of_the_cell_adds_a_point_to_the_trend(model, page):
    model.run(1)
    panel = page_of(model, 1).open("Trend")
    assert panel("svg .bnb-mark").count == 2
    assert "same text" in panel.text


def test_eager_stands_next_to_the_compiled_step(model, page):
    model.run(2)
    heads = page_of(model, 2)(".bnb-glanced").texts
    assert [head.startswith(label) for head, label in zip(heads, ("compiled step", "eager step"), strict=False)] == [
        True,
        True,
    ]
    assert all("launches" in head for head in heads[:2])


def test_a_saved_notebook_opens_the_cards_that_were_opened(model, lab, page):
    table = page_of(model, 1)
    table.until_state("live")
    table.open("Kernels")(".bnb-kernel-name")[1].click()
    table(".bnb-kernel-card .bnb-card").wait()
    model.save()
    model.close()
    again = Notebook(page, model.path, start=False)
    table = page_of(again, 1)
    table(".bnb-kernel-name")[1].click()
    table(".bnb-kernel-card .bnb-card").wait()
    table(".bnb-kernel-name")[0].click()
    table(".bnb-kernel-card .bnb-empty >> nth=0").until_text("does not contain this card")
