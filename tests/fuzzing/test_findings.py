"""`blocknb fuzz` with a broken compiler: it finds the error, reduces the kernel, names the stage, and writes a failing script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blocknb import cli
from blocknb.fuzz import run, tree
from blocknb.fuzz.run import FuzzOptions
from blocknb.fuzz.shrink import all_nodes
from blocknb.fuzz.worker import Setup, Worker

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def exit_status(script: str, folder: Path, prepare: str = "") -> int:
    """The exit status of a reproducer in a new process with an empty cache, with or without a broken compiler."""
    code = f"import runpy, sys; sys.argv = ['x']; {f'import {prepare}; ' if prepare else ''}runpy.run_path({script!r}, run_name='__main__')"
    path = os.pathsep.join([str(ROOT), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": path, "BLOCKNB_CACHE_DIR": str(folder / f"cache {prepare}")}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "Traceback" not in found.stderr, found.stderr
    return found.returncode


def first_failure(prepare: str, first: int, count: int, tmp_path: Path) -> tuple[run.Findings, FuzzOptions]:
    """Reduces the first kernel with a wrong result. A fault in an address can also show as a refused kernel, which is passed over."""
    options = FuzzOptions(9, Setup(prepare=prepare), first=first, count=count, out=str(tmp_path), patience=60.0)
    found = run.collect(options)
    wrong = [number for number, outcome in found.failed.items() if outcome.kind == "wrong"]
    assert wrong, found.summary()
    worker = Worker(options.setup)
    try:
        run.reduce(options, found, wrong[0], worker)
    finally:
        worker.stop()
    return found, options


@pytest.mark.parametrize(
    ("prepare", "first", "count", "stage"),
    [
        ("broken_codegen", 3, 3, "codegen"),  # one of these adds floats
        pytest.param("broken_pass", 0, 32, "pass simplify", marks=pytest.mark.full),
    ],
)
def test_a_seeded_fault_is_found_reduced_blamed_and_reproduced(
    prepare: str, first: int, count: int, stage: str, tmp_path: Path
) -> None:
    found, _ = first_failure(prepare, first, count, tmp_path)
    ((_, kernel, outcome, blamed, path),) = found.reduced
    assert outcome.kind == "wrong"
    assert blamed.stage == stage
    assert len(list(tree.statements(kernel.body))) <= 10
    assert len(list(all_nodes(kernel.body))) <= 100
    assert exit_status(path, tmp_path, prepare) == 1
    assert exit_status(path, tmp_path) == 0


def test_a_crash_is_a_finding_and_the_other_kernels_still_run() -> None:
    found = run.collect(FuzzOptions(9, Setup(prepare="broken_process"), count=3))
    assert set(found.outcomes) == set(range(3))
    kinds = [outcome.kind for outcome in found.outcomes.values()]
    assert "crashed" in kinds
    assert "right" in kinds


def test_the_command_reports_the_number_of_right_kernels(capfd, tmp_path: Path) -> None:
    status = cli.main(
        [
            "fuzz",
            "--seed",
            "1",
            "--count",
            "3",
            "--jobs",
            "1",
            "--features",
            "x86-64-v2",
            "--out",
            str(tmp_path / "out"),
        ]
    )
    said = capfd.readouterr().out
    assert status == 0
    assert "3 kernels in" in said
    assert "kernels/s" in said
    assert not (tmp_path / "out").exists()
