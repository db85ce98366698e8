"""A compilation that fails late shows the passes that ran, why it failed, and what would make it fit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.codegen import llvm
from blocknb.errors import KernelError, OutOfResources
from blocknb.notebook import card, document, failed_compile
from blocknb.notebook.blobs import read


@blocknb.kernel
def product(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        total += tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * BN + n[None, :]))
    tl.store(c + m[:, None] * BN + n[None, :], total.to(tl.float16))


def compiled(target, **sizes):
    a, b, c = (np.zeros((256, 256), np.float16) for _ in range(3))
    return product.warmup(a, b, c, 256, grid=(1,), **sizes).retarget(target)


def shared_memory_error(**sizes):
    with pytest.raises(OutOfResources) as raised:
        compiled("sm_75", **sizes)
    return raised.value


def test_an_error_on_shared_memory_names_buffers_and_constants_that_fit():
    error = shared_memory_error(BM=128, BN=256, BK=128)
    assert "needs 98304 bytes" in error.message and "has 65536" in error.message
    assert "65536 bytes for 128x256 fp16 (line " in error.hint
    name, value, expected = re.search(r"(BN)=(\d+) would fit, with about (\d+) bytes", error.hint).groups()
    fits = compiled("sm_75", **{"BM": 128, "BN": 256, "BK": 128, name: int(value)})
    assert fits.trace.resources.shared_bytes == int(expected)


def test_a_card_shows_the_passes_before_the_failure():
    a, b, c = (np.zeros((256, 256), np.float16) for _ in range(3))
    record = observed(lambda: product[1,](a, b, c, 256, BM=128, BN=256, BK=128))
    made = card.card_of(record, "sm_75")
    found = made.bundle()[document.MIME]
    ran, failed = found["views"]
    assert "error" not in ran
    names = [stage["name"] for stage in failed["stages"]]
    assert names[0] == "parse" and names[-1] == "operand_reload" and "shared_memory_allocation" not in names
    assert f"in shared_memory_allocation, after {len(names)} stages" in failed["error"]
    assert all("dot" in read(found["blobs"], stage["text"])["text"] for stage in failed["stages"])
    assert failed["code"] == {}
    assert dict(made.facts)["sm_75"] == f"✗ {failed['error']}"


def test_a_failure_of_the_assembler_keeps_every_stage_and_the_llvm_text(monkeypatch):
    def refuses(*args, **kwargs):
        error = llvm._ptxas_error(
            "ptxas error: Entry function 'product' uses too much shared data (0x20000 bytes, 0xc000 max)", "sm_75", ""
        )
        return llvm.then(_failed(error), lambda answer: answer)

    monkeypatch.setattr(llvm, "compile_cuda", refuses)
    with pytest.raises(OutOfResources, match="needs 131072 bytes of shared data, and sm_75 has 49152") as raised:
        compiled("sm_75", BM=32, BN=32, BK=32)
    trace = failed_compile.stages_of(raised.value)
    assert trace.stages[-1].name == "barriers" or "barriers" in [stage.name for stage in trace.stages]
    assert "define" in trace.llvm
    made = failed_compile.bundle(raised.value, trace)[document.MIME]
    (view,) = made["views"]
    assert "in LLVM or ptxas" in view["error"] and "define" in read(made["blobs"], view["code"]["llvm"])["text"]


def _failed(error):
    from concurrent.futures import Future

    future = Future()
    future.set_exception(error)
    return future


def test_an_error_before_the_first_stage_has_no_stages():
    with pytest.raises(KernelError) as raised:
        compiled("sm_75", BM=32, BN=32, BK=24)
    assert failed_compile.stages_of(raised.value) is None


CELL = """%%blockkernel
@blocknb.kernel
def copy(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))

copy[1,](np.ones(64, np.float32), np.ones(64, np.float32), BLOCK=64)
"""


def test_a_cell_whose_launch_fails_late_shows_the_passes_below_the_error(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    from blocknb.notebook.register import register

    shell, shown = InteractiveShell(), []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, *args, **kwargs: shown.append(data))
    register(shell)
    shell.run_cell("import blocknb, blocknb.language as tl, numpy as np").raise_error()
    error = OutOfResources("the kernel needs too much")
    monkeypatch.setattr(llvm, "compile_cpu", lambda *args, **kwargs: llvm.then(_failed(error), lambda answer: answer))
    result = shell.run_cell(CELL)
    assert result.error_in_exec is error
    (data,) = [data for data in shown if document.MIME in data]
    (view,) = data[document.MIME]["views"]
    assert view["target"].startswith("cpu") and "the kernel needs too much" in view["error"]
    assert [stage["name"] for stage in view["stages"]][:2] == ["parse", "simplify"]
    assert "simplify" in data["text/html"] and "failed" in data["text/plain"]
