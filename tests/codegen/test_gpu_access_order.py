"""LLVM's back end keeps the order of accesses that the code generator wrote."""

from __future__ import annotations

import re

import pytest
from fuzz.program import ptx, read

KERNEL = """
# seed 1: grid 1, 1 warps
def random_1(x, out, n):
    at = bl.arange(0, 32)
    before = bl.load(x + at)
    bl.{access}
    if n > 3:
        bl.store(out + at, before)

# x: 32 x i32, whole, shifted by 0, within 0.0
# out: 32 x i32, poison, shifted by 0, within 0.0
# n = 5
"""
ACCESSES = {  # by how they begin in PTX
    "st": "store(x + at, 7)",
    "@%p1 st": "store(x + at, 7, mask=at < 20)",
    "st.global.cg": "store(x + at, 7, cache_modifier='.cg')",
    "red": "atomic_add(x + at, 7)",
    "bar": "debug_barrier()",
}


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("target", ["sm_75", "sm_90a"])
def test_load_used_in_a_branch_stays_before_the_accesses_that_follow_it(access, target):
    text = ptx(read(KERNEL.format(access=ACCESSES[access])), target)()
    found = re.findall(r"(?m)^\s(ld\.global|(?:@%p\d )?(?:st|red)\.|bar\.(?:warp\.)?sync)", text)
    assert found[0] == "ld.global" and len(found) > 2, found
