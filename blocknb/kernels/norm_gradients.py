"""The gradients of layer norm and RMS norm, in fp32 arithmetic, from the mean and rstd that the forward pass stored.

Let `g = dy weight` and `z = (x - mean) rstd`. Then `dx = rstd (g - mean(g) - z mean(g z))`. dweight is the sum of `dy z` over rows, and
dbias is the sum of dy over rows. RMS norm leaves out `mean(g)`.

One kernel reads x and dy once. Its programs share the rows. Each keeps a row in registers, together with its partial sums of dweight and
dbias, and a second kernel adds the partial sums. A row that is too long for registers is read twice. One kernel computes the two means of
each row. The next one, whose programs have some columns of many rows, computes everything else. It starts with the last rows of the first
kernel, because the L2 cache may still hold them.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import matrix, tile, vector
from blocknb.kernels.strides import contiguous, empty, on_host, strides, wide

SMS = 132  # of the GPUs this was measured on; the number of programs that share the rows is a multiple of it
KEPT = 8192  # elements of a row of layer norm that a program keeps in registers with its two sums; RMS norm keeps twice as many
LONG = 1024  # columns of a longer row per program
HOST_PROGRAMS = 264  # number of programs on a CPU


@blocknb.kernel
def both(a, b, c, d):
    """Adds pairs, so that two reductions wait for the other warps only once."""
    return a + c, b + d


@blocknb.kernel
def norm_backward_kernel(
    x, weight, dy, mean, rstd, dx, dweights, dbiases, x_row, dy_row, dx_row, m, n,
    CENTRED: bl.constexpr, ROWS: bl.constexpr, BLOCK: bl.constexpr, dadded=None, OFFSET: bl.constexpr = 0.0,
):  # fmt: skip
    """Computes dx; programs share the rows, and each writes its partial sums of dweight and dbias, (programs, N) in fp32."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    columns = bl.arange(0, BLOCK)
    dweight = bl.zeros((ROWS, BLOCK), WIDE)
    dbias = bl.zeros((ROWS, BLOCK), WIDE)
    for first in range(bl.program_id(0) * ROWS, m, bl.num_programs(0) * ROWS):
        rows = first + bl.arange(0, ROWS)
        inside = (rows < m)[:, None] & (columns < n)[None, :]
        at = rows[:, None].to(bl.int64)
        z = bl.load(x + at * x_row + columns[None, :], mask=inside, other=0.0).to(WIDE)
        given = bl.load(dy + at * dy_row + columns[None, :], mask=inside, other=0.0).to(WIDE)
        scale = bl.load(rstd + rows, mask=rows < m, other=0.0)
        if CENTRED:
            z -= bl.load(mean + rows, mask=rows < m, other=0.0)[:, None]
        z *= scale[:, None]  # columns beyond the row hold arbitrary values, but g is 0 there
        dweight += given * z
        dbias += given
        g = given
        if weight is not None:  # loaded again for each row: the L1 cache holds it, and registers are scarce
            factor = bl.load(weight + columns, mask=columns < n, other=0.0).to(WIDE)
            if OFFSET != 0.0:
                factor += OFFSET
            g = given * factor[None, :]
        if CENTRED:
            product, total = bl.reduce((g * z, g), 1, both)
            result = z * (product / n * scale)[:, None] + (total / n * scale)[:, None]
        else:
            result = z * (bl.sum(g * z, axis=1) / n * scale)[:, None]
        result = g * scale[:, None] - result
        if dadded is not None:
            result += bl.load(dadded + at * n + columns[None, :], mask=inside, other=0.0).to(WIDE)
        bl.store(dx + at * dx_row + columns[None, :], result, mask=inside)
    if dweights is not None:
        bl.store(dweights + bl.program_id(0) * n + columns, bl.sum(dweight, axis=0), mask=columns < n)
    if dbiases is not None:
        bl.store(dbiases + bl.program_id(0) * n + columns, bl.sum(dbias, axis=0), mask=columns < n)


@blocknb.kernel
def norm_means_kernel(
    x, weight, dy, mean, rstd, means, x_row, dy_row, m, n, CENTRED: bl.constexpr, ROWS: bl.constexpr, BLOCK: bl.constexpr,
    OFFSET: bl.constexpr = 0.0,
):  # fmt: skip
    """Computes means[0, i] = mean(g z) of row i and means[1, i] = mean(g)."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    at = rows[:, None].to(bl.int64)
    scale = bl.load(rstd + rows, mask=rows < m, other=0.0)
    centre = bl.zeros((ROWS,), WIDE)
    if CENTRED:
        centre = bl.load(mean + rows, mask=rows < m, other=0.0)
    products = bl.zeros((ROWS, BLOCK), WIDE)
    total = bl.zeros((ROWS, BLOCK), WIDE)
    for first in range(0, n, BLOCK):
        columns = first + bl.arange(0, BLOCK)
        inside = (rows < m)[:, None] & (columns < n)[None, :]
        g = bl.load(dy + at * dy_row + columns[None, :], mask=inside, other=0.0).to(WIDE)
        z = bl.load(x + at * x_row + columns[None, :], mask=inside, other=0.0).to(WIDE)
        if weight is not None:
            factor = bl.load(weight + columns, mask=columns < n, other=0.0).to(WIDE)
            if OFFSET != 0.0:
                factor += OFFSET
            g *= factor[None, :]
        products += g * ((z - centre[:, None]) * scale[:, None])
        total += g
    bl.store(means + rows, bl.sum(products, axis=1) / n, mask=rows < m)
    if CENTRED:
        bl.store(means + m + rows, bl.sum(total, axis=1) / n, mask=rows < m)


@blocknb.kernel
def norm_columns_kernel(
    x, weight, dy, mean, rstd, means, dx, dweights, dbiases, x_row, dy_row, dx_row, m, n,
    CENTRED: bl.constexpr, BLOCK: bl.constexpr, dadded=None, OFFSET: bl.constexpr = 0.0,
):  # fmt: skip
    """Computes block i of the columns in programs (i, j); programs with the same i share the rows, from the last to the first."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    columns = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    inside = columns < n
    factor = bl.full((BLOCK,), 1.0, WIDE)
    if weight is not None:
        factor = bl.load(weight + columns, mask=inside, other=0.0).to(WIDE)
        if OFFSET != 0.0:
            factor += OFFSET
    dweight = bl.zeros((BLOCK,), WIDE)
    dbias = bl.zeros((BLOCK,), WIDE)
    for back in range(bl.program_id(1), m, bl.num_programs(1)):
        row = m - 1 - back
        at = row.to(bl.int64)
        z = bl.load(x + at * x_row + columns, mask=inside, other=0.0).to(WIDE)
        given = bl.load(dy + at * dy_row + columns, mask=inside, other=0.0).to(WIDE)
        scale = bl.load(rstd + row)
        if CENTRED:
            z -= bl.load(mean + row)
        z *= scale
        result = z * (bl.load(means + row) * scale)
        if CENTRED:
            result += bl.load(means + m + row) * scale
        result = given * factor * scale - result
        if dadded is not None:
            result += bl.load(dadded + at * n + columns, mask=inside, other=0.0).to(WIDE)
        bl.store(dx + at * dx_row + columns, result, mask=inside)
        dweight += given * z
        dbias += given
    if dweights is not None:
        bl.store(dweights + bl.program_id(1) * n + columns, dweight, mask=inside)
    if dbiases is not None:
        bl.store(dbiases + bl.program_id(1) * n + columns, dbias, mask=inside)


@blocknb.kernel
def sum_columns_kernel(parts, first, second, programs, n, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    """Computes first = the sum of parts[0] (programs, N) over programs, and second = that of parts[1] unless second is None."""
    WIDE: bl.constexpr = bl.float64 if parts.dtype.element_ty == bl.float64 else bl.float32
    columns = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    begin = bl.program_id(1).to(bl.int64) * programs * n
    total = bl.zeros((ROWS, BLOCK), WIDE)
    for done in range(0, programs, ROWS):
        rows = done + bl.arange(0, ROWS)
        inside = (rows < programs)[:, None] & (columns < n)[None, :]
        total += bl.load(parts + begin + rows[:, None] * n + columns[None, :], mask=inside, other=0.0)
    found = bl.sum(total, axis=0)
    if second is None:
        bl.store(first + columns, found, mask=columns < n)
    else:
        bl.store(first + columns, found, mask=(columns < n) & (bl.program_id(1) == 0))
        bl.store(second + columns, found, mask=(columns < n) & (bl.program_id(1) == 1))


def layer_norm_backward(
    x: Any, weight: Any, dy: Any, mean: Any, rstd: Any, dx: Any, dweight: Any = None, dbias: Any = None, *,
    programs: int | None = None, num_warps: int | None = None,
) -> Any:  # fmt: skip
    """Writes dx (M, N), and dweight and dbias (N) where given, from dy (M, N) and the statistics that `layer_norm` stored; returns `dx`.

    `programs` programs share the rows. Each needs scratch memory of N fp32 elements for each of the two sums. None derives the number
    from the length of a row. Raises ValueError as `layer_norm` does.
    """
    _backward(x, weight, dy, mean, rstd, dx, dweight, dbias, programs, num_warps)
    return dx


def rms_norm_backward(
    x: Any, weight: Any, dy: Any, rstd: Any, dx: Any, dweight: Any = None, *, dadded: Any = None, offset: float = 0.0,
    programs: int | None = None, num_warps: int | None = None,
) -> Any:  # fmt: skip
    """Writes dx (M, N), and dweight (N) where given, from dy (M, N) and the statistics that `rms_norm` stored; otherwise as
    `layer_norm_backward`. With a residual, x is the sum `added`, and `dadded` its own gradient, contiguous, which dx includes. `offset` is
    the one of the forward pass."""
    if dadded is not None:
        matrix(dadded, "dadded", like=x)
        if not contiguous(dadded):
            raise ValueError(f"dadded must be contiguous; its strides are {strides(dadded)}")
    _backward(x, weight, dy, None, rstd, dx, dweight, None, programs, num_warps, dadded, offset)
    return dx


def _most_programs(kept: bool, rows: int, block: int, n: int) -> int:
    """How many programs share the rows on a GPU: as many as run at once if a program keeps its rows in registers."""
    if kept:
        return min(1024, SMS * max(1, KEPT // (rows * block)))
    return blocknb.cdiv(8 * SMS, blocknb.cdiv(n, block))


def _checked(x: Any, weight: Any, dy: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any) -> tuple[int, int]:
    """The rows and columns of x. Raises ValueError for arrays that do not fit it."""
    m, n = matrix(x, "x")
    matrix(dy, "dy", like=x)
    matrix(dx, "dx", like=x)
    vectors = (weight, "weight", n), (mean, "mean", m), (rstd, "rstd", m), (dweight, "dweight", n), (dbias, "dbias", n)
    for array, name, length in vectors:
        vector(array, name, length)
    return m, n


def _partial_sums(x: Any, dweight: Any, dbias: Any, programs: int, n: int) -> tuple[Any, tuple[Any, Any]]:
    """Scratch memory for the partial sums of dweight and dbias, as far as these are wanted: all of it, and the part of each."""
    count = (dweight is not None) + (dbias is not None)
    parts = empty(x, (count, programs, n), wide(x)) if count else None
    # A kernel needs only the address, and a view takes the host some microseconds.
    own = parts[1] if count == 2 else parts
    return parts, (parts if dweight is not None else None, own if dbias is not None else None)


def _backward(
    x: Any, weight: Any, dy: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, programs: int | None,
    num_warps: int | None, dadded: Any = None, offset: float = 0.0,
) -> None:  # fmt: skip
    m, n = _checked(x, weight, dy, mean, rstd, dx, dweight, dbias)
    centred, shape = mean is not None, tile(x, num_warps or (32 if n > KEPT else None))
    rows, block = shape["ROWS"], shape["BLOCK"]
    steps = strides(x)[0], strides(dy)[0], strides(dx)[0]
    # The form that the compiler specializes on; otherwise each element has a load of its own.
    aligned = all(step % 16 == 0 for step in steps)
    kept = on_host(x) or block <= (2 * KEPT if aligned and not centred else KEPT)
    if not kept:
        rows, block = 1, min(block, LONG)
    most = HOST_PROGRAMS if on_host(x) else _most_programs(kept, rows, block, n)
    # A program that has a multiprocessor for itself loads the next row while it computes.
    stages = 2 if kept and not on_host(x) and aligned and most == SMS else 1
    programs = max(1, min(programs or most, blocknb.cdiv(m, rows)))
    wanted = [array for array in (dweight, dbias) if array is not None]
    parts, sums = _partial_sums(x, dweight, dbias, programs, n)
    if kept:
        norm_backward_kernel[(programs,)](
            x,
            weight,
            dy,
            mean,
            rstd,
            dx,
            *sums,
            *steps,
            m,
            n,
            CENTRED=centred,
            dadded=dadded,
            OFFSET=offset,
            num_stages=stages,
            **shape,
        )
    else:
        means = empty(x, (2, m), wide(x))
        norm_means_kernel[(blocknb.cdiv(m, 2),)](
            x, weight, dy, mean, rstd, means, *steps[:2], m, n, CENTRED=centred, ROWS=2, BLOCK=1024,
            OFFSET=offset, num_warps=4,
        )  # fmt: skip
        norm_columns_kernel[(blocknb.cdiv(n, block), programs)](
            x, weight, dy, mean, rstd, means, dx, *sums, *steps, m, n,
            CENTRED=centred, BLOCK=block, dadded=dadded, OFFSET=offset, num_warps=num_warps or 4,
        )  # fmt: skip
    if wanted:
        _add_up(parts, wanted[0], wanted[1] if len(wanted) > 1 else None, programs, n)


def _add_up(parts: Any, first: Any, second: Any, programs: int, n: int) -> None:
    """first = parts[0] and, unless it is None, second = parts[1], summed over the programs."""
    if on_host(parts):
        rows, block, num_warps = 32, 64, 4
    else:  # few columns and many rows per program: the latency of the cache decides
        rows, block, num_warps = min(512, blocknb.next_power_of_2(programs)), 16, 8
    sum_columns_kernel[(blocknb.cdiv(n, block), 1 if second is None else 2)](
        parts, first, second, programs, n, ROWS=rows, BLOCK=block, num_warps=num_warps
    )
