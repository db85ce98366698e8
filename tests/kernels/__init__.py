"""The kernels that every part of the compiler is tested with; see `base`."""

from kernels import addresses, atomics, control, elementwise, inplace, networks, products, tiles  # noqa: F401 - filling CASES
from kernels.base import CASES, Case

__all__ = ["CASES", "Case"]
