"""Chooses how to tile a matrix product: the tile of a program, its warps and stages, and the number of splits along K.

The rule was fitted to measurements on an H200. A large tile needs the fewest bytes per product, and a small result needs small tiles so
that every multiprocessor has one. So the rule compares the candidates by the time of their waves of CTAs. The cost of a tile is its area
times K, plus a constant, divided by its share of the tensor-core rate. The constant stands for the parts of prologue and epilogue that
other tiles do not hide. The search (`blocknb.tune.products`, `blocknb bench gemm --search`) starts from the same candidates.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

from blocknb.kernels.strides import Device

LINE = 128  # bytes per row of an operand's tile: the widest swizzle of shared memory
MOVED = 512  # multiplications in the time in which a multiprocessor moves one element
MOVED_BYTE = 140  # the same for a byte that a copy reads or writes, on an H100
READ_LINE = 4096  # the same for a line of 128 bytes that TMA reads from the L2 cache, on an H100
POINTERS = 5  # how many times as long a product of many tiles takes if TMA cannot copy its operands
LAUNCH = 16384  # elements that a multiprocessor moves in the time of another launch
LEAST_SPLIT = 1024  # the fewest elements of K per split


class TileShape(NamedTuple):
    """The extents of a program's tile, its warps and stages, the number of splits along K, and the CTAs that share the second operand."""

    m: int
    n: int
    k: int
    num_warps: int
    num_stages: int | None
    splits: int = 1
    cluster: int = 1

    @property
    def options(self) -> dict[str, int]:
        """The launch options; the compiler chooses the number of stages if none is given."""
        named = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        named |= {"num_ctas": self.cluster} if self.cluster > 1 else {}
        return {name: value for name, value in named.items() if value is not None}


class TileCandidate(NamedTuple):
    """A tile of the result, its warps and stages, its share of the tensor-core rate, and its overhead in elements of K.

    The overhead is small for tiles that share a multiprocessor, since they hide each other's prologues and epilogues.
    """

    m: int
    n: int
    num_warps: int
    num_stages: int
    share: float
    overhead: int


#: Candidates from Hopper (wgmma) on, and older ones, whose accumulators leave registers for the operands of mma.sync.
HOPPER = (
    TileCandidate(128, 256, 8, 4, 1.00, 100),
    TileCandidate(128, 128, 4, 3, 0.965, 20),
    TileCandidate(64, 128, 4, 8, 0.70, 0),
    TileCandidate(64, 64, 4, 8, 0.60, 0),
    TileCandidate(64, 32, 4, 8, 0.35, 0),
)
#: For results of up to 64 rows, whose time is that of reading the second operand once; K is twice as deep.
FEW_ROWS = TileCandidate(64, 64, 4, 5, 0.60, 0)
SWAPPED_ROWS = 32  # results with at most this number of rows are computed transposed
AMPERE = (
    TileCandidate(128, 128, 4, 4, 1.00, 50),
    TileCandidate(64, 128, 4, 4, 0.75, 50),
    TileCandidate(64, 64, 4, 4, 0.55, 50),
    TileCandidate(32, 32, 2, 4, 0.25, 50),
)
#: Tiles on a CPU, whose sums stay in the L2 cache. Copying an operand to scratch memory costs a share of the time that falls with the
#: tile's other side. More than 128 steps of K of a panel of B do not stay in the L1 cache: 256 steps took up to 4 % longer.
ON_HOST = tuple(
    tile for tile in itertools.product((64, 128, 256, 512), (128, 256, 512), (64, 128)) if tile[0] * tile[1] <= 1 << 17
)
#: What copying an element of A and one of B takes, and the start of a step of K, in multiply-adds; measured at 1000 cubed in fp32.
COPY_A, COPY_B, STEP = 10.0, 13.3, 5.9
HOST_ROWS, HOST_COLUMNS = 8, 32  # of a register tile; the product ends after the last one that it needs


def _on_host(m: int, n: int, k: int, batch: int) -> tuple[int, int, int]:
    """The CPU's tile whose product takes the least time, if each thread computes whole tiles."""
    from blocknb.runtime.host import thread_count  # loads the launcher of a CPU

    threads = thread_count()
    area = -(-m // HOST_ROWS) * HOST_ROWS * -(-n // HOST_COLUMNS) * HOST_COLUMNS * batch

    def time(tile: tuple[int, int, int]) -> float:
        tiles = -(-m // tile[0]) * -(-n // tile[1]) * batch
        turns = -(-tiles // threads)
        products = max(turns * area / tiles, min(area, tile[0] * tile[1]))
        return (products + turns * (COPY_A * tile[0] + COPY_B * tile[1])) * (1 + STEP / min(tile[2], max(k, 1)))

    return min(ON_HOST, key=time)


@functools.lru_cache(4096)
def choose(
    m: int, n: int, k: int, itemsize: int, device: Device, batch: int = 1, splittable: bool = False
) -> TileShape:
    """The tile for a product of an (m, k) by a (k, n) matrix of elements of `itemsize` bytes, `batch` times."""
    if device.capability == 0:
        return TileShape(*_on_host(m, n, k, batch), 4, 1)
    inner = max(16, (LINE if device.capability >= 90 else LINE // 2) // itemsize)
    found = [_timed(one, m, n, k, inner, itemsize, device, batch, splittable) for one in candidates(device)]
    return min(found)[1]


class Plan(NamedTuple):
    """How to compute a product: its tile, and which operands are copied first to rows that begin at whole lines. `swapped`: the kernel
    computes the transposed result. `last_wave`: only the last wave of tiles is split along K."""

    tile: TileShape
    copied: tuple[bool, bool]
    swapped: bool = False
    last_wave: bool = False


@functools.lru_cache(4096)
def plan(
    m: int, n: int, k: int, itemsize: int, device: Device, lines: tuple[int | None, int | None], splittable: bool
) -> Plan:
    """The fastest plan by the model, for a device with TMA. `lines`: see `MatmulProblem.lines_per_tile_row`.

    A tile takes the time of its multiplications or that of its lines from the L2 cache, whichever is longer. A row that begins inside of
    a line touches two of them.
    """
    few = m <= FEW_ROWS.m
    inner = max(16, LINE // itemsize) * (1 + few)
    found = []
    for copied in itertools.product((False, True), repeat=2):
        if any(one and count in (0, 1) for one, count in zip(copied, lines, strict=True)):
            continue
        left = [1 if one else count for one, count in zip(copied, lines, strict=True)]
        moved = 2 * itemsize * (m * k * copied[0] + k * n * copied[1])
        copies = (moved / device.processors * MOVED_BYTE + LAUNCH * MOVED) if moved else 0
        for one, split in itertools.product(
            (FEW_ROWS,) if few else candidates(device), (False, splittable and all(left))
        ):
            if few and 3 * math.ceil(n / one.n) > device.processors:
                split = False  # a third of the multiprocessors reads as fast as all of them
            time, tile = _timed(one, m, n, k, inner, itemsize, device, 1, split)
            time = max(time, _reading(one, tile, m, n, k, itemsize, device, left)) if all(left) else time * POINTERS
            swapped = m <= SWAPPED_ROWS and itemsize == 2 and all(left) and tile.splits == 1
            if swapped:  # TMA reads tiles slowly that are mostly outside of the array, and wgmma takes 16 columns, but not 16 rows
                tile = tile._replace(m=16 if m <= 16 else SWAPPED_ROWS)
            found.append((time + copies, Plan(tile, copied, swapped)))
    return min(found)[1]


def _reading(
    one: TileCandidate, t: TileShape, m: int, n: int, k: int, itemsize: int, device: Device, lines: list[int | None]
) -> float:
    """The time to read lines from the L2 cache, in multiplications; 0 if all rows begin at lines, as the candidates' rates assume."""
    a, b = (count or 0 for count in lines)
    if a < 2 and b < 2:
        return 0
    waves = math.ceil(math.ceil(m / one.m) * math.ceil(n / one.n) * t.splits / device.processors)
    return waves * (one.m * a + one.n * b) * k / t.splits * itemsize / LINE * READ_LINE


def without_ping_pong(found: TileShape, itemsize: int, device: Device, most: int = 4) -> TileShape:
    """Replaces a tile whose speed needs two consumer warpgroups that take turns (ping-pong).

    Kernels that find their work at run time, or that read an operand from registers, cannot take turns. At most `most` stages.
    """
    small, large = (next(one for one in HOPPER if (one.m, one.n) == size) for size in ((128, 128), (128, 256)))
    if device.capability < 90 or (found.m, found.n, found.num_warps) != (small.m, small.n, small.num_warps):
        return found
    stages = max(2, min(most, device.shared // ((large.m + large.n) * found.k * itemsize)))
    return found._replace(m=large.m, n=large.n, num_warps=large.num_warps, num_stages=stages)


def candidates(device: Device) -> tuple[TileCandidate, ...]:
    """The candidate tiles for a device."""
    return HOPPER if device.capability >= 90 else AMPERE


def _timed(
    one: TileCandidate, m: int, n: int, k: int, inner: int, itemsize: int, device: Device, batch: int, splittable: bool
) -> tuple[float, TileShape]:
    """A candidate's time in multiplications, and the tile."""
    tiles = math.ceil(m / one.m) * math.ceil(n / one.n) * batch
    splits = 1
    if splittable and 2 * tiles <= device.processors:
        splits = max(1, min(device.processors // tiles, k // LEAST_SPLIT, 8))
    waves = math.ceil(tiles * splits / device.processors)
    time = waves * one.m * one.n * (k / splits + one.overhead) / one.share
    if splits > 1:  # a second launch reads the partial results
        time += (2 * m * n * (splits + 1) / device.processors + LAUNCH) * MOVED
    stages = max(2, min(one.num_stages, device.shared // ((one.m + one.n) * inner * itemsize)))
    return time, TileShape(one.m, one.n, inner, one.num_warps, stages, splits)
