"""Decoding: attention over a paged cache with the keys split among programs, rotary embeddings, and writes to the cache."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides
from zoo.references import paged_decode
from zoo.registry import integers, normal, specimen


@triton.jit
def _paged_decode(
    Q, KCache, VCache, block_tables, seq_lens, Partial, PartialLSE, sm_scale, stride_qb, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_tb, stride_pb, stride_ph, stride_ps, HEADS_PER_KV: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(seq_lens + batch)
    part = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N
    begin = split * part
    end = tl.minimum(begin + part, length)
    offs_h = tl.arange(0, BLOCK_H)
    heads = kv_head * HEADS_PER_KV + offs_h
    mask_h = offs_h < HEADS_PER_KV
    offs_d = tl.arange(0, HEAD_DIM)
    q = tl.load(Q + batch * stride_qb + heads[:, None] * stride_qh + offs_d[None, :], mask=mask_h[:, None], other=0.0)
    m = tl.full([BLOCK_H], -float("inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, HEAD_DIM], dtype=tl.float32)
    if end > begin:
        for start in range(begin, end, BLOCK_N):
            offs_n = start + tl.arange(0, BLOCK_N)
            page = tl.load(block_tables + batch * stride_tb + offs_n // PAGE, mask=offs_n < end, other=0).to(tl.int64)
            at = page * stride_kb + offs_n % PAGE * stride_kt + kv_head * stride_kh
            k = tl.load(KCache + at[None, :] + offs_d[:, None], mask=offs_n[None, :] < end, other=0.0)
            qk = tl.dot(q, k.to(q.dtype)) * sm_scale
            qk = tl.where(mask_h[:, None] & (offs_n[None, :] < end), qk, float("-inf"))
            v = tl.load(VCache + at[:, None] + offs_d[None, :], mask=offs_n[:, None] < end, other=0.0)
            m_new = tl.maximum(tl.max(qk, 1), m)
            safe = tl.where(mask_h, m_new, 0.0)
            rescale = tl.exp(tl.where(mask_h, m, 0.0) - safe)
            p = tl.exp(qk - safe[:, None])
            acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v)
            total = total * rescale + tl.sum(p, 1)
            m = m_new
        out = Partial + batch * stride_pb + heads[:, None] * stride_ph + split * stride_ps + offs_d[None, :]
        tl.store(out, acc / total[:, None], mask=mask_h[:, None])
        lse = PartialLSE + (batch * stride_pb + heads * stride_ph + split * stride_ps) // HEAD_DIM
        tl.store(lse, m + tl.log(total), mask=mask_h)


@triton.jit
def _merge_splits(
    Partial, PartialLSE, seq_lens, Out, stride_pb, stride_ph, stride_ps, stride_ob, stride_oh, BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(seq_lens + batch)
    part = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N
    offs_d = tl.arange(0, HEAD_DIM)
    total = 0.0
    top = -float("inf")
    acc = tl.zeros([HEAD_DIM], dtype=tl.float32)
    base = batch * stride_pb + head * stride_ph
    for split in range(SPLITS):
        if split * part < length:
            v = tl.load(Partial + base + split * stride_ps + offs_d)
            lse = tl.load(PartialLSE + (base + split * stride_ps) // HEAD_DIM)
            new = tl.maximum(lse, top)
            old_scale = tl.exp(top - new)
            scale = tl.exp(lse - new)
            acc = acc * old_scale + scale * v
            total = total * old_scale + scale
            top = new
    tl.store(Out + batch * stride_ob + head * stride_oh + offs_d, acc / total)


def paged_attention(q, k_cache, v_cache, tables, lengths):
    """Attention of one query token per sequence over the pages (page, slot, kv head, dim) in its row of the page table."""
    batches, heads, dim = q.shape
    page, kv_heads = k_cache.shape[1:3]
    splits = 4
    out = empty(q)
    partial, lse = empty(q, (batches, heads, splits, dim), "float32"), empty(q, (batches, heads, splits), "float32")
    s = strides(k_cache)
    _paged_decode[(batches, kv_heads, splits)](
        q, k_cache, v_cache, tables, lengths, partial, lse, dim**-0.5, *strides(q)[:2], *s[:3], strides(tables)[0],
        *strides(partial)[:3], HEADS_PER_KV=heads // kv_heads, PAGE=page, BLOCK_N=16, BLOCK_H=16, HEAD_DIM=dim, SPLITS=splits, num_stages=2,
    )  # fmt: skip
    _merge_splits[(batches, heads)](
        partial, lse, lengths, out, *strides(partial)[:3], *strides(out)[:2], BLOCK_N=16, HEAD_DIM=dim, SPLITS=splits
    )
    return out


def paged_inputs(rng, batches, heads, kv_heads, dim, pages, page):
    cache = lambda: normal(rng, pages, page, kv_heads, dim, dtype=np.float16)  # noqa: E731
    tables = np.stack([rng.permutation(pages)[: pages // 2] for _ in range(batches)]).astype(np.int32)
    lengths = integers(rng, 1, pages // 2 * page, batches)
    lengths[0] = 1
    q = normal(rng, batches, heads, dim, dtype=np.float16)
    return {"q": q, "k_cache": cache(), "v_cache": cache(), "tables": tables, "lengths": lengths}


specimen(
    "paged_attention",
    paged_attention,
    paged_decode,
    2e-2,
    5e-3,
    grouped=lambda rng: paged_inputs(rng, 3, 8, 2, 32, 20, 8),
)


@triton.jit
def _rotary(
    Q, K, cos_sin, positions, stride_qt, stride_qh, stride_kt, stride_kh, stride_ct, q_heads: tl.constexpr, kv_heads: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    position = tl.load(positions + token)
    i = tl.arange(0, BLOCK)
    mask = i < HALF
    cos = tl.load(cos_sin + position * stride_ct + i, mask=mask, other=0.0)
    sin = tl.load(cos_sin + position * stride_ct + HALF + i, mask=mask, other=0.0)
    if INTERLEAVED:
        first = 2 * i
        second = 2 * i + 1
    else:
        first = i
        second = i + HALF
    if head < q_heads:
        base = Q + token * stride_qt + head * stride_qh
    else:
        base = K + token * stride_kt + (head - q_heads) * stride_kh
    x = tl.load(base + first, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(base + second, mask=mask, other=0.0).to(tl.float32)
    tl.store(base + first, x * cos - y * sin, mask=mask)
    tl.store(base + second, y * cos + x * sin, mask=mask)


def rotary(q, k, cos_sin, positions, interleaved):
    """Rotates the first dimensions of every head in place; the width of the table is their number."""
    half = cos_sin.shape[1] // 2
    q_heads, kv_heads = q.shape[1], k.shape[1]
    _rotary[(q.shape[0], q_heads + kv_heads)](
        q, k, cos_sin, positions, *strides(q)[:2], *strides(k)[:2], strides(cos_sin)[0], q_heads, kv_heads,
        HALF=half, BLOCK=triton.next_power_of_2(half), INTERLEAVED=interleaved,
    )  # fmt: skip
    return q, k


def rotary_reference(q, k, cos_sin, positions, interleaved):
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions, None, :half], cos_sin[positions, None, half:]

    def rotated(x):
        out, r = x.copy(), x[..., : 2 * half]
        a, b = (r[..., 0::2], r[..., 1::2]) if interleaved else (r[..., :half], r[..., half:])
        a, b = a * cos - b * sin, b * cos + a * sin
        out[..., : 2 * half] = np.stack([a, b], -1).reshape(r.shape) if interleaved else np.concatenate([a, b], -1)
        return out

    return rotated(q), rotated(k)


def rotary_inputs(rng, tokens, heads, kv_heads, dim, rotated, interleaved):
    angle = np.outer(np.arange(64), 10000.0 ** -(np.arange(0, rotated, 2) / rotated))
    return {
        "q": normal(rng, tokens, heads, dim), "k": normal(rng, tokens, kv_heads, dim),
        "positions": integers(rng, 0, 64, tokens, dtype=np.int64),
        "cos_sin": np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(np.float32), "interleaved": interleaved,
    }  # fmt: skip


specimen(
    "rotary", rotary, rotary_reference, 1e-5, 1e-6,
    neox=lambda rng: rotary_inputs(rng, 7, 4, 2, 64, 64, False),
    gptj=lambda rng: rotary_inputs(rng, 5, 2, 1, 48, 40, True),
)  # fmt: skip


@triton.jit
def _write_cache(
    K, V, KCache, VCache, slots, stride_t, stride_b, stride_s, heads_times_dim, PAGE: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:  # padding
        return
    at = slot // PAGE * stride_b + slot % PAGE * stride_s
    for start in range(0, heads_times_dim, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < heads_times_dim
        tl.store(KCache + at + i, tl.load(K + token * stride_t + i, mask=mask), mask=mask)
        tl.store(VCache + at + i, tl.load(V + token * stride_t + i, mask=mask), mask=mask)


def write_cache(k, v, k_cache, v_cache, slots):
    """Writes the keys and values of each token to its slot of the paged cache."""
    width = k.shape[1] * k.shape[2]
    _write_cache[(k.shape[0],)](
        k, v, k_cache, v_cache, slots, strides(k)[0], *strides(k_cache)[:2], width, PAGE=k_cache.shape[1], BLOCK=64
    )
    return k_cache, v_cache


def write_cache_reference(k, v, k_cache, v_cache, slots):
    for values, cache in ((k, k_cache), (v, v_cache)):
        flat = cache.reshape(-1, *cache.shape[2:])
        flat[slots[slots >= 0]] = values[slots >= 0]
    return k_cache, v_cache


def write_cache_inputs(rng):
    slots = rng.permutation(5 * 16)[:11].astype(np.int64)
    slots[3] = -1
    fresh = lambda *shape: normal(rng, *shape, dtype=np.float16)  # noqa: E731
    return {
        "k": fresh(11, 3, 20),
        "v": fresh(11, 3, 20),
        "k_cache": fresh(5, 16, 3, 20),
        "v_cache": fresh(5, 16, 3, 20),
        "slots": slots,
    }


specimen("write_cache", write_cache, write_cache_reference, padding=write_cache_inputs)
