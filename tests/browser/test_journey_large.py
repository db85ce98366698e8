"""A kernel of thousands of ops has every stage, PTX and SASS on the live, the saved and the exported card."""

from __future__ import annotations

import json

import pytest
from browser import eventually
from laboratory import MIME, SCRIPT, Card, Notebook, complaints
from softmax import SETUP

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


def explore(card, stages):
    """Reads each stage, PTX and SASS."""
    panel = card.open("Code")
    ir, code = card.listing("IR"), card.listing("Machine code")
    for name in stages:
        panel("[aria-label='Level in the middle']").choose(f"IR after {name}")
        eventually(lambda: ir.code, lambda text: text.count("\n") > 1500 and "@unrolled" in text)
    for level, opcode in (("PTX", "ex2.approx"), ("SASS", "MUFU.EX2")):
        panel("[aria-label='Level on the right']").choose(level)
        eventually(lambda: code.code, lambda text, opcode=opcode: text.count(opcode) >= 300)
    code.line(code.find("MUFU.EX2"))  # the lines out of sight are drawn when they are scrolled to
    assert code.run("(content) => content.querySelectorAll('.cm-line').length") < 400


def test_a_kernel_of_thousands_of_ops_has_every_text(lab, browser, page, screenshots):
    notebook = Notebook(page, lab.write("large.ipynb", [SETUP, LARGE]))
    notebook.run(0, 1)
    card = notebook.complete(1)
    card.target("sm_90a")
    document = notebook.document(1)
    stages = [stage["name"] for view in document["views"] if view.get("target") == "sm_90a" for stage in view["stages"]]
    assert len(stages) > 10
    explore(card, [stages[0], stages[-1]])
    card.screenshot(screenshots / "large-live.png")
    notebook.save()
    saved = json.loads((lab.folder / "large.ipynb").read_text("utf-8"))["cells"][1]
    (stored,) = [o["data"][MIME] for o in saved["outputs"] if MIME in o.get("data", {})]
    assert len(json.dumps(stored, ensure_ascii=False).encode()) <= MOST_SAVED
    notebook.run(notebook.add("unrolled.export_html('large.html')"))
    notebook.close()

    alone = Notebook(page, lab.write("large_alone.ipynb", [saved]), start=False)
    card = alone.card(0)
    card.target("sm_90a")
    explore(card, stages)
    card.screenshot(screenshots / "large-saved.png")
    alone.close(shut_down=False)

    exported = browser.open(SCRIPT)
    exported.set_offline(True)
    exported.goto((lab.folder / "large.html").as_uri())
    card = Card(exported, ".bnb-card")
    card.wait()
    card.target("sm_90a")
    explore(card, stages)
    card.screenshot(screenshots / "large-exported.png")
    assert complaints(exported) == []
    exported.close()
