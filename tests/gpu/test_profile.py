"""Ceilings, rooflines and sweeps on a GPU: no kernel exceeds its limit, and the user's arrays do not change."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("IPython")  # the card needs a notebook

import blocknb
import blocknb.language as tl
from blocknb.kernels import add, matmul, softmax
from blocknb.notebook import roofline as rooflines
from blocknb.notebook import sweep
from blocknb.profile import ceilings as limits
from blocknb.profile.replay import captured_by
from blocknb.profile.timing import interleaved

cupy = pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def measured() -> limits.Ceilings:
    return limits.measure(0)


def test_every_limit_of_a_gpu_is_measured_with_a_spread(measured: limits.Ceilings) -> None:
    assert measured.missing == ()
    assert [item.name for item in measured.items] == list(limits._GPU)
    assert all(0 < item.low <= item.value <= item.high < 1.2 * item.low for item in measured.items), measured.items


def test_measured_limits_have_the_order_of_the_hardware(measured: limits.Ceilings) -> None:
    value = {item.name: item.value for item in measured.items}
    assert value["memory"] < value["L2 cache"] < value["shared memory"]
    assert value["FP32"] < value["tensor tf32"] < value["tensor fp16"]


def test_memory_limit_is_within_three_percent_of_a_copy(measured: limits.Ceilings) -> None:
    source = cupy.random.random(1 << 28, dtype=cupy.float32)
    target = cupy.empty_like(source)
    time = interleaved({"copy": lambda: cupy.copyto(target, source)}, gpu=True, rounds=15)["copy"]
    assert measured.get("memory").value == pytest.approx(2 * source.nbytes / time.median / 1e6, rel=0.03)


def test_fp32_and_shared_memory_limits_are_near_the_clocks_bound(measured: limits.Ceilings) -> None:
    found = cupy.cuda.Device(0).attributes
    cycles = found["MultiProcessorCount"] * found["ClockRate"] * 1e3
    lanes = 64 if cupy.cuda.Device(0).compute_capability in ("70", "75", "80") else 128
    assert 0.6 < measured.get("FP32").value * 1e12 / (2 * lanes * cycles) < 1.05
    assert 0.6 < measured.get("shared memory").value * 1e9 / (128 * cycles) < 1.05


def large(kind: str) -> Any:
    if kind == "add":
        x, y = (cupy.random.random(1 << 27, dtype=cupy.float32) for _ in range(2))
        return lambda out=cupy.empty_like(x): add(x, y, out)
    if kind == "softmax":
        x = cupy.random.random((16384, 8192), dtype=cupy.float32)
        return lambda out=cupy.empty_like(x): softmax(x, out)
    a, b = (cupy.random.random((4096, 4096), dtype=cupy.float32).astype(cupy.float16) for _ in range(2))
    return lambda out=cupy.empty_like(a): matmul(a, b, out)


@pytest.mark.parametrize(("kind", "roof"), [("add", "memory"), ("softmax", "memory"), ("matmul", "tensor fp16")])
def test_no_kernel_exceeds_its_roof_beyond_measurement_error(kind: str, roof: str, measured: limits.Ceilings) -> None:
    made = rooflines.roofline(large(kind), limits=measured)
    (point,) = made.points
    assert point.roof == roof and 10 < point.percent <= 105, made.text()
    if kind == "add":
        assert (point.flops, point.bytes) == (1 << 27, 12 << 27) and point.percent > 85
    if kind == "matmul":
        assert (point.flops, point.bytes) == (2 * 4096**3, 6 * 4096**2)


@blocknb.kernel
def accumulate(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(total + i, tl.load(total + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)


def test_a_sweep_on_a_gpu_changes_no_array(measured: limits.Ceilings) -> None:
    def launches(n: int) -> Any:
        return captured_by(lambda: accumulate[(blocknb.cdiv(n, 1024),)](x, total, n, BLOCK=1024))

    x, total = cupy.ones(1 << 26, cupy.float32), cupy.zeros(1 << 26, cupy.float32)
    scratch = cupy.zeros_like(total)
    peer = lambda n: {"cupy": lambda: cupy.add(scratch[:n], x[:n], out=scratch[:n])}  # noqa: E731
    made = sweep.run("accumulate", "n", [1 << k for k in (16, 20, 24, 26)], launches, peer)
    kernel, baseline = made.series
    assert made.unit == "GB/s" and kernel.median == sorted(kernel.median)
    assert 0.8 * measured.get("memory").value < kernel.median[-1] < 1.1 * measured.get("memory").value
    assert baseline.median[-1] > 0 and not total.any()
