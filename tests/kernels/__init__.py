"""The kernels that every part of the compiler is tested with; see `base`."""

from kernels import (  # noqa: F401 - filling CASES
    addresses,
    ahead,
    atomics,
    attention,
    blocks,
    control,
    elementwise,
    float8,
    functions,
    gemms,
    hopper,
    inplace,
    mapped,
    networks,
    products,
    ptx,
    reports,
    scaled,
    scans,
    tiles,
)
from kernels.base import CASES, GPU_CASES, Case

__all__ = ["CASES", "GPU_CASES", "Case"]
