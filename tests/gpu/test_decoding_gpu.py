"""Attention over a cache on a GPU against float64: ragged sequences, pages in random order, masks, and splits that a launch combines."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernels.decoding import DecodingCase

from blocknb.kernels import attention_decoding

cupy = pytest.importorskip("cupy")
DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}
TOLERANCE = {"fp16": 3e-3, "bf16": 2e-2, "fp32": 5e-3}  # fp32 is multiplied as tf32
ALL: dict[str, Any] = {"window": 200, "soft_cap": 3.0, "slopes": True}
#: batch, heads, kv heads, queries, keys, head, page, dtype, splits, options
CASES = [
    (4, 8, 2, 1, 1000, 128, 0, "fp16", None, {}),
    (4, 8, 2, 1, 1024, 128, 16, "fp16", None, {}),
    (5, 8, 2, 1, 1024, 128, 16, "bf16", 7, {}),
    (4, 8, 8, 1, 1024, 64, 128, "fp16", 3, {}),
    (4, 32, 1, 1, 960, 64, 48, "bf16", None, {}),
    (4, 8, 1, 4, 1000, 128, 0, "bf16", 5, {}),
    (4, 8, 2, 16, 1024, 128, 32, "fp16", 2, {}),
    (4, 32, 2, 16, 1024, 64, 64, "fp16", None, {}),
    (4, 8, 2, 16, 1024, 128, 16, "bf16", 3, ALL),
    (4, 8, 2, 3, 1000, 80, 0, "fp16", 4, ALL),
    (4, 4, 2, 2, 512, 256, 16, "fp16", None, ALL),
    (4, 4, 2, 3, 512, 128, 16, "fp32", 3, {}),
    (4, 4, 2, 5, 500, 64, 0, "fp32", 1, {"causal": False, "soft_cap": 5.0}),
]


def on_gpu(array: Any) -> Any:
    """The array on the GPU with the same strides: torch's if bfloat16, else CuPy's."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    packed = np.ascontiguousarray(array.transpose(order))
    if array.dtype == ml_dtypes.bfloat16:
        torch = pytest.importorskip("torch")
        return torch.from_numpy(packed.view(np.int16)).cuda().view(torch.bfloat16).permute(*np.argsort(order).tolist())
    return cupy.asarray(packed).transpose(*np.argsort(order).tolist())


def host(array: Any) -> np.ndarray:
    return array.double().cpu().numpy() if hasattr(array, "cpu") else cupy.asnumpy(array).astype(np.float64)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_decoding_matches_float64_for_ragged_sequences(case: tuple[Any, ...]) -> None:
    *sizes, dtype, splits, options = case
    made = DecodingCase.random(*sizes, dtype=DTYPES[dtype], **options)
    q, k, v = map(on_gpu, (made.q, made.k, made.v))
    given = {name: value if np.isscalar(value) else cupy.asarray(value) for name, value in made.options.items()}
    if dtype == "bf16":
        torch = pytest.importorskip("torch")
        given = {name: value if np.isscalar(value) else torch.from_dlpack(value) for name, value in given.items()}
    for _ in range(2):  # the second launch finds the workspace of the first
        out = q.clone() if hasattr(q, "clone") else q.copy(order="K")
        out[...] = float("nan")
        attention_decoding(q, k, v, out, splits=splits, **given)
        right = made.exact()
        error = np.abs(host(out) - right).max()
        assert error <= TOLERANCE[dtype] * max(1.0, np.abs(right).max()), error
