"""The tables of docs/features.md are complete, and every test that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "features.md").read_text("utf-8")
ROW = re.compile(r"^\| (?:(\d+) \| )?([^|]+) \| ([^|]+) \| `([^`|]+)` \|$", re.MULTILINE)
ROWS = [(int(number or 0), feature, where, test) for number, feature, where, test in ROW.findall(PAGE)]


def exists(test: str) -> bool:
    """Tells whether a file has a test: a function of a Python file, or a title of a TypeScript file."""
    file, _, name = test.partition("::")
    text = (ROOT / file).read_text("utf-8") if (ROOT / file).is_file() else ""
    return f"def {name}(" in text if file.endswith(".py") else bool(name) and f"'{name}'" in text


def test_every_named_test_exists():
    assert [test for *_, test in ROWS if not exists(test)] == []
    assert not exists("tests/test_features.py::no_such_test") and not exists(
        "labextension/tests/access_advice.test.ts::"
    )


def test_no_line_of_a_table_is_overlooked():
    lines = [
        line for line in PAGE.splitlines() if line.startswith("|") and not re.match(r"\|(?: \|)? feature|\|---", line)
    ]
    assert len(lines) == len(ROWS)


def test_all_features_of_the_peers_and_those_of_no_peer_are_there():
    numbers = [number for number, *_ in ROWS]
    assert numbers[:43] == [*range(1, 33), *range(1, 12)]
    assert len(ROWS) >= 46
    features = [feature for _, feature, _, _ in ROWS]
    assert len(set(features)) == len(features)
