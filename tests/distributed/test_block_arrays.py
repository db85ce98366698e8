"""Kernels on Dask arrays, with Dask's threads: results against NumPy in float64, and the errors."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask")

import block_wrappers as w  # noqa: E402
import dask.array as da  # noqa: E402
from support import misaligned  # noqa: E402

import blocknb  # noqa: E402
from blocknb.arrays import in_flight  # noqa: E402
from blocknb.errors import LaunchError  # noqa: E402

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def exact_softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def laplacian(x: np.ndarray, mode: str, **more: float) -> np.ndarray:
    p = np.pad(x.astype(np.float64), 1, mode=mode, **more)
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * p[1:-1, 1:-1]


@pytest.mark.parametrize("rows", [(5, 5, 3), (1, 12), (0, 13), (13,), (1,) * 13], ids=str)
def test_softmax_over_the_last_axis_has_ragged_empty_and_single_rows(rows: tuple[int, ...]) -> None:
    x = RNG.standard_normal((13, 37)).astype(np.float32)
    found = blocknb.map_blocks(w.softmax, da.from_array(x, chunks=(rows, 37)))
    assert found.dtype == np.float32
    assert found.chunks == (rows, (37,))
    assert np.abs(found.compute() - exact_softmax(x)).max() < 1e-6


@pytest.mark.parametrize(("dtype", "limit"), [("float16", 1e-3), ("float32", 1e-6), ("float64", 1e-6)])
def test_softmax_of_each_dtype(dtype: str, limit: float) -> None:
    x = RNG.standard_normal((9, 20)).astype(dtype)
    found = blocknb.map_blocks(w.softmax, da.from_array(x, chunks=(4, 20))).compute()
    assert found.dtype == x.dtype
    assert np.abs(found - exact_softmax(x)).max() < limit


@pytest.mark.parametrize(
    "view",
    [lambda x: x[::2, ::3], lambda x: x[::-1, 1:21], lambda x: x.T[:20]],
    ids=["steps", "reversed", "transposed"],
)
def test_a_wrapper_sees_the_strides_of_a_block_that_is_not_contiguous(view: Callable[[Any], Any]) -> None:
    x = RNG.standard_normal((18, 60)).astype(np.float32)
    seen = set()

    def wrapper(block, out):
        seen.add(block.flags.c_contiguous)
        w.softmax(block, out)

    chunk = da.from_delayed(dask.delayed(view)(x), view(x).shape, np.float32)
    found = blocknb.map_blocks(wrapper, chunk).compute()
    assert np.abs(found - exact_softmax(view(x))).max() < 1e-6
    assert seen == {False}


def test_arrays_broadcast_and_get_common_chunks() -> None:
    x, y = RNG.random((10, 12)).astype(np.float32), RNG.random((10, 12)).astype(np.float32)
    found = blocknb.map_blocks(w.scale, da.from_array(x, chunks=(4, 12)), da.from_array(y, chunks=(3, 5)))
    assert found.shape == x.shape
    assert np.array_equal(found.compute(), x * 2 + y)


def test_the_result_may_have_another_dtype_and_other_chunks() -> None:
    x = RNG.random((10, 8)).astype(np.float32)
    found = blocknb.map_blocks(w.sum_rows, da.from_array(x, chunks=(4, 8)), drop_axis=1, dtype="float32")
    assert found.chunks == ((4, 4, 2),)
    assert np.allclose(found.compute(), x.sum(1, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize(
    ("boundary", "mode"),
    [
        ("reflect", {"mode": "symmetric"}),
        ("periodic", {"mode": "wrap"}),
        ("nearest", {"mode": "edge"}),
        (2.5, {"mode": "constant", "constant_values": 2.5}),
    ],
    ids=["reflect", "periodic", "nearest", "constant"],
)
def test_a_stencil_with_a_halo(boundary: object, mode: dict) -> None:
    x = RNG.random((23, 17)).astype(np.float32)
    found = blocknb.map_overlap(w.stencil, da.from_array(x, chunks=(9, 6)), depth=1, boundary=boundary)
    assert found.shape == x.shape
    assert np.abs(found.compute() - laplacian(x, **mode)).max() < 2e-6


def test_a_chunk_smaller_than_the_halo_is_merged_with_its_neighbour() -> None:
    x = RNG.random((9, 8)).astype(np.float32)

    def shifted(block, out):
        out[:] = block[:-8]

    found = blocknb.map_overlap(shifted, da.from_array(x, chunks=((4, 4, 1), 8)), depth={0: 4}, boundary=0.0)
    assert np.array_equal(found.compute(), np.vstack([np.zeros((4, 8), np.float32), x[:-4]]))


@pytest.mark.parametrize("chunks", [(64,) * 3 + (8,), (200,), (0, 1, 199)], ids=str)
def test_a_histogram_is_a_reduction_with_a_shape(chunks: tuple[int, ...]) -> None:
    x = RNG.random(200).astype(np.float32)
    found = blocknb.reduction(
        w.histogram, w.add_partials, da.from_array(x, chunks=(chunks,)), shape=w.BINS, dtype=np.int32
    )
    assert found.shape == (w.BINS,)
    assert np.array_equal(found.compute(), np.histogram(x.astype(np.float64), w.BINS, (0, 1))[0])


@pytest.mark.parametrize("split_every", [2, 3, 8])
def test_sums_of_rows_are_combined_in_a_tree(split_every: int) -> None:
    x = RNG.random((6, 50)).astype(np.float32)
    array = da.from_array(x, chunks=(4, 3))
    found = blocknb.reduction(w.sum_rows, w.add_partials, array, axis=1, split_every=split_every)
    assert found.chunks == ((4, 2),)
    assert np.allclose(found.compute(), x.sum(1, dtype=np.float64), rtol=1e-6)


def test_a_reduction_over_all_axes_is_a_number() -> None:
    x = RNG.random((7, 9)).astype(np.float32)

    def total(block, out):
        out[...] = block.sum()

    def combined(partials, out):
        out[...] = partials.sum(0)

    assert np.isclose(blocknb.reduction(total, combined, da.from_array(x, chunks=(3, 4))).compute(), x.sum())


@pytest.mark.parametrize("inner", [(16, 16, 5), (37,), (0, 1, 36)], ids=str)
def test_a_matrix_product_adds_up_products_of_blocks(inner: tuple[int, ...]) -> None:
    a, b = RNG.standard_normal((21, 37)).astype(np.float32), RNG.standard_normal((37, 18)).astype(np.float32)
    left, right = da.from_array(a, chunks=(8, inner)), da.from_array(b, chunks=(inner, 16))
    found = blocknb.contraction("ik,kj->ij", w.product, left, right)
    assert found.chunks == ((8, 8, 5), (16, 2))
    assert np.abs(found.compute() - a.astype(np.float64) @ b).max() < 1e-5


def test_a_contraction_without_elements_is_zero() -> None:
    left, right = da.zeros((3, 0), dtype="float32"), da.zeros((0, 2), dtype="float32")
    assert np.array_equal(blocknb.contraction("ik,kj->ij", w.product, left, right).compute(), np.zeros((3, 2)))


def test_blocks_are_read_only_so_that_a_task_can_run_again() -> None:
    def overwrites(block, out):
        w.scale_kernel[1,](block, block, block, block.size, BLOCK=64)

    with pytest.raises(LaunchError, match="read-only"):
        blocknb.map_blocks(overwrites, da.from_array(np.ones(8, np.float32), chunks=8)).compute()


def test_a_misaligned_block_is_copied_and_counted() -> None:
    x = misaligned(np.arange(8, dtype=np.float32))
    in_flight.reset_totals()
    chunk = da.from_delayed(dask.delayed(lambda: x)(), (8,), np.float32)
    assert np.array_equal(blocknb.map_blocks(w.scale, chunk, chunk).compute(), 3 * x)
    assert in_flight.totals().aligned == 2


def test_a_limit_bounds_the_bytes_in_flight() -> None:
    x = RNG.random((64, 32)).astype(np.float32)
    array, block = da.from_array(x, chunks=(4, 32)), 2 * 4 * 32 * 4  # bytes of a block and its result
    in_flight.reset_totals()
    assert np.abs(blocknb.map_blocks(w.softmax, array, limit=block).compute() - exact_softmax(x)).max() < 1e-6
    assert in_flight.totals().peak == block
    assert in_flight.totals().blocks == 16
    with pytest.raises(LaunchError, match=r"1,024 bytes, more than the limit of 1,000 bytes"):
        blocknb.map_blocks(w.softmax, array, limit=1000).compute()


def test_another_call_has_another_name_because_a_kernel_may_have_changed() -> None:
    x = da.ones(8, chunks=4, dtype="float32")
    one, two = blocknb.map_blocks(w.scale, x, x), blocknb.map_blocks(functools.partial(w.scale), x, x)
    assert one.name != two.name
    assert one.name.startswith("scale-") and two.name.startswith("scale-")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: blocknb.map_blocks(w.scale), "got no Dask array"),
        (lambda x: blocknb.map_blocks(w.scale, np.ones(3)), "is a ndarray, not a Dask array"),
        (lambda x: blocknb.map_blocks(w.scale_kernel, x), "is a kernel"),
        (lambda x: blocknb.map_blocks("scale", x), "not a function"),
        (lambda x: blocknb.map_blocks(w.scale, x, device="gpu"), "is no device"),
        (lambda x: blocknb.map_blocks(w.scale, x, limit="1 apple"), "no number of bytes"),
        (lambda x: blocknb.map_blocks(w.scale, x[x > 1]), "unknown size"),
        (lambda x: blocknb.map_overlap(w.scale, x, depth=1, boundary="none"), "boundary='none'"),
        (lambda x: blocknb.map_overlap(w.scale, x, x[:2], depth=1, boundary=0), "shapes"),
        (lambda x: blocknb.reduction(w.scale, w.scale, x, axis=1), "no axis"),
        (lambda x: blocknb.reduction(w.scale, w.scale, x, split_every=1), "combines nothing"),
        (lambda x: blocknb.contraction("i,i", w.scale, x, x), "subscripts"),
        (lambda x: blocknb.contraction("i,j->ij", w.scale, x, x), "one index to sum over"),
        (lambda x: blocknb.contraction("ij,j->i", w.scale, x, x), "do not name the axes"),
    ],
)
def test_a_wrong_argument_is_an_error_before_anything_is_computed(call, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        call(da.ones(8, chunks=4, dtype="float32"))


def test_without_dask_the_error_names_the_command_that_installs_it() -> None:
    code = "import sys; sys.modules['dask'] = None; import blocknb; blocknb.map_blocks(len, 1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "blocknb[dask]"' in done.stderr


EDGES = ["reflect", "periodic", "nearest", 3.0]
PADS = {"reflect": "symmetric", "periodic": "wrap", "nearest": "edge"}


def padded(x: np.ndarray, depths: dict[int, int], edges: dict[int, Any]) -> np.ndarray:
    """The array with its halo, one axis after another, as Dask does it."""
    for axis, edge in edges.items():
        widths = [(depths[axis] if n == axis else 0,) * 2 for n in range(x.ndim)]
        more = {"constant_values": edge} if edge not in PADS else {}
        x = np.pad(x, widths, PADS.get(edge, "constant"), **more)
    return x


@pytest.mark.parametrize("first", EDGES)
@pytest.mark.parametrize("second", EDGES)
@pytest.mark.parametrize("depths", [{0: 1, 1: 1}, {0: 2, 1: 3}, {0: 0, 1: 2}, {0: 4, 1: 5}])
def test_every_block_with_a_halo_is_a_window_of_the_padded_array(first: Any, second: Any, depths: dict) -> None:
    """For each boundary and their corners; the last depths are more than the smallest chunks."""
    x, seen = np.arange(13 * 17.0).reshape(13, 17), {}

    def windows(block, out):
        (a, b), (rows, columns) = depths.values(), out.shape
        out[...] = block[a : a + rows, b : b + columns]
        seen[out[0, 0]] = np.array(block)

    edges = {0: first, 1: second}
    array = da.from_array(x, chunks=((4, 5, 1, 3), (6, 6, 5)))
    found = blocknb.map_overlap(windows, array, depth=depths, boundary=edges)
    assert np.array_equal(found.compute(scheduler="sync"), x)
    whole = padded(x, depths, edges)
    for corner, block in seen.items():
        row, column = divmod(int(corner), 17)
        assert np.array_equal(block, whole[row : row + block.shape[0], column : column + block.shape[1]])
    assert len(seen) == np.prod(found.numblocks)


def test_a_halo_deeper_than_the_array_is_an_error() -> None:
    with pytest.raises(LaunchError, match=r"depth=\{0: 9\} for an array of shape \(8,\)"):
        blocknb.map_overlap(len, da.zeros(8, chunks=4), depth=9, boundary="reflect")


def test_a_stencil_has_one_task_per_chunk_for_all_slices_of_it() -> None:
    array = da.zeros((12, 15), chunks=(3, 5))
    for boundary in ("reflect", "periodic", 0.0):
        found = blocknb.map_overlap(print, array, depth=1, boundary=boundary)
        tasks = [key for key in dict(found.dask) if key[0].startswith("print-")]
        assert len(tasks) == 12 + 12
    alone = blocknb.map_overlap(print, array.rechunk(-1), depth=1, boundary="reflect")
    assert len([key for key in dict(alone.dask) if key[0].startswith("print-")]) == 1
