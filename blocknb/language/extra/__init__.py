"""The names under which Triton's kernels reach libdevice: `tl.extra.libdevice`, `tl.extra.cuda.libdevice`."""

from blocknb.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
