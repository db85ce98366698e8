"""A class: projector mode, links that hold the state of a card, and exported animations, in exported pages and in notebooks."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pytest
from browser import Browser, Page, eventually
from laboratory import EXTENSION, ROOT, SCRIPT, THEMES, Card, Notebook, change_theme, complaints
from PIL import Image
from test_journey_access import AXE, OWN, problems_of

from blocknb.notebook import export

FIXTURE = ROOT / "labextension" / "tests" / "fixtures" / "learn.json"
#: Keeps each file that the page saves, as base64, and its name.
SAVED = """() => { window.saved = []; const make = URL.createObjectURL, click = HTMLAnchorElement.prototype.click; let last;
URL.createObjectURL = (blob) => { last = blob; return make(blob); };
HTMLAnchorElement.prototype.click = function () { const { download } = this; const reader = new FileReader();
reader.onload = () => window.saved.push([download, reader.result.split(',')[1]]); reader.readAsDataURL(last); }; }"""
#: Whether an element covers the window, and whether anything in it is wider than the window.
COVERS = """(card) => { const { left, top, right, bottom } = card.getBoundingClientRect();
return [left, top, Math.round(right - innerWidth), Math.round(bottom - innerHeight), card.scrollWidth > card.clientWidth]; }"""
ON_TOP = "(card) => card.contains(document.elementFromPoint(innerWidth / 2, innerHeight / 2))"


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a page with a saved card of the course."""
    (tmp_path / "labextensions").mkdir()
    (tmp_path / "labextensions" / "blocknb").symlink_to(EXTENSION)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    page = tmp_path / "page.html"
    page.write_text(export.filled("a card", export.script(json.loads(FIXTURE.read_text("utf-8"))), ""), "utf-8")
    return page.as_uri()


def shown(page: Page, address: str) -> Card:
    page.goto(address)
    card = Card(page, ".bnb-card")
    card.wait()
    return card


def press_to(page: Page, card: Card, title: str) -> None:
    """Presses `t` until a tab is open."""
    passed = []
    for _ in card.titles:
        passed.append(card('[role=tab][aria-selected="true"]').text)
        if passed[-1] == title:
            return
        page.press("t")
    pytest.fail(f"the key t does not reach the tab {title}, but {passed}")


def saved(page: Page, card: Card, kind: str) -> bytes:
    """Saves the open Launch view as an animation."""
    page.run(SAVED)
    card.panel("[data-tool=unit]").choose("program")
    card.panel("[data-tool=export]").click()
    card.panel("[aria-label=Format]").choose(kind)
    card.panel("[aria-label=Size]").choose("small")
    card.panel(".bnb-export button:has-text('Save')").click()
    ((name, data),) = eventually(lambda: page.run("() => window.saved"), len)
    assert name == f"scale_launch_by_program.{'gif' if kind == 'GIF' else 'webm'}"
    assert "4 frames" in card.panel(".bnb-export [role=status]").text
    return base64.b64decode(data)


def test_a_link_opens_an_exported_page_at_a_step_in_projector_mode(
    browser: Browser, exported: str, request: pytest.FixtureRequest
) -> None:
    page = browser.open(SCRIPT, viewport={"width": 1280, "height": 720})
    link = f"{exported}#card-1=v1;launch;target:sm_90a;by:program;step:2;projector:on"
    card = shown(page, link)
    where = card.panel("[data-part=where]")
    where.until_text("number 3 of 4")
    assert card.run(COVERS) == [0, 0, 0, 0, False] and card.run(ON_TOP)
    if request.config.getoption("--full"):
        page.run("(script) => { (0, eval)(script); }", AXE.read_text("utf-8"))
        assert problems_of(card) == []
    page.press("ArrowLeft")
    where.until_text("number 2 of 4")
    page.press("Escape")
    assert "bnb-projector" not in (card.attribute("class") or "")
    film = Image.open(io.BytesIO(saved(page, card, "GIF")))
    assert film.n_frames == 4 and film.info["loop"] == 0
    film.seek(1)
    second = film.convert("RGB").tobytes()
    film.seek(2)
    assert film.info["duration"] == 250 and film.convert("RGB").tobytes() != second
    assert page.errors() == []
    page.close()


@pytest.mark.full
def test_states_of_an_exported_page_are_copied_and_followed(
    browser: Browser, exported: str, screenshots: Path, tmp_path: Path
) -> None:
    page = browser.open(SCRIPT, colorScheme="dark", viewport={"width": 1920, "height": 1080})
    card = shown(page, exported)
    page.run("() => { window.copied = ''; navigator.clipboard.writeText = (text) => { window.copied = text; }; }")
    card("button:has-text('IR and machine code')").click()
    card.open("Passes")(".bnb-stage").having("coalesce").click()
    card.panel("[aria-label='Compare with']").choose("parse")
    card("button:has-text('Copy link')").click()
    link = eventually(lambda: page.run("() => window.copied"), bool)
    fragment = link.removeprefix(exported)
    assert fragment.startswith("#card-1=v1;passes;target:sm_90a;pass:coalesce.") and fragment.endswith(";with:parse.0")
    page.run("(fragment) => { location.hash = fragment; }", "#card-1=v1;step;program:0;step:3;value:at.5")
    card.panel("[data-part=where]").until_text("4 of")
    other = browser.open(SCRIPT)
    again = shown(other, link)
    again.panel(".bnb-summary").until_text("Ops:")
    assert again.panel(".bnb-stage[aria-selected=true]").attribute("data-name") == "coalesce"
    other.goto(f"{exported}#card-1=v1;passes;pass:gone.3;line:400")
    other.reload()
    again(".bnb-link-notice").until_text("no pass gone", "no line 400")
    again.screenshot(screenshots / "link-notice.png")
    other.goto("about:blank")

    card("[data-tool=projector]").click()  # a click may ask for the whole screen
    eventually(lambda: page.run("() => !!document.fullscreenElement"), bool)
    assert card.run(ON_TOP)
    for title in ("Code", "Passes", "Tiles", "Launch", "Step"):
        press_to(page, card, title)
        assert card.run(COVERS) == [0, 0, 0, 0, False], title
        if title == "Tiles":
            card.panel(".bnb-sheet .bnb-cell")[
                9
            ].hover()  # the type is large here, and the pointer finds the cell all the same
            card.panel("p.bnb-details").until_text("[9]:")
        page.screenshot(screenshots / f"projector-{title.lower()}.png")
    page.run("() => document.exitFullscreen()")  # the browser's own Escape
    eventually(lambda: card.attribute("class"), lambda names: "bnb-projector" not in names)

    card.open("Launch")
    video = saved(page, card, "WebM video")
    size = "async (data) => { const v = document.createElement('video'); v.src = 'data:video/webm;base64,' + data; "
    size += "await new Promise((done, no) => { v.onloadeddata = done; v.onerror = no; }); return [v.videoWidth, v.duration]; }"
    assert other.run(size, base64.b64encode(video).decode()) == [502, 2.75]
    assert page.errors() == [] and other.errors() == []
    page.close()
    other.close()


@pytest.mark.full
@pytest.mark.parametrize("theme", sorted(THEMES))
def test_a_live_card_is_projected_by_the_command_and_axe_finds_nothing(softmax, page, theme, screenshots):
    change_theme(page, theme)
    card = softmax.card(3)
    card.open(OWN[0])
    page.run("() => jupyterapp.commands.execute('blocknb:projector').then(() => true)")
    page.run("(script) => { (0, eval)(script); }", AXE.read_text("utf-8"))
    found = {}
    try:
        for title in OWN:
            press_to(page, card, title)
            assert card.run(COVERS) == [0, 0, 0, 0, False] and card.run(ON_TOP), title
            page.screenshot(screenshots / f"projector-{title.lower()}-{theme}.png")
            if problems := problems_of(card):
                found[title] = problems
    finally:
        page.press("Escape")
        change_theme(page, "light")
    assert found == {}
    assert "bnb-projector" not in (card.attribute("class") or "")


@pytest.mark.full
def test_a_link_to_a_notebook_shows_the_state_in_a_new_page(softmax, page, browser, lab):
    card = softmax.card(2)
    page.run("() => { window.copied = ''; navigator.clipboard.writeText = (text) => { window.copied = text; }; }")
    card.open("Launch")("[data-part=where]").until_text("program")
    card.panel("[data-tool=unit]").choose("program")
    card.panel("[aria-label='Step']").press("End", "ArrowLeft")
    card.panel("[data-part=where]").until_text("program 62")
    card("button:has-text('Copy link')").click()
    link = eventually(lambda: page.run("() => window.copied"), bool)
    assert ";by:program;step:62" in link
    softmax.notebook.save()
    fresh = browser.open(SCRIPT)
    fresh.goto(link.replace("?", "?token=t&", 1))
    fresh.until("() => !!window.jupyterapp")
    fresh.run("() => jupyterapp.restored.then(() => true)")
    again = Card(fresh, f'.jp-Cell[data-windowed-list-index="{2}"] .bnb-card')
    again.wait()
    again.panel("[data-part=where]").until_text("program 62")
    assert Notebook.in_front(fresh).path == softmax.path
    fresh.close()
    # JupyterLab logs the kernel's messages to the comms that the other page has opened.
    assert all("Comm not found for comm id" in error for error in complaints(page))
