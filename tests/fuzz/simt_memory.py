"""The memories of `simt`: arrays at their own addresses, with a record of accesses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from fuzz.races import Watch


class Memory:
    """Arrays at their own addresses, some of which kernels reach through addresses in memory; accesses outside are errors."""

    def __init__(self, arrays: Sequence[np.ndarray], programs: bool = False):
        ranges = sorted({np.lib.array_utils.byte_bounds(array) for array in arrays if array.size})
        self.lows = np.array([low for low, _ in ranges], np.int64)
        self.sizes = np.array([high - low for low, high in ranges], np.int64)
        self.first = np.cumsum(self.sizes) - self.sizes
        self.raw = [np.frombuffer((ctypes.c_ubyte * (high - low)).from_address(low), np.uint8) for low, high in ranges]
        self.bytes = np.concatenate(self.raw) if ranges else np.empty(0, np.uint8)
        self.watch = Watch(self.bytes.size, programs)
        self.unseen: np.ndarray | None = None  # bytes written by stores that no fence has made visible to TMA

    def write_back(self) -> None:
        for raw, start in zip(self.raw, self.first, strict=True):
            raw[:] = self.bytes[start : start + raw.size]

    def places(self, addresses: np.ndarray, size: int, align: int, where: str) -> np.ndarray:
        """The indices in `bytes` of each access, [threads, size]."""
        if (addresses % align).any():
            raise ValueError(f"an access of {align} bytes at an address that is no multiple of it: {where}")
        owner = np.searchsorted(self.lows, addresses, "right") - 1
        offsets = addresses - self.lows[owner] if len(self.lows) else addresses
        if len(addresses) and ((owner < 0) | (offsets + size > self.sizes[owner])).any():
            raise ValueError(f"an access outside the arrays: {where}")
        return (self.first[owner] + offsets)[:, None] + np.arange(size)

    def load(self, addresses: np.ndarray, size: int, align: int, where: str, who: np.ndarray) -> np.ndarray:
        """[threads, size] bytes, for the threads `who`."""
        places = self.places(addresses, size, align, where)
        self.watch.access(places, who, where)
        return self.bytes[places]

    def store(self, addresses: np.ndarray, data: np.ndarray, align: int, where: str, who: np.ndarray) -> None:
        places = self.places(addresses, data.shape[1], align, where)
        self.watch.access(places, who, where, write=True, same=(self.bytes[places] == data).ravel())
        self.bytes[places] = data
        if self.unseen is not None:
            self.unseen[places] = True
        if (self.bytes[places] != data).any():
            raise ValueError(f"two threads store different values to one place: {where}")
