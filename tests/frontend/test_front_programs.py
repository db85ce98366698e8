"""Whole programs in the idioms of kernels found in the wild, against NumPy."""

import numpy as np
from frontend_helpers import ir, kernel, launch

import blocknb.language as tl

LOG2E = 1.44269504


@kernel
def layer_norm(X, Y, W, B, Mean, Rstd, M, N, eps, ROWS: tl.constexpr, COLS: tl.constexpr):
    pid = tl.program_id(0)
    row = pid * ROWS + tl.arange(0, ROWS)[:, None]
    row_mask = row < M
    X += row * N
    Y += row * N
    _sum = tl.zeros([ROWS, COLS], dtype=tl.float32)
    _squares = tl.zeros([ROWS, COLS], dtype=tl.float32)
    for off in range(0, N, COLS):
        cols = off + tl.arange(0, COLS)[None, :]
        mask = row_mask and cols < N
        a = tl.load(X + cols, mask, other=0.0).to(tl.float32)
        _sum += a
        _squares += a * a
    mean = (tl.sum(_sum, axis=1) / N)[:, None]
    var = (tl.sum(_squares, axis=1) / N)[:, None] - mean * mean
    rstd = 1 / tl.sqrt(var + eps)
    tl.store(Mean + row, mean, mask=row_mask)
    tl.store(Rstd + row, rstd, row_mask)
    for off in range(0, N, COLS):
        cols = off + tl.arange(0, COLS)[None, :]
        col_mask = cols < N
        w = tl.load(W + cols, col_mask)
        b = tl.load(B + cols, col_mask) if B is not None else 0.0
        x = tl.load(X + cols, row_mask and col_mask, other=0.0).to(tl.float32)
        tl.store(Y + cols, (x - mean) * rstd * w + b, mask=row_mask and col_mask)


def test_layer_norm_of_rows_longer_than_a_block_matches_numpy():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 21)).astype(np.float16)
    w, b = rng.standard_normal((2, 21)).astype(np.float32)
    y = np.full_like(x, np.nan)
    mean, rstd = np.full((2, 5), np.nan, np.float32)
    launch(layer_norm, 2, X=x, Y=y, W=w, B=b, Mean=mean, Rstd=rstd, M=5, N=21, eps=1e-5, ROWS=4, COLS=8)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(y, expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(mean, wide.mean(1), rtol=1e-5, atol=1e-6)


def test_a_bias_that_is_none_is_skipped():
    types = dict.fromkeys(("X", "Y", "W", "Mean", "Rstd"), "*f32")
    func = ir(layer_norm, **types, B=None, M="i32", N="i32", eps="f32", ROWS=2, COLS=16)
    assert [op.name for op in func.ops()].count("load") == 3


@kernel
def attend(
    acc, l_i, m_i, q, K, V, low, high, rows, scale, stride, D: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr
):
    cols = tl.arange(0, BN)
    d = tl.arange(0, D)
    for start in tl.range(low, high, BN):
        start = tl.multiple_of(start, BN)
        k = tl.load(K + (start + cols)[None, :] * stride + d[:, None])
        qk = tl.dot(q, k, input_precision="ieee") * scale
        if MASKED:
            qk += tl.where(rows[:, None] >= (start + cols[None, :]), 0, -1.0e6)
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(V + (start + cols)[:, None] * stride + d[None, :])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        m_i = m_ij
    return acc, l_i, m_i


@kernel
def attention(Q, K, V, Out, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGE: tl.constexpr):
    tl.static_assert(BM % BN == 0)
    start = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    Q += head * n * D
    K += head * n * D
    V += head * n * D
    rows = start * BM + tl.arange(0, BM)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    m_i = tl.zeros([BM], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, D], dtype=tl.float32)
    scale *= LOG2E
    q = tl.load(Q + at)
    if STAGE & 1:
        low, high = 0, n if STAGE == 1 else start * BM
        acc, l_i, m_i = attend(acc, l_i, m_i, q, K, V, low, high, rows, scale, D, D, BN, False)
    if STAGE & 2:
        low, high = start * BM, (start + 1) * BM
        acc, l_i, m_i = attend(acc, l_i, m_i, q, K, V, low, high, rows, scale, D, D, BN, MASKED=True)
    tl.store(Out + head * n * D + at, (acc / l_i[:, None]).to(Out.type.element_ty))


def check_attention(stage):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 64, 16)).astype(np.float32)
    out = np.full_like(q, np.nan)
    launch(attention, (2, 2), Q=q, K=k, V=v, Out=out, n=64, scale=0.25, D=16, BM=32, BN=16, STAGE=stage)
    scores = q.astype(np.float64) @ k.swapaxes(1, 2) * 0.25
    if stage == 3:
        scores = np.where(np.tril(np.ones((64, 64), bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(out, p / p.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_attention_matches_numpy():
    check_attention(1)


def test_causal_attention_in_two_stages_matches_numpy():
    check_attention(3)


@kernel
def cross_entropy(
    logits, stride, loss, lse, labels, n_cols: tl.constexpr, BLOCK: tl.constexpr, SOFTCAP: tl.constexpr, cap
):
    row = tl.program_id(0)
    logits += row * stride.to(tl.int64)
    labels += row
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    label = tl.load(labels).to(tl.int32)
    x = tl.load(logits + cols, mask=mask, other=-float("inf")).to(tl.float32)
    if SOFTCAP:
        x = tl.where(mask, cap * tl.tanh(x / cap), -float("inf"))
    c = tl.max(x, 0)
    logsumexp = c + tl.log(tl.sum(tl.exp(x - c), 0))
    if label != -100:
        z = tl.load(logits + label).to(tl.float32)
        if SOFTCAP:
            z = cap * tl.tanh(z / cap)
        value = logsumexp - z
    else:
        value = 0.0
    tl.store(lse + row, logsumexp)
    tl.store(loss + row, value)


def test_cross_entropy_with_an_ignored_label_matches_numpy():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 10)).astype(np.float32)
    labels = np.array([3, -100, 9], np.int64)
    loss, lse = np.full((2, 3), np.nan, np.float32)
    launch(
        cross_entropy,
        3,
        logits=x,
        stride=np.int32(10),
        loss=loss,
        lse=lse,
        labels=labels,
        n_cols=10,
        BLOCK=16,
        SOFTCAP=True,
        cap=2.0,
    )
    capped = 2 * np.tanh(x.astype(np.float64) / 2)
    expected = np.log(np.exp(capped).sum(1))
    np.testing.assert_allclose(lse, expected, rtol=1e-5)
    np.testing.assert_allclose(loss, [expected[0] - capped[0, 3], 0, expected[2] - capped[2, 9]], rtol=1e-4)


@kernel
def persistent_sums(x, out, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A grid-stride loop over rows; in each row, a search stops at the first element above a limit."""
    for row in range(tl.program_id(0), ROWS, tl.num_programs(0)):
        i = 0
        found = False
        while (i < n) & (not found):
            found = tl.load(x + row * n + i) > 2.0
            i += 1
        tl.store(out + row, tl.where(found, i - 1, -1))


def test_persistent_programs_and_search_loops_match_numpy():
    x = np.random.default_rng(0).standard_normal((7, 40)).astype(np.float32)
    out = np.full(7, -7, np.int32)
    launch(persistent_sums, 3, x=x, out=out, n=40, ROWS=7, BLOCK=16)
    above = x > 2
    assert out.tolist() == np.where(above.any(1), above.argmax(1), -1).tolist()


@kernel
def dequantize(packed, scales, out, n, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Two 4-bit numbers per byte, with a scale per group."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(packed + (at >> 1), mask=at < n, other=0)
    nibble = (byte >> ((at & 1) * 4).to(tl.uint8)) & 0xF
    value = (nibble.to(tl.int8) - 8).to(tl.float32) * tl.load(scales + at // GROUP, mask=at < n)
    tl.store(out + at, value, at < n)


def test_bits_of_unsigned_bytes_match_numpy():
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, 20).astype(np.uint8)
    scales = rng.random(5).astype(np.float16)
    out = np.full(40, np.nan, np.float16)
    launch(dequantize, 3, packed=packed, scales=scales, out=out, n=40, GROUP=8, BLOCK=16)
    nibbles = np.stack([packed & 15, packed >> 4], 1).ravel().astype(np.int32) - 8
    np.testing.assert_array_equal(out, (nibbles * scales.astype(np.float32).repeat(8)).astype(np.float16))
