"""CUDA-specific names: libdevice, and queries of the GPU."""

from blocknb.language.extra.cuda import gdc, libdevice, utils
from blocknb.language.extra.cuda.gdc import gdc_launch_dependents, gdc_wait
from blocknb.language.extra.cuda.utils import globaltimer, num_threads, num_warps, smid
from blocknb.language.refused import refuser

__all__ = [
    "gdc",
    "gdc_launch_dependents",
    "gdc_wait",
    "globaltimer",
    "libdevice",
    "num_threads",
    "num_warps",
    "smid",
    "utils",
]
__getattr__ = refuser(__name__)
