"""Types the first kernels of a newcomer into a new notebook, and checks every view of their cards."""

from __future__ import annotations

import json
import re

import pytest
from browser import eventually
from first_kernels import CELLS, SETUP
from laboratory import VIEWS, Notebook

#: For each kernel: instructions that the code must contain, and accesses that the Tiles view must list.
KERNELS = {
    "add": (["add.f32", "FADD"], ["load x", "load y", "store out"]),
    "softmax": (["ex2.approx", "MUFU.EX2"], ["load x", "store out"]),
    "matmul": (["wgmma.mma_async", "HGMMA"], ["async copy b"]),
}


@pytest.fixture(scope="module")
def typed(lab, shared_page):
    """A notebook created by JupyterLab's command, with cells typed and run by Shift-Enter; and the numbers of the kernel cells."""
    shared_page.run("() => blocknb.create()")
    notebook = Notebook.in_front(shared_page)
    for text in (SETUP, *(CELLS[name] for name in KERNELS)):
        notebook.type(text)
    numbers = {name: number for number, name in enumerate(KERNELS, start=1)}
    yield notebook, numbers
    notebook.close()


@pytest.mark.parametrize("name", KERNELS)
def test_every_view_of_the_first_kernels_has_its_content(typed, page, name):
    instructions, accesses = KERNELS[name]
    new, number = typed[0], typed[1][name]
    card = new.complete(number)
    assert card.titles == [*VIEWS]
    assert card(".bnb-title strong").text == name
    assert re.search(r"\d+ registers per thread", card.facts["sm_90a"]) and re.search(
        r"[\d.]+ (µs|ms)", card.facts["time"]
    )

    levels = card.open("Code")("[aria-label='Level on the right']")
    for level, instruction in zip(("PTX", "SASS"), instructions, strict=True):
        levels.choose(level)
        eventually(lambda: card.listing("Machine code").code, lambda text, word=instruction: word in text)
    assert "store" in card.listing("IR").code and "tile<" in card.listing("IR").code
    passes = card.open("Passes")
    assert {"parse", "coalesce", "layout_assignment", "barriers"} <= set(passes(".bnb-stage-name").texts)
    assert "registers per thread" in card.open("Resources").text and "occupancy" in card.panel.text
    tiles = card.open("Tiles")
    for access in accesses:
        tiles(".bnb-stage").having(access)(".bnb-verdict")[0].until_text("sectors per request")
    eventually(lambda: tiles(".bnb-sheet .bnb-cell").count, lambda count: count > 100)
    for title in ("Roofline", "Sweep", "Bench"):
        assert card.open(title)("button:text-is('Measure')").visible
    history = card.open("History")
    assert history("tbody tr").count == 1 and "There is only one version so far" in history.until_text("one version")
    sliders = card.open("Knobs")("input[type=range]")
    constants = re.findall(r"(\w+): tl\.constexpr", new.source(number))
    names = [sliders[i].attribute("data-knob") for i in range(sliders.count)]
    assert names == [*constants, "num_warps", "num_stages"]
    assert sum(len(json.dumps(output, ensure_ascii=False).encode()) for output in new.output(number)) < 160_000
