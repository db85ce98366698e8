"""Plans for products of 16-bit matrices on Hopper, chosen by a cost model that was fitted to random shapes on an H200.

A plan has a kernel, a tile, splits along K, and operands that are copied first. It may compute the transposed result. `candidates` predicts
the time of every plan in microseconds, and `plan` takes the fastest. The model has terms for waves of tiles, for prologues and epilogues,
and for the rates of tensor cores, L2 cache and DRAM. It also has terms for further launches, for copies, and for results whose rows are not
aligned. Power limits tensor cores: the clock is higher if fewer SMs multiply, and in a short product. `blocknb bench plan_check` measures
all candidates and compares the choice with the fastest.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from blocknb.kernels.shapes import NOT_COPIED, OperandRows, Plan, TileShape
from blocknb.kernels.strides import Device

INNER = 64  # elements of K per step: lines of 128 bytes
ITEM = 2  # bytes per element of the operands and, as the model assumes, of the result
LEAST_SPLIT = 192  # elements of K per part
MOST_SPLITS = 12

#: Microseconds. All candidates take FIXED: it is there for comparisons with measured times, which contain an empty launch.
FIXED = 5.2
ROW_READ = 0.95e-3  # of a multiprocessor that reads a row of a tile, a whole line of 128 bytes, from the L2 cache, if all of them read
#: The same for one of the two lines of a row that begins inside of a line, and for any line of PARTS.
LINE_READ = 1.274e-3
READ_ALONE = 0.455  # the share of that time if few others read
READ_TOGETHER = 0.66  # the share of that time if the two CTAs of a cluster read the line together
READ_APART = 1.15  # the same for a line that only one CTA of a cluster reads: the other one waits (an H100, 3000 cubed)
CROSSING = 0.18  # by how much longer a step takes if all tiles of aligned rows begin inside of lines
IDLE = 0.2  # by how much shorter a step is if nearly no other multiprocessor multiplies: the clock is higher
ONE_WAVE = 0.94  # the share of a step's time in products of one wave, which end before the clock falls
MEGABYTE = 0.412  # of DRAM, for operands and result, each once
# Of the launch that adds up the parts of a last wave, and per megabyte of parts in fp32; the same if all tiles have parts.
SUM, SUM_MEGABYTE = 3.82, 0.247
SUM_ALL, SUM_ALL_MEGABYTE = 6.55, 0.185
COPY, COPY_MEGABYTE = 3.05, 0.25  # of the launch that copies operands, and per megabyte that it reads or writes
UNALIGNED_STORE = 0.65  # per 128 by 128 elements of a tile whose rows are not aligned to 16 bytes
OVERLAP = 4  # the exponent that joins the times of multiplying and of DRAM: they overlap, but for the start


class TileCost(NamedTuple):
    """A tile, its warps and stages; microseconds of a multiprocessor per step along K, and for the rest of the tile; the CTAs of a cluster,
    which read the second operand together. `swapped`: the kernel computes the transposed result, whose columns are the tile's rows."""

    m: int
    n: int
    num_warps: int
    num_stages: int
    step: float
    rest: float
    cluster: int = 1
    swapped: bool = False


#: Tiles of one program each. Two programs of four warps share an SM, and one multiplies while the other stores (ping-pong).
WHOLE = (
    TileCost(128, 256, 8, 4, 0.674, 1.20),
    TileCost(128, 240, 8, 4, 0.640, 1.30),
    TileCost(128, 224, 8, 4, 0.597, 1.10),
    TileCost(128, 208, 8, 4, 0.561, 1.14),
    TileCost(128, 192, 8, 4, 0.513, 1.03),
    TileCost(128, 176, 8, 4, 0.481, 0.85),
    TileCost(128, 160, 8, 4, 0.432, 0.90),
    TileCost(128, 144, 8, 4, 0.390, 0.90),
    TileCost(128, 128, 4, 3, 0.353, 0.10),
    TileCost(128, 96, 4, 4, 0.285, 0.70),
    TileCost(128, 64, 4, 6, 0.215, 0.50),
    TileCost(64, 128, 4, 8, 0.210, 0.05),
    TileCost(64, 64, 4, 8, 0.150, 0.05),
    TileCost(128, 256, 8, 4, 0.681, 1.54, 2),
    TileCost(128, 192, 8, 4, 0.522, 1.32, 2),
)
#: Tiles of the transposed result.
HIGH = (
    TileCost(256, 128, 8, 4, 0.675, 1.20, 1, True),
    TileCost(240, 128, 8, 4, 0.637, 1.50, 1, True),
    TileCost(224, 128, 8, 4, 0.596, 1.27, 1, True),
    TileCost(208, 128, 8, 4, 0.561, 1.14, 1, True),
    TileCost(192, 128, 8, 4, 0.516, 1.03, 1, True),
    TileCost(176, 128, 8, 4, 0.481, 0.81, 1, True),
    TileCost(160, 128, 8, 4, 0.432, 1.04, 1, True),
    TileCost(144, 128, 8, 4, 0.385, 0.98, 1, True),
    TileCost(128, 256, 8, 4, 0.675, 1.40, 1, True),
    TileCost(112, 256, 8, 4, 0.604, 1.08, 1, True),
    TileCost(96, 256, 8, 4, 0.523, 1.09, 1, True),
    TileCost(80, 256, 8, 4, 0.459, 1.02, 1, True),
    TileCost(112, 128, 4, 3, 0.316, 0.35, 1, True),
    TileCost(96, 128, 4, 3, 0.289, 0.30, 1, True),
    TileCost(80, 128, 4, 4, 0.256, 0.30, 1, True),
    TileCost(48, 128, 4, 4, 0.200, 0.15, 1, True),
    TileCost(96, 64, 4, 4, 0.171, 0.20, 1, True),
)
#: Tiles of the kernel that splits the last wave along K.
LAST_WAVE = (TileCost(128, 256, 8, 4, 0.676, 1.40), TileCost(128, 192, 8, 4, 0.516, 1.25))
#: Tiles of the kernel that splits all tiles along K.
PARTS = (
    TileCost(128, 128, 4, 3, 0.326, 0.74),
    TileCost(64, 128, 4, 8, 0.146, 0.19),
    TileCost(64, 64, 4, 8, 0.015, 0.35),
)


class PlannedWork(NamedTuple):
    """A product on a device. `cache_lines`: those of 128 bytes per row of a tile of either operand. `aligned`: rows of the result are
    aligned. `along_k`: for either operand, whether neighbours along K are neighbours in memory."""

    m: int
    n: int
    k: int
    processors: int
    cache_lines: tuple[int, int]
    aligned: bool
    along_k: tuple[bool, bool]

    @property
    def steps(self) -> int:
        return math.ceil(self.k / INNER)

    def tiles(self, one: TileCost) -> int:
        return one.cluster * math.ceil(self.m / (one.cluster * one.m)) * math.ceil(self.n / one.n)

    def reading(self, side: int, extent: int, line: float) -> float:
        """The microseconds in which a multiprocessor reads `extent` rows of a (side 0) or columns of b."""
        return extent * (line if self.cache_lines[side] == 1 else LINE_READ * self.cache_lines[side])

    def crossing(self, one: TileCost) -> float:
        """The share of the tiles that begin inside of a line along a side that is not stored along K."""
        sides = zip((one.m, one.n), self.cache_lines, self.along_k, strict=True)
        return max(0 if along or lines > 1 else 1 - math.gcd(extent, INNER) / INNER for extent, lines, along in sides)

    def per_tile(self, one: TileCost, steps: int, running: int, line: float = ROW_READ, clock: float = 1) -> float:
        """The microseconds of a multiprocessor for a tile with this number of steps, while `running` tiles run on the device.

        `line`: to read a row that is a whole line. `clock`: the share of a step's time that a higher clock leaves.
        """
        busy = min(1, running / self.processors)
        apart, together = (READ_APART, READ_TOGETHER) if one.cluster > 1 else (1, 1)
        read = self.reading(0, one.m, line) * apart + self.reading(1, one.n, line) * together
        step = one.step * clock * (1 + CROSSING * self.crossing(one))
        return steps * max(step, read * (READ_ALONE + (1 - READ_ALONE) * busy)) + one.rest

    def storing(self, one: TileCost) -> float:
        """The microseconds that a tile takes longer because rows of the result are not aligned."""
        return 0 if self.aligned else UNALIGNED_STORE * one.m * one.n / 128**2

    def total(self, computing: float) -> float:
        """The microseconds of a launch that computes for so long and moves each matrix from or to DRAM once."""
        moved = MEGABYTE * 1e-6 * ITEM * (self.m * self.k + self.k * self.n + self.m * self.n)
        return (computing**OVERLAP + moved**OVERLAP) ** (1 / OVERLAP)


def _megabytes(one: TileCost, split: int, splits: int) -> float:
    """The parts of `split` tiles in fp32, and the result in fp16."""
    return 1e-6 * 4 * split * one.m * one.n * (splits + 0.5)


@functools.lru_cache(4096)
def plan(
    m: int,
    n: int,
    k: int,
    device: Device,
    rows: tuple[OperandRows, OperandRows],
    aligned: bool,
    along_k: tuple[bool, bool] = (True, False),
) -> Plan:
    """The fastest plan by the model; arguments as for `candidates`."""
    return min(candidates(m, n, k, device, rows, aligned, along_k))[1]


def candidates(
    m: int,
    n: int,
    k: int,
    device: Device,
    rows: tuple[OperandRows, OperandRows],
    aligned: bool,
    along_k: tuple[bool, bool] = (True, False),
) -> list[tuple[float, Plan]]:
    """All plans for (m, k) by (k, n), with their predicted times in microseconds.

    `rows` and `along_k`: see `MatmulProblem`; no rows may be POINTERS_ONLY. `aligned`: whether a descriptor describes the result.
    """
    found = []
    for copied in itertools.product((False, True), repeat=2):
        if any(one and row in NOT_COPIED for one, row in zip(copied, rows, strict=True)):
            continue
        a, b = (1 if one else row.cache_lines for one, row in zip(copied, rows, strict=True))
        if not (a and b):
            continue
        moved = 1e-6 * 2 * ITEM * (m * k * copied[0] + k * n * copied[1])
        copying = FIXED + (COPY + COPY_MEGABYTE * moved) * any(copied)
        work = PlannedWork(m, n, k, device.processors, (a, b), aligned, along_k)
        found += [(time + copying, Plan(_shape(one), copied, one.swapped)) for time, one in _whole(work)]
        for time, tile, last_wave in (*_last_wave(work), *_parts(work)):
            found.append((time + copying, Plan(tile, copied, last_wave=last_wave)))
    return found


def _shape(one: TileCost, splits: int = 1) -> TileShape:
    return TileShape(one.m, one.n, INNER, one.num_warps, one.num_stages, splits, one.cluster)


def _whole(work: PlannedWork) -> Iterator[tuple[float, TileCost]]:
    """Tiles that one program each computes."""
    for one in (*WHOLE, *(HIGH if work.aligned else ())):
        waves, left = divmod(work.tiles(one), work.processors)
        time = 0.0
        for count, running in ((waves, work.processors), (1, left)):
            if count and running:
                clock = 1 - IDLE * (1 - running / work.processors)
                clock *= ONE_WAVE if waves + (left > 0) == 1 else 1
                time += count * (work.per_tile(one, work.steps, running, clock=clock) + work.storing(one))
        yield work.total(time), one


def _last_wave(work: PlannedWork) -> Iterator[tuple[float, TileShape, bool]]:
    """Whole waves of tiles, and a last wave whose tiles are split along K."""
    for one in LAST_WAVE:
        together = work.processors // one.cluster
        waves, split = divmod(work.tiles(one) // one.cluster, together)
        if not split:
            continue
        before = waves * (work.per_tile(one, work.steps, work.processors) + work.storing(one))
        for splits in _splits(work, split, together):
            units = split * splits
            each = work.per_tile(one, math.ceil(work.steps / splits), work.processors if waves else one.cluster * units)
            time = work.total(before + math.ceil(units / together) * each)
            yield time + SUM + SUM_MEGABYTE * _megabytes(one, one.cluster * split, splits), _shape(one, splits), True


def _parts(work: PlannedWork) -> Iterator[tuple[float, TileShape, bool]]:
    """Small tiles that are all split along K, for results of few tiles."""
    for one in PARTS:
        tiles = work.tiles(one)
        if tiles > work.processors:
            continue
        for splits in _splits(work, tiles, work.processors):
            units = tiles * splits
            each = work.per_tile(one, math.ceil(work.steps / splits), units, LINE_READ)
            time = work.total(math.ceil(units / work.processors) * each)
            yield time + SUM_ALL + SUM_ALL_MEGABYTE * _megabytes(one, tiles, splits), _shape(one, splits), False


def _splits(work: PlannedWork, tiles: int, together: int) -> list[int]:
    """Numbers of splits along K whose parts fill half a wave, one or two waves of `together` programs."""
    full = together // tiles
    found = {full, full - 1, full // 2, 2 * together // tiles if full < 2 else 0}
    return sorted(s for s in found if 2 <= s <= MOST_SPLITS and work.k >= s * LEAST_SPLIT)
