"""Layouts: which thread holds which element of a tile, and in which of its registers.

A tile has a power-of-two shape, so an element of it *is* a handful of bits: its row-major flat index. In a 4 x 8 tile the element (row 2,
column 5) is index 21 = 0b10101. The low three bits are the column, the high two the row. The place where it lives is bits as well: a
register number, a lane number (0..31) and a warp number.

A layout says which element a place holds, by one rule: **every bit of the place contributes a fixed index, and contributions are XORed
together.** So a layout is a list of ints, one per hardware bit. Take

    <4x8: reg 1 lane 2,4,8,16 warp ->

Register bit 0 contributes 1, lane bits 0 to 3 contribute 2, 4, 8 and 16. Lane 6 = 0b0110 in register 1 holds 4 ^ 8 ^ 1 = 13, which is row
1, column 5. Each thread holds two neighbouring columns, four threads make a row. With `reg 8`, each thread would hold two rows of one
column. The fragments of tensor cores, transposes and the swizzles of shared memory are other choices of the same few numbers. So one class
describes all layouts (Zhou et al., "Linear Layouts", arXiv 2505.23819).

What follows from the rule:

* A bit that contributes 0 changes nothing: places that differ in it hold the same element. That is *replication*. In
  `<4: reg - lane 1,2,0,0,0 warp ->` eight lanes hold each element. A register that repeats another one of its own
  thread would only be a waste, so register bits are independent of each other here, always.
* Reshaping a tile leaves flat indices alone, so it leaves the layout alone. Transposing permutes index bits. Removing
  an axis (a reduction) clears and closes up the bits of that axis; a broadcast, read backwards, does the same.
* "Where is element x?" is a linear system over GF(2). Moving data from one layout to another is the product of one layout with the inverse
  of the other (see `convert`).
* Addresses split: index(warp, lane, register) = f(warp, lane) XOR g(register), and g is known when compiling. One
  address computation per thread serves all its registers.

Sizes, counts and indices are in elements throughout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from blocknb.layouts import gf2


@lru_cache(4096)  # the passes make the same few hundred layouts again and again
def _problem(shape: tuple[int, ...], reg: tuple[int, ...], lane: tuple[int, ...], warp: tuple[int, ...]) -> str:
    """Why these are no layout; "" if they are one."""
    if any(extent < 1 or extent & (extent - 1) for extent in shape):
        return "a tile's extents are powers of two"
    span, size = gf2.Span(reg), prod(shape)
    if span.kernel:
        return "a thread would hold an element twice"
    for basis in (*lane, *warp):
        span.add(basis)
    if not all(0 <= basis < size for basis in (*reg, *lane, *warp)):
        return f"a bit contributes an index outside the tile of {size} elements"
    return "" if span.rank == size.bit_length() - 1 else "some elements have no place"


@dataclass(frozen=True)
class Layout:
    """A map (warp, lane, register) -> element of a tile, linear over XOR.

    `shape`: powers of two. `reg`, `lane`, `warp`: the flat index that each hardware bit contributes, low bit first.
    Register bits of 0 are dropped. Raises ValueError when an element has no place or a thread holds one twice.
    """

    shape: tuple[int, ...]
    reg: tuple[int, ...]
    lane: tuple[int, ...]
    warp: tuple[int, ...]

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "shape", tuple(self.shape))
        set_field(self, "reg", tuple(basis for basis in self.reg if basis))
        set_field(self, "lane", tuple(self.lane))
        set_field(self, "warp", tuple(self.warp))
        if problem := _problem(self.shape, self.reg, self.lane, self.warp):
            raise ValueError(f"{problem}: {self}")

    # -- sizes and indices

    @cached_property
    def size(self) -> int:
        """Elements in the tile."""
        return prod(self.shape)

    @property
    def index_bits(self) -> int:
        """The number of bits of a flat index, log2(size)."""
        return self.size.bit_length() - 1

    @property
    def num_registers(self) -> int:
        """Elements that one thread holds."""
        return 1 << len(self.reg)

    @property
    def num_lanes(self) -> int:
        return 1 << len(self.lane)

    @property
    def num_warps(self) -> int:
        return 1 << len(self.warp)

    def bits(self) -> Iterator[tuple[str, int, int]]:
        """Every hardware bit as ("reg" | "lane" | "warp", position, flat index it contributes)."""
        for kind in ("reg", "lane", "warp"):
            for position, basis in enumerate(getattr(self, kind)):
                yield kind, position, basis

    def dim_bits(self, axis: int) -> range:
        """The positions of the index bits that belong to `axis`."""
        axis = range(len(self.shape))[axis]
        low = prod(self.shape[axis + 1 :]).bit_length() - 1
        return range(low, low + self.shape[axis].bit_length() - 1)

    def dim_mask(self, axis: int) -> int:
        """The index bits of `axis` as a mask."""
        bits = self.dim_bits(axis)
        return (1 << bits.stop) - (1 << bits.start)

    def index(self, warp: int, lane: int, reg: int) -> int:
        """The flat index of the element at a place."""
        return gf2.apply(self.warp, warp) ^ gf2.apply(self.lane, lane) ^ gf2.apply(self.reg, reg)

    def coords(self, warp: int, lane: int, reg: int) -> tuple[int, ...]:
        """The coordinates of the element at a place, one per axis."""
        index = self.index(warp, lane, reg)
        return tuple((index & self.dim_mask(axis)) >> self.dim_bits(axis).start for axis in range(len(self.shape)))

    @cached_property
    def register_indices(self) -> tuple[int, ...]:
        """Each register's contribution to the index: index = f(warp, lane) XOR this."""
        return tuple(gf2.combinations(self.reg))

    def indices(self) -> np.ndarray:
        """The flat index of every place, int64 of shape [warps, lanes, registers] (read-only)."""
        return self._indices

    @cached_property
    def _indices(self) -> np.ndarray:
        hands = (self.warp, self.lane, self.reg)
        warps, lanes, registers = (np.array(gf2.combinations(bases), np.int64) for bases in hands)
        indices = warps[:, None, None] ^ lanes[None, :, None] ^ registers[None, None, :]
        indices.flags.writeable = False
        return indices

    # -- replication and ownership

    @cached_property
    def _redundant(self) -> tuple[int, int]:
        span = gf2.Span(self.reg)
        lane_mask = sum(1 << position for position, basis in enumerate(self.lane) if not span.add(basis))
        warp_mask = sum(1 << position for position, basis in enumerate(self.warp) if not span.add(basis))
        return lane_mask, warp_mask

    @property
    def replicated_lane_bits(self) -> int:
        """A mask of lane bits. The places with `lane & mask == 0` and `warp & replicated_warp_bits == 0` hold every element exactly once.
        These threads own their elements, and only they store.

        The bits outside of the mask are independent and span the tile.
        """
        return self._redundant[0]

    @property
    def replicated_warp_bits(self) -> int:
        """The mask of warp bits that are zero in owners; see `replicated_lane_bits`."""
        return self._redundant[1]

    @property
    def is_replicated(self) -> bool:
        """Whether some element has more than one place."""
        return self._redundant != (0, 0)

    # -- queries of code generation

    def axis_bits(self, axis: int) -> tuple[int, int, int]:
        """Masks of the register, lane and warp bits that move along `axis`, which a reduction combines.

        Raises ValueError for a bit that moves along the axis *and* elsewhere, or that repeats a move of an earlier bit. A tree or butterfly
        on such a bit alone cannot combine it. Layouts made by `tables` and edits of them never have one.
        """
        mask = self.dim_mask(axis)
        moving = {"reg": 0, "lane": 0, "warp": 0}
        span = gf2.Span()
        for kind, position, basis in self.bits():
            if not basis & mask:
                continue
            if basis & ~mask or not span.add(basis):
                raise ValueError(f"{kind} bit {position} is tangled with axis {axis} of {self}")
            moving[kind] |= 1 << position
        return moving["reg"], moving["lane"], moving["warp"]

    def parts_by_warp(self, axis: int) -> int | None:
        """The number of warps that share a line along `axis`, each with a consecutive part of it, in order of their numbers.

        1 if each line is within one warp; None if the parts are not consecutive or not in order.
        """
        mask, bits = self.dim_mask(axis), self.dim_bits(axis)
        across = [basis for basis in self.warp if basis & mask]
        return 1 << len(across) if across == [1 << bit for bit in bits[len(bits) - len(across) :]] else None

    def consecutive(self, axis: int, vec: int) -> int:
        """The number of consecutive elements along `axis` that one access of a warp covers, with `vec` elements per thread."""
        held = set(self.lane) | set(self.reg[: vec.bit_length() - 1])
        return 1 << len(list(takewhile(lambda bit: 1 << bit in held, self.dim_bits(axis))))

    def contiguous_registers(self, axis: int) -> int:
        """The number of registers, from register 0 on, that hold consecutive elements along `axis` (1 if none do)."""
        pairs = zip(self.reg, self.dim_bits(axis), strict=False)
        return 1 << len(list(takewhile(lambda pair: pair[0] == 1 << pair[1], pairs)))

    # -- structural edits: the layout on the other side of an operation that moves no data

    def slice(self, axis: int) -> Layout:
        """The layout of a reduction's result: it lacks `axis`, and all threads along the axis hold the result."""
        return self._project_axis(axis)[0]

    def slice_registers(self, axis: int) -> tuple[int, ...]:
        """For each register of this layout the register of `slice(axis)` that it is reduced into."""
        return self._project_axis(axis)[1]

    def slice_partial(self, axis: int) -> Layout:
        """The layout of a reduction's result before warps are combined: `axis` shrinks to one element per warp along it.

        The warp bits that move along the axis form the index, low bit first.
        """
        axis = range(len(self.shape))[axis]
        _, _, warp_mask = self.axis_bits(axis)
        result = self.slice(axis).expand_dims(axis)
        start = self.dim_bits(axis).start
        low = (1 << start) - 1
        moving = [position for position in range(len(self.warp)) if warp_mask >> position & 1]

        def widen(basis: int) -> int:
            return (basis & ~low) << len(moving) | (basis & low)

        warp = [widen(basis) for basis in result.warp]
        for number, position in enumerate(moving):
            warp[position] = 1 << start + number
        shape = (*result.shape[:axis], 1 << len(moving), *result.shape[axis + 1 :])
        return Layout(shape, tuple(map(widen, result.reg)), tuple(map(widen, result.lane)), tuple(warp))

    @cache  # noqa: B019 - layouts are few, and code generation asks for every register
    def _project_axis(self, axis: int) -> tuple[Layout, tuple[int, ...]]:
        axis = range(len(self.shape))[axis]
        bits = self.dim_bits(axis)
        shape = self.shape[:axis] + self.shape[axis + 1 :]
        return self._project(
            shape, lambda basis: (basis >> bits.stop << bits.start) | (basis & ((1 << bits.start) - 1))
        )

    def broadcast_inverse(self, operand_shape: Sequence[int]) -> Layout:
        """The layout an operand of `operand_shape` must have so that its broadcast has this layout, moving nothing."""
        return self._project_broadcast(tuple(operand_shape))[0]

    def broadcast(self, shape: Sequence[int]) -> Layout:
        """A layout of the result of a broadcast from which `broadcast_inverse` gives this one: every thread holds the repeated elements in
        its lowest registers."""
        kept: list[int] = []
        copies: list[int] = []
        bit = 0
        for small, large in zip(reversed(self.shape), reversed(shape), strict=True):
            bits = range(bit, bit := bit + large.bit_length() - 1)
            if small == large:
                kept += bits
            else:
                copies += (1 << position for position in bits)

        def spread(bases: Sequence[int]) -> tuple[int, ...]:
            return tuple(sum(1 << bit for i, bit in enumerate(kept) if basis >> i & 1) for basis in bases)

        return Layout(tuple(shape), (*copies, *spread(self.reg)), spread(self.lane), spread(self.warp))

    def broadcast_registers(self, operand_shape: Sequence[int]) -> tuple[int, ...]:
        """For each register of this layout the operand's register that it copies."""
        return self._project_broadcast(tuple(operand_shape))[1]

    @cache  # noqa: B019
    def _project_broadcast(self, operand_shape: tuple[int, ...]) -> tuple[Layout, tuple[int, ...]]:
        if len(operand_shape) != len(self.shape):
            raise ValueError(f"{operand_shape} and {self.shape} differ in rank; expand_dims first")
        if any(small not in (1, large) for small, large in zip(operand_shape, self.shape, strict=True)):
            raise ValueError(f"{operand_shape} does not broadcast to {self.shape}")
        kept = [bit for axis in range(len(self.shape)) if operand_shape[axis] != 1 for bit in self.dim_bits(axis)]
        kept.sort()
        return self._project(operand_shape, lambda basis: _gather_bits(basis, kept))

    def _project(self, shape: tuple[int, ...], image: Callable[[int], int]) -> tuple[Layout, tuple[int, ...]]:
        """The layout with every basis replaced by its image, and for each old register the new one it falls into."""
        span = gf2.Span()
        kept: list[int] = []
        masks = []
        for basis in map(image, self.reg):
            known = span.solve(basis)
            if known is None:
                known = 1 << len(kept)
                span.add(basis)
                kept.append(basis)
            masks.append(known)
        layout = Layout(shape, tuple(kept), tuple(map(image, self.lane)), tuple(map(image, self.warp)))
        return layout, tuple(gf2.apply(masks, register) for register in range(self.num_registers))

    def part(self, axis: int, count: int) -> Layout:
        """The layout of one of `count` equal parts along an axis, in which every thread keeps its elements of the part.

        Raises ValueError if some thread has no element of a part: the axis's highest bits must be register bits.
        """
        bits = self.dim_bits(axis)
        high = {1 << bit for bit in range(bits.stop - (count.bit_length() - 1), bits.stop)}
        if not high <= set(self.reg) or any(basis & sum(high) and basis not in high for _, _, basis in self.bits()):
            raise ValueError(f"no thread has its own of {count} parts along axis {axis} of {self}")
        kept = [bit for bit in range(self.index_bits) if 1 << bit not in high]
        shape = tuple(n // count if i == axis else n for i, n in enumerate(self.shape))
        own = [basis for basis in self.reg if basis not in high]
        return Layout(shape, *(_gathered(bases, kept) for bases in (own, self.lane, self.warp)))

    def part_registers(self, axis: int, index: int, count: int) -> tuple[int, ...]:
        """For each register of `part(axis, count)`, the part being number `index`, the register of this layout that it is."""
        bits, log = self.dim_bits(axis), count.bit_length() - 1
        high = [1 << bit for bit in range(bits.stop - log, bits.stop)]
        start = sum(1 << self.reg.index(basis) for i, basis in enumerate(high) if index >> i & 1)
        found = [start]
        for position, basis in enumerate(self.reg):
            if basis not in high:
                found += [register | 1 << position for register in found]
        return tuple(found)

    def expand_dims(self, axis: int) -> Layout:
        """The result's layout when an axis of extent 1 is inserted; flat indices stay, so only the shape changes."""
        position = range(len(self.shape) + 1)[axis]
        return replace(self, shape=(*self.shape[:position], 1, *self.shape[position:]))

    def expand_dims_inverse(self, axis: int) -> Layout:
        """The operand's layout when this is the layout of `expand_dims(operand, axis)`."""
        axis = range(len(self.shape))[axis]
        if self.shape[axis] != 1:
            raise ValueError(f"axis {axis} of {self.shape} is not of extent 1")
        return replace(self, shape=self.shape[:axis] + self.shape[axis + 1 :])

    def reshape(self, shape: Sequence[int]) -> Layout:
        """The layout with another shape of the same size: elements keep their flat indices."""
        if prod(shape) != self.size:
            raise ValueError(f"{self.shape} cannot be reshaped to {tuple(shape)}")
        return replace(self, shape=tuple(shape))

    def trans(self, perm: Sequence[int]) -> Layout:
        """The result's layout of a transposition: axis i of the result is axis `perm[i]` of the operand."""
        if sorted(perm) != list(range(len(self.shape))):
            raise ValueError(f"{tuple(perm)} does not permute the axes of {self.shape}")
        order = [bit for axis in reversed(perm) for bit in self.dim_bits(axis)]
        shape = tuple(self.shape[axis] for axis in perm)
        return Layout(shape, *(_gathered(bases, order) for bases in (self.reg, self.lane, self.warp)))

    def trans_inverse(self, perm: Sequence[int]) -> Layout:
        """The operand's layout when this is the layout of `trans(operand, perm)`."""
        return self.trans([list(perm).index(axis) for axis in range(len(perm))])

    def replace(self, **fields: Any) -> Layout:
        """A copy with other fields."""
        return replace(self, **fields)

    # -- text

    def __str__(self) -> str:
        fields = (f"{kind} {_join(getattr(self, kind))}" for kind in ("reg", "lane", "warp"))
        return f"<{format_shape(self.shape)}: {' '.join(fields)}>"

    @staticmethod
    def parse(text: str) -> Layout:
        """The inverse of `str`. Raises ValueError on other text."""
        match = re.fullmatch(r"<(\S+): reg (\S+) lane (\S+) warp (\S+)>", text.strip())
        if match is None:
            raise ValueError(f"not a layout: {text!r}")
        shape, *fields = match.groups()
        return Layout(parse_shape(shape), *(_split(field) for field in fields))


# -- moving arrays in and out of a layout (for the interpreter and for tests)


def distribute(array: np.ndarray, layout: Layout) -> np.ndarray:
    """The values that every place holds, [warps, lanes, registers], of a tile given as an array of the tile's shape."""
    if np.shape(array) != layout.shape:
        raise ValueError(f"an array of shape {np.shape(array)} is not a tile of {layout}")
    spread: np.ndarray = np.asarray(array).reshape(-1)[layout.indices()]
    return spread


def collect(values: np.ndarray, layout: Layout) -> np.ndarray:
    """The inverse of `distribute`. Raises ValueError when replicas differ in any bit (so NaNs may match)."""
    indices = layout.indices()
    if values.shape != indices.shape:
        raise ValueError(f"values of shape {values.shape} do not fit the places {indices.shape} of {layout}")
    flat = np.empty(layout.size, dtype=values.dtype)
    flat[indices.reshape(-1)] = values.reshape(-1)
    if layout.is_replicated:
        differ = _raw(flat)[indices] != _raw(values).reshape(indices.shape)
        if differ.any():
            warp, lane, register = (int(position) for position in np.argwhere(differ)[0])
            place = f"warp {warp}, lane {lane}, register {register}"
            element = layout.coords(warp, lane, register)
            raise ValueError(f"replicas of element {element} disagree: {place} holds {values[warp, lane, register]}")
    return flat.reshape(layout.shape)


def _raw(values: np.ndarray) -> np.ndarray:
    """The bits of `values` as unsigned integers of the same width."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _gather_bits(value: int, positions: Sequence[int]) -> int:
    """Bit i of the result is bit `positions[i]` of `value`."""
    return sum((value >> position & 1) << i for i, position in enumerate(positions))


def _gathered(bases: Sequence[int], positions: Sequence[int]) -> tuple[int, ...]:
    """`_gather_bits` of each basis."""
    return tuple(_gather_bits(basis, positions) for basis in bases)


def format_shape(shape: Sequence[int]) -> str:
    """A shape as text without spaces: "128x64", and "()" for a tile of rank 0."""
    return "x".join(map(str, shape)) if shape else "()"


def parse_shape(text: str) -> tuple[int, ...]:
    """The inverse of `format_shape`."""
    return () if text == "()" else tuple(int(extent) for extent in text.split("x"))


def _join(bases: Sequence[int]) -> str:
    return ",".join(map(str, bases)) if bases else "-"


def _split(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(int(basis) for basis in text.split(","))
