"""What the copy engine and mbarriers hold where a function is interpreted: counts, phases, tensor maps and the boxes that they cut out.

mbarriers are exact: a phase is over when all have arrived and all bytes that were expected have come; who waits for a parity goes on
when the phase that is now under way has the other one, and so waits for ever if it comes too late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blocknb.ir.interp_memory import Allocation
from blocknb.language.bulk import TensorMap

MOST_BYTES = 1 << 20  # that may be outstanding at an mbarrier


@dataclass
class Mbarrier:
    """One mbarrier: its phase under way, and what is outstanding in it. `told`: what those knew who have arrived; `shown`: what is known
    to those who wait, once a phase is over. `made`: the moment of the first warp at which it was."""

    arrivals: int
    column: int
    told: np.ndarray
    shown: np.ndarray
    phase: int = 0
    pending: int = 0
    bytes: int = 0
    made: int | None = None

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    @property
    def is_begun(self) -> bool:
        """Whether some have arrived in the phase under way, and not all."""
        return self.pending < self.arrivals or self.bytes != 0

    def over(self, parity: int) -> bool:
        """Whether a wait for the phase of that parity goes on."""
        return self.phase & 1 != parity

    def arrive(self, row: np.ndarray, bytes: int = 0) -> str:
        """One arrival, which may expect bytes; what is wrong with it, or ""."""
        if not self.pending:
            return "arrives at an mbarrier at which all have arrived"
        np.maximum(self.told, row, out=self.told)
        self.pending -= 1
        return self.come(-bytes)

    def come(self, bytes: int) -> str:
        """Bytes have come; ends the phase if nothing is outstanding. What is wrong, or ""."""
        self.bytes -= bytes
        if abs(self.bytes) >= MOST_BYTES:
            return f"an mbarrier counts {self.bytes} bytes"
        if not self.pending and not self.bytes:
            self.phase += 1
            self.pending = self.arrivals
            self.told[self.column] = self.phase
            self.shown[:] = self.told
        return ""


@dataclass(frozen=True)
class Map:
    """A tensor map at run time, with all strides."""

    type: TensorMap
    base: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    def box(self, buffer: Allocation, axes: tuple[int, ...], start: list[int]) -> Box:
        """What lies over a buffer that starts there."""
        index = np.indices(buffer.type.shape).reshape(len(axes), -1)
        address, inside = np.int64(self.base), np.ones(index.shape[1], bool)
        piece = np.zeros(index.shape[1], np.int64)
        for axis, (extent, stride) in enumerate(zip(self.extents, self.strides, strict=True)):
            place = np.full(index.shape[1], start[axis], np.int64)
            if axis in axes:
                along = axes.index(axis)
                place += index[along]
                count = buffer.type.shape[along] // self.type.box[axis]
                piece = piece * count + index[along] // self.type.box[axis]
            inside &= (place >= 0) & (place < extent)
            address = address + place * stride * self.type.dtype.bytes
        return Box(np.asarray(address), inside, piece)


@dataclass(frozen=True)
class Box:
    """The address of each element of a buffer, whether it is within bounds, and the number of the instruction that moves it."""

    address: np.ndarray
    inside: np.ndarray
    piece: np.ndarray
