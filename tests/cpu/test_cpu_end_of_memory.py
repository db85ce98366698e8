"""Rows near the end of the address space: a row that wraps around it is an AccessError, not a crash of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

KERNEL = """
import numpy as np, blocknb, blocknb.language as tl

@blocknb.kernel
def copied(x, out, off, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    ACCESS

x, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
end = -(x.ctypes.data // 4)  # elements from x to address 2^64, which is 0
for shift in (-64, -63, -32, -1, 0):
    try:
        copied[(1,)](x, out, end + shift, 64, BLOCK=64)
        print("no error")
    except blocknb.AccessError as error:
        print(str(error).splitlines()[0])
"""
ACCESSES = {
    "load": "tl.store(out + i, tl.load(x + off + i))",
    "masked load": "tl.store(out + i, tl.load(x + off + i, mask=i < n))",
    "store": "tl.store(x + off + i, i)",
    "backwards": "tl.store(out + i, tl.load(x + off + 63 - i))",
}


@pytest.mark.parametrize("access", ACCESSES)
def test_a_row_at_the_end_of_the_address_space_is_an_access_error(access, tmp_path):
    path = tmp_path / "wrapped.py"
    path.write_text(KERNEL.replace("ACCESS", ACCESSES[access]))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert all("of `x`, which has 64 elements" in line for line in lines)
