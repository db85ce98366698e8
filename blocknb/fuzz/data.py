"""The arrays of a kernel's launch: inputs by seed, poisoned outputs, and guard zones on both sides."""

from __future__ import annotations

import numpy as np

from blocknb.fuzz import dtypes
from blocknb.fuzz import tree as t

GUARD = 64  # elements before and after each array
ALIGN = 64  # bytes


def inputs(kernel: t.KernelTree, launch: int) -> dict[str, np.ndarray]:
    """The initial values of every array that is not a view of another one, by name."""
    found = {}
    for number, array in enumerate(kernel.arrays):
        if not array.base:
            found[array.name] = fill(array, np.random.default_rng([kernel.seed, launch, number]))
    return found


def fill(array: t.Array, rng: np.random.Generator) -> np.ndarray:
    """Values of one array."""
    return drawn(array.dtype, array.size, array.fill, rng)


def facts(dtype: str) -> tuple[np.dtype, bool, tuple[int, int]]:
    """The NumPy dtype of an array, whether it holds floats, and the limits of its integers."""
    floats = dtypes.is_float(dtype)
    return dtypes.storage(dtype), floats, (0, 0) if floats else dtypes.limits(dtype)


def drawn(dtype, n, fill, rng):  # type: ignore[no-untyped-def]
    """Random values of one kind.

    "small" numbers have exact sums. "wide" uses the whole range of integers and many digits. "special" contains infinities, NaNs and
    extremes. "poison" is arbitrary. Reproducers contain the source of this function.
    """
    kind, floats, (low, high) = facts(dtype)
    if dtype == "i1":
        return rng.integers(0, 2, n).astype(bool)
    if not floats:
        if fill == "small":
            return rng.integers(max(low, -9), 10, n).astype(kind)
        found = rng.integers(low, high, n, dtype=kind, endpoint=True)
        if fill == "special":
            found = np.where(rng.random(n) < 0.3, rng.choice(np.array([low, high, 0, 1, high - 1], kind), n), found)
        return found.astype(kind)
    if fill == "small":
        return (rng.integers(-16, 17, n) / rng.choice([1, 2, 8])).astype(kind)
    found = rng.normal(0, 2, n)
    if fill == "special" and kind.itemsize > 1:
        extremes = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
        found = np.where(rng.random(n) < 0.2, rng.choice(extremes, n), found)
    return found.astype(kind)


class Guarded:
    """An array between two guard zones with one pattern, at `offset` elements from an aligned address; it owns its memory."""

    def __init__(self, values: np.ndarray, offset: int):
        size, n = values.dtype.itemsize, values.size
        start = -(-GUARD * size // ALIGN) * ALIGN + offset * size
        total = start + (n + GUARD) * size
        raw = np.full(total + ALIGN, 0xA5, np.uint8)
        raw = raw[-raw.ctypes.data % ALIGN :][:total]
        self.raw, self.start, self.stop = raw, start, start + n * size
        self.array = raw[self.start : self.stop].view(values.dtype)
        self.array[:] = values

    def broken(self) -> bool:
        """Whether a guard zone has changed."""
        return bool((self.raw[: self.start] != 0xA5).any() or (self.raw[self.stop :] != 0xA5).any())
