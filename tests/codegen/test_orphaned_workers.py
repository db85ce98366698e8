"""A killed notebook kernel leaves neither processes nor files behind. Linux only: the tests find processes by their environment."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import blocknb

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
LIMIT_S = 120.0  # until every child has ended, also on a loaded machine; the tools below sleep much longer
MOST_S = 4.0  # of processor time that children use meanwhile; LLVM needs much more for the job below
FOLDERS = ("/dev/shm", "/tmp")

IDLE = """
workers.warm(Target.parse("sm_90a")).result()
"""
SLOW_TOOL = """
job = {"kind": "assemble", "ptx": "", "arch": "sm_90a", "ptxas": SLEEPING}
workers.submit({"kind": "ping"}).result()
future = workers.submit(job)
"""
BUSY_LLVM = """
lines = "\\n".join(f"  %a{i} = fadd float %x, {i}.0\\n  store volatile float %a{i}, ptr %p" for i in range(400_000))
text = f"define ptx_kernel void @k(ptr %p, float %x) {{\\n{lines}\\n  ret void\\n}}\\n"
workers.submit({"kind": "ping"}).result()
future = workers.submit({"kind": "ptx", "text": text, "arch": "sm_90a", "features": "+ptx88", "opt": 2})
time.sleep(0.3)
assert not future.done()
"""
SCRIPT = """
import os, sys, time
from blocknb.codegen.llvm import Workers
from blocknb.target import Target
SLEEPING = sys.argv[1]
workers = Workers(2)
{case}
print("ready", flush=True)
time.sleep(600)
"""


def processes(mark: str) -> set[int]:
    """The running processes whose environment has this mark."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f"MARK={mark}".encode() in (folder / "environ").read_bytes():
                    found.add(int(folder.name))
            except OSError:
                pass  # it has ended, or belongs to another user
    return found


def files(mark: str) -> list[str]:
    """The open files in shared or temporary folders of the processes with this mark; files that are deleted are fine."""
    names = []
    for pid in processes(mark):
        try:
            links = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # the process has ended
        for link in links:
            try:
                names.append(os.readlink(f"/proc/{pid}/fd/{link}"))
            except OSError:
                pass  # it has closed the file
    return [name for name in names if name.startswith(FOLDERS) and not name.endswith("(deleted)")]


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Waits until a condition holds; fails if that takes too long."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def processor_seconds(mark: str) -> float:
    """The processor time of the running processes with this mark."""
    ticks = 0
    for pid in processes(mark):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def until_all_have_ended(mark: str) -> None:
    """Waits until no process has this mark. A job that a child finishes before it ends takes more than MOST_S."""
    begin, end = processor_seconds(mark), time.monotonic() + LIMIT_S
    while processes(mark):
        assert processor_seconds(mark) < begin + MOST_S, "a worker works on"
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def parent(tmp_path):
    """Starts a script as a notebook kernel would be, and ends what it leaves behind."""
    mark, started = uuid.uuid4().hex, []
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\nsleep 600\n")
    tool.chmod(0o755)
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "MARK": mark, "TMPDIR": str(tmp_path / "temporary")}
    environment["PYTHONPATH"] = str(Path(blocknb.__file__).parent.parent)

    def start(case: str) -> subprocess.Popen:
        command = [sys.executable, "-c", SCRIPT.format(case=textwrap.dedent(case)), str(tool)]
        made = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
        started.append(made)
        assert made.stdout.readline() == b"ready\n"
        return made

    start.mark = mark
    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("case", "number"),
    [
        pytest.param(IDLE, signal.SIGKILL, marks=pytest.mark.full),
        (SLOW_TOOL, signal.SIGKILL),
        (BUSY_LLVM, signal.SIGKILL),
        pytest.param(BUSY_LLVM, signal.SIGHUP, marks=pytest.mark.full),  # the terminal closes
    ],
    ids=["idle", "tool", "llvm", "terminal"],
)
def test_a_killed_process_leaves_no_worker_and_no_file(parent, tmp_path, case, number):
    process = parent(case)
    wait_until(lambda: len(processes(parent.mark)) >= (3 if case is SLOW_TOOL else 2), LIMIT_S)
    assert not [name for name in files(parent.mark) if not name.startswith(str(tmp_path.parent))]
    os.kill(process.pid, number)
    process.wait()
    until_all_have_ended(parent.mark)
    assert list((tmp_path / "temporary").iterdir()) == []


FUZZ = """
import os, sys, time
from blocknb.fuzz.worker import Setup, Worker
worker = Worker(Setup(prepare="hanging"))
worker.post("hang")
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.full
def test_a_killed_fuzzer_leaves_no_hanging_worker_and_no_folder(tmp_path):
    """A worker whose kernel hangs reads no end of its pipe."""
    mark = uuid.uuid4().hex
    begun = tmp_path / "begun"
    (tmp_path / "hanging.py").write_text(
        "import ctypes\nfrom blocknb.fuzz import worker\ndef hang(setup):\n"
        f"    open({str(begun)!r}, 'w').close()\n    ctypes.CDLL(None).sleep(600)\n    yield\nworker.REQUESTS['hang'] = hang\n"
    )
    (tmp_path / "parent.py").write_text(f"if __name__ == '__main__':\n{textwrap.indent(FUZZ, '    ')}")
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "MARK": mark, "TMPDIR": str(tmp_path / "temporary")}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{Path(blocknb.__file__).parent.parent}"
    process = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), "600"], env=environment)
    try:
        wait_until(begun.exists, LIMIT_S)
        assert list((tmp_path / "temporary").iterdir())
        process.kill()
        process.wait()
        until_all_have_ended(mark)
        assert list((tmp_path / "temporary").iterdir()) == []
    finally:
        process.kill()
        process.wait()
        for pid in processes(mark):
            os.kill(pid, signal.SIGKILL)
