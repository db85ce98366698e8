"""The ready-made matrix products on a GPU against float64.

The tests cover every strategy, dtype and order with the default tiles, partial tiles, views, batches and groups. They also check that a
result is the same in every run.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import seeds

from blocknb import kernels as ready

torch = pytest.importorskip("torch")
pytest.importorskip("cupy")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

DTYPES = {
    "fp16": (torch.float16, torch.float16, 2e-3), "bf16": (torch.bfloat16, torch.bfloat16, 1e-2),
    "fp32": (torch.float32, torch.float32, 2e-3), "int8": (torch.int8, torch.int32, 0.0),
    "fp8": (torch.float8_e4m3fn, torch.bfloat16, 2e-2),
}  # fmt: skip
WAYS: dict[str, Any] = {
    "matmul": ready.matmul,
    "pointers": ready.matmul_pointers,
    "descriptors": ready.matmul_descriptors,
    "host": lambda *arrays, **rest: ready.matmul_descriptors(*arrays, strategy="host", **rest),
    "persistent": lambda *arrays, **rest: ready.matmul_descriptors(*arrays, strategy="persistent", **rest),
    "split": lambda *arrays, **rest: ready.matmul_split(*arrays, splits=3, **rest),
}
SHAPES = ((512, 768, 640), (1040, 272, 208), (4096, 256, 4096))
RAGGED = ((1, 1, 1), (1, 333, 700), (257, 1, 180), (333, 311, 1), (50, 40, 0), (1000, 129, 1030))


def before_fp8(name: str) -> bool:
    return name == "fp8" and torch.cuda.get_device_capability() < (8, 9)


def operand(shape: tuple[int, ...], transposed: bool, dtype: Any) -> Any:
    shape = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    numbers = torch.randn(shape, device="cuda") * (30 if dtype == torch.int8 else 1)
    made = numbers.to(dtype)
    return made.transpose(-1, -2) if transposed else made


def exact(a: Any, b: Any) -> Any:
    return a.double() @ b.double()


def spoiled(shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.full(shape, -77 if dtype == torch.int32 else float("nan"), device="cuda").to(dtype)


def close(got: Any, expected: Any, tolerance: float) -> None:
    assert tuple(got.shape) == tuple(expected.shape)
    if expected.numel():
        error = float((got.double() - expected).abs().max())
        assert error <= tolerance * max(float(expected.abs().max()), 1e-30)


ALL = list(itertools.product(WAYS, DTYPES, ("nn", "nt", "tn", "tt")))
SOME = [pytest.param(*x, marks=() if i % 3 == 0 else pytest.mark.full) for i, x in enumerate(ALL)]


@pytest.mark.parametrize(("way", "name", "order"), SOME)
def test_matmul_of_every_strategy_dtype_and_order_matches_float64(way, name, order):
    if before_fp8(name):
        pytest.skip("no 8-bit floats here")
    dtype, result, tolerance = DTYPES[name]
    for m, n, k in SHAPES:
        a, b = operand((m, k), order[0] == "t", dtype), operand((k, n), order[1] == "t", dtype)
        out = WAYS[way](a, b, spoiled((m, n), result))
        close(out, exact(a, b), tolerance)
        assert torch.equal(WAYS[way](a, b, spoiled((m, n), result)), out)


@pytest.mark.parametrize("shape", RAGGED, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("way", ["matmul", "pointers", "split"])
def test_matmul_of_ragged_sizes_matches_float64(way, shape):
    m, n, k = shape
    for order in ("nn", "tt"):
        a, b = operand((m, k), order[0] == "t", torch.float16), operand((k, n), order[1] == "t", torch.float16)
        close(WAYS[way](a, b, spoiled((m, n), torch.float16)), exact(a, b), 2e-3)


@pytest.mark.parametrize("way", WAYS)
def test_matmul_epilogues_and_non_finite_values_match_float64(way):
    m, n, k = 400, 512, 256
    a, b, bias = (
        operand((m, k), False, torch.float16),
        operand((k, n), False, torch.float16),
        torch.randn(n, device="cuda"),
    )
    left, right = torch.rand(m, device="cuda") + 0.5, torch.rand(n, device="cuda") + 0.5
    total = exact(a, b) * left.double()[:, None] * right.double() + bias.double()
    out = WAYS[way](
        a, b, spoiled((m, n), torch.float16), bias=bias, a_scale=left, b_scale=right, activation="leaky_relu"
    )
    close(out, torch.where(total >= 0, total, 0.01 * total), 2e-3)
    a[3, 5], a[7, 0], b[31, 9] = float("nan"), float("inf"), -float("inf")
    out, expected = WAYS[way](a, b, spoiled((m, n), torch.float16)), exact(a, b)
    assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf())


def test_matmul_of_views_with_any_strides_matches_float64():
    a, b = operand((300, 200), False, torch.float16), operand((200, 264), False, torch.float16)
    wide = torch.cat([a, a[:, :1]], dim=1)
    out = spoiled((300, 529), torch.float16)
    for x in (wide[:, :-1], wide[:, 1:], torch.cat([a, a], dim=1)[:, :200], a.repeat_interleave(2, dim=1)[:, ::2]):
        for to in (out[:, :264], out[:, 1:265], out[:, ::2][:, :264], spoiled((264, 300), torch.float16).T):
            close(ready.matmul(x, b, to), exact(x, b), 2e-3)


@pytest.mark.parametrize("order", ["nn", "tt"])
def test_batched_matmul_matches_float64(order):
    a, b = (
        operand((5, 200, 136), order[0] == "t", torch.float16),
        operand((5, 136, 264), order[1] == "t", torch.float16),
    )
    close(ready.matmul(a, b, spoiled((5, 200, 264), torch.float16)), exact(a, b), 2e-3)
    close(ready.matmul(a, b[2], spoiled((5, 200, 264), torch.float16)), exact(a, b[2]), 2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_grouped_matmul_matches_float64(dtype):
    a, b = operand((1000, 256), False, dtype), operand((6, 256, 512), False, dtype)
    ends = torch.tensor([100, 100, 477, 480, 800, 990], dtype=torch.int32, device="cuda")
    out, begin = ready.grouped_matmul(a, b, ends), 0
    for g, end in enumerate(ends.tolist()):
        close(out[begin:end], exact(a[begin:end], b[g]), 1e-2)
        begin = end
    lists = (
        [operand((m, 256), False, dtype) for m in (1, 100, 513)],
        [operand((256, n), False, dtype) for n in (512, 33, 264)],
    )
    for found, x, y in zip(ready.matmul_many(*lists), *lists, strict=True):
        close(found, exact(x, y), 1e-2)


def test_matmul_takes_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    a, b = (seeds.cupy_random().standard_normal((512, 512), dtype=cupy.float32).astype(cupy.float16) for _ in range(2))
    found = cupy.asnumpy(ready.matmul(a, b)).astype(np.float64)
    expected = cupy.asnumpy(a).astype(np.float64) @ cupy.asnumpy(b).astype(np.float64)
    assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()
