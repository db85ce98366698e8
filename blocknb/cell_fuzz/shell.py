"""Runs sequences of cells in a real IPython shell in this process, and judges each cell."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from blocknb.cell_fuzz import oracles, zoo
from blocknb.cell_fuzz.cell import CellSequence, FuzzCell
from blocknb.cell_fuzz.oracles import CellOutcome, Shown, Usage

LIMIT = 20.0  # seconds; a cell that takes longer is interrupted
GRACE = 20.0  # seconds for an interrupted cell to end
STACKS = "hung.txt"  # in the worker's folder: the stacks of a process with a cell that hangs
WARM = 12  # sequences before the process's usage is compared


class FuzzShell(InteractiveShell):
    """A shell that collects what cells display."""

    shown: Shown

    def _showtraceback(self, etype: type, evalue: BaseException, stb: Any) -> None:
        self.shown.errors.append((evalue, "\n".join(stb) if isinstance(stb, list) else str(stb)))

    def show_usage_error(self, exc: BaseException) -> None:
        self.shown.errors.append((exc, f"UsageError: {exc}"))


class CellRunner:
    """Runs sequences one after another in one shell, whose names are cleared in between."""

    def __init__(self) -> None:
        config = Config({"HistoryManager": {"enabled": False}})
        self.shell: Any = FuzzShell.instance(config=config, colors="nocolor")
        self.shell.shown = Shown()
        publisher: Any = self.shell.display_pub
        publisher.publish = self._published
        self.usage: Usage | None = None
        self.count = 0
        self.running = False
        self.fired = 0.0
        signal.signal(signal.SIGINT, self._interrupted)
        if str(zoo.TESTS) not in sys.path and (zoo.TESTS / "zoo").is_dir():
            sys.path.append(str(zoo.TESTS))
        _measure_briefly()

    def _published(self, data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        self.shell.shown.bundles.append(data)

    def _interrupted(self, number: int, frame: Any) -> None:
        """The handler of SIGINT: as in a notebook's kernel, only a running cell is interrupted."""
        if self.running:
            raise KeyboardInterrupt

    def steps(self, sequence: CellSequence) -> Iterator[int | CellOutcome]:
        """Yields the number of each cell before it runs, and in the end the verdict."""
        good = True
        self.shell.reset(new_session=False)
        for number, cell in enumerate(sequence.cells):
            yield number
            if cell.role == "check" and not good:
                good = True
                continue
            shown = self._run(cell)
            found = oracles.displayed(shown) or self._expected(cell, shown)
            if found is not None:
                yield CellOutcome(*found, number)
                return
            good = True if cell.role == "check" else good and shown.succeeded
        yield self._left(len(sequence.cells) - 1)

    def _expected(self, cell: FuzzCell, shown: Shown) -> tuple[str, str] | None:
        """Whether a cell did what its role asks for, and ended soon after an interrupt."""
        if self.fired and time.monotonic() - self.fired > GRACE:
            return "hung", f"the cell ended {time.monotonic() - self.fired:.0f} s after the interrupt"
        if shown.succeeded or not cell.role:
            return None
        text = oracles.ANSI.sub("", "\n".join(text for _, text in shown.errors))
        last = text.strip().split("\n")[-1][:300] if text else "the cell failed without an error"
        if shown.interrupted:
            return "hung", f"a correct cell took more than {LIMIT:.0f} s\n{text[-2000:]}"
        return ("wrong" if cell.role == "check" else "dead"), f"{last}\n{text[-2000:]}"

    def _run(self, cell: FuzzCell) -> Shown:
        shown = self.shell.shown = Shown()
        out = io.StringIO()
        timer = threading.Timer(LIMIT if cell.interrupt is None else cell.interrupt, self._fire)
        timer.daemon = True
        self.fired = 0.0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                self.running = True
                timer.start()
                result = self.shell.run_cell(cell.code, store_history=True)
                shown.succeeded = bool(result.success)
            except KeyboardInterrupt:  # outside the cell's own code, where IPython does not expect it
                shown.succeeded = False
            finally:
                self.running = False
                timer.cancel()
        shown.printed, shown.interrupted = out.getvalue(), bool(self.fired)
        shown.succeeded = shown.succeeded and not shown.errors
        return shown

    def _fire(self) -> None:
        """Interrupts as a notebook does: SIGINT for the process and its children."""
        self.fired = time.monotonic()
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    def _left(self, last: int) -> CellOutcome:
        # The magic is absent if no cell has loaded the extension.
        magic = self.shell.magics_manager.magics["cell"].get("blockkernel")
        if left := oracles.remaining(magic.__self__.sessions if magic else []):
            return CellOutcome("leaked", left, last)
        self.count += 1
        if self.count == WARM:
            self.usage = Usage.now()
        if self.usage is not None and self.count % WARM == 0:
            grown = self.usage.grown(Usage.now(), self.count)
            if grown:
                self.usage = Usage.now()
                return CellOutcome("leaked", f"after {self.count} sequences: {grown}", last)
        return CellOutcome("right", "", last)


def _measure_briefly() -> None:
    """Shortens measurements, whose length the fuzzer does not test."""
    from blocknb.notebook import compared, roofline, sweep
    from blocknb.profile import timing

    for module in (compared, roofline, sweep):
        module.SECONDS = 0.005  # type: ignore[attr-defined]
    timing.llc_bytes = lambda: 1 << 20  # type: ignore[assignment]


def run_sequence(sequence: CellSequence) -> Iterator[int | CellOutcome]:
    """Runs a sequence in this process's shell; yields the number of each cell before it runs, and then the outcome."""
    for step in _runner().steps(sequence):
        if isinstance(step, int):
            faulthandler.dump_traceback_later(LIMIT + GRACE, file=_log())
        yield step
    faulthandler.cancel_dump_traceback_later()


_made: dict[str, Any] = {}


def _runner() -> CellRunner:
    """The only runner of this process: IPython has one shell."""
    if "runner" not in _made:
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(PermissionError):
                os.setpgrp()
        folder = os.environ["BLOCKNB_CACHE_DIR"]
        os.environ["IPYTHONDIR"] = tempfile.mkdtemp(prefix="ipython-", dir=folder)
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="temporary-", dir=folder)
        _made["runner"] = CellRunner()
    runner: CellRunner = _made["runner"]
    return runner


def _log() -> Any:
    """The file for the stacks of a cell that hangs."""
    if "log" not in _made:
        _made["log"] = open(os.path.join(os.environ["BLOCKNB_CACHE_DIR"], STACKS), "w")  # noqa: SIM115
    return _made["log"]
