"""The promises of docs/design/memory_order.md and the litmus kernels agree: each kernel belongs to a promise, and runs on CPU and GPU."""

from __future__ import annotations

import re
from pathlib import Path

import litmus
import locks
import pytest

HERE = Path(__file__).parent
TEXT = (HERE.parent / "docs/design/memory_order.md").read_text()
KERNELS = {
    name
    for module in (litmus, locks)
    for name, value in vars(module).items()
    if hasattr(value, "source") and not name.startswith("count_")
}


def promises() -> dict[int, list[str]]:
    """The kernels of each promise, by its number."""
    rows = re.findall(r"^\| (\d+) \| .* \| ([^|]*) \|$", TEXT, re.MULTILINE)
    return {int(number): re.findall(r"`(\w+)`", kernels) for number, kernels in rows}


def test_promises_are_numbered_and_name_litmus_kernels():
    found = promises()
    assert list(found) == list(range(1, len(found) + 1)) and len(found) >= 12
    named = {kernel for kernels in found.values() for kernel in kernels}
    assert named <= KERNELS
    assert [number for number, kernels in found.items() if not kernels] == [12]


def test_each_litmus_kernel_shows_a_promise_or_an_outcome_that_is_not_promised():
    named = {kernel for kernels in promises().values() for kernel in kernels}
    _, rest = TEXT.split("### Not promised")
    assert KERNELS - named <= set(re.findall(r"`(\w+)`", rest))
    assert set(litmus.ALLOWED) <= set(re.findall(r"`(\w+)`", rest))
    assert set(litmus.FORBIDDEN) <= named


@pytest.mark.parametrize("folder", ["cpu", "gpu"])
def test_each_litmus_kernel_runs_on_the_cpu_and_on_a_gpu(folder):
    names = {
        "cpu": ("test_cpu_locks.py", "test_cpu_litmus.py"),
        "gpu": ("test_memory_order_gpu.py", "test_litmus_gpu.py"),
    }
    text = "".join((HERE / folder / name).read_text() for name in names[folder])
    missing = {kernel for kernel in KERNELS if not re.search(rf"\.{kernel}\b", text)}
    assert missing <= ({"grid_barrier"} if folder == "cpu" else set()), (
        missing
    )  # a CPU's threads cannot all wait at once
