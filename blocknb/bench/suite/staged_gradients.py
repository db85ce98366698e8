"""The backward pass of Triton's tutorial 06, "Fused Attention", in the tutorial's form: a kernel of pointers and four loops.

A program computes dk and dv of a block of keys, then dq of a block of queries. With a causal mask, the blocks on the diagonal have a
separate loop, in steps half as long. k comes scaled by scale / ln(2), and `logs` holds the logarithms to base 2 of the sums of
exponentials. Block sizes, warps and stages are the tutorial's.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl

LOG2E, LN2 = 1.4426950408889634, bl.constexpr(0.6931471824645996)
TUTORIAL = {"BLOCK_M1": 32, "BLOCK_N1": 128, "BLOCK_M2": 128, "BLOCK_N2": 32, "num_warps": 4, "num_stages": 5}


@blocknb.kernel
def staged_deltas_kernel(out, dout, deltas, tokens, ROWS: bl.constexpr, HEAD: bl.constexpr):
    """Writes a row's sum of out * dout for a block of ROWS rows."""
    rows, head = bl.program_id(0) * ROWS + bl.arange(0, ROWS), bl.program_id(1)
    at = head * HEAD * tokens + rows[:, None] * HEAD + bl.arange(0, HEAD)[None, :]
    bl.store(deltas + head * tokens + rows, bl.sum(bl.load(out + at) * bl.load(dout + at).to(bl.float32), axis=1))


@blocknb.kernel
def _key_steps(
    dk, dv, q, k, v, dout, logs, deltas, row_stride, head_stride, begin_n, begin_m, steps, MASK: bl.constexpr,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, HEAD: bl.constexpr,
):  # fmt: skip
    offs_m, offs_n, offs_d = begin_m + bl.arange(0, BLOCK_M), begin_n + bl.arange(0, BLOCK_N), bl.arange(0, HEAD)
    q_t_at = q + offs_m[None, :] * row_stride + offs_d[:, None] * head_stride
    dout_at = dout + offs_m[:, None] * row_stride + offs_d[None, :] * head_stride
    now = begin_m
    for _ in range(steps):
        q_t = bl.load(q_t_at)
        offs_m = now + bl.arange(0, BLOCK_M)
        powers = bl.exp2(bl.dot(k, q_t) - bl.load(logs + offs_m)[None, :])
        if MASK:
            powers = bl.where(offs_m[None, :] >= offs_n[:, None], powers, 0.0)
        given = bl.load(dout_at)
        dv += bl.dot(powers.to(given.dtype), given)
        delta = bl.load(deltas + offs_m)
        dpowers = bl.dot(v, bl.trans(given)).to(bl.float32)
        dscores = (powers * (dpowers - delta[None, :])).to(q_t.dtype)
        dk += bl.dot(dscores, bl.trans(q_t))
        now += BLOCK_M
        q_t_at += BLOCK_M * row_stride
        dout_at += BLOCK_M * row_stride
    return dk, dv


@blocknb.kernel
def _query_steps(
    dq, q, k, v, dout, log, deltas, row_stride, head_stride, begin_m, begin_n, steps, MASK: bl.constexpr,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, HEAD: bl.constexpr,
):  # fmt: skip
    offs_m, offs_n, offs_d = begin_m + bl.arange(0, BLOCK_M), begin_n + bl.arange(0, BLOCK_N), bl.arange(0, HEAD)
    k_t_at = k + offs_n[None, :] * row_stride + offs_d[:, None] * head_stride
    v_t_at = v + offs_n[None, :] * row_stride + offs_d[:, None] * head_stride
    delta = bl.load(deltas + offs_m)
    now = begin_n
    for _ in range(steps):
        k_t, v_t = bl.load(k_t_at), bl.load(v_t_at)
        powers = bl.exp2(bl.dot(q, k_t) - log)
        if MASK:
            offs_n = now + bl.arange(0, BLOCK_N)
            powers = bl.where(offs_m[:, None] >= offs_n[None, :], powers, 0.0)
        dpowers = bl.dot(dout, v_t).to(bl.float32)
        dscores = (powers * (dpowers - delta[:, None])).to(k_t.dtype)
        dq += bl.dot(dscores, bl.trans(k_t))
        now += BLOCK_N
        k_t_at += BLOCK_N * row_stride
        v_t_at += BLOCK_N * row_stride
    return dq


@blocknb.kernel
def staged_gradients_kernel(
    q, k, v, scale, dout, dq, dk, dv, logs, deltas, batch_stride, heads_stride, row_stride, head_stride, heads, tokens,
    BLOCK_M1: bl.constexpr, BLOCK_N1: bl.constexpr, BLOCK_M2: bl.constexpr, BLOCK_N2: bl.constexpr,
    HEAD: bl.constexpr, CAUSAL: bl.constexpr, SLICES: bl.constexpr,
):  # fmt: skip
    """Writes dk and dv of BLOCK_N1 keys, and dq of BLOCK_M2 queries, of the head that program_id(2) counts."""
    of = bl.program_id(2)
    line = (of * tokens).to(bl.int64)
    base = (heads_stride * (of % heads) + batch_stride * (of // heads)).to(bl.int64)
    q, k, v, dout, dq, dk, dv = q + base, k + base, v + base, dout + base, dq + base, dk + base, dv + base
    logs, deltas = logs + line, deltas + line
    offs_d = bl.arange(0, HEAD)[None, :] * head_stride

    begin_n, begin_m = bl.program_id(0) * BLOCK_N1, 0
    at = (begin_n + bl.arange(0, BLOCK_N1))[:, None] * row_stride + offs_d
    key, value = bl.load(k + at), bl.load(v + at)
    dkey, dvalue = bl.zeros([BLOCK_N1, HEAD], bl.float32), bl.zeros([BLOCK_N1, HEAD], bl.float32)
    HALF_M: bl.constexpr = BLOCK_M1 // SLICES
    if CAUSAL:
        begin_m = begin_n
        dkey, dvalue = _key_steps(
            dkey, dvalue, q, key, value, dout, logs, deltas, row_stride, head_stride, begin_n, begin_m,
            BLOCK_N1 // HALF_M, MASK=True, BLOCK_M=HALF_M, BLOCK_N=BLOCK_N1, HEAD=HEAD,
        )  # fmt: skip
        begin_m += BLOCK_N1 // HALF_M * HALF_M
    dkey, dvalue = _key_steps(
        dkey, dvalue, q, key, value, dout, logs, deltas, row_stride, head_stride, begin_n, begin_m,
        (tokens - begin_m) // BLOCK_M1, MASK=False, BLOCK_M=BLOCK_M1, BLOCK_N=BLOCK_N1, HEAD=HEAD,
    )  # fmt: skip
    bl.store(dv + at, dvalue)
    bl.store(dk + at, dkey * scale)

    begin_m, begin_n = bl.program_id(0) * BLOCK_M2, 0
    steps = tokens // BLOCK_N2
    rows = begin_m + bl.arange(0, BLOCK_M2)
    at = rows[:, None] * row_stride + offs_d
    query, given, log = bl.load(q + at), bl.load(dout + at), bl.load(logs + rows)[:, None]
    dquery = bl.zeros([BLOCK_M2, HEAD], bl.float32)
    HALF_N: bl.constexpr = BLOCK_N2 // SLICES
    if CAUSAL:
        end_n = begin_m + BLOCK_M2
        steps = BLOCK_M2 // HALF_N
        dquery = _query_steps(
            dquery, query, k, v, given, log, deltas, row_stride, head_stride, begin_m, end_n - steps * HALF_N, steps,
            MASK=True, BLOCK_M=BLOCK_M2, BLOCK_N=HALF_N, HEAD=HEAD,
        )  # fmt: skip
        end_n -= steps * HALF_N
        steps = end_n // BLOCK_N2
        begin_n = end_n - steps * BLOCK_N2
    dquery = _query_steps(
        dquery, query, k, v, given, log, deltas, row_stride, head_stride, begin_m, begin_n, steps,
        MASK=False, BLOCK_M=BLOCK_M2, BLOCK_N=BLOCK_N2, HEAD=HEAD,
    )  # fmt: skip
    bl.store(dq + at, dquery * LN2)


def staged_gradients(
    q: Any, k: Any, v: Any, out: Any, logs: Any, dout: Any, dq: Any, dk: Any, dv: Any, scaled: Any, deltas: Any,
    causal: bool, scale: float,
) -> None:  # fmt: skip
    """Computes dq, dk and dv of contiguous fp16 arrays (batch, heads, tokens, head); tokens are a multiple of 128.

    `scaled` is `k * scale / ln(2)`, and `logs` are the logarithms to base 2 of the sums of exponentials. The tutorial computes both before
    the kernels run. `deltas` is memory for one fp32 number per query.
    """
    batch, heads, tokens, head = q.shape
    staged_deltas_kernel[(tokens // 128, batch * heads)](out, dout, deltas, tokens, ROWS=128, HEAD=head)
    staged_gradients_kernel[(tokens // 128, 1, batch * heads)](
        q, scaled, v, scale, dout, dq, dk, dv, logs, deltas, heads * tokens * head, tokens * head, head, 1, heads, tokens,
        HEAD=head, CAUSAL=causal, SLICES=2, **TUTORIAL,
    )  # fmt: skip
