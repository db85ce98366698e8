"""Attention of inference servers on tensor cores: paged caches, split keys for one token, latent keys, prefixes, and block-sparse masks."""

import itertools

import numpy as np
import triton
import triton.language as tl
from zoo import references
from zoo.arrays import empty, strides, vector
from zoo.references import causal_scores, softmax
from zoo.registry import normal, specimen

HALF = np.float16


# -- decoding: one query per head; a program has the heads of a group and a part of the paged keys


@triton.jit
def _decode_part(
    Q, K_Cache, V_Cache, Tables, Lengths, Parts, LSE, scale, stride_qb, stride_qh, stride_page, stride_slot, stride_kh, stride_table,
    HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    batch, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(Lengths + batch)
    rh = kv_head * GROUP + tl.arange(0, BLOCK_H)
    mask_h = tl.arange(0, BLOCK_H) < GROUP
    rd = tl.arange(0, D)
    q = tl.load(Q + batch * stride_qb + rh[:, None] * stride_qh + rd[None, :], mask=mask_h[:, None], other=0.0)
    per_split = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N
    begin = split * per_split
    end = tl.minimum(begin + per_split, length)
    m = tl.zeros([BLOCK_H], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, D], dtype=tl.float32)
    if end > begin:
        for start in range(begin, end, BLOCK_N):
            rn = start + tl.arange(0, BLOCK_N)
            page = tl.load(Tables + batch * stride_table + rn // PAGE, mask=rn < end, other=0)
            at = page.to(tl.int64) * stride_page + (rn % PAGE) * stride_slot + kv_head * stride_kh
            k = tl.load(K_Cache + at[None, :] + rd[:, None], mask=rn[None, :] < end, other=0.0)
            s = tl.dot(q, k.to(q.dtype)) * scale
            s = tl.where(mask_h[:, None] & (rn[None, :] < end), s, float("-inf"))
            v = tl.load(V_Cache + at[:, None] + rd[None, :], mask=rn[:, None] < end, other=0.0)
            m_new = tl.maximum(tl.max(s, 1), m)
            alpha = tl.exp(m - m_new)
            p = tl.exp(s - m_new[:, None])
            acc *= alpha[:, None]
            acc += tl.dot(p.to(v.dtype), v)
            total = total * alpha + tl.sum(p, 1)
            m = m_new
        out = Parts + ((batch * HEADS + rh[:, None]) * SPLITS + split) * D + rd[None, :]
        tl.store(out, acc / total[:, None], mask=mask_h[:, None])
        tl.store(LSE + (batch * HEADS + rh) * SPLITS + split, m + tl.log(total), mask=mask_h)


@triton.jit
def _decode_join(
    Parts,
    LSE,
    Lengths,
    Out,
    stride_ob,
    stride_oh,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    batch, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(Lengths + batch)
    rd = tl.arange(0, D)
    per_split = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N
    m = -float("inf")
    total = 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    for split in range(SPLITS):
        if split * per_split < length:
            row = (batch * HEADS + head) * SPLITS + split
            part = tl.load(Parts + row * D + rd)
            lse = tl.load(LSE + row)
            m_new = tl.maximum(lse, m)
            old = tl.exp(m - m_new)
            weight = tl.exp(lse - m_new)
            acc = acc * old + weight * part
            total = total * old + weight
            m = m_new
    tl.store(Out + batch * stride_ob + head * stride_oh + rd, acc / total)


def paged_decode(q, k_cache, v_cache, tables, lengths, splits):
    (B, H, D), (_, page, KVH, _) = q.shape, k_cache.shape
    out = empty(q)
    parts, lse = empty(q, (B, H, splits, D), "float32"), empty(q, (B, H, splits), "float32")
    group = H // KVH
    _decode_part[(B, KVH, splits)](
        q, k_cache, v_cache, tables, lengths, parts, lse, D**-0.5, *strides(q)[:2], *strides(k_cache)[:3], strides(tables)[0],
        HEADS=H, GROUP=group, BLOCK_H=max(16, triton.next_power_of_2(group)), D=D, PAGE=page, BLOCK_N=64, SPLITS=splits,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    _decode_join[(B, H)](parts, lse, lengths, out, *strides(out)[:2], H, D, splits, 64, num_warps=2)
    return out


def paged_inputs(rng, lengths, H, KVH, D, page):
    pages = -(-max(lengths) // page)
    tables = rng.permutation(pages * len(lengths)).reshape(len(lengths), pages).astype(np.int32)
    cache = [normal(rng, pages * len(lengths), page, KVH, D, dtype=HALF) for _ in range(2)]
    return {
        "q": normal(rng, len(lengths), H, D, dtype=HALF), "k_cache": cache[0], "v_cache": cache[1], "tables": tables,
        "lengths": np.array(lengths, np.int32), "splits": 3,
    }  # fmt: skip


specimen(
    "paged_decode", paged_decode, lambda splits, **given: references.paged_decode(**given), 1e-2, 3e-3,
    grouped=lambda rng: paged_inputs(rng, [150, 1, 64], 12, 2, 64, 16),
    many=lambda rng: paged_inputs(rng, [200], 64, 1, 64, 64),
)  # fmt: skip


@triton.jit
def _latent_decode(
    Q, Cache, Out, Rows, Starts, scale, stride_qb, stride_qh, stride_c, stride_ob, stride_oh, HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Multi-head latent attention: keys are (latent, rotated), values the latent part. Scores are the sum of two products."""
    batch = tl.program_id(0)
    rh = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    rc = tl.arange(0, RANK)
    rr = RANK + tl.arange(0, ROPE)
    mask_h = rh < HEADS
    q_latent = tl.load(Q + batch * stride_qb + rh[:, None] * stride_qh + rc[None, :], mask=mask_h[:, None], other=0.0)
    q_rope = tl.load(Q + batch * stride_qb + rh[:, None] * stride_qh + rr[None, :], mask=mask_h[:, None], other=0.0)
    first = tl.load(Starts + batch)
    length = tl.load(Starts + batch + 1) - first
    m = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, RANK], tl.float32)
    for n in range(0, length, BLOCK_N):
        rn = n + tl.arange(0, BLOCK_N)
        row = tl.load(Rows + first + rn, mask=rn < length, other=0)
        latent = tl.load(Cache + row[None, :] * stride_c + rc[:, None], mask=rn[None, :] < length, other=0.0)
        rope = tl.load(Cache + row[None, :] * stride_c + rr[:, None], mask=rn[None, :] < length, other=0.0)
        s = tl.dot(q_latent, latent)
        s += tl.dot(q_rope, rope)
        s = tl.where(mask_h[:, None] & (rn[None, :] < length), s * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        m_new = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m - m_new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(latent.dtype), tl.trans(latent), acc * alpha[:, None])
        m = m_new
    out = Out + batch * stride_ob + rh[:, None] * stride_oh + rc[None, :]
    tl.store(out, acc / total[:, None], mask=mask_h[:, None])


def latent_decode(q, cache, rows, starts, rank):
    B, H, D = q.shape
    out = empty(q, (B, H, rank))
    _latent_decode[(B, triton.cdiv(H, 64))](
        q, cache, out, rows, starts, D**-0.5 * 1.4426950408889634, *strides(q)[:2], strides(cache)[0], *strides(out)[:2], H,
        BLOCK_H=64, BLOCK_N=32, RANK=rank, ROPE=D - rank, num_warps=4,
    )  # fmt: skip
    return out


def latent_decode_reference(q, cache, rows, starts, rank):
    out = np.zeros((*q.shape[:2], rank))
    for b in range(len(q)):
        keys = cache[rows[starts[b] : starts[b + 1]]]
        out[b] = softmax(q[b] @ keys.T * q.shape[2] ** -0.5) @ keys[:, :rank]
    return out


specimen(
    "latent_decode", latent_decode, latent_decode_reference, 1e-2, 3e-3,
    ragged=lambda rng: {
        "q": normal(rng, 2, 70, 96, dtype=HALF), "cache": normal(rng, 100, 96, dtype=HALF),
        "rows": rng.permutation(100)[:90].astype(np.int32), "starts": np.array([0, 70, 90], np.int32), "rank": 64,
    },
)  # fmt: skip


# -- prefill: cached and new tokens, wide heads in two parts


@triton.jit
def _extend(
    Q, K, V, Out, K_Cache, V_Cache, Rows, Prefix, Starts, scale, stride_n, stride_h, HEADS_PER_KV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """New tokens see their whole prefix, and the new tokens before them."""
    batch, head = tl.program_id(1), tl.program_id(2)
    first = tl.load(Starts + batch)
    length = tl.load(Starts + batch + 1) - first
    row0 = tl.load(Prefix + batch)
    prefix = tl.load(Prefix + batch + 1) - row0
    start = tl.program_id(0) * BLOCK_M
    if start >= length:
        return
    kv_head = head // HEADS_PER_KV
    rm = start + tl.arange(0, BLOCK_M)
    rd, rr, rv = tl.arange(0, MAIN), MAIN + tl.arange(0, REST), tl.arange(0, DV)
    q_at = Q + (first + rm)[:, None] * stride_n + head * stride_h
    q = tl.load(q_at + rd[None, :], mask=(rm < length)[:, None], other=0.0)
    q_rest = tl.load(q_at + rr[None, :], mask=(rm < length)[:, None], other=0.0)
    acc = tl.zeros([BLOCK_M, DV], dtype=tl.float32)
    m = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    for n in range(0, prefix, BLOCK_N):
        n = tl.multiple_of(n, BLOCK_N)
        rn = n + tl.arange(0, BLOCK_N)
        seen = rn < prefix
        row = tl.load(Rows + row0 + rn, mask=seen, other=0)
        k_at = K_Cache + row[None, :] * stride_n + kv_head * stride_h
        s = tl.dot(q, tl.load(k_at + rd[:, None], mask=seen[None, :], other=0.0))
        s += tl.dot(q_rest, tl.load(k_at + rr[:, None], mask=seen[None, :], other=0.0))
        s = tl.where(seen[None, :], s * scale, float("-inf"))
        m_new = tl.maximum(tl.max(s, 1), m)
        alpha, p = tl.exp(m - m_new), tl.exp(s - m_new[:, None])
        total = total * alpha + tl.sum(p, 1)
        v = tl.load(V_Cache + row[:, None] * stride_n + kv_head * stride_h + rv[None, :], mask=seen[:, None], other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m = m_new
    for n in range(0, min(start + BLOCK_M, length), BLOCK_N):
        rn = n + tl.arange(0, BLOCK_N)
        seen = rn < length
        k_at = K + (first + rn)[None, :] * stride_n + kv_head * stride_h
        s = tl.dot(q, tl.load(k_at + rd[:, None], mask=seen[None, :], other=0.0))
        s += tl.dot(q_rest, tl.load(k_at + rr[:, None], mask=seen[None, :], other=0.0))
        s = tl.where(seen[None, :] & (rm[:, None] >= rn[None, :]), s * scale, float("-inf"))
        m_new = tl.maximum(tl.max(s, 1), m)
        alpha, p = tl.exp(m - m_new), tl.exp(s - m_new[:, None])
        total = total * alpha + tl.sum(p, 1)
        v = tl.load(
            V + (first + rn)[:, None] * stride_n + kv_head * stride_h + rv[None, :], mask=seen[:, None], other=0.0
        )
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m = m_new
    out = Out + (first + rm)[:, None] * stride_n + head * stride_h + rv[None, :]
    tl.store(out, acc / total[:, None], mask=(rm < length)[:, None])


def extend(q, k, v, k_cache, v_cache, rows, prefix, starts, main):
    """Every head has `main` + 32 elements; values are the first 64 of them."""
    out = empty(q)
    H, D = q.shape[1:]
    longest = max(int(b) - int(a) for a, b in itertools.pairwise(starts))
    _extend[(triton.cdiv(longest, 64), len(starts) - 1, H)](
        q, k, v, out, k_cache, v_cache, rows, vector(q, list(prefix)), vector(q, list(starts)), D**-0.5, *strides(q)[:2], 1,
        BLOCK_M=64, BLOCK_N=64, MAIN=main, REST=D - main, DV=64, num_warps=4,
    )  # fmt: skip
    return out[:, :, :64] + 0


def extend_reference(q, k, v, k_cache, v_cache, rows, prefix, starts, main):
    out = np.zeros((*q.shape[:2], 64))
    for b in range(len(starts) - 1):
        new = slice(starts[b], starts[b + 1])
        old = rows[prefix[b] : prefix[b + 1]]
        keys, values = (np.concatenate([x[old], y[new]]) for x, y in ((k_cache, k), (v_cache, v)))
        s = np.einsum("mhd,nhd->hmn", q[new], keys) * q.shape[2] ** -0.5
        out[new] = np.einsum("hmn,nhd->mhd", softmax(causal_scores(s)), values[:, :, :64])
    return out


def extend_inputs(rng):
    made = {
        name: normal(rng, n, 2, 96, dtype=HALF)
        for name, n in (("q", 100), ("k", 100), ("v", 100), ("k_cache", 90), ("v_cache", 90))
    }
    return made | {
        "rows": rng.permutation(90).astype(np.int32),
        "prefix": [0, 70, 70],
        "starts": [0, 30, 100],
        "main": 64,
    }


specimen("extend", extend, extend_reference, 1e-2, 3e-3, ragged=extend_inputs)


@triton.jit
def _chosen_blocks(
    Q, K, V, Out, Counts, Blocks, stride_h, stride_n, N, scale, MOST: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr
):
    """Block-sparse attention: a block of queries sees the blocks of keys in its list, the diagonal one with a causal mask."""
    pid, head = tl.program_id(0), tl.program_id(1)
    rm = pid * BLOCK + tl.arange(0, BLOCK)
    rd = tl.arange(0, D)
    base = head.to(tl.int64) * stride_h
    q_block = tl.make_block_ptr(Q + base, (N, D), (stride_n, 1), (pid * BLOCK, 0), (BLOCK, D), (1, 0))
    q = (tl.load(q_block, boundary_check=(0,)) * scale).to(Q.dtype.element_ty)
    m = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, D), tl.float32)
    for i in range(tl.load(Counts + pid)):
        block = tl.load(Blocks + pid * MOST + i)
        k_block = tl.make_block_ptr(K + base, (D, N), (1, stride_n), (0, block * BLOCK), (D, BLOCK), (0, 1))
        v_block = tl.make_block_ptr(V + base, (N, D), (stride_n, 1), (block * BLOCK, 0), (BLOCK, D), (1, 0))
        s = tl.dot(q, tl.load(k_block, boundary_check=(1,)))
        rn = block * BLOCK + tl.arange(0, BLOCK)
        if block == pid:
            s = tl.where(rm[:, None] >= rn[None, :], s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        alpha = tl.math.exp2(m - m_new)
        p = tl.math.exp2(s - m_new[:, None])
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(V.dtype.element_ty), tl.load(v_block, boundary_check=(0,)), acc * alpha[:, None])
        m = m_new
    tl.store(Out + base + rm[:, None] * stride_n + rd[None, :], acc / total[:, None], mask=rm[:, None] < N)


def chosen_blocks(q, k, v, counts, blocks):
    H, N, D = q.shape
    out = empty(q)
    _chosen_blocks[(triton.cdiv(N, 64), H)](
        q,
        k,
        v,
        out,
        counts,
        blocks,
        *strides(q)[:2],
        N,
        D**-0.5 * 1.4426950408889634,
        blocks.shape[1],
        64,
        D,
        num_warps=4,
    )
    return out


def chosen_blocks_reference(q, k, v, counts, blocks):
    N = q.shape[1]
    seen = np.zeros((N, N), bool)
    for i, count in enumerate(counts):
        for j in blocks[i, :count]:
            seen[64 * i : 64 * i + 64, 64 * j : 64 * j + 64] = True
    s = q @ k.swapaxes(1, 2) * q.shape[2] ** -0.5
    return softmax(causal_scores(np.where(seen, s, -np.inf))) @ v


specimen(
    "chosen_blocks", chosen_blocks, chosen_blocks_reference, 1e-2, 4e-3,
    ragged=lambda rng: {name: normal(rng, 2, 180, 64, dtype=HALF) for name in "qkv"}
    | {"counts": np.array([1, 1, 2], np.int32), "blocks": np.array([[0, 9, 9], [1, 9, 9], [0, 2, 9]], np.int32)},
)  # fmt: skip
