"""Optimizer steps over many tensors in one launch, quantization by rows and by blocks, and an embedding with its backward pass. A mixture
of experts sorts tokens by expert, and multiplies each block by the expert's weights."""

import numpy as np
import triton
import triton.language as tl
from triton.language.extra.libdevice import rint
from zoo.arrays import dtype_name, empty, full, strides, table, vector, zeros
from zoo.registry import integers, normal, specimen


@triton.jit(do_not_specialize=["step", "lr"])
def _adamw(
    params,
    grads,
    exp_avgs,
    exp_avg_sqs,
    sizes,
    lr,
    beta1,
    beta2,
    eps,
    weight_decay,
    step,
    MAXIMIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    which = tl.program_id(1)
    n = tl.load(sizes + which)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) * BLOCK >= n:
        return
    mask = i < n
    p_ptr = tl.load(params + which).to(tl.pointer_type(tl.float32)) + i
    g_ptr = tl.load(grads + which).to(tl.pointer_type(tl.float32)) + i
    m_ptr = tl.load(exp_avgs + which).to(tl.pointer_type(tl.float32)) + i
    v_ptr = tl.load(exp_avg_sqs + which).to(tl.pointer_type(tl.float32)) + i
    p = tl.load(p_ptr, mask=mask)
    g = tl.load(g_ptr, mask=mask)
    if MAXIMIZE:
        g = -g
    m = beta1 * tl.load(m_ptr, mask=mask) + (1 - beta1) * g
    v = beta2 * tl.load(v_ptr, mask=mask) + (1 - beta2) * g * g
    # beta ** step
    correct1 = 1 - tl.exp2(step.to(tl.float32) * tl.log2(beta1))
    correct2 = 1 - tl.exp2(step.to(tl.float32) * tl.log2(beta2))
    p *= 1 - lr * weight_decay
    p -= lr / correct1 * m / (tl.sqrt(v) / tl.sqrt(correct2) + eps)
    tl.store(p_ptr, p, mask=mask)
    tl.store(m_ptr, m, mask=mask)
    tl.store(v_ptr, v, mask=mask)


def adamw(params, grads, exp_avgs, exp_avg_sqs, lr, betas, eps, weight_decay, step):
    """Takes one optimizer step for a list of parameters in place; returns them flattened."""
    sizes = [int(np.prod(p.shape)) for p in params]
    grid = lambda meta: (triton.cdiv(max(sizes), meta["BLOCK"]), len(params))  # noqa: E731
    _adamw[grid](
        table(params), table(grads), table(exp_avgs), table(exp_avg_sqs), vector(params[0], sizes), lr, *betas, eps, weight_decay, step,
        MAXIMIZE=False, BLOCK=128,
    )  # fmt: skip
    return (*params, *exp_avgs, *exp_avg_sqs)


def adamw_reference(params, grads, exp_avgs, exp_avg_sqs, lr, betas, eps, weight_decay, step):
    m = [betas[0] * a + (1 - betas[0]) * g for a, g in zip(exp_avgs, grads, strict=True)]
    v = [betas[1] * a + (1 - betas[1]) * g * g for a, g in zip(exp_avg_sqs, grads, strict=True)]
    steps = [
        lr / (1 - betas[0] ** step) * a / (np.sqrt(b / (1 - betas[1] ** step)) + eps) for a, b in zip(m, v, strict=True)
    ]
    return (*(p * (1 - lr * weight_decay) - s for p, s in zip(params, steps, strict=True)), *m, *v)


def adamw_inputs(rng, *shapes, step):
    lists = {name: [normal(rng, *s) for s in shapes] for name in ("params", "grads", "exp_avgs")}
    squares = [rng.random(s).astype(np.float32) for s in shapes]
    return {
        **lists,
        "exp_avg_sqs": squares,
        "lr": 1e-2,
        "betas": (0.9, 0.99),
        "eps": 1e-6,
        "weight_decay": 0.1,
        "step": step,
    }


specimen(
    "adamw", adamw, adamw_reference, 1e-4, 1e-5,
    first=lambda rng: adamw_inputs(rng, (300,), (7, 11), (1,), step=1),
    later=lambda rng: adamw_inputs(rng, (128,), (129,), step=100),
)  # fmt: skip


@triton.autotune(
    [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256}, num_warps=8)],
    key=["n"],
    restore_value=["p", "m"],
    warmup=1,
    rep=1,
)
@triton.jit
def _lion(p, g, m, n, lr, weight_decay, beta1, beta2, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(p + i, mask=mask)
    grad = tl.load(g + i, mask=mask)
    avg = tl.load(m + i, mask=mask)
    x *= 1 - lr * weight_decay
    diff = avg - grad
    update = diff * beta1 + grad
    positive = update > 0
    negative = update < 0
    x -= tl.where(positive, lr, tl.where(negative, -lr, 0.0))
    tl.store(p + i, x, mask=mask)
    tl.store(m + i, diff * beta2 + grad, mask=mask)


def lion(p, g, m, lr, weight_decay, betas):
    n = p.shape[0]
    _lion[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](p, g, m, n, lr, weight_decay, *betas)
    return p, m


def lion_reference(p, g, m, lr, weight_decay, betas):
    return p * (1 - lr * weight_decay) - lr * np.sign(betas[0] * (m - g) + g), betas[1] * (m - g) + g


specimen(
    "lion", lion, lion_reference, 1e-5, 1e-6,
    ragged=lambda rng: {
        **{name: normal(rng, 333) for name in "pgm"}, "lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.99),
    },
)  # fmt: skip


@triton.jit
def _quantise_rows(X, Q, Scale, stride_x, stride_q, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride_x + i, mask=i < n, other=0.0).to(tl.float32)
    absmax = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-12)
    q = rint(x * (127.0 / absmax))
    tl.store(Q + row * stride_q + i, q.to(tl.int8), mask=i < n)
    tl.store(Scale + row, absmax / 127.0)


@triton.jit
def _dequantise_blocks(
    Q, Scale, Y, stride_q, stride_s, stride_y, rows, cols, GROUP: tl.constexpr, BLOCK_M: tl.constexpr
):
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    mask = (r < rows)[:, None] & (c < cols)[None, :]
    q = tl.load(Q + r[:, None] * stride_q + c[None, :], mask=mask, other=0)
    scale = tl.load(Scale + r * stride_s + tl.program_id(1), mask=r < rows, other=0.0)
    tl.store(Y + r[:, None] * stride_y + c[None, :], (q * scale[:, None]).to(Y.dtype.element_ty), mask=mask)


@triton.jit
def _quantise_blocks(X, Q, Scale, stride_x, stride_q, stride_s, cols, GROUP: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    c = block * GROUP + tl.arange(0, GROUP)
    x = tl.load(X + row * stride_x + c, mask=c < cols, other=0.0).to(tl.float32)
    scale = tl.clamp(tl.max(tl.abs(x)), 1e-12, float("inf")) / 127.0
    q = tl.clamp(tl.extra.cuda.libdevice.round(x / scale), -127.0, 127.0)
    tl.store(Q + row * stride_q + c, q.to(tl.int8), mask=c < cols)
    tl.store(Scale + row * stride_s + block, scale)


def quantise(x, group):
    """Quantizes to 8 bits and back, with a scale per row or per `group` of a row. Returns the scales and the results."""
    rows, cols = x.shape
    groups = triton.cdiv(cols, group) if group else 1
    q, scale, y = empty(x, x.shape, "int8"), empty(x, (rows, groups), "float32"), empty(x)
    if group:
        _quantise_blocks[(rows, groups)](
            x, q, scale, strides(x)[0], strides(q)[0], strides(scale)[0], cols, GROUP=group
        )
    else:
        group = triton.next_power_of_2(cols)
        _quantise_rows[(rows,)](x, q, scale, strides(x)[0], strides(q)[0], cols, BLOCK=group)
    _dequantise_blocks[(triton.cdiv(rows, 4), groups)](
        q, scale, y, strides(q)[0], strides(scale)[0], strides(y)[0], rows, cols, GROUP=group, BLOCK_M=4
    )
    return scale, y - x


def quantise_reference(x, group):
    cols = x.shape[1]
    step = group or cols
    scale = np.stack([np.abs(x[:, i : i + step]).max(1) for i in range(0, cols, step)], 1) / 127
    spread = np.repeat(scale, step, 1)[:, :cols]
    ratio = x / spread
    rounded = np.round(ratio) if not group else np.sign(ratio) * np.floor(np.abs(ratio) + 0.5)
    return scale, rounded * spread - x


def away_from_halves(rng, rows, cols, group):
    """Numbers far from a half, so that a rounding error does not change the integer."""
    step = group or cols
    x = (integers(rng, -126, 127, rows, cols) + rng.uniform(-0.4, 0.4, (rows, cols))) / 127
    x[:, ::step] = 1.0
    return {"x": x.astype(np.float32), "group": group}


specimen(
    "quantise", quantise, quantise_reference, 1e-3, 1e-4,
    rows=lambda rng: away_from_halves(rng, 5, 100, 0),
    blocks=lambda rng: away_from_halves(rng, 6, 200, 64),
)  # fmt: skip


@triton.jit
def _embed(Weight, Ids, Out, n_ids, dim: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ids = tl.load(Ids + m, mask=m < n_ids, other=0)
    mask = (m < n_ids)[:, None] & (n < dim)[None, :]
    rows = tl.load(Weight + ids[:, None] * dim + n[None, :], mask=mask, other=0.0)
    tl.store(Out + m[:, None] * dim + n[None, :], rows, mask=mask)


@triton.jit
def _embed_bwd(DOut, Ids, DWeight, n_ids, padding_idx, dim: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ids = tl.load(Ids + m, mask=m < n_ids, other=-1)
    mask = ((m < n_ids) & (ids != padding_idx))[:, None] & (n < dim)[None, :]
    d = tl.load(DOut + m[:, None] * dim + n[None, :], mask=mask, other=0.0)
    tl.atomic_add(DWeight + ids[:, None] * dim + n[None, :], d, mask=mask)


def embedding(weight, ids, dout, padding_idx):
    """Returns the rows, and the gradient of the table."""
    out, dweight = empty(weight, (*ids.shape, weight.shape[1])), zeros(weight, weight.shape)
    count, dim = int(np.prod(ids.shape)), weight.shape[1]
    grid = (triton.cdiv(count, 8), triton.cdiv(dim, 32))
    _embed[grid](weight, ids, out, count, dim, BLOCK_M=8, BLOCK_N=32)
    _embed_bwd[grid](dout, ids, dweight, count, padding_idx, dim, BLOCK_M=8, BLOCK_N=32)
    return out, dweight


def embedding_reference(weight, ids, dout, padding_idx):
    d = np.zeros_like(weight)
    np.add.at(d, ids[ids != padding_idx], dout[ids != padding_idx])
    return weight[ids], d


specimen(
    "embedding", embedding, embedding_reference, 1e-4, 1e-5,
    padded=lambda rng: {
        "weight": normal(rng, 20, 50), "ids": integers(rng, 0, 20, 3, 15, dtype=np.int64), "dout": normal(rng, 3, 15, 50), "padding_idx": 2,
    },
)  # fmt: skip


@triton.jit
def _count_experts(topk_ids, counts, numel, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(topk_ids + i, mask=i < numel, other=0)
    tl.atomic_add(counts + expert, 1, mask=i < numel)


@triton.jit
def _align_experts(
    counts, starts, expert_of_block, padded_total, E: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr
):
    e = tl.arange(0, EXPERTS)
    count = tl.load(counts + e, mask=e < E, other=0)
    padded = tl.cdiv(count, BLOCK) * BLOCK
    ends = tl.cumsum(padded, axis=0)
    tl.store(starts + e, ends - padded, mask=e < E)
    tl.store(padded_total, tl.sum(padded, axis=0))
    for expert in range(E):
        first = tl.sum(tl.where(e == expert, ends - padded, 0), axis=0)
        last = tl.sum(tl.where(e == expert, ends, 0), axis=0)
        for block in range(first // BLOCK, last // BLOCK):
            tl.store(expert_of_block + block, expert)


@triton.jit
def _scatter_tokens(topk_ids, starts, sorted_ids, numel, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(topk_ids + i, mask=i < numel, other=0)
    place = tl.atomic_add(starts + expert, 1, mask=i < numel)
    tl.store(sorted_ids + place, i, mask=i < numel)


@triton.jit
def _expert_gemm(
    A, B, C, topk_weights, sorted_ids, expert_of_block, padded_total, N, K, numel, stride_am, stride_ak, stride_be, stride_bk, stride_bn,
    stride_cm, stride_cn, ROUTED: tl.constexpr, top_k: tl.constexpr, compute_type: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(0)
    if pid_m * BLOCK_M >= tl.load(padded_total):
        return
    tokens = tl.load(sorted_ids + pid_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    real = tokens < numel
    expert = tl.load(expert_of_block + pid_m).to(tl.int64)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    a_ptrs = A + tokens[:, None] // top_k * stride_am + k[None, :] * stride_ak
    b_ptrs = B + expert * stride_be + (k[:, None] * stride_bk + n[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=real[:, None] & (k[None, :] < K - step * BLOCK_K), other=0.0)
        b = tl.load(b_ptrs, mask=k[:, None] < K - step * BLOCK_K, other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ROUTED:
        acc = acc * tl.load(topk_weights + tokens, mask=real, other=0)[:, None]
    cn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(
        C + stride_cm * tokens[:, None] + stride_cn * cn[None, :],
        acc.to(compute_type),
        mask=real[:, None] & (cn[None, :] < N),
    )


def experts(x, weights, topk_ids, topk_weights):
    """Returns the sum of the experts' outputs for every token: x is (tokens, K), weights (experts, N, K), the others (tokens, top_k)."""
    (tokens, K), (E, N, _), top_k = x.shape, weights.shape, topk_ids.shape[1]
    numel, block = tokens * top_k, 16
    counts, starts, total = zeros(x, E, "int32"), zeros(x, E, "int32"), zeros(x, 1, "int32")
    blocks = triton.cdiv(numel, block) + E
    sorted_ids, expert_of_block = full(x, blocks * block, numel, "int32"), zeros(x, blocks, "int32")
    grid = (triton.cdiv(numel, 32),)
    _count_experts[grid](topk_ids, counts, numel, BLOCK=32)
    _align_experts[(1,)](counts, starts, expert_of_block, total, E=E, EXPERTS=triton.next_power_of_2(E), BLOCK=block)
    _scatter_tokens[grid](topk_ids, starts, sorted_ids, numel, BLOCK=32)
    out = empty(x, (numel, N))
    s = strides(weights)
    _expert_gemm[(blocks, triton.cdiv(N, 32))](
        x, weights, out, topk_weights, sorted_ids, expert_of_block, total, N, K, numel, *strides(x), s[0], s[2], s[1], *strides(out),
        ROUTED=True, top_k=top_k, compute_type=tl.float16 if dtype_name(x) == "float16" else tl.float32,
        BLOCK_M=block, BLOCK_N=32, BLOCK_K=32,
    )  # fmt: skip
    return out.reshape(tokens, top_k, N).sum(1)


def experts_reference(x, weights, topk_ids, topk_weights):
    return np.einsum("tkn,tk->tn", np.einsum("tknc,tc->tkn", weights[topk_ids], x), topk_weights)


def experts_inputs(rng, tokens, E, N, K, top_k):
    ids = np.stack([rng.permutation(E)[:top_k] for _ in range(tokens)]).astype(np.int32)
    x, weights = normal(rng, tokens, K, dtype=np.float16), (normal(rng, E, N, K) / 8).astype(np.float16)
    return {"x": x, "weights": weights, "topk_ids": ids, "topk_weights": rng.random((tokens, top_k)).astype(np.float32)}


specimen(
    "experts", experts, experts_reference, 2e-2, 5e-3, two_of_six=lambda rng: experts_inputs(rng, 29, 6, 50, 40, 2)
)
