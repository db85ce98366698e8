"""An untrusted notebook of another person: bombs, circles and documents that no kernel writes."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from laboratory import MIME, ROOT, Notebook, code_cell

HASH = "0123456789abcdef"
BAD = "<img src=x onerror=window.pwned=1><script>window.pwned=2</script>"


def packed(content: Any) -> str:
    return base64.b64encode(gzip.compress(json.dumps(content).encode(), 9)).decode()


def output(change: Any) -> dict[str, Any]:
    """An output with a changed document of a real kernel, and static HTML."""
    doc = json.loads((ROOT / "labextension" / "tests" / "fixtures" / "scale.json").read_text("utf-8"))
    change(doc)
    data = {MIME: doc, "text/html": "<p>the static card</p>", "text/plain": "card"}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def with_listing(text: str, **more: str):
    def change(doc: dict[str, Any]) -> None:
        doc["blobs"] |= {HASH: text, **more}
        doc["show"] = ["code"]
        for view in doc["views"]:
            view["code"] = {"llvm": HASH}
            for stage in view.get("stages", ()):
                stage["text"] = HASH

    return change


def no_shape(doc: dict[str, Any]) -> None:
    doc["facts"] = [["grid", {"toString": BAD}]]


def markup(doc: dict[str, Any]) -> None:
    doc["kernel"] = BAD
    doc["facts"] = [[BAD, f"`{BAD}`"]]


def test_a_notebook_of_a_stranger_neither_fills_the_memory_nor_runs_scripts(lab, page):
    bomb = packed({"text": "x" * (1 << 26), "lines": [0], "ops": [-1]})
    circle = f"{packed([[0, 1]])} {HASH}"
    assert len(bomb) < 100_000
    changes = (with_listing(bomb), with_listing(circle), no_shape, markup)
    cells = [code_cell(f"# {i}", [output(change)]) for i, change in enumerate(changes)]
    notebook = Notebook(page, lab.write("stranger.ipynb", cells), start=False)
    bombed = notebook.card(0)
    bombed(".bnb-notice").until_text("The text is large.", "Show it")
    assert "registers" in bombed.open("Resources").text
    notebook.card(1)(".bnb-notice").until_text("refer to each other in a circle")
    notebook.show(2)
    notebook.cell(2)(".jp-OutputArea-output").until_text("the static card")
    assert notebook.cell(2)(".bnb-card").count == 0
    assert BAD in notebook.card(3).text
    assert page.run("() => window.pwned ?? null") is None
    notebook.close(shut_down=False)
