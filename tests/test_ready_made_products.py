"""The wrappers of matrix products against float64: every strategy, dtype, order and size, epilogues, and rejected arguments."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import seeds
from kernels.gemms import AFTER

from blocknb import kernels as ready
from blocknb.kernels import gemm
from blocknb.kernels.operands import MOST_CHECKED, MatmulProblem, _checked_problems
from blocknb.kernels.shapes import TileShape, choose
from blocknb.kernels.strides import Device
from blocknb.runtime import launch_context

TILE = (32, 32, 16)
DTYPES = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64, "int8": np.int8,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
#: Of the largest element: by the result's dtype. 8-bit floats give bfloat16.
TOLERANCE = {
    "float16": 2e-3,
    "bfloat16": 1e-2,
    "float32": 1e-5,
    "float64": 1e-13,
    "int8": 0,
    "float8_e4m3fn": 1e-2,
    "float8_e5m2": 1e-2,
}
WAYS: dict[str, Callable[..., Any]] = {
    "matmul": ready.matmul,
    "pointers": lambda *arrays, **rest: ready.matmul_pointers(*arrays, tile=TILE, **rest),
    "descriptors": lambda *arrays, **rest: ready.matmul_descriptors(*arrays, tile=TILE, **rest),
    "host": lambda *arrays, **rest: ready.matmul_descriptors(*arrays, tile=TILE, strategy="host", **rest),
    "persistent": lambda *arrays, **rest: ready.matmul_descriptors(
        *arrays, tile=TILE, strategy="persistent", epilogue_subtiles=True, **rest
    ),
    "split": lambda *arrays, **rest: ready.matmul_split(*arrays, splits=3, tile=TILE, **rest),
}  # fmt: skip
BLOCKWISE = ("descriptors", "host", "persistent")


def random(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    numbers = seeds.rng().standard_normal(shape)
    return (numbers * 30 if dtype == "int8" else numbers).astype(DTYPES[dtype])


def operands(
    m: int, n: int, k: int, dtype: str = "float32", order: str = "nn", batch: tuple[int, ...] = ()
) -> list[np.ndarray]:
    shapes = ((*batch, m, k), (*batch, k, n))
    return [
        random((*s[:-2], s[-1], s[-2]), dtype).swapaxes(-1, -2) if t == "t" else random(s, dtype)
        for s, t in zip(shapes, order, strict=True)
    ]


def poisoned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.full(shape, 101 if np.dtype(dtype).kind == "i" else np.nan, dtype)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert got.shape == expected.shape
    error = np.abs(got.astype(np.float64) - expected).max(initial=0)
    assert error <= tolerance * np.abs(expected).max(initial=1e-30)  # NaN fails


def sample(step: int, *lists: Iterable[Any]) -> list[Any]:
    """Every combination; only each n-th of them runs without --full."""
    return [
        pytest.param(*x, marks=() if i % step == 0 else pytest.mark.full)
        for i, x in enumerate(itertools.product(*lists))
    ]


@pytest.mark.parametrize(("way", "dtype", "order"), sample(5, WAYS, DTYPES, ("nn", "nt", "tn", "tt")))
def test_every_dtype_and_order_matches_float64(way, dtype, order):
    a, b = operands(80, 48, 64, dtype, order)
    result = {"int8": np.int32, "float8_e4m3fn": ml_dtypes.bfloat16, "float8_e5m2": ml_dtypes.bfloat16}.get(
        dtype, DTYPES[dtype]
    )
    out = poisoned((80, 48), result)
    assert WAYS[way](a, b, out) is out
    close(out, exact(a, b), TOLERANCE[dtype])
    made = WAYS[way](a, b)
    assert made.dtype == result
    np.testing.assert_array_equal(made.view(np.uint8), out.view(np.uint8))  # the same in every run


RAGGED = ((1, 1, 1), (1, 33, 70), (37, 1, 18), (33, 31, 1), (5, 40, 0), (100, 3, 129), (65, 129, 33))


@pytest.mark.sampled(2, each=["way", "shape"])
@pytest.mark.parametrize("shape", RAGGED, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("way", ["matmul", "pointers", "split"])
def test_ragged_sizes_and_empty_k_match_float64(way, shape):
    m, n, k = shape
    for order in ("nn", "tt"):
        a, b = operands(m, n, k, "float16", order)
        out = WAYS[way](a, b, poisoned((m, n), np.float16))
        close(out, exact(a, b), TOLERANCE["float16"])


@pytest.mark.parametrize("way", BLOCKWISE)
def test_ragged_sizes_with_aligned_rows_match_float64(way):
    for m, n, k in ((1, 8, 8), (37, 72, 24), (65, 40, 104)):
        a, b = operands(m, n, k, "float16")
        close(WAYS[way](a, b, poisoned((m, n), np.float16)), exact(a, b), TOLERANCE["float16"])


@pytest.mark.parametrize("way", WAYS)
def test_empty_products_give_empty_results(way):
    for m, n in ((0, 8), (8, 0)):
        assert WAYS[way](*operands(m, n, 8)).shape == (m, n)


@pytest.mark.parametrize(("way", "activation"), sample(4, WAYS, AFTER))
def test_epilogues_match_float64(way, activation):
    a, b = operands(40, 48, 32, "float16")
    bias, left, right = random((48,)), random((40, 1)), random((1, 48))
    out = WAYS[way](a, b, poisoned((40, 48), np.float32), bias=bias, activation=activation, a_scale=left, b_scale=right)
    total = exact(a, b) * left.astype(np.float64) * right.astype(np.float64) + bias
    close(out, AFTER[activation](total), 1e-5)
    one, two = random((1,)), random((1,))
    scaled = WAYS[way](a, b, poisoned((40, 48), np.float32), a_scale=one, b_scale=two, activation=activation)
    close(scaled, AFTER[activation](exact(a, b) * float(one[0]) * float(two[0])), 1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_non_finite_values_stay_in_their_rows_and_columns(way):
    a, b = operands(40, 48, 32, "float32")
    a[3, 5], a[7, 0], b[31, 9] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = np.where(exact(a, b) >= 0, exact(a, b), 0.01 * exact(a, b))
        out = WAYS[way](a, b, poisoned((40, 48), np.float32), activation="leaky_relu")
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    assert np.isnan(WAYS[way](a, b, activation="relu")[3]).all()


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "columns": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "rows": lambda x: np.repeat(x, 3, axis=0)[::3],
    "back": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "apart": lambda x: np.concatenate([x, x], axis=1)[:, : x.shape[1]],
    "odd": lambda x: np.concatenate([x, x[:, :1]], axis=1)[:, : x.shape[1]],
    "shifted": lambda x: np.concatenate([x[:, :1], x], axis=1)[:, 1:],
}


@pytest.mark.parametrize(("view", "way"), sample(5, VIEWS, WAYS))
def test_views_give_the_same_results_or_are_refused_with_an_alternative(way, view):
    a, b = operands(40, 48, 32, "float16")
    arrays = [VIEWS[view](x) for x in (a, b, poisoned((40, 48), np.float16))]
    if way in BLOCKWISE and view != "rows" and view != "apart":
        with pytest.raises(
            ValueError, match="no tensor descriptor describes it; matmul and matmul_pointers take any strides"
        ):
            WAYS[way](*arrays)
        return
    close(WAYS[way](*arrays), exact(a, b), TOLERANCE["float16"])


@pytest.mark.sampled(2, each=["dtype", "order"])
@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("order", ["nn", "tt", "tn"])
def test_operands_that_hopper_needs_contiguous_along_k_are_transposed_first(order, dtype, monkeypatch):
    monkeypatch.setattr(gemm, "device", lambda array: HOPPER)
    monkeypatch.setattr(gemm, "LEAST_TRANSPOSED", 32)
    a, b = operands(80, 48, 64, dtype, order)
    with launched() as names:
        out = ready.matmul(a, b, tile=TILE)
    close(out, exact(a, b), TOLERANCE[dtype])
    transposed = (order[0] == "t") + (order[1] == "n")
    assert names == ["transpose_kernel"] * transposed + ["matmul_descriptor_kernel"]
    half, other = operands(80, 48, 64, "float16", order)
    with launched() as names:
        close(ready.matmul(half, other, tile=TILE), exact(half, other), TOLERANCE["float16"])
    assert names == ["matmul_descriptor_kernel"]


@pytest.mark.sampled(2, each=["m", "order"])
@pytest.mark.parametrize("order", ["nn", "tt", "tn"])
@pytest.mark.parametrize(("m", "n"), [(152, 304), (304, 152)])
def test_one_fp32_operand_may_be_contiguous_along_either_axis(order, m, n, monkeypatch):
    monkeypatch.setattr(gemm, "device", lambda array: HOPPER)
    monkeypatch.setattr(gemm, "choose", lambda *sizes: TileShape(128, 128, 32, 4, 3))
    monkeypatch.setattr(gemm, "LEAST_TRANSPOSED", 32)
    a, b = operands(m, n, 64, "float32", order)
    with launched() as names:
        out = ready.matmul(a, b, bias=random((n,)) * 0)
    close(out, exact(a, b), TOLERANCE["float32"])
    assert names == ["transpose_kernel"] * (order == "tn") + ["matmul_descriptor_kernel"]


@contextlib.contextmanager
def launched():
    """Records the names of the launched kernels."""
    names: list[str] = []

    def observe(launch: Any) -> None:
        names.append(launch.kernel.__name__)

    launch_context.observers.append(observe)
    yield names
    launch_context.observers.remove(observe)


@pytest.mark.sampled(2, each=["way", "order"])
@pytest.mark.parametrize("order", ["nn", "tt"])
@pytest.mark.parametrize("way", ["matmul", "pointers", "descriptors"])
def test_batched_products_match_float64(way, order):
    a, b = operands(40, 48, 32, "float16", order, (3,))
    out = poisoned((3, 40, 48), np.float16)
    close(WAYS[way](a, b, out), exact(a, b), TOLERANCE["float16"])
    if way != "descriptors":
        close(WAYS[way](a, b[1], out), exact(a, b[1]), TOLERANCE["float16"])
        close(WAYS[way](a[:1], b, out), exact(a[:1], b), TOLERANCE["float16"])
    assert ready.matmul(a[:1], b[0]).shape == (1, 40, 48)


def test_grouped_products_match_float64():
    a, b = random((50, 24), "float16"), random((5, 24, 40), "float16")
    ends = np.array([7, 7, 40, 41, 47], np.int32)
    out = np.full((50, 40), 5, np.float16)
    ready.grouped_matmul(a, b, ends, out, tile=TILE)
    expected, begin = np.full((50, 40), 5.0), 0
    for matrix, end in zip(b, ends, strict=True):
        expected[begin:end], begin = exact(a[begin:end], matrix), end
    close(out, expected, TOLERANCE["float16"])
    transposed = ready.grouped_matmul(a, b.swapaxes(1, 2).copy().swapaxes(1, 2), ends)
    np.testing.assert_array_equal(transposed[:47], out[:47])
    with pytest.raises(ValueError, match="ends must be 5 contiguous int32, not int64"):
        ready.grouped_matmul(a, b, ends.astype(np.int64))
    with pytest.raises(ValueError, match=r"a is \(M, K\) and b \(G, K, N\)"):
        ready.grouped_matmul(a, b[0], ends)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float8_e4m3fn"])
def test_lists_of_problems_match_float64(dtype):
    sizes = ((33, 40, 24), (1, 8, 8), (0, 8, 8), (70, 65, 1), (16, 16, 0))
    lists = list(zip(*(operands(m, n, k, dtype) for m, n, k in sizes), strict=True))
    for found, a, b in zip(ready.matmul_many(*lists, tile=TILE), *lists, strict=True):
        close(found, exact(a, b), TOLERANCE[dtype])
    with pytest.raises(ValueError, match="must have contiguous rows"):
        ready.matmul_many([random((8, 8)).T], [random((8, 8))])
    with pytest.raises(ValueError, match="one dtype"):
        ready.matmul_many([random((8, 8)), random((8, 8), "float16")], [random((8, 8)), random((8, 8), "float16")])
    assert ready.matmul_many([], []) == []


REFUSED: dict[str, tuple[Callable[[np.ndarray, np.ndarray], Any], str]] = {
    "inner sizes": (lambda a, b: ready.matmul(a, b[1:]), r"\(8, 6\) by \(5, 4\): a must have the shape \(M, K\) and b \(K, N\)"),
    "result": (lambda a, b: ready.matmul(a, b, a), r"into \(8, 6\): out must have the shape \(8, 4\)"),
    "vectors": (lambda a, b: ready.matmul(a[0], b), "reshape a vector"),
    "dtypes": (lambda a, b: ready.matmul(a, b.astype(np.float16)), "cannot multiply float32 by float16"),
    "integers": (lambda a, b: ready.matmul(a.astype(np.int32), b.astype(np.int32)), "convert them to one of float16"),
    "bias": (lambda a, b: ready.matmul(a, b, bias=np.zeros(8, np.float32)), "bias must be a contiguous vector of 4 elements"),
    "activation": (lambda a, b: ready.matmul(a, b, activation="tanh"), "no activation 'tanh'; there are '', 'relu'"),
    "precision": (lambda a, b: ready.matmul(a, b, precision="high"), "no precision 'high'; there are tf32"),
    "scales": (
        lambda a, b: ready.matmul(a, b, a_scale=np.ones(8, np.float32), b_scale=np.ones(1, np.float32)),
        "a_scale and b_scale have 8 and 1 elements; pass one element each, or 8 for the rows of a and 4",
    ),
    "scales' dtype": (lambda a, b: ready.matmul(a, b, a_scale=np.ones(1), b_scale=np.ones(1)), "a_scale and b_scale must be float32"),
    "one place": (lambda a, b: ready.matmul(a, b, np.broadcast_to(np.float32(0), (8, 4))), "out repeats elements"),
    "strategy": (lambda a, b: ready.matmul_descriptors(random((8, 8)), random((8, 8)), strategy="cluster"), "no strategy 'cluster'"),
    "splits": (lambda a, b: ready.matmul_split(a, b, splits=0), "cannot split a product into 0 parts"),
    "workspace": (lambda a, b: ready.matmul_split(a, b, splits=1, workspace=a), "the workspace must be"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_mismatched_arguments_are_refused_with_the_expected_ones(name):
    call, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        call(*operands(8, 4, 6))


def test_torch_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    a, b = torch.randn(40, 32).bfloat16(), torch.randn(48, 32).bfloat16().T
    found = ready.matmul(a, b, activation="relu")
    assert found.dtype == torch.bfloat16
    expected = (a.double() @ b.double()).clamp(min=0)
    assert float((found.double() - expected).abs().max()) < 1e-2 * float(expected.max())
    lists = ready.matmul_many([a, a[:3]], [b.contiguous()] * 2)
    assert float((lists[1].double() - a[:3].double() @ b.double()).abs().max()) < 0.1


HOPPER, AMPERE, TURING = Device(132, 90, 227 << 10), Device(108, 80, 163 << 10), Device(40, 75, 64 << 10)
CHOSEN = {
    (4096, 4096, 4096): (128, 256, 64, 8), (8192, 8192, 8192): (128, 256, 64, 8), (16384, 4096, 4096): (128, 256, 64, 8),
    (2048, 2048, 2048): (128, 128, 64, 4), (4096, 4096, 512): (128, 128, 64, 4), (8192, 8192, 1024): (128, 128, 64, 4),
    (1024, 1024, 1024): (64, 128, 64, 4), (256, 4096, 4096): (64, 128, 64, 4),
}  # fmt: skip


@pytest.mark.parametrize("shape", CHOSEN, ids=lambda shape: "x".join(map(str, shape)))
def test_chosen_tiles_of_known_shapes(shape):
    found = choose(*shape, 2, HOPPER, 1, True)
    assert found[:4] == CHOSEN[shape] and found.splits == 1
    assert choose(*shape, 1, HOPPER).k == 128 and choose(*shape, 4, HOPPER).k == 32


@pytest.mark.parametrize("device", [HOPPER, AMPERE, TURING])
def test_chosen_tiles_fit_the_device_and_long_products_with_small_results_use_split_k(device):
    for m, n, k in itertools.product((1, 64, 300, 4096), (8, 128, 5000), (16, 1000, 16384)):
        found = choose(m, n, k, 2, device, 1, True)
        assert (found.m + found.n) * found.k * 2 * found.num_stages <= device.shared or found.num_stages == 2
        assert found.splits == 1 or found.splits * 1024 <= k
    assert choose(64, 64, 16384, 2, device, 1, True).splits > 4
    assert choose(64, 64, 16384, 2, device, 1, False).splits == 1


def test_analysis_of_a_product_is_cached_per_memory_layout():
    def operand(rows, columns, shift=0):
        memory = np.zeros(rows * columns + 80, np.float16)
        begin = -(memory.ctypes.data // 2) % 64 + shift  # lines of 128 bytes
        return memory[begin : begin + rows * columns].reshape(rows, columns)

    a, b = operand(64, 32), operand(32, 48)
    first, second = MatmulProblem.of(a, b), MatmulProblem.of(operand(64, 32), b, activation="")
    assert second.blocks is first.blocks and second.out is not first.out and second.a is not a
    assert (
        isinstance(first.blocks, tuple)
        and "multiple of 16 bytes" in MatmulProblem.of(a, operand(32, 48, shift=1)).blocks
    )
    assert MatmulProblem.of(a, operand(48, 32).T).b_strides == (0, 1, 32)
    bias = np.ones(48, np.float16)
    assert (
        MatmulProblem.of(a, b, bias=bias).epilogue["bias"] is bias and MatmulProblem.of(a, b).epilogue["bias"] is None
    )
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot multiply"):
            MatmulProblem.of(a, operand(48, 32))
    for n in range(8, 8 * MOST_CHECKED + 16, 8):
        MatmulProblem.of(a[:1], np.broadcast_to(np.float16(0), (32, n)), np.empty((1, n), np.float16))
    assert len(_checked_problems) <= MOST_CHECKED and MatmulProblem.of(a, b).n == 48
