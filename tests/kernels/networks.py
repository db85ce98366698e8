"""Kernels of neural networks: norms, gates, rotary embeddings, losses."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def rms_norm(x, w, y, n, eps, BLOCK: bl.constexpr):
    row = bl.program_id(0)
    i = bl.arange(0, BLOCK)
    v = bl.load(x + row * n + i, mask=i < n, other=0.0).to(bl.float32)
    scale = bl.rsqrt(bl.sum(v * v, axis=0) / n + eps)
    bl.store(y + row * n + i, v * scale * bl.load(w + i, mask=i < n), mask=i < n)


def _rms_reference(a):
    x = wide(a["x"])
    return {"y": x / np.sqrt((x**2).mean(1, keepdims=True) + a["eps"]) * wide(a["w"])}


case(
    "rms_norm",
    rms_norm,
    lambda rng: {
        "x": normal(rng, (4, 200), np.float16), "w": normal(rng, 200), "y": poison((4, 200), np.float16),
        "n": 200, "eps": 1e-6, "BLOCK": 256,
    },
    _rms_reference,
    grid=(4,),
    rtol=2e-3,
    atol=2e-3,
)  # fmt: skip


@blocknb.kernel
def swiglu(gate, up, out, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    g = bl.load(gate + i, mask=i < n)
    bl.store(out + i, g * bl.sigmoid(g) * bl.load(up + i, mask=i < n), mask=i < n)


case(
    "swiglu",
    swiglu,
    lambda rng: {
        "gate": normal(rng, 500),
        "up": normal(rng, 500),
        "out": poison(500, np.float32),
        "n": 500,
        "BLOCK": 128,
    },
    lambda a: {"out": wide(a["gate"]) / (1 + np.exp(-wide(a["gate"]))) * wide(a["up"])},
    grid=(4,),
)


@blocknb.kernel
def rotate(x, angles, y, heads, HALF: bl.constexpr):
    token = bl.program_id(0)
    i = bl.arange(0, HALF)
    angle = bl.load(angles + token * HALF + i)
    cosine, sine = bl.cos(angle), bl.sin(angle)
    for head in range(heads):
        at = (token * heads + head) * 2 * HALF
        a, b = bl.load(x + at + i), bl.load(x + at + HALF + i)
        bl.store(y + at + i, a * cosine - b * sine)
        bl.store(y + at + HALF + i, b * cosine + a * sine)


def _rotate_reference(a):
    x, angle = wide(a["x"]), wide(a["angles"])[:, None, :]
    left, right = x[..., :32], x[..., 32:]
    return {
        "y": np.concatenate(
            [left * np.cos(angle) - right * np.sin(angle), right * np.cos(angle) + left * np.sin(angle)], axis=-1
        )
    }


case(
    "rotate",
    rotate,
    lambda rng: {
        "x": normal(rng, (5, 3, 64)), "angles": normal(rng, (5, 32)) * 50, "y": poison((5, 3, 64), np.float32), "heads": 3, "HALF": 32,
    },
    _rotate_reference,
    grid=(5,),
    rtol=2e-5,
    atol=2e-5,
)  # fmt: skip


@blocknb.kernel
def cross_entropy(logits, labels, losses, gradient, n, BLOCK: bl.constexpr):
    row = bl.program_id(0)
    i = bl.arange(0, BLOCK)
    label = bl.load(labels + row)
    v = bl.load(logits + row * n + i, mask=i < n, other=-float("inf"))
    top = bl.max(v, axis=0)
    e = bl.exp(v - top)
    total = bl.sum(e, axis=0)
    bl.store(losses + row, bl.log(total) + top - bl.load(logits + row * n + label))
    bl.store(gradient + row * n + i, e / total - (i == label).to(bl.float32), mask=i < n)


def _entropy_reference(a):
    x, rows = wide(a["logits"]), np.arange(6)
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    gradient = p.copy()
    gradient[rows, a["labels"]] -= 1
    return {"losses": -np.log(p[rows, a["labels"]]), "gradient": gradient}


case(
    "cross_entropy",
    cross_entropy,
    lambda rng: {
        "logits": normal(rng, (6, 100)), "labels": integers(rng, 6, np.int64, 0, 99), "losses": poison(6, np.float32),
        "gradient": poison((6, 100), np.float32), "n": 100, "BLOCK": 128,
    },
    _entropy_reference,
    grid=(6,),
    rtol=1e-4,
    atol=1e-5,
)  # fmt: skip
