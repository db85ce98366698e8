"""CUDA's extras: libdevice."""

from blocknb.language.extra.cuda import libdevice

__all__ = ["libdevice"]
