"""The memory figures of a cell equal those of CuPy's pool, and those of cudaMemGetInfo within a page."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("IPython")  # the card needs a notebook

from IPython.core.interactiveshell import InteractiveShell

from blocknb.notebook import document
from blocknb.notebook.register import register

cupy = pytest.importorskip("cupy")

PAGE = 2 << 20  # bytes of a page of a GPU, in which cudaMalloc takes memory
SETUP = """
import blocknb, blocknb.language as tl, cupy as cp, numpy as np
@blocknb.kernel
def scale(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
def reading():
    pool = cp.get_default_memory_pool()
    return pool.used_bytes(), pool.total_bytes(), *cp.cuda.runtime.memGetInfo()
x, out = cp.ones(1 << 20, np.float32), cp.empty(1 << 20, np.float32)
scale[1024](x, out, 1 << 20, BLOCK=1024)
scale[1024](x, out, 1 << 20, BLOCK=1024, checked=True)
"""


@pytest.fixture(scope="module")
def shell() -> Any:
    ip = InteractiveShell(colors="nocolor")
    register(ip)
    ip.run_cell(SETUP).raise_error()
    return ip


def bundle(shell: Any, cell: str) -> dict[str, Any]:
    """The bundle of the card of a cell, which launches `scale`. `start` and `end` become CuPy's own readings."""
    shown: list[dict[str, Any]] = []
    shell.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)
    shell.run_cell("cp.cuda.Device().synchronize(); start = reading()").raise_error()
    shell.run_cell(f"%%blockkernel --memory\n{cell}\ncp.cuda.Device().synchronize(); end = reading()").raise_error()
    return shown[-1]


LAUNCH = "scale[1024](x, out, 1 << 20, BLOCK=1024)"


def test_figures_equal_cupys_pool_and_the_device_within_a_page(shell: Any) -> None:
    cupy.get_default_memory_pool().free_all_blocks()
    cell = (
        f"a = cp.zeros(25_000_000, np.float32)\nb = cp.zeros(12_345_678, np.float64)\ndel b\nview = a[100:]\n{LAUNCH}"
    )
    found = bundle(shell, cell)[document.MIME]["memory"]
    used, held, device = found["pools"]
    start, end = shell.user_ns["start"], shell.user_ns["end"]
    assert (used["before"], used["after"]) == (start[0], end[0])
    assert (held["before"], held["after"], held["peak"]) == (start[1], end[1], end[1])
    blocks = [-(-size // 512) * 512 for size in (100_000_000, 8 * 12_345_678)]
    assert end[0] - start[0] == blocks[0]
    assert used["peak"] == start[0] + sum(blocks)
    for key, reading in (("before", start), ("after", end)):
        assert abs(device[key] - (reading[3] - reading[2])) <= PAGE
    assert abs((device["after"] - device["before"]) - (held["after"] - held["before"])) <= 2 * PAGE
    (row,) = [row for row in found["arrays"] if row["names"] == ["a", "view"]]
    assert (row["bytes"], row["new"], row["place"]) == (blocks[0], True, "GPU 0")
    assert found["unnamed"] == 0
    assert [row["new"] for row in found["arrays"] if row["names"] in (["x"], ["out"])] == [False, False]
    assert not any("no hook of this thread saw" in note for note in found["notes"])


def test_a_plain_launch_allocates_nothing_and_a_race_check_its_shadow_memory(shell: Any) -> None:
    (plain,) = bundle(shell, LAUNCH)[document.MIME]["memory"]["launches"]
    assert (plain["launches"], plain["bytes"], plain["blocks"], plain["peak"]) == (1, 0, 0, 0)
    checked = LAUNCH.replace("BLOCK=1024", 'BLOCK=1024, checked="race"')
    found = bundle(shell, f"{checked}\n{checked}")[document.MIME]["memory"]
    (row,) = found["launches"]
    assert row["launches"] == 2 and row["blocks"] >= 2
    assert row["bytes"] >= row["peak"] > 1 << 20  # shadow cells for 8 MiB of arrays
    assert found["pools"][0]["peak"] >= found["pools"][0]["before"] + row["peak"]


def test_copies_that_slip_in_are_seen_and_cupy_is_as_before(shell: Any) -> None:
    before = dict(vars(cupy.ndarray)), cupy.asarray, cupy.array, cupy.asanyarray
    cell = "\n".join(
        [
            "a = cp.asarray(np.ones(1000, np.float32))",  # line 2 of the cell
            "float(a.sum())",
            "a[:10].get()",
            "a.set(np.zeros(1000, np.float32))",
            "str(a[:7])",
            "cp.asnumpy(a)",
            "bool((a == 0).all())",
            "a[0].item()",
            "cp.asarray(a)",
            "a + 1",
            LAUNCH,
        ]
    )
    shown = bundle(shell, cell)
    found = {
        (row["place"].split("line ")[1], row["direction"]): row for row in shown[document.MIME]["memory"]["copies"]
    }
    sizes = {key: (row["bytes"], row["times"]) for key, row in found.items()}
    assert sizes == {
        ("2", "host to device"): (4000, 1),
        ("3", "device to host"): (4, 1),
        ("4", "device to host"): (40, 1),
        ("5", "host to device"): (4000, 1),
        ("6", "device to host"): (28, 1),
        ("7", "device to host"): (4000, 1),
        ("8", "device to host"): (1, 1),
        ("9", "device to host"): (4, 1),
    }
    assert "2 copies from host to device (7.81 KiB)" in shown["text/plain"]
    assert (dict(vars(cupy.ndarray)), cupy.asarray, cupy.array, cupy.asanyarray) == before


def test_missing_memory_names_the_holders(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pool = cupy.get_default_memory_pool()
    shell.run_cell(
        "big = cp.zeros(8_000_000, np.float32)\nparts = [cp.zeros(1_000_000, np.float32) for _ in range(3)]"
    ).raise_error()
    pool.set_limit(size=pool.total_bytes() + (1 << 20))
    try:
        capsys.readouterr()
        shell.run_cell("%%blockkernel\nnew = cp.zeros(100_000_000, np.float32)")
        text = capsys.readouterr().out
    finally:
        pool.set_limit(size=0)
    assert "OutOfMemoryError: Out of memory allocating 400,000,000 bytes" in text
    assert re.search(r"big +30.5 MiB  float32 \(8000000,\)", text) and re.search(r"parts +11.4 MiB  3 arrays", text)
    assert "The pool has a limit of" in text and "in free blocks" in text and "free for all processes" in text
