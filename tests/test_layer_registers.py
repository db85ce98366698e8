"""The kernels of embedding, group norm, experts, divergences and masked attention fit the registers of sm_90a: the code spills nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from launches_for_gpus import captured

from blocknb.kernels import divergences, embedding, group_norm, masked_attention, mixture
from blocknb.runtime.kernel import Launch

pytestmark = pytest.mark.full
DTYPES = {"bf16": ml_dtypes.bfloat16, "fp32": np.float32}
BATCH, HEADS, SHARED, QUERIES, KEYS = 1, 4, 2, 300, 300


def wide(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def of_rows(dtype: Any) -> None:
    """All kernels on rows."""
    table, dout, ids = np.zeros((50, 1000), dtype), np.zeros((300, 1000), dtype), np.zeros(300, np.int64)
    embedding.embedding(table, ids, dout)
    embedding.embedding_backward(dout, ids, ids, table)
    for count in (50, 1 << 26):  # keys of 32 and of 64 bits
        embedding.sorted_numbers(ids, ids.copy(), ids.copy(), count)
    image = np.zeros((2, 32, 5000), dtype)
    sums, groups, weight = wide(2, 32), wide(2, 8), np.zeros(32, dtype)
    group_norm.channel_statistics(image, sums, sums)
    group_norm.channel_gradients(image, image, groups, groups, 8, sums, sums)
    group_norm.normalized_groups(image, image, weight, weight, groups, groups, 8)
    group_norm.normalized_groups(image, image, weight, None, groups, groups, 8, image, groups, groups)
    for kind in divergences.KINDS:
        divergences.divergence(dout, dout, dout, wide(300), kind=kind)
        divergences.divergence_backward(dout, dout, dout, dout, dout, kind=kind)


def of_experts(dtype: Any) -> None:
    """The kernels of mixtures of experts."""
    y, places, weights = np.zeros((300, 1000), dtype), np.zeros((150, 2), np.int64), np.zeros((150, 2), dtype)
    mixture.combine(y, weights, places, y[:150])
    mixture.combine_backward(y, weights, places, y[:150], y, weights)
    a, db, ends = np.zeros((300, 512), dtype), np.zeros((4, 512, 1000), dtype), np.zeros(4, np.int32)
    for precision in ("tf32", "ieee"):
        mixture.grouped_matmul_gradients(a, y, ends, db, input_precision=precision)


def of_attention(width: int) -> Callable[[Any], None]:
    def run(dtype: Any) -> None:
        q, k, v = (
            np.zeros((BATCH, heads, rows, width), dtype) for heads, rows in ((HEADS, QUERIES), *[(SHARED, KEYS)] * 2)
        )
        log, full = wide(BATCH, HEADS, QUERIES), (BATCH, HEADS, QUERIES, KEYS)
        everything = {"causal": True, "window": 64, "soft_cap": 20.0, "alibi_slopes": wide(HEADS)}
        for options in (
            everything, {"mask": np.broadcast_to(np.zeros((QUERIES, KEYS), dtype), full)}, {"lengths": np.zeros(BATCH, np.int64)},
            {"causal": True, "mask": np.broadcast_to(np.zeros((QUERIES, KEYS), np.uint8), full)},
        ):  # fmt: skip
            for precision in ("tf32", "ieee") if dtype is np.float32 else ("tf32",):
                given = {"input_precision": precision, "scale": 1 / math.sqrt(width), **options}
                masked_attention.masked_attention(q, k, v, q.copy(), log, **given)
                masked_attention.masked_attention_backward(q, k, v, q, log, q, q.copy(), k.copy(), v.copy(), **given)
                if "mask" in options and options["mask"].dtype != np.uint8:
                    masked_attention.masked_attention_mask_gradient(
                        q, k, v, q, log, q, wide(1, 1, QUERIES, KEYS), **given
                    )

    return run


CALLS = {
    "rows": of_rows,
    "experts": of_experts,
    **{f"attention {width}": of_attention(width) for width in (16, 64, 128, 256)},
}


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", list(CALLS))
def test_default_tiles_of_layers_cause_no_spills(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (masked_attention, mixture, group_norm):
        monkeypatch.setattr(module, "on_host", lambda array: False)
    found: list[Launch] = []
    with captured(found.append):
        CALLS[name](DTYPES[dtype])
    assert found
    spilled = {}
    for launch in found:
        used = launch.retarget("sm_90a").resources
        if used.spill_bytes:
            spilled[launch.kernel.__name__] = used
    assert not spilled
