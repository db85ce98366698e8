"""How many CTAs an SM holds at once: the rules of CUDA's occupancy calculation (`cudaOccupancyMaxActiveBlocksPerMultiprocessor`).

A CTA occupies warps, registers and shared memory, and the hardware allocates them in units. A warp gets registers in units of 256, from
the quarter of the register file that its scheduler owns. A CTA gets shared memory in units of 128 bytes (256 before sm_80), plus 1 KiB for
the system from sm_80 on. Sources: `cudaOcc...AllocationGranularity`, `cudaOccSubPartitionsPerMultiprocessor` and
`cudaOccMaxBlocksPerMultiprocessor` of cuda_occupancy.h (CUDA 13.0, compute capability 7.0 to 12.x) for the units, schedulers and CTAs per
SM; the table "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide for the resources of an SM in `target`.
"""

from __future__ import annotations

from blocknb.target import Target

SCHEDULERS = 4  # per SM; each owns a quarter of the registers
REGISTER_UNIT = 256  # allocation unit of a warp
MOST_REGISTERS = 255  # per thread


def resident(target: Target, warps: int, registers: int, shared: int) -> int:
    """How many CTAs with these warps, registers per thread and bytes of shared memory an SM holds."""
    return min(ctas_by_resource(target, warps, registers, shared).values())


def ctas_by_resource(target: Target, warps: int, registers: int, shared: int) -> dict[str, int]:
    """The number of CTAs that each resource allows."""
    return {
        "registers": by_registers(target, warps, registers),
        "shared memory": ctas_by_shared_memory(target, shared),
        "threads": target.max_warps // warps,
        "blocks": target.max_ctas,
    }


def ctas_by_shared_memory(target: Target, shared: int) -> int:
    """The number of CTAs with these bytes of shared memory that an SM has room for."""
    reserved, unit = shared_rule(target)
    occupied = rounded(shared + reserved, unit)
    return target.shared_per_sm // occupied if occupied else target.max_ctas


def by_registers(target: Target, warps: int, registers: int) -> int:
    """The number of CTAs for which an SM has registers."""
    if not registers:
        return target.max_ctas
    a_warp = rounded(registers * target.warp_size, REGISTER_UNIT)
    if a_warp * rounded(warps, SCHEDULERS) > target.registers:
        return 0
    return target.registers // SCHEDULERS // a_warp * SCHEDULERS // warps


def shared_rule(target: Target) -> tuple[int, int]:
    """Bytes of shared memory that the system reserves per CTA, and the allocation unit."""
    return (1024, 128) if target.capability >= 80 else (0, 256)


def rounded(count: int, unit: int) -> int:
    """The least multiple of `unit` that is not below `count`."""
    return -(-count // unit) * unit
