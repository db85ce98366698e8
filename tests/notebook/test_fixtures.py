"""The documents that the extension's tests read have the same structure as newly written ones."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blocknb.notebook import blobs

ROOT = Path(__file__).parents[2]
STORED = ROOT / "labextension" / "tests" / "fixtures"


def shape(value, path=""):
    """The paths of all values in a document; keys that are hashes, numbers or names of the kernel become "*"."""
    if isinstance(value, dict):
        free = path.endswith(("blobs", "origin", "milliseconds", "signature", "constants", "options"))
        return {p for key, inner in value.items() for p in shape(inner, f"{path}.{'*' if free else key}")} | {path}
    if isinstance(value, list):
        return {p for inner in value for p in shape(inner, f"{path}[]")} | {path}
    return {path}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A folder with the documents that scripts/fixtures.py writes in a new process."""
    folder = tmp_path_factory.mktemp("fixtures")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, ROOT / "scripts" / "fixtures.py", folder], env=environment, check=True, timeout=120)
    return folder


def test_the_page_is_tested_with_templates_as_python_stores_them(fresh):
    stored, made = (json.loads((at / "templates.json").read_text(encoding="utf-8")) for at in (STORED, fresh))
    assert stored["listing"] == made["listing"], "run python scripts/fixtures.py"
    assert blobs.unpack(stored["packed"]) == made["listing"]
    assert "templates" in json.loads(gzip.decompress(base64.b64decode(stored["packed"])))


def test_the_page_and_matplotlib_are_tested_with_the_same_numbers(fresh):
    stored, made = (json.loads((at / "plotted.json").read_text(encoding="utf-8")) for at in (STORED, fresh))
    assert stored == made, "run python scripts/fixtures.py"


@pytest.mark.parametrize("name", ["scale", "versions", "diff", "bench", "learn"])
def test_a_fixture_has_the_shape_of_a_fresh_document(fresh, name):
    stored, made = (json.loads((at / f"{name}.json").read_text(encoding="utf-8")) for at in (STORED, fresh))
    hint = "run python scripts/fixtures.py"
    assert stored["schema"] == made["schema"], hint
    if "text" in stored.get("source", {}):
        assert stored["source"]["text"] == made["source"]["text"], hint
    changing = (".left_out", "notes[]", ".warnings", "views[].error")
    difference = shape(stored) ^ shape(made)
    assert not {p for p in difference if not any(word in p for word in changing)}, hint
