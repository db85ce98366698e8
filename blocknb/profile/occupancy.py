"""Occupancy: how many programs of a kernel an SM holds at once, which resource limits it, and which change would raise it.

The rules are those of `analysis.residency`. A CTA may hold several small programs.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.analysis.residency import by_registers, ctas_by_resource, shared_rule
from blocknb.target import Target
from blocknb.trace import Resources

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
    limits = ctas_by_resource(target, warps, registers, shared)
    blocks = min(limits.values())
    limiter = next(name for name in _ORDER if limits[name] == blocks)
    advice = () if blocks * warps >= target.max_warps else _advice(target, warps, registers, shared, limits, each)
    return Occupancy(blocks * each, blocks * warps, target.max_warps, limiter, advice)


# Of several equal limits, the first in this order is named, because a kernel change moves it most easily.
_ORDER = ("registers", "shared memory", "threads", "blocks")


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
        fewer = next((r for r in range(registers, 0, -1) if by_registers(target, warps, r) >= wanted), 0)
        found.append(f"{registers - fewer} register{'s' if registers - fewer > 1 else ''} fewer per thread")
    if limits["shared memory"] == blocks:
        reserved, unit = shared_rule(target)
        less = target.shared_per_sm // wanted // unit * unit - reserved
        found.append(f"{shared - less} bytes of shared memory fewer per program")
    if fewer < FEWEST_REGISTERS or less < 0:
        return ("smaller tiles would need fewer registers and less shared memory",)
    then = min(ctas_by_resource(target, warps, fewer, less).values())
    return (f"{' and '.join(found)} -> {then * each} programs per SM ({100 * then * warps / target.max_warps:.0f} %)",)
