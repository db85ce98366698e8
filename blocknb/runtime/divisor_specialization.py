"""Arguments by which a kernel takes remainders, whose multiples are told apart more finely than those of others.

Rows that wrap around, `(pid * BLOCK + arange(0, BLOCK)) % M`, do not do so within a tile when BLOCK divides M. So of such an argument a
version of the kernel knows whether it is a multiple of the sizes that tiles have, and the launch chooses the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.errors import KernelError
from blocknb.frontend.source import Source
from blocknb.language import types as t
from blocknb.runtime.kinds import Kind, multiple_kind

FINER = (256, 128, 64)  # what is tried for, after 16


def moduli(source: Source) -> frozenset[str]:
    """The parameters of a kernel that are looked at more closely."""
    try:
        return source.moduli
    except KernelError:  # whatever is wrong with the source is told when it is compiled
        return frozenset()


def refined(kinds: list[Kind], raws: Sequence[Any], places: Sequence[int]) -> tuple[Kind, ...]:
    """The Kinds of a launch's arguments, with those at the places of moduli made finer."""
    for i in places:
        kinds[i] = finer(kinds[i], raws[i])
    return tuple(kinds)


def finer(kind: Kind, raw: Any) -> Kind:
    """The Kind of a modulus, from its Kind as any other argument."""
    if kind.divisibility != 16 or not isinstance(kind.type, t.DType) or raw is None:
        return kind
    return multiple_kind(kind.type, next((n for n in FINER if not raw % n), 16))


def divides(raw: str, divisor: int, modulus: bool) -> str:
    """The Python text that tests whether a number has the divisibility of a Kind, a finer one for a `modulus`."""
    if divisor == 1:
        return f"{raw} & 7"
    if divisor == 8:
        return f"{raw} & 15 == 8"
    larger = min((n for n in FINER if n > divisor), default=0) if modulus else 0
    return f"not {raw} & {divisor - 1}" + (f" and {raw} & {larger - 1}" if larger else "")
