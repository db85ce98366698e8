"""The kernels that every part of the compiler is tested with; see `base`."""

from kernels import (  # noqa: F401 - filling CASES
    addresses,
    atomics,
    control,
    elementwise,
    functions,
    inplace,
    networks,
    products,
    scans,
    tiles,
)
from kernels.base import CASES, Case

__all__ = ["CASES", "Case"]
