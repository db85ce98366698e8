"""Occupancy: how many programs of a kernel an SM holds at once, which resource limits it, and which change would raise it.

The rules are those of CUDA's occupancy calculation (`cudaOccupancyMaxActiveBlocksPerMultiprocessor`). A CTA occupies warps, registers and
shared memory, and the hardware allocates them in units. A warp gets registers in units of 256, from the quarter of the register file
that its scheduler owns. A CTA gets shared memory in units of 128 bytes (256 before sm_80), plus 1 KiB for the system from sm_80 on.
A CTA may hold several small programs. Sources: `cudaOcc...AllocationGranularity`, `cudaOccSubPartitionsPerMultiprocessor` and
`cudaOccMaxBlocksPerMultiprocessor` of cuda_occupancy.h (CUDA 13.0, compute capability 7.0 to 12.x) for the units, schedulers and CTAs per
SM; the table "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide for the resources of an SM in `target`.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.target import Target
from blocknb.trace import Resources

SCHEDULERS = 4  # per SM; each owns a quarter of the registers
REGISTER_UNIT = 256  # allocation unit of a warp
FEWEST_REGISTERS = 16  # per thread; useful kernels need more


@dataclass(frozen=True)
class Occupancy:
    """The programs (`blocks_per_sm`) and warps that one SM holds, of at most `max_warps` warps. `limiter` is "registers", "shared memory",
    "threads" or "blocks". Each line of `advice` names a change that raises the occupancy."""

    blocks_per_sm: int
    warps_per_sm: int
    max_warps: int
    limiter: str
    advice: tuple[str, ...]

    @property
    def percent(self) -> float:
        return 100 * self.warps_per_sm / self.max_warps


def occupancy(target: Target, resources: Resources) -> Occupancy | None:
    """Returns the occupancy of GPU code; None for a CPU, or if ptxas did not report registers and threads."""
    if not target.is_gpu or resources.registers is None or not resources.threads:
        return None
    each = resources.programs
    warps = -(-resources.threads // target.warp_size) * each
    registers, shared = resources.registers, resources.shared_bytes or 0
    limits = _limits(target, warps, registers, shared)
    blocks = min(limits.values())
    limiter = next(name for name in _ORDER if limits[name] == blocks)
    advice = () if blocks * warps >= target.max_warps else _advice(target, warps, registers, shared, limits, each)
    return Occupancy(blocks * each, blocks * warps, target.max_warps, limiter, advice)


# Of several equal limits, the first in this order is named, because a kernel change moves it most easily.
_ORDER = ("registers", "shared memory", "threads", "blocks")


def _limits(target: Target, warps: int, registers: int, shared: int) -> dict[str, int]:
    """The number of CTAs that each resource allows."""
    reserved, unit = _shared_rule(target)
    occupied = _rounded(shared + reserved, unit)
    return {
        "registers": _by_registers(target, warps, registers),
        "shared memory": target.shared_per_sm // occupied if occupied else target.max_ctas,
        "threads": target.max_warps // warps,
        "blocks": target.max_ctas,
    }


def _by_registers(target: Target, warps: int, registers: int) -> int:
    if not registers:
        return target.max_ctas
    a_warp = _rounded(registers * target.warp_size, REGISTER_UNIT)
    if a_warp * _rounded(warps, SCHEDULERS) > target.registers:
        return 0
    return target.registers // SCHEDULERS // a_warp * SCHEDULERS // warps


def _shared_rule(target: Target) -> tuple[int, int]:
    """Bytes of shared memory that the system reserves per CTA, and the allocation unit."""
    return (1024, 128) if target.capability >= 80 else (0, 256)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _advice(
    target: Target, warps: int, registers: int, shared: int, limits: dict[str, int], each: int
) -> tuple[str, ...]:
    """The changes that allow one more CTA of `each` programs per SM, one for each limiting resource."""
    blocks = min(limits.values())
    found: list[str] = []
    wanted = blocks + 1
    if limits["blocks"] == blocks:
        return (f"an SM holds at most {target.max_ctas} programs: more warps per program would raise the occupancy",)
    if limits["threads"] == blocks:
        most = target.max_warps // wanted
        if not most:
            return ()
        count = f"{most} warp{'s' if most > 1 else ''} per program"
        return (f"{count} (num_warps) or fewer -> {wanted} programs per SM, if registers and shared memory allow",)
    fewer, less = registers, shared
    if limits["registers"] == blocks:
        fewer = next((r for r in range(registers, 0, -1) if _by_registers(target, warps, r) >= wanted), 0)
        found.append(f"{registers - fewer} register{'s' if registers - fewer > 1 else ''} fewer per thread")
    if limits["shared memory"] == blocks:
        reserved, unit = _shared_rule(target)
        less = target.shared_per_sm // wanted // unit * unit - reserved
        found.append(f"{shared - less} bytes of shared memory fewer per program")
    if fewer < FEWEST_REGISTERS or less < 0:
        return ("smaller tiles would need fewer registers and less shared memory",)
    then = min(_limits(target, warps, fewer, less).values())
    return (f"{' and '.join(found)} -> {then * each} programs per SM ({100 * then * warps / target.max_warps:.0f} %)",)
