"""Chooses the rows and warps per program for kernels over the rows of a matrix, and checks the arguments of their wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import blocknb
from blocknb.kernels.strides import need_arrays, on_host, strides

LONGEST = 1 << 16  # elements of a row that one program keeps in registers
HOST_TILE = 1 << 8  # elements of short rows that a program processes together on a CPU, where it is one thread
MOST_WARPS = 16  # per program; with more, too few programs fit on an SM

#: A rule gives the rows and warps per program on a GPU. Its arguments are BLOCK, the element size (2 to 4 bytes), and whether rows are
#: aligned to 16 bytes. Each rule was fitted to times on an H200 over all ROWS and num_warps (`bench --search`). The dtypes were fp32 and
#: fp16, and the rows had 256 to 32768 elements. Its choice is the fastest there, or within the noise.
Rule = Callable[[int, int, bool], tuple[int, int]]


def matrix(array: Any, name: str, like: Any = None, longest: int = LONGEST) -> tuple[int, int]:
    """The shape (M, N) of a matrix with contiguous rows. Raises ValueError for anything else, or another shape than `like`'s."""
    need_arrays(**{name: array})
    shape = tuple(array.shape)
    if len(shape) != 2 or (like is not None and shape != tuple(like.shape)):
        wanted = "a matrix" if like is None else f"of shape {tuple(like.shape)}"
        raise ValueError(f"{name} must be {wanted}, not of shape {shape}")
    if shape[0] and shape[1] > 1 and strides(array)[1] != 1:
        raise ValueError(f"the rows of {name} must be contiguous; its strides are {strides(array)}")
    if shape[1] > longest:
        raise ValueError(f"{name} has rows of {shape[1]} elements; the limit is {longest}")
    return shape[0], shape[1]


def vector(array: Any, name: str, length: int) -> None:
    """Raises ValueError unless `array` is None or a contiguous vector of that length."""
    if array is None:
        return
    need_arrays(**{name: array})
    if tuple(array.shape) != (length,) or (length > 1 and strides(array) != (1,)):
        raise ValueError(f"{name} must be a contiguous vector of {length} elements, not of shape {tuple(array.shape)}")


def tile(x: Any, num_warps: int | None = None, rule: Rule | None = None) -> dict[str, int]:
    """ROWS, BLOCK and num_warps for the rows of a matrix. The kernel's rule decides how many short rows share a program."""
    rows, columns = x.shape
    size = int(x.dtype.itemsize)
    block = blocknb.next_power_of_2(columns)
    rows_per_program, warps = (rule or by_size)(block, min(max(size, 2), 4), strides(x)[0] * size % 16 == 0)
    most = HOST_TILE // block if on_host(x) else rows_per_program
    shared = min(blocknb.next_power_of_2(rows), max(1, most))
    return {"ROWS": shared, "BLOCK": block, "num_warps": num_warps or min(max(warps, 1), MOST_WARPS)}


def by_size(block: int, size: int, aligned: bool) -> tuple[int, int]:
    """The default rule, without measurements: 1024 elements per program, 512 per warp."""
    return 1024 // block, max(block, 1024) // 512


def independent_rows(block: int, size: int, aligned: bool) -> tuple[int, int]:
    """The rule for independent rows. A warp has several whole short rows, or up to 2048 elements of a long one.

    Rows that are not aligned are loaded element by element, where more threads help.
    """
    rows_per_program = max(1, (2048 if aligned else 1024) // block)
    return rows_per_program, max(4, rows_per_program, block // 2048)


def rows_with_weights(block: int, size: int, aligned: bool) -> tuple[int, int]:
    """The rule for rows with weights. A program loads the weights once for all of its rows.

    So several rows share a program, and its warps share the columns. A warp processes 1 KiB of a row.
    """
    rows_per_program = 4096 // block if block <= 512 * size else 1
    return rows_per_program, max(min(max(block * size // 1024, 8 // size), 4 * size), block // 2048)
