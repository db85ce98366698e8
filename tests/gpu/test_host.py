"""Triton's host API on a GPU: timing by events and graphs, autotuning, warm-up, the driver, reinterpreted arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import Config, testing
from blocknb.compat import triton
from blocknb.runtime import cache, machine

cupy = pytest.importorskip("cupy")


@blocknb.kernel
def increment(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def test_driver_reports_the_gpus_properties() -> None:
    active = triton.runtime.driver.active
    target, found = active.get_current_target(), active.utils.get_device_properties(0)
    assert (target.backend, target.warp_size) == ("cuda", 32)
    assert active.get_device_capability() == divmod(target.arch, 10)
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    assert found["multiprocessor_count"] == properties["multiProcessorCount"]
    assert found["max_shared_mem"] == properties["sharedMemPerBlockOptin"]
    assert found["max_num_regs"] == properties["regsPerBlock"] and found["warpSize"] == 32
    assert testing.get_dram_gbps(0) > 100


def test_do_bench_of_a_large_copy_gives_a_plausible_bandwidth() -> None:
    x = cupy.random.random(1 << 26, dtype=cupy.float32)
    ms = testing.do_bench(lambda: increment[grid](x, x.size, BLOCK=1024), warmup=5, rep=20, return_mode="median")
    speed = 2 * x.nbytes / ms * 1e-6
    assert 0.3 * testing.get_dram_gbps() < speed < 1.05 * testing.get_dram_gbps()


def test_do_bench_times_a_cpu_call_by_the_clock() -> None:
    import time

    x = np.zeros(64, np.float32)

    def call() -> None:
        increment[(1,)](x, 64, BLOCK=64)
        time.sleep(0.001)

    assert 1.0 <= testing.do_bench(call, warmup=2, rep=10) < 3.0


def test_do_bench_cudagraph_excludes_launch_overhead() -> None:
    x = cupy.zeros(1024, cupy.float32)
    call = lambda: increment[(1,)](x, 1024, BLOCK=1024)  # noqa: E731
    in_graph = testing.do_bench_cudagraph(call, rep=5, return_mode="median")
    assert 0.0003 < in_graph < 0.01
    low, high = testing.do_bench_cudagraph(call, rep=5, quantiles=[0.1, 0.9])
    assert low <= high


def test_do_bench_cudagraph_times_torch_operations() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(1024, device="cuda")
    assert 0 < testing.do_bench_cudagraph(lambda: x + 1, rep=5) < 0.1
    assert 0 < testing.do_bench_cudagraph(lambda: increment[(1,)](x, 1024, BLOCK=1024), rep=5) < 0.1


@pytest.mark.parametrize("graphs", [False, True])
def test_autotuner_measures_on_the_gpu_and_restores_changed_arrays(graphs: bool) -> None:
    tune = blocknb.autotune(
        [Config({"BLOCK": 64}, num_warps=1), Config({"BLOCK": 2048})], key=["n"], restore_value=["x"], warmup=2, rep=5,
        use_cuda_graph=graphs,
    )  # fmt: skip
    kernel, x = tune(increment), cupy.zeros(1 << 20, cupy.float32)
    kernel[grid](x, x.size)
    assert float(x.min()) == float(x.max()) == 1
    assert kernel.best_config is not None and len(kernel.configs_timings) == 2


def test_autotuner_stops_slow_configurations_on_any_stream_and_reuses_its_choice(tmp_path, monkeypatch) -> None:
    found = cache.Cache(tmp_path)
    monkeypatch.setattr(cache, "shared", lambda: found)
    configs = [Config({"BLOCK": 16}, num_warps=1), Config({"BLOCK": 1024}), Config({"BLOCK": 2048}, num_warps=8)]
    x, stream = cupy.zeros(1 << 24, cupy.float32), cupy.cuda.Stream(non_blocking=True)
    choices = []
    for launches in (1, 2):
        kernel = blocknb.autotune(configs, key=["n"], restore_value=["x"])(increment)
        with stream:
            kernel[grid](x, x.size)
        stream.synchronize()
        assert float(x.min()) == float(x.max()) == launches
        choices.append(kernel.tuning)
    slow, *quick = choices[0].trials
    assert slow.status == "stopped early" and slow.rounds < 10 and all(0.01 < t.median < 1 for t in quick)
    assert choices[1].from_disk and choices[1].best == choices[0].best != configs[0]
    assert choices[0].seconds < 5


def test_configuration_with_too_much_shared_memory_is_skipped() -> None:
    @blocknb.kernel
    def product(a, b, c, BLOCK: tl.constexpr):
        i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
        tl.store(c + i * BLOCK + j, tl.dot(tl.load(a + i * BLOCK + j), tl.load(b + i * BLOCK + j)))

    tune = blocknb.autotune([Config({"BLOCK": 512}, num_warps=8), Config({"BLOCK": 32})], key=[], warmup=1, rep=1)
    a, b, c = (cupy.random.random((512, 512), dtype=cupy.float32).astype(cupy.float16) for _ in range(3))
    kernel = tune(product)
    kernel[(1,)](a, b, c)
    assert kernel.best_config.kwargs == {"BLOCK": 32}


def test_warmup_with_types_compiles_and_loads_for_the_gpu() -> None:
    compiled = increment.warmup("*fp32", 1000, BLOCK=128, grid=(1,))
    assert compiled.target.is_gpu and compiled.n_regs > 0 and compiled.metadata.target == machine.current_target()
    assert "ptx" in compiled.asm and "cubin" in compiled.asm
    x = cupy.zeros(1000, cupy.float32)
    compiled[(8,)](x, 1000)
    assert float(x.sum()) == 1000


def test_reinterpreted_gpu_array_works_as_an_argument() -> None:
    bits = cupy.zeros(1000, cupy.int32)
    increment[(8,)](triton.reinterpret(bits, tl.float32), 1000, BLOCK=128)
    assert (bits.view(cupy.float32) == 1).all()
