"""The user's data: measuring or showing an accumulating kernel adds only once, and no array outlives its names."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest
from test_measuring_magics import Shell
from test_roofline import LIMITS

from blocknb.notebook import compared, document, export, history, live, roofline, sweep

KERNEL = """@blocknb.kernel
def add_to(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(total + at, tl.load(total + at, mask=at < n) + tl.load(x + at, mask=at < n), mask=at < n)
"""
LAUNCH = "add_to[lambda meta: (blocknb.cdiv(n, meta['BLOCK']),)](x, total, n, BLOCK=64)"
#: Options of the cell; and a magic that comes after a cell without any.
OPTIONS = (
    "",
    "--quiet",
    "--checked",
    "--target sm_80 --show all",
    "--check (total==x).all()",
    "--baseline np.add(x,total,out=total)",
    "--without simplify --without coalesce",
    "--sweep BLOCK=32,64",
    "--sweep num_warps=1,2",
    "--sweep BLOCK=32,64 --baseline np.add(x,total,out=total) --without pointers --check (total==x).all()",
)
MAGICS = (
    "%blockview add_to",
    "%blockview add_to@1",
    "%blockdiff add_to:parse add_to:coalesce",
    f'%blockbench "{LAUNCH}" np.add(x,total,out=total)',
    "%roofline add_to --baseline np.add(x,total,out=total)",
)
REQUESTS = (
    {"what": "turn", "knobs": {"constants": {"BLOCK": 256}, "num_warps": 2, "without": ["coalesce"]}},
    {"what": "whole"},
    {"what": "tiles", "program": 1},
)


@pytest.fixture(scope="module")
def shared_shell():
    return Shell()


@pytest.fixture
def shell(shared_shell, monkeypatch):
    for module in (compared, sweep, roofline):
        monkeypatch.setattr(module, "SECONDS", 0.01)
    monkeypatch.setattr(roofline, "ceilings", lambda device: LIMITS)
    history._histories.clear()
    shared_shell.ip.user_ns.update(x=np.ones(1000, np.float32), total=np.zeros(1000, np.float32), n=1000)
    return shared_shell


class Comm:
    """The page's end of a live card."""

    def __init__(self):
        self.sent = []

    def send(self, data):
        self.sent.append(data)


def launched(shell, options=""):
    result = shell.run(f"%%blockkernel {options}\n{KERNEL}\n{LAUNCH}")
    result.raise_error()
    return shell.documents[0] if shell.documents else None


def asked(made, request):
    comm = Comm()
    live._answer(comm, live._cards[made["model"]], {"id": 1, **request})
    assert "error" not in comm.sent[0], comm.sent


def added_once_and_is_gone(shell, collect):
    """Checks that the kernel has added once, and that no card, history or shell holds an array after its names are deleted."""
    space = shell.ip.user_ns
    assert (space["total"] == 1).all() and (space["x"] == 1).all()
    references = [weakref.ref(space["x"]), weakref.ref(space["total"])]
    del space["x"], space["total"]
    collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", OPTIONS)
def test_with_any_option_an_accumulating_kernel_adds_once_and_its_card_holds_no_array(shell, options, collect):
    made = launched(shell, options)
    assert (made is None) == (options == "--quiet")
    if "--check " in options:
        assert ["check", "correct: `(total==x).all()`"] in made["facts"]
    added_once_and_is_gone(shell, collect)


def test_a_sweep_over_a_size_and_its_launch_add_once(shell, collect):
    shell.run(f"%%blockkernel --sweep n=500,1000 --baseline np.add(x,total,out=total) --launch {LAUNCH}\n{KERNEL}")
    assert shell.documents[0]["sweep"]["values"] == [500, 1000] and shell.ip.user_ns["n"] == 1000
    added_once_and_is_gone(shell, collect)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", MAGICS, ids=lambda line: line.split()[0])
def test_a_line_magic_adds_nothing_and_holds_no_array(shell, line, collect):
    launched(shell)
    shell.run(line).raise_error()
    assert shell.documents
    added_once_and_is_gone(shell, collect)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request_: request_["what"])
def test_requests_of_a_page_add_nothing_and_hold_no_array(shell, request_, collect):
    asked(launched(shell), request_)
    added_once_and_is_gone(shell, collect)


def test_a_knob_compiles_after_the_arrays_are_deleted(shell, collect):
    made = launched(shell)
    added_once_and_is_gone(shell, collect)
    comm = Comm()
    live._answer(comm, live._cards[made["model"]], {"id": 1, **REQUESTS[0]})
    changed = comm.sent[0]["document"]
    assert changed["launches"] == [] and changed["views"][1]["constants"]["BLOCK"] == "256"


def test_an_interpreted_accumulating_kernel_adds_once(shell, collect):
    shell.run(f"%%blockkernel --interpret\n{KERNEL}\n{LAUNCH};").raise_error()
    shell.run("1;")  # `_` was the Run
    added_once_and_is_gone(shell, collect)


def test_the_exported_page_holds_no_array(shell, tmp_path, monkeypatch, collect):
    monkeypatch.setattr(export, "_viewer", lambda: ("", ""))
    launched(shell)
    kernel = shell.ip.user_ns["add_to"]
    assert document.MIME in Path(kernel.export_html(tmp_path / "card.html")).read_text("utf-8")
    added_once_and_is_gone(shell, collect)
