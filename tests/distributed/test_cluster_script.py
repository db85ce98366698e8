"""scripts/two_gpus.py: its workloads compute what they say, within the limit, and the script runs on CPU workers."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask")

import dask.array as da  # noqa: E402

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LIMIT = 16 * 1024
NAMES = ["softmax", "stencil", "histogram", "product"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import two_gpus

    return two_gpus


def arrays_of(one: Any) -> list[Any]:
    """Arrays of two blocks per axis along which the workload has several."""
    rng = np.random.default_rng(0)
    if one.name == "product":
        (_, m, k), (_, _, n) = one.shapes
        a, b = (rng.random(shape, np.float32) for shape in ((2, m, 2 * k), (2, 2 * k, n)))
        return [da.from_array(a, chunks=(1, m, k)), da.from_array(b, chunks=(1, k, n))]
    rows, columns = one.out if one.name == "stencil" else one.shapes[0]
    return [da.from_array(rng.random((3 * rows, columns), np.float32), chunks=(rows, columns))]


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_is_checked_and_a_wrong_result_is_found(script: ModuleType, name: str) -> None:
    (one,) = [one for one in script.bw.workloads(LIMIT, cpu=True) if one.name == name]
    given, options = arrays_of(one), argparse.Namespace(cpu=True)
    with dask.config.set(scheduler="sync"):
        result = script.graph(one, options, given, LIMIT).persist()
        assert script.checked(one, result, given) < 1e-3
        assert script.checked(one, result * 2, given) > 1e-3


def test_the_arrays_have_eight_times_the_limit_per_worker(script: ModuleType) -> None:
    for limit in (2**30, 2**32):
        for one in script.bw.workloads(limit, cpu=False):
            assert one.name in NAMES
            assert one.bytes_in * one.tasks >= 8 * limit
            held = one.bytes_in + one.bytes_out
            held += one.bytes_in if one.name == "product" else 0  # the next term
            held += one.bytes_in - one.bytes_out if one.name == "stencil" else 0  # the pieces around the chunk
            assert 4 * held <= limit, "four tasks are in flight at once"


def test_a_wrong_result_fails_the_script_after_the_other_workloads_ran(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    ran = []

    def measure(one: Any, *_: Any) -> None:
        ran.append(one.name)
        if one.name == "stencil":
            raise RuntimeError("the result differs by 1")

    monkeypatch.setattr(script, "client_of", lambda options: contextlib.nullcontext())
    monkeypatch.setattr(script, "arrays_of", lambda *_: [None])
    monkeypatch.setattr(script, "measure", measure)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the script sets both
    monkeypatch.setenv("PYTHONPATH", "")
    assert script.main(["arrays", "--cpu", "--small"]) == 1
    assert ran == NAMES and "failed: stencil, chunks not pinned" in capsys.readouterr().err


@pytest.mark.full
def test_the_script_runs_on_cpu_workers() -> None:
    command = [sys.executable, str(SCRIPTS / "two_gpus.py"), "tune", "arrays", "--cpu", "--small", "--threads", "1"]
    environment = {**os.environ, "BLOCKNB_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert all(f"\n{name}, chunks not pinned: " in done.stdout for name in NAMES)
    assert "empty caches: " in done.stdout and "warm caches: " in done.stdout
