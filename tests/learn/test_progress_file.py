"""The progress file: damaged files, two processes at once, and what a stranger may have written into it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from blocknb.learn import class_report, progress
from blocknb.learn.progress import ItemProgress


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLOCKNB_PROGRESS", str(tmp_path / "deep" / "progress.json"))
    return tmp_path / "deep" / "progress.json"


def test_an_update_is_read_again_and_leaves_no_other_file(place: Path) -> None:
    progress.update("add-1", lambda old: old.tried("h", True, "source"))
    assert progress.of("add-1").source == "source"
    assert sorted(os.listdir(place.parent)) == [".progress.lock", "progress.json"]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 2, "items": {}}',
        b'{"version": 1, "items": {"a": {"tries": "3"}}}',
        b'{"version": 1, "items": {"a": {"tries": true}}}',
        b'{"version": 1, "items": {"a": {"answers": [1]}}}',
        b'{"version": 1, "items": {"a": {"answers": 3}}}',
        b'{"version": 1, "items": {"a": 3}}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_kept_aside_with_one_message(
    damage: bytes, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.update("add-1", lambda old: old)
    place.write_bytes(damage)
    assert progress.load() == {}
    progress.update("add-1", lambda old: replace(old, tries=1))
    assert progress.of("add-1").tries == 1
    assert place.with_name("progress.damaged-1.json").read_bytes() == damage
    assert capsys.readouterr().err.count("progress.damaged-1.json") == 1


def test_two_processes_at_once_lose_nothing(place: Path) -> None:
    code = (
        "import sys\nfrom dataclasses import replace\nfrom blocknb.learn import progress\n"
        "for i in range(20):\n"
        "    progress.update('shared', lambda old: replace(old, tries=old.tries + 1))\n"
        "    progress.update(sys.argv[1] + str(i), lambda old: replace(old, hints=1))\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    assert [process.wait(60) for process in running] == [0, 0]
    found = progress.load()
    assert found.pop("shared").tries == 40
    assert len(found) == 40


def test_a_folder_that_cannot_be_written_costs_the_progress_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLOCKNB_PROGRESS", str(tmp_path / "file" / "progress.json"))
    assert progress.update("add-1", lambda old: replace(old, tries=1)).tries == 1
    assert "does not keep your progress" in capsys.readouterr().err


def test_a_folder_in_place_of_the_file_stays_where_it_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place.mkdir(parents=True)
    (place / "mine").write_text("")
    assert progress.load() == {}
    progress.update("add-1", lambda old: replace(old, tries=1))
    assert (place / "mine").exists()
    assert os.listdir(place.parent) in ([".progress.lock", place.name], [place.name, ".progress.lock"])
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert "does not keep your progress" in said


def test_the_folder_is_made_without_locks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no fcntl."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    progress.update("add-1", lambda old: replace(old, tries=1))
    assert progress.of("add-1").tries == 1


def test_nothing_is_written_if_progress_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLOCKNB_PROGRESS", "0")
    monkeypatch.setattr(progress, "_unsaved", {})
    assert progress.update("add-1", lambda old: replace(old, tries=1)).tries == 1
    assert progress.load() == {"add-1": ItemProgress(tries=1)}
    assert os.listdir(tmp_path) == []


def test_tries_and_answers_stop_counting_after_the_first_pass() -> None:
    done = ItemProgress().tried("h", False, "a").tried("h", True, "b").tried("h", True, "c").tried("h", False, "d")
    assert (done.tries, done.source, done.last) == (2, "c", "d")
    asked = ItemProgress().tried("h", False, answer="9").tried("h", True, answer="10").tried("h", False, answer="11")
    assert asked.answers == ("9", "10")


def test_the_page_of_a_class_shows_texts_as_text_and_names_bad_files(place: Path, tmp_path: Path) -> None:
    entry = {"add-1": {"tries": 3, "hints": 1, "passed": "2026-01-01", "source": "</script><script>alert(1)</script>"}}
    ada, eve, bad = tmp_path / "ada.json", tmp_path / "<b>eve.json", tmp_path / "bad.json"
    ada.write_text(json.dumps({"version": 1, "items": entry}))
    eve.write_text(json.dumps({"version": 1, "items": {"add-1": {"tries": 2}, "<i>unknown": {"tries": 1}}}))
    bad.write_text("<u>no")
    learners, problems = class_report.read([str(ada), str(eve), str(bad)])
    page = class_report.page(learners, problems)
    assert list(learners) == ["<b>eve", "ada"]
    assert len(problems) == 1
    assert "✓ 3 1h" in page
    assert "1 of 2" in page
    assert not any(tag in page for tag in ("<script", "<b>eve", "<i>", "<u>"))
