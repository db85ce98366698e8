"""scripts/classroom.py reports a lesson in which kernels have failed or died."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the script reads /proc")


@pytest.fixture
def classroom(monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("classroom", ROOT / "scripts" / "classroom.py")
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "classroom", made)  # dataclasses look it up
    spec.loader.exec_module(made)
    return made


def learner(classroom, *seconds, pid=None):
    """A learner whose cells took these times; None for a cell that has not ended."""
    cells = [nbformat.v4.new_code_cell("pass") for _ in seconds]
    for cell, time in zip(cells, seconds, strict=True):
        begin = {"iopub.execute_input": "2026-01-01T00:00:00+00:00"}
        end = {} if time is None else {"shell.execute_reply": f"2026-01-01T00:00:0{time}+00:00"}
        cell.metadata["execution"] = begin | end
    manager = SimpleNamespace(provisioner=SimpleNamespace(pid=pid))
    error = "DeadKernelError: Kernel died" if None in seconds else ""
    return classroom.Learner(manager, nbformat.v4.new_notebook(cells=cells), error)


def test_the_time_of_all_cells_is_that_of_each_learner_who_ran_them(classroom, capsys):
    classroom.report_cells([learner(classroom, 1, None), learner(classroom, 2, 3), learner(classroom, 4, 5)])
    rows = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    assert rows[1:4] == [
        ["0", "2.00", "s", "4.00", "s"],
        ["1", "4.00", "s", "5.00", "s"],
        ["all", "7.00", "s", "9.00", "s"],
    ]
    assert rows[4][:3] == ["kernel", "0:", "DeadKernelError:"] and rows[5][:3] == ["2", "of", "3"]


def test_a_lesson_without_a_result_is_reported(classroom, capsys):
    classroom.report_cells([learner(classroom, None)])
    assert capsys.readouterr().out.endswith("kernel 0: DeadKernelError: Kernel died\n0 of 1 kernels ran all cells\n")


def test_kernels_that_have_died_keep_no_other_from_being_killed(classroom):
    dead, alive = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "60"])
    dead.wait()
    assert classroom.kill([learner(classroom, pid=n) for n in (dead.pid, None, alive.pid)]) == [dead.pid, alive.pid]
    assert alive.wait(10) < 0
    with pytest.raises(ProcessLookupError):
        os.kill(dead.pid, 0)
