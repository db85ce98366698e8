"""The nightly script runs both fuzzers and appends to the ledger; the ledger in the tree is whole."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from blocknb.fuzz import execute
from blocknb.fuzz.generate import generate

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ROOT / "tests" / "fuzzing" / "ledger.json"
EMPTY = {"corpus": [], "runs": [], "findings": []}


@pytest.mark.full
def test_a_night_appends_its_runs_to_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = tmp_path / "ledger.json"
    ledger.write_text(json.dumps(EMPTY))
    given = [
        "--seed",
        "7",
        "--kernels",
        "2",
        "--sequences",
        "1",
        "--jobs",
        "1",
        "--ledger",
        str(ledger),
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", ["nightly.py", *given])
    main = runpy.run_path(str(ROOT / "scripts" / "nightly.py"))["main"]
    assert main() == 0
    kernels, cells = json.loads(ledger.read_text())["runs"]
    assert (kernels["kind"], kernels["seed"], kernels["count"], kernels["failed"]) == ("kernels", 7, 2, 0)
    assert (cells["kind"], cells["sequences"], cells["failed"]) == ("cells", 1, 0)
    assert cells["count"] >= 3


def test_a_finding_that_is_open_is_entered_once_and_a_closed_one_again(tmp_path: Path) -> None:
    append = runpy.run_path(str(ROOT / "scripts" / "nightly.py"))["append"]
    ledger = tmp_path / "ledger.json"
    ledger.write_text(json.dumps({**EMPTY, "findings": [{"what": "b", "status": "closed"}]}))
    for _ in range(2):
        append(ledger, {}, [{"what": "a", "status": "open"}, {"what": "b", "status": "open"}])
    found = json.loads(ledger.read_text())
    assert len(found["runs"]) == 2
    assert [(f["what"], f["status"]) for f in found["findings"]] == [("b", "closed"), ("a", "open"), ("b", "open")]


def test_each_closed_finding_of_the_ledger_says_why_and_has_its_test() -> None:
    ledger = json.loads(LEDGER.read_text())
    assert all((ROOT / folder).is_dir() for folder in ledger["corpus"])
    assert all(run["count"] > 0 for run in ledger["runs"])
    for finding in ledger["findings"]:
        assert finding["status"] in ("open", "closed")
        if finding["status"] == "closed":
            assert finding["cause"], finding
            assert (ROOT / finding["test"].partition("::")[0]).is_file(), finding


MENDED = [f for f in json.loads(LEDGER.read_text())["findings"] if f["kind"] == "kernels" and f["status"] == "closed"]


@pytest.mark.parametrize("finding", MENDED, ids=lambda f: f"{f['seed']}-{f['number']}")
def test_a_kernel_that_was_a_finding_is_right(finding: dict) -> None:
    (outcome,) = execute.attempts([generate(finding["seed"], finding["number"])])
    assert outcome.kind in ("right", "ambiguous"), outcome
