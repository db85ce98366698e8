"""Attention without the matrix of scores in memory: softmax(scale q k^T) v, one block of keys at a time (FlashAttention, Dao et al. 2022).

A program has a block of queries and loops over the keys that they see. For each row it keeps the largest score so far, the sum of powers of
two, and the weighted sum of values. It rescales both sums when a larger score appears (online softmax: Milakov, Gimelshein 2018). Scores
are in units of log2 with the scale folded in, so that a power costs one multiply-add and one instruction. Blocks that all queries of the
program see need no mask, which takes one comparison per block. Tensor descriptors read and write the arrays with the bounds of one head. So
elements beyond the last query, key or column read as zero.
"""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.heads import HeadTiles, Tile, check_arrays, check_options, heads_of
from blocknb.kernels.strides import empty

LEAST = bl.constexpr(-3.4028234663852886e38)  # lowest finite fp32: avoids inf - inf where all keys are masked
#: Heads whose blocks of a causal mask take turns in the grid. The last programs to start are then short and leave few multiprocessors
#: idle.
MOST_INTERLEAVED_HEADS = 4
LN2, LOG2E = bl.constexpr(0.6931471805599453), bl.constexpr(1.4426950408889634)


@blocknb.kernel
def head_of(array, batch, head, at, rows, width, ROWS: bl.constexpr, WIDTH: bl.constexpr):
    """Describes one head of an array as a matrix of `rows` by `width`, in blocks of ROWS; `at` holds the strides of batches, heads and
    rows."""
    begin = batch.to(bl.int64) * at[0] + head.to(bl.int64) * at[1]
    return bl.make_tensor_descriptor(array + begin, [rows, width], [at[2], 1], [ROWS, WIDTH])


@blocknb.kernel
def biased(scores, keys, position, slope, soft_cap, CAUSAL: bl.constexpr):
    """Scores in units of log2 with a soft cap, also in these units, and ALiBi's bias; each may be None.

    `keys` (columns) and `position` (rows) are places in the sequence; `slope` is one number per row.
    """
    if soft_cap is not None:
        tanh = 2.0 / (1.0 + bl.exp2(scores * (-2.0 * LOG2E / soft_cap))) - 1.0  # of scores / soft_cap
        scores = soft_cap * tanh
    if slope is not None:
        distance = (keys[None, :] - position[:, None]).to(bl.float32)
        scores += (slope * LOG2E)[:, None] * (distance if CAUSAL else -bl.abs(distance))
    return scores


@blocknb.kernel
def attention_kernel(
    q, k, v, out, logsumexp, q_at, k_at, v_at, out_at, scale, queries, keys, width, group, shift,
    CAUSAL: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr, WIDTH: bl.constexpr, INTERLEAVED_HEADS: bl.constexpr = 1,
    window=None, slopes=None, soft_cap=None, PRECISION: bl.constexpr = "tf32",
):  # fmt: skip
    """Computes one block of queries of one head.

    The program ids are the block of queries (the blocks of INTERLEAVED_HEADS heads take turns), the group of heads, and the batch. Query i
    is at position i + shift among the keys. With CAUSAL it sees keys up to its position, and with `window` that many keys up to there.
    """
    block, batch = bl.program_id(0) // INTERLEAVED_HEADS, bl.program_id(2)
    head = bl.program_id(1) * INTERLEAVED_HEADS + bl.program_id(0) % INTERLEAVED_HEADS
    if CAUSAL:
        block = bl.num_programs(0) // INTERLEAVED_HEADS - 1 - block  # the longest loops start first
    first = block * ROWS
    rows = first + bl.arange(0, ROWS)
    query = head_of(q, batch, head, q_at, queries, width, ROWS, WIDTH).load([first, 0])
    keys_of = head_of(k, batch, head // group, k_at, keys, width, COLUMNS, WIDTH)
    values_of = head_of(v, batch, head // group, v_at, keys, width, COLUMNS, WIDTH)
    seen, whole = keys, keys // COLUMNS * COLUMNS  # keys that any query sees, and those in blocks without a mask
    if CAUSAL:
        seen = min(keys, max(first + ROWS + shift, 0))
        whole = min(whole, (first + shift + 1) // COLUMNS * COLUMNS)
    least = 0
    if window is not None:
        least = max(first + shift - window + 1, 0) // COLUMNS * COLUMNS  # the first block of keys that any query sees
        free = first + ROWS + shift - window  # the first key that the window hides from none
    last = bl.minimum(rows + shift, keys - 1) if CAUSAL else bl.full((ROWS,), 0, bl.int32) + (keys - 1)
    top = bl.full((ROWS,), LEAST, bl.float32)
    total = bl.zeros((ROWS,), bl.float32)
    result = bl.zeros((ROWS, WIDTH), bl.float32)
    slope = None if slopes is None else bl.zeros((ROWS,), bl.float32) + bl.load(slopes + head)
    for start in range(least, seen, COLUMNS):
        scores = bl.dot(query, keys_of.load([start, 0]).T, input_precision=PRECISION)
        unit = scale
        if slopes is not None or soft_cap is not None:
            scores = biased(scores * scale, start + bl.arange(0, COLUMNS), rows + shift, slope, soft_cap, CAUSAL)
            unit = 1.0
        if start >= whole if window is None else (start >= whole or start < free):
            columns = start + bl.arange(0, COLUMNS)
            visible = columns[None, :] <= last[:, None]
            if window is not None:
                visible &= columns[None, :] > (rows + shift - window)[:, None]
            scores = bl.where(visible, scores, -float("inf"))
        larger = bl.maximum(top, bl.max(scores, axis=1) * unit)
        powers = bl.exp2(scores * unit - larger[:, None])
        factor = bl.exp2(top - larger)
        total = total * factor + bl.sum(powers, axis=1)
        values = values_of.load([start, 0])
        result = bl.dot(powers.to(values.dtype), values, result * factor[:, None], input_precision=PRECISION)
        top = larger
    unseen = total == 0.0
    result *= (1.0 / bl.where(unseen, 1.0, total))[:, None]
    head_of(out, batch, head, out_at, queries, width, ROWS, WIDTH).store([first, 0], result.to(out.dtype.element_ty))
    if logsumexp is not None:
        line = logsumexp + (batch.to(bl.int64) * bl.num_programs(1) * INTERLEAVED_HEADS + head) * queries
        logsum = bl.where(unseen, -float("inf"), (top + bl.log2(total)) * LN2)
        bl.store(line + rows, logsum, mask=rows < queries)


TILES = HeadTiles(
    {64: (128, 128, 8, 3), 128: (128, 128, 8, 2), 256: (128, 64, 8, 2)},
    {64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (64, 32, 8, 2)},
    {64: (256, 64, 16, 4)},  # four warpgroups hide each other's latency: 5 to 7 % on an H200
    {64: (64, 32, 8, 2), 128: (64, 32, 8, 1), 256: (16, 16, 4, 1)},
)


def attention(
    q: Any, k: Any, v: Any, out: Any = None, *, causal: bool = False, scale: float | None = None, shift: int = 0,
    window: int | None = None, alibi_slopes: Any = None, soft_cap: float | None = None, logsumexp: Any = None,
    tile: Tile | None = None, input_precision: str = "tf32",
) -> Any:  # fmt: skip
    """Computes softmax(scale q k^T) v for each batch and head; returns `out`, a new array for None.

    q and out have the shape (batch, heads, queries, head), k and v (batch, kv heads, keys, head). Consecutive heads of q share one head
    of k and v. All are fp16, bf16 or fp32, with any strides and 1 along the last axis; a head has 8 to 256 elements. `scale` is positive,
    1 / sqrt(head) by default. With `causal`, query i sees keys 0 to i + shift. A shift of 0 is torch's mask; keys - queries is the mask
    of a KV cache whose last keys belong to the queries. The position of query i among the keys is i + shift. `window` is the number of
    keys, up to its position, that a query sees. `alibi_slopes`, fp32 (heads,), adds -slope |position - key| to the scores. `soft_cap` makes
    each score cap tanh(score / cap), before slopes. `attention_backward` knows none of these three. A query that sees no key gets zeros.
    `logsumexp`, fp32 (batch, heads, queries), receives log(sum(exp(scores))) for the backward pass, minus infinity where no key is seen.
    `tile` is (ROWS, COLUMNS, num_warps, num_stages). `input_precision` is that of products of fp32 on a GPU: "tf32" rounds the factors to
    11 bits for tensor cores, "ieee" does not.

    Raises ValueError for arrays whose shapes, dtypes or strides do not fit, and for options out of range.
    """
    found = heads_of(q, k, v)
    check_options(found, window, alibi_slopes, soft_cap)
    precision = found.precision(input_precision)
    out = empty(q, tuple(q.shape), found.dtype) if out is None else out
    check_arrays(found, out=out, logsumexp=logsumexp)
    factor = found.scale(scale) / math.log(2)
    if found.empty:
        out[...] = 0
        if logsumexp is not None:
            logsumexp[...] = -math.inf
        return out
    tile = tile or TILES.choose(q, found.block, precision)
    interleaved_heads = math.gcd(found.heads, MOST_INTERLEAVED_HEADS) if causal else 1
    attention_kernel[(blocknb.cdiv(found.queries, tile["ROWS"]) * interleaved_heads, found.heads // interleaved_heads, found.batch)](
        q, k, v, out, logsumexp, *found.steps(q, k, v, out), factor, found.queries, found.keys, found.width,
        found.group, shift, CAUSAL=causal, WIDTH=found.block, INTERLEAVED_HEADS=interleaved_heads, **tile,
        window=window, slopes=alibi_slopes, soft_cap=None if soft_cap is None else soft_cap / math.log(2), PRECISION=precision,
    )  # fmt: skip
    return out
