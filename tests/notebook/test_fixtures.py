"""The documents that the page's tests read have the shape of those that are written now."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fixtures.py"


def shape(value, path=""):
    """The paths of everything in a document; what is keyed by hashes, numbers and names of things counts as one."""
    if isinstance(value, dict):
        free = path.endswith(("blobs", "origin", "milliseconds", "signature", "constants", "options"))
        return {p for key, inner in value.items() for p in shape(inner, f"{path}.{'*' if free else key}")} | {path}
    if isinstance(value, list):
        return {p for inner in value for p in shape(inner, f"{path}[]")} | {path}
    return {path}


@pytest.fixture(scope="module")
def fresh():
    spec = importlib.util.spec_from_file_location("fixtures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FOLDER, module.documents()


@pytest.mark.parametrize("name", ["scale", "versions", "diff", "bench"])
def test_a_fixture_has_the_shape_of_a_fresh_document(fresh, name):
    folder, made = fresh
    stored = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    hint = "run python scripts/fixtures.py"
    assert stored["schema"] == made[name]["schema"], hint
    if "text" in stored.get("source", {}):
        assert stored["source"]["text"] == made[name]["source"]["text"], hint
    changing = (".left_out", "notes[]", ".warnings", "views[].error")
    difference = shape(stored) ^ shape(made[name])
    assert not {p for p in difference if not any(word in p for word in changing)}, hint
