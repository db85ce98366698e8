"""Accessibility: operation by keyboard, light and dark themes, signs in addition to colours, and the findings of axe-core.

The tests store a screenshot of every view in both themes in build/screenshots.
"""

from __future__ import annotations

import time

import pytest
from browser import eventually
from laboratory import ROOT, THEMES, VIEWS, change_theme
from softmax import LAUNCH

from blocknb import learn

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
MEASURED = ("Sweep", "Roofline", "Timeline")  # the views whose content is in cards of their own
OWN = tuple(title for title in VIEWS if title not in MEASURED)  # the views with content in the card of version 3

PRODUCT = """from blocknb.bench.suite.steps import STEPS, matmul, run_step
run_step(matmul, STEPS[-1], *(np.zeros((256, 256), np.float16) for _ in range(3)))"""


ADD = learn.exercise("add-1")
#: Cells whose cards are a comparison, verdicts on a wrong and on a right answer of the course, and a question.
OTHERS = {
    "Compare": "%blockdiff softmax@1 softmax@3",
    "Verdict on a wrong answer": f"%%blockkernel --exercise add-1\n{ADD.solution.replace('at < n', 'at <= n')}",
    "Verdict on a right answer": f"%%blockkernel --exercise add-1\n{ADD.solution}",
    "Question": f"%%blockkernel --predict predict-blocks\n{LAUNCH.format(options='')}",
}


@pytest.fixture(scope="module")
def measured(softmax_notebook):
    """The numbers of the cells whose cards have a sweep, a roofline and a timeline."""
    notebook = softmax_notebook.front()
    sweep = notebook.add(
        f"%%blockkernel --sweep BLOCK=1024,2048,4096 --baseline np.exp(x)\n{LAUNCH.format(options='')}"
    )
    roofline = notebook.add("%roofline softmax --baseline np.exp(x)")
    timeline = notebook.add(f"%%blockkernel\n{PRODUCT}")
    notebook.run(sweep, roofline, timeline)
    return {"Sweep": sweep, "Roofline": roofline, "Timeline": timeline}


@pytest.fixture(scope="module")
def others(softmax_notebook):
    """The numbers of the cells of OTHERS."""
    notebook = softmax_notebook.front()
    cells = {title: notebook.add(source) for title, source in OTHERS.items()}
    notebook.run(*cells.values())
    return cells


@pytest.fixture
def views(softmax, measured):
    """A function that opens a nonempty view by its title and returns its card. The teardown ends the comparison of passes."""

    def opened(title):
        card = softmax.card(3) if title in OWN else softmax.notebook.card(measured[title])
        card.open(title)
        READY.get(title, lambda card: None)(card)
        return card

    yield opened
    softmax.card(3).open("Passes")("[aria-label='Compare with']").choose("nothing")


READY = {
    "Code": lambda card: eventually(lambda: card.listing("Machine code").code, lambda text: "ex2" in text),
    "Passes": lambda card: compared(card),
    "Tiles": lambda card: eventually(lambda: card.panel(".bnb-sheet rect").count, bool),
    "Timeline": lambda card: eventually(lambda: card.panel("[data-span]").count, bool),
    "Launch": lambda card: card.panel("[data-part=where]").until_text("program"),
    "Step": lambda card: card.panel(".bnb-step-now")[0].wait(),
    "Footprint": lambda card: card.panel("canvas")[0].wait(),
    "History": lambda card: card.panel(".bnb-summary").wait(),
}


def compared(card):
    """Compares two passes, which is the Passes view with the most content."""
    card.panel('.bnb-stage[data-name="coalesce"]').click()
    card.panel("[aria-label='Compare with']").choose("parse")
    card.panel(".bnb-summary").until_text("Ops:")


@pytest.fixture(params=sorted(THEMES))
def theme(request, page):
    change_theme(page, request.param)
    yield request.param
    change_theme(page, "light")


def problems_of(card):
    """What axe-core finds in a card."""
    return card.run(
        "async (card) => (await axe.run(card, { resultTypes: ['violations'] })).violations"
        ".map((v) => `${v.id}: ${v.nodes.map((n) => n.html + ' ' + n.failureSummary).join(' | ')}`)"
    )


def test_axe_finds_nothing_in_any_view_and_theme(theme, views, page, screenshots, request):
    """A quick run looks at each view in one of the two themes."""
    page.run("(script) => { (0, eval)(script); }", AXE.read_text("utf-8"))
    found = {}
    titles = (*OWN, *MEASURED)
    for title in titles if request.config.getoption("--full") else titles[sorted(THEMES).index(theme) :: 2]:
        card = views(title)
        card.screenshot(screenshots / f"{title.lower()}-{theme}.png")
        if problems := problems_of(card):
            found[title] = problems
    assert found == {}


@pytest.mark.full
def test_axe_finds_nothing_in_a_comparison_and_in_the_head_of_the_course(theme, softmax, others, page, screenshots):
    page.run("(script) => { (0, eval)(script); }", AXE.read_text("utf-8"))
    found = {}
    for title, cell in others.items():
        card = softmax.notebook.card(cell)
        if title == "Compare":
            card.open("Compare")(".bnb-parting").until_text("First difference")
        else:
            card.until_state("live")
        card.screenshot(screenshots / f"{title.lower().replace(' ', '-')}-{theme}.png")
        if problems := problems_of(card):
            found[title] = problems
    assert found == {}


#: The controls of the open panel that the keyboard has to reach. A group of radio buttons counts once.
CONTROLS = """(panel) => {
  const wanted = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
  const all = [...panel.querySelectorAll(wanted)].filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0);
  const names = new Set();
  return all.filter((e) => e.type !== 'radio' || (e.checked && !names.has(e.name) && names.add(e.name))).map((e, i) => {
    e.dataset.reach = i;
    return e.outerHTML.slice(0, 120);
  });
}"""
FOCUSED = "() => document.activeElement.dataset.reach ?? ''"
IN_TABS = "() => document.activeElement.getAttribute('role') === 'tab' && document.activeElement.textContent"


def settled(title, card):
    """The controls of the open panel, once a live kernel has filled it: the same ones half a second later."""
    if title in ("Launch", "Step", "Footprint", "History"):  # the kernel computes these first
        READY[title](card)
    panel = card.panel
    found = panel.run(CONTROLS)
    while True:
        time.sleep(0.5)
        before, found = found, panel.run(CONTROLS)
        if found == before:
            return found


def reach_all(title, card):
    """Presses Tab from a tab until each control of its panel had the focus. A panel that the kernel's answer repaints meanwhile is begun
    again."""
    while True:
        controls, reached = settled(title, card), set()
        while len(reached) < len(controls):
            card.page.press("Tab")
            if not card.page.run("() => !!document.activeElement.closest('.bnb-card')"):
                break
            reached = (reached | {card.page.run(FOCUSED)}) - {""}
        else:
            return
        known = card.panel.run("(panel) => panel.querySelectorAll('[data-reach]').length")
        assert known < len(controls) or card.panel.run(CONTROLS) != controls, (
            title,
            [c for i, c in enumerate(controls) if str(i) not in reached],
        )
        card(f'role=tab[name="{title}"]').focus()


def test_the_keyboard_alone_reaches_every_view_and_control(softmax, page):
    card = softmax.card(3)
    page.run("() => { blocknb.panel().content.mode = 'command'; blocknb.cell(3).node.focus(); }")
    for _ in range(40):
        page.press("Tab")
        if page.run(IN_TABS):
            break
    titles = card.titles
    assert page.run(IN_TABS) in titles
    page.press("Home")
    for title in titles:
        assert page.run(IN_TABS) == title
        reach_all(title, card)
        while page.run(IN_TABS) != title:
            page.press("Shift+Tab")
        page.press("ArrowRight")
    page.press("Tab", "Escape")
    eventually(lambda: page.run("() => !!document.activeElement.closest('.bnb-card')"), lambda inside: not inside)
    assert page.run("() => !!document.activeElement.closest('.jp-Notebook')")
    cells = page.run("() => blocknb.panel().content.widgets.length")
    page.press("j", "k")  # the notebook's keys work again, and keys pressed in the card did not change the notebook
    assert page.run("() => blocknb.panel().content.widgets.length") == cells


def test_no_information_depends_on_colour_alone(views):
    code = views("Code").listing("Machine code")
    code.line(code.find("ex2.approx")).hover()
    shadow = "(line) => getComputedStyle(line).boxShadow"
    assert "inset" in code(".cm-line.bnb-highlight")[0].run(shadow)
    views("Code").leave()
    passes = views("Passes")
    passes.leave()
    underlined = "(word) => getComputedStyle(word).textDecorationLine"
    assert passes.panel(".bnb-word")[0].run(underlined) == "underline"
    assert all(sign in ("•", "○", "▲") for sign in passes.panel(".bnb-notes .bnb-sign").texts)
    assert views("Passes")(".bnb-state").run("(e) => getComputedStyle(e, '::before').content") == '"● "'
    tiles = views("Tiles").panel
    cells = tiles(".bnb-sheet .bnb-cell").count
    numbers = tiles(".bnb-sheet .bnb-cell-text, .bnb-sheet .bnb-off-text").texts
    assert cells == len(numbers) > 30 and all(numbers)
    assert {"✗ wrong", "✓ correct", "not checked"} <= set(views("History").panel("tbody td").texts)
    look = "(mark) => mark.getAttribute('d') + (mark.getAttribute('stroke-dasharray') ?? '')"
    roofline = views("Roofline").panel
    kinds = [
        roofline(f"svg g.bnb-kind-{kind}:not(.bnb-issued) path")[0].run(look)
        for kind in ("kernel", "version", "baseline")
    ]
    assert len(set(kinds)) == 3
    sweep = views("Sweep").panel
    lines = sweep("svg .bnb-line")
    assert len({lines[i].attribute("stroke-dasharray") for i in range(2)}) == 2


@pytest.fixture
def forced_colours(page):
    """The page as a high-contrast mode of the system shows it."""
    page.emulate(forcedColors="active")
    yield
    page.emulate(forcedColors=None)


@pytest.mark.usefixtures("forced_colours")
def test_marks_and_pictures_show_in_forced_colours(views, screenshots):
    background = "(element) => getComputedStyle(element).backgroundColor"
    outline = "(element) => getComputedStyle(element).outlineStyle"
    code = views("Code").listing("Machine code")
    code.line(code.find("ex2.approx")).hover()
    assert code(".cm-line.bnb-highlight")[0].run(outline) == "solid"
    views("Code").leave()
    passes = views("Passes")
    selected, other = (passes.panel(f".bnb-stage[aria-selected='{on}']")[0].run(background) for on in ("true", "false"))
    assert selected != other
    assert passes.panel(".cm-changedLine")[0].run(outline) in ("solid", "dashed")
    passes.screenshot(screenshots / "passes-forced-colours.png")
    cells = (
        "(sheet) => new Set([...sheet.querySelectorAll('.bnb-cell')].map((cell) => getComputedStyle(cell).fill)).size"
    )
    assert views("Tiles").panel(".bnb-sheet").run(cells) > 1
    text = "(text) => getComputedStyle(text).fill"
    assert views("Roofline").panel("svg text")[0].run(text) == passes.run("(card) => getComputedStyle(card).color")
