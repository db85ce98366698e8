"""What is kept per device: tuned choices, tensor maps, captured graphs, memory, and the GPU of a benchmark. Needs two GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import blocknb
import blocknb.language as tl
from blocknb.profile import ceilings
from blocknb.tune import Config, store

cupy = pytest.importorskip("cupy")


def count() -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


pytestmark = pytest.mark.skipif(count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def current_device(fresh_cache: None) -> Iterator[None]:
    before = cupy.cuda.runtime.getDevice()
    yield
    cupy.cuda.runtime.setDevice(before)


@blocknb.kernel
def plus_one(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@blocknb.kernel
def copied(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    read = tl.make_tensor_descriptor(source, [ROWS, COLUMNS], [COLUMNS, 1], [16, 64])
    write = tl.make_tensor_descriptor(target, [ROWS, COLUMNS], [COLUMNS, 1], [16, 64])
    at = [tl.program_id(0) * 16, tl.program_id(1) * 64]
    write.store(at, read.load(at))


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def ones(device: int, shape: Any = 4096) -> Any:
    with cupy.cuda.Device(device):
        return cupy.ones(shape, cupy.float32)


def test_a_choice_is_kept_for_each_model_and_trials_run_on_the_device_of_the_arrays() -> None:
    tuner = blocknb.autotune([Config({"BLOCK": b}) for b in (128, 1024)], ["n"], warmup=1, rep=5)(plus_one)
    keys = []
    for device in (0, 1):
        x, out = ones(device), ones(device)
        for current in (0, 1):
            cupy.cuda.runtime.setDevice(current)
            tuner[grid](x, out, 4096)
            assert cupy.cuda.runtime.getDevice() == current
        keys.append(set(tuner.cache))
        with cupy.cuda.Device(device):
            assert (out == 2).all()
    same = store.device_kind(0) == store.device_kind(1)
    assert len(keys[1]) == (1 if same else 2)
    assert store.unique_name(0) != store.unique_name(1)


def test_a_choice_of_the_host_is_not_that_of_a_gpu() -> None:
    import numpy as np

    tuner = blocknb.autotune([Config({"BLOCK": b}) for b in (128, 1024)], ["n"], warmup=0, rep=2)(plus_one)
    tuner[grid](ones(0), ones(0), 4096)
    tuner[grid](np.ones(4096, np.float32), np.ones(4096, np.float32), 4096)
    tuner[grid](ones(0), ones(0), 4096)
    assert len(tuner.cache) == 2


def test_tensor_maps_describe_the_memory_of_their_own_device() -> None:
    for _ in range(3):
        for device in (0, 1):
            with cupy.cuda.Device(device):
                source = cupy.random.rand(64, 128, dtype=cupy.float32)
                target = cupy.zeros_like(source)
            cupy.cuda.runtime.setDevice(1 - device)
            copied[4, 2](source, target, ROWS=64, COLUMNS=128)
            with cupy.cuda.Device(device):
                cupy.testing.assert_array_equal(source, target)


def test_graphs_of_two_devices_replay_on_their_own() -> None:
    graphs = []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            x, out = ones(device), ones(device)
            for _ in range(3):
                plus_one[grid](x, out, 4096, BLOCK=256)
            stream = cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.Device().synchronize()
            with stream:
                stream.begin_capture()
                plus_one[grid](x, out, 4096, BLOCK=256)
                graphs.append((stream.end_capture(), stream, x, out))
    for value in (5, 7):
        for device, (graph, stream, x, out) in enumerate(graphs):
            with cupy.cuda.Device(device):
                x[:] = value + device
                cupy.cuda.Device().synchronize()
                graph.launch(stream)
                stream.synchronize()
                assert (out == value + device + 1).all()


def test_a_launch_allocates_on_the_device_of_its_arrays_alone() -> None:
    x, out = ones(1), ones(1)
    cupy.cuda.runtime.setDevice(0)
    plus_one[grid](x, out, 4096, BLOCK=256)  # loads the code
    before = [cupy.get_default_memory_pool().used_bytes()]
    plus_one[grid](x, out, 4096, BLOCK=256, checked=True)
    assert [cupy.get_default_memory_pool().used_bytes()] == before
    with cupy.cuda.Device(1):
        assert (out == 2).all()


def test_threads_that_launch_on_two_devices_get_their_own_results() -> None:
    failed: list[BaseException] = []

    def launches(device: int) -> None:
        try:
            with cupy.cuda.Device(device):
                x, out = ones(device) * device, ones(device)
                for _ in range(200):
                    plus_one[grid](x, out, 4096, BLOCK=256)
                assert (out == device + 1).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=launches, args=(device,)) for device in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_ceilings_are_kept_by_model() -> None:
    names = [ceilings.name_of(device) for device in (0, 1)]
    assert (names[0] == names[1]) == (store.device_kind(0) == store.device_kind(1))


def test_the_benchmark_runs_on_the_gpu_of_the_number(tmp_path: Path) -> None:
    code = (
        "import sys, cupy\nfrom blocknb.cli import main\n"
        "status = main(['bench', 'add', '--device', '1', '--shapes', '2^16', '--rounds', '3', '--peers', 'CuPy'])\n"
        "print('uuid', cupy.cuda.runtime.getDeviceProperties(0)['uuid'].hex())\nsys.exit(status)\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        assert f"uuid {store.unique_name(1)}" in done.stdout


def test_one_worker_measures_for_each_gpu() -> None:
    distributed = pytest.importorskip("distributed")
    tuner = blocknb.autotune([Config({"BLOCK": 2**k}) for k in range(6, 12)], ["n"], warmup=1, rep=5)(plus_one)
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": ":0"}}
    options = {"nthreads": 1, "memory_limit": 0}
    workers = {  # the third worker shares the second GPU
        name: {"cls": distributed.Nanny, "options": {**options, "env": {"CUDA_VISIBLE_DEVICES": gpu}}}
        for name, gpu in enumerate(("0", "1", "1"))
    }
    with distributed.SpecCluster(workers, scheduler) as made, distributed.Client(made) as client:
        tuning = tuner.tune(ones(0), ones(0), 4096, grid=grid, client=client)
    assert tuning.best in tuner.configs and store.device_kind(0) in tuner.tunings
