"""Attention and its gradients on a GPU against float64: the default tiles, partial tiles, masks, grouped heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import seeds
from kernels.attention import exact, exact_gradients

from blocknb.kernels import attention, attention_backward
from blocknb.kernels.strides import empty

cupy = pytest.importorskip("cupy")
TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 5e-3, "ieee": 2e-5}  # of the largest number
#: "float32" is multiplied as tf32, "ieee" is fp32 without that rounding.
PRECISIONS = {"float32": "tf32", "ieee": "ieee"}
#: batch, heads, heads of k and v, queries, keys, shift (None: not causal)
SHAPES = [
    (1, 2, 2, 512, 512, None),
    (2, 2, 2, 512, 512, 0),
    (1, 4, 2, 333, 517, None),
    (1, 4, 1, 517, 333, -100),
    (1, 2, 1, 1, 1000, 999),
    (1, 1, 1, 700, 65, 40),
]


def arrays(dtype: str, *shapes: tuple[int, ...]) -> list[Any]:
    """Random arrays, torch's if bfloat16, otherwise CuPy's; all but the first have the memory layout (batch, rows, heads, head)."""
    made = []
    for i, (batch, heads, rows, width) in enumerate(shapes):
        shape = (batch, rows, heads, width) if i else (batch, heads, rows, width)
        if dtype == "bfloat16":
            torch = pytest.importorskip("torch")
            x = torch.randn(shape, device="cuda").to(torch.bfloat16)
            made.append(x.transpose(1, 2) if i else x)
        else:
            x = seeds.cupy_random().standard_normal(shape, dtype=cupy.float32)
            x = x if dtype in PRECISIONS else x.astype(dtype)
            made.append(x.swapaxes(1, 2) if i else x)
    return made


def poison(like: Any) -> Any:
    found = like.clone() if hasattr(like, "clone") else like.copy(order="K")
    found[...] = float("nan")
    return found


def host(x: Any) -> np.ndarray:
    return x.double().cpu().numpy() if hasattr(x, "cpu") else cupy.asnumpy(x).astype(np.float64)


ALL = [(width, *shape, dtype) for width in (64, 128, 256, 80) for shape in SHAPES for dtype in TOLERANCE]
SOME = [pytest.param(*x, marks=() if i % 5 == 0 else pytest.mark.full) for i, x in enumerate(ALL)]


@pytest.mark.parametrize(("width", "batch", "heads", "shared", "queries", "keys", "shift", "dtype"), SOME)
def test_attention_and_its_gradients_match_float64(
    width: int, batch: int, heads: int, shared: int, queries: int, keys: int, shift: int | None, dtype: str
) -> None:
    of_keys = (batch, shared, keys, width)
    q, k, v = arrays(dtype, (batch, heads, queries, width), of_keys, of_keys)
    out, logsumexp = poison(q), empty(q, (batch, heads, queries), "float32")
    logsumexp[...] = float("nan")
    options: dict[str, Any] = {} if shift is None else {"causal": True, "shift": shift}
    options["input_precision"] = PRECISIONS.get(dtype, "tf32")
    attention(q, k, v, out, logsumexp=logsumexp, **options)
    given = [host(x) for x in (q, k, v)]
    right, right_logsums, _ = exact(*given, shift)
    assert np.abs(host(out) - right).max() <= TOLERANCE[dtype] * max(1, np.abs(right).max())
    seen = right_logsums > -np.inf
    assert np.abs(host(logsumexp) - right_logsums)[seen].max() <= 1e-3 * (5 if dtype == "float32" else 1)
    assert (host(logsumexp)[~seen] == -np.inf).all()
    (dout,) = arrays(dtype, q.shape)
    gradients = exact_gradients(*given, host(dout), shift)
    for deterministic in (False, True):
        found = [poison(x) for x in (q, k, v)]
        attention_backward(q, k, v, out, logsumexp, dout, *found, deterministic=deterministic, **options)
        for name, got, gradient in zip(("dq", "dk", "dv"), found, gradients, strict=True):
            error = np.abs(host(got) - gradient).max() / max(1, np.abs(gradient).max())
            assert error <= 2 * TOLERANCE[dtype], f"{name}, deterministic={deterministic}: {error:.2g}"


def test_nan_reaches_only_the_queries_that_attend_to_it() -> None:
    q, k, v = arrays("float16", *[(1, 1, 512, 64)] * 3)
    k[0, 0, 300, 0] = np.nan
    out = host(attention(q, k, v, causal=True))
    assert np.isfinite(out[0, 0, :256]).all() and np.isnan(out[0, 0, 300:]).all()
