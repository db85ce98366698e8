"""Matrix products with autotuned tiles: `blocknb.tune.products.matmul`, for the last few percent of speed for a shape.

The kernels are those of `blocknb.kernels.matmul`, which chooses a tile by a rule. Here an autotuner measures that rule's candidates and
similar tiles for each new combination of sizes, orders and dtypes. It keeps its choices on disk.
"""

from __future__ import annotations

import functools
from typing import Any

import blocknb
from blocknb.kernels import descriptors
from blocknb.kernels.gemm import along_k
from blocknb.kernels.matmul import arguments, matmul_kernel
from blocknb.kernels.operands import DESCRIPTORS_FROM, MatmulProblem
from blocknb.kernels.shapes import LINE, candidates
from blocknb.kernels.strides import Device, device
from blocknb.tune.autotuner import Autotuner
from blocknb.tune.config import Config

ON_HOST = ((256, 256, 256), (256, 128, 128), (128, 256, 128), (128, 128, 64))  # tiles that are measured on a CPU
KEY = ["m", "n", "k", "TRANS_A", "TRANS_B", "a_column", "b_column", "ACTIVATION"]


def configs(itemsize: int, on: Device) -> list[Config]:
    """The tiles, warps and stages to measure on a device for operands of `itemsize` bytes per element.

    No configuration needs more shared memory than the device has.
    """
    if on.capability == 0:
        return [Config(_blocks(m, n, k, 8)) for m, n, k in ON_HOST]
    inner = max(16, (LINE if on.capability >= 90 else LINE // 2) // itemsize)
    found: dict[tuple[Any, ...], Config] = {}
    for one in candidates(on):
        for k in (inner, 2 * inner):
            fits = on.shared // ((one.m + one.n) * k * itemsize)
            for stages in sorted({min(one.num_stages, fits), min(3, fits)} - {0, 1}):
                for group in (8, 16) if one.m * one.n >= 128 * 128 else (8,):
                    constants = _blocks(one.m, one.n, k, group)
                    found[one.m, one.n, k, stages, group] = Config(constants, one.num_warps, stages)
    return list(found.values())


def _blocks(m: int, n: int, k: int, group: int) -> dict[str, int]:
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": group}


@functools.cache
def tuner(kind: str, itemsize: int, on: Device) -> Autotuner:
    """The autotuned kernel of "pointers", "descriptors" or "batches"; its `tuning` is a table of the last trials."""
    kernel = {
        "pointers": matmul_kernel,
        "descriptors": descriptors.matmul_descriptor_kernel,
        "batches": descriptors.matmul_batch_kernel,
    }[kind]
    key = [name for name in KEY if name in kernel.arg_names]
    return Autotuner(kernel, kernel.arg_names, configs(itemsize, on), key)


def matmul(a: Any, b: Any, out: Any = None, **epilogue: Any) -> Any:
    """Computes `blocknb.kernels.matmul` with the fastest of `configs`; returns `out`.

    The first product with new sizes, orders or dtypes measures the configurations. Takes the arguments of `blocknb.kernels.matmul` except
    those that set a tile. Raises ValueError for arrays that do not fit each other.
    """
    p = MatmulProblem.of(a, b, out, **epilogue)
    if p.empty:
        return p.out
    on = device(p.a)
    by_blocks = on.capability >= DESCRIPTORS_FROM and not isinstance(p.blocks, str)
    kind = "pointers" if not by_blocks else "batches" if p.batched else "descriptors"
    given, named = descriptors.arguments(along_k(p)) if by_blocks else arguments(p)

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        return blocknb.cdiv(p.m, meta["BLOCK_M"]) * blocknb.cdiv(p.n, meta["BLOCK_N"]), p.batch

    tuner(kind, p.itemsize, on)[grid](*given, **named)
    return p.out
