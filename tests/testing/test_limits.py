"""The limits of data sheets: the tables for each architecture, and one clear error without a GPU."""

from __future__ import annotations

import inspect
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blocknb.language as tl
from blocknb import testing
from blocknb.errors import LaunchError, Unsupported
from blocknb.runtime import cuda, machine


def gpu(monkeypatch: pytest.MonkeyPatch, capability: int, processors: int) -> None:
    """Simulates a machine with a GPU of a capability."""
    properties = {"multiprocessor_count": processors, "mem_clock_rate": 2_619_000, "mem_bus_width": 5120}
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    monkeypatch.setattr(machine, "current_gpu", lambda: 0)
    monkeypatch.setattr(machine, "properties", lambda device=None: properties)
    monkeypatch.setattr(cuda, "target", lambda device: SimpleNamespace(capability=capability))


# name, capability, multiprocessors, clock in kHz, TFLOP/s of fp16 by tensor cores and of fp32 without, as the data sheets have them
SHEETS = [
    ("V100", 70, 80, 1_530_000, 125, 15.7),
    ("T4", 75, 40, 1_590_000, 65, 8.1),
    ("A100", 80, 108, 1_410_000, 312, 19.5),
    ("RTX 3090", 86, 82, 1_695_000, 142, 35.6),
    ("RTX 4090", 89, 128, 2_520_000, 330, 82.6),
    ("H100", 90, 132, 1_830_000, 989, 61.8),
    ("B200", 100, 148, 1_850_000, 2250, 70.1),
    ("RTX 5090", 120, 170, 2_407_000, 419, 104.8),
]


@pytest.mark.parametrize(
    ("capability", "processors", "clock", "tensor", "simd"), [s[1:] for s in SHEETS], ids=[s[0] for s in SHEETS]
)
def test_peak_rates_agree_with_the_data_sheets(
    monkeypatch: pytest.MonkeyPatch, capability: int, processors: int, clock: int, tensor: float, simd: float
) -> None:
    gpu(monkeypatch, capability, processors)
    assert testing.get_max_tensorcore_tflops(tl.float16, clock) == pytest.approx(tensor, rel=0.015)
    assert testing.get_max_simd_tflops(np.dtype(np.float32), clock) == pytest.approx(simd, rel=0.015)


def test_narrower_operands_have_higher_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, 90, 132)
    rate = {
        d: testing.get_max_tensorcore_tflops(d, 1_830_000, 0) for d in (tl.float32, tl.bfloat16, tl.int8, tl.float8e4nv)
    }
    assert rate[tl.bfloat16] == 2 * rate[tl.float32]
    assert rate[tl.int8] == rate[tl.float8e4nv] == 2 * rate[tl.bfloat16]
    assert testing.get_max_tensorcore_tflops(np.dtype(ml_dtypes.float8_e5m2), 1_830_000) == rate[tl.int8]
    assert testing.get_max_simd_tflops(tl.float16, 1e6) == 2 * testing.get_max_simd_tflops(tl.float32, 1e6)


@pytest.mark.parametrize(("capability", "dtype"), [(70, tl.int8), (75, tl.bfloat16), (80, tl.float8e5), (90, tl.int64)])
def test_dtypes_that_tensor_cores_lack_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capability: int, dtype: Any
) -> None:
    gpu(monkeypatch, capability, 80)
    with pytest.raises(Unsupported, match=f"capability {capability // 10}.{capability % 10} do not multiply {dtype}"):
        testing.get_max_tensorcore_tflops(dtype, 1e6)


def test_integers_and_missing_formats_have_no_rate_without_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, 75, 40)
    for dtype in (tl.int32, tl.bfloat16):
        with pytest.raises(Unsupported, match="no rate"):
            testing.get_max_simd_tflops(dtype, 1e6)


def test_the_memory_bandwidth_of_an_h100_follows_from_clock_and_width(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, 90, 132)
    assert testing.get_dram_gbps() == pytest.approx(3352, rel=0.001)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_dram_gbps", ()),
        ("get_max_tensorcore_tflops", (tl.float16, 1e6)),
        ("get_max_simd_tflops", (tl.float32, 1e6, 0)),
    ],
)
def test_without_a_gpu_every_function_raises_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: tuple
) -> None:
    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    with pytest.raises(LaunchError, match=f"^{name} needs a GPU"):
        getattr(testing, name)(*arguments)


def test_parameters_have_tritons_names() -> None:
    for name in ("get_max_tensorcore_tflops", "get_max_simd_tflops"):
        assert list(inspect.signature(getattr(testing, name)).parameters) == ["dtype", "clock_rate", "device"]
    assert list(inspect.signature(testing.nvsmi).parameters) == ["attrs"]


def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")


def test_nvsmi_queries_all_attributes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, 'echo "$@" > ${0%/*}/asked; echo "1980, 76.25"')
    assert testing.nvsmi(["clocks.max.sm", "power.draw"]) == [1980, 76.25]
    assert (tmp_path / "asked").read_text().split()[:3] == ["-i", "0", "--query-gpu=clocks.max.sm,power.draw"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo [N/A]", r"no numbers for fan.speed: \[N/A\]"),
        ("echo No devices were found; exit 6", "does not report fan.speed: No devices were found"),
    ],
)
def test_attributes_that_nvidia_smi_does_not_report_raise_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    fake_smi(tmp_path, monkeypatch, script)
    with pytest.raises(LaunchError, match=message):
        testing.nvsmi(["fan.speed"])


def test_without_nvidia_smi_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="^nvsmi needs a GPU"):
        testing.nvsmi(["clocks.max.sm"])
