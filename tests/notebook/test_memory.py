"""The memory of a cell: arrays by name, the peak on the CPU, and CuPy's pools and copies on a GPU. If it runs out, the error names what
holds memory."""

from __future__ import annotations

import json
import re
import threading

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from pretend_cupy import OutOfMemoryError, pretend_cupy

from blocknb.notebook import device_copies, document, holders
from blocknb.notebook.memory import CellMemory
from blocknb.notebook.register import register
from blocknb.runtime import driver, launch_context

KERNEL = """@blocknb.kernel
def scale(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))
"""


@pytest.fixture(scope="module")
def shell():
    ip = InteractiveShell(colors="nocolor")
    register(ip)
    ip.run_cell(f"import blocknb, blocknb.language as tl, numpy as np\n{KERNEL}").raise_error()
    return ip


def bundle(shell, cell: str, options: str = "") -> dict:
    """The bundle of the card of a cell, which launches `scale` at its end."""
    shown: list[dict] = []
    shell.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)
    body = f"{cell}\nx, out = np.zeros((2, 64), np.float32)\nscale[1](x, out, BLOCK=64);"
    shell.run_cell(f"%%blockkernel {options}\n{body}").raise_error()
    return shown[-1]


def part(shell, cell: str, options: str = "") -> dict:
    return bundle(shell, cell, options)[document.MIME]["memory"]


def by_name(found: dict) -> dict[str, dict]:
    return {", ".join(row["names"]): row for row in found["arrays"]}


# ---- arrays by name ----------------------------------------------------------------------------------------------------------


def test_views_share_memory_and_containers_are_searched(shell):
    lists = "many = {'w': [np.ones(100) for _ in range(5)]}"
    rows = by_name(
        part(shell, f"a = np.zeros(1000)\nb = a[10:20]\n{lists}\nclass Bag: pass\nbag = Bag()\nbag.x = np.ones(7)")
    )
    assert (rows["a, b"]["bytes"], rows["a, b"]["arrays"], rows["a, b"]["what"]) == (8000, 1, "float64 (1000,)")
    assert (rows["many"]["bytes"], rows["many"]["what"]) == (4000, "5 arrays")
    assert rows["bag"]["bytes"] == 56


def test_only_arrays_that_did_not_exist_before_the_cell_are_new(shell):
    shell.run_cell("old = np.zeros(500)").raise_error()
    found = part(shell, "new = np.zeros(300)\nalias = old")
    rows = by_name(found)
    assert rows["new"]["new"] and not rows["old, alias"]["new"]
    assert found["kept"] == 2400 + 512  # and x with out
    rows = by_name(part(shell, "old = np.zeros(500)"))
    assert rows["old"]["new"] and not rows["alias"]["new"]


def test_an_address_that_is_used_again_is_new_memory():
    namespace = {"x": np.zeros(1 << 16)}
    observed = CellMemory(namespace)
    observed.start()
    address = namespace["x"].ctypes.data
    del namespace["x"]
    replaced = [np.zeros(1 << 16)]
    while replaced[-1].ctypes.data != address and len(replaced) < 100:
        replaced.append(np.zeros(1 << 16))
    namespace["x"] = replaced[-1]
    observed.stop()
    assert namespace["x"].ctypes.data == address
    assert [m.bytes for m in observed._lasting()] == [1 << 19]


def test_results_of_cells_are_called_out(shell):
    shell.run_cell("np.ones(77)", store_history=True).raise_error()
    try:
        found = holders.grouped(holders.held(shell.user_ns).values())
        (row,) = [holder for holder in found if holder.bytes == 77 * 8]
        assert row.names == (f"Out[{shell.execution_count - 1}]",)
    finally:
        shell.run_line_magic("reset", "-f out")


def test_a_mapped_file_and_memory_behind_a_buffer(tmp_path):
    mapped = np.memmap(tmp_path / "file", np.uint8, "w+", shape=4096)
    held = holders.held({"mapped": mapped, "part": mapped[:10], "buffer": np.frombuffer(bytearray(100), np.uint8)})
    assert sorted((tuple(m.names), m.kind, m.countable) for m in held.values()) == [
        (("buffer",), "", True),
        (("mapped", "part"), "mapped file", False),
    ]


def test_a_list_that_holds_itself_and_a_long_one_end_the_search():
    loop: list = [np.ones(3)]
    loop.append(loop)
    assert len(holders.held({"loop": loop})) == 1
    cut = set[str]()
    assert len(holders.held({"texts": list(map(str, range(10 * holders.MOST))), "numbers": [0.5] * 100_000}, cut)) == 0
    assert cut == set()
    many = [np.ones(1) for _ in range(holders.MOST + 5)]
    assert len(holders.held({"many": many}, cut)) == holders.MOST - 1
    assert cut == {"many"}


def test_the_search_runs_no_code_of_the_user():
    class Lazy:
        @property
        def __class__(self):
            raise AssertionError("loaded")

    class Rows(list):
        def __iter__(self):
            raise AssertionError("computed")

    found = holders.held({"lazy": Lazy(), "rows": Rows([np.ones(5)])})
    assert [m.bytes for m in found.values()] == [40]


def test_a_list_that_grows_has_a_row_for_its_new_arrays(shell):
    shell.run_cell("history = [np.ones(100) for _ in range(4)]").raise_error()
    rows = [row for row in part(shell, "history.append(np.ones(1000))")["arrays"] if row["names"] == ["history"]]
    assert [(row["bytes"], row["new"]) for row in rows] == [(8000, True), (3200, False)]


# ---- the CPU -----------------------------------------------------------------------------------------------------------------


def test_the_option_measures_the_peak_and_arrays_without_a_name(shell):
    cell = "def work():\n    return np.ones(1 << 20).sum()\nwork()\nhidden = lambda a=np.ones(5000): a"
    part(shell, cell, "--memory")  # imports the modules of the compiler, whose memory counts, too
    found = part(shell, cell, "--memory")
    (traced,) = [row for row in found["pools"] if row["name"] == "Python and NumPy"]
    assert 8 << 20 <= traced["peak"] < (8 << 20) + 500_000
    assert found["unnamed"] == 40_000
    assert traced["after"] == 40_000 + found["kept"]
    (row,) = found["launches"]
    assert (row["kernel"], row["launches"], row["bytes"]) == ("scale", 1, None)
    assert 0 < row["peak"] < 1 << 20


def test_without_the_option_nothing_is_traced(shell):
    found = part(shell, "import tracemalloc\ntraces = tracemalloc.is_tracing()")
    assert shell.user_ns["traces"] is False
    assert found["launches"] == [] and [row["peak"] for row in found["pools"]] == [None]


def test_a_measurement_of_the_user_is_left_alone(shell):
    cell = "import tracemalloc\ntracemalloc.start()"
    shell.run_cell(cell).raise_error()
    try:
        found = part(shell, "", "--memory")
        shell.run_cell("still = tracemalloc.is_tracing()").raise_error()
        assert shell.user_ns["still"] and "tracemalloc was on" in found["notes"][0]
    finally:
        shell.run_cell("tracemalloc.stop()")


def test_the_option_opens_the_view_and_the_fallbacks_have_the_figures(shell):
    shown = bundle(shell, "a = np.zeros(2000)", "--memory")
    assert shown[document.MIME]["show"][0] == "memory"
    for text in (shown["text/plain"], re.sub(r"<[^>]*>", "", shown["text/html"])):
        assert re.search(r"new +15.6 KiB  a: float64 \(2000,\) \(CPU\)", text)
        assert "of new arrays outlive the cell" in text
    quiet = bundle(shell, "a = np.zeros(2000)")
    assert "outlive the cell" not in quiet["text/plain"] + quiet["text/html"]


# ---- CuPy --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cupy(shell, collect):
    collect()
    with pretend_cupy() as found:
        shell.user_ns["cp"] = found.module
        yield found
    for name in ("cp", "a", "b", "early", "kept"):
        shell.user_ns.pop(name, None)


def test_figures_equal_those_of_the_pool(shell, cupy):
    shell.run_cell("early = cp.zeros(1000)").raise_error()
    used, free = cupy.pool.used, cupy.device.info()[0]
    assert used == 4096
    found = part(shell, "a = cp.zeros(5000)\nb = cp.zeros(100_000)\ndel b\nkept = a[:]")
    rows = {row["name"]: row for row in found["pools"]}
    row = rows["CuPy's pool on GPU 0: used"]
    assert (row["before"], row["after"]) == (used, cupy.pool.used) == (4096, 4096 + 20_480)
    assert row["peak"] == 4096 + 20_480 + 400_384
    row = rows["CuPy's pool on GPU 0: held"]
    assert (row["before"], row["after"], row["peak"]) == (4096, cupy.pool.total, cupy.pool.total)
    row = rows["GPU 0: used by all processes"]
    assert row["after"] - row["before"] == free - cupy.device.info()[0]
    arrays = by_name(found)
    assert (arrays["a, kept"]["bytes"], arrays["a, kept"]["place"], arrays["a, kept"]["new"]) == (20_480, "GPU 0", True)
    assert not arrays["early"]["new"]
    assert found["unnamed"] == 0 and "3 free blocks (3 before the cell)" in found["notes"][0]


def test_freeing_an_older_array_lowers_the_use_and_not_the_peak(shell, cupy):
    shell.run_cell("early = cp.zeros(1000)").raise_error()
    found = part(shell, "del early\na = cp.zeros(1000)")
    row = found["pools"][0]
    assert (row["before"], row["after"], row["peak"]) == (4096, 4096, 4096)
    assert by_name(found)["a"]["new"]  # in the block that the older array had


def test_blocks_without_a_name_and_blocks_of_another_thread(shell, cupy):
    found = part(shell, "hidden = lambda a=cp.zeros(1000): a")
    assert found["unnamed"] == 4096
    shell.user_ns["threading"] = threading
    found = part(
        shell,
        "t = threading.Thread(target=lambda: cp.cuda.others.append(cp.zeros(1000)))\ncp.cuda.others = []\nt.start()\nt.join()",
    )
    assert "changed by 4096 bytes that no hook of this thread saw" in found["notes"][0]
    assert found["pools"][0]["peak"] == found["pools"][0]["after"]


def test_copies_have_their_bytes_and_lines_and_nothing_stays_replaced(shell, cupy):
    before = dict(vars(cupy.module)), dict(vars(cupy.module.ndarray))
    cell = "a = cp.asarray(np.ones(100))\nfor i in range(3):\n    a.get()\nfloat(cp.asarray(1.0))\na.set(np.zeros(100))\ncp.asarray(a)"
    shown = bundle(shell, cell)
    found = shown[document.MIME]["memory"]["copies"]
    assert {
        (row["direction"], row["bytes"], row["times"], row["place"].split(", ")[-1], row["code"]) for row in found
    } == {
        ("host to device", 800, 1, "line 2", "a = cp.asarray(np.ones(100))"),
        ("device to host", 2400, 3, "line 4", "a.get()"),
        ("host to device", 8, 1, "line 5", "float(cp.asarray(1.0))"),
        ("device to host", 8, 1, "line 5", "float(cp.asarray(1.0))"),
        ("host to device", 800, 1, "line 6", "a.set(np.zeros(100))"),
    }
    assert "4 copies from device to host (2.35 KiB)" in shown["text/plain"]
    assert (dict(vars(cupy.module)), dict(vars(cupy.module.ndarray))) == before
    assert not device_copies._watches and not launch_context.observers and not launch_context.preludes


def test_a_failing_cell_and_a_cell_within_a_cell_leave_nothing_behind(shell, cupy):
    before = dict(vars(cupy.module)), dict(vars(cupy.module.ndarray))
    shell.display_pub.publish = lambda *args, **kwargs: None
    shell.run_cell("%%blockkernel\nget_ipython().run_cell('%%blockkernel\\ncp.zeros(7)')\n1 / 0")
    assert (dict(vars(cupy.module)), dict(vars(cupy.module.ndarray))) == before
    shell.run_cell("a = cp.zeros(5)").raise_error()
    assert not device_copies._watches


def test_allocations_within_a_launch_belong_to_it(shell, cupy):
    observed = CellMemory(shell.user_ns)
    observed.start()
    try:
        kernel = shell.user_ns["scale"]
        outside = cupy.module.zeros(1000)
        for count in (100, 300):
            observed._begins(kernel, None, None)
            scratch = cupy.module.zeros(count)
            del scratch
            scratch = cupy.module.zeros(count)
            observed._ended(type("Ended", (), {"kernel": kernel, "device": 0}))
            del scratch
        del outside
    finally:
        observed.stop()
    (row,) = observed._launch_rows()
    assert row == {
        "kernel": "scale",
        "device": 0,
        "launches": 2,
        "bytes": 2 * 512 + 2 * 1536,
        "blocks": 4,
        "peak": 1536,
    }


def test_a_broken_context_costs_the_figures_and_not_the_cell(shell, cupy):
    def broken() -> int:
        raise RuntimeError("cudaErrorIllegalAddress")

    cupy.module.cuda.runtime.memGetInfo = broken
    found = part(shell, "")
    assert "CuPy's pools cannot be read: cudaErrorIllegalAddress" in found["notes"]
    assert all(not row["name"].startswith("CuPy") for row in found["pools"])


# ---- no memory left ----------------------------------------------------------------------------------------------------------


def error_text(shell, capsys, cell: str) -> str:
    capsys.readouterr()
    shell.run_cell(cell)
    return capsys.readouterr().out


def test_too_little_memory_on_the_cpu_names_the_holders(shell, capsys):
    shell.run_cell("big = np.ones(1 << 21)\nview = big[1:]").raise_error()
    text = error_text(shell, capsys, "def work():\n    local = np.ones(1 << 22)\n    return np.ones(1 << 58)\nwork()")
    assert re.search(r"local \(in work\) +32 MiB", text) and re.search(r"big, view +16 MiB", text)
    assert "`local (in work)` is freed when the function returns" in text
    shell.user_ns.pop("big"), shell.user_ns.pop("view")


def test_too_little_memory_on_a_gpu_names_the_holders_and_the_free_blocks(shell, cupy, capsys):
    shell.run_cell(
        "a = cp.zeros(100_000)\nb = [cp.zeros(10_000) for _ in range(3)]\nearly = cp.zeros(1000)\ndel early"
    ).raise_error()
    cupy.pool.limit = 1 << 20
    text = error_text(shell, capsys, "%%blockkernel\ncp.zeros(1 << 20)")
    assert "OutOfMemoryError" in text and "Arrays that hold the most memory of the GPU" in text
    assert re.search(r"a +391 KiB  float32 \(100000,\)\n +b +118 KiB  3 arrays", text)
    assert "4 KiB in free blocks" in text and "The pool has a limit of 1 MiB" in text
    assert "To free 391 KiB: del a" in text and "MiB  x" not in text


def test_a_launch_without_memory_is_explained(shell, cupy, capsys):
    shell.run_cell("a = cp.zeros(100_000)").raise_error()
    shell.user_ns["fails"] = lambda: (_ for _ in ()).throw(driver.explain(OutOfMemoryError("Out of memory"), "scale"))
    text = error_text(shell, capsys, "fails()")
    assert "the GPU has too little free memory to launch scale: Out of memory" in text


def test_the_part_is_small(shell):
    cell = "\n".join(f"v{i} = [np.ones(3) for _ in range(50)]" for i in range(60))
    found = part(shell, cell)
    assert len(json.dumps(found)) < 6000 and found["more_arrays"] > 30
    for i in range(60):
        del shell.user_ns[f"v{i}"]
