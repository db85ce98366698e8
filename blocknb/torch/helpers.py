"""The names besides `tl` that Inductor's generated kernels use, for cells that hold such a kernel.

from blocknb.torch.helpers import libdevice, tl_math, triton_helpers
"""

from __future__ import annotations

from blocknb.torch.inductor import sources

triton_helpers = sources.private("triton_helpers")
libdevice = triton_helpers.libdevice
tl_math = triton_helpers.math

__all__ = ["libdevice", "tl_math", "triton_helpers"]
