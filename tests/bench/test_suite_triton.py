"""The benchmarks' kernels through Triton's own compiler, without a GPU; a variable names a Python with Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from benchmark_shapes import PARTIAL_TILES, small_shape

from blocknb.bench.suite.catalogue import BENCHMARKS
from blocknb.bench.suite.definition import Make
from blocknb.bench.suite.triton_source import rewritten, source

PYTHON = os.environ.get("BLOCKNB_TRITON_PYTHON") or (sys.executable if find_spec("triton") else "")


@pytest.mark.full
@pytest.mark.skipif(not PYTHON, reason="set BLOCKNB_TRITON_PYTHON to a Python with Triton")
def test_triton_compiles_every_kernel_that_the_benchmarks_launch() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("triton_check.py"))],
        env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {line.split()[0] for line in done.stdout.splitlines()} == {*BENCHMARKS, "launch"}


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_benchmark_has_arrays_of_a_small_shape(name: str) -> None:
    shape = small_shape(name, PARTIAL_TILES, attention=(256, 64))
    assert {len(one) for shapes in BENCHMARKS[name].gpu.values() for one in shapes} == {len(shape)}
    for dtype in BENCHMARKS[name].gpu:
        inputs, outputs = BENCHMARKS[name].arrays(Make(np, dtype), *shape)
        assert outputs and 0 < sum(array.nbytes for array in (inputs | outputs).values()) < 2**22


def test_only_loads_of_descriptors_lose_their_eviction_policy() -> None:
    text = rewritten(source("descriptors"), "triton")
    assert "y = b_blocks.load([inner, column])\n" in text and "eviction_policy" not in text
    assert "other=0.0, eviction_policy=KEEP)" in rewritten(source("matvec"), "triton")
