"""Hopper's matrix instruction, wgmma, as data: four warps multiply, and one operand or both come from shared memory.

An instruction multiplies 64 rows of A by up to 256 columns of B, 32 bytes along K. A *matrix descriptor* names B, and A where it is not
in registers. It holds the start of the part, the distance between groups of eight rows, and the swizzle (PTX ISA, "Asynchronous warpgroup
level matrix"). The swizzles are those of `shared.swizzled`, which makes the buffers. `describe` derives the descriptor from a buffer's
layout; the instruction cannot read a buffer that `describe` does not know.

An operand is K-major when neighbours along K are neighbours in memory; 16-bit elements may also be MN-major.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import SharedLayout, swizzled
from blocknb.layouts.tables import MMA_TABLE, MmaInstruction, Step, accumulator, log2, operand_a

GROUP = 4  # warps that issue an instruction together (a warpgroup)
ROWS = 64  # of A, per instruction
LEAST_COLUMNS, MOST_COLUMNS = 8, 256
STEP_BYTES = 32  # along K, per instruction
ALIGNMENT = 1024  # bytes: the period of the widest swizzle, whose pattern depends on the address
MOST_ACCUMULATORS = 128  # registers per thread: more leave no room for other values
FILE = 65536  # registers per multiprocessor, of which accumulators take at most half
SWIZZLE = {128: 1, 64: 2, 32: 3, 16: 0}  # bytes of a swizzled row -> its number in a descriptor

_FRAGMENTS = {row.k: row for row in MMA_TABLE if row.arch == 80}
_ROWS: tuple[Step, ...] = (("warp", 0, 2),)  # the four warps have 16 rows each


def _row(operands: tuple[str, ...], accumulators: tuple[str, ...], k: int) -> MmaInstruction:
    like = _FRAGMENTS[k]
    return MmaInstruction(
        f"wgmma.m{ROWS}n{LEAST_COLUMNS}k{k}", ROWS, LEAST_COLUMNS, k, operands, accumulators, 90,
        like.a + _ROWS, (), like.c + _ROWS, GROUP,
    )  # fmt: skip


#: Each row has the fewest columns; `columns` makes the instruction for more.
WGMMA_TABLE = (
    _row(("fp16",), ("fp32",), 16),
    _row(("bf16",), ("fp32",), 16),
    _row(("tf32",), ("fp32",), 8),
    _row(("int8",), ("int32",), 32),
    _row(("fp8e4nv", "fp8e5"), ("fp32",), 32),
)


def find(a: str, b: str, accumulator: str) -> MmaInstruction | None:
    """The row for operands of these types ("tf32": fp32, rounded); None if there is none."""
    found = (row for row in WGMMA_TABLE if {a, b} <= set(row.operands) and accumulator in row.accumulators)
    return next(found, None)


def least_columns(row: MmaInstruction, used: int) -> int:
    """The columns of a row's narrowest instruction that computes the first `used` ones.

    They are a multiple of 8. Above 24, instructions for integers have multiples of 16 (PTX ISA, "wgmma.mma_async", shapes)."""
    unit = 2 * LEAST_COLUMNS if "int32" in row.accumulators and used > 3 * LEAST_COLUMNS else LEAST_COLUMNS
    return max(LEAST_COLUMNS, -(-used // unit) * unit)


def columns(row: MmaInstruction, n: int) -> MmaInstruction:
    """The instruction of a row for n columns of B."""
    return replace(row, n=n, name=f"wgmma.m{ROWS}n{n}k{row.k}")


def named(name: str, a: str, b: str, accumulator: str) -> MmaInstruction:
    """The instruction with that name for a dot of these types. Raises KeyError."""
    row, match = find(a, b, accumulator), re.fullmatch(r"wgmma\.m64n(\d+)k(\d+)", name)
    if row is None or match is None or int(match[2]) != row.k:
        raise KeyError(name)
    return columns(row, int(match[1]))


def is_name(name: str) -> bool:
    """Whether a name is that of a wgmma instruction."""
    return name.startswith("wgmma.")


def part(extent: int, side: int, warps: tuple[int, int]) -> int:
    """The number of rows of A (side 0) or columns of B (side 1), of `extent`, that one warpgroup reads; `warps` split the result."""
    return extent // (warps[0] // GROUP, warps[1])[side]


def storage_side(side: int, transposed: Sequence[int]) -> int:
    """The side whose storage order an operand's buffer has. A transposed operand is stored like one of the other side."""
    return 1 - side if side in transposed else side


def split(shape: Sequence[int], num_warps: int) -> tuple[int, int]:
    """The number of warpgroups along M and along N. Rows come first, because every group reads all of its columns of B."""
    groups = max(1, num_warps // GROUP)
    along_m = max(1, min(groups, shape[0] // ROWS))
    return along_m, groups // along_m


def refusal(row: MmaInstruction, m: int, n: int, k: int, num_warps: int) -> str:
    """Why a product of these extents cannot use the instruction, as a phrase for a note; "" when it can."""
    if num_warps % GROUP:
        return f"it takes {GROUP} warps together, and the program has {num_warps}"
    if m < ROWS:
        return f"M = {m} is smaller than {ROWS}"
    _, along_n = split((m, n), num_warps)
    if n // along_n < LEAST_COLUMNS:
        return f"N = {n} gives {along_n} groups of {GROUP} warps fewer than {LEAST_COLUMNS} columns each"
    if k < row.k:
        return f"K = {k} is smaller than {row.k}"
    registers, most = m * n // (num_warps * 32), min(MOST_ACCUMULATORS, FILE // 2 // (num_warps * 32))
    if registers > most:
        return f"the accumulator takes {registers} registers of a thread, and {most} are the most"
    return ""


def result_layout(shape: Sequence[int], instruction: MmaInstruction, groups: tuple[int, int]) -> Layout:
    """The layout of the accumulator: for each 64 rows, registers are in the order of the instruction."""
    found = accumulator(shape, instruction, groups)
    assert found is not None, "the tile is smaller than the instruction"
    return found


def register_layout(shape: Sequence[int], instruction: MmaInstruction, groups: tuple[int, int]) -> Layout:
    """The layout of an A in registers."""
    found = operand_a(shape, instruction, groups)
    assert found is not None, "the tile is smaller than the instruction"
    return found


def permuted_rows(layout: Layout) -> Layout:
    """A layout of the result, or of A in registers, with another order of rows: bits 2 and 4 of their numbers change places.

    Rows are independent of each other, so any order is correct. With this one a warp reads an MN-major A of 32-bit elements under the
    widest swizzle without bank conflicts. Its lanes have 4 neighbouring rows, those 16 further, and 4 positions along K, which the swizzle
    turns into other rows.
    """
    low = layout.dim_bits(0).start

    def swapped(basis: int) -> int:
        two, four = basis >> low + 2 & 1, basis >> low + 4 & 1
        return basis ^ ((two ^ four) * (1 << low + 2 | 1 << low + 4))

    return replace(layout, **{kind: tuple(map(swapped, getattr(layout, kind))) for kind in ("reg", "lane", "warp")})


# -- operands in shared memory


@dataclass(frozen=True)
class Operand:
    """The storage of an operand in its buffer: whether neighbours along K are contiguous, and the bytes of a row under the swizzle."""

    mn_major: bool
    width: int
    k: int  # the tile's extent along K
    element_bytes: int

    @property
    def fields(self) -> int:
        """The descriptor without its address: the offsets in 16-byte units, and the swizzle.

        K-major: from eight rows to the next. MN-major: rows are of K, and panels of `width` bytes stand one after another; without a
        swizzle the two offsets change places.
        """
        eight = 8 * self.width  # bytes from eight rows to the next eight
        leading, stride = STEP_BYTES // 2, eight
        if self.mn_major:
            panel = self.k * self.width
            leading, stride = (panel, eight) if self.width > 16 else (eight, panel)
        return (leading >> 4 & 0x3FFF) << 16 | (stride >> 4 & 0x3FFF) << 32 | SWIZZLE[self.width] << 62


def buffer(shape: Sequence[int], element_bits: int, side: int, mn_major: bool, part: int) -> SharedLayout:
    """The layout of a buffer for operand A (side 0) or B (side 1). A warpgroup reads `part` rows of A or columns of B."""
    axis = side if mn_major else 1 - side
    limit = min(128, part * element_bits // 8) if mn_major else 128
    return swizzled(shape, element_bits, (axis, 1 - axis), limit)


def buffers(shape: Sequence[int], element_bits: int, side: int, part: int) -> list[SharedLayout]:
    """The layouts that a buffer may have, K-major first."""
    return [buffer(shape, element_bits, side, major, part) for major in (False, True)[: 2 if element_bits == 16 else 1]]


@cache
def describe(layout: SharedLayout, element_bits: int, side: int, part: int) -> Operand | None:
    """The descriptor of a buffer with this layout; None if no instruction can read it."""
    size = element_bits // 8
    for mn_major, found in enumerate(buffers(layout.shape, element_bits, side, part)):
        if found == layout:
            k = layout.shape[1 - side]
            row = part if mn_major else k
            return Operand(bool(mn_major), min(128, row * size), k, size)
    return None


def place(layout: SharedLayout, side: int, mn: int, k: int) -> int:
    """The offset, in elements, of the part of an operand that starts at row (of A) or column (of B) `mn` and at `k`."""
    row, column = (mn, k) if side == 0 else (k, mn)
    return layout.offset(row << log2(layout.shape[1]) | column)
