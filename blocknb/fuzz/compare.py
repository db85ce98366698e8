"""Compares the memory that a launch produced with the evaluator's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from blocknb.fuzz import dtypes
from blocknb.fuzz import tree as t
from blocknb.fuzz.memory import FuzzMemory


@dataclass(frozen=True)
class WrongResult:
    """Elements of one array that differ: how many of how many, and the first few as (index, got, expected, bound)."""

    array: str
    dtype: str
    count: int
    size: int
    examples: tuple[tuple[int, float, float, float], ...]

    def __str__(self) -> str:
        parts = [
            f"[{i}] is {got!r}, expected {want!r}" + (f" within {err:.2g}" if err else "")
            for i, got, want, err in self.examples
        ]
        return f"{self.array} ({self.dtype}): {self.count} of {self.size} elements are wrong; " + "; ".join(parts)


def expected(kernel: t.KernelTree, memory: FuzzMemory) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The expected contents of every array, with error bounds, by name."""
    owners = [a.name for a in kernel.arrays if not a.base]
    return {name: (b.data, b.err) for name, b in zip(owners, memory.buffers, strict=True)}


def differences(kernel: t.KernelTree, memory: FuzzMemory, got: Mapping[str, np.ndarray]) -> list[WrongResult]:
    """The arrays whose elements differ from the expected ones."""
    found = []
    kinds = {a.name: a.dtype for a in kernel.arrays}
    for name, (want, err) in expected(kernel, memory).items():
        wrong = differing(kinds[name], got[name], want, err)
        if wrong.any():
            places = np.flatnonzero(wrong)[:4]
            held = got[name].astype(dtypes.held(kinds[name]))
            examples = tuple((int(i), held[i].item(), want[i].item(), float(err[i])) for i in places)
            found.append(WrongResult(name, kinds[name], int(wrong.sum()), want.size, examples))
    return found


def differing(dtype: str, got: np.ndarray, want: np.ndarray, err: np.ndarray) -> np.ndarray:
    """Where numbers differ from the expected ones by more than their bounds; NaN equals NaN, and zeros are equal."""
    held = got.astype(dtypes.held(dtype))
    if not dtypes.is_float(dtype):
        return (held != want) & (err == 0)
    with np.errstate(all="ignore"):
        near = (np.abs(held - want) <= err) | (held == want) | (np.isnan(held) & np.isnan(want))
    return ~near & (err < np.inf)
