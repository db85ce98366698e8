"""Divisor specialization: finer divisibility of the integer arguments by which a kernel takes remainders.

The rows `(pid * BLOCK + arange(0, BLOCK)) % M` do not wrap around within a tile when BLOCK divides M. The kernel is therefore specialized
on whether such an argument is a multiple of common tile sizes. The launch chooses the specialization.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.errors import KernelError
from blocknb.frontend.source import Source
from blocknb.language import types as t
from blocknb.runtime.kinds import Kind, multiple_kind

FINER = (256, 128, 64)  # divisors that are tested in addition to 16


def moduli(source: Source) -> frozenset[str]:
    """Returns the names of the parameters by which a kernel takes remainders."""
    try:
        return source.moduli
    except KernelError:  # the compilation reports errors of the source
        return frozenset()


def refined(kinds: list[Kind], raws: Sequence[Any], places: Sequence[int]) -> tuple[Kind, ...]:
    """Returns the Kinds of a launch's arguments, with finer divisibility at `places`, the positions of moduli."""
    for i in places:
        kinds[i] = finer(kinds[i], raws[i])
    return tuple(kinds)


def finer(kind: Kind, raw: Any) -> Kind:
    """Returns the Kind of a modulus, from its Kind as an ordinary argument."""
    if kind.divisibility != 16 or not isinstance(kind.type, t.DType) or raw is None:
        return kind
    return multiple_kind(kind.type, next((n for n in FINER if not raw % n), 16))


def divides(raw: str, divisor: int, modulus: bool) -> str:
    """Returns the Python expression that tests a number for the divisibility of a Kind, a finer one for a `modulus`."""
    if divisor == 1:
        return f"{raw} & 7"
    if divisor == 8:
        return f"{raw} & 15 == 8"
    larger = min((n for n in FINER if n > divisor), default=0) if modulus else 0
    return f"not {raw} & {divisor - 1}" + (f" and {raw} & {larger - 1}" if larger else "")
