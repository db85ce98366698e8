"""Compile-time queries of the target: `if tl.target_info.is_cuda(): ...` guards PTX on a CPU."""

from __future__ import annotations

from blocknb.language.declarations import builtin


@builtin
def current_target():
    """Returns the target with its `backend` ("cuda" or "cpu") and `arch`, as `triton.runtime.driver.active.get_current_target()` does.

    Example:
        tl.target_info.current_target().backend == "hip"  # False
    """


@builtin
def is_cuda():
    """Returns whether the kernel is compiled for an NVIDIA GPU.

    Example:
        tl.target_info.is_cuda() | True  # True
    """


@builtin
def cuda_capability_geq(major, minor=0):
    """Returns whether the GPU has at least this compute capability; False on a CPU.

    Example:
        tl.target_info.cuda_capability_geq(100, 0) & False  # False
    """


@builtin
def is_hip():
    """Returns False: there is no backend for AMD GPUs.

    Example:
        tl.target_info.is_hip()  # False
    """


@builtin
def is_hip_cdna3():
    """Returns False: there is no backend for AMD GPUs.

    Example:
        tl.target_info.is_hip_cdna3()  # False
    """


@builtin
def is_hip_cdna4():
    """Returns False: there is no backend for AMD GPUs.

    Example:
        tl.target_info.is_hip_cdna4()  # False
    """
