"""What kernels over the rows of a matrix share: how many rows a program takes, and the checks of their wrappers."""

from __future__ import annotations

from typing import Any

import blocknb
from blocknb.kernels.strides import on_host, strides

LONGEST = 1 << 16  # of a row that one program keeps in registers
TILE = 1 << 10  # elements of short rows that a program takes together
HOST_TILE = 1 << 8  # on a CPU, where a program is one thread


def matrix(array: Any, name: str, like: Any = None) -> tuple[int, int]:
    """The shape (M, N) of a matrix with contiguous rows. Raises ValueError for anything else, or another shape than `like`'s."""
    shape = tuple(array.shape)
    if len(shape) != 2 or (like is not None and shape != tuple(like.shape)):
        wanted = "a matrix" if like is None else f"of shape {tuple(like.shape)}"
        raise ValueError(f"{name} must be {wanted}, not of shape {shape}")
    if shape[1] > 1 and strides(array)[1] != 1:
        raise ValueError(f"the rows of {name} must be contiguous; its strides are {strides(array)}")
    if shape[1] > LONGEST:
        raise ValueError(f"{name} has rows of {shape[1]} elements, and {LONGEST} is the most that a program keeps")
    return shape[0], shape[1]


def vector(array: Any, name: str, length: int) -> None:
    """Raises ValueError unless `array` is None or a contiguous vector of that length."""
    if array is not None and (tuple(array.shape) != (length,) or (length > 1 and strides(array) != (1,))):
        raise ValueError(f"{name} must be a contiguous vector of {length} elements, not of shape {tuple(array.shape)}")


def tile(x: Any, num_warps: int | None = None) -> dict[str, int]:
    """ROWS, BLOCK and num_warps for the rows of a matrix: short ones share a program."""
    rows, columns = x.shape
    block = blocknb.next_power_of_2(columns)
    most = HOST_TILE if on_host(x) else TILE
    together = min(blocknb.next_power_of_2(rows), max(1, most // block))
    return {"ROWS": together, "BLOCK": block, "num_warps": num_warps or min(max(together * block // 512, 1), 16)}
