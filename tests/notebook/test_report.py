"""`blocknb report`: one page with the cards of a notebook, which no output of a stranger can extend with markup."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blocknb import cli
from blocknb.errors import LaunchError
from blocknb.notebook import export, report
from blocknb.notebook.document import MIME

DOC = {
    "schema": 4,
    "kind": "bench",
    "kernel": "</script><script>alert(1)</script>",
    "model": "live",
    "bench": {"rounds": 1, "rows": []},
}


@pytest.fixture(autouse=True)
def viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_viewer", lambda: ("/* style */", "/* viewer */"))


def notebook(folder: Path, *outputs: Any, **more: Any) -> Path:
    cells = [{"cell_type": "markdown", "source": "text"}]
    cells += [
        {"cell_type": "code", "source": ["%%blockkernel <b>\n", "x"], "execution_count": 7, "outputs": [o]}
        for o in outputs
    ]
    path = folder / "my.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": cells, **more}), "utf-8")
    return path


def test_the_page_has_each_card_under_its_cell_and_nothing_else_of_the_notebook(tmp_path: Path, capsys: Any) -> None:
    card = {"output_type": "display_data", "data": {MIME: DOC, "text/html": "<b>mine</b>"}}
    assert cli.main(["report", str(notebook(tmp_path, card, card, {"output_type": "stream", "text": "no"}))]) == 0
    page = (tmp_path / "my.html").read_text("utf-8")
    assert str(tmp_path / "my.html") in capsys.readouterr().out
    found = re.findall(r'<script type="application/vnd.blocknb.v1\+json">(.*?)</script>', page, re.DOTALL)
    assert [json.loads(text) for text in found] == [{**DOC, "model": None, "deferred": False}] * 2
    assert page.count("<h2") == 2 and "[7]" in page and "%%blockkernel &lt;b&gt;" in page
    assert "<b>mine" not in page and "<script>alert" not in page and "default-src 'none'" in page


def test_what_is_no_notebook_with_cards_is_refused(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(LaunchError, match="has no saved cards"):
        report.write(notebook(tmp_path))
    for wrong in ({"nbformat": 3}, {"cells": 3}):
        with pytest.raises(LaunchError, match="no notebook of version 4"):
            report.write(notebook(tmp_path, **wrong))
    path = notebook(tmp_path, {"data": {MIME: DOC}})
    with pytest.raises(LaunchError, match="would replace the notebook"):
        report.write(path, path)
    path.write_text("{")
    assert cli.main(["report", str(path)]) == 1 and cli.main(["report", str(tmp_path / "none.ipynb")]) == 1
    said = capsys.readouterr().err
    assert "is no notebook" in said and "No such file" in said
