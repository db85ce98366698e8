"""Ceilings: the arithmetic with a fake clock, the work of the kernels, and the file that caches the results."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from codegen.test_register_prefetch_code import loops

import blocknb.language as bl
from blocknb.profile import ceilings, microbenchmarks
from blocknb.profile.ceilings import Sizes, measure
from blocknb.profile.timing import Timing
from blocknb.profile.work import count
from blocknb.runtime.host import thread_count

TINY = Sizes(copy=1 << 16, iterations=3, matrix=32, seconds=0.01, rounds=4)


def timed(milliseconds: float) -> Any:
    def clock(call: Any) -> float:
        call()
        return milliseconds

    return clock


def test_the_limits_of_a_cpu_are_work_over_time() -> None:
    found = measure(sizes=TINY, clock=timed(0.5))
    assert [(item.name, item.unit) for item in found.items] == [
        ("memory", "GB/s"),
        ("memory reads", "GB/s"),
        ("memory writes", "GB/s"),
        ("cache", "GB/s"),
        ("FP32", "TFLOP/s"),
    ]
    assert found.missing == () and found.get("memory").value == pytest.approx(2 * (1 << 16) / 0.5e-3 / 1e9)
    blocks = 4 * 4096 * 16
    assert found.get("memory reads").value == found.get("memory writes").value == pytest.approx(blocks / 0.5e-3 / 1e9)
    assert found.get("cache").value == pytest.approx(4 * 4096 * 4 * thread_count() * 3 / 0.5e-3 / 1e9)
    fma, blas = 2 * 8 * 1024 * 4 * thread_count() * 15, 2 * 32**3
    assert found.get("FP32").value == pytest.approx(max(fma, blas) / 0.5e-3 / 1e12)
    assert all(item.low <= item.value <= item.high and item.how for item in found.items)
    assert f"{thread_count()} thread" in found.device and found.measured.startswith("20")


def test_the_rate_of_memory_follows_the_mix_of_reads_and_writes() -> None:
    limit = lambda name, rate: ceilings.Ceiling(name, "GB/s", rate, rate, rate, "")  # noqa: E731
    copied, reads, writes = limit("memory", 4.0), limit("memory reads", 5.0), limit("memory writes", 2.0)
    every = ceilings.Ceilings("a device", "now", (copied, reads, writes))
    giga = 1_000_000_000
    assert every.memory_ms(giga, giga) == pytest.approx(2 / 4 * 1e3)
    assert every.memory_ms(giga, 0) == pytest.approx(1 / 5 * 1e3)
    assert every.memory_ms(0, giga) == pytest.approx(1 / 2 * 1e3)
    assert every.memory_ms(3 * giga, giga) == pytest.approx(
        (2 / 4 + 2 / 5) * 1e3
    )  # half of the bytes are a copy, half are reads
    assert every.memory_ms(giga, 3 * giga) == pytest.approx((2 / 4 + 2 / 2) * 1e3)
    assert ceilings.Ceilings("a device", "now", (copied,)).memory_ms(3 * giga, 0) == pytest.approx(3 / 4 * 1e3)
    assert every.memory_ms(0, 0) is None and ceilings.Ceilings("a device", "now", (reads,)).memory_ms(1, 1) is None


def test_of_ceilings_that_are_measured_again_the_higher_rates_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[ceilings.Ceilings] = []
    limit = lambda name, rate: ceilings.Ceiling(name, "GB/s", rate, rate, rate, "")  # noqa: E731
    old = ceilings.Ceilings(
        "a device", "2026-01-01T00:00:00+00:00", (limit("memory", 6.8), limit("cache", 90.0), limit("L2", 1.0))
    )
    fresh = ceilings.Ceilings("a device", "2026-01-02T00:00:00+00:00", (limit("memory", 14.0), limit("cache", 80.0)))
    monkeypatch.setattr(ceilings, "measure", lambda device: fresh)
    monkeypatch.setattr(ceilings, "_write", lambda path, made: kept.append(made))
    found = ceilings.remeasured(ceilings.HOST, old)
    assert [(c.name, c.value) for c in found.items] == [("memory", 14.0), ("cache", 90.0), ("L2", 1.0)]
    assert kept == [found] and found.measured == fresh.measured and found.age > 0
    assert ceilings.Ceilings("a device", "now", ()).age is None


def test_a_real_measurement_gives_positive_limits_with_a_spread() -> None:
    found = measure(sizes=Sizes(copy=1 << 20, iterations=20, matrix=64, seconds=0.02))
    assert len(found.items) == 5 and all(0 < item.low <= item.value <= item.high for item in found.items)


def test_an_interrupt_leaves_out_what_was_not_measured() -> None:
    def clock(call: Any) -> float:
        raise KeyboardInterrupt

    found = measure(sizes=TINY, clock=clock)
    assert found.items == () and [why for _, why in found.missing] == ["interrupted"] * 5


def test_a_part_that_fails_is_named_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(session: Any, name: str) -> None:
        raise ImportError("no such library")

    monkeypatch.setitem(ceilings._CPU, "cache", broken)
    found = measure(sizes=TINY, clock=timed(1.0))
    assert [item.name for item in found.items] == ["memory", "memory reads", "memory writes", "FP32"]
    assert found.missing == (("cache", "ImportError: no such library"),)


def test_limits_are_measured_once_and_kept_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    calls = []

    def measured(device: int) -> Any:
        calls.append(device)
        return measure(device, TINY, timed(1.0))

    monkeypatch.setattr(ceilings, "measure", lambda device: measured(device))
    plain = measure
    monkeypatch.setattr(ceilings, "_memory", {})
    assert ceilings.known() is None
    first = ceilings.ceilings()
    ceilings._memory.clear()
    assert ceilings.ceilings() == ceilings.known() == first and len(calls) == 1
    (file,) = (tmp_path / "ceilings").glob("*.json")
    assert json.loads(file.read_text())["measured"] == first.measured
    file.write_text("{")
    ceilings._memory.clear()
    assert ceilings.ceilings().items and len(calls) == 2
    ceilings.ceilings(fresh=True)
    assert len(calls) == 3 and plain is not None


def test_the_block_programs_do_the_work_that_their_rates_are_made_of() -> None:
    def work(kernel: Any, *types: Any, grid: int = 3, scalars: Any = None, **constants: Any) -> Any:
        trace = kernel.trace(*types, **constants, target="sm_90a")
        return count(trace.stages[0].after, scalars or {}, (grid, 1, 1))

    arrays = ("*fp32:16", "*fp32:16")
    assert work(microbenchmarks.copy_kernel, *arrays, "i32", scalars={"n": 5000}, BLOCK=2048).unique_bytes == 40_000
    iterations = {"blocks": 8, "iterations": 20}
    read = work(microbenchmarks.reread_kernel, *arrays, "i32", "i32", scalars=iterations, BLOCK=2048)
    assert read.issued_bytes == 3 * 2048 * 4 * (20 + 1) and read.read == {"x": 8 * 2048 * 4}
    fma = work(microbenchmarks.fma_kernel, *arrays, "i32", scalars={"iterations": 5}, BLOCK=1024, CHAIN=8)
    assert fma.flops == 2 * 8 * 1024 * 5 * 3


def test_shared_memory_is_read_in_wide_pieces_on_every_target() -> None:
    for target in ("sm_80", "sm_90a", "sm_120a"):
        trace = microbenchmarks.shared_kernel.trace("*i32:16", "i32", THREADS=128, target=target)
        assert trace.resources.spill_bytes == 0
        listing = trace.ptx
        assert listing.count("ld.volatile.shared.v4") % microbenchmarks.SHARED_READS == 0 < listing.count("ld.volatile")


@pytest.mark.parametrize(("form", "code"), [(bl.int8, "IGMMA"), (bl.float8e4nv, "QGMMA")])
def test_bytes_are_multiplied_again_and_again_and_nothing_else_is_done(form: Any, code: str) -> None:
    m, n, k = microbenchmarks.PRODUCT
    out = "*i32:16" if form is bl.int8 else "*fp32:16"
    given = {"M": m, "N": n, "K": k, "FORM": form, "num_warps": 8}
    trace = microbenchmarks.product_kernel.trace("*u8:16", "*u8:16", out, "i32", **given, target="sm_90a")
    assert trace.resources.spill_bytes == 0 and not trace.resources.warnings
    iteration = next(codes for codes in loops(trace) if code in codes)
    assert not {"LDS", "STS", "LDG", "MOV"} & set(iteration)
    additional = [
        name for name in iteration if not name.startswith("U")
    ]  # words of descriptors are uniform, and are moved while products run
    assert len(additional) <= 3 * iteration.count(code)
    work = count(trace.stages[0].after, {"iterations": 5}, (3, 1, 1))
    assert work.flops == 2 * m * n * k * 5 * 3


@pytest.mark.parametrize("capability", ["90", "80"])
def test_8_bits_on_a_pretended_gpu(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    """The arithmetic of the rate, on a device whose launches are simulated."""
    launched = []

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **options: launched.append((grid, args, options))

    monkeypatch.setattr(microbenchmarks, "product_kernel", Kernel())
    device = SimpleNamespace(compute_capability=capability, attributes={"MultiProcessorCount": 10})
    module: Any = ModuleType("cupy")
    module.cuda = SimpleNamespace(Device=lambda: device)
    module.uint8, module.int32, module.float32, module.empty = np.uint8, np.int32, np.float32, np.empty
    module.random = SimpleNamespace(randint=lambda low, high, size, dtype: np.random.randint(low, high, size, dtype))
    monkeypatch.setitem(sys.modules, "cupy", module)
    session = ceilings._Session(True, TINY, timed(0.5))

    def time(calls: Any, cold: bool = False) -> Any:
        return {way: (call(), Timing(0.5, 0.5, 0.5))[1] for way, call in calls.items()}

    monkeypatch.setattr(session, "time", time)
    for name in ("tensor int8", "tensor fp8"):
        session.attempt(name, ceilings._GPU[name])
    m, n, k = microbenchmarks.PRODUCT
    expected = 2 * m * n * k * 20 / 0.5e-3 / 1e12
    assert {item.name: item.value for item in session.items} == dict.fromkeys(
        ["tensor int8", "tensor fp8"][: 1 + (capability == "90")], pytest.approx(expected)
    )
    assert [name for name, _ in session.missing] == ["tensor fp8"][: capability == "80"]
    assert [grid for grid, _, _ in launched] == [(20,)] * len(session.items)
