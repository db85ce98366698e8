"""Plots and data to keep: what the page draws equals the records, plots, pages and links are saved, and a history survives a restart."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from browser import eventually
from laboratory import Card

KERNEL = """@blocknb.kernel
def copy(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

a = np.arange(100_000, dtype=np.float32)
b = np.empty_like(a)
launch = lambda n: copy[lambda meta: (blocknb.cdiv(n, meta["BLOCK"]),)](a, b, n, BLOCK=1024)
"""
DOWNLOADS = """() => { window.saved = []; const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { blob.text().then((text) => window.saved.push(text)); return make(blob); }; }"""


def heights(panel) -> list[float]:
    """The vertical places of the marks of the first series, from the bottom of the plot."""
    marks = panel("svg.bnb-plot .bnb-plot-data > .bnb-mark.bnb-series-0")
    places = [marks[i].attribute("transform") for i in range(marks.count)]
    return [352 - float(re.search(r" ([\d.]+)\)", place)[1]) for place in places]


@pytest.mark.full
def test_a_sweep_is_drawn_as_its_records_say_and_kept_as_files_pages_and_links(lab, notebook, screenshots, tmp_path):
    page = notebook.page
    setup = f"import os; os.environ['BLOCKNB_HISTORY'] = {str(tmp_path / 'history')!r}"
    notebook.run(notebook.add(setup))
    sweep = notebook.add(
        f"%%blockkernel --sweep n=2**10..2**14 --check (b[:n]==a[:n]).all() --launch launch(n)\n{KERNEL}n=4096"
    )
    notebook.run(sweep)
    card = notebook.complete(sweep)
    panel = card.open("Sweep")
    part = notebook.document(sweep)["sweep"]
    assert part["values"] == [2**k for k in range(10, 15)] and "notes" not in part
    median = part["series"][0]["median"]
    assert heights(panel) == pytest.approx([heights(panel)[-1] * v / median[-1] for v in median], abs=0.3)
    panel.screenshot(screenshots / "sweep-rate.png")
    panel("label:has-text('show') select").choose("time")
    panel("label:has-text('vertical axis') select").choose("log")
    eventually(lambda: panel("svg.bnb-plot").attribute("aria-label"), lambda text: "s over n" in text)
    panel.screenshot(screenshots / "sweep-time-log.png")

    page.run(DOWNLOADS)
    panel("button:has-text('Save CSV')").click()
    panel("button:has-text('Save SVG')").click()
    csv, svg = eventually(lambda: page.run("() => window.saved"), lambda saved: len(saved) == 2)
    assert csv.startswith("n,label,kind,ms,ms_low,ms_high,rate,") and f",{median[0]}," in csv.splitlines()[1]
    assert "<svg" in svg and "copy" in svg and "class=" not in svg
    (screenshots / "sweep.svg").write_text(svg, "utf-8")

    page.run("() => { window.copied = ''; navigator.clipboard.writeText = (text) => { window.copied = text; }; }")
    card.open("Passes")
    card.panel(".bnb-stage:has-text('simplify')")[0].click()
    card("button:has-text('Copy link')").click()
    link = eventually(lambda: page.run("() => window.copied"), bool)
    cell = page.run("(cell) => blocknb.cell(cell).model.id", sweep)
    assert re.search(rf"/lab/tree/.*\.ipynb\?blocknb=v1;passes;[^#]*pass:simplify\.\d+[^#]*#cell-id={cell}$", link)

    heat = notebook.add("found = copy.sweep(BLOCK=[256, 512, 1024], num_warps=[1, 2]); found")
    notebook.run(heat)
    cells = notebook.card(heat).panel(".bnb-cell")
    said = [cells[i].attribute("aria-label") for i in range(cells.count)]
    assert len(said) == 6 and said[0].startswith("copy, BLOCK = 256, num_warps = 1: ")
    notebook.card(heat).screenshot(screenshots / "heat-map.png")

    notebook.save()
    saved = notebook_page(lab, notebook, tmp_path)
    page.run("() => { window.saved = []; }")
    card("button:has-text('Save HTML')").click()
    assert "<!doctype html>" in eventually(lambda: page.run("() => window.saved"), lambda saved: len(saved) == 1)[0]

    notebook.restart()
    notebook.run(0, notebook.add(setup))
    again = notebook.add(f"%%blockkernel\n{KERNEL.replace('BLOCK=1024', 'BLOCK=512')}launch(4096);")
    notebook.run(again)
    history = notebook.complete(again).open("History")
    history.until_text("runs")
    assert len({run["when"] for run in notebook.document(again)["history"]["runs"]}) >= 2
    history("summary").click()
    history.screenshot(screenshots / "history-runs.png")

    report = page.browser.open()
    report.goto(f"file://{saved}#card-1=passes.simplify")
    shown = Card(report, "#card-1 .bnb-card")
    shown.wait()
    assert shown('role=tab[name="Passes"]').attribute("aria-selected") == "true"
    assert shown.panel(".bnb-stage[aria-selected=true]").text.startswith("simplify")
    eventually(lambda: report(".bnb-card").count, lambda count: count == 2)
    assert report.errors() == []
    report.close()


def notebook_page(lab, notebook, folder):
    """The page of `blocknb report`."""
    source, made = lab.folder / notebook.path, folder / "report.html"
    environment = {**os.environ, "JUPYTER_PATH": str(lab.place / "jupyter")}  # where the viewer of this tree is
    command = [sys.executable, "-m", "blocknb", "report", source, "-o", made]
    subprocess.run(command, check=True, timeout=60, env=environment)
    return made
