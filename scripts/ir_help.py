"""Writes the help on the IR for the page: labextension/src/core/explain/ir.json, from `blocknb.language.ir_help`.

    python scripts/ir_help.py

A Python test compares the file with the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's package, not another one that is installed
FILE = ROOT / "labextension" / "src" / "core" / "explain" / "ir.json"


def text() -> str:
    """The content of the file."""
    from blocknb.language.ir_help import table

    return json.dumps(table(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"{FILE}: {len(text())} characters")
