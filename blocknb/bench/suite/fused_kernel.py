"""Attention written for Triton, a peer of the benchmarks: host descriptors, two loops, and optional warp specialization.

Sequence lengths are multiples of the block, so all heads form one matrix and no block needs a bounds check.
"""

from __future__ import annotations

import blocknb
import blocknb.language as bl


@blocknb.kernel
def _walk(
    keys, values, query, top, total, result, base, begin, end, first, factor,
    MASKED: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr, ROLES: bl.constexpr,
):  # fmt: skip
    rows, columns = first + bl.arange(0, ROWS), bl.arange(0, COLUMNS)
    for start in bl.range(begin, end, COLUMNS, warp_specialize=ROLES):
        scores = bl.dot(query, keys.load([base + start, 0]).T)
        if MASKED:
            scores = bl.where(rows[:, None] >= start + columns[None, :], scores, -1.0e6)
        larger = bl.maximum(top, bl.max(scores, 1) * factor)
        powers = bl.exp2(scores * factor - larger[:, None])
        shrink = bl.exp2(top - larger)
        result = result * shrink[:, None]
        block = values.load([base + start, 0])
        result = bl.dot(powers.to(block.dtype), block, result)
        total = total * shrink + bl.sum(powers, 1)
        top = larger
    return top, total, result


@blocknb.kernel
def fused_kernel(
    queries, keys, values, results, logsumexp, factor, tokens,
    CAUSAL: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr, HEAD: bl.constexpr, ROLES: bl.constexpr,
):  # fmt: skip
    first, base = bl.program_id(0) * ROWS, bl.program_id(1) * tokens
    query = queries.load([base + first, 0])
    top = bl.full([ROWS], -float("inf"), bl.float32)
    total = bl.full([ROWS], 0.0, bl.float32)
    result = bl.zeros([ROWS, HEAD], bl.float32)
    whole = first if CAUSAL else tokens
    top, total, result = _walk(
        keys, values, query, top, total, result, base, 0, whole, first, factor, False, ROWS, COLUMNS, ROLES
    )
    if CAUSAL:
        top, total, result = _walk(
            keys,
            values,
            query,
            top,
            total,
            result,
            base,
            first,
            first + ROWS,
            first,
            factor,
            True,
            ROWS,
            COLUMNS,
            ROLES,
        )
    bl.store(logsumexp + base + first + bl.arange(0, ROWS), top + bl.log2(total))
    results.store([base + first, 0], (result / total[:, None]).to(results.dtype))
