"""Caches for the tests of attention_decoding, and its result in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.base import wide


def exact_decoding(q, keys, values, lengths, causal=True, scale=None, window=None, alibi_slopes=None, soft_cap=None):
    """The result for q (batch, heads, queries, head) and keys and values (batch, kv heads, keys, head) in float64."""
    q, keys, values = (wide(x) for x in (q, keys, values))
    batch, heads, queries, width = q.shape
    out = np.zeros_like(q)
    for b, head in np.ndindex(batch, heads):
        k, v = (x[b, head // (heads // keys.shape[1]), : lengths[b]] for x in (keys, values))
        key, query = np.arange(lengths[b])[None, :], np.arange(queries)[:, None] + lengths[b] - queries
        scores = q[b, head] @ k.T * (width**-0.5 if scale is None else scale)
        if soft_cap is not None:
            scores = soft_cap * np.tanh(scores / soft_cap)
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[head] * np.abs(query - key)
        seen = (key <= query) | (not causal)
        if window is not None:
            seen &= key > query - window
        for i in np.flatnonzero(seen.any(axis=1)):
            powers = np.where(seen[i], np.exp(scores[i] - scores[i][seen[i]].max()), 0.0)
            out[b, head, i] = powers @ v / powers.sum()
    return out


@dataclass
class DecodingCase:
    """The arguments of a call, and the keys and values of its sequences in order. What no query may read is NaN."""

    q: Any
    k: Any
    v: Any
    keys: Any
    values: Any
    lengths: Any
    options: dict[str, Any]

    @staticmethod
    def random(batch, heads, kv_heads, queries, keys, width, page, dtype, ragged=True, slopes=False, **options):
        """Random arrays with the memory order (rows, heads); the first three sequences have all keys, none, and one."""
        rng = np.random.default_rng(batch * 1000 + keys)
        q = rng.standard_normal((batch, queries, heads, width)).astype(dtype).swapaxes(1, 2)
        lengths = np.concatenate([[keys, 0, 1], rng.integers(0, keys, batch)])[:batch].astype(np.int32)
        lengths = lengths if ragged else np.full(batch, keys, np.int32)
        arrays = []
        for _ in range(2):
            rows = rng.standard_normal((batch, keys, kv_heads, width)).astype(dtype)
            rows[np.arange(keys) >= lengths[:, None]] = np.nan
            arrays.append(rows)
        whole = [rows.swapaxes(1, 2) for rows in arrays]
        given = {"lengths": lengths, **options} if ragged else dict(options)
        if slopes:
            given["alibi_slopes"] = (2.0 ** -np.arange(1, heads + 1)).astype(np.float32)
        if not page:
            return DecodingCase(q, *whole, *whole, lengths, given)
        count = keys // page * batch
        order = rng.permutation(count + 3)[:count]
        given["block_table"] = order.reshape(batch, keys // page).astype(np.int32)
        pages = [np.full((count + 3, page, kv_heads, width), np.nan, dtype) for _ in range(2)]
        for cache, rows in zip(pages, arrays, strict=True):
            cache[order] = rows.reshape(count, page, kv_heads, width)
        return DecodingCase(q, *(cache.swapaxes(1, 2) for cache in pages), *whole, lengths, given)

    def exact(self):
        """The result in float64."""
        options = {x: y for x, y in self.options.items() if x not in ("lengths", "block_table")}
        return exact_decoding(self.q, self.keys, self.values, self.lengths, **options)
