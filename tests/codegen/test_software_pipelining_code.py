"""Machine code of software-pipelined products by mma.sync.

Copies bypass registers, fragments are read while the tensor cores work, and nothing is moved or spilled. test_wgmma.py covers wgmma.
"""

from __future__ import annotations

from collections import Counter

import pytest
from codegen.test_register_prefetch_code import loops

from blocknb.kernels.matmul import matmul_kernel
from blocknb.trace import Trace

SIZES = dict.fromkeys(("m", "n", "k", "a_row", "b_row", "c_row"), "i32:16")


def product(target: str, tile: tuple[int, int, int], warps: int, dtype: str = "fp16", **options: object) -> Trace:
    blocks = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
    arrays = {"a": f"*{dtype}:16", "b": f"*{dtype}:16", "c": "*fp32:16"}
    columns = dict.fromkeys(("a_column", "b_column", "c_column"), 1)
    return matmul_kernel.trace(
        **arrays,
        **SIZES,
        **columns,
        **blocks,
        GROUP=8,
        num_warps=warps,
        target=target,
        **({"without": ("select_wgmma",)} | options),
    )


@pytest.mark.sampled(4, each=["target", "warps"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("tile", [(128, 128, 32), (128, 128, 64)])
def test_iteration_contains_few_instructions_besides_copies_and_products(tile, warps, target):
    trace = product(target, tile, warps)
    assert trace.resources.spill_bytes == 0 and not [n for n in trace.notes if n.kind == "warning"]
    iteration = next(codes for codes in loops(trace) if "HMMA" in codes)
    count, (m, n, k) = Counter(iteration), tile
    assert count["LDGSTS"] == (m + n) * k * 2 // (16 * 32 * warps)
    assert count["HMMA"] == m * n * k // (16 * 8 * 16 * warps)
    assert count["LDG"] == count["STS"] == 0 and count["BAR"] == count["LDGDEPBAR"] == 1
    # The accumulators stay in their registers, and stage addresses are immediate operands.
    assert count["MOV"] + count["CS2R"] <= 4
    others = sum(count.values()) - count["HMMA"] - count["LDSM"] - count["LDGSTS"]
    assert others <= 40 + 2 * count["LDGSTS"]
    # If registers cannot hold all fragments, some are read while others are multiplied.
    half = [i for i, code in enumerate(iteration) if code == "HMMA"][count["HMMA"] // 2]
    first = iteration.index("HMMA")
    assert k < 64 or "LDSM" in iteration[first:half]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("tile", "warps"), [((128, 128, 32), 4), ((128, 128, 64), 4), ((128, 128, 64), 8), ((128, 256, 64), 8)]
)
def test_copies_are_issued_between_the_steps_of_a_product(tile, warps, target):
    """There is no wait between the barrier and the first fragments, and the last step leaves time for the next iteration."""
    trace = product(target, tile, warps)
    assert trace.resources.spill_bytes == 0
    iteration = next(codes for codes in loops(trace) if "HMMA" in codes)
    first = iteration.index("HMMA")
    copies = [i for i, code in enumerate(iteration) if code == "LDGSTS"]
    assert sum(i < first for i in copies) <= 2 and iteration.index("LDSM") < copies[0]
    assert iteration.count("BAR") == iteration.count("LDGDEPBAR") == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_without_software_pipelining_tiles_go_through_registers(dtype):
    codes = {
        without: Counter(
            code for codes in loops(product("sm_80", (64, 64, 32), 4, dtype, without=without)) for code in codes
        )
        for without in ((), ("software_pipelining",))
    }
    assert codes[()]["LDGSTS"] and not codes[()]["LDG"]
    assert codes[("software_pipelining",)]["LDG"] and not codes[("software_pipelining",)]["LDGSTS"]
