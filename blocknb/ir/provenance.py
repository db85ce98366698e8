"""Pointers of the interpreter with provenance: the array that each was derived from.

An address is a number, and with a large offset it can be an address in another array. Arrays of addresses therefore have owners: for each
element the array from which it was derived, or UNOWNED. The rules are those of `analysis.provenance`. Several addresses may contribute to a
number, and a pointer may be loaded or cast from an integer. Then the owner is the array that contains the address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blocknb.ir.core import Op
from blocknb.language.ops import OPS, named
from blocknb.language.semantics import FARTHEST
from blocknb.language.types import Tile

UNOWNED = -1  # the owner of an address that lies in no argument's array
MIXED = -2  # the owner of an integer that several addresses contribute to
MOVES = named("view", "move")


class Owned(np.ndarray):
    """An int64 array of addresses; `owners` (of its shape, or one for all) as `AddressSpace.owners` makes them, None where unknown."""

    owners: np.ndarray | None = None

    @staticmethod
    def of(addresses: Any, owners: Any) -> Owned:
        made = np.asarray(addresses).view(Owned)
        made.owners = None if owners is None else np.asarray(owners)
        return made


def owners_of(x: Any) -> np.ndarray | None:
    return x.owners if isinstance(x, Owned) else None


def moved(pointer: np.ndarray, offset: np.ndarray, size: int) -> np.ndarray:
    """A pointer moved by elements of `size` bytes. A pointer with a known owner cannot wrap around into its array."""
    steps = offset.astype(np.int64)
    if owners_of(pointer) is not None:
        steps = np.clip(steps, -(FARTHEST // size), FARTHEST // size)
    with np.errstate(over="ignore"):
        return np.asarray(np.asarray(pointer) + steps * size)


def follow(
    owners_at: Callable[[np.ndarray, int], np.ndarray],
    op: Op,
    args: Sequence[Any],
    results: tuple,
    move: Callable[[Op, list], tuple],
) -> tuple:
    """The results of an op at the tile level, with the owners of those that are addresses. `owners_at(addresses, bytes)` gives the arrays
    that hold elements of a size in bytes at addresses."""
    if len(results) != 1 or not may_hold_address(op.result.type):
        return results
    owners = _owners(op, args, move)
    if op.result.type.is_pointer and (owners is None or (owners == MIXED).any()):
        held = owners_at(results[0], op.result.type.dtype.element.bytes)
        owners = held if owners is None else np.where(owners == MIXED, held, owners)
    return results if owners is None else (Owned.of(results[0], owners),)


def may_hold_address(kind: Any) -> bool:
    return isinstance(kind, Tile) and (kind.is_pointer or (kind.dtype.is_integer and kind.dtype.bits == 64))


def _owners(op: Op, args: Sequence[Any], move: Callable[[Op, list], tuple]) -> np.ndarray | None:
    """The owners of the result. None if no operand is an address, or if the op does not preserve owners."""
    known = [owners for x in args if (owners := owners_of(x)) is not None]
    if not known:
        return None
    match op.name:
        case "select":
            a, b = owners_of(args[1]), owners_of(args[2])
            return known[0] if a is None or b is None else np.where(np.asarray(args[0]), a, b)
        case "ptradd" | "promise" | "splat":
            return owners_of(args[0])
        case name if name in MOVES:
            first = owners_of(args[0])
            return first if first is None or first.ndim == 0 else move(op, [first, *args[1:]])[0]
    if OPS[op.name].kind not in ("elementwise", "reduce"):
        return None
    return known[0] if len(known) == 1 and OPS[op.name].kind == "elementwise" else np.asarray(MIXED)
