"""The kernels that every part of the compiler is tested with; see `base`."""

from kernels import control, elementwise, inplace, networks, products, scans, tiles  # noqa: F401 - filling CASES
from kernels.base import CASES, Case

__all__ = ["CASES", "Case"]
