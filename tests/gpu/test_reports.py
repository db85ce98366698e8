"""Reports on a GPU: out-of-bounds accesses in checked mode, prints, assertions, and the state after an unchecked fault."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import seeds
from gpu.test_cases import device_address, to_device, to_host
from kernels import CASES, GPU_CASES
from out_of_bounds import OUT_OF_BOUNDS, views

import blocknb
import blocknb.language as tl
from blocknb.errors import DeviceAssertionFailed
from blocknb.ir.report import SHOWN

cupy = pytest.importorskip("cupy")


@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


def assert_the_context_lives() -> None:
    x = cupy.arange(1000, dtype=np.float32)
    out = cupy.zeros_like(x)
    double[4,](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out.get(), 2 * np.arange(1000))


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_out_of_bounds_access_is_skipped_and_reported(name: str) -> None:
    found = OUT_OF_BOUNDS[name]()
    on_device: dict[int, Any] = {}
    arrays = {key: (on_device.setdefault(id(big), cupy.asarray(big)), at) for key, (big, at) in found.arrays.items()}
    arguments = views(arrays)
    with pytest.raises(blocknb.AccessError) as caught:
        found.kernel[found.grid](**arguments, **found.rest, checked=True)
    error = caught.value
    more = f"; {found.total} accesses outside of arrays were skipped" if found.total > 1 else ""
    assert error.message == found.message + more
    assert (error.program, error.index) == (found.program, found.index)
    assert error.loc is not None
    line, carets = error.loc.excerpt().split("\n")
    assert line[carets.index("^") :].startswith(found.text)
    for key, expected in found.result.items():
        np.testing.assert_array_equal(arguments[key].get(), expected, err_msg=key)
    for key, (big, at) in found.arrays.items():
        outside = np.ones(big.shape, bool)
        outside[at] = False
        np.testing.assert_array_equal(arrays[key][0].get()[outside], big[outside], err_msg=key)
    assert_the_context_lives()


@pytest.mark.parametrize("name", [*CASES, *GPU_CASES])
def test_checked_mode_changes_no_result_and_reports_nothing(name: str) -> None:
    case = CASES.get(name) or GPU_CASES[name]
    arguments = case.make(seeds.rng())
    on_device = {key: to_device(value) for key, value in arguments.items()}
    case.link(on_device, device_address, to_device)
    case.kernel[case.grid](**on_device, **{**case.options, "checked": True})
    case.check(arguments, {key: to_host(value) for key, value in on_device.items()})


def test_extents_of_torch_tensors_and_views_are_checked() -> None:
    torch = pytest.importorskip("torch")
    big = torch.full((1100,), 7.0, device="cuda", dtype=torch.bfloat16)
    x = torch.ones(1024, device="cuda", dtype=torch.bfloat16)
    kernel = OUT_OF_BOUNDS["store_past_the_end"]().kernel
    with pytest.raises(blocknb.AccessError, match="element 1000 of `out`, which has 1000 elements; 24 accesses"):
        kernel[1,](x, big[16:1016], BLOCK=1024, checked=True)
    assert (big[:16] == 7).all() and (big[1016:] == 7).all() and (big[16:1016] == 1).all()
    assert_the_context_lives()


def test_second_launch_reports_only_its_own_accesses() -> None:
    kernel = OUT_OF_BOUNDS["load_past_the_end"]().kernel
    x, out = cupy.zeros(1024, np.float32), cupy.zeros(1024, np.float32)
    for _ in range(3):
        with pytest.raises(blocknb.AccessError, match="24 accesses"):
            kernel[4,](x[:1000], out, BLOCK=256, checked=True)
        kernel[4,](x, out, BLOCK=256, checked=True)


def test_reports_on_two_streams_are_separate() -> None:
    kernel = OUT_OF_BOUNDS["load_past_the_end"]().kernel
    x, out = cupy.zeros(1024, np.float32), cupy.zeros(1024, np.float32)
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)):
        with stream:
            cupy.cuda.Device().synchronize()
            with pytest.raises(blocknb.AccessError, match="24 accesses"):
                kernel[4,](x[:1000], out, BLOCK=256, checked=True)


def test_checked_launch_in_a_graph_capture_is_refused() -> None:
    x = cupy.zeros(1024, np.float32)
    double[4,](x, x, 1000, BLOCK=256, checked=True)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(blocknb.LaunchError, match="CUDA graph"):
                double[4,](x, x, 1000, BLOCK=256, checked=True)
        finally:
            stream.end_capture()
    assert_the_context_lives()


# -- prints ----------------------------------------------------------------------------------------------------------------


@blocknb.kernel
def say(x, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    v = tl.load(x + pid * BLOCK + tl.arange(0, BLOCK))
    for k in range(n):
        tl.device_print("k", k)
        print("v", v * k)


def test_prints_appear_on_stdout_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    x = seeds.rng().standard_normal(6 * 512).astype(np.float32)
    say[6,](cupy.asarray(x), 1, BLOCK=512)
    expected = []
    for p in range(6):
        expected.append(f"pid ({p}, 0, 0) idx () k: 0")
        expected += [f"pid ({p}, 0, 0) idx ({i:3}) v: {v * np.float32(0)}" for i, v in enumerate(x[p * 512 :][:512])]
    assert capsys.readouterr().out.splitlines() == expected


def test_excess_printed_lines_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    say[64,](cupy.zeros(64 * 1024, np.float32), 2, BLOCK=1024)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == SHOWN + 1
    assert lines[-1] == f"... {64 * 2 * 1025 - SHOWN} more lines"


def test_an_autotuner_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    configs = [blocknb.Config({"BLOCK": 4}), blocknb.Config({"BLOCK": 8})]
    tuned = blocknb.autotune(configs, key=["n"])(say)
    tuned[1,](cupy.zeros(8, np.float32), 1)
    assert capsys.readouterr().out.count("idx () k: 0") == 1


# -- assertions ------------------------------------------------------------------------------------------------------------


@blocknb.kernel
def positive(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.device_assert(v > 0, "must be positive")
    assert tl.sum(v) < 1e6, "too much"
    tl.store(out + i, v)


@pytest.mark.parametrize("options", [{"debug": True}, {"checked": True}])
def test_failed_assertion_is_reported_and_the_context_survives(options: dict[str, bool]) -> None:
    x = cupy.ones(1024, np.float32)
    x[700] = -1
    out = cupy.zeros_like(x)
    with pytest.raises(DeviceAssertionFailed) as caught:
        positive[4,](x, out, BLOCK=256, **options)
    assert caught.value.message == "assertion failed in program (2, 0, 0) for element 188: must be positive"
    positive[4,](x, out, BLOCK=256)  # not tested
    x[700], x[0] = 1, 1e7
    with pytest.raises(DeviceAssertionFailed, match=r"program \(0, 0, 0\): too much"):
        positive[4,](x, out, BLOCK=256, **options)
    assert_the_context_lives()


def test_environment_variable_enables_assertions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEBUG", "1")
    with pytest.raises(DeviceAssertionFailed):
        blocknb.kernel(positive.source.function)[1,](-cupy.ones(32, np.float32), cupy.zeros(32, np.float32), BLOCK=32)


# -- faults ----------------------------------------------------------------------------------------------------------------

FAULT = """
    import cupy, numpy as np, sys
    sys.path[:0] = {folders!r}
    import blocknb
    from gpu.test_reports import double

    class Wild:
        dtype = np.dtype("float32")
        device = "cuda"
        def data_ptr(self):
            return 1 << 44

    x = cupy.zeros(64, np.float32)
    blocknb.kernel(double.source.function)[1,](x, x, 64, BLOCK=64)
    double[1,](Wild(), x, 64, BLOCK=64)
    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        pass
    try:
        double[1,](x, x, 64, BLOCK=64{options})
    except blocknb.AccessError as error:
        print(error)
"""


@pytest.mark.parametrize("options", ["", ", checked=True"])
def test_unchecked_fault_names_the_kernel_and_suggests_checked_mode(options: str) -> None:
    tests = pathlib.Path(__file__).resolve().parents[1]
    code = textwrap.dedent(FAULT).replace("{folders!r}", repr([str(tests), str(tests.parent)]))
    answer = subprocess.run(
        [sys.executable, "-c", code.replace("{options}", options)], capture_output=True, text=True, timeout=300
    )
    assert "the kernel launched last was `double`" in answer.stdout, answer.stderr
    assert "context is lost" in answer.stdout
    assert "checked=True" in answer.stdout
