"""Rows of a table by their numbers, and the gradient of the table: sums of the gradient's rows with the same number.

The backward pass takes the numbers sorted, so equal numbers are a run, and every sum has a fixed order. Programs add up blocks of ROWS
sorted rows. A run that lies within a block is stored at once. The first and last runs of a block may go on in its neighbours; their sums
go to scratch memory, and the second kernel adds those of one run. So a number that occurs often does not keep one program busy alone
(segmented reduction: Blelloch 1990).
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import MOST_WARPS
from blocknb.kernels.strides import contiguous, dtype_name, empty, strides, wide

ROWS = 16  # sorted rows per program
BLOCK = 1024  # columns per program, at most
RANKED, COMPARED = 32, 256  # numbers per program of a sort, and numbers that it compares them with at a time
MOST_RANKED = 1 << 14  # numbers for which comparing each with all is faster than a radix sort of several kernels


@blocknb.kernel
def embedding_kernel(table, ids, out, table_row, out_row, count, n, blocks, BLOCK: bl.constexpr):
    """Copies one block of a row per program, `blocks` per row. A number outside of the table gives NaN."""
    row = (bl.program_id(0) // blocks).to(bl.int64)
    columns = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    chosen = bl.load(ids + row).to(bl.int64)
    inside = (columns < n) & (chosen >= 0) & (chosen < count)
    values = bl.load(table + chosen * table_row + columns, mask=inside, other=float("nan"))
    bl.store(out + row * out_row + columns, values, mask=columns < n)


@blocknb.kernel
def ranks_kernel(
    ids, ordered, order, m, count, WIDE: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr
):  # fmt: skip
    """Sorts the numbers: the place of one is the number of smaller ones, where the position decides between equal ones."""
    own = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    given = bl.load(ids + own, mask=own < m, other=0)
    mine = bl.clamp(given.to(bl.int64), -1, count).to(WIDE) * m + own
    places = bl.zeros((ROWS, COLUMNS), bl.int32)
    for start in range(0, m, COLUMNS):
        at = start + bl.arange(0, COLUMNS)
        others = bl.clamp(bl.load(ids + at, mask=at < m, other=0).to(bl.int64), -1, count).to(WIDE) * m + at
        smaller = others[None, :] < mine[:, None]
        places += (smaller & (at < m)[None, :]).to(bl.int32)
    place = bl.sum(places, axis=1)
    bl.store(ordered + place, given, mask=own < m)
    bl.store(order + place, own.to(bl.int64), mask=own < m)


@blocknb.kernel
def runs_kernel(
    dout, ids, order, dtable, heads, tails, dout_row, m, n, count, ignored, ROWS: bl.constexpr, BLOCK: bl.constexpr
):
    """Adds up the runs of ROWS sorted rows, in BLOCK columns. `heads` receives the sum of a run that began in an earlier block, `tails`
    that of one that begins here and goes on."""
    WIDE: bl.constexpr = heads.dtype.element_ty
    block = bl.program_id(0).to(bl.int64)
    first, columns = block * ROWS, bl.program_id(1) * BLOCK + bl.arange(0, BLOCK)
    last = bl.minimum(first + ROWS, m)
    inside = columns < n
    total = bl.zeros((BLOCK,), WIDE)
    before = bl.load(ids + first - 1, mask=first > 0, other=-1).to(bl.int64)
    for at in range(first, last):
        chosen = bl.load(ids + at).to(bl.int64)
        total += bl.load(dout + bl.load(order + at).to(bl.int64) * dout_row + columns, mask=inside, other=0.0).to(WIDE)
        after = bl.load(ids + at + 1, mask=at + 1 < m, other=-1).to(bl.int64)
        here = before != chosen  # whether the run began in this block
        ends = after != chosen
        counted = (chosen != ignored) & (chosen >= 0) & (chosen < count)
        bl.store(dtable + chosen * n + columns, total, mask=inside & ends & here & counted)
        bl.store(heads + block * n + columns, total, mask=inside & ((ends | (at + 1 == last)) & (here == 0)))
        bl.store(tails + block * n + columns, total, mask=inside & ((at + 1 == last) & (ends == 0) & here))
        total = bl.where(ends, 0.0, total)
        before = bl.where(ends, -1, before)


@blocknb.kernel
def joined_runs_kernel(ids, dtable, heads, tails, m, n, count, ignored, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    """Adds up the run that begins in a block and goes on in the next ones."""
    WIDE: bl.constexpr = heads.dtype.element_ty
    block = bl.program_id(0).to(bl.int64)
    columns = bl.program_id(1) * BLOCK + bl.arange(0, BLOCK)
    inside = columns < n
    end = block * ROWS + ROWS
    if end < m:
        chosen = bl.load(ids + end - 1).to(bl.int64)
        goes_on = bl.load(ids + end).to(bl.int64) == chosen
        begins = (bl.load(ids + end - ROWS).to(bl.int64) != chosen) | (end == ROWS)
        if end > ROWS:
            begins |= bl.load(ids + end - ROWS - 1).to(bl.int64) != chosen
        if goes_on & begins & (chosen != ignored) & (chosen >= 0) & (chosen < count):
            total = bl.load(tails + block * n + columns, mask=inside, other=0.0)
            while goes_on:
                block += 1
                total += bl.load(heads + block * n + columns, mask=inside, other=0.0)
                end += ROWS
                after = bl.load(ids + end, mask=end < m, other=-1).to(bl.int64)
                goes_on = (end < m) & (after == chosen)
            bl.store(dtable + chosen * n + columns, total.to(WIDE), mask=inside)


def _width(n: int, itemsize: int) -> dict[str, int]:
    """The columns per program and the warps for rows of n elements."""
    block = min(BLOCK, blocknb.next_power_of_2(max(n, 1)))
    return {"BLOCK": block, "num_warps": min(MOST_WARPS, max(1, block * min(itemsize, 4) // 512))}


def _check(ids: Any, name: str, length: int) -> None:
    if tuple(ids.shape) != (length,) or dtype_name(ids) not in ("int32", "int64") or not contiguous(ids):
        raise ValueError(
            f"{name} must be {length} contiguous int32 or int64, not {dtype_name(ids)} of shape {tuple(ids.shape)}"
        )


def embedding(table: Any, ids: Any, out: Any) -> Any:
    """out[i] = table[ids[i]] for a table (V, N) with contiguous rows, ids (M) and out (M, N); returns `out`.

    A number outside of the table gives a row of NaN. Raises ValueError for other shapes and dtypes.
    """
    m, n = out.shape
    _check(ids, "ids", m)
    if not m * n:
        return out
    if table.shape[1] != n or (n > 1 and (strides(table)[1] != 1 or strides(out)[1] != 1)):
        raise ValueError(
            f"table {tuple(table.shape)} and out {tuple(out.shape)} must have contiguous rows of one length"
        )
    shape = _width(n, out.dtype.itemsize)
    blocks = blocknb.cdiv(n, shape["BLOCK"])
    embedding_kernel[(m * blocks,)](
        table, ids, out, strides(table)[0], strides(out)[0], table.shape[0], n, blocks, **shape
    )
    return out


def sorted_numbers(ids: Any, ordered: Any, order: Any, count: int) -> tuple[Any, Any]:
    """Writes ids (M) in ascending order to `ordered`, and where they come from to `order` (int64); returns both.

    The sort is stable. Numbers outside of 0 to count - 1 come first or last, in any order. Each program compares with all numbers, so this
    is for small M. Raises ValueError for other shapes and dtypes.
    """
    m = ids.shape[0]
    for name, array in (("ids", ids), ("ordered", ordered), ("order", order)):
        _check(array, name, m)
    if dtype_name(ordered) != dtype_name(ids) or dtype_name(order) != "int64":
        raise ValueError(f"ordered must be {dtype_name(ids)}, as ids, and order int64")
    if m:
        WIDE = bl.int32 if (count + 2) * m < 2**31 else bl.int64
        ranks_kernel[(blocknb.cdiv(m, RANKED),)](
            ids, ordered, order, m, count, WIDE=WIDE, ROWS=RANKED, COLUMNS=COMPARED, num_warps=4
        )
    return ordered, order


def embedding_backward(dout: Any, ids: Any, order: Any, dtable: Any, *, ignored: int = -1) -> Any:
    """Adds the rows of dout (M, N) with equal numbers to zeros in dtable (V, N), in fp32 and with one rounding; returns `dtable`.

    `ids` (M) are the numbers in ascending order, and `order` (M) the rows of dout that they come from. The row `ignored` stays zero.
    The result is the same in every run. Raises ValueError for other shapes and dtypes.
    """
    m, n = dout.shape
    _check(ids, "ids", m)
    _check(order, "order", m)
    if tuple(dtable.shape[1:]) != (n,) or not contiguous(dtable) or (m and n > 1 and strides(dout)[1] != 1):
        raise ValueError(
            f"dtable {tuple(dtable.shape)} and dout {tuple(dout.shape)} must have contiguous rows of one length"
        )
    if not m * n:
        return dtable
    shape, count = _width(n, dout.dtype.itemsize), dtable.shape[0]
    blocks = blocknb.cdiv(m, ROWS)
    heads, tails = (empty(dout, (blocks, n), wide(dout)) for _ in range(2))
    grid = (blocks, blocknb.cdiv(n, shape["BLOCK"]))
    runs_kernel[grid](
        dout, ids, order, dtable, heads, tails, strides(dout)[0], m, n, count, ignored, ROWS=ROWS, **shape
    )
    if blocks > 1:
        joined_runs_kernel[grid](ids, dtable, heads, tails, m, n, count, ignored, ROWS=ROWS, **shape)
    return dtable
