"""Launches on a GPU: arrays of each library, streams, every kind of argument, and errors."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as tl
from blocknb.codegen import llvm, toolchain
from blocknb.errors import LaunchError
from blocknb.runtime import compile as compiler
from blocknb.runtime import kernel, launch_context

cupy = pytest.importorskip("cupy")


pytestmark = pytest.mark.usefixtures("fresh_cache")


@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@blocknb.kernel
def keep(out, value):
    tl.store(out, value)


@blocknb.kernel
def programs(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    index = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + index, x + 10 * y + 100 * z)


@blocknb.kernel
def slow_double(x, rounds):
    total = tl.load(x)
    for _ in range(rounds):
        total = total * 1.0000001 - total * 0.0000001
    tl.store(x, total * 2)


def random(n: int) -> Any:
    return cupy.asarray(seeds.rng().random(n, np.float32))


@blocknb.kernel
def affine(source, target, numbers, BLOCK: tl.constexpr):
    (scale, shift), bias = numbers
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source[0] + i, mask=i < source[1]) * scale + shift
    if bias is not None:
        value += tl.load(bias)
    tl.store(target[0] + i, value, mask=i < target[1])


@pytest.mark.parametrize("checked", [False, True])
def test_tuple_arguments_may_hold_arrays_numbers_and_none(checked: bool) -> None:
    x, bias = random(1000), cupy.asarray(np.float32([3]))
    for given, scale in ((None, 2), (bias, 1.5), (None, 1)):
        out = cupy.full(1000, np.nan, np.float32)
        affine[(4,)]((x, 1000), (out, 999), ((scale, 0.5), given), BLOCK=256, checked=checked)
        expected = x.get()[:999] * np.float32(scale) + np.float32(0.5) + (0 if given is None else 3)
        np.testing.assert_allclose(out[:999].get(), expected, rtol=1e-6)
        assert np.isnan(out[999].get())


def test_arrays_of_a_tuple_must_be_on_one_device() -> None:
    with pytest.raises(
        LaunchError, match=r"`source\[0\]` is a NumPy array in the CPU's memory, while `target\[0\]` lies on a GPU"
    ):
        affine[(1,)]((np.zeros(8, np.float32), 8), (random(8), 8), ((1.5, 0.5), None), BLOCK=8)


@pytest.mark.parametrize("n", [1, 31, 1000, 1024, 100_003])
def test_kernel_on_cupy_arrays_writes_nothing_outside_them(n: int) -> None:
    x, y = random(n), random(n)
    out = cupy.full(n + 64, np.nan, np.float32)
    add[blocknb.cdiv(n, 1024),](x, y, out, n, BLOCK=1024)
    np.testing.assert_array_equal(out[:n].get(), x.get() + y.get())
    assert np.isnan(out[n:].get()).all()


def test_torch_tensors_are_used_without_a_copy_on_torchs_stream() -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.rand(5000, device="cuda")
        out = torch.full_like(x, float("nan"))
        torch.cuda._sleep(20_000_000)  # the next work on this stream must wait for it
        x.add_(1)
        add[5,](x, x, out, 5000, BLOCK=1024)
        result = out.cpu()
    assert torch.equal(result, (x + x).cpu())


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_repeated_launches_use_changed_arguments(library: str) -> None:
    source = cupy if library == "cupy" else pytest.importorskip("torch")
    place = {} if library == "cupy" else {"device": "cuda"}
    for n in (7, 64, 1, 64, 64):
        for dtype in (source.float32, source.float64, source.float32):
            for start in (0, 1):
                x, y, out = (source.zeros(80, dtype=dtype, **place) for _ in range(3))
                x += 2
                y += 3
                for _ in range(4):
                    out *= 0
                    add[(1,)](x[start:], y[start:], out[start:], n, BLOCK=128)
                    assert float(out.sum()) == 5 * n and float(out[start : start + n].sum()) == 5 * n
    assert any(binding.attempts for binding in add._bindings.values())
    assert add._launch.__name__ == "_launch"  # written for these launches


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_graph_capture_records_the_arguments_of_each_launch(library: str) -> None:
    source = cupy if library == "cupy" else pytest.importorskip("torch")
    place = {} if library == "cupy" else {"device": "cuda"}
    x, y, *outs = (source.ones(64, dtype=source.float32, **place) for _ in range(6))

    def launches() -> None:
        for out, n in zip(outs, (7, 64, 1, 33), strict=True):
            add[(1,)](x, y, out, n, BLOCK=64)

    for _ in range(3):
        launches()
    if library == "cupy":
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            launches()
            graph = stream.end_capture()
        replay, wait = (lambda: graph.launch(stream)), stream.synchronize
    else:
        graph = source.cuda.CUDAGraph()
        with source.cuda.graph(graph):
            launches()
        replay, wait = graph.replay, source.cuda.synchronize
    for number in range(3):
        x[:] = number
        for out in outs:
            out[:] = -1
        cupy.cuda.Device().synchronize()
        replay()
        wait()
        for out, n in zip(outs, (7, 64, 1, 33), strict=True):
            assert out.tolist() == [number + 1] * n + [-1] * (64 - n)


def test_repeated_launches_use_the_current_stream() -> None:
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    arrays = [random(1) for _ in streams]
    cupy.cuda.Device().synchronize()
    for number in range(5):
        for stream, x in zip(streams, arrays, strict=True):
            with stream:
                slow_double[1,](x, 50_000)
                keep[1,](x, float(number))
    for stream, x in zip(streams, arrays, strict=True):
        stream.synchronize()
        assert float(x.get()[0]) == 4.0


def test_threads_that_launch_one_kernel_at_once_get_their_own_results() -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                x, y = (cupy.full(256, value, np.float32) for value in (number, 1))
                for i in range(200):
                    out, n = cupy.zeros(256, np.float32), 16 * (i % 16 + 1)
                    add[(1,)](x, y, out, n, BLOCK=256)
                    stream.synchronize()
                    if out.get().tolist() != [number + 1] * n + [0] * (256 - n):
                        wrong.append((number, i))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_launch_runs_on_the_device_of_its_arrays() -> None:
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    for number in range(12):
        with cupy.cuda.Device(number % 2):
            x, out = random(64), cupy.zeros(64, np.float32)
            cupy.cuda.Device().synchronize()
        with cupy.cuda.Device(number // 2 % 2):
            add[(1,)](x, x, out, 64, BLOCK=64)
            assert cupy.cuda.runtime.getDevice() == number // 2 % 2
        with cupy.cuda.Device(number % 2):
            np.testing.assert_array_equal(out.get(), 2 * x.get())


def test_negated_view_in_a_repeated_launch_is_refused() -> None:
    torch = pytest.importorskip("torch")
    x = torch.rand(64, device="cuda")
    for _ in range(3):
        add[(1,)](x, x, x, 64, BLOCK=64)
    with pytest.raises(LaunchError, match="negated"):
        add[(1,)](x, torch.complex(x, x).conj().imag, x, 64, BLOCK=64)


def test_launch_uses_the_current_cupy_stream() -> None:
    x = random(1)
    before = float(x.get()[0])
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        slow_double[1,](x, 200_000)
        keep[1,](x, 7.0)
    stream.synchronize()
    assert float(x.get()[0]) == 7.0 != before


def test_anything_with_the_cuda_array_interface_is_an_array() -> None:
    class Wrapped:
        def __init__(self, array: Any):
            self.__cuda_array_interface__ = array.__cuda_array_interface__
            self.array = array

    x, out = random(300), cupy.zeros(300, np.float32)
    add[1,](Wrapped(x), Wrapped(x), Wrapped(out), 300, BLOCK=512)
    np.testing.assert_array_equal(out.get(), 2 * x.get())


def test_anything_with_dlpack_on_the_gpu_is_an_array() -> None:
    class Exported:
        def __init__(self, array: Any):
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    x, out = random(300), cupy.zeros(300, np.float32)
    add[1,](Exported(x), x, Exported(out), 300, BLOCK=512)
    np.testing.assert_array_equal(out.get(), 2 * x.get())


def test_numpy_array_among_gpu_arrays_is_an_error_with_a_solution() -> None:
    x = random(100)
    with pytest.raises(LaunchError, match="`y` is a NumPy array") as caught:
        add[1,](x, x.get(), x, 100, BLOCK=128)
    assert "cupy.asarray(y)" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "value",
    [7, 16, -3, 2**40, 2**63 + 5, 2.5, True, *(np.dtype(d).type(3) for d in "bBhHiIlLefd"), np.int64(-(2**50))],
    ids=lambda v: f"{type(v).__name__} {v}",
)
def test_scalars_of_every_type_arrive_unchanged(value: Any) -> None:
    dtype = value.dtype if isinstance(value, np.generic) else np.asarray(value).dtype
    out = cupy.zeros(3, dtype)
    keep[1,](out, value)
    assert out.get()[0] == value
    assert (out.get()[1:] == 0).all()


def test_bf16_scalar_arrives_unchanged() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    out = cupy.zeros(1, np.float32)
    keep[1,](out, ml_dtypes.bfloat16(-1.5))
    assert out.get()[0] == -1.5


def test_scalar_beyond_the_range_of_fp32_is_infinite() -> None:
    out = cupy.zeros(2, np.float32)
    keep[1,](out, -1e39)
    assert out.get()[0] == -np.inf


def test_a_new_thread_can_launch() -> None:
    out = cupy.zeros(1, np.float32)
    cupy.cuda.Device().synchronize()
    thread = threading.Thread(target=lambda: keep[1,](out, 5.0))
    thread.start()
    thread.join()
    assert out.get()[0] == 5


def test_every_program_of_a_grid_of_three_axes_runs_once() -> None:
    out = cupy.full(24, -1, np.int32)
    programs[2, 3, 4](out)
    expected = [x + 10 * y + 100 * z for z in range(4) for y in range(3) for x in range(2)]
    assert out.get().tolist() == expected


def test_too_large_grid_is_refused_before_the_launch() -> None:
    with pytest.raises(LaunchError, match="65535"):
        programs[1, 70_000](cupy.zeros(1, np.int32))


def test_without_ptxas_the_driver_assembles_and_reports_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (toolchain, llvm):
        monkeypatch.setattr(module, "find_ptxas", lambda target: None)
    x, out = random(1000), cupy.zeros(1000, np.float32)
    compiled = blocknb.kernel(add.source.function)[1,](x, x, out, 1000, BLOCK=1024)
    np.testing.assert_array_equal(out.get(), 2 * x.get())
    assert "cubin" not in compiled.artifacts
    assert compiled.trace.resources.registers


def test_an_observer_gets_times_and_shapes_and_keeps_no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[kernel.Launch] = []
    monkeypatch.setattr(launch_context, "observers", [seen.append])
    x, out = random(1 << 20), cupy.zeros(1 << 20, np.float32)
    add[1024,](x, x, out, 1 << 20, BLOCK=1024)
    (launch,) = seen
    assert launch.kernel is add
    assert launch.device == 0
    assert 0.001 < launch.milliseconds < 100
    assert launch.arguments["x"]["shape"] == (1 << 20,)
    assert launch.arguments["out"]["bytes"] == 4 << 20
    alive = weakref.ref(out)
    del x, out
    gc.collect()
    assert alive() is None


def test_second_launch_is_served_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(64)
    first = add[1,](x, x, x, 64, BLOCK=64)
    monkeypatch.setattr(compiler, "compile", None)
    assert add[1,](x, x, x, 80, BLOCK=64) is first


def test_fault_names_the_kernel_and_reports_the_lost_context() -> None:
    code = """
        import cupy, numpy as np, pathlib, sys
        sys.path.insert(0, {root!r})
        from tests.gpu.test_launch import keep
        import blocknb
        out = cupy.zeros(1, np.float32)

        class Wild:
            dtype = np.dtype("float32")
            device = "cuda"
            def data_ptr(self):
                return 1 << 44

        keep[1,](Wild(), 1.0)
        try:
            cupy.cuda.Device().synchronize()
        except cupy.cuda.runtime.CUDARuntimeError:
            pass
        try:
            keep[1,](out, 1.0)
        except blocknb.AccessError as error:
            print(error)
    """
    root = str(pathlib.Path(__file__).resolve().parents[2])
    search = os.pathsep.join([root, f"{root}/tests", os.environ.get("PYTHONPATH", "")])
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code).replace("{root!r}", repr(root))],
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "keep" in answer.stdout, answer.stderr
    assert "context is lost" in answer.stdout
