"""References that several families share: softmax, attention and its gradients, decoding from pages, low-bit numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def softmax(s: np.ndarray) -> np.ndarray:
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def causal_scores(s: np.ndarray) -> np.ndarray:
    """Scores (..., queries, keys) of which the last query sees all keys, and each one before it one less."""
    queries, keys = s.shape[-2:]
    return np.where(np.tri(queries, keys, keys - queries, dtype=bool), s, -np.inf)


def attention_gradients(
    p: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, delta: np.ndarray, scale: float
) -> tuple[np.ndarray, ...]:
    """dq, dk and dv of (..., rows, head), from the weights and each row's sum of out * dout."""
    ds = p * (dout @ v.swapaxes(-1, -2) - delta[..., None]) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout


def attention_with_gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, causal: bool, scale: float
) -> tuple[np.ndarray, ...]:
    """out, dq, dk and dv of (..., heads, rows, head); k and v may have fewer heads."""
    group = q.shape[-3] // k.shape[-3]
    keys, values = (x.repeat(group, -3) for x in (k, v))
    s = q @ keys.swapaxes(-1, -2) * scale
    p = softmax(causal_scores(s) if causal else s)
    out = p @ values
    dq, *shared = attention_gradients(p, q, keys, values, dout, (out * dout).sum(-1), scale)
    return out, dq, *(x.reshape(*k.shape[:-2], group, *k.shape[-2:]).sum(-3) for x in shared)


def paged_decode(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, tables: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """One query (batch, heads, head) a sequence, whose keys and values lie in pages (pages, rows, heads, head)."""
    out, group = np.zeros_like(q), q.shape[1] // k_cache.shape[2]
    for b, n in enumerate(lengths):
        k, v = (x[tables[b]].reshape(-1, *x.shape[2:])[:n].repeat(group, 1) for x in (k_cache, v_cache))
        out[b] = np.einsum("hn,nhd->hd", softmax(np.einsum("hd,nhd->hn", q[b], k) * q.shape[2] ** -0.5), v)
    return out


def number(codes: np.ndarray, dtype: Any = FLOAT8["e4m3"]) -> np.ndarray:
    """The numbers that bytes stand for."""
    return codes.view(dtype).astype(np.float64)


def numbers(codes: np.ndarray, kind: str) -> np.ndarray:
    """The numbers of rows of e2m1 (two a byte, the low one first), e4m3 or e5m2; of floats themselves."""
    if kind == "e2m1":
        both = [number(half, ml_dtypes.float4_e2m1fn) for half in (codes & 15, codes >> 4)]
        return np.stack(both, -1).reshape(len(codes), -1)
    return number(codes, FLOAT8[kind]) if codes.dtype == np.uint8 else codes


def scaled(x: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Numbers times the powers of two that groups of 32 along a row share."""
    return x * np.repeat(2.0 ** (exponents.astype(float) - 127), 32, 1)


def spread(scales: np.ndarray, block: int, size: int, axis: int) -> np.ndarray:
    """Scales of blocks along an axis, one for each of its `size` elements."""
    return np.repeat(scales, block, axis).take(np.arange(size), axis)
