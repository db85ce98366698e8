"""The evaluator's memory: flat arrays with bounds, and integer addresses with an array's number in the upper bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.fuzz import dtypes
from blocknb.fuzz.numbers import Ambiguous, Val, cast, val

SHIFT = 40  # bits of the offset in an address, which may lie outside of the array


class OutOfRange(Exception):
    """The generator made an out-of-bounds access, which is an error of the generator."""


@dataclass
class FuzzBuffer:
    """One array with its error bounds."""

    dtype: str
    data: np.ndarray
    err: np.ndarray


class FuzzMemory:
    """Arrays by number, counted from 1."""

    def __init__(self) -> None:
        self.buffers: list[FuzzBuffer] = []

    def add(self, dtype: str, data: np.ndarray) -> int:
        """Copies an array into memory and returns the address of its first element."""
        self.buffers.append(FuzzBuffer(dtype, data.astype(dtypes.held(dtype)), np.zeros(data.size)))
        return len(self.buffers) << SHIFT

    def _places(self, address: np.ndarray, on: np.ndarray, maybe: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The array numbers and element offsets of active lanes; inactive lanes get offset 0 of the first array."""
        number = (address + (1 << SHIFT - 1)) >> SHIFT
        offset = address - (number << SHIFT)
        sizes = np.array([0, *(b.data.size for b in self.buffers)])
        known = (number >= 1) & (number <= len(self.buffers))
        inside = known & (offset >= 0) & (offset < sizes[np.where(known, number, 0)])
        if (maybe & ~inside).any():
            raise Ambiguous
        if (on & ~inside).any():
            raise OutOfRange(f"element {offset[on & ~inside].flat[0]} of array {number[on & ~inside].flat[0]}")
        touched = on | maybe
        return np.where(touched, number, 1), np.where(touched, offset, 0)

    @staticmethod
    def _lanes(shape: tuple[int, ...], mask: Val | None) -> tuple[np.ndarray, np.ndarray]:
        if mask is None:
            return np.ones(shape, bool), np.zeros(shape, bool)
        unsure = np.broadcast_to(mask.bound > 0, shape)
        return np.broadcast_to(mask.data, shape) & ~unsure, unsure

    def load(self, dtype: str, pointer: Val, mask: Val | None, other: Val | None) -> Val:
        """The elements where the mask is on, and `other` or zero elsewhere."""
        address = pointer.exact()
        on, maybe = self._lanes(address.shape, mask)
        number, offset = self._places(address, on, maybe)
        data = (
            np.zeros(address.shape, dtypes.held(dtype))
            if other is None
            else np.broadcast_to(other.data, address.shape).copy()
        )
        err = np.zeros(address.shape) if other is None else np.array(np.broadcast_to(other.bound, address.shape))
        for n in np.unique(number[on]) if on.any() else ():
            here, buffer = on & (number == n), self.buffers[n - 1]
            data[here], err[here] = buffer.data[offset[here]], buffer.err[offset[here]]
        err[maybe] = np.inf
        return val(dtype, data, err)

    def store(self, dtype: str, pointer: Val, value: Val, mask: Val | None) -> None:
        address = pointer.exact()
        value = cast(value, dtype)
        on, maybe = self._lanes(address.shape, mask)
        number, offset = self._places(address, on, maybe)
        data, err = np.broadcast_to(value.data, address.shape), np.broadcast_to(value.bound, address.shape)
        for n in np.unique(number[on | maybe]) if (on | maybe).any() else ():
            here, buffer = on & (number == n), self.buffers[n - 1]
            buffer.data[offset[here]], buffer.err[offset[here]] = data[here], err[here]
            buffer.err[offset[maybe & (number == n)]] = np.inf

    def update(self, op: str, dtype: str, pointer: Val, value: Val, mask: Val | None, compare: Val | None) -> Val:
        """Performs an atomic lane by lane; returns the old values."""
        address = pointer.exact()
        on, maybe = self._lanes(address.shape, mask)
        number, offset = self._places(address, on, maybe)
        value = cast(value, dtype)
        given = np.broadcast_to(value.data, address.shape)
        unsure = np.broadcast_to(value.bound, address.shape)
        wanted = None if compare is None else np.broadcast_to(compare.exact(), address.shape)
        old, err = np.zeros(address.shape, dtypes.held(dtype)), np.zeros(address.shape)
        for at in np.ndindex(address.shape):
            if not (on[at] or maybe[at]):
                continue
            buffer, i = self.buffers[number[at] - 1], offset[at]
            old[at], err[at] = buffer.data[i], buffer.err[i]
            if wanted is not None and wanted[at] != old[at]:
                continue
            new = _updated(op, old[at], given[at])
            buffer.data[i] = dtypes.rounded(dtype, new) if dtypes.is_float(dtype) else new
            if maybe[at] or unsure[at] or (err[at] and op != "xchg"):
                buffer.err[i] = np.inf
        return val(dtype, old, err)


def _updated(op: str, old: Any, new: Any) -> Any:
    match op:
        case "add":
            return old + new
        case "max":
            return max(old, new)
        case "min":
            return min(old, new)
        case "and":
            return old & new
        case "or":
            return old | new
        case "xor":
            return old ^ new
    return new  # xchg, and cas if the comparison succeeds
