"""scripts/classroom.py reports a lesson in which kernels have failed or died, or have left something, and fails then."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
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
    dead, alive = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "600"])
    dead.wait()
    assert classroom.kill([learner(classroom, pid=n) for n in (dead.pid, None, alive.pid)]) == [dead.pid, alive.pid]
    assert alive.wait(120) < 0
    with pytest.raises(ProcessLookupError):
        os.kill(dead.pid, 0)


#: A process that leaves its group, has no environment and no parent; a temporary file; a file in the memory of the system.
LEAVES = """import os, subprocess, sys, tempfile
tempfile.mkstemp()
open({memory!r}, "w").close()
code = "import os, time\\nif os.fork() == 0: os.setsid(); time.sleep(600)"
subprocess.run([sys.executable, "-I", "-c", code], env={{}})"""


def lesson(tmp_path, source, *options):
    """The exit status and the output of a lesson with one kernel. Other tests make files in the folders of the system."""
    (tmp_path / "memory").mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    path = tmp_path / "lesson.ipynb"
    nbformat.write(notebook, path)
    command = [sys.executable, ROOT / "scripts" / "classroom.py", "--kernels", "1", "--notebook", path]
    command += ["--memory", tmp_path / "memory", *options]
    with tempfile.TemporaryDirectory() as temporary:  # its path is short, as those of sockets have to be
        own = {**os.environ, "TMPDIR": temporary}
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


def test_a_lesson_that_leaves_nothing_succeeds(tmp_path):
    status, said = lesson(tmp_path, "1 + 1", "--grace", "60")
    assert status == 0, said
    assert "after SIGKILL: 0 processes, 0 files" in said and "1 of 1 kernels ran all cells" in said


def test_a_lesson_that_leaves_a_process_and_files_fails_and_names_them(tmp_path):
    memory = tmp_path / "memory" / "left"
    status, said = lesson(tmp_path, LEAVES.format(memory=str(memory)))
    assert status == 1
    assert "after SIGKILL: 1 processes, 2 files" in said and str(memory) in said and "user0/tmp/" in said
    (pid,) = re.findall(r"^  (\d+): .*time\.sleep\(600\)", said, re.MULTILINE)
    state = Path(f"/proc/{pid}/stat")  # the script has ended it
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.full
def test_a_lesson_with_an_error_fails(tmp_path):
    status, said = lesson(tmp_path, "1 / 0")
    assert status == 1 and "ZeroDivisionError" in said and "0 of 1 kernels ran all cells" in said


@pytest.mark.parametrize(("private", "good"), [((), True), (("ab/other.bnb",), True), (("ab/key.bnb",), False)])
def test_a_kernel_that_the_shared_cache_has_and_a_learner_compiled_is_a_failure(classroom, tmp_path, private, good):
    for name in ("shared/ab/key.bnb", *(f"user0/cache/{name}" for name in private)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert classroom.report_shared(tmp_path, tmp_path / "shared") == good
    assert not classroom.report_shared(tmp_path, tmp_path / "user1")  # a shared cache without a kernel proves nothing


def test_files_of_a_cache_that_were_not_renamed_are_left(classroom, tmp_path):
    for name in ("user0/cache/ab/key.bnb", "user0/cache/ab/.new-0f", "user1/.progress.json.7.new", "user1/tmp/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = classroom.left_files(tmp_path, set(), set())
    assert sorted(found) == ["user0/cache/ab/.new-0f", "user1/.progress.json.7.new", "user1/tmp/x"]
