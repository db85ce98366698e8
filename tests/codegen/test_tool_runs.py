"""The ptxas that waits for the next kernel: same code, same errors, and no process left behind."""

import os
import signal
import time

import pytest

from blocknb.codegen.llvm import Workers
from blocknb.codegen.process import _children, process_state
from blocknb.codegen.toolchain import find_ptxas
from blocknb.codegen.worker import _FIRST, run
from blocknb.target import Target

HOPPER = Target.parse("sm_90a")
LIMIT_S = 120  # of a wait that takes milliseconds on an idle machine


def job(text: str = _FIRST, **more: object) -> dict:
    tool = find_ptxas(HOPPER)
    assert tool is not None
    return {
        "kind": "cubin",
        "text": text,
        "arch": "sm_90a",
        "features": HOPPER.features,
        "ptxas": str(tool.path),
    } | more


def waiting(pid: int) -> list[int]:
    """The tools that wait in a worker, once it is idle."""
    end = time.monotonic() + LIMIT_S
    while not (found := list(_children(pid))) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def sass(cubin: bytes) -> str:
    tool = str(find_ptxas(HOPPER).path).replace("ptxas", "nvdisasm")
    return run({"kind": "sass", "cubin": cubin, "nvdisasm": tool})["sass"]


def test_a_waiting_ptxas_gives_the_code_and_the_lines_of_one_that_reads_a_file():
    other = _FIRST.replace("fadd float %v, 1.0", "fmul float %v, 3.0")
    with Workers(1) as workers:
        pid = workers.warm(HOPPER).result()["pid"]
        for text in (_FIRST, other):
            before = waiting(pid)
            answer = workers.submit(job(text)).result()
            assert waiting(pid) != before  # it was used, and another one waits
            alone = run(job(text))  # in this process, where none waits
            assert sass(answer["cubin"]) == sass(alone["cubin"])
            used = [[line for line in x["log"].splitlines() if "Compile time" not in line] for x in (answer, alone)]
            assert used[0] == used[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kernel_is_compiled_after_its_waiting_ptxas_was_killed(number):
    with Workers(1) as workers:
        pid = workers.warm(HOPPER).result()["pid"]
        (tool,) = waiting(pid)
        os.kill(tool, number)
        assert workers.submit(job()).result()["cubin"][:4] == b"\x7fELF"


def test_other_options_start_another_ptxas_and_errors_name_their_line():
    wrong = job() | {"kind": "assemble", "ptx": ".version 8.8\n.target sm_90a\n.address_size 64\nnonsense\n"}
    with Workers(1) as workers:
        pid = workers.warm(HOPPER).result()["pid"]
        assert workers.submit(job(arch="sm_80")).result()["cubin"][:4] == b"\x7fELF"
        end = time.monotonic() + LIMIT_S
        while not any("sm_80" in _command(tool) for tool in waiting(pid)):  # the one for sm_90a ends first
            assert time.monotonic() < end, "no ptxas for sm_80 waits"
            time.sleep(0.01)
        with pytest.raises(Exception, match="line 4") as refused:
            workers.submit(wrong).result()
    assert "nonsense" in str(refused.value)


def _command(pid: int) -> list[str]:
    """The arguments of a process. Before exec, a child has those of the worker; one that has ended has none."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().replace("=", "\0").split("\0")
    except OSError:
        return []


def test_a_waiting_ptxas_ends_with_its_worker():
    with Workers(1) as workers:
        pid = workers.warm(HOPPER).result()["pid"]
        (tool,) = waiting(pid)
    end = time.monotonic() + LIMIT_S
    while process_state(tool) not in ("", "Z"):
        assert time.monotonic() < end, "the tool still runs"
        time.sleep(0.01)
