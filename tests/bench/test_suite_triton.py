"""The benchmarks' kernels through Triton's own compiler, without a GPU; a variable names a Python with Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from blocknb.bench.suite.catalogue import BENCHMARKS

PYTHON = os.environ.get("BLOCKNB_TRITON_PYTHON") or (sys.executable if find_spec("triton") else "")


@pytest.mark.full
@pytest.mark.skipif(not PYTHON, reason="set BLOCKNB_TRITON_PYTHON to a Python with Triton")
def test_triton_compiles_every_kernel_that_the_benchmarks_launch() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("triton_check.py"))],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {line.split()[0] for line in done.stdout.splitlines()} == {*BENCHMARKS, "launch"}
