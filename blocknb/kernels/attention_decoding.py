"""Attention for decoding: a few queries at the end of each sequence, over a contiguous or paged cache of keys and values.

The time is that of reading the cache once. A tile holds the queries of all heads that share one head of keys (GQA: Ainslie et al. 2023),
so no group reads keys twice. One sequence has too few such tiles for a GPU. So the keys are split over programs (Flash-Decoding: Dao et
al. 2023): each computes the maximum, the sum and the output of its keys with an online softmax, and a second launch combines them. The
program loads its number of keys from `lengths`, so the host need not know it: the splits of a short sequence are short.

A paged cache (PagedAttention: Kwon et al. 2023) holds pages of keys of all sequences, and a block table the pages of each sequence.
Software pipelining copies the pages of later iterations, and loads their numbers before.
"""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.attention import LEAST, biased
from blocknb.kernels.decoding import DecodingProblem
from blocknb.kernels.heads import Tile, check_options
from blocknb.kernels.strides import empty, strides


@blocknb.kernel
def page_of(pages, start, columns, length, PAGE: bl.constexpr, COLUMNS: bl.constexpr):
    """The page of each of COLUMNS keys from `start` on, one number if they share a page; `pages` is the sequence's line of the table."""
    if PAGE == 0:
        page = 0
    elif PAGE % COLUMNS == 0:
        page = bl.load(pages + start // PAGE).to(bl.int64)
    else:
        page = bl.load(pages + (start + columns) // PAGE, mask=start + columns < length, other=0).to(bl.int64)
    return page


@blocknb.kernel
def rows_of(cache, page, start, columns, steps, PAGE: bl.constexpr, COLUMNS: bl.constexpr):
    """The addresses of COLUMNS rows of a cache from key `start` on."""
    if PAGE == 0:
        rows = cache + start.to(bl.int64) * steps[2] + columns * steps[2]
    elif PAGE % COLUMNS == 0:
        rows = cache + (page * steps[0] + start % PAGE * steps[2]) + columns * steps[2]
    else:
        rows = cache + (page * steps[0] + (start + columns) % PAGE * steps[2])
    return rows


@blocknb.kernel
def decoding_kernel(
    q, k, v, out, workspace, lengths, block_table, slopes, q_at, k_at, v_at, out_at, table_at, scale, soft_cap, window, keys, queries,
    width, splits, GROUP: bl.constexpr, PAGE: bl.constexpr, CAUSAL: bl.constexpr, ROWS: bl.constexpr,
    COLUMNS: bl.constexpr, WIDTH: bl.constexpr, EXACT: bl.constexpr,
):  # fmt: skip
    """Computes ROWS queries of one group of heads over one split of the keys.

    The program ids are the split, the group's tile of queries, and the batch. Row r of a group is query r // GROUP of its head r % GROUP.
    EXACT: WIDTH is `width`. With a workspace the result is partial: maxima, then sums, of the shape (programs, splits, ROWS), then outputs.
    """
    if workspace is not None:
        bl.extra.cuda.gdc_launch_dependents()
    split, batch, tiles = bl.program_id(0), bl.program_id(2), bl.cdiv(queries * GROUP, ROWS)
    head, tile = bl.program_id(1) // tiles, bl.program_id(1) % tiles
    length = keys if lengths is None else bl.maximum(bl.minimum(bl.load(lengths + batch), keys), 0).to(bl.int32)
    rows, columns, inner = tile * ROWS + bl.arange(0, ROWS), bl.arange(0, COLUMNS), bl.arange(0, WIDTH)
    query, heads = rows // GROUP, head * GROUP + rows % GROUP
    position = length - queries + query  # of a query among the keys
    there = (query < queries)[:, None] if EXACT else (query < queries)[:, None] & (inner < width)[None, :]
    lines = q + batch.to(bl.int64) * q_at[0] + heads * q_at[1] + query * q_at[2]
    queried = bl.load(lines[:, None] + inner[None, :], mask=there, other=0.0)
    # The keys that some query sees, `least` to `seen`. All see those from `free` on, up to `whole`, so these need no mask.
    first, final = tile * ROWS // GROUP, bl.minimum(((tile + 1) * ROWS - 1) // GROUP, queries - 1)
    seen = bl.maximum(length - queries + final + 1, 0) if CAUSAL else length
    whole = length - queries + first + 1 if CAUSAL else length
    least, free = 0, 0
    if window is not None:
        least = bl.maximum(length - queries + first - window + 1, 0) // COLUMNS * COLUMNS
        free = length - queries + final - window + 1
    count = bl.cdiv(bl.maximum(seen - least, 0), COLUMNS)
    k += head.to(bl.int64) * k_at[1] + (batch.to(bl.int64) * k_at[0] if PAGE == 0 else 0)
    v += head.to(bl.int64) * v_at[1] + (batch.to(bl.int64) * v_at[0] if PAGE == 0 else 0)
    pages = None if PAGE == 0 else block_table + batch.to(bl.int64) * table_at
    slope = None if slopes is None else bl.load(slopes + heads, mask=query < queries, other=0.0)
    top, total = bl.full((ROWS,), LEAST, bl.float32), bl.zeros((ROWS,), bl.float32)
    result = bl.zeros((ROWS, WIDTH), bl.float32)
    for start in range(
        least + split * count // splits * COLUMNS, least + (split + 1) * count // splits * COLUMNS, COLUMNS
    ):
        at = start + columns
        inside = (at < length)[:, None] if EXACT else (at < length)[:, None] & (inner < width)[None, :]
        page = page_of(pages, start, columns, length, PAGE, COLUMNS)
        key_rows = rows_of(k, page, start, columns, k_at, PAGE, COLUMNS)
        some_keys = bl.load(key_rows[:, None] + inner[None, :], mask=inside, other=0.0)
        scores = biased(bl.dot(queried, some_keys.T) * scale, at, position, slope, soft_cap, CAUSAL)
        if start + COLUMNS > whole or start < free:
            visible = at[None, :] <= (position[:, None] if CAUSAL else length - 1)
            if window is not None:
                visible &= at[None, :] > position[:, None] - window
            scores = bl.where(visible, scores, -float("inf"))
        larger = bl.maximum(top, bl.max(scores, axis=1))
        powers = bl.exp2(scores - larger[:, None])
        factor = bl.exp2(top - larger)
        total = total * factor + bl.sum(powers, axis=1)
        value_rows = rows_of(v, page, start, columns, v_at, PAGE, COLUMNS)
        values = bl.load(value_rows[:, None] + inner[None, :], mask=inside, other=0.0)
        result = bl.dot(powers.to(values.dtype), values, result * factor[:, None])
        top = larger
    if workspace is not None:
        program, size = (
            batch * bl.num_programs(1) + bl.program_id(1),
            bl.num_programs(2) * bl.num_programs(1) * splits * ROWS,
        )
        line = (program * splits + split) * ROWS + bl.arange(0, ROWS)
        bl.store(workspace + line, top, mask=query < queries)
        bl.store(workspace + size + line, total, mask=query < queries)
        bl.store(workspace + 2 * size + line[:, None].to(bl.int64) * WIDTH + inner[None, :], result, mask=there)
    else:
        result *= (1.0 / bl.where(total == 0.0, 1.0, total))[:, None]
        lines = out + batch.to(bl.int64) * out_at[0] + heads * out_at[1] + query * out_at[2]
        bl.store(lines[:, None] + inner[None, :], result.to(out.dtype.element_ty), mask=there)


@blocknb.kernel
def combine_kernel(
    workspace, out, out_at, width, splits, tiles, GROUP: bl.constexpr, ROWS: bl.constexpr, SPLITS: bl.constexpr,
    WIDTH: bl.constexpr,
):  # fmt: skip
    """Combines the partial results of one row of a group of heads; the program ids are the row, the group and the batch."""
    bl.extra.cuda.gdc_wait()  # this launch starts while `decoding_kernel` ends
    row, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    split, inner = bl.arange(0, SPLITS), bl.arange(0, WIDTH)
    program = (batch * bl.num_programs(1) + head) * tiles + row // ROWS
    line, size = (
        (program * splits + split) * ROWS + row % ROWS,
        bl.num_programs(2) * bl.num_programs(1) * tiles * splits * ROWS,
    )
    there = split < splits
    most = bl.load(workspace + line, mask=there, other=LEAST)
    weight = bl.exp2(most - bl.max(most, 0))
    total = bl.sum(weight * bl.load(workspace + size + line, mask=there, other=0.0), 0)
    part = bl.load(
        workspace + 2 * size + line[:, None].to(bl.int64) * WIDTH + inner[None, :],
        mask=there[:, None] & (inner < width)[None, :],
        other=0.0,
    )
    result = bl.sum(weight[:, None] * part, 0) / bl.where(total == 0.0, 1.0, total)
    at = out + batch.to(bl.int64) * out_at[0] + (head * GROUP + row % GROUP) * out_at[1] + row // GROUP * out_at[2]
    bl.store(at + inner, result.to(out.dtype.element_ty), mask=inner < width)


def attention_decoding(
    q: Any, k: Any, v: Any, out: Any = None, *, lengths: Any = None, block_table: Any = None, causal: bool = True,
    scale: float | None = None, window: int | None = None, alibi_slopes: Any = None, soft_cap: float | None = None,
    splits: int | None = None, tile: Tile | None = None,
) -> Any:  # fmt: skip
    """Computes softmax(scale q k^T) v for the last queries of each sequence; returns `out`, a new array for None.

    q and out have the shape (batch, heads, queries, head) with up to 16 queries, k and v (batch, kv heads, keys, head). Consecutive heads
    of q share one head of k and v. All are fp16, bf16 or fp32, with any strides and 1 along the last axis; a head has 8 to 256 elements.
    `lengths`, int32 or int64 (batch,), holds the number of keys of each sequence, at most `keys`, which is the default. The kernel does not
    read keys beyond it.

    With `block_table`, int32 or int64 (batch, pages per sequence), k and v consist of pages, (pages, kv heads, page size, head). Row i of
    the table holds the numbers of the pages of sequence i, in order. A page has 16 keys or more. A table's entries must be valid for all
    keys of the sequence. A cache in the memory order (pages, page size, kv heads, head) is passed as `cache.swapaxes(1, 2)`.

    The queries are the last tokens of the sequence: with `causal`, query i of Q sees the keys up to length - Q + i. `window` is the number
    of keys, up to its own, that a query sees. `alibi_slopes`, fp32 (heads,), adds -slope |position of query - position of key| to the
    scores. `soft_cap` makes each score cap tanh(score / cap), before slopes. `scale` is positive, 1 / sqrt(head) by default. A query that
    sees no key gets zeros. `splits` is the number of programs per sequence and group of heads, and `tile` (ROWS, COLUMNS, num_warps,
    num_stages); a rule chooses them.

    Raises TypeError for a list or another object that is no array. Raises ValueError for arrays whose shapes, dtypes or strides do not fit,
    and for options out of range.
    """
    found = DecodingProblem.of(q, k, v, block_table)
    found.check_lengths(lengths)
    check_options(found, window, alibi_slopes, soft_cap)
    out = empty(q, tuple(q.shape), found.dtype) if out is None else out
    found.check_out(out)
    if splits is not None and splits < 1:
        raise ValueError(f"splits must be 1 or more, not {splits}; None chooses it")
    factor = found.scale(scale) / math.log(2)
    if found.empty:
        out[...] = 0
        return out
    tile = found.tile(q) if tile is None else tile
    tiles, rows = blocknb.cdiv(found.rows, tile["ROWS"]), tile["ROWS"]
    splits = found.splits(q, tile, window, splits)
    programs = found.batch * found.kv_heads * tiles
    workspace = empty(q, (programs * splits * rows * (found.block + 2),), "float32") if splits > 1 else None
    steps = found.steps(q, k, v, out)
    decoding_kernel[splits, found.kv_heads * tiles, found.batch](
        q, k, v, out, workspace, lengths, block_table, alibi_slopes, *steps, strides(block_table)[0] if found.page else 0, factor,
        None if soft_cap is None else soft_cap / math.log(2), window, found.keys, found.queries, found.width, splits,
        GROUP=found.group, PAGE=found.page, CAUSAL=causal and found.queries > 1, WIDTH=found.block, EXACT=found.width == found.block,
        **tile,
    )  # fmt: skip
    if splits > 1:
        combine_kernel[found.rows, found.kv_heads, found.batch](
            workspace, out, steps[3], found.width, splits, tiles,
            GROUP=found.group, ROWS=rows, SPLITS=blocknb.next_power_of_2(splits), WIDTH=found.block, num_warps=4,
        )  # fmt: skip
    return out
