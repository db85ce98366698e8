"""The saved card of a distributed launch, without a kernel: a row for each worker, and a link to the dashboard."""

from __future__ import annotations

import gzip
import json

from laboratory import MIME, Notebook, code_cell
from pictures import DOCUMENT

HEADS = ["worker", "device", "launches", "compile", "median launch", "all launches", "bytes moved"]
COLUMNS = ("worker", "device", "launches", "compile_ms", "ms", "total_ms", "bytes")
SAVED = {
    "dashboard": "http://127.0.0.1:8787/status",
    "rows": [
        dict(zip(COLUMNS, ("tcp://10.0.0.1:1", "NVIDIA H200", 3, 42, 0.5, 1.6, 3 << 20), strict=True)),
        dict(zip(COLUMNS, ("tcp://10.0.0.2:1", "CPU", 1, None, 7, 7, 512), strict=True)),
    ],
}


def rows(card):
    """The texts of the table, row by row."""
    table = card.open("Workers")(".bnb-table")
    assert table("thead th").texts == HEADS
    return [table(f"tbody tr >> nth={i}")("th, td").texts for i in range(table("tbody tr").count)]


def test_a_saved_card_has_a_row_for_each_worker_and_a_link_to_the_dashboard(lab, page, screenshots):
    document = {**json.loads(gzip.decompress(DOCUMENT.read_bytes())), "workers": SAVED}
    output = {"output_type": "display_data", "data": {MIME: document, "text/plain": ["a card"]}, "metadata": {}}
    notebook = Notebook(
        page, lab.write("workers.ipynb", [code_cell("%%blockkernel --client client", [output])]), start=False
    )
    card = notebook.card(0)
    assert rows(card) == [
        ["tcp://10.0.0.1:1", "NVIDIA H200", "3", "42 ms", "500 µs", "1.6 ms", "3 MiB"],
        ["tcp://10.0.0.2:1", "CPU", "1", "from the cache", "7 ms", "7 ms", "512 B"],
    ]
    card.panel.until_text("4 launches on 2 workers")
    link = card.panel("a")
    assert (link.attribute("href"), link.attribute("target")) == (SAVED["dashboard"], "_blank")
    card.screenshot(screenshots / "workers-saved.png")
    notebook.close(shut_down=False)
