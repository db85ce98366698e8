"""Each use in docs/cluster.md and docs/large_arrays.md takes fewer than 15 lines, and the one of a large array runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = 15


def code(page: str, section: str) -> list[str]:
    """The examples in a section of a page of the docs."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [block.strip() for block in PYTHON.findall(body)]


USES = {
    "tune": code("cluster.md", "Tune on all workers"),
    "sweep": code("large_arrays.md", "A sweep on every kind of machine"),
    "map_blocks": code("large_arrays.md", "An array that does not fit"),
}


@pytest.mark.parametrize("use", USES)
def test_a_use_of_a_cluster_takes_fewer_than_fifteen_lines(use: str) -> None:
    lines = [line for block in USES[use] for line in block.splitlines() if line.strip()]
    assert 5 < len(lines) < LINES


def ran(name: str, source: str, folder: Path) -> str:
    """What a script prints. It runs in a folder and with a cache of its own."""
    file = folder / name
    file.write_text(source, encoding="utf-8")
    own = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "BLOCKNB_CACHE_DIR": str(folder / "cache"),
    }
    done = subprocess.run(
        [sys.executable, file], cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_the_page_streams_an_array_through_two_workers(tmp_path: Path) -> None:
    (source,) = USES["map_blocks"]
    rows = [float(text) for text in re.findall(r"[\d.]+", ran("stream.py", source, tmp_path)) if text != "..."]
    assert len(rows) > 3 and all(abs(row - 1) < 1e-4 for row in rows)
