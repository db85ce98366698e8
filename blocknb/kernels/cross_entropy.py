"""The cross entropy of logits and classes per row, and its gradient: losses[i] = log(sum_j exp(x[i, j])) - x[i, class_i].

The gradient is dlosses[i] (softmax(x[i]) - onehot(class_i)), computed from the logsumexp that the forward pass stored.

A program keeps several short rows in registers. It reads a long row, such as one over a vocabulary, once and block by block. Each thread
keeps its largest element and its sum of powers (online softmax: Milakov, Gimelshein 2018), and the threads combine after the last block.
The gradient needs only the stored sum, so each block is a program of its own. Rows of, say, 50257 logits do not begin at multiples of 16
bytes. There, blocks begin at the first aligned address, and separate loads read the two ends of the row.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import matrix, tile, vector
from blocknb.kernels.strides import on_host, strides

IGNORED = -100
LEAST = bl.constexpr(-3.4028234663852886e38)  # lowest finite fp32
KEPT = 4096
MOST = 1 << 30  # elements per row, so that 32-bit indices suffice
LONG = 2048  # elements of a long row that a program processes per iteration


@blocknb.kernel
def cross_entropy_kernel(x, classes, losses, logsumexp, x_row, m, n, ignored, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    start = rows.to(bl.int64) * x_row
    logits = bl.load(x + start[:, None] + columns[None, :], mask=inside, other=-float("inf")).to(WIDE)
    largest = bl.max(logits, axis=1)
    logsum = bl.log(bl.sum(bl.exp(logits - largest[:, None]), axis=1)) + largest
    wanted = bl.load(classes + rows, mask=rows < m, other=0)
    counted = wanted != ignored
    logit = bl.load(x + start + wanted, mask=(rows < m) & counted, other=0.0).to(WIDE)
    bl.store(losses + rows, bl.where(counted, logsum - logit, 0.0), mask=rows < m)
    bl.store(logsumexp + rows, logsum, mask=rows < m)


@blocknb.kernel
def cross_entropy_backward_kernel(
    x, classes, dlosses, logsumexp, dx, x_row, dx_row, m, n, ignored, ROWS: bl.constexpr, BLOCK: bl.constexpr
):
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    at = rows[:, None].to(bl.int64)
    logits = bl.load(x + at * x_row + columns[None, :], mask=inside, other=-float("inf")).to(WIDE)
    logsum = bl.load(logsumexp + rows, mask=rows < m, other=0.0)
    wanted = bl.load(classes + rows, mask=rows < m, other=0)
    given = bl.load(dlosses + rows, mask=rows < m, other=0.0).to(WIDE)
    chosen = bl.where(columns[None, :] == wanted[:, None], 1.0, 0.0)
    gradient = given[:, None] * (bl.exp(logits - logsum[:, None]) - chosen)
    gradient = bl.where((wanted != ignored)[:, None], gradient, 0.0)
    bl.store(dx + at * dx_row + columns[None, :], gradient, mask=inside)


@blocknb.kernel
def long_cross_entropy_kernel(
    x, classes, losses, logsumexp, x_row, n, ignored, LINES: bl.constexpr, WIDTH: bl.constexpr, EDGES: bl.constexpr
):  # fmt: skip
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    row = bl.program_id(0).to(bl.int64)
    wanted = bl.load(classes + row)
    counted = wanted != ignored
    begin = row * x_row
    first, last = begin, begin + n
    if EDGES:
        first, last = bl.cdiv(begin, WIDTH) * WIDTH, (begin + n) // WIDTH * WIDTH
        edge = ends(first, last, WIDTH)
        rest = bl.load(x + edge, mask=(edge >= begin) & (edge < begin + n), other=-float("inf")).to(WIDE)
    logit = bl.load(x + begin + wanted, mask=counted, other=0.0).to(WIDE)
    line, wide = x + first, (last - first).to(bl.int32)
    at = bl.arange(0, LINES)[:, None] * WIDTH + bl.arange(0, WIDTH)[None, :]
    largest = bl.full((LINES,), LEAST, WIDE)  # finite: avoids inf - inf where all elements are masked
    total = bl.zeros((LINES,), WIDE)
    for done in range(0, wide, LINES * WIDTH):
        logits = bl.load(line + done + at, mask=done + at < wide, other=-float("inf")).to(WIDE)
        larger = bl.maximum(largest, bl.max(logits, axis=1))
        total = total * bl.exp(largest - larger) + bl.sum(bl.exp(logits - larger[:, None]), axis=1)
        largest = larger
    most = bl.max(largest, axis=0)
    if EDGES:
        most = bl.maximum(most, bl.max(rest, axis=0))
    powers = bl.sum(total * bl.exp(largest - most), axis=0)
    if EDGES:
        powers += bl.sum(bl.exp(rest - most), axis=0)
    logsum = bl.log(powers) + most
    bl.store(losses + row, bl.where(counted, logsum - logit, 0.0))
    bl.store(logsumexp + row, logsum)


@blocknb.kernel
def long_cross_entropy_backward_kernel(
    x, classes, dlosses, logsumexp, dx, x_row, dx_row, n, blocks, ignored,
    BLOCK: bl.constexpr, WIDTH: bl.constexpr, EDGES: bl.constexpr, ALIKE: bl.constexpr,
):  # fmt: skip
    """Computes one block of a row per program, `blocks` per row; the first program of a row also does its ends. ALIKE: dx has the strides
    of x."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    row, block = (bl.program_id(0) // blocks).to(bl.int64), bl.program_id(0) % blocks
    wanted = bl.load(classes + row)
    given = bl.load(dlosses + row).to(WIDE)
    logsum = bl.load(logsumexp + row)
    begin = row * x_row
    to = begin if ALIKE else row * dx_row
    first, last = begin, begin + n
    if EDGES:
        first, last = bl.cdiv(begin, WIDTH) * WIDTH, (begin + n) // WIDTH * WIDTH
    shift, wide, chosen = to - begin, (last - first).to(bl.int32), (wanted - (first - begin)).to(bl.int32)
    at = block * BLOCK + bl.arange(0, BLOCK)
    logits = bl.load(x + first + at, mask=at < wide, other=0.0).to(WIDE)
    powers = bl.exp(logits - logsum)
    gradient = given * bl.where(at == chosen, powers - 1.0, powers)
    target = first if ALIKE else first + shift
    bl.store(dx + target + at, bl.where(wanted != ignored, gradient, 0.0), mask=at < wide)
    if EDGES:
        if block == 0:
            edge = ends(first, last, WIDTH)
            inside = (edge >= begin) & (edge < begin + n)
            rest = bl.load(x + edge, mask=inside, other=0.0).to(WIDE)
            power = bl.exp(rest - logsum)
            power = given * bl.where(edge == begin + wanted, power - 1.0, power)
            bl.store(dx + shift + edge, bl.where(wanted != ignored, power, 0.0), mask=inside)


@blocknb.kernel
def ends(first, last, WIDTH: bl.constexpr):
    """WIDTH indices before `first` and WIDTH from `last` on; those from `first` on if the aligned part is empty."""
    edge = bl.arange(0, 2 * WIDTH)
    return bl.where(edge < WIDTH, first, bl.maximum(first, last)) - WIDTH + edge


def cross_entropy(
    x: Any, classes: Any, losses: Any, logsumexp: Any, *, ignored: int = IGNORED, num_warps: int | None = None
) -> Any:
    """Computes the losses of logits x (M, N) for integer classes (M); returns `losses`, fp32 (M).

    `logsumexp`, fp32 (M), is written for the backward pass. A row whose class is `ignored` has no loss. Classes must be below N; this is
    not checked. Raises ValueError for other shapes, and for rows that are not contiguous or longer than 2^30.
    """
    m, n = matrix(x, "x", longest=MOST)
    for array, name in ((classes, "classes"), (losses, "losses"), (logsumexp, "logsumexp")):
        vector(array, name, m)
    if n > KEPT:
        width, edges = _vectors(x)
        long_cross_entropy_kernel[(m,)](
            x, classes, losses, logsumexp, strides(x)[0], n, ignored,
            LINES=LONG // width, WIDTH=width, EDGES=edges, num_warps=num_warps or 4,
        )  # fmt: skip
        return losses
    shape = tile(x, num_warps)
    cross_entropy_kernel[(blocknb.cdiv(m, shape["ROWS"]),)](
        x, classes, losses, logsumexp, strides(x)[0], m, n, ignored, **shape
    )
    return losses


def cross_entropy_backward(
    x: Any, classes: Any, dlosses: Any, logsumexp: Any, dx: Any, *, ignored: int = IGNORED, num_warps: int | None = None
) -> Any:
    """Writes dx (M, N), which may be `x` itself, from the gradient dlosses (M); returns `dx`. Raises ValueError as `cross_entropy` does."""
    m, n = matrix(x, "x", longest=MOST)
    matrix(dx, "dx", like=x, longest=MOST)
    for array, name in ((classes, "classes"), (dlosses, "dlosses"), (logsumexp, "logsumexp")):
        vector(array, name, m)
    x_row, dx_row = strides(x)[0], strides(dx)[0]
    if n > KEPT:
        width, edges = _vectors(x)
        blocks = blocknb.cdiv(n, LONG)
        long_cross_entropy_backward_kernel[(m * blocks,)](
            x, classes, dlosses, logsumexp, dx, x_row, dx_row, n, blocks, ignored,
            BLOCK=LONG, WIDTH=width, EDGES=edges, ALIKE=x_row == dx_row, num_warps=num_warps or 4,
        )  # fmt: skip
        return dx
    shape = tile(x, num_warps)
    cross_entropy_backward_kernel[(blocknb.cdiv(m, shape["ROWS"]),)](
        x, classes, dlosses, logsumexp, dx, x_row, dx_row, m, n, ignored, **shape
    )
    return dx


def _vectors(x: Any) -> tuple[int, bool]:
    """The number of contiguous elements per thread, which is the widest vector, and whether rows have unaligned ends.

    Rows have no such ends if stride and length are multiples of 16, because the compiler specializes on that. On a CPU, vectors need no
    alignment, and a thread has the whole block.
    """
    if on_host(x):
        return LONG, False
    return max(1, 16 // x.dtype.itemsize), bool(strides(x)[0] % 16 or x.shape[1] % 16)
