"""Memory traffic of a tile access: requests and sectors of global memory, wavefronts and bank conflicts of shared memory.

A request is one instruction of one warp. Global memory serves it in sectors of 32 bytes, four per cache line of 128 bytes. The ideal is
the number of sectors that its distinct bytes fill. Shared memory serves a request in wavefronts. `layouts.shared` computes them by a
formula for linear layouts. `wavefronts` counts them bank by bank, for other layouts and as a test of the formula. Sizes are in bytes.
(CUDA C++ Programming Guide, device memory accesses and shared memory; Nsight Compute,
"Sectors/Req".)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blocknb.analysis.accesses import accesses
from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import global_operands
from blocknb.codegen.gpu.element_types import memory_bits
from blocknb.codegen.gpu.shared_memory import matrix_access
from blocknb.ir.core import Op
from blocknb.language.ops import ATOMICS
from blocknb.language.types import Buffer
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import BANKS, WORD_BYTES, conflicts, vector_access
from blocknb.profile.addresses import TracedAccess
from blocknb.target import Target

SECTOR_BYTES = 32
LINE_BYTES = 128
_NOWHERE = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Traffic:
    """The requests of one access of one program. `sectors`, `ideal` and `lines` (cache lines) are sums over the requests. `most` and
    `least` are the sectors of the worst and the best request. `together` is the largest number of lanes of a request at one address."""

    requests: int
    sectors: int
    ideal: int
    lines: int
    most: int
    least: int
    together: int


def layout_of(op: Op, num_warps: int) -> Layout:
    """The layout of the tile of a global access. Every thread holds a scalar."""
    type_ = global_operands(op)[0].type
    return type_.layout if type_.shape else Layout((), (), (0,) * 5, (0,) * (num_warps.bit_length() - 1))


def instructions(facts: Facts, op: Op, layout: Layout) -> list[tuple[int, ...]]:
    """The registers of each instruction that a thread issues for a load, store or atomic, as the code generator groups them."""
    if op.name not in ATOMICS:
        return accesses(facts, op)
    return [(register,) for register in range(layout.num_registers)]


def owners(op: Op, layout: Layout) -> np.ndarray:
    """The active threads, bool [warps, lanes]: all threads for a load, one thread per element for a store, atomic or copy."""
    warps, lanes = np.arange(layout.num_warps)[:, None], np.arange(layout.num_lanes)[None, :]
    if op.name == "load":
        return (warps >= 0) & (lanes >= 0)
    return (warps & layout.replicated_warp_bits == 0) & (lanes & layout.replicated_lane_bits == 0)


def traffic(
    access: TracedAccess, layout: Layout, groups: Sequence[tuple[int, ...]], element_bytes: int, start: int = 0
) -> Traffic:
    """The traffic of an access with known offsets. Masked-off lanes request nothing. `start`: the bytes from the last cache line to the
    start of the array."""
    assert access.offsets is not None
    first = layout.indices()[:, :, [group[0] for group in groups]].transpose(0, 2, 1)  # [warps, instructions, lanes]
    starts = access.offsets.reshape(-1)[first] + start
    on = access.on.reshape(-1)[first] & owners(access.op, layout)[:, None, :]
    return request_traffic(
        starts.reshape(-1, layout.num_lanes), on.reshape(-1, layout.num_lanes), element_bytes * len(groups[0])
    )


def request_traffic(starts: np.ndarray, on: np.ndarray, width: int) -> Traffic:
    """The traffic of requests given as byte offsets and masks, [requests, lanes]. Each lane moves `width` bytes."""
    starts, on = starts[on.any(axis=1)], on[on.any(axis=1)]
    if not len(starts):
        return Traffic(0, 0, 0, 0, 0, 0, 0)
    sectors = _different(starts, on, width, SECTOR_BYTES)
    different = _different(starts, on, 1, 1)
    ideal = -(-different * width // SECTOR_BYTES)
    ordered = np.sort(np.where(on, starts, _NOWHERE), axis=1)
    together = 1
    while together < ordered.shape[1]:
        meets = (ordered[:, together:] == ordered[:, :-together]) & (ordered[:, together:] != _NOWHERE)
        if not meets.any():
            break
        together += 1
    return Traffic(
        len(starts),
        int(sectors.sum()),
        int(ideal.sum()),
        int(_different(starts, on, width, LINE_BYTES).sum()),
        int(sectors.max()),
        int(sectors.min()),
        together,
    )


def _different(starts: np.ndarray, on: np.ndarray, width: int, unit: int) -> np.ndarray:
    """The number of units of `unit` bytes that each request accesses, [requests]."""
    parts = [np.where(on, (starts + at) // unit, _NOWHERE) for at in (*range(0, width, unit), width - 1)]
    units = np.sort(np.concatenate(parts, axis=1), axis=1)
    new = np.ones(units.shape, bool)
    new[:, 1:] = units[:, 1:] != units[:, :-1]
    return (new & (units != _NOWHERE)).sum(axis=1)


# -- shared memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedTraffic:
    """The shared-memory traffic of one warp for its part of a tile. `how` names the instruction: "ldmatrix.x4", "128-bit"... `wavefronts`
    is the sum over all instructions, `ideal` the sum without conflicts, and `elements` the elements per lane and instruction."""

    how: str
    instructions: int
    wavefronts: int
    ideal: int
    elements: int

    @property
    def ways(self) -> int:
        """The degree of the bank conflict; 1 means no conflict."""
        return self.wavefronts // self.ideal


def shared_traffic(op: Op, target: Target) -> SharedTraffic:
    """The traffic of a local_store or local_load."""
    buffer = op.args[0].type
    bits = memory_bits(buffer.dtype)
    layout = op.args[1].type.layout if op.name == "local_store" else op.attrs["layout"]
    if layout is None or not buffer.shape:
        return SharedTraffic(f"{bits}-bit", 1, 1, 1, 1)
    matrix = matrix_access(op, target) if op.name == "local_load" else None
    if matrix is not None:
        how = f"ldmatrix.x{matrix.count}{'.trans' if matrix.trans else ''}"
        steps = len(matrix.steps)
        per_lane = matrix.count * len(matrix.steps[0].registers[0])
        return SharedTraffic(how, steps, matrix.wavefronts, matrix.count * steps, per_lane)
    plan = vector_access(layout, buffer.layout, bits)
    wavefronts, ideal = conflicts(layout, buffer.layout, bits, plan.vector)
    count = len(plan.groups)
    return SharedTraffic(f"{bits * plan.vector}-bit", count, wavefronts * count, ideal * count, plan.vector)


def wavefronts(starts: Sequence[int], width: int) -> tuple[int, int]:
    """The wavefronts of one instruction, counted bank by bank, and their number without conflicts. `starts` has the byte address of each
    lane.

    Accesses of 8 bytes per lane are served by half-warps, and of 16 bytes by quarter-warps. A bank serves one word per wavefront.
    """
    parts = max(1, len(starts) * width // (BANKS * WORD_BYTES))
    lanes = len(starts) // parts
    total = 0
    for part in range(0, len(starts), lanes):
        touched = {byte // WORD_BYTES for start in starts[part : part + lanes] for byte in range(start, start + width)}
        banks = [0] * BANKS
        for word in touched:
            banks[word % BANKS] += 1
        total += max(banks)
    return total, parts


def operand_wavefronts(op: Op, operand: int) -> tuple[int, int] | None:
    """The wavefronts of one load of an operand (0: A, 1: B) of a dot without an MMA instruction, from shared memory at K = 0.
    None if threads do not load it."""
    buffer, layout = op.args[operand].type, op.args[2].type.layout
    if not isinstance(buffer, Buffer) or "instr" in op.attrs:
        return None
    starts = []
    for lane in range(layout.num_lanes):
        along = layout.coords(0, lane, 0)[operand]
        index = along * buffer.shape[1] if operand == 0 else along
        starts.append(buffer.layout.offset(index) * buffer.dtype.bytes)
    return wavefronts(starts, buffer.dtype.bytes)
