"""Computed occupancy equals the driver's, for kernels with few and many registers, with and without shared memory."""

from __future__ import annotations

import pytest

from blocknb.kernels.matmul import matmul_kernel
from blocknb.kernels.softmax import softmax_kernel
from blocknb.profile.occupancy import occupancy
from blocknb.runtime import cuda


def compiled_softmax(warps, block):
    kinds = dict.fromkeys(("x_stride", "y_stride", "n"), "i32:16")
    target = cuda.target(0)
    return softmax_kernel.compile("*fp32:16", "*fp32:16", **kinds, BLOCK=block, num_warps=warps, target=target)


def compiled_matmul(warps, tile):
    arrays = dict.fromkeys(("a", "b", "c"), "*fp16:16")
    sizes = dict.fromkeys(("m", "n", "k", "a_row", "b_row", "c_row"), "i32:16")
    columns = dict.fromkeys(("a_column", "b_column", "c_column"), 1)
    tiles = {"BLOCK_M": tile, "BLOCK_N": tile, "BLOCK_K": 32, "GROUP": 8}
    return matmul_kernel.compile(**arrays, **sizes, **columns, **tiles, num_warps=warps, target=cuda.target(0))


@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("make", "size"), [(compiled_softmax, 512), (compiled_softmax, 8192), (compiled_matmul, 64)])
def test_computed_occupancy_matches_the_driver(make, size, warps):
    cupy = cuda.cupy()
    compiled = make(warps, size)
    function = cupy.cuda.function.Module()
    function.load(compiled.artifacts["cubin"])
    handle = function.get_function(compiled.code.entry)
    dynamic = compiled.code.shared_bytes
    if dynamic > 48 * 1024:
        handle.max_dynamic_shared_size_bytes = dynamic
    said = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(handle.ptr, compiled.code.threads, dynamic)
    assert occupancy(compiled.target, compiled.trace.resources).blocks_per_sm == said
