"""Layouts of shared memory: the offset of each element in a buffer, and the bank conflicts of accesses.

Shared memory has 32 banks of 4 bytes. The hardware serves an instruction in wavefronts of up to 128 bytes, and a wavefront reads one word
per bank. Lanes that read different words of a bank take several wavefronts (a bank conflict); lanes that read the same word share it. A
tile stored row after row has its columns in few banks. A *swizzle* XORs the position of each row's 16-byte chunks with the row number, so
that columns, too, spread over all banks. Layouts are linear over XOR, so a swizzled buffer is again a list of ints: the offset that each
bit of the element's index contributes.

The trick is that conflicts need no simulation. Lanes reach words by a linear map, and words reach banks by a linear map. So every bank that
is hit is hit by equally many words: `2 ** (rank of the words - rank of the banks)`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod

import numpy as np

from blocknb.layouts import gf2
from blocknb.layouts.linear import Layout, format_shape, parse_shape

WAVEFRONT_BYTES = 128
BANKS = 32
WORD_BYTES = 4
VECTOR_BYTES = 16  # of the asynchronous copies that bypass the L1 cache


@dataclass(frozen=True)
class SharedLayout:
    """A map from the flat index of an element to its offset in a buffer, both in elements; linear over XOR, invertible.

    `basis[i]` is the offset that bit i of the index contributes. Raises ValueError when two elements share an offset.
    """

    shape: tuple[int, ...]
    basis: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "basis", tuple(self.basis))
        bits = len(self.basis)
        if 1 << bits != self.size or gf2.rank(self.basis) != bits or any(offset >> bits for offset in self.basis):
            raise ValueError(f"not an invertible map of the tile: {self}")

    @property
    def size(self) -> int:
        """Elements in the buffer."""
        return prod(self.shape)

    def offset(self, index: int) -> int:
        """The offset of the element with this flat index."""
        return gf2.apply(self.basis, index)

    def offsets(self) -> np.ndarray:
        """The offset of every element, int64, in the tile's shape. Callers must not modify the array: it is cached."""
        return _offsets(self)

    def __str__(self) -> str:
        return f"<{format_shape(self.shape)}: shared {','.join(map(str, self.basis)) or '-'}>"

    @staticmethod
    def parse(text: str) -> SharedLayout:
        """The inverse of `str`. Raises ValueError on other text."""
        match = re.fullmatch(r"<(\S+): shared (\S+)>", text.strip())
        if match is None:
            raise ValueError(f"not a layout of shared memory: {text!r}")
        shape, basis = match.groups()
        return SharedLayout(parse_shape(shape), () if basis == "-" else tuple(map(int, basis.split(","))))


@lru_cache(maxsize=256)
def _offsets(layout: SharedLayout) -> np.ndarray:
    """`SharedLayout.offsets`, computed once: the interpreter asks for it at each access."""
    values = np.zeros(1, dtype=np.int64)
    for basis in layout.basis:
        values = np.concatenate([values, values ^ basis])
    values.setflags(write=False)
    return values.reshape(layout.shape)


def row_major(shape: Sequence[int], order: Sequence[int] | None = None) -> SharedLayout:
    """Elements one after another, the axes in `order`, fastest first (by default the last axis first)."""
    return _place(shape, _axis_bits(shape, order or range(len(shape))[::-1]))


def swizzled(
    shape: Sequence[int], element_bits: int, order: Sequence[int] | None = None, row_bytes_limit: int = 128
) -> SharedLayout:
    """The 128-, 64- or 32-byte swizzle that TMA and wgmma know, too.

    Rows along `order[0]` are cut into panels of at most `row_bytes_limit` bytes, panel after panel. In each panel, address bits 4-6 are
    XORed with bits 7-9 (128), 4-5 with 7-8 (64) or 4 with 7 (32). Rows under 32 bytes stay.
    """
    inner, *outer = order or range(len(shape))[::-1]
    log_bytes = (element_bits // 8).bit_length() - 1
    row = _axis_bits(shape, [inner])
    width = min(len(row), row_bytes_limit.bit_length() - 1 - log_bytes)  # index bits within a row of a panel
    chunk_bits = max(0, min(3, width + log_bytes - 4))
    plain = _place(shape, row[:width] + _axis_bits(shape, outer) + row[width:])

    def swizzle(offset: int) -> int:
        address = offset << log_bytes
        chunk = address >> 7 & (1 << chunk_bits) - 1
        return (address ^ chunk << 4) >> log_bytes

    return SharedLayout(plain.shape, tuple(map(swizzle, plain.basis)))


def swizzled_rows(shape: Sequence[int], element_bits: int) -> SharedLayout:
    """Rows one after another, of any length; the number of a row is XORed into the position of its 16-byte chunks, modulo eight chunks.

    An index along the row contributes itself, so code can XOR it into an address whose row is a multiple of the row's bytes.
    """
    plain = row_major(shape)
    row = shape[-1].bit_length() - 1
    chunk = max(0, (128 // element_bits).bit_length() - 1)  # index bits within a chunk
    first = max(0, 10 - (element_bits.bit_length() - 1) - row)  # rows that fill 128 bytes together need no swizzle
    basis = list(plain.basis)
    for bit in range(min(3 - first, row - chunk, len(basis) - row - first)):
        basis[row + first + bit] ^= 1 << chunk + bit
    return SharedLayout(plain.shape, tuple(basis))


def boxed(shape: Sequence[int], element_bits: int, inner: int, extent: int, swizzle: int) -> SharedLayout:
    """The layout of a buffer that TMA fills or reads, in boxes of `extent` elements along its inner axis. Rows along that axis are cut
    into panels of `extent` elements, panel after panel. A row of `swizzle` bytes (0: any) has that swizzle."""
    outer = [axis for axis in range(len(shape)) if axis != inner]
    if swizzle:
        return swizzled(shape, element_bits, (inner, *outer), swizzle)
    row = _axis_bits(shape, [inner])
    width = extent.bit_length() - 1
    return _place(shape, row[:width] + _axis_bits(shape, outer) + row[width:])


def _axis_bits(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The index bits of these axes, low bits first, one axis after another."""
    result: list[int] = []
    for axis in axes:
        low = prod(shape[range(len(shape))[axis] + 1 :]).bit_length() - 1
        result += range(low, low + shape[axis].bit_length() - 1)
    return result


def _place(shape: Sequence[int], order: Sequence[int]) -> SharedLayout:
    """The buffer in which index bit `order[i]` contributes offset bit i."""
    basis = [0] * len(order)
    for position, bit in enumerate(order):
        basis[bit] = 1 << position
    return SharedLayout(tuple(shape), tuple(basis))


# -- ordinary loads and stores


@dataclass(frozen=True)
class VectorAccess:
    """Plain loads or stores between a thread's registers and a buffer, one vector per instruction.

    `groups`: for each instruction its registers, by rising address (so `groups[0]` has the vector width); the address is that of
    `groups[i][0]`. `wavefronts`: the wavefronts of all instructions in one warp; `ideal`: the same without conflicts.
    """

    groups: tuple[tuple[int, ...], ...]
    wavefronts: int
    ideal: int

    @property
    def vector(self) -> int:
        """Elements an instruction moves for each lane."""
        return len(self.groups[0])


def _vector_bits(layout: Layout, shared: SharedLayout, element_bits: int) -> int:
    """log2 of the widest aligned vector, up to 16 bytes, of registers that are contiguous in the buffer."""
    registers = gf2.Span(shared.offset(basis) for basis in layout.reg)
    threads = 0
    for basis in (*layout.lane, *layout.warp):
        threads |= shared.offset(basis)
    bits = 0
    while 2 * element_bits << bits <= 128 and not threads >> bits & 1 and 1 << bits in registers:
        bits += 1
    return bits


def vector_cost(layout: Layout, shared: SharedLayout, element_bits: int) -> tuple[int, int]:
    """Wavefronts and instructions of a warp that moves all its registers by plain loads or stores."""
    bits = _vector_bits(layout, shared, element_bits)
    instructions = layout.num_registers >> bits
    return conflicts(layout, shared, element_bits, 1 << bits)[0] * instructions, instructions


@cache
def vector_access(layout: Layout, shared: SharedLayout, element_bits: int) -> VectorAccess:
    """The loads or stores of a thread, in the widest vectors that the two layouts allow."""
    bits = _vector_bits(layout, shared, element_bits)
    offsets = gf2.combinations(map(shared.offset, layout.reg))
    vectors: dict[int, list[int]] = {}
    for register, offset in enumerate(offsets):
        vectors.setdefault(offset >> bits, []).append(register)
    groups = tuple(tuple(sorted(group, key=offsets.__getitem__)) for group in vectors.values())
    wavefronts, ideal = conflicts(layout, shared, element_bits, 1 << bits)
    return VectorAccess(groups, wavefronts * len(groups), ideal * len(groups))


def conflicts(layout: Layout, shared: SharedLayout, element_bits: int, vec: int = 1) -> tuple[int, int]:
    """Wavefronts of one instruction of a warp that moves `vec` elements a lane, and how many without conflicts.

    Up to 4 bytes a lane the warp goes as one, with 8 in halves and with 16 in quarters. Equal words are broadcast. The
    vector is taken to be aligned (`VectorAccess.vector`).
    """
    lane_bytes = max(1, vec * element_bits // 8)
    parts = max(1, (lane_bytes << len(layout.lane)) // max(WAVEFRONT_BYTES, WORD_BYTES << len(layout.lane)))
    together = len(layout.lane) - (parts.bit_length() - 1)
    starts = [shared.offset(basis) * element_bits // 8 for basis in layout.lane[:together]]
    return _wavefronts(starts, lane_bytes) * parts, parts


def _wavefronts(starts: Sequence[int], span_bytes: int) -> int:
    """Wavefronts of accesses that start at the XOR combinations of byte addresses and are `span_bytes` long each."""
    words = [start // WORD_BYTES for start in starts]
    words += [1 << bit for bit in range((span_bytes // WORD_BYTES).bit_length() - 1)]
    return 1 << gf2.rank(words) - gf2.rank(word % BANKS for word in words)


# -- ldmatrix and stmatrix


@dataclass(frozen=True)
class MatrixAccess:
    """A layout's way through ldmatrix (or, backwards and from sm_90 on, stmatrix).

    An instruction moves `count` matrices of eight 16-byte rows. Lane 8 i + r gives the address of row r of matrix i (lanes past 8 `count`
    are ignored; their addresses here repeat valid ones). Matrix i fills the 32-bit register i of every lane. Lane l gets bytes 4 (l % 4) to
    4 (l % 4) + 3 of row l / 4. With `trans` it gets the 16-bit elements of rows 2 (l % 4) and 2 (l % 4) + 1 in column l / 4 (PTX ISA,
    ldmatrix).

    The row that a lane addresses starts at an element whose flat index is an XOR of three parts. They are `lane` over the set bits of its
    lane, `warp` over the set bits of its warp, and `steps[j].base`. `steps[j].registers[i]` are the layout's registers in the 32-bit
    register i, low bits first. `wavefronts` counts all instructions of one warp.
    """

    count: int
    trans: bool
    lane: tuple[int, ...]
    warp: tuple[int, ...]
    steps: tuple[MatrixStep, ...]
    wavefronts: int


@dataclass(frozen=True)
class MatrixStep:
    """One instruction of a `MatrixAccess`: the constant part of its index, and where its results go."""

    base: int
    registers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _MatrixBits:
    """The roles of a layout's bits in an instruction. `packed` register bits lie within a 32-bit register, and `free` register bits go from
    matrix to matrix. `rows` are the indices between the rows of a matrix."""

    trans: bool
    packed: tuple[int, ...]
    rows: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def count(self) -> int:
        return 1 << len(self.free[:2])

    def cost(self, shared: SharedLayout, element_bits: int) -> tuple[int, int]:
        """Wavefronts and instructions of a warp."""
        matrix = _wavefronts([shared.offset(basis) * element_bits // 8 for basis in self.rows], 16)
        return matrix << len(self.free), 1 << len(self.free[2:])


def _matrix_bits(layout: Layout, shared: SharedLayout, element_bits: int, trans: bool) -> _MatrixBits | None:
    offsets = [shared.offset(basis) for basis in layout.reg]
    if trans:
        if element_bits != 16 or not layout.reg:
            return None
        packed = [0]
        along, rows = layout.lane[2:], (layout.reg[0], *layout.lane[:2])
        along_offsets: tuple[int, ...] = (1, 2, 4)
    else:
        parts = 32 // element_bits
        packed = [offsets.index(1 << bit) for bit in range(parts.bit_length() - 1) if 1 << bit in offsets]
        if 1 << len(packed) < parts:
            return None
        along, rows = layout.lane[:2], layout.lane[2:]
        along_offsets = (parts, 2 * parts)
    if tuple(map(shared.offset, along)) != along_offsets:
        return None
    free = tuple(position for position in range(len(layout.reg)) if position not in packed)
    starts = (*rows, *(layout.reg[position] for position in free), *layout.warp)
    if any(shared.offset(basis) % (128 // element_bits) for basis in starts):
        return None
    return _MatrixBits(trans, tuple(packed), rows, free)


def _find_matrix_bits(layout: Layout, shared: SharedLayout, element_bits: int) -> _MatrixBits | None:
    if len(layout.lane) != 5 or element_bits not in (8, 16, 32):
        return None
    straight = _matrix_bits(layout, shared, element_bits, trans=False)
    return straight or _matrix_bits(layout, shared, element_bits, trans=True)


def matrix_cost(layout: Layout, shared: SharedLayout, element_bits: int) -> tuple[int, int] | None:
    """Wavefronts and instructions of a warp that moves all its registers by ldmatrix, None when it cannot."""
    bits = _find_matrix_bits(layout, shared, element_bits)
    return None if bits is None else bits.cost(shared, element_bits)


@cache
def ldmatrix_plan(layout: Layout, shared: SharedLayout, element_bits: int) -> MatrixAccess | None:
    """How ldmatrix reads this layout from the buffer, or None when it cannot.

    The four lanes of a row must be neighbours along it, and everything else must start whole 16-byte rows; transposed,
    which is for 16-bit elements, the eight lanes of a column must be neighbours.
    """
    bits = _find_matrix_bits(layout, shared, element_bits)
    if bits is None:
        return None
    matrices, repeats = bits.free[:2], bits.free[2:]
    steps = []
    for step in _combinations(repeats):
        registers = tuple(
            tuple(step | matrix | element for element in _combinations(bits.packed))
            for matrix in _combinations(matrices)
        )
        steps.append(MatrixStep(layout.register_indices[step], registers))
    lane = [*bits.rows, *(layout.reg[position] for position in matrices)]
    lane += [0] * (5 - len(lane))
    wavefronts, _ = bits.cost(shared, element_bits)
    return MatrixAccess(bits.count, bits.trans, tuple(lane), layout.warp, tuple(steps), wavefronts)


@cache
def stmatrix_plan(layout: Layout, shared: SharedLayout, element_bits: int) -> MatrixAccess | None:
    """How stmatrix writes this layout to the buffer; None when it cannot, or when plain stores are no longer."""
    plan = ldmatrix_plan(layout, shared, element_bits)
    if plan is None or element_bits * len(plan.steps[0].registers[0]) != 32:
        return None
    wavefronts, instructions = vector_cost(layout, shared, element_bits)
    return plan if plan.wavefronts + len(plan.steps) < wavefronts + instructions else None


def _combinations(positions: Sequence[int]) -> list[int]:
    """All masks over these bit positions, the first position counting fastest."""
    return gf2.combinations(1 << position for position in positions)


def keeps_sectors(source: Layout, shared: SharedLayout, element_bits: int) -> bool:
    """Whether a buffer has the two vectors of 16 bytes of each sector of the L2 cache in one aligned run of 32 bytes.

    An asynchronous copy fetches a sector twice if its halves go to places apart. On an H200, a product with blocks of 32 then fetched 67.6
    million sectors instead of 50.7 million. It took 0.30 ms instead of 0.19 ms.

    `source` is the layout of a load. A load without such vectors counts as one that keeps its sectors.
    """
    chunk = (8 * VECTOR_BYTES // element_bits).bit_length() - 1
    for bits in map(source.dim_bits, range(len(source.shape))):
        if len(bits) > chunk and source.reg[:chunk] == tuple(1 << bit for bit in bits[:chunk]):
            places = [shared.offset(1 << bit) for bit in bits[: chunk + 1]]
            return places[:chunk] == [1 << i for i in range(chunk)] and places[chunk] < 2 << chunk
    return True
