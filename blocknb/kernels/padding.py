"""Copies of matrices whose rows begin at multiples of 128 bytes, so that TMA can read them, and reads whole lines.

TMA needs rows that are multiples of 16 bytes apart. If a tile's row does not begin at a line of 128 bytes, it touches two lines, and the L2
cache serves twice as many. `blocknb.kernels.shapes` weighs the time of the copy against that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.shapes import LINE
from blocknb.kernels.strides import dtype_name, empty

ROWS, COLUMNS = 16, 256  # of a matrix, per program


@blocknb.kernel
def copy_tile(x, out, program, rows, columns, x_row, out_row, ROWS: bl.constexpr, COLUMNS: bl.constexpr):
    """Copies one tile of a matrix of contiguous rows; tiles are counted along the rows."""
    across = bl.cdiv(columns, COLUMNS)
    at = program // across * ROWS + bl.arange(0, ROWS)
    column = program % across * COLUMNS + bl.arange(0, COLUMNS)
    inside = (at[:, None] < rows) & (column[None, :] < columns)
    values = bl.load(x + at[:, None].to(bl.int64) * x_row + column[None, :], mask=inside, other=0)
    bl.store(out + at[:, None].to(bl.int64) * out_row + column[None, :], values, mask=inside)


@blocknb.kernel
def pad_rows_kernel(
    x, x_out, x_rows, x_columns, x_row, x_out_row, x_programs, y, y_out, y_rows, y_columns, y_row, y_out_row,
    ROWS: bl.constexpr, COLUMNS: bl.constexpr,
):  # fmt: skip
    """Copies one matrix, or two of them (y is None for one). The first `x_programs` programs copy x."""
    program = bl.program_id(0)
    if y is None:
        copy_tile(x, x_out, program, x_rows, x_columns, x_row, x_out_row, ROWS, COLUMNS)
    elif program < x_programs:
        copy_tile(x, x_out, program, x_rows, x_columns, x_row, x_out_row, ROWS, COLUMNS)
    else:
        copy_tile(y, y_out, program - x_programs, y_rows, y_columns, y_row, y_out_row, ROWS, COLUMNS)


def padded(p: MatmulProblem, a: bool, b: bool) -> MatmulProblem:
    """The same product with `a` and `b` (those that are True) copied to rows that begin at multiples of 128 bytes.

    A stored row is a column of an operand that is stored column by column. One of an operand's strides must be 1.
    """
    found: dict[str, Any] = {}
    sources = []
    for name, array, rows, columns, steps in (("a", p.a, p.m, p.k, p.a_strides), ("b", p.b, p.k, p.n, p.b_strides)):
        if not {"a": a, "b": b}[name]:
            continue
        by_columns = steps[2] != 1
        stored = (columns, rows) if by_columns else (rows, columns)
        pitch = blocknb.cdiv(stored[1] * p.itemsize, LINE) * LINE // p.itemsize
        copy = empty(array, (stored[0], pitch), dtype_name(array))
        sources.append((array, copy, *stored, steps[1] + steps[2] - 1, pitch))
        found |= {name: copy, f"{name}_strides": (0, 1, pitch) if by_columns else (0, pitch, 1)}
    if not sources:
        return p
    programs = [blocknb.cdiv(s[2], ROWS) * blocknb.cdiv(s[3], COLUMNS) for s in sources]
    second = sources[1] if len(sources) > 1 else (None,) * 6
    pad_rows_kernel[sum(programs),](*sources[0], programs[0], *second, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
    return replace(p, **found)
