"""The states of a card: live, page reloaded, kernel restarted, page reloaded after that, no kernel, notebook not trusted."""

from __future__ import annotations

import json

import pytest
from browser import eventually
from laboratory import Notebook, complaints
from softmax import CHECK, RIGHT, SETUP, cell

KNOBS = "[data-knob='BLOCK']"


@pytest.fixture(scope="module")
def own(lab, browser):
    """A page of its own, which the tests reload."""
    page = lab.page(browser, workspace="states")
    yield page
    page.close()


@pytest.fixture
def ran(lab, own):
    """A saved notebook whose cells were run, which makes it trusted."""
    notebook = Notebook(own, lab.write("states.ipynb", [SETUP, cell(RIGHT, CHECK)]))
    notebook.run(0, 1)
    notebook.card(1).until_state("live")
    notebook.save()
    yield notebook
    Notebook(own, notebook.path).close()
    assert complaints(own) == []


def move_knob(notebook, steps=1):
    """Moves a knob of the card, and waits until the saved document names the new block size; returns its text."""
    card = notebook.card(1)
    panel = card.open("Knobs")
    panel(KNOBS).press(*["ArrowRight"] * steps)
    now = panel(KNOBS).attribute("aria-valuetext")
    eventually(lambda: notebook.document(1).get("modified", {}).get("settings"), lambda found: found == f"BLOCK={now}")
    return f"BLOCK={now}"


def test_the_five_states_of_a_card_and_its_kernel(ran, lab, browser):
    cells = ran.document(1)["launches"][-1]["constants"]["BLOCK"]
    moved = move_knob(ran)
    ran.save()

    ran.page.reload()  # the kernel keeps running
    ran.page.until("() => !!window.jupyterapp")
    ran.page.run("() => jupyterapp.restored.then(() => true)")
    ran = Notebook(ran.page, ran.path)
    ran.card(1).until_state("live")
    assert ran.document(1)["launches"][-1]["constants"]["BLOCK"] == cells  # the saved card is that of the cell
    assert ran.document(1)["modified"]["settings"] == moved  # the moved knob stands beside it
    ran.card(1).open("Knobs")
    ran.card(1).panel(".bnb-modified").until_text("Changed after the cell ran", moved)
    assert move_knob(ran, steps=2) != moved

    ran.restart()
    ran.card(1).until_state("disconnected")
    assert ran.card(1).open("Knobs")(KNOBS).attribute("disabled") is not None
    ran.card(1).panel.until_text("Knobs need a live kernel")
    ran.card(1).open("Passes")(".bnb-stage").having("layout_assignment").click()  # the saved content works
    eventually(lambda: ran.card(1).listing("IR").code, lambda text: "#" in text)
    ran.save()

    ran.page.reload()
    ran.page.until("() => !!window.jupyterapp")
    ran.page.run("() => jupyterapp.restored.then(() => true)")
    ran = Notebook(ran.page, ran.path)
    ran.card(1).until_state("disconnected")

    ran.run(0, 1)  # a new run connects the card again
    ran.card(1).until_state("live")
    move_knob(ran)
    ran.save()

    alone = lab.write("states_alone.ipynb", json.loads((lab.folder / ran.path).read_text("utf-8"))["cells"])
    without = Notebook(ran.page, alone, start=False)
    assert without.card(1).state == "saved"
    without.close(shut_down=False)


def test_a_card_connects_while_a_later_cell_still_runs(ran, tmp_path):
    connected = tmp_path / "connected"
    slow = ran.add(f"import os, time\nwhile not os.path.exists({str(connected)!r}):\n    time.sleep(0.05)")
    try:
        ran.page.run("([a, b]) => void (async () => { await blocknb.run(a); await blocknb.run(b); })()", [1, slow])
        ran.page.until("(cell) => blocknb.cell(cell).model.executionState === 'running'", slow)
        ran.card(1).until_state("live")
    finally:
        connected.touch()
    assert ran.page.run("(cell) => blocknb.ran(cell)", slow) == ""


def test_untrusted_notebook_shows_its_cards_and_contacts_no_kernel(ran, lab):
    kernel = ran.page.run("() => blocknb.panel().sessionContext.session.kernel.id")
    cells = json.loads((lab.folder / ran.path).read_text("utf-8"))["cells"]
    ran.close(shut_down=False)
    stranger = Notebook(ran.page, lab.write("stranger.ipynb", cells), kernel)
    assert ran.page.run("() => blocknb.cell(1).model.trusted") is False
    card = stranger.card(1)
    card.open("Passes")(".bnb-stage").having("layout_assignment").click()
    eventually(lambda: card.listing("IR").code, lambda text: "#" in text)
    assert card.state == "saved" and card.open("Knobs")(KNOBS).attribute("disabled") is not None
    ran.page.run("() => void jupyterapp.commands.execute('notebook:trust')")
    ran.page(".jp-Dialog .jp-mod-accept").click()
    stranger.card(1).until_state("live")
    move_knob(stranger)
    stranger.close(shut_down=False)
