"""The history of a kernel between sessions: kept by notebook and kernel, merged by two processes, limited, private, and off on request."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_sweep import CELL, LAUNCH, run_cell, shell  # noqa: F401

from blocknb.notebook import history, history_file

VERSION = {
    "version": "0123456789abcdef", "number": 1, "note": "", "first": "2026-01-01T00:00:00+00:00", "first_line": 2,
    "source": "def f(): pass",
    "constants": {}, "time": None, "measurements": 1, "rate": None, "target": None, "registers": None, "shared_bytes": None,
    "spill_bytes": None, "ok": None, "verdicts": {},
}  # fmt: skip
RUN = {
    "id": "r0",
    "version": VERSION["version"],
    "what": "cell",
    "settings": "",
    "when": "",
    "time": None,
    "verdict": "",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLOCKNB_HISTORY", str(tmp_path / "history"))
    monkeypatch.setattr(history_file, "notebook", lambda: "/here/notebook.ipynb")
    return tmp_path / "history"


def test_what_is_saved_is_loaded_for_the_same_notebook_and_kernel_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history_file.save("m.f", {"0123456789abcdef": VERSION}, {"r0": RUN})
    history_file.save("m.f", {}, {"r1": {**RUN, "id": "r1"}})
    assert history_file.load("m.f") == ({VERSION["version"]: VERSION}, {"r0": RUN, "r1": {**RUN, "id": "r1"}})
    assert history_file.load("m.g") == ({}, {})
    (file,) = folder.glob("*.jsonl")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(history_file, "notebook", lambda: "/here/other.ipynb")
    assert history_file.load("m.f") == ({}, {})
    monkeypatch.setattr(history_file, "notebook", lambda: None)  # a script
    history_file.save("m.f", {}, {"r0": RUN})
    assert len([*folder.glob("*.jsonl")]) == 1


def test_the_switch_turns_it_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKNB_HISTORY", "0")
    history_file.save("m.f", {"0123456789abcdef": VERSION}, {})
    assert not folder.exists() and history_file.load("m.f") == ({}, {})


def test_a_file_is_limited_and_drops_the_oldest_runs_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "MOST_BYTES", 4000)
    for i in range(60):
        history_file.save("m.f", {"0123456789abcdef": VERSION}, {f"r{i}": {**RUN, "id": f"r{i}", "settings": "x" * 50}})
    (file,) = folder.glob("*.jsonl")
    versions, runs = history_file.load("m.f")
    assert file.stat().st_size <= 4000 and len(versions) == 1 and "r59" in runs and "r0" not in runs


def test_damaged_and_foreign_lines_are_dropped(folder: Path) -> None:
    history_file.save("m.f", {"0123456789abcdef": VERSION}, {"r0": RUN})
    (file,) = folder.glob("*.jsonl")
    bad = [{"version": {**VERSION, "number": "one"}}, {"run": {**RUN, "time": {"n": 1}}}, [1], {"run": 3}]
    file.write_text("{not json\n" + "".join(json.dumps(row) + "\n" for row in bad) + file.read_text())
    assert history_file.load("m.f") == ({VERSION["version"]: VERSION}, {"r0": RUN})


@pytest.mark.skipif(os.geteuid() != 0 and not hasattr(os, "chmod"), reason="needs modes of files")
def test_a_folder_that_others_may_change_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    history_file.private_files._warned.discard(str(folder))
    with pytest.warns(RuntimeWarning, match="does not keep the history"):
        history_file.save("m.f", {"0123456789abcdef": VERSION}, {})
    assert not [*folder.glob("*.jsonl")]


def test_two_processes_lose_no_run(folder: Path) -> None:
    code = (
        "import sys\nfrom blocknb.notebook import history_file as h\nh.notebook = lambda: '/here/notebook.ipynb'\n"
        f"run = {RUN!r}\n"
        "for i in range(25):\n    name = f'{sys.argv[1]}{i}'\n    h.save('m.f', {}, {name: {**run, 'id': name}})\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(history_file.load("m.f")[1]) == 50


def test_a_kernel_continues_its_history_after_a_restart(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def restart() -> None:
        history._histories.clear()
        history._runs.clear()
        history._saved.clear()

    restart()
    run_cell(shell, monkeypatch, "--check (total==1).all()", LAUNCH)
    other = CELL.replace("tl.load(total + i, mask=i < n) + ", "2 * ")
    restart()
    shell.run_cell(f"%%blockkernel\n{other}{LAUNCH}").raise_error()
    kernel = shell.user_ns["add_up"]
    first, second = history.all_versions(kernel)
    assert (first.number, second.number) == (1, 2) and first.card is None and first.ok is True
    assert history.versions(kernel) == [second] and len(history.runs(kernel)) == 2
    made = shell.display_pub.outputs[-1]["data"]["application/vnd.blocknb.v1+json"]["history"]
    assert made["versions"][0]["earlier"] is True and [run["version"] for run in made["runs"]] == [1, 2]
    assert first.time is not None and made["versions"][0]["time"]["median"] == first.time.median
    assert "in an earlier session" in kernel.history().text()
    restart()
    shell.run_cell(f"%%blockkernel\n{CELL}{LAUNCH}").raise_error()  # the first source again: its number and its verdict
    again = history.versions(shell.user_ns["add_up"])
    assert [version.number for version in again] == [1] and again[0].ok is True
    facts = dict(shell.display_pub.outputs[-1]["data"]["application/vnd.blocknb.v1+json"]["facts"])
    assert "in an earlier run of the same code" in facts["check"]
    restart()


def test_runs_of_one_source_with_other_argument_types_are_told_apart(shell: Any) -> None:  # noqa: F811
    shell.run_cell("import numpy as np\nraw, out = np.ones(4097, np.float32), np.ones(4096, np.float32)").raise_error()
    for first in (0, 1, 1):  # the second pointer is not aligned
        cell = f"""\
%%blockkernel
@blocknb.kernel
def told_apart(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))

told_apart[4,](raw[{first}:][:4096], out, BLOCK=1024)"""
        shell.run_cell(cell).raise_error()
    kernel = shell.user_ns["told_apart"]
    assert [run.settings for run in history.runs(kernel)] == ["BLOCK=1024", *["BLOCK=1024, x=*fp32"] * 2]
    assert [version.measurements for version in history.versions(kernel)] == [2]  # of the code that the version shows
