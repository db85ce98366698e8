"""Exercises of other packages, by entry points: one that fails to load takes nothing away from the others."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from blocknb import learn
from blocknb.learn import catalog

PACKAGES = {
    "broken_exercises": "import not_installed_anywhere",
    "empty_exercises": "EXERCISES = ()",
    "more_exercises": "from blocknb.learn import Prediction\nEXERCISES = (Prediction('ask-0', 'Ask', question='1 + 1?', answer=2),)",
}


def test_a_package_that_fails_is_named_once_and_the_others_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in PACKAGES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint(name[:4], name, "blocknb.exercises") for name in PACKAGES]
    monkeypatch.setattr(catalog, "entry_points", lambda group: [p for p in points if p.group == group])
    monkeypatch.setattr(catalog, "_course", {})
    assert learn.exercise("ask-0").title == "Ask"
    assert learn.exercise("add-1")
    said = capsys.readouterr().err.strip().splitlines()
    assert said == [
        "blocknb: the entry point brok = broken_exercises brings no exercises: "
        "ModuleNotFoundError: No module named 'not_installed_anywhere'",
        "blocknb: the entry point empt = empty_exercises brings no exercises: "
        "ValueError: empt has no exercises: define EXERCISES = (Exercise(...), ...)",
    ]
