"""Rows near the end of the address space: a row that wraps around it is an AccessError, not a crash of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

KERNEL = """
import ctypes, mmap
import numpy as np, blocknb, blocknb.language as tl

@blocknb.kernel
def copied(x, out, off, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    ACCESS

def at(address):
    "64 numbers of 32 bits, at that address if it is not 0."
    if not address:
        return np.arange(64, dtype=np.int32)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    MAP_FIXED_NOREPLACE = 0x100000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    assert libc.mmap(address, 4096, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == address
    return np.ctypeslib.as_array((ctypes.c_int32 * 64).from_address(address))

x, out = at(ADDRESS), np.zeros(64, np.int32)
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
    "element": "tl.store(out, tl.load(x + off))",
    "lanes": "tl.store(out + i, tl.load(x + off + (i ^ 5)))",
    "backwards": "tl.store(out + i, tl.load(x + off + 63 - i))",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("address", [0, 0x1234_5000], ids=["64-bit offsets", "32-bit offsets"])
@pytest.mark.parametrize("access", ACCESSES)
def test_a_row_at_the_end_of_the_address_space_is_an_access_error(access, address, tmp_path):
    """Some Pythons have their heap at low addresses, from which an offset of 32 bits reaches the end of the address space."""
    path = tmp_path / "wrapped.py"
    path.write_text(KERNEL.replace("ACCESS", ACCESSES[access]).replace("ADDRESS", hex(address)))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert all("of `x`, which has 64 elements" in line for line in lines)
