"""Judges the outputs of a changed kernel against those of the kernel of the cell, on copies of the same inputs.

Before each launch the copies get the contents of the user's arrays. Arrays that the kernel writes and does not read are filled with a
poison instead: NaN, or a bit pattern in integers. The user's array holds the right values from the run of the cell. With the poison, an
element that the changed kernel does not write is never right by chance.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.runtime.launch_snapshot import ArrayReference, LaunchCopies, LaunchSnapshot

POISON = b"\xa5"  # of integers and booleans
CHUNK = 1 << 22  # elements compared at once


@dataclass(frozen=True)
class OutputComparison:
    """Whether outputs are right. `right` is None if that cannot be decided; `text` says what was found, or why not."""

    right: bool | None
    text: str


SAME = "the outputs equal those of the cell’s kernel"


class PoisonedOutputs:
    """The copies of one launch, on which several kernels run in turn.

    `stored` and `loaded` are the names of all arrays that one of the kernels writes or reads."""

    def __init__(self, snapshot: LaunchSnapshot, stored: Collection[str], loaded: Collection[str]):
        found = snapshot.copies(stored)
        if found is None:
            raise LookupError("an array of the launch no longer exists, or cannot be copied")
        self.copies: LaunchCopies = found
        self.stored = sorted(stored)
        self._read = [part for name in loaded if name in snapshot.arrays for part in snapshot.arrays[name].ranges()]

    def after(self, launch: Callable[[], Any]) -> dict[str, list[Any]]:
        """The contents of the written arrays after a launch, by name."""
        self.copies.reset()
        for name in self.stored:
            for part, array in self.copies.views(name):
                if not any(_overlap(part, other) for other in self._read):
                    poison(array)
        launch()
        return {name: [_copy(array) for _, array in self.copies.views(name)] for name in self.stored}

    def compare_launches(self, launch: Callable[[], Any], base: Callable[[], Any]) -> OutputComparison:
        """Compares the outputs of a launch with those of the base. If they differ, the base runs again: a base that differs from itself
        (atomics in another order, a race) decides nothing."""
        wanted = self.after(base)
        found = differences(self.after(launch), wanted)
        if not found:
            return OutputComparison(True, SAME)
        if differences(self.after(base), wanted):
            return OutputComparison(None, "two launches of the cell’s kernel differ, so the outputs cannot be compared")
        name, (share, unwritten) = max(found.items(), key=lambda item: item[1][0])
        text = f"{_percent(share)} of `{name}` differs from the result of the cell’s kernel"
        if unwritten:
            text += f"; {_percent(unwritten)} is not written"
        return OutputComparison(False, text)


def differences(found: Mapping[str, list[Any]], wanted: Mapping[str, list[Any]]) -> dict[str, tuple[float, float]]:
    """For each output that differs: the share of elements that differ, and the share that only `found` left unwritten."""
    shares = {}
    for name, arrays in wanted.items():
        counts = [_count(a, b) for a, b in zip(found[name], arrays, strict=True)]
        total = sum(count[2] for count in counts)
        if total and (wrong := sum(count[0] for count in counts)):
            shares[name] = (wrong / total, sum(count[1] for count in counts) / total)
    return shares


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.005 else "less than 1 %"


def _overlap(a: ArrayReference, b: ArrayReference) -> bool:
    return a.owner() is b.owner() and a.low < b.high and b.low < a.high


def _is_float(array: Any) -> bool:
    return "float" in str(array.dtype)


def poison(array: Any) -> None:
    if _is_float(array):
        array[...] = math.nan
    else:
        whole = _integers(array)
        whole[...] = _pattern(whole)


def _integers(array: Any) -> Any:
    """An array of booleans as bytes, so that they can hold the poison; another array as it is."""
    if "bool" not in str(array.dtype):
        return array
    return array.view(sys.modules["torch"].uint8 if _torch(array) else np.uint8)


def _pattern(array: Any) -> Any:
    """The poison as an element of an integer array."""
    if _torch(array):
        signed = "uint" not in str(array.dtype)
        return int.from_bytes(POISON * array.element_size(), sys.byteorder, signed=signed)
    return np.frombuffer(POISON * array.dtype.itemsize, np.uint8).view(array.dtype)[0]


def _copy(array: Any) -> Any:
    return array.clone() if _torch(array) else array.copy()


def _torch(array: Any) -> bool:
    return type(array).__module__.split(".")[0] == "torch"


def _tolerance(array: Any) -> float:
    """The relative difference that another order of additions may make. It is 1024 times the epsilon of fp32 and fp64, whose sums are long.
    It is less for shorter types, whose sums are usually fp32."""
    if "bfloat16" in str(array.dtype):
        return 2.0**-5
    size = array.element_size() if _torch(array) else array.dtype.itemsize
    return float({8: 2.0**-42, 4: 2.0**-13, 2: 2.0**-7}.get(size, 0.5))


def _count(found: Any, wanted: Any) -> tuple[int, int, int]:
    """The numbers of elements that differ, that only `found` left unwritten, and of all elements."""
    total = math.prod(found.shape)
    a, b = _integers(found).reshape(-1), _integers(wanted).reshape(-1)
    wrong = unwritten = 0
    for at in range(0, total, CHUNK):
        here, there = a[at : at + CHUNK], b[at : at + CHUNK]
        if _is_float(found):
            here, there = _doubles(here), _doubles(there)
            bad = _float_differs(here, there, _tolerance(found))
            hole = (here != here) & bad
        else:
            bad = here != there
            hole = bad & (here == _pattern(here))
        wrong += int(bad.sum())
        unwritten += int(hole.sum())
    return wrong, unwritten, total


def _doubles(array: Any) -> Any:
    return array.double() if _torch(array) else array.astype(np.float64)


def _float_differs(a: Any, b: Any, tolerance: float) -> Any:
    """The elements that differ by more than the tolerance of their own size, or of the usual size of the others if that is larger."""
    with np.errstate(all="ignore"):
        size = abs(b)
        finite = size[size < math.inf]
        usual = float(finite.mean()) if len(finite) else 0.0
        small = abs(a - b)
        close = (small <= tolerance * size) | (small <= tolerance * usual) | (a == b) | ((a != a) & (b != b))
    return ~close
