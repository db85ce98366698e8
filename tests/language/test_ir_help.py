"""The help on the IR covers the op table, and the page has its newest text."""

from __future__ import annotations

import json
import re
from pathlib import Path

from blocknb.language.ir_help import ATTRIBUTES, FUNCTION, TYPES, table
from blocknb.language.ops import OPS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "labextension" / "src" / "core" / "explain" / "ir.json"


def test_every_op_and_every_attribute_has_a_text():
    assert [name for name, row in table()["ops"].items() if not row["text"].endswith(".")] == []
    assert {name for row in OPS.values() for name in row.attrs} == set(ATTRIBUTES)
    assert [text for texts in (ATTRIBUTES, FUNCTION, TYPES) for text in texts.values() if not text.endswith(".")] == []


def test_the_help_names_every_value_of_a_scheduling_barrier():
    """Besides True: the words that passes write, and that the code generator compares with."""
    code = "".join(file.read_text("utf-8") for file in (ROOT / "blocknb" / "codegen" / "gpu").glob("*.py"))
    compared = re.findall(r'barrier == "\w+"|barrier in \([^)]*\)', code)
    words = {word for text in compared for word in re.findall(r'"(\w+)"', text)}
    assert {"clock", "straight"} <= words and all(word in ATTRIBUTES["scheduling_barrier"] for word in words)
    assert all(f'"{word}"' in OPS["load"].help.ir for word in words)


def test_the_page_has_the_newest_table():
    assert json.loads(PAGE.read_text("utf-8")) == table(), "run python scripts/ir_help.py"
