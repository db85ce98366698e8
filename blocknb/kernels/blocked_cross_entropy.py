"""The cross entropy of a linear layer fused with its loss, one block of classes at a time. All logits never exist at once.

For each row, the forward pass keeps the largest logit and the sum of powers over the blocks (online softmax: Milakov, Gimelshein 2018). It
also keeps the logit of the row's class. The backward pass replaces a block of logits by its gradient, `dlosses (softmax - onehot)`, in fp32
arithmetic with one rounding at the end.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import strides

LEAST = bl.constexpr(-3.4028234663852886e38)  # lowest finite fp32: avoids inf - inf where all logits are -inf


@blocknb.kernel
def block_of_classes_kernel(
    logits, classes, largest, total, chosen, row_step, begin, n, FIRST: bl.constexpr, BLOCK: bl.constexpr
):
    """Adds n classes from `begin` on to the statistics of one row."""
    WIDE: bl.constexpr = bl.float64 if logits.dtype.element_ty == bl.float64 else bl.float32
    row = bl.program_id(0).to(bl.int64)
    columns = bl.arange(0, BLOCK)
    top = bl.full((BLOCK,), LEAST, WIDE)
    powers = bl.zeros((BLOCK,), WIDE)
    for done in range(0, n, BLOCK):
        inside = done + columns < n
        values = bl.load(logits + row * row_step + done + columns, mask=inside, other=-float("inf")).to(WIDE)
        larger = bl.maximum(top, values)
        powers = powers * bl.exp(top - larger) + bl.exp(values - larger)
        top = larger
    most = bl.max(top, axis=0)
    if not FIRST:
        most = bl.maximum(most, bl.load(largest + row))
    added = bl.sum(powers * bl.exp(top - most), axis=0)
    if not FIRST:
        added += bl.load(total + row) * bl.exp(bl.load(largest + row) - most)
    bl.store(largest + row, most)
    bl.store(total + row, added)
    wanted = bl.load(classes + row) - begin
    if (wanted >= 0) & (wanted < n):
        bl.store(chosen + row, bl.load(logits + row * row_step + wanted).to(WIDE))


@blocknb.kernel
def block_of_gradients_kernel(
    logits, classes, dlosses, logsumexp, row_step, begin, n, blocks, ignored, BLOCK: bl.constexpr
):
    """Replaces BLOCK logits of one row by their gradient, `blocks` programs per row."""
    WIDE: bl.constexpr = bl.float64 if logits.dtype.element_ty == bl.float64 else bl.float32
    row = (bl.program_id(0) // blocks).to(bl.int64)
    columns = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    values = bl.load(logits + row * row_step + columns, mask=columns < n, other=0.0).to(WIDE)
    wanted = bl.load(classes + row)
    given = bl.load(dlosses + row).to(WIDE)
    powers = bl.exp(values - bl.load(logsumexp + row))
    gradient = given * bl.where(columns == wanted - begin, powers - 1.0, powers)
    gradient = bl.where(wanted != ignored, gradient, 0.0)
    bl.store(logits + row * row_step + columns, gradient, mask=columns < n)


def block_of_classes(logits: Any, classes: Any, largest: Any, total: Any, chosen: Any, begin: int) -> None:
    """Updates the statistics of the rows by the logits (M, n) of the classes from `begin` on. The statistics are the largest logit, the sum
    of powers relative to it, and the logit of the class. Each is a vector of M in fp32 (fp64 for fp64 logits). `begin` 0 starts them;
    `chosen` must be initialized."""
    m, n = logits.shape
    block_of_classes_kernel[(m,)](
        logits, classes, largest, total, chosen, strides(logits)[0], begin, n, FIRST=begin == 0, BLOCK=1024, num_warps=4
    )


def block_of_gradients(logits: Any, classes: Any, dlosses: Any, logsumexp: Any, begin: int, ignored: int) -> None:
    """Replaces the logits (M, n) of the classes from `begin` on by their gradients, from those of the losses (M)."""
    m, n = logits.shape
    blocks = blocknb.cdiv(n, 1024)
    block_of_gradients_kernel[(m * blocks,)](
        logits, classes, dlosses, logsumexp, strides(logits)[0], begin, n, blocks, ignored, BLOCK=1024, num_warps=4
    )


# ---- logits with one column per row of the input: (classes, rows) ---------------------------------------------------------


@blocknb.kernel
def column_statistics_kernel(logits, parts, classes_step, n, rows, share, BLOCK: bl.constexpr, ROWS: bl.constexpr):
    """The logsumexp of `share` classes for ROWS columns; parts is (programs along the classes, rows)."""
    WIDE: bl.constexpr = bl.float64 if logits.dtype.element_ty == bl.float64 else bl.float32
    first = bl.program_id(1) * share
    column = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    base = logits + first.to(bl.int64) * classes_step
    top = bl.full((BLOCK, ROWS), LEAST, WIDE)
    powers = bl.zeros((BLOCK, ROWS), WIDE)
    for done in range(0, share, BLOCK):
        at = done + bl.arange(0, BLOCK)
        inside = (first + at < n)[:, None] & (column < rows)[None, :]
        values = bl.load(base + at[:, None] * classes_step + column[None, :], mask=inside, other=-float("inf"))
        larger = bl.maximum(top, values.to(WIDE))
        powers = powers * bl.exp(top - larger) + bl.exp(values.to(WIDE) - larger)
        top = larger
    most = bl.max(top, axis=0)
    added = bl.sum(powers * bl.exp(top - most[None, :]), axis=0)
    bl.store(parts + bl.program_id(1).to(bl.int64) * rows + column, most + bl.log(added), mask=column < rows)


@blocknb.kernel
def column_gradients_kernel(
    logits, classes, dlosses, logsumexp, classes_step, begin, n, rows, ignored, BLOCK: bl.constexpr, ROWS: bl.constexpr
):
    """Replaces BLOCK logits of ROWS columns by their gradients."""
    WIDE: bl.constexpr = bl.float64 if logits.dtype.element_ty == bl.float64 else bl.float32
    first = bl.program_id(1) * BLOCK
    column = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    at = bl.arange(0, BLOCK)
    inside = (first + at < n)[:, None] & (column < rows)[None, :]
    place = logits + first.to(bl.int64) * classes_step + at[:, None] * classes_step + column[None, :]
    values = bl.load(place, mask=inside, other=0.0).to(WIDE)
    wanted = bl.load(classes + column, mask=column < rows, other=0)
    given = bl.load(dlosses + column, mask=column < rows, other=0.0).to(WIDE)
    sums = bl.load(logsumexp + column, mask=column < rows, other=0.0)
    powers = bl.exp(values - sums[None, :])
    chosen = (begin + first + at)[:, None] == wanted[None, :]
    gradient = given[None, :] * bl.where(chosen, powers - 1.0, powers)
    gradient = bl.where((wanted != ignored)[None, :], gradient, 0.0)
    bl.store(place, gradient, mask=inside)


COLUMNS = 128  # per program
PROGRAMS = 1024  # of the statistics, about: they fill a large GPU twice


def statistics_shares(classes: int, rows: int) -> tuple[int, int]:
    """How many programs share the classes of a column, and how many classes each has."""
    programs = max(1, min(PROGRAMS // blocknb.cdiv(rows, COLUMNS), blocknb.cdiv(classes, 256)))
    share = blocknb.cdiv(blocknb.cdiv(classes, programs), 16) * 16
    return blocknb.cdiv(classes, share), share


def columns_statistics(logits: Any, parts: Any) -> None:
    """The logsumexp of parts of the classes of logits (V, M): parts is (statistics_shares(V, M)[0], M), in fp32 or fp64."""
    n, rows = logits.shape
    programs, share = statistics_shares(n, rows)
    grid = blocknb.cdiv(rows, COLUMNS), programs
    column_statistics_kernel[grid](
        logits, parts, strides(logits)[0], n, rows, share, BLOCK=16, ROWS=COLUMNS, num_warps=4
    )


def columns_gradients(logits: Any, classes: Any, dlosses: Any, logsumexp: Any, begin: int, ignored: int) -> None:
    """Replaces logits (n, M) of the classes from `begin` on by their gradients, from those of the losses (M)."""
    n, rows = logits.shape
    grid = blocknb.cdiv(rows, COLUMNS), blocknb.cdiv(n, 32)
    column_gradients_kernel[grid](
        logits, classes, dlosses, logsumexp, strides(logits)[0], begin, n, rows, ignored, BLOCK=32, ROWS=COLUMNS, num_warps=4
    )  # fmt: skip
