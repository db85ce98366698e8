"""A long compilation shows which pass runs and can be interrupted; an interrupted or failed one shows the passes that ran."""

from __future__ import annotations

import functools
import threading
import time
import types
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from test_knobs import accumulated

from blocknb import passes
from blocknb.codegen import llvm
from blocknb.errors import CompilationInterrupted, LaunchError
from blocknb.notebook import compile_status, document, live
from blocknb.notebook.register import register
from blocknb.passes.registry import REGISTERED
from blocknb.runtime import compile as compiler
from blocknb.runtime import compile_progress
from blocknb.target import Target

CELL = """%%blockkernel
@blocknb.kernel
def tripled{number}(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, {number} * tl.load(x + at))

tripled{number}[4,](x, out, BLOCK=64)"""


def acting(monkeypatch: Any, name: str, act: Any) -> None:
    """Makes a pass call a function first. An error of it is not left out."""
    found = passes.load(f"tile.{name}")

    @functools.wraps(found.run)
    def acted(func: Any, target: Any, notes: Any) -> Any:
        act()
        return found.run(func, target, notes)

    monkeypatch.setitem(REGISTERED, name, replace(found, run=acted, optional=False))


def interrupt() -> None:
    raise KeyboardInterrupt


def full(*args: Any) -> None:
    raise LaunchError("there is no room", hint="choose smaller tiles")


class Cells:
    """A shell with two arrays; `shown` has the documents of its cards."""

    def __init__(self) -> None:
        self.shell: Any = InteractiveShell()
        self.shown: list[Any] = []
        self.shell.display_pub.publish = lambda data, *args, **kwargs: self.shown.append(data.get(document.MIME))
        register(self.shell)
        self.run("import blocknb, blocknb.language as tl, numpy as np")
        self.run("x, out = np.ones((2, 256), np.float32)")

    def run(self, code: str) -> Any:
        return self.shell.run_cell(code)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    monkeypatch.setattr(compiler, "from_disk", lambda request: None)
    return Cells()


def test_after_an_error_of_the_front_end_the_next_compilation_is_watched(monkeypatch):
    watch, watched = compile_status.CompileWatch(), threading.Event()
    monkeypatch.setattr(watch, "_watch", lambda: None)
    watch.begun()
    watch._thread.join()  # it ended without `_watch` having cleared it
    monkeypatch.setattr(watch, "_watch", watched.set)
    watch.begun()
    assert watched.wait(120)


def test_a_pass_that_takes_long_is_shown_while_it_runs(cells, monkeypatch):
    texts: list[str] = []
    watch = compile_status.CompileWatch()
    monkeypatch.setattr(compile_status, "DELAY", 0.1)
    monkeypatch.setattr(compile_status, "INTERVAL", 0.02)
    monkeypatch.setattr(compile_progress, "begun", watch.begun)

    def slow_texts() -> list[str]:
        return [text for text in texts if "tripled31 for sm_90a: coalesce, " in text]

    def until_shown() -> None:
        until = time.monotonic() + 120
        while len(set(slow_texts())) < 2 and time.monotonic() < until:
            time.sleep(0.01)

    acting(monkeypatch, "coalesce", until_shown)
    with compile_status.sent_to(texts.append):
        assert cells.run(CELL.format(number=31)).success
    slow = slow_texts()
    assert slow, texts
    count = len(passes.pipeline(Target.parse("sm_90a")))
    assert f"of {count} passes done" in slow[0] and slow[0].endswith(" s") and slow[0] != slow[-1]
    assert not compile_progress.active


def test_the_status_is_an_output_of_its_cell_also_after_a_comm_message_on_another_thread(monkeypatch):
    zmqshell, session = pytest.importorskip("ipykernel.zmqshell"), pytest.importorskip("jupyter_client.session")
    publisher, sent = zmqshell.ZMQDisplayPublisher(session=session.Session()), []
    monkeypatch.setattr(publisher.session, "send", lambda socket, message, **more: sent.append(message))
    monkeypatch.setattr(InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(InteractiveShell, "instance", lambda: types.SimpleNamespace(display_pub=publisher))
    monkeypatch.setattr(compile_status, "DELAY", 0.05)
    monkeypatch.setattr(compile_status, "INTERVAL", 0.01)
    own = threading.main_thread().ident
    compilations = {n: compile_progress.CompileProgress("long", t, began=0.0) for n, t in ((1, "sm_90a"), (own, "CPU"))}
    monkeypatch.setattr(compile_progress, "active", compilations)
    watch = compile_status.CompileWatch()

    def displays() -> list[str]:
        """The cells of the outputs that were displayed, without their updates."""
        return [one["parent_header"]["msg_id"] for one in list(sent) if one["msg_type"] == "display_data"]

    # The compilation of the second cell begins before the thread sees the end of the first.
    for number, cell in enumerate(("cell 1", "cell 2"), 1):
        publisher.set_parent({"header": {"msg_id": cell}})
        watch.cell_begins()
        comm = threading.Thread(target=publisher.set_parent, args=({"header": {"msg_id": "comm"}},))
        comm.start()
        comm.join()
        watch.begun()
        until = time.monotonic() + 120
        while len(displays()) < number and time.monotonic() < until:
            time.sleep(0.01)
    thread = watch._thread
    compile_progress.active.clear()
    thread.join(120)
    assert displays() == ["cell 1", "cell 2"]
    assert sent[0]["content"]["data"]["text/plain"].startswith("compiling long for CPU: ")  # the code that runs
    assert sent[-1]["content"]["data"] == {"text/plain": ""}


def test_an_interrupted_cell_shows_the_passes_that_ran_and_the_next_one_works(cells, monkeypatch):
    with monkeypatch.context() as patched:
        acting(patched, "simplify", interrupt)
        result = cells.run(CELL.format(number=32))
    assert isinstance(result.error_in_exec, CompilationInterrupted)
    (shown,) = filter(None, cells.shown)
    assert dict(shown["facts"])["interrupted"] == "✗ interrupted in simplify, after 1 stage"
    assert [stage["name"] for stage in shown["views"][0]["stages"]] == ["parse"]
    assert cells.run(CELL.format(number=32)).success


def test_an_interrupt_ends_the_wait_for_a_worker():
    job: Future[Any] = Future()
    with pytest.raises(KeyboardInterrupt):
        llvm.Workers(1).wait(job, interrupt)  # of a job that never ends
    assert job.cancelled()


@pytest.mark.parametrize(("act", "title"), [(interrupt, "interrupted in pointers"), (full, "there is no room")])
def test_a_knob_whose_compilation_ends_early_shows_the_passes_that_ran(monkeypatch, act, title):
    monkeypatch.setattr(
        compiler, "from_disk", lambda request: None
    )  # its stages would be made again, by the changed pass
    shown, *_arrays = accumulated(block=64)
    page, sent = live.register(shown), []
    comm = types.SimpleNamespace(send=sent.append)
    with monkeypatch.context() as patched:
        acting(patched, "pointers", act)
        wanted = {"constants": {"BLOCK": 16}}
        live._answer(comm, page, {"id": 1, "what": "turn", "knobs": wanted})
    answer = sent[-1]
    assert title in answer["document"]["modified"]["text"]
    assert answer["document"]["modified"]["settings"] == "BLOCK=16" and answer["document"]["model"] == page.id
    assert [stage["name"] for stage in answer["document"]["views"][0]["stages"]][:2] == ["parse", "simplify"]
    assert answer["document"]["knobs"]["constants"][0]["value"] == 16
    saved = answer["saved"]
    assert saved["knobs"]["constants"][0]["value"] == 64 and saved["modified"] == answer["document"]["modified"]
    live._answer(comm, page, {"id": 2, "what": "stage_text", "view": 0, "stage": "simplify"})
    assert "failed" in sent[-1]["error"]
    live._answer(comm, page, {"id": 3, "what": "turn", "knobs": {"constants": {"BLOCK": 64}}})
    assert "modified" not in sent[-1]["document"] and page.failed is None
