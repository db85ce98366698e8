"""Fixtures of the notebook tests: an IPython shell in this process, and a real kernel process."""

from __future__ import annotations

import os
import queue
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from blocknb.codegen import sass

SETUP = """
%load_ext blocknb
import numpy as np
import blocknb
import blocknb.language as tl
x = np.arange(64, dtype=np.float32)
out = np.empty_like(x)
"""


START_S, CELL_S = (
    300.0,
    120.0,
)  # until a kernel process answers, and until a cell says something: seconds on a loaded machine


@dataclass
class Answer:
    """The result of a cell: the reply's status, and everything that it displayed, in order."""

    status: str
    outputs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [o for o in self.outputs if o["type"] == "error"]

    @property
    def error_text(self) -> str:
        """The text of the only error, without colours."""
        (error,) = self.errors
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))

    @property
    def bundles(self) -> list[dict[str, Any]]:
        return [o["data"] for o in self.outputs if o["type"] in ("display_data", "execute_result")]

    @property
    def cards(self) -> list[dict[str, Any]]:
        return [b for b in self.bundles if "application/vnd.blocknb.v1+json" in b]

    @property
    def printed(self) -> str:
        return "".join(o["text"] for o in self.outputs if o["type"] == "stream")


class Notebook:
    """A running kernel process; `run(code)` runs a cell."""

    def __init__(self, manager: Any):
        self.manager, self.client = manager, manager.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=START_S)
        except BaseException:
            self.close()
            raise

    def run(self, code: str, timeout: float = CELL_S, interrupt_after: str = "", answers: Sequence[str] = ()) -> Answer:
        """Runs a cell to its end. With `interrupt_after`, interrupts it shortly after it has printed that text. Then `seconds` is the
        processor time from the interrupt to the end, which other processes do not affect. `answers` are the replies to the cell's
        requests for input."""
        begin, message = 0.0, self.client.execute(code, stop_on_error=False, allow_stdin=bool(answers))
        answer, waiting = Answer(""), list(answers)
        while True:
            found = self._next(waiting, timeout)
            if found["parent_header"].get("msg_id") != message:
                continue
            kind, content = found["msg_type"], found["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind in ("stream", "error", "display_data", "execute_result"):
                answer.outputs.append({"type": kind, **content})
            if kind == "update_display_data":
                for output in answer.outputs:
                    if output.get("transient") == content["transient"]:
                        output["data"] = content["data"]
            if interrupt_after and interrupt_after in answer.printed:
                interrupt_after = ""
                begin, end = self.worked(), time.monotonic() + 60
                while self.worked() < begin + 0.3 and time.monotonic() < end:
                    time.sleep(0.05)  # the launch after the print has started then
                begin = self.worked()
                self.manager.interrupt_kernel()
        answer.seconds = self.worked() - begin
        reply = self.client.get_shell_msg(timeout=timeout)
        while reply["parent_header"].get("msg_id") != message:  # replies to earlier requests
            reply = self.client.get_shell_msg(timeout=timeout)
        answer.status = reply["content"]["status"]
        return answer

    def worked(self) -> float:
        """The processor time of the kernel process, in seconds."""
        times = psutil.Process(self.manager.provisioner.pid).cpu_times()
        return times.user + times.system

    def _next(self, answers: list[str], timeout: float) -> dict[str, Any]:
        """The next broadcast message; answers requests for input before it."""
        deadline = time.monotonic() + timeout
        while answers and time.monotonic() < deadline:
            try:
                return self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                if self.client.stdin_channel.msg_ready():
                    self.client.get_stdin_msg(timeout=timeout)
                    self.client.input(answers.pop(0))
        try:
            return self.client.get_iopub_msg(timeout=timeout)
        except queue.Empty:
            self.manager.interrupt_kernel()  # a cell that runs on would make every later test fail
            raise AssertionError(f"the kernel process sent no message for {timeout} s") from None

    def restart(self) -> None:
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=START_S)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def start_kernel(folder: Path) -> Notebook:
    """A kernel process that communicates by files instead of ports, with an empty compile cache."""
    from jupyter_client import KernelManager

    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "kernel"))
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    own = {"BLOCKNB_CACHE_DIR": str(folder / "cache"), "IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": paths}
    manager.start_kernel(env={**os.environ, **own})
    return Notebook(manager)


@pytest.fixture(scope="session", autouse=True)
def disassembled_once() -> Iterator[None]:
    """Caches disassemblies, because many cards show the same kernels and nvdisasm takes a third of a second."""
    known: dict[Any, Any] = {}
    disassemble = sass.disassembly

    def remembered(cubin: bytes, target: Any, *, workers: Any = None) -> Any:
        if (cubin, target) not in known or known[cubin, target].exception():
            known[cubin, target] = disassemble(cubin, target, workers=workers)
        return known[cubin, target]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sass, "disassembly", remembered)
        yield


@pytest.fixture(scope="session")
def kernel_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    notebook = start_kernel(tmp_path_factory.mktemp("k"))
    try:
        yield notebook
    finally:
        notebook.close()


@pytest.fixture
def notebook(kernel_process: Notebook) -> Iterator[Notebook]:
    """The kernel process after the imports, with new arrays. A test that leaves it unusable fails, and the next one gets a new process."""
    answer = kernel_process.run(SETUP)
    assert answer.status == "ok", answer.outputs
    yield kernel_process
    try:
        assert kernel_process.run("pass").status == "ok"
    except AssertionError:
        kernel_process.restart()
        raise


@pytest.fixture
def own_kernel(tmp_path: Path) -> Iterator[Notebook]:
    """A kernel process of one test, after the imports."""
    notebook = start_kernel(tmp_path)
    try:
        assert notebook.run(SETUP).status == "ok"
        yield notebook
    finally:
        notebook.close()
