"""Programmatic dependent launch: a kernel that waits for the previous launch itself starts while that one ends.

Two launches on one stream usually run one after the other. The second starts when all CTAs of the first have ended and their stores are
visible. A kernel that begins with `gdc_wait` needs no such order, since the instruction `griddepcontrol.wait` waits for the same. So
blocknb launches it with an attribute that lets its CTAs start earlier. They start as soon as all CTAs of the first kernel have run
`gdc_launch_dependents`, or have ended. This hides the time of a launch. Sources: CUDA C++ Programming Guide, "Programmatic Dependent Launch
and Synchronization"; PTX ISA, "griddepcontrol".
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from blocknb.ir.core import Func
from blocknb.language.ops import OPS
from blocknb.runtime import cuda

WAIT = "griddepcontrol.wait"
SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION of cuda.h


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: its id, and a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((f"{what}_{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


def waits_first(func: Func) -> bool:
    """Whether every program of a kernel waits for the previous launches before anything that has an effect or reads memory."""
    for op in func.body.ops:
        if op.name == "asm" and WAIT in op.attrs["text"]:
            return True
        if op.blocks or not OPS[op.name].pure:
            return False
    return False


@functools.cache
def _driver() -> Callable[..., int]:
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = (ctypes.POINTER(_Configuration), *[ctypes.c_void_p] * 3)
    return function


def launch_dependent(
    function: int, x: int, y: int, z: int, threads: int, block_y: int, block_z: int, shared: int, stream: int, values: int, extra: int
) -> None:  # fmt: skip
    """Launches a kernel as CuPy's `launchKernel` does, with the attribute. Raises its CUDADriverError."""
    attribute = _Attribute(SERIALIZATION, b"", 1, b"")
    configuration = _Configuration(x, y, z, threads, block_y, block_z, shared, stream, ctypes.pointer(attribute), 1)
    if status := _driver()(ctypes.byref(configuration), function, values, extra or None):
        raise cuda.driver_api().CUDADriverError(status)
