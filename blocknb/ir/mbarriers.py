"""The state of mbarriers and tensor maps in the interpreter: counts, phases, and the boxes of tensor maps.

mbarriers follow the PTX specification. A phase completes when all arrivals and all expected bytes have come. A wait for a parity
continues when the current phase has the other parity. A wait that comes a phase too late therefore never continues.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import numpy as np

from blocknb.ir.interp_memory import Allocation
from blocknb.language.bulk import TensorMap

MOST_BYTES = 1 << 20  # limit of pending bytes at an mbarrier


@dataclass
class Mbarrier:
    """One mbarrier: its current phase, with the pending arrivals and bytes.

    `column` is the mbarrier's place in a row of `Clocks`, and `columns` is the length of such a row. `arrived` holds the clocks of the
    warps that have arrived. `released` holds the clocks that waiting warps take over when a phase completes. `made` is the moment of the
    first warp at which the mbarrier was initialized.
    """

    arrivals: int
    column: int
    columns: InitVar[int]
    phase: int = 0
    pending: int = 0
    bytes: int = 0
    made: int | None = None

    def __post_init__(self, columns: int) -> None:
        self.pending = self.arrivals
        self.arrived, self.released = np.zeros(columns, np.int64), np.zeros(columns, np.int64)

    @property
    def is_begun(self) -> bool:
        """Whether the current phase has some arrivals, but not all."""
        return self.pending < self.arrivals or self.bytes != 0

    def has_completed(self, parity: int) -> bool:
        """Whether a wait for the phase of that parity continues."""
        return self.phase & 1 != parity

    def arrive(self, row: np.ndarray, bytes: int = 0) -> str:
        """Records an arrival, which may expect bytes. Returns an error message, or ""."""
        if not self.pending:
            return "arrives at an mbarrier whose phase already has all arrivals"
        np.maximum(self.arrived, row, out=self.arrived)
        self.pending -= 1
        return self.receive(-bytes)

    def receive(self, bytes: int) -> str:
        """Records received bytes, and completes the phase if nothing is pending. Returns an error message, or ""."""
        self.bytes -= bytes
        if abs(self.bytes) >= MOST_BYTES:
            return f"an mbarrier counts {self.bytes} bytes"
        if not self.pending and not self.bytes:
            self.phase += 1
            self.pending = self.arrivals
            self.arrived[self.column] = self.phase
            self.released[:] = self.arrived
        return ""


@dataclass(frozen=True)
class Map:
    """A tensor map at run time, with all strides."""

    type: TensorMap
    base: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    def box(
        self, buffer: Allocation, axes: tuple[int, ...], start: list[int], extents: tuple[int, ...] | None = None
    ) -> Box:
        """The box of the array that fills `buffer`, or the first elements along each axis (`extents`), beginning at the coordinates
        `start`."""
        shape = extents or buffer.type.shape
        index = np.indices(shape).reshape(len(axes), -1)
        address, inside = np.int64(self.base), np.ones(index.shape[1], bool)
        piece = np.zeros(index.shape[1], np.int64)
        for axis, (extent, stride) in enumerate(zip(self.extents, self.strides, strict=True)):
            place = np.full(index.shape[1], start[axis], np.int64)
            if axis in axes:
                along = axes.index(axis)
                place += index[along]
                count = shape[along] // self.type.box[axis]
                piece = piece * count + index[along] // self.type.box[axis]
            inside &= (place >= 0) & (place < extent)
            address = address + place * stride * self.type.dtype.bytes
        number = np.asarray(np.ravel_multi_index(tuple(index), buffer.type.shape))
        return Box(np.asarray(address), inside, piece, number)


@dataclass(frozen=True)
class Box:
    """The elements of a buffer that a bulk copy moves: the address of each, and whether that is within bounds. `piece` is the number of the
    instruction that moves it, and `index` its flat index in the buffer."""

    address: np.ndarray
    inside: np.ndarray
    piece: np.ndarray
    index: np.ndarray
