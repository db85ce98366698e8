"""Attention with a mask tensor, lengths of sequences, sliding windows, ALiBi, soft caps and fp64, and the gradients with all of these.

The forward pass is the online softmax of `blocknb.kernels.attention` (FlashAttention, Dao et al. 2022). Two kernels compute the gradients.
A program of the first has a block of keys and loops over the queries. A program of the second has a block of queries and loops over the
keys. So no sum is accumulated in memory, and the results are the same in every run. Scores are in units of log2. With a soft cap, s = cap
tanh(x / cap), the gradient of x is that of s times 1 - tanh^2. Masks and ALiBi's bias are added after the cap, as Gemma 2 does. A third
kernel computes the gradient of a mask, if the caller wants it. A program of it has a tile of the mask, and loops over the batches and heads
that share it. ALiBi's slopes get no gradient.
"""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.attention import head_of
from blocknb.kernels.heads import DTYPES, Heads, Tile, check_options, heads_of
from blocknb.kernels.strides import contiguous, dtype_name, empty, on_host, strides

LEAST = bl.constexpr(-3.4028234663852886e38)  # lowest finite fp32: avoids inf - inf where all keys are masked
HIDDEN = bl.constexpr(-1e30)  # a mask below this hides a key, as the lowest finite numbers that Hugging Face adds do
LN2, LOG2E = bl.constexpr(0.6931471805599453), bl.constexpr(1.4426950408889634)
SOME_ROWS = 64  # queries per program of `deltas_kernel`


@blocknb.kernel
def masked_scores(
    product, rows, columns, batch, head, scale, queries, keys, lengths, shift, window, mask, mask_at, slopes, soft_cap,
    CAUSAL: bl.constexpr, EXACT: bl.constexpr,
):  # fmt: skip
    """(scores in units of log2, minus infinity where a query does not see a key; the tanh of the soft cap, or 0) for a tile of q k^T.

    `rows` and `columns` are the numbers of queries and keys, with the axes of the tile. EXACT holds the scale and the soft cap for fp64.
    """
    scores, tanh = product * (scale if EXACT is None else EXACT[0]), 0.0
    if soft_cap is not None:
        tanh = 2.0 / (1.0 + bl.exp2(scores * (-2.0 * LOG2E / (soft_cap if EXACT is None else EXACT[1])))) - 1.0
        scores = tanh * (soft_cap if EXACT is None else EXACT[1])
    position = rows + shift
    if slopes is not None:
        distance = (columns - position).to(product.dtype)
        scores += bl.load(slopes + head).to(product.dtype) * LOG2E * (distance if CAUSAL else -bl.abs(distance))
    seen = keys if lengths is None else bl.minimum(bl.load(lengths + batch), keys).to(bl.int32)
    visible = (columns < seen) & (rows < queries)
    if CAUSAL:
        visible &= columns <= position
    if window is not None:
        visible &= columns > position - window
    if mask is not None:
        line = mask + (batch.to(bl.int64) * mask_at[0] + head.to(bl.int64) * mask_at[1])
        given = bl.load(
            line + rows.to(bl.int64) * mask_at[2] + columns.to(bl.int64) * mask_at[3], mask=visible, other=0
        )
        if mask.dtype.element_ty == bl.uint8:
            visible &= given != 0
        else:
            scores += given.to(product.dtype) * LOG2E
            visible &= given > HIDDEN
    return bl.where(visible, scores, -float("inf")), tanh


@blocknb.kernel
def masked_attention_kernel(
    q, k, v, out, logsumexp, q_at, k_at, v_at, out_at, scale, queries, keys, width, group, lengths, shift, window, mask, mask_at,
    slopes, soft_cap, CAUSAL: bl.constexpr, EXACT: bl.constexpr, WIDTH: bl.constexpr, PRECISION: bl.constexpr, ROWS: bl.constexpr,
    COLUMNS: bl.constexpr,
):  # fmt: skip
    """Computes one block of queries of one head."""
    WIDE: bl.constexpr = bl.float64 if q.dtype.element_ty == bl.float64 else bl.float32
    block, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    first = block * ROWS
    rows = first + bl.arange(0, ROWS)
    query = head_of(q, batch, head, q_at, queries, width, ROWS, WIDTH).load([first, 0])
    keys_of = head_of(k, batch, head // group, k_at, keys, width, COLUMNS, WIDTH)
    values_of = head_of(v, batch, head // group, v_at, keys, width, COLUMNS, WIDTH)
    begin, end = 0, keys
    if CAUSAL:
        end = min(keys, max(first + ROWS + shift, 0))
    if window is not None:
        begin = max(first + shift - window + 1, 0) // COLUMNS * COLUMNS
    top = bl.full((ROWS,), LEAST, WIDE)
    total = bl.zeros((ROWS,), WIDE)
    result = bl.zeros((ROWS, WIDTH), WIDE)
    for start in range(begin, end, COLUMNS):
        product = bl.dot(query, keys_of.load([start, 0]).T, input_precision=PRECISION)
        columns = start + bl.arange(0, COLUMNS)
        scores, _ = masked_scores(
            product, rows[:, None], columns[None, :], batch, head, scale, queries, keys, lengths, shift, window, mask, mask_at,
            slopes, soft_cap, CAUSAL, EXACT,
        )  # fmt: skip
        larger = bl.maximum(top, bl.max(scores, axis=1))
        powers = bl.exp2(scores - larger[:, None])
        factor = bl.exp2(top - larger)
        total = total * factor + bl.sum(powers, axis=1)
        values = values_of.load([start, 0])
        result = bl.dot(powers.to(values.dtype), values, result * factor[:, None], input_precision=PRECISION)
        top = larger
    unseen = total == 0.0
    result = result / bl.where(unseen, 1.0, total)[:, None]
    head_of(out, batch, head, out_at, queries, width, ROWS, WIDTH).store([first, 0], result.to(out.dtype.element_ty))
    line = logsumexp + (batch.to(bl.int64) * bl.num_programs(1) + head) * queries
    logsum = bl.where(unseen, -float("inf"), (top + bl.log2(bl.where(unseen, 1.0, total))) * LN2)
    bl.store(line + rows, logsum, mask=rows < queries)


@blocknb.kernel
def deltas_kernel(out, dout, deltas, out_at, dout_at, queries, width, ROWS: bl.constexpr, WIDTH: bl.constexpr):
    """Writes the sum of out * dout per query."""
    block, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    rows = block * ROWS + bl.arange(0, ROWS)
    result = head_of(out, batch, head, out_at, queries, width, ROWS, WIDTH).load([block * ROWS, 0])
    given = head_of(dout, batch, head, dout_at, queries, width, ROWS, WIDTH).load([block * ROWS, 0])
    line = deltas + (batch.to(bl.int64) * bl.num_programs(1) + head) * queries
    wide = deltas.dtype.element_ty
    bl.store(line + rows, bl.sum(result.to(wide) * given.to(wide), axis=1), mask=rows < queries)


@blocknb.kernel
def masked_key_gradients_kernel(
    q, k, v, dout, dk, dv, logsumexp, deltas, q_at, k_at, v_at, dout_at, dk_at, dv_at, scale, queries, keys, width, group, lengths,
    shift, window, mask, mask_at, slopes, soft_cap, CAUSAL: bl.constexpr, EXACT: bl.constexpr, WIDTH: bl.constexpr,
    PRECISION: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr,
):  # fmt: skip
    """Computes dk and dv for COLUMNS keys of one head of k and v."""
    WIDE: bl.constexpr = bl.float64 if q.dtype.element_ty == bl.float64 else bl.float32
    block, shared, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    first = block * COLUMNS
    columns = first + bl.arange(0, COLUMNS)
    key = head_of(k, batch, shared, k_at, keys, width, COLUMNS, WIDTH).load([first, 0])
    value = head_of(v, batch, shared, v_at, keys, width, COLUMNS, WIDTH).load([first, 0])
    begin, end = 0, queries
    if CAUSAL:
        begin = max(first - shift, 0) // ROWS * ROWS
    if window is not None:
        end = min(queries, max(first + COLUMNS - 1 + window - shift, 0))
    dkey = bl.zeros((COLUMNS, WIDTH), WIDE)
    dvalue = bl.zeros((COLUMNS, WIDTH), WIDE)
    for member in range(group):
        head = shared * group + member
        queries_of = head_of(q, batch, head, q_at, queries, width, ROWS, WIDTH)
        given_of = head_of(dout, batch, head, dout_at, queries, width, ROWS, WIDTH)
        line = (batch.to(bl.int64) * bl.num_programs(1) * group + head) * queries
        for start in range(begin, end, ROWS):
            rows = start + bl.arange(0, ROWS)
            query, given = queries_of.load([start, 0]), given_of.load([start, 0])
            log = bl.load(logsumexp + line + rows, mask=rows < queries, other=0.0) * LOG2E
            delta = bl.load(deltas + line + rows, mask=rows < queries, other=0.0)
            product = bl.dot(key, query.T, input_precision=PRECISION)
            dpowers = bl.dot(value, given.T, input_precision=PRECISION)
            scores, tanh = masked_scores(
                product, rows[None, :], columns[:, None], batch, head, scale, queries, keys, lengths, shift, window, mask,
                mask_at, slopes, soft_cap, CAUSAL, EXACT,
            )  # fmt: skip
            powers = bl.exp2(scores - bl.where(log == -float("inf"), 0.0, log)[None, :])
            dvalue = bl.dot(powers.to(given.dtype), given, dvalue, input_precision=PRECISION)
            dscores = powers * (dpowers - delta[None, :])
            if soft_cap is not None:
                dscores *= 1.0 - tanh * tanh
            dkey = bl.dot(dscores.to(query.dtype), query, dkey, input_precision=PRECISION)
    dkey *= (scale if EXACT is None else EXACT[0]) * LN2
    head_of(dk, batch, shared, dk_at, keys, width, COLUMNS, WIDTH).store([first, 0], dkey.to(dk.dtype.element_ty))
    head_of(dv, batch, shared, dv_at, keys, width, COLUMNS, WIDTH).store([first, 0], dvalue.to(dv.dtype.element_ty))


@blocknb.kernel
def masked_query_gradients_kernel(
    q, k, v, dout, dq, logsumexp, deltas, q_at, k_at, v_at, dout_at, dq_at, scale, queries, keys, width, group, lengths, shift,
    window, mask, mask_at, slopes, soft_cap, CAUSAL: bl.constexpr, EXACT: bl.constexpr, WIDTH: bl.constexpr,
    PRECISION: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr,
):  # fmt: skip
    """Computes dq for a block of ROWS queries; the loop is that of the forward pass."""
    WIDE: bl.constexpr = bl.float64 if q.dtype.element_ty == bl.float64 else bl.float32
    block, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    first = block * ROWS
    rows = first + bl.arange(0, ROWS)
    query = head_of(q, batch, head, q_at, queries, width, ROWS, WIDTH).load([first, 0])
    given = head_of(dout, batch, head, dout_at, queries, width, ROWS, WIDTH).load([first, 0])
    keys_of = head_of(k, batch, head // group, k_at, keys, width, COLUMNS, WIDTH)
    values_of = head_of(v, batch, head // group, v_at, keys, width, COLUMNS, WIDTH)
    line = (batch.to(bl.int64) * bl.num_programs(1) + head) * queries
    log = bl.load(logsumexp + line + rows, mask=rows < queries, other=0.0) * LOG2E
    log = bl.where(log == -float("inf"), 0.0, log)
    delta = bl.load(deltas + line + rows, mask=rows < queries, other=0.0)
    begin, end = 0, keys
    if CAUSAL:
        end = min(keys, max(first + ROWS + shift, 0))
    if window is not None:
        begin = max(first + shift - window + 1, 0) // COLUMNS * COLUMNS
    dquery = bl.zeros((ROWS, WIDTH), WIDE)
    for start in range(begin, end, COLUMNS):
        key = keys_of.load([start, 0])
        columns = start + bl.arange(0, COLUMNS)
        product = bl.dot(query, key.T, input_precision=PRECISION)
        dpowers = bl.dot(given, values_of.load([start, 0]).T, input_precision=PRECISION)
        scores, tanh = masked_scores(
            product, rows[:, None], columns[None, :], batch, head, scale, queries, keys, lengths, shift, window, mask, mask_at,
            slopes, soft_cap, CAUSAL, EXACT,
        )  # fmt: skip
        dscores = bl.exp2(scores - log[:, None]) * (dpowers - delta[:, None])
        if soft_cap is not None:
            dscores *= 1.0 - tanh * tanh
        dquery = bl.dot(dscores.to(key.dtype), key, dquery, input_precision=PRECISION)
    dquery *= (scale if EXACT is None else EXACT[0]) * LN2
    head_of(dq, batch, head, dq_at, queries, width, ROWS, WIDTH).store([first, 0], dquery.to(dq.dtype.element_ty))


@blocknb.kernel
def mask_gradients_kernel(
    q, k, v, dout, dmask, logsumexp, deltas, q_at, k_at, v_at, dout_at, dmask_at, batches, heads, all_heads, scale, queries, keys, width,
    group, lengths, shift, window, mask, mask_at, slopes, soft_cap, CAUSAL: bl.constexpr, EXACT: bl.constexpr, WIDTH: bl.constexpr,
    PRECISION: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr,
):  # fmt: skip
    """Computes a tile of the gradient of an added mask, whose elements `batches` times `heads` heads share."""
    WIDE: bl.constexpr = bl.float64 if q.dtype.element_ty == bl.float64 else bl.float32
    blocks = bl.cdiv(keys, COLUMNS)
    first, start = bl.program_id(0) // blocks * ROWS, bl.program_id(0) % blocks * COLUMNS
    rows, columns = first + bl.arange(0, ROWS), start + bl.arange(0, COLUMNS)
    members = batches * heads
    if CAUSAL:
        members = bl.where(start > first + ROWS - 1 + shift, 0, members)
    if window is not None:
        members = bl.where(start + COLUMNS <= first + shift - window + 1, 0, members)
    total = bl.zeros((ROWS, COLUMNS), WIDE)
    for member in range(members):
        head, batch = bl.program_id(1) + member % heads, bl.program_id(2) + member // heads
        query = head_of(q, batch, head, q_at, queries, width, ROWS, WIDTH).load([first, 0])
        given = head_of(dout, batch, head, dout_at, queries, width, ROWS, WIDTH).load([first, 0])
        key = head_of(k, batch, head // group, k_at, keys, width, COLUMNS, WIDTH).load([start, 0])
        value = head_of(v, batch, head // group, v_at, keys, width, COLUMNS, WIDTH).load([start, 0])
        line = (batch.to(bl.int64) * all_heads + head) * queries
        log = bl.load(logsumexp + line + rows, mask=rows < queries, other=0.0) * LOG2E
        log = bl.where(log == -float("inf"), 0.0, log)
        delta = bl.load(deltas + line + rows, mask=rows < queries, other=0.0)
        product = bl.dot(query, key.T, input_precision=PRECISION)
        dpowers = bl.dot(given, value.T, input_precision=PRECISION)
        scores, _ = masked_scores(
            product, rows[:, None], columns[None, :], batch, head, scale, queries, keys, lengths, shift, window, mask, mask_at,
            slopes, soft_cap, CAUSAL, EXACT,
        )  # fmt: skip
        total += bl.exp2(scores - log[:, None]) * (dpowers - delta[:, None])
    line = dmask + (bl.program_id(2).to(bl.int64) * dmask_at[0] + bl.program_id(1).to(bl.int64) * dmask_at[1])
    place = line + rows.to(bl.int64)[:, None] * dmask_at[2] + columns[None, :]
    bl.store(place, total, mask=(rows < queries)[:, None] & (columns < keys)[None, :])


#: (ROWS, COLUMNS, num_warps, num_stages) on a GPU by the width of a head, for 16 bits and for more; no entry spills registers on sm_90a.
TILES = (
    {64: (64, 32, 4, 2), 128: (64, 64, 8, 2), 256: (64, 32, 8, 1)},
    {64: (32, 16, 8, 1), 128: (16, 16, 4, 1), 256: (16, 16, 8, 1)},
)
QUERY_TILES = (
    {64: (64, 32, 4, 2), 128: (64, 32, 8, 1), 256: (16, 16, 8, 1)},
    {64: (16, 16, 4, 1), 128: (16, 16, 4, 1), 256: (16, 16, 8, 1)},
)
KEY_TILES = (
    {64: (32, 64, 8, 1), 128: (32, 64, 8, 1), 256: (16, 16, 8, 1)},
    {64: (16, 32, 8, 1), 128: (16, 16, 4, 1), 256: (16, 16, 8, 1)},
)
WIDEST_TF32 = 64  # elements of a head; products of wider ones in TF32 spill registers
HOST = (64, 64, 4, 1)


def _tile(q: Any, found: Heads, tables: tuple[dict[int, tuple[int, int, int, int]], ...] = TILES) -> Tile:
    table = tables[q.dtype.itemsize > 2]
    values = HOST if on_host(q) else table[min(size for size in table if size >= found.block)]
    return dict(zip(("ROWS", "COLUMNS", "num_warps", "num_stages"), values, strict=True))


def _options(
    found: Heads, causal: bool, scale: float | None, input_precision: str, *, shift: int = 0, window: int | None = None,
    mask: Any = None, alibi_slopes: Any = None, soft_cap: float | None = None, lengths: Any = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The arguments that all kernels share, from the scale on, and their constants. Raises ValueError for options that do not fit."""
    check_options(found, window, alibi_slopes, soft_cap)
    if mask is not None:
        shape = (found.batch, found.heads, found.queries, found.keys)
        if tuple(mask.shape) != shape:
            raise ValueError(
                f"mask must have the shape {shape}, not {tuple(mask.shape)}; an axis may have a stride of 0"
            )
    if lengths is not None:
        wrong = tuple(lengths.shape) != (found.batch,) or dtype_name(lengths) not in ("int32", "int64")
        if wrong or not contiguous(lengths):
            raise ValueError(
                f"lengths must be {found.batch} contiguous int32 or int64, not {dtype_name(lengths)} of shape {tuple(lengths.shape)}"
            )
    factor = found.scale(scale) / math.log(2)
    cap = None if soft_cap is None else soft_cap / math.log(2)
    exact = (factor, cap or 0.0) if found.dtype == "float64" else None
    sizes = (factor, found.queries, found.keys, found.width, found.group, lengths, shift, window)
    shared = (*sizes, mask, None if mask is None else strides(mask), alibi_slopes, cap)
    precision = found.precision(input_precision)
    if found.dtype == "float64" or (found.dtype == "float32" and found.block > WIDEST_TF32):
        precision = "ieee"
    return shared, {"CAUSAL": causal, "EXACT": exact, "WIDTH": found.block, "PRECISION": precision}


def masked_attention(
    q: Any, k: Any, v: Any, out: Any, logsumexp: Any, *, causal: bool = False, scale: float | None = None,
    input_precision: str = "tf32", **options: Any,
) -> Any:  # fmt: skip
    """Computes softmax(scale q k^T + mask) v as `blocknb.kernels.attention` does, also for fp64, and with two more options.

    `options` are `shift`, `window`, `alibi_slopes` and `soft_cap` as there. `mask`, (batch, heads, queries, keys) with any strides, 0
    included, is uint8, where 0 hides a key, or floating, and added to the scores. A number below -1e30 hides a key. Sequence i has
    `lengths`[i] keys, int32 or int64 (batch,). A query that sees no key gets zeros. `out` is like q; `logsumexp` is (batch, heads,
    queries), fp32, or fp64 for fp64. Returns `out`. Raises ValueError for arrays and options that do not fit.
    """
    found = heads_of(q, k, v, (*DTYPES, "float64"))
    shared, constants = _options(found, causal, scale, input_precision, **options)
    if found.empty:
        out[...] = 0
        logsumexp[...] = -math.inf
        return out
    tile = _tile(q, found)
    masked_attention_kernel[(blocknb.cdiv(found.queries, tile["ROWS"]), found.heads, found.batch)](
        q, k, v, out, logsumexp, *found.steps(q, k, v, out), *shared, **constants, **tile
    )
    return out


def masked_attention_backward(
    q: Any, k: Any, v: Any, out: Any, logsumexp: Any, dout: Any, dq: Any, dk: Any, dv: Any, *, causal: bool = False,
    scale: float | None = None, input_precision: str = "tf32", **options: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Writes dq, dk and dv from dout, and returns them. Each has the shape and dtype of its array. `out` and `logsumexp` are those that the
    forward pass wrote with the same options. The result is the same in every run. Raises ValueError as `masked_attention` does."""
    found = heads_of(q, k, v, (*DTYPES, "float64"))
    shared, constants = _options(found, causal, scale, input_precision, **options)
    if found.empty:
        for array in (dq, dk, dv):
            array[...] = 0
        return dq, dk, dv
    deltas = _deltas(found, q, out, logsumexp, dout)
    of_keys, of_queries = _tile(q, found, KEY_TILES), _tile(q, found, QUERY_TILES)
    masked_key_gradients_kernel[
        (blocknb.cdiv(found.keys, of_keys["COLUMNS"]), found.heads // found.group, found.batch)
    ](q, k, v, dout, dk, dv, logsumexp, deltas, *found.steps(q, k, v, dout, dk, dv), *shared, **constants, **of_keys)
    masked_query_gradients_kernel[(blocknb.cdiv(found.queries, of_queries["ROWS"]), found.heads, found.batch)](
        q, k, v, dout, dq, logsumexp, deltas, *found.steps(q, k, v, dout, dq), *shared, **constants, **of_queries
    )
    return dq, dk, dv


def _deltas(found: Heads, q: Any, out: Any, logsumexp: Any, dout: Any) -> Any:
    """The sum of out * dout per query, of the dtype of logsumexp."""
    deltas = empty(q, (found.batch, found.heads, found.queries), dtype_name(logsumexp))
    deltas_kernel[(blocknb.cdiv(found.queries, SOME_ROWS), found.heads, found.batch)](
        out, dout, deltas, *found.steps(out, dout), found.queries, found.width, ROWS=SOME_ROWS, WIDTH=found.block
    )
    return deltas


def masked_attention_mask_gradient(
    q: Any, k: Any, v: Any, out: Any, logsumexp: Any, dout: Any, dmask: Any, *, mask: Any, causal: bool = False,
    scale: float | None = None, input_precision: str = "tf32", **options: Any,
) -> Any:  # fmt: skip
    """Writes the gradient of a floating mask to `dmask` (batch or 1, heads or 1, queries, keys), of the dtype of logsumexp. If an axis has
    size 1, the gradient is summed over it. The other arguments are those of `masked_attention_backward`. Returns `dmask`. Raises ValueError
    as that does, and for another shape."""
    found = heads_of(q, k, v, (*DTYPES, "float64"))
    shared, constants = _options(found, causal, scale, input_precision, mask=mask, **options)
    batches, heads, *rest = map(int, dmask.shape)
    shape = (found.batch, found.heads, found.queries, found.keys)
    if (
        batches not in (1, shape[0])
        or heads not in (1, shape[1])
        or tuple(rest) != shape[2:]
        or dtype_name(dmask) != dtype_name(logsumexp)
        or not contiguous(dmask)
    ):
        raise ValueError(
            f"dmask must be a contiguous {dtype_name(logsumexp)} array of the shape {shape}, where 1 sums over batches or heads, not "
            f"{dtype_name(dmask)} of {tuple(dmask.shape)}"
        )
    if found.empty:
        dmask[...] = 0
        return dmask
    deltas, tile = _deltas(found, q, out, logsumexp, dout), _tile(q, found, QUERY_TILES)
    tiles = blocknb.cdiv(found.queries, tile["ROWS"]) * blocknb.cdiv(found.keys, tile["COLUMNS"])
    counts = (found.batch // batches, found.heads // heads, found.heads)
    mask_gradients_kernel[(tiles, heads, batches)](
        q, k, v, dout, dmask, logsumexp, deltas, *found.steps(q, k, v, dout), strides(dmask)[:3], *counts, *shared, **constants, **tile
    )  # fmt: skip
    return dmask
