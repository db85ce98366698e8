"""The default device (the current GPU, else this CPU), and its properties under Triton's names.

Wrappers read the number of multiprocessors and registers to compute a grid or an occupancy. On a CPU, the cores count as
multiprocessors. Other properties of a CPU are nominal: registers and shared memory of a small GPU. With them, the usual formulas give
at least one program per core for any number of warps. `Compiled.n_regs` (see `readback`) assumes that 32 warps share the registers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from blocknb.cpus import cpu_count
from blocknb.runtime import torch_cuda
from blocknb.target import Target

#: The figures of a "multiprocessor" of the CPU: 32-bit registers, bytes of shared memory, threads of a warp.
NOMINAL_REGISTERS, NOMINAL_SHARED, NOMINAL_WARP = 65536, 48 << 10, 32

# Triton's name -> the name of CUDA's device attribute, as CuPy spells it.
_ATTRIBUTES = {
    "multiprocessor_count": "MultiProcessorCount",
    "max_shared_mem": "MaxSharedMemoryPerBlockOptin",
    "max_num_regs": "MaxRegistersPerBlock",
    "warpSize": "WarpSize",
    "sm_clock_rate": "ClockRate",
    "mem_clock_rate": "MemoryClockRate",
    "mem_bus_width": "GlobalMemoryBusWidth",
}


class GPUTarget(NamedTuple):
    """A target in Triton's terms: GPUTarget("cuda", 90, 32), or GPUTarget("cpu", 0, 32)."""

    backend: str
    arch: int
    warp_size: int


def has_gpu() -> bool:
    """Whether CuPy is installed and sees a GPU, or else torch, if it has been imported."""
    return _cupy_sees_gpu() or torch_cuda.available()


@functools.cache
def _cupy_sees_gpu() -> bool:
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:  # CuPy or the driver is missing, or they do not fit each other
        return False


def current_gpu() -> int | None:
    """The number of the current GPU, or None without a GPU."""
    if not has_gpu():
        return None
    from blocknb.runtime import cuda

    return int(cuda.api().runtime.getDevice())


def current_target() -> GPUTarget:
    """The machine that kernels run on by default."""
    device = current_gpu()
    if device is None:
        return GPUTarget("cpu", 0, NOMINAL_WARP)
    from blocknb.runtime import cuda

    return describe(cuda.target(device))


def describe(target: Target) -> GPUTarget:
    """A target in Triton's terms."""
    return GPUTarget("cuda", target.capability, 32) if target.is_gpu else GPUTarget("cpu", 0, NOMINAL_WARP)


def properties(device: int | None = None) -> dict[str, int]:
    """Triton's get_device_properties of a GPU (by default the current one), or the nominal properties of the CPU."""
    if not has_gpu():
        return {
            "multiprocessor_count": cpu_count(),
            "max_shared_mem": NOMINAL_SHARED,
            "max_num_regs": NOMINAL_REGISTERS,
            "warpSize": NOMINAL_WARP,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }
    from blocknb.runtime import cuda

    found: dict[str, Any] = cuda.api().Device(current_gpu() if device is None else device).attributes
    return {name: int(found.get(attribute, 0)) for name, attribute in _ATTRIBUTES.items()}
