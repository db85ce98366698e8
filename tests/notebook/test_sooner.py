"""Cards appear quickly: their modules are loaded in advance, and both targets are compiled concurrently before the launch."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from test_measuring_magics import Shell

from blocknb.errors import Unsupported
from blocknb.notebook import document, extension
from blocknb.runtime import compile as compiler
from blocknb.runtime import job, launch_context

KERNEL = """@blocknb.kernel
def triple(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 3)  # {tag}
"""


@pytest.fixture
def shell(monkeypatch):
    made = Shell()
    made.ip.user_ns.update(x=np.ones(64, np.float32), out=np.zeros(64, np.float32))
    compiler.forget()
    return made


@pytest.fixture
def seen(monkeypatch):
    """The events in order: ("begin" or "end", target, thread) of each compilation without a cache hit, and ("launch",)."""
    found, real = [], job.Job.run

    def run(one):
        found.append(("begin", str(one.target), threading.current_thread().name))
        made = real(one)
        found.append(("end", str(one.target), threading.current_thread().name))
        return made

    monkeypatch.setattr(job.Job, "run", run)
    monkeypatch.setattr(compiler, "from_disk", lambda request: None)
    monkeypatch.setattr(launch_context, "observers", [lambda launch: found.append(("launch",))])
    return found


def test_cpu_and_gpu_code_are_compiled_concurrently_before_the_launch(shell, seen):
    shell.run("%%blockkernel\n" + KERNEL.format(tag=1) + "triple[2,](x, out, BLOCK=32)").raise_error()
    launched = seen.index(("launch",))
    assert len(seen) == 5 and launched == 4
    threads = {target: thread for what, target, thread in seen[:launched] if what == "begin"}
    assert threads["sm_90a"] == "blocknb-view" and len(threads) == 2
    assert len({*threads.values()}) == 2
    assert [view["role"] for view in shell.documents[0]["views"]] == ["ran", "view"]


def test_only_the_first_specialization_is_compiled_concurrently(shell, seen):
    cell = KERNEL.format(tag=2) + "for block in (8, 16, 32):\n    triple[64 // block,](x, out, BLOCK=block)"
    shell.run("%%blockkernel\n" + cell).raise_error()
    concurrent = [i for i, entry in enumerate(seen) if entry[:2] == ("begin", "sm_90a")]
    assert len(concurrent) == 2 and concurrent[0] < seen.index(("launch",))
    assert concurrent[1] > max(i for i, entry in enumerate(seen) if entry == ("launch",))
    assert shell.documents[0]["views"][1]["constants"]["BLOCK"] == "32"


@pytest.mark.parametrize(("options", "targets"), [("--target cpu", 1), ("--interpret", 0), ("--target sm_80", 2)])
def test_only_targets_of_the_card_are_compiled(shell, seen, options, targets):
    shell.run(f"%%blockkernel {options}\n" + KERNEL.format(tag=3) + "triple[2,](x, out, BLOCK=32);").raise_error()
    assert len({entry[1] for entry in seen if entry[0] == "begin"}) == targets
    assert launch_context.companions == []


def test_an_error_of_the_concurrent_compilation_appears_only_on_the_card(shell, monkeypatch, capsys):
    real = job.Job.run

    def run(one):
        if one.target.is_gpu:
            raise Unsupported("not on this one")
        return real(one)

    monkeypatch.setattr(job.Job, "run", run)
    monkeypatch.setattr(compiler, "from_disk", lambda request: None)
    shell.run("%%blockkernel\n" + KERNEL.format(tag=4) + "triple[2,](x, out, BLOCK=32)").raise_error()
    assert "not on this one" in shell.documents[0]["views"][1]["error"]
    assert (shell.ip.user_ns["out"] == 3).all() and "not on this one" not in capsys.readouterr().err


def test_a_page_requests_the_assembly_after_the_card(shell, monkeypatch):
    monkeypatch.setattr(extension, "answers", [extension.Announcement("0.1.0", 2)])
    shell.run("%%blockkernel --quiet\n" + KERNEL.format(tag=5) + "triple[2,](x, out, BLOCK=32)").raise_error()
    shell.run("triple").raise_error()
    trace = shell.ip.user_ns["triple"].latest.trace
    assert "assembly" not in vars(trace)
    assert "mov" in trace.assembly
    assert trace.assembly == shell.ip.user_ns["triple"].latest.asm["assembly"]


def test_the_first_card_of_a_notebook_imports_no_further_modules(own_kernel):
    assert own_kernel.run("import sys, threading").status == "ok"
    loading = "any(t.name == 'blocknb-prepare' for t in threading.enumerate())"
    deadline = time.monotonic() + 300
    while own_kernel.run(loading).bundles[0]["text/plain"] == "True":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    own_kernel.run("before = set(sys.modules)")
    answer = own_kernel.run("%%blockkernel\n" + KERNEL.format(tag=6) + "triple[2,](x, out, BLOCK=32)")
    assert answer.cards[0][document.MIME]["kernel"] == "triple"
    loaded = own_kernel.run(
        "sorted(n for n in set(sys.modules) - before if n.startswith(('blocknb', 'numpy', 'llvmlite')))"
    )
    assert loaded.bundles[0]["text/plain"] == "[]"
