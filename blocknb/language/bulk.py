"""Types and type rules of Hopper's copy engine (TMA) and of warp-specialized programs. `language.rows.tma` declares the ops.

A *tensor map* describes an array to the copy engine. One instruction copies a *box* of it. An *mbarrier* counts arrivals and bytes. Its
phase completes when all expected arrivals and bytes have come, and the next phase begins. The parity of the first phase is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blocknb.language import rules
from blocknb.language import types as t
from blocknb.language.rules import need
from blocknb.language.types import Tile

SWIZZLES = (0, 32, 64, 128)  # bytes per row of a swizzle pattern; 0: no swizzle
MOST_RANK = 5
MOST_EXTENT = 256  # largest extent of a box along an axis
UNBOUNDED = 2**31  # the extent of an axis without bounds


@dataclass(frozen=True)
class TensorMap:
    """The type of a tensor map. `box` is the shape that one instruction copies, from outer to inner axis. `swizzle` is in SWIZZLES."""

    dtype: Any
    box: tuple[int, ...]
    swizzle: int = 128

    is_pointer = is_scalar = False
    shape, layout = (), None

    def __str__(self) -> str:
        return f"map<{''.join(f'{n}x' for n in self.box)}{self.dtype.short}, {self.swizzle}>"


@dataclass(frozen=True)
class Barriers:
    """The type of an array of mbarriers in shared memory."""

    stages: int

    is_pointer = is_scalar = False
    shape, layout = (), None
    EACH = 8  # bytes

    @property
    def bytes(self) -> int:
        return self.EACH * self.stages

    def __str__(self) -> str:
        return f"mbarriers<{self.stages}>"


# -- type rules


def whole(type: Any, what: str) -> None:
    need(type == Tile(t.int32), f"{what} is an int32, not {type}")


def barriers_of(types: tuple) -> None:
    need(isinstance(types[0], Barriers), f"{types[0]} is not an array of mbarriers")
    whole(types[1], "the number of an mbarrier")


def tensor_map(types: tuple, attrs: dict) -> tuple:
    kind = attrs["type"]
    rank = len(kind.box)
    need(1 <= rank <= MOST_RANK, f"a tensor map has 1 to {MOST_RANK} axes, not {rank}")
    need(
        all(1 <= n <= MOST_EXTENT for n in kind.box), f"a box has 1 to {MOST_EXTENT} elements along an axis: {kind.box}"
    )
    need(kind.swizzle in SWIZZLES, f"there is no swizzle of {kind.swizzle} bytes")
    need(types[0].is_pointer and types[0].shape == (), f"a tensor map needs a pointer, not {types[0]}")
    need(types[0].dtype.element == kind.dtype, f"a map of {kind.dtype} over {types[0]}")
    need(
        len(types) == 2 * rank,
        f"a tensor map needs {rank} extents and {rank - 1} strides, not {len(types) - 1} numbers",
    )
    need(all(x.is_scalar and x.dtype in (t.int32, t.int64) for x in types[1:]), f"extents and strides are {types[1:]}")
    return (kind,)


def mbarriers(types: tuple, attrs: dict) -> tuple:
    need(
        attrs["stages"] >= 1 and attrs["arrivals"] >= 1, f"{attrs['stages']} mbarriers of {attrs['arrivals']} arrivals"
    )
    return (Barriers(attrs["stages"]),)


def expect(types: tuple, attrs: dict) -> tuple:
    barriers_of(types)
    need(attrs["bytes"] > 0, f"expects {attrs['bytes']} bytes")
    return ()


def await_(types: tuple, attrs: dict) -> tuple:
    barriers_of(types)
    whole(types[2], "a parity")
    return ()


def arrive(types: tuple, attrs: dict) -> tuple:
    barriers_of(types)
    need(len(types) == 2 or types[2] == Tile(t.int1), f"whether to arrive is {types[2:]}")
    return ()


def moved(buffer: Any, kind: Any, coordinates: tuple, axes: tuple[int, ...]) -> None:
    """Checks the operands of a copy between a buffer and a box."""
    rules.one_buffer(buffer)
    need(isinstance(kind, TensorMap), f"{kind} is not a tensor map")
    need(buffer.dtype == kind.dtype, f"moves {kind.dtype} between {buffer} and {kind}")
    need(len(coordinates) == len(kind.box), f"a box needs {len(kind.box)} coordinates, not {len(coordinates)}")
    for type in coordinates:
        whole(type, "a coordinate")
    need(len(axes) == len(buffer.shape) == len(set(axes)), f"axes {axes} of a buffer of shape {buffer.shape}")
    for axis, extent in enumerate(kind.box):
        inside = [n for n, to in zip(buffer.shape, axes, strict=True) if to == axis]
        need(extent == 1 if not inside else not inside[0] % extent, f"boxes of {kind} do not fill {buffer}")


def copy_bulk(types: tuple, attrs: dict) -> tuple:
    barriers_of(types[2:])
    moved(types[0], types[1], types[4:], attrs["axes"])
    return ()


def store_bulk(types: tuple, attrs: dict) -> tuple:
    moved(types[1], types[0], types[2:], attrs["axes"])
    return ()


def roles(types: tuple, attrs: dict) -> tuple:
    warps, registers, groups = attrs["warps"], attrs.get("registers"), attrs.get("consumer_groups", 1)
    need(len(warps) == 2 and min(warps) >= 1, f"roles of {warps} warps")
    need(groups >= 1 and warps[0] % groups == 0, f"{groups} consumer groups of {warps[0]} warps")
    need(registers is None or len(registers) == 2, f"registers of roles are {registers}")
    return ()
