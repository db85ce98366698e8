"""Factored tiles: the tiles of many programs as sums of one term per axis.

`tile_m * 64 + arange(64)` over 1000 programs takes 1000 + 64 numbers instead of 64,000. A factored tile represents an array [programs,
*tile shape] by a tuple of arrays of that rank. Each part has size one along the axes on which it does not depend. The value of numbers
and addresses is the sum of the parts; the value of masks is their conjunction. Addresses and masks of most kernels have this form, so an
analysis of a launch costs the sum of its axes instead of their product. Other tiles are broadcast to one full array.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

FactoredTile = tuple[np.ndarray, ...]


def axes(part: np.ndarray) -> frozenset[int]:
    """The axes on which a part depends; axis 0 is the program."""
    return frozenset(i for i, n in enumerate(part.shape) if n > 1)


def whole(parts: FactoredTile) -> np.ndarray:
    """Combines the parts into one array, broadcast only as far as necessary."""
    found = parts[0]
    for part in parts[1:]:
        found = found & part if part.dtype == bool else found + part
    return found


def gathered(parts: Iterable[np.ndarray]) -> FactoredTile:
    """Merges each part into another one that depends on the same axes or more."""
    kept: list[np.ndarray] = []
    for part in sorted(parts, key=lambda p: -len(axes(p))):
        for i, other in enumerate(kept):
            if axes(part) <= axes(other):
                kept[i] = other & part if part.dtype == bool else other + part
                break
        else:
            kept.append(part)
    return tuple(kept)


def bounds(parts: FactoredTile) -> tuple[int, int]:
    """The least and the greatest element."""
    return sum(int(p.min()) for p in parts), sum(int(p.max()) for p in parts)


def add(a: FactoredTile, b: FactoredTile) -> FactoredTile | None:
    """The sum as a factored tile; None if it overflows the dtype."""
    parts, limits = gathered((*a, *b)), np.iinfo(a[0].dtype)
    low, high = bounds((*a, *b))
    return parts if limits.min <= low and high <= limits.max else None


def scaled(a: FactoredTile, factor: np.ndarray) -> FactoredTile | None:
    """The product with a factor that is uniform over each tile; None if it overflows the dtype."""
    limits, ends = np.iinfo(a[0].dtype), (int(factor.min()), int(factor.max()))
    products = [x * y for x in bounds(a) for y in ends]
    wide = [int(p.min()) * y for p in a for y in ends] + [int(p.max()) * y for p in a for y in ends]
    if min(products + wide) < limits.min or max(products + wide) > limits.max:
        return None
    return gathered(p * factor for p in a)


def reaches(parts: FactoredTile) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest element of each program, as arrays [programs or 1]."""
    found = []
    for end in (np.min, np.max):
        found.append(sum(end(p.astype(np.int64), axis=tuple(range(1, p.ndim))) for p in parts))
    return found[0], found[1]


def decided(predicate: str, a: FactoredTile, b: FactoredTile) -> FactoredTile | None:
    """A comparison whose result is uniform over the tile of each program; None if it is not."""
    (a_low, a_high), (b_low, b_high) = reaches(a), reaches(b)
    match predicate:
        case "lt":
            yes, no = a_high < b_low, a_low >= b_high
        case "le":
            yes, no = a_high <= b_low, a_low > b_high
        case "gt":
            yes, no = a_low > b_high, a_high <= b_low
        case "ge":
            yes, no = a_low >= b_high, a_high < b_low
        case _:
            return None
    return (yes.reshape(-1, *[1] * (a[0].ndim - 1)),) if np.all(yes | no) else None


def take(parts: FactoredTile, chosen: np.ndarray, programs: int) -> FactoredTile:
    """The tiles of a subset of the programs."""
    return tuple(p[chosen] if len(p) == programs and programs > 1 else p for p in parts)


def joined(groups: list[tuple[np.ndarray, FactoredTile]], programs: int) -> FactoredTile:
    """Joins the factored tiles of groups of programs into one over all programs. Indices name the programs of each group."""
    arrays = [(chosen, whole(parts)) for chosen, parts in groups]
    shape = np.broadcast_shapes(*(a.shape[1:] for _, a in arrays))
    found = np.empty((programs, *shape), arrays[0][1].dtype)
    for chosen, array in arrays:
        found[chosen] = array
    return (found,)


def by_axis(parts: FactoredTile, rank: int) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Splits a factored tile into an array [programs or 1] and one array [programs or 1, size or 1] per axis of the tile. None if a part
    depends on two axes of the tile."""
    truth = parts[0].dtype == bool
    neutral = np.ones if truth else np.zeros
    alone: np.ndarray = neutral(1, parts[0].dtype)
    found: list[np.ndarray] = [neutral((1, 1), parts[0].dtype) for _ in range(rank)]
    for part in parts:
        own = axes(part) - {0}
        if len(own) > 1:
            return None
        if own:
            (axis,) = own
            array = part.reshape(len(part), -1)
            found[axis - 1] = found[axis - 1] & array if truth else found[axis - 1] + array
        else:
            flat = part.reshape(-1)
            alone = alone & flat if truth else alone + flat
    return alone, found


def true_counts(parts: FactoredTile, shape: tuple[int, ...], programs: int) -> np.ndarray:
    """The number of true elements in the tile of each program, [programs]."""
    split = by_axis(parts, len(shape))
    if split is None:
        array = whole(parts)
        rest = math.prod(shape) // math.prod(array.shape[1:])
        return np.broadcast_to(array.sum(tuple(range(1, array.ndim)), dtype=np.int64) * rest, programs)
    alone, by = split
    found = np.broadcast_to(alone.astype(np.int64), programs)
    for size, array in zip(shape, by, strict=True):
        found = found * (array.sum(1, dtype=np.int64) * (1 if array.shape[1] == size else size))
    return found
