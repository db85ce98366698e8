"""The ready-made kernels give the same results on a GPU as on the CPU, where other tests compare them with float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import seeds

from blocknb import kernels as ready

cupy = pytest.importorskip("cupy")
SHAPES = ((1, 1), (7, 33), (300, 1000), (3, 20000))
Call = Callable[..., Any]


def with_statistics(x: Any, weight: Any, bias: Any, out: Any, mean: Any, rstd: Any) -> Any:
    return ready.layer_norm(x, weight, bias, out, mean=mean, rstd=rstd)


def cases(m: int, n: int) -> dict[str, tuple[Call, list[np.ndarray], list[np.ndarray]]]:
    """Calls by name, with their inputs and poisoned outputs."""
    rng = seeds.rng()
    x, dy, weight, bias = (rng.standard_normal(s).astype(np.float32) for s in ((m, n), (m, n), n, n))
    matrix, vector, row = ((lambda s=s: np.full(s, np.nan, np.float32)) for s in ((m, n), m, n))
    classes = rng.integers(0, n, m)
    mean, rstd, logsumexp = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5), np.log(np.exp(x).sum(1))
    cos, sin = (rng.standard_normal((m, n)).astype(np.float32) for _ in range(2))
    heads = rng.standard_normal((m, 2, 2 * n)).astype(np.float32)
    half = [a.astype(np.float16) for a in (x, weight)]
    return {
        "softmax": (ready.softmax, [x], [matrix()]),
        "layer_norm": (with_statistics, [x, weight, bias], [matrix(), vector(), vector()]),
        "layer_norm_backward": (ready.layer_norm_backward, [x, weight, dy, mean, rstd], [matrix(), row(), row()]),
        "rms_norm": (ready.rms_norm, half, [matrix().astype(np.float16)]),
        "rms_norm_backward": (ready.rms_norm_backward, [x, weight, dy, rstd], [matrix(), row()]),
        "cross_entropy": (ready.cross_entropy, [x, classes], [vector(), vector()]),
        "cross_entropy_backward": (ready.cross_entropy_backward, [x, classes, rstd, logsumexp], [matrix()]),
        "swiglu": (ready.swiglu, [x, dy], [matrix()]),
        "swiglu_backward": (ready.swiglu_backward, [x, dy, cos], [matrix(), matrix()]),
        "rope": (ready.rope, [heads, cos, sin], [np.full_like(heads, np.nan)]),
        "dropout": (lambda a, o: ready.dropout(a, o, 0.3, 11), [x], [matrix()]),
        "sum": (ready.sum, [x], [np.full(1, np.nan, np.float32)]),
        "copy": (ready.copy, [x], [matrix()]),
        "transpose": (ready.transpose, [x], [np.full((n, m), np.nan, np.float32)]),
    }  # fmt: skip


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("name", list(cases(1, 1)))
def test_ready_made_kernels_agree_on_gpu_and_cpu(name: str, m: int, n: int) -> None:
    call, inputs, outputs = cases(m, n)[name]
    there = [cupy.asarray(a) for a in (*inputs, *outputs)]
    call(*inputs, *outputs)
    call(*there)
    tolerance = 2e-3 if outputs[0].dtype == np.float16 else 2e-4
    for expected, got in zip(outputs, there[len(inputs) :], strict=True):
        np.testing.assert_allclose(cupy.asnumpy(got), expected, rtol=tolerance, atol=tolerance)
