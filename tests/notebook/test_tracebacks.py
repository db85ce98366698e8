"""Tracebacks in a notebook show the user's frames, and those of blocknb with `%xmode Verbose` only."""

from __future__ import annotations

import re
import threading

import pytest
from IPython.core.interactiveshell import InteractiveShell

from blocknb.notebook import tracebacks
from blocknb.notebook.register import register

KERNEL = """import blocknb, blocknb.language as tl, numpy as np
@blocknb.kernel
def k(x):
    tl.store(x, 1.0)
"""


class TracebackShell:
    """A shell that keeps the text of the last error."""

    def __init__(self) -> None:
        self.ip = InteractiveShell(colors="nocolor")
        self.text = ""
        self.ip._showtraceback = self._shown
        register(self.ip)
        self.run(KERNEL)

    def _shown(self, etype, evalue, stb):
        self.text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(stb))

    def run(self, cell: str) -> str:
        self.text = ""
        self.ip.run_cell(cell)
        return self.text


@pytest.fixture(scope="module")
def shell() -> TracebackShell:
    return TracebackShell()


def has_frames_of_blocknb(text: str) -> bool:
    return tracebacks.PACKAGE in text or "/blocknb/runtime/" in text


GRID = "def grid(meta):\n    return meta['x'].nothing\nk[grid](np.zeros(4, np.float32))"


def test_an_error_in_a_grid_function_shows_its_line_and_the_launch(shell):
    text = shell.run(GRID)
    assert text.endswith("AttributeError: 'numpy.ndarray' object has no attribute 'nothing'")
    assert "----> 2     return meta['x'].nothing" in text and "----> 3 k[grid]" in text
    assert not has_frames_of_blocknb(text)


def test_the_verbose_mode_shows_all_frames(shell):
    shell.run("%xmode Verbose")
    try:
        assert has_frames_of_blocknb(shell.run(GRID))
    finally:
        shell.run("%xmode Context")


def test_an_error_of_blocknb_itself_says_how_to_see_its_frames(shell, monkeypatch):
    monkeypatch.setattr("blocknb.runtime.kernel.Kernel.bound_call", None)
    text = shell.run("k.trace(np.zeros(4, np.float32))")
    assert text.endswith(tracebacks.HIDDEN) and "----> 1 k.trace" in text
    assert not has_frames_of_blocknb(text)


def test_an_error_with_a_cause_shows_no_frames_of_blocknb_in_either(shell):
    launch = "k[lambda meta: 1 / 0](np.zeros(4))"
    text = shell.run(f"try:\n    {launch}\nexcept ZeroDivisionError as error:\n    raise ValueError('mine') from error")
    assert "ZeroDivisionError" in text and "ValueError: mine" in text
    assert not has_frames_of_blocknb(text)


def test_an_error_of_the_user_alone_is_shown_as_ever(shell):
    text = shell.run("import json\njson.loads('{')")
    assert "json/decoder.py" in text and "JSONDecodeError" in text


@pytest.mark.parametrize("expression", ["1 / 0", "k[1]()"])
def test_an_error_in_a_thread_prints_no_frames_of_blocknb(shell, expression, capfd, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    tracebacks._install_in_threads()
    shell.run(
        f"import threading\nt = threading.Thread(target=lambda: k[lambda meta: {expression}](np.zeros(4)))\nt.start()\nt.join()"
    )
    printed = capfd.readouterr().err
    assert "Exception in thread" in printed and ("ZeroDivisionError" in printed or "LaunchError" in printed)
    assert not has_frames_of_blocknb(printed)


def test_a_traceback_without_a_frame_of_the_user_is_empty(shell):
    scope: dict = {}
    exec(compile("def ours(f): f()", tracebacks.PACKAGE + "x.py", "exec"), scope)
    try:
        scope["ours"](threading.Condition().notify)
    except Exception as error:
        tb = error.__traceback__
    assert tb is not None and tb.tb_next is not None
    assert tracebacks.users_part(tb.tb_next) is None
