"""A system without Linux's own functions, as macOS: kernels run, and compile for GPUs up to PTX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]

PROGRAM = """
import builtins, os, pathlib, sys
import llvmlite.binding
import numpy as np

for name in ("sched_getaffinity", "memfd_create", "sched_setaffinity"):
    delattr(os, name)

def refuse(real):
    def call(path, *args, **named):
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(path)
        return real(path, *args, **named)
    return call

builtins.open, pathlib.Path.read_text = refuse(open), refuse(pathlib.Path.read_text)
sys.platform = "darwin"

import blocknb
from blocknb.codegen import toolchain
from blocknb.kernels.add import add_kernel

x = np.arange(1000, dtype=np.float32)
out = np.empty_like(x)
add_kernel[(4,)](x, x, out, x.size, BLOCK=256)
assert (out == 2 * x).all()
toolchain._search = lambda name: iter(())
trace = add_kernel.trace(x, x, out, x.size, BLOCK=256, target="sm_90a")
assert ".target sm_90a" in trace.ptx and trace.sass is None
assert "add" in add_kernel.trace(x, x, out, x.size, BLOCK=256, target="cpu").assembly

from blocknb.profile import ceilings, noise, timing
ceilings.name_of(ceilings.HOST), timing.llc_bytes()
print("works")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pretends to be another system")
def test_kernels_run_without_the_functions_that_only_linux_has(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(TREE), "BLOCKNB_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=TREE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "works\n"
