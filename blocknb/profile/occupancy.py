"""Occupancy: how many programs of a kernel an SM holds at once, what limits it, and what would let it hold more.

The rules are those of CUDA's occupancy calculation (`cudaOccupancyMaxActiveBlocksPerMultiprocessor`). A program (a CTA; where small
programs share one, they are counted as it fills them) occupies warps, registers and shared memory, and each is handed out in units:
registers 256 at a time to each warp, from the quarter of the file that its scheduler owns; shared memory in steps of 128 bytes (256
before sm_80), beside 1 KiB that the system keeps for itself for each program from sm_80 on. Sources: for units, schedulers and programs
an SM the functions `cudaOcc...AllocationGranularity`, `cudaOccSubPartitionsPerMultiprocessor` and `cudaOccMaxBlocksPerMultiprocessor` of
cuda_occupancy.h (CUDA 13.0, compute capability 7.0 to 12.x); for warps, registers and shared memory of an SM (in `target`) the table
"Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.target import Target
from blocknb.trace import Resources

SCHEDULERS = 4  # of an SM; each has a quarter of the registers
REGISTER_UNIT = 256  # registers a warp is given at a time
FEWEST_REGISTERS = 16  # below, no kernel that does anything gets


@dataclass(frozen=True)
class Occupancy:
    """Programs (`blocks_per_sm`) and warps that one SM holds, of `max_warps`. `limiter` is "registers", "shared memory", "threads" or
    "blocks"; `advice` are sentences on what would change it."""

    blocks_per_sm: int
    warps_per_sm: int
    max_warps: int
    limiter: str
    advice: tuple[str, ...]

    @property
    def percent(self) -> float:
        return 100 * self.warps_per_sm / self.max_warps


def occupancy(target: Target, resources: Resources) -> Occupancy | None:
    """The occupancy of code for a GPU; None for a CPU, or where the assembler did not report registers and threads."""
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


# Of several limits that are equal the one that is named: what a change of the kernel moves first.
_ORDER = ("registers", "shared memory", "threads", "blocks")


def _limits(target: Target, warps: int, registers: int, shared: int) -> dict[str, int]:
    """How many programs each resource has room for."""
    return {
        "registers": _by_registers(target, warps, registers),
        "shared memory": target.shared_per_sm // _shared(target, shared)
        if _shared(target, shared)
        else target.max_ctas,
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


def _shared(target: Target, used: int) -> int:
    """Bytes of shared memory that a program occupies."""
    reserved, unit = _shared_rule(target)
    return _rounded(used + reserved, unit)


def _shared_rule(target: Target) -> tuple[int, int]:
    """Bytes that the system keeps for itself in each program, and the unit of what is handed out."""
    return (1024, 128) if target.capability >= 80 else (0, 256)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _advice(
    target: Target, warps: int, registers: int, shared: int, limits: dict[str, int], each: int
) -> tuple[str, ...]:
    """What would let one more CTA of `each` programs in, one sentence for each resource that has to give way."""
    blocks = min(limits.values())
    found: list[str] = []
    wanted = blocks + 1
    if limits["blocks"] == blocks:
        return (f"an SM holds at most {target.max_ctas} programs: more warps a program would fill it",)
    if limits["threads"] == blocks:
        most = target.max_warps // wanted
        if not most:
            return ()
        count = f"{most} warp{'s' if most > 1 else ''} a program"
        return (
            f"{count} (num_warps) or fewer -> {wanted} programs an SM, as far as registers and shared memory allow",
        )
    fewer, less = registers, shared
    if limits["registers"] == blocks:
        fewer = next((r for r in range(registers, 0, -1) if _by_registers(target, warps, r) >= wanted), 0)
        found.append(f"{registers - fewer} register{'s' if registers - fewer > 1 else ''} fewer a thread")
    if limits["shared memory"] == blocks:
        reserved, unit = _shared_rule(target)
        less = target.shared_per_sm // wanted // unit * unit - reserved
        found.append(f"{shared - less} bytes fewer of shared memory a program")
    if fewer < FEWEST_REGISTERS or less < 0:
        return ("smaller tiles would need less of everything",)
    then = min(_limits(target, warps, fewer, less).values())
    return (f"{' and '.join(found)} -> {then * each} programs an SM ({100 * then * warps / target.max_warps:.0f} %)",)
