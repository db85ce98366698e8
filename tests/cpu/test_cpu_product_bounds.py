"""Products on the CPU: they skip the padding that no store reads, and prefetch the tiles of the next iteration."""

import re

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import kernels as ready
from blocknb.kernels.matmul import matmul_kernel

RUN_TIME = re.compile(r"call void @blocknb\.dot\.[\w.]*?((?:\.[mnk])*)\(")


def bounded(kernel):
    """The extents that the microkernel of the newest launch takes at run time, such as "mnk"."""
    return RUN_TIME.search(kernel.latest.trace.llvm)[1].replace(".", "")


def nested(shape, seed, around=np.nan):
    """A matrix of small integers inside of a larger one, which is filled with `around`."""
    whole = np.full((shape[0] + 3, shape[1] + 5), around, np.float32)
    inner = whole[1 : 1 + shape[0], 2 : 2 + shape[1]]
    inner[...] = np.random.default_rng(seed).integers(-4, 5, shape)
    return inner


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 33, 7), (100, 70, 300), (130, 257, 129), (64, 64, 64)])
@pytest.mark.parametrize("tile", [(64, 64, 64), (128, 256, 64)])
def test_a_product_of_any_size_is_exact(shape, tile):
    m, n, k = shape
    a, b, out = nested((m, k), 0), nested((k, n), 1), nested((m, n), 2)
    ready.matmul_pointers(a, b, out, tile=tile)
    np.testing.assert_array_equal(out, a @ b)
    assert np.isnan(out.base).sum() == out.base.size - m * n
    assert bounded(matmul_kernel) == "mnk"


@pytest.mark.parametrize("columns", [1, 8, 15, 16, 17, 31, 32, 33, 48, 49, 64])
def test_a_last_panel_that_is_half_empty_is_exact(columns):
    a, b, out = nested((70, 70), 0), nested((70, columns), 1), nested((70, columns), 2)
    ready.matmul_pointers(a, b, out, tile=(64, 64, 64))
    np.testing.assert_array_equal(out, a @ b)
    assert np.isnan(out.base).sum() == out.base.size - 70 * columns


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_operands_of_other_dtypes_are_bounded(dtype):
    a, b = (nested((70, 70), seed).astype(dtype) for seed in (0, 1))
    out = np.full((70, 70), np.nan, dtype)
    ready.matmul_pointers(a, b, out, tile=(64, 64, 64))
    np.testing.assert_array_equal(out, a @ b)
    assert bounded(matmul_kernel) == "mnk"


@blocknb.kernel
def product(
    a, b, out, sums, m, n, k, other, M: tl.constexpr, SUMMED: tl.constexpr, BOTH: tl.constexpr, FILLED: tl.constexpr
):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, M), tl.arange(0, M)
    x = tl.load(
        a + rows[:, None] * k + inner[None, :],
        mask=(rows[:, None] < m) & (inner[None, :] < k),
        other=other if FILLED else 0.0,
    )
    inside = (inner[:, None] < k) & (columns[None, :] < n) if BOTH else columns[None, :] < n
    y = tl.load(b + inner[:, None] * n + columns[None, :], mask=inside, other=0.0)
    total = tl.dot(x, y, input_precision="ieee")
    tl.store(out + rows[:, None] * n + columns[None, :], total * 2.0, mask=(rows[:, None] < m) & (columns[None, :] < n))
    if SUMMED:
        tl.store(sums + columns, tl.sum(total + 1.0, axis=0))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "mnk"),
        ({"SUMMED": True}, "k"),  # the sum reads all rows and columns
        ({"BOTH": False}, "mn"),  # the rows of b beyond k are no zeros
        ({"FILLED": True}, "mn"),  # the padding of a is not zero
    ],
    ids=str,
)
def test_a_bound_needs_masks_that_leave_the_padding_out(options, expected):
    m, n, k, size = 19, 21, 23, 64
    a = nested((m, k), 0).copy()
    b = nested((size, n), 1).copy()  # rows beyond k, which a load without their mask reads
    out, sums = np.full((m, n), np.nan, np.float32), np.full(size, np.nan, np.float32)
    chosen = {"SUMMED": False, "BOTH": True, "FILLED": False} | options
    product[1,](a, b, out, sums, m, n, k, 1.0, M=size, **chosen)
    wide = np.full((size, size), 1.0 if chosen["FILLED"] else 0.0, np.float32)
    wide[:m, :k] = a
    deep = np.zeros((size, size), np.float32)
    deep[: size if not chosen["BOTH"] else k, :n] = b if not chosen["BOTH"] else b[:k]
    np.testing.assert_array_equal(out, 2 * (wide @ deep)[:m, :n])
    if chosen["SUMMED"]:
        np.testing.assert_array_equal(sums, (wide @ deep + 1).sum(0))
    assert bounded(product) == expected


def test_a_product_reads_infinities_of_rows_that_it_needs():
    a, b = nested((40, 40), 0), nested((40, 40), 1)
    b[7, 3] = np.inf
    out = np.empty((40, 40), np.float32)
    ready.matmul_pointers(a, b, out, tile=(64, 64, 64))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out, a @ b)


def test_a_product_in_a_loop_prefetches_the_tiles_of_the_next_iteration():
    a, b, out = np.ones((100, 300), np.float32), np.ones((300, 100), np.float32), np.empty((100, 100), np.float32)
    ready.matmul_pointers(a, b, out, tile=(64, 64, 64))
    text = matmul_kernel.latest.trace.llvm
    # Prefetches for reading to the L2 cache: of two tiles, in the loops over whole and over half panels.
    assert text.count(", i32 0, i32 2, i32 1)") == 4
    found = [note.text for note in matmul_kernel.latest.trace.notes if "fetches the next tile" in note.text]
    assert len(found) == 2


@blocknb.kernel
def running(a, out, n, steps, M: tl.constexpr):
    """Each iteration stores more rows of the sum of the iterations before it."""
    rows, inner = tl.arange(0, M), tl.arange(0, M)
    at = rows[:, None] * M + inner[None, :]
    total = tl.zeros((M, M), tl.float32)
    for step in range(steps):
        count = 3 * step
        tl.store(out + step * M * M + at, total, mask=(rows[:, None] < count) & (inner[None, :] < n))
        x = tl.load(a + at)
        total = tl.dot(x, x, total)


def test_rows_that_a_later_iteration_stores_are_computed_in_all_iterations():
    size, steps, n = 64, 5, 50
    a = nested((size, size), 0).copy()
    out = np.zeros((steps, size, size), np.float32)
    running[1,](a, out, n, steps, M=size)
    expected = np.zeros_like(out)
    for step in range(steps):
        expected[step, : 3 * step, :n] = (step * (a @ a))[: 3 * step, :n]
    np.testing.assert_array_equal(out, expected)
    assert bounded(running) == "n"
