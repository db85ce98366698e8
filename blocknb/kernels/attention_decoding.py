"""Attention of the last queries of sequences over a cache of keys and values: contiguous or paged, split over programs."""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import device, dtype_name, empty, strides

LEAST = bl.constexpr(-3.4028234663852886e38)
LOG2E = bl.constexpr(1.4426950408889634)


@blocknb.kernel
def decoding_kernel(
    q, k, v, out, lengths, table, slopes, maxima, sums, parts, counters, q_at, k_at, v_at, out_at, table_at,
    scale, cap, window, keys, queries, width, splits,
    GROUP: bl.constexpr, PAGE: bl.constexpr, CAUSAL: bl.constexpr, FULL: bl.constexpr, SPLIT: bl.constexpr,
    ROWS: bl.constexpr, COLUMNS: bl.constexpr, WIDTH: bl.constexpr, SWAP: bl.constexpr = False, ONE: bl.constexpr = True,
):  # fmt: skip
    """Computes the partial result of one split of the keys for a tile of the queries of one group of heads."""
    split, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    tiles = bl.cdiv(queries * GROUP, ROWS)
    tile = head % tiles
    head = head // tiles
    length = keys
    if lengths is not None:
        length = bl.load(lengths + batch)
    rows, columns, wide = tile * ROWS + bl.arange(0, ROWS), bl.arange(0, COLUMNS), bl.arange(0, WIDTH)
    at = rows // GROUP
    heads = head * GROUP + rows % GROUP
    position = length - queries + at  # of the query among the keys
    there = at < queries
    in_width = wide < width
    query_mask = there[:, None] if FULL else there[:, None] & in_width[None, :]
    q_row = q + batch.to(bl.int64) * q_at[0] + heads * q_at[1] + at * q_at[2]
    query = bl.load(q_row[:, None] + wide[None, :], mask=query_mask, other=0.0)
    first_query = tile * ROWS // GROUP
    last_query = min(queries, bl.cdiv((tile + 1) * ROWS, GROUP)) - 1
    seen, whole, least = length, length, 0
    if CAUSAL:
        seen = max(length - queries + last_query + 1, 0)
        whole = length - queries + first_query + 1
    if window is not None:
        least = max(length - queries + first_query - window + 1, 0) // COLUMNS * COLUMNS
        free = length - queries + last_query - window + 1
    count = bl.cdiv(max(seen - least, 0), COLUMNS)
    begin, end = least + split * count // splits * COLUMNS, least + (split + 1) * count // splits * COLUMNS
    k += head.to(bl.int64) * k_at[1]
    v += head.to(bl.int64) * v_at[1]
    if PAGE == 0:
        k += batch.to(bl.int64) * k_at[0]
        v += batch.to(bl.int64) * v_at[0]
    top = bl.full((ROWS,), LEAST, bl.float32)
    total = bl.zeros((ROWS,), bl.float32)
    if SWAP:
        result = bl.zeros((WIDTH, ROWS), bl.float32)
    else:
        result = bl.zeros((ROWS, WIDTH), bl.float32)
    if slopes is not None:
        slope = bl.load(slopes + heads, mask=there, other=0.0) * LOG2E
    for start in range(begin, end, COLUMNS):
        key = start + columns
        inside = key < length
        mask = inside[:, None] if FULL else inside[:, None] & in_width[None, :]
        if PAGE == 0:
            k_tile = k + start.to(bl.int64) * k_at[2] + columns[:, None] * k_at[2] + wide[None, :]
            v_tile = v + start.to(bl.int64) * v_at[2] + columns[:, None] * v_at[2] + wide[None, :]
        elif PAGE % COLUMNS == 0:
            page = bl.load(table + batch * table_at + start // PAGE).to(bl.int64)
            k_tile = k + (page * k_at[0] + start % PAGE * k_at[2]) + columns[:, None] * k_at[2] + wide[None, :]
            v_tile = v + (page * v_at[0] + start % PAGE * v_at[2]) + columns[:, None] * v_at[2] + wide[None, :]
        else:
            page = bl.load(table + batch * table_at + key // PAGE, mask=inside, other=0).to(bl.int64)
            k_tile = k + (page * k_at[0] + key % PAGE * k_at[2])[:, None] + wide[None, :]
            v_tile = v + (page * v_at[0] + key % PAGE * v_at[2])[:, None] + wide[None, :]
        some_keys = bl.load(k_tile, mask=mask, other=0.0)
        if SWAP:
            scores = bl.dot(some_keys, query.T) * scale
        else:
            scores = bl.dot(query, some_keys.T) * scale
        if SWAP:
            key_at, row_at, last, slope_at = key[:, None], position[None, :], 0, 0
        else:
            key_at, row_at = key[None, :], position[:, None]
        if cap is not None:
            scores = cap * (2.0 / (1.0 + bl.exp2(scores * (-2.0 * LOG2E / cap))) - 1.0)  # cap tanh(scores / cap)
        if slopes is not None:
            scores += (slope[None, :] if SWAP else slope[:, None]) * (key_at - row_at).to(bl.float32)
        if window is not None:
            if start < free:
                scores = bl.where(key_at > row_at - window, scores, -float("inf"))
        if start + COLUMNS > whole:
            scores = bl.where(key_at <= (row_at if CAUSAL else length - 1), scores, -float("inf"))
        if SWAP:
            larger = bl.maximum(top, bl.max(scores, axis=0))
            powers = bl.exp2(scores - larger[None, :])
            factor = bl.exp2(top - larger)
            total = total * factor + bl.sum(powers, axis=0)
        else:
            larger = bl.maximum(top, bl.max(scores, axis=1))
            powers = bl.exp2(scores - larger[:, None])
            factor = bl.exp2(top - larger)
            total = total * factor + bl.sum(powers, axis=1)
        values = bl.load(v_tile, mask=mask, other=0.0)
        if SWAP:
            result = bl.dot(values.T, powers.to(values.dtype), result * factor[None, :])
        else:
            result = bl.dot(powers.to(values.dtype), values, result * factor[:, None])
        top = larger
    if SWAP:
        result = result.T
    out_row = out + batch.to(bl.int64) * out_at[0] + heads * out_at[1] + at * out_at[2]
    if SPLIT:
        here = batch * bl.num_programs(1) + bl.program_id(1)
        line = (here * splits + split) * ROWS + bl.arange(0, ROWS)
        bl.store(maxima + line, top, mask=there)
        bl.store(sums + line, total, mask=there)
        bl.store(parts + line[:, None].to(bl.int64) * WIDTH + wide[None, :], result, mask=query_mask)
        if ONE:
            if bl.atomic_add(counters + here, 1) == splits - 1:
                bl.store(counters + here, 0)
                line = here * splits * ROWS + bl.arange(0, ROWS)
                top = bl.full((ROWS,), LEAST, bl.float32)
                for i in range(splits):
                    top = bl.maximum(top, bl.load(maxima + line + i * ROWS, mask=there, other=LEAST))
                total = bl.zeros((ROWS,), bl.float32)
                result = bl.zeros((ROWS, WIDTH), bl.float32)
                for i in range(splits):
                    weight = bl.exp2(bl.load(maxima + line + i * ROWS, mask=there, other=LEAST) - top)
                    total += weight * bl.load(sums + line + i * ROWS, mask=there, other=0.0)
                    result += weight[:, None] * bl.load(parts + (line + i * ROWS)[:, None].to(bl.int64) * WIDTH + wide[None, :], mask=query_mask, other=0.0)
                result *= (1.0 / bl.where(total == 0.0, 1.0, total))[:, None]
                bl.store(out_row[:, None] + wide[None, :], result.to(out.dtype.element_ty), mask=query_mask)
    else:
        result *= (1.0 / bl.where(total == 0.0, 1.0, total))[:, None]
        bl.store(out_row[:, None] + wide[None, :], result.to(out.dtype.element_ty), mask=query_mask)


@blocknb.kernel
def combine_kernel(maxima, sums, parts, out, out_at, queries, width, splits, tiles,
    GROUP: bl.constexpr, ROWS: bl.constexpr, SPLITS: bl.constexpr, WIDTH: bl.constexpr):
    """Adds the partial results of one query of one head."""
    index, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)  # index: query * GROUP + head of the group
    here = (batch * bl.num_programs(1) + head) * tiles + index // ROWS
    each, wide = bl.arange(0, SPLITS), bl.arange(0, WIDTH)
    line = (here * splits + each) * ROWS + index % ROWS
    inside = each < splits
    tops = bl.load(maxima + line, mask=inside, other=LEAST)
    each_sum = bl.load(sums + line, mask=inside, other=0.0)
    part = bl.load(parts + line[:, None].to(bl.int64) * WIDTH + wide[None, :], mask=inside[:, None] & (wide < width)[None, :], other=0.0)
    weight = bl.exp2(tops - bl.max(tops, 0))
    total = bl.sum(weight * each_sum, 0)
    result = bl.sum(weight[:, None] * part, 0) / bl.where(total == 0.0, 1.0, total)
    row = out + batch.to(bl.int64) * out_at[0] + (head * GROUP + index % GROUP) * out_at[1] + index // GROUP * out_at[2]
    bl.store(row + wide, result.to(out.dtype.element_ty), mask=wide < width)


def attention_decoding(
    q: Any, k: Any, v: Any, out: Any = None, *, lengths: Any = None, table: Any = None, causal: bool = True, scale: float | None = None,
    window: int | None = None, slopes: Any = None, cap: float | None = None, splits: int | None = None, tile: Any = None,
    one: bool = True, swap: bool = False,
) -> Any:  # fmt: skip
    """x"""
    batch, heads, queries, width = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    page = k.shape[2] if table is not None else 0
    keys = table.shape[1] * page if page else k.shape[2]
    out = empty(q, tuple(q.shape), dtype_name(q)) if out is None else out
    block = max(16, blocknb.next_power_of_2(width))
    rows = queries * group
    ROWS, COLUMNS, num_warps, num_stages = tile or (max(16, min(64, blocknb.next_power_of_2(rows))), 64, 4, 3)
    tiles = blocknb.cdiv(rows, ROWS)
    programs = batch * kv_heads * tiles
    if splits is None:
        splits = max(1, min(2 * device(q).processors // programs, blocknb.cdiv(keys, COLUMNS)))
    here = counters(q) if one else q
    if splits > 1:
        maxima, sums = (empty(q, (programs * splits * ROWS,), "float32") for _ in range(2))
        parts = empty(q, (programs * splits * ROWS * block,), "float32")
    else:
        maxima = sums = parts = q
    scale = (width**-0.5 if scale is None else scale) * math.log2(math.e)
    decoding_kernel[splits, kv_heads * tiles, batch](
        q, k, v, out, lengths, table, slopes, maxima, sums, parts, here, *(strides(x)[:3] for x in (q, k, v, out)),
        strides(table)[0] if page else 0, scale, None if cap is None else cap * math.log2(math.e), window, keys, queries, width, splits,
        GROUP=group, PAGE=page, CAUSAL=causal and (queries > 1), FULL=width == block, SPLIT=splits > 1, ROWS=ROWS, COLUMNS=COLUMNS, WIDTH=block,
        SWAP=swap, ONE=one, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    if splits > 1 and not one:
        combine_kernel[rows, kv_heads, batch](
            maxima, sums, parts, out, strides(out)[:3], queries, width, splits, tiles,
            GROUP=group, ROWS=ROWS, SPLITS=blocknb.next_power_of_2(splits), WIDTH=block, num_warps=4,
        )  # fmt: skip
    return out


_counters: dict[Any, Any] = {}


def counters(q: Any) -> Any:
    key = (type(q), str(getattr(q, "device", "")))
    if key not in _counters:
        _counters[key] = empty(q, (8192,), "int32")
        _counters[key][...] = 0
    return _counters[key]
