"""The names under which Triton's kernels reach libdevice and CUDA's extras: `tl.extra.libdevice`, `tl.extra.cuda.libdevice`."""

from blocknb.language.extra import cuda, libdevice
from blocknb.language.refused import refuser

__all__ = ["cuda", "libdevice"]
__getattr__ = refuser(__name__)
