"""Diffs that explain, and Compare: sentences, matched ops, the life of an op, colours by line, help, and helpers in other cells.

One notebook: a helper in a cell of its own, two versions of a matrix product that calls it, and a comparison of both.
"""

from __future__ import annotations

import json
import re
import time

import pytest
from browser import eventually
from laboratory import SCRIPT, Card, Notebook, code_cell, complaints
from softmax import SETUP

HELPER = """\
@blocknb.kernel
def activated(total, slope):
    scaled = total * slope
    return tl.maximum(total, scaled)"""
PRODUCT = """\
%%blockkernel --target sm_80,sm_90a
@blocknb.kernel
def product(a, b, c, n, B: tl.constexpr):
    rows, columns = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, n, B):
        inner = k + tl.arange(0, B)
        left = tl.load(a + rows[:, None] * n + inner[None, :])
        total = tl.dot(left, tl.load(b + inner[:, None] * n + columns[None, :]), total)
    tl.store(c + rows[:, None] * n + columns[None, :], activated(total, 0.5))

product[2, 2](a, b, c, 128, B=64);"""
CHANGED = PRODUCT.replace("tl.float32)\n    for", "tl.float32) + 1.0\n    for")
ARRAYS = """
a, b = (np.ones((128, 128), np.float16) for _ in range(2))
c = np.empty((128, 128), np.float32)"""
HELP, FIRST, SECOND, COMPARED = 1, 2, 3, 4


#: Returns the middle of a word of a line, in pixels of the page.
PLACE_OF_WORD = """(line, word) => {
  const range = document.createRange();
  const walk = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const at = node.textContent.indexOf(word);
    if (at >= 0) {
      range.setStart(node, at);
      range.setEnd(node, at + word.length);
      const box = range.getBoundingClientRect();
      return [box.left + box.width / 2, box.top + box.height / 2];
    }
  }
}"""


@pytest.fixture(scope="module")
def products(lab, shared_page):
    """The notebook, which has been run."""
    cells = [SETUP + ARRAYS, HELPER, PRODUCT, CHANGED, "%blockdiff product@1@sm_80 product@2@sm_90a"]
    notebook = Notebook(shared_page, lab.write("products.ipynb", cells))
    notebook.run(*range(len(cells)))
    notebook.complete(FIRST)
    yield notebook
    Notebook(shared_page, notebook.path).close()


@pytest.fixture
def notebook(products, page):
    """The notebook in the active tab."""
    return Notebook(page, products.path)


@pytest.fixture
def card(notebook):
    """The live card of the first version, for sm_80."""
    found = notebook.card(FIRST)
    found.until_state("live")
    found.target("sm_80")
    found.open("Code")
    found.listing("IR").press("Control+Home")  # this line comes from no line of the source, so nothing is selected
    return found


def choose(card, name):
    card.panel(f'.bnb-stage[data-name="{name}"]').click()
    card.panel(".bnb-about strong").wait()


def compare(card, name, other):
    """Compares the IR after a pass with that after another one, and returns the sentences."""
    card.open("Passes")
    choose(card, name)
    select = card.panel("[aria-label='Compare with']")
    labels = select("option").texts
    select.choose(next(label for label in labels if label.split()[0] == other))
    card.panel(".bnb-summary").until_text("Ops:")
    return eventually(lambda: card.panel(".bnb-changes .bnb-sentence").texts, bool)


def lines_of(cell, part):
    """The numbers of the lines of a cell's source that contain a text."""
    return [i for i, line in enumerate(cell.split("\n"), 1) if part in line]


def test_a_pass_is_told_in_sentences_that_select_its_ops(card, screenshots):
    told = compare(card, "software_pipelining", previous(card, "software_pipelining"))
    assert any("copy_async" in one and re.search(r"circular buffers? of \d stages", one) for one in told), told
    card.panel(".bnb-sentence").having("copy_async").click()
    right = Card(card.page, card.selector).panel(".cm-merge-b .cm-content")
    lit = eventually(lambda: right(".bnb-highlight-op").texts, bool)
    assert any("copy_async" in line for line in lit), lit
    card.screenshot(screenshots / "diff-sentences.png")


def previous(card, name):
    card.open("Passes")
    names = card.panel(".bnb-stage-name").texts
    return names[names.index(name) - 1]


@pytest.mark.full
def test_moved_and_copied_ops_have_signs_in_two_columns_and_in_one(card, screenshots):
    compare(card, "software_pipelining", "parse")
    summary = card.panel(".bnb-summary").text
    counted = {what: int(n) for n, what in re.findall(r"(\d+) (moved|copied)", summary)}
    assert counted, summary
    signs = eventually(lambda: card.panel(".cm-mergeView .bnb-moved").texts, bool)
    assert {sign.strip() for sign in signs} <= {"↕", "∥"}
    card.panel("[data-display=unified]").click()
    try:
        signs = eventually(lambda: card.panel(".bnb-diff .bnb-moved").texts, bool)
        assert card.panel(".cm-mergeView").count == 0
        assert {sign.strip() for sign in signs} <= {"↕", "∥"}
        titles = card.panel(".bnb-diff .bnb-moved")[0].run(
            "(one) => [...one.closest('.cm-content').querySelectorAll('.bnb-moved')].map((e) => e.title)"
        )
        assert all(re.match(r"This op (moved|is a copy of op \d+|has \d+ more cop)", title) for title in titles)
        card.screenshot(screenshots / "diff-unified.png")
    finally:
        card.panel("[data-display=unified]").click()


@pytest.mark.full
def test_the_life_of_an_op_leads_back_to_parse_and_forward_to_machine_code(card, screenshots):
    card.open("Passes")
    choose(card, card.panel(".bnb-stage-name").texts[-1])
    card.panel("[aria-label='Compare with']").choose("nothing")
    code = card.listing("IR")
    number = eventually(
        lambda: next((i for i, line in enumerate(code.code.split("\n"), 1) if "= dot" in line), 0), bool
    )
    code.line(number).click()
    life = eventually(lambda: card.panel(".bnb-life-cell").texts, lambda found: any("SASS" in one for one in found))
    assert " parse: " in life[0] and any("PTX: " in one for one in life), life
    card.screenshot(screenshots / "op-life.png")
    card.panel(".bnb-life-cell >> nth=0").click()
    assert card.panel(".bnb-stage[aria-selected=true] .bnb-stage-name").text == "parse"
    lit = [code.code.split("\n")[i - 1] for i in eventually(lambda: code.lit, bool)]
    assert any("dot" in line for line in lit), lit
    card.panel(".bnb-life-cell").having("SASS").click()
    machine = card.listing("Machine code")
    eventually(lambda: machine.code, lambda text: "HMMA" in text)
    machine.line(machine.find("HMMA"))
    lit = [machine.code.split("\n")[i - 1] for i in eventually(lambda: machine.lit, bool)]
    assert any("HMMA" in line for line in lit), lit


@pytest.mark.full
def test_every_line_has_the_colour_of_its_source_line_and_the_ruler_has_all_of_them(card, screenshots):
    panel = card.open("Code")
    panel("[aria-label='Level on the right']").choose("PTX")
    code = card.listing("Machine code")
    eventually(lambda: code.code, lambda text: "ld.global" in text or "cp.async" in text)
    toggle = panel("button:text-is('Colour by line')")
    toggle.click()
    try:
        colours = "(content) => [...content.querySelectorAll('.cm-line')].map((l) => (l.className.match(/colour-(\\d)/) ?? [])[1])"
        ir = card.listing("IR")
        store = ir.line(ir.find("store"))
        colour = store.run("(line) => line.className.match(/bnb-line-colour-(\\d)/)[1]")
        line = code.line(code.find("st.global"))
        assert line.run("(line) => line.className.match(/bnb-line-colour-(\\d)/)[1]") == colour
        assert len(set(ir.run(colours)) - {None}) > 1
        assert panel(".bnb-ruler rect").count > 4
        card.screenshot(screenshots / "colours-by-line.png")
    finally:
        toggle.click()


@pytest.mark.full
def test_words_of_the_ir_are_explained_with_a_picture_of_a_layout(card):
    card.open("Passes")
    choose(card, "layout_assignment")
    card.panel("[aria-label='Compare with']").choose("nothing")
    card.panel(".bnb-sentence").having("got a layout").wait()  # the listing moves down below the sentences
    code = card.listing("IR")
    number = eventually(lambda: next((i for i, t in enumerate(code.code.split("\n"), 1) if "= dot" in t), 0), bool)
    text = code.code.split("\n")[number - 1]
    tip = card.page(".cm-tooltip .bnb-tooltip")

    def hovered(word):
        """Points at a word, and returns the texts of the tooltips that open."""
        line = code.line(number)
        line.scroll()
        x, y = line.run(PLACE_OF_WORD, word)
        card.page.move(x - 3, y)
        card.page.move(x, y)
        time.sleep(0.4)  # a tooltip opens after 0.2 s
        return tip.texts

    for word, wanted in (("dot", "matrices"), (re.search(r"#\w+", text)[0], "warp")):
        eventually(lambda word=word: hovered(word), lambda found, wanted=wanted: any(wanted in one for one in found))
        if word.startswith("#"):
            assert tip(".bnb-layout-picture rect").count > 0
        card.leave()
        tip.wait("detached")


def test_lines_of_a_helper_in_another_cell_light_up_there_and_back(card, notebook, screenshots):
    panel = card.open("Code")
    panel("[aria-label='Level on the right']").choose("PTX")
    ir, code = card.listing("IR"), card.listing("Machine code")
    eventually(lambda: code.code, lambda text: "st.global" in text)
    call = lines_of(PRODUCT, "activated(total")
    ir.line(ir.find("max")).hover()
    eventually(lambda: notebook.lit(HELP), lambda lit: lit == lines_of(HELPER, "tl.maximum"))
    assert notebook.lit(FIRST) == call
    card.leave()
    eventually(lambda: (notebook.lit(HELP), notebook.lit(FIRST)), lambda lit: lit == ([], []))
    code.line(code.find("st.global")).hover()
    body = lines_of(HELPER, "scaled")[:1] + lines_of(HELPER, "tl.maximum")
    eventually(lambda: notebook.lit(HELP), lambda lit: lit == body)
    card.leave()
    eventually(lambda: notebook.lit(HELP), lambda lit: lit == [])
    notebook.show(HELP)(".jp-InputArea .cm-line")[body[0] - 1].hover()
    lit = eventually(lambda: [ir.code.split("\n")[i - 1] for i in ir.lit], bool)
    assert any("scaled" in line or "mul" in line for line in lit) and not any("max" in line for line in lit), lit
    eventually(lambda: notebook.lit(FIRST), lambda lit: lit == call)
    card.leave()


@pytest.mark.full
def test_a_helper_whose_cell_is_rendered_after_the_card_lights_up_the_card(notebook, lab, page):
    """JupyterLab renders the cells of a long notebook when they come near the visible part."""
    notebook.save()
    saved = json.loads((lab.folder / notebook.path).read_text("utf-8"))["cells"]
    between = [code_cell("\n".join(f"# {cell}, {line}" for line in range(40))) for cell in range(80)]
    cells = [saved[0], saved[FIRST], *between, saved[HELP]]
    last = len(cells) - 1
    later = Notebook(page, lab.write("later.ipynb", cells), start=False)
    later.card(1).open("Code")
    assert page.run("(cell) => blocknb.cell(cell).editor === null", last)
    later.show(last)(".jp-InputArea .cm-line")[lines_of(HELPER, "tl.maximum")[0] - 1].click()
    lit = "(cell) => blocknb.cell(cell).node.querySelectorAll('.bnb-card .cm-line.bnb-highlight').length"
    eventually(lambda: page.run(lit, 1), bool)
    later.close(shut_down=False)


@pytest.mark.full
def test_two_versions_and_targets_stand_side_by_side_at_every_level(notebook, screenshots):
    page = notebook.card(COMPARED)
    panel = page.open("Compare")
    facts = dict(zip(panel("tbody th").texts, panel("tbody tr").texts, strict=True))
    assert "sm_80" in facts["target"] and "sm_90a" in facts["target"]
    said = panel(".bnb-parting").until_text("First difference")
    assert "source" in said
    for level, wanted in (("PTX", "wgmma"), ("SASS", "TMA"), ("LLVM", "instructions instead of")):
        label = next(one for one in panel("[aria-label=Level] option").texts if one.split()[0] == level)
        panel("[aria-label=Level]").choose(label)
        sides = [panel(f".cm-merge-{side} .cm-content") for side in "ab"]
        eventually(lambda sides=sides: [one.count for one in sides], lambda found: found == [1, 1])
        eventually(lambda: panel(".bnb-sentence").texts, lambda told, wanted=wanted: any(wanted in one for one in told))
    page.screenshot(screenshots / "compare-versions.png")


@pytest.mark.full
def test_a_comparison_is_exported_as_one_file_that_works_offline(notebook, lab, browser):
    cell = notebook.add(
        "made = blocknb.compare(product, targets=['sm_80', 'sm_90a'])\nmade.export_html('compared.html')\nmade"
    )
    notebook.run(cell)
    shown = notebook.card(cell)
    assert shown.open("Compare")("thead th").texts
    alone = browser.open(SCRIPT)
    alone.set_offline(True)
    alone.goto((lab.folder / "compared.html").as_uri())
    page = Card(alone, ".bnb-card")
    page.wait()
    panel = page.open("Compare")
    assert panel("thead th").texts == shown.panel("thead th").texts
    for level in ("PTX", "SASS"):
        panel("[aria-label=Level]").choose(level)
        eventually(lambda: panel(".bnb-sentence").texts, lambda told: any("mma" in one.lower() for one in told))
    assert alone.requested() == [(lab.folder / "compared.html").as_uri()]
    assert complaints(alone) == []
    alone.close()
