"""What the kernel is compiled for, known while compiling: `if tl.target_info.is_cuda(): ...` keeps PTX away from a CPU."""

from __future__ import annotations

from blocknb.language.surface import builtin


@builtin
def current_target():
    """The target, as `triton.runtime.driver.active.get_current_target()` has it: `backend` ("cuda" or "cpu") and `arch`."""


@builtin
def is_cuda():
    """Whether the kernel is compiled for an NVIDIA GPU."""


@builtin
def cuda_capability_geq(major, minor=0):
    """Whether the GPU has this compute capability at least; False on a CPU."""


@builtin
def is_hip():
    """False: there is no backend for AMD's GPUs."""


@builtin
def is_hip_cdna3():
    """False: there is no backend for AMD's GPUs."""


@builtin
def is_hip_cdna4():
    """False: there is no backend for AMD's GPUs."""
