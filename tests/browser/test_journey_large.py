"""A kernel of thousands of ops has every stage, PTX and SASS on the live, the saved and the exported card."""

from __future__ import annotations

import json

import pytest
from browser import PATIENCE, eventually
from laboratory import MIME, SCRIPT, Card, Notebook, complaints
from softmax import SETUP

from blocknb.notebook.blobs import read

pytestmark = pytest.mark.full  # the compilation takes most of the time

LARGE = """\
%%blockkernel --target sm_90a
@blocknb.kernel
def unrolled(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n, other=0.0)
    for i in tl.static_range(300):
        scaled = total * (1.0 + i)
        shifted = scaled - tl.load(x + at + i, mask=at + i < n, other=0.0)
        total = tl.maximum(total, shifted)
        total = total + tl.exp(-tl.abs(total))
    tl.store(out + at, total, mask=at < n)

unrolled[1,](x.reshape(-1), out.reshape(-1), x.size, BLOCK=128);"""
MOST_SAVED = 600_000


def texts_of(document):
    """The texts of the GPU's stages, PTX and SASS that a document holds, by the name of their level."""
    (view,) = [view for view in document["views"] if view.get("target") == "sm_90a"]
    blobs = {f"IR after {stage['name']}": stage["text"] for stage in view["stages"]}
    blobs |= {key.upper(): view["code"][key] for key in ("ptx", "sass")}
    return {level: read(document["blobs"], blob)["text"] for level, blob in blobs.items()}


def explore(card, texts):
    """Reads each stage, PTX and SASS."""
    card.target("sm_90a")
    panel = card.open("Code")
    ir, code = card.listing("IR"), card.listing("Machine code")
    for level, text in texts.items():
        where, listing = ("in the middle", ir) if level.startswith("IR") else ("on the right", code)
        panel(f"[aria-label='Level {where}']").choose(level)
        eventually(lambda listing=listing: listing.code, lambda shown, text=text: shown == text)
    line = code.line(code.find("MUFU.EX2"))  # the lines out of sight are drawn when they are scrolled to
    assert "MUFU.EX2" in line.text
    assert code.run("(content) => content.querySelectorAll('.cm-line').length") < 400


def test_a_kernel_of_thousands_of_ops_has_every_text(lab, browser, page, screenshots):
    notebook = Notebook(page, lab.write("large.ipynb", [SETUP, LARGE]))
    notebook.run(0, 1)
    card = notebook.card(1)
    card.until_state("live")
    eventually(lambda: notebook.document(1), lambda found: not found.get("deferred"), 4 * PATIENCE)
    texts = texts_of(notebook.document(1))
    assert len(texts) > 12
    assert all(text.count("\n") > 1500 and "@unrolled" in text for level, text in texts.items() if "IR" in level)
    assert all(texts[level].count(op) >= 300 for level, op in (("PTX", "ex2.approx"), ("SASS", "MUFU.EX2")))
    explore(card, texts)
    card.screenshot(screenshots / "large-live.png")
    notebook.save()
    saved = json.loads((lab.folder / "large.ipynb").read_text("utf-8"))["cells"][1]
    (stored,) = [o["data"][MIME] for o in saved["outputs"] if MIME in o.get("data", {})]
    assert texts_of(stored) == texts
    assert len(json.dumps(stored, ensure_ascii=False).encode()) <= MOST_SAVED
    notebook.run(notebook.add("unrolled.export_html('large.html')"))
    notebook.close()

    alone = Notebook(page, lab.write("large_alone.ipynb", [saved]), start=False)
    card = alone.card(0)
    explore(card, texts)
    card.screenshot(screenshots / "large-saved.png")
    alone.close(shut_down=False)

    exported = browser.open(SCRIPT)
    exported.set_offline(True)
    exported.goto((lab.folder / "large.html").as_uri())
    card = Card(exported, ".bnb-card")
    card.wait()
    explore(card, texts)
    card.screenshot(screenshots / "large-exported.png")
    assert complaints(exported) == []
    exported.close()
