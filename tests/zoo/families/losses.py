"""Softmax of short and long rows, and losses. They are cross entropy with label smoothing over the whole or the split vocabulary, and
divergences of two distributions."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, zeros
from zoo.registry import integers, normal, specimen


@triton.heuristics({"BLOCK_SIZE": lambda args: triton.next_power_of_2(args["n_cols"])})
@triton.heuristics({"num_warps": lambda args: 8 if args["BLOCK_SIZE"] >= 2048 else 4})
@triton.jit
def _softmax_fwd(Y, stride_y, X, stride_x, n_rows, n_cols, LOG: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=2):
        cols = tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + row * stride_x + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        z = x - tl.max(x, axis=0)
        numerator = tl.exp(z)
        denominator = tl.sum(numerator, axis=0)
        y = z - tl.log(denominator) if LOG else numerator / denominator
        tl.store(Y + row * stride_y + cols, y, mask=cols < n_cols)


@triton.jit
def _softmax_bwd(DX, Y, DY, stride, n_cols, LOG: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    y = tl.load(Y + row * stride + cols, mask=mask, other=-float("inf") if LOG else 0.0).to(tl.float32)
    dy = tl.load(DY + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    if LOG:
        dx = dy - tl.exp(y) * tl.sum(dy, 0)
    else:
        dx = y * (dy - tl.sum(y * dy, 0))
    tl.store(DX + row * stride + cols, dx, mask=mask)


def softmax(x, dy, log):
    y, dx = empty(x, x.shape), empty(dy)
    rows, cols = x.shape
    _softmax_fwd[(min(rows, 4),)](y, strides(y)[0], x, strides(x)[0], rows, cols, LOG=log)
    _softmax_bwd[rows,](dx, y, dy, strides(y)[0], cols, LOG=log, BLOCK_SIZE=triton.next_power_of_2(cols))
    return y, dx


def softmax_reference(x, dy, log):
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    if log:
        return np.log(p), dy - p * dy.sum(1, keepdims=True)
    return p, p * (dy - (p * dy).sum(1, keepdims=True))


specimen(
    "softmax", softmax, softmax_reference, 1e-5, 1e-5,
    ragged=lambda rng: {"x": normal(rng, 9, 781), "dy": normal(rng, 9, 781), "log": False},
    log=lambda rng: {"x": normal(rng, 3, 33) * 10, "dy": normal(rng, 3, 33), "log": True},
    one=lambda rng: {"x": normal(rng, 1, 1), "dy": normal(rng, 1, 1), "log": False},
)  # fmt: skip


@triton.jit
def _combine_lse(m_a, s_a, m_b, s_b):
    m = tl.maximum(m_a, m_b)
    a = tl.where(m_a == -float("inf"), 0.0, s_a * tl.exp(m_a - m))
    b = tl.where(m_b == -float("inf"), 0.0, s_b * tl.exp(m_b - m))
    return m, a + b


@triton.jit
def _online_softmax(X, Y, LSE, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    X += row * stride
    Y += row * stride
    m = tl.full([BLOCK], -float("inf"), tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < n_cols, other=-float("inf"))
        m, s = _combine_lse(m, s, x, tl.where(cols < n_cols, 1.0, 0.0))
    top, total = tl.reduce((m, s), 0, _combine_lse)
    lse = top + tl.log(total)
    tl.store(LSE + row, lse)
    # Backwards: the cache still holds the block that was read last.
    for start in range((tl.cdiv(n_cols, BLOCK) - 1) * BLOCK, -1, -BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < n_cols, other=-float("inf"), cache_modifier=".cg")
        tl.store(Y + cols, tl.exp(x - lse), mask=cols < n_cols)


def online_softmax(x):
    y, lse = empty(x), empty(x, x.shape[0])
    _online_softmax[(x.shape[0],)](x, y, lse, strides(x)[0], x.shape[1], BLOCK=256)
    return y, lse


def online_softmax_reference(x):
    top = x.max(1, keepdims=True)
    lse = top + np.log(np.exp(x - top).sum(1, keepdims=True))
    return np.exp(x - lse), lse[:, 0]


specimen(
    "online_softmax", online_softmax, online_softmax_reference, 1e-4, 1e-6,
    long=lambda rng: {"x": normal(rng, 3, 5000) * 4},
    short=lambda rng: {"x": normal(rng, 4, 17)},
)  # fmt: skip


@triton.jit
def _tanh(x):
    t = tl.exp(-2 * tl.abs(x))
    return tl.where(x < 0, -1.0, 1.0) * (1 - t) / (1 + t)


@triton.jit
def _cross_entropy(
    X, stride_x, Target, Loss, LSE, n_cols, n_valid, ignore_index, smoothing, softcap, HAS_SOFTCAP: tl.constexpr,
    HAS_SMOOTHING: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(Target + row)
    X += row * stride_x
    if target == ignore_index:
        for i in range(0, n_cols, BLOCK_SIZE):
            cols = i + tl.arange(0, BLOCK_SIZE)
            tl.store(X + cols, 0.0, mask=cols < n_cols)
        tl.store(Loss + row, 0.0)
        tl.store(LSE + row, 0.0)
        return
    m = float("-inf")
    d = 0.0
    scaled_sum = 0.0
    eps = smoothing / n_cols
    correct = tl.load(X + target).cast(tl.float32)
    if HAS_SOFTCAP:
        correct = softcap * _tanh(correct / softcap)
    for i in range(0, n_cols, BLOCK_SIZE):
        cols = i + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < n_cols, other=float("-inf")).cast(tl.float32)
        if HAS_SOFTCAP:
            x = tl.where(cols < n_cols, softcap * _tanh(x / softcap), float("-inf"))
        if HAS_SMOOTHING:
            scaled_sum += tl.sum(tl.where(cols < n_cols, -eps * x, 0.0))
        m_new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    lse = m + tl.log(d)
    # The gradient overwrites the logits.
    for i in range(0, n_cols, BLOCK_SIZE):
        cols = i + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < n_cols, other=float("-inf")).cast(tl.float32)
        slope = 1.0
        if HAS_SOFTCAP:
            tanh = _tanh(x / softcap)
            slope = 1 - tanh * tanh
            x = tl.where(cols < n_cols, softcap * tanh, float("-inf"))
        g = tl.exp(x - lse) - eps - tl.where(cols == target, 1 - smoothing, 0.0)
        tl.store(X + cols, g * slope / n_valid, mask=cols < n_cols)
    loss = lse - correct
    if HAS_SMOOTHING:
        loss = loss * (1 - smoothing) + scaled_sum + smoothing * lse
    tl.store(Loss + row, loss / n_valid)
    tl.store(LSE + row, lse)


def cross_entropy(logits, target, ignore_index, smoothing, softcap):
    """Returns the losses, the gradient (in place of the logits) and logsumexp. With a softcap, a logit is softcap * tanh(x / softcap)."""
    rows, cols = logits.shape
    loss, lse = empty(logits, rows, "float32"), empty(logits, rows, "float32")
    valid = int((target != ignore_index).sum())
    _cross_entropy[(rows,)](
        logits, strides(logits)[0], target, loss, lse, cols, valid, ignore_index, smoothing, softcap,
        HAS_SOFTCAP=softcap is not None, HAS_SMOOTHING=smoothing > 0, BLOCK_SIZE=128, num_warps=8,
    )  # fmt: skip
    return loss, logits, lse


def cross_entropy_reference(logits, target, ignore_index, smoothing, softcap):
    rows, cols = logits.shape
    capped = logits if softcap is None else softcap * np.tanh(logits / softcap)
    slope = 1 if softcap is None else 1 - np.tanh(logits / softcap) ** 2
    top = capped.max(1, keepdims=True)
    lse = top + np.log(np.exp(capped - top).sum(1, keepdims=True))
    wanted = np.full((rows, cols), smoothing / cols)
    valid = target != ignore_index
    wanted[np.arange(rows)[valid], target[valid]] += 1 - smoothing
    loss, gradient = (wanted * (lse - capped)).sum(1), (np.exp(capped - lse) - wanted) * slope
    count = valid.sum()
    return loss * valid / count, gradient * valid[:, None] / count, lse[:, 0] * valid


def cross_entropy_inputs(rng, rows, cols, smoothing=0.0, softcap=None, dtype=np.int64):
    target = integers(rng, 0, cols, rows, dtype=dtype)
    target[rows // 2] = -100
    return {
        "logits": normal(rng, rows, cols) * 3,
        "target": target,
        "ignore_index": -100,
        "smoothing": smoothing,
        "softcap": softcap,
    }


specimen(
    "cross_entropy", cross_entropy, cross_entropy_reference, 1e-4, 1e-5,
    plain=lambda rng: cross_entropy_inputs(rng, 7, 300),
    smoothed=lambda rng: cross_entropy_inputs(rng, 5, 129, smoothing=0.1),
    capped=lambda rng: cross_entropy_inputs(rng, 4, 200, smoothing=0.05, softcap=5.0, dtype=np.int32),
)  # fmt: skip


@triton.jit
def _chunked_lse(X, stride_x, LSE, Correct, Target, n_cols, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    cols = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(X + row * stride_x + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
    c = tl.max(x, 0)
    tl.store(LSE + row * chunks + chunk, c + tl.log(tl.sum(tl.exp(x - c), 0)))
    if chunk == 0:
        target = tl.load(Target + row).to(tl.int32)
        if target != -100:
            tl.store(Correct + row, tl.load(X + row * stride_x + target).to(tl.float32))


@triton.jit
def _chunked_bwd(X, stride_x, LSE, Target, DLoss, n_cols, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    target = tl.load(Target + row).to(tl.int32)
    dloss = tl.load(DLoss + row) if target != -100 else 0.0
    x = tl.load(X + row * stride_x + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
    y = tl.exp(x - tl.load(LSE + row))
    y = tl.where(cols == target, y - 1.0, y)
    tl.store(X + row * stride_x + cols, dloss * y, mask=cols < n_cols)


def chunked_cross_entropy(logits, target, dloss):
    """Returns the losses and the gradient, in place of the logits. Several programs share a row."""
    rows, cols = logits.shape
    chunk = 128
    chunks = triton.cdiv(cols, chunk)
    parts, correct = empty(logits, (rows, chunks)), zeros(logits, rows)
    _chunked_lse[(rows, chunks)](logits, strides(logits)[0], parts, correct, target, cols, chunks, CHUNK=chunk)
    top = parts.max() if type(parts).__module__ != "torch" else parts.amax()
    total = (2.718281828459045 ** (parts - top)).sum(1)
    lse = empty(logits, rows)
    _log_plus[(1,)](total, top.reshape(1), lse, rows, BLOCK=triton.next_power_of_2(rows))
    loss = (lse - correct) * (target != -100)
    _chunked_bwd[(rows, chunks)](logits, strides(logits)[0], lse, target, dloss, cols, CHUNK=chunk)
    return loss, logits


@triton.jit
def _log_plus(x, shift, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.log(tl.load(x + i, mask=i < n, other=1.0)) + tl.load(shift), mask=i < n)


def chunked_reference(logits, target, dloss):
    top = logits.max(1, keepdims=True)
    lse = top + np.log(np.exp(logits - top).sum(1, keepdims=True))
    valid, rows = target != -100, np.arange(len(target))
    picked = np.where(valid, target, 0)
    gradient = np.exp(logits - lse)
    gradient[rows, picked] -= 1
    return (lse[:, 0] - logits[rows, picked]) * valid, gradient * (dloss * valid)[:, None]


def chunked_inputs(rng, rows, cols):
    target = integers(rng, 0, cols, rows, dtype=np.int64)
    target[0] = -100
    return {"logits": normal(rng, rows, cols), "target": target, "dloss": normal(rng, rows)}


specimen(
    "chunked_cross_entropy",
    chunked_cross_entropy,
    chunked_reference,
    1e-4,
    1e-5,
    vocabulary=lambda rng: chunked_inputs(rng, 6, 1000),
)


@triton.jit
def _jsd(X, stride_x, Y, stride_y, Loss, DX, stride_dx, beta: tl.constexpr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    X += row * stride_x
    Y += row * stride_y
    DX += row * stride_dx
    loss = 0.0
    for i in range(0, n_cols, BLOCK):
        cols = i + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(X + cols, mask=mask, other=float("-inf")).to(tl.float32)
        y = tl.load(Y + cols, mask=mask, other=float("-inf")).to(tl.float32)
        p = tl.exp(y)
        q = tl.exp(x)
        if beta == 0.0:  # KL(p || q)
            terms = tl.where(mask, p * (y - x), 0.0)
            dx = -p
        elif beta == 1.0:  # KL(q || p)
            terms = tl.where(mask, q * (x - y), 0.0)
            dx = q * (x - y + 1.0)
        else:
            m = beta * p + (1 - beta) * q
            log_m = tl.log(tl.where(mask, m, 1.0))
            terms = tl.where(mask, beta * p * (y - log_m) + (1 - beta) * q * (x - log_m), 0.0)
            dx = (1 - beta) * q * (x - log_m)
        loss += tl.sum(terms)
        tl.store(DX + cols, dx, mask=mask)
    tl.store(Loss + row, loss)


def jsd(student, teacher, beta):
    """Returns the generalised Jensen-Shannon divergence of rows of log-probabilities, and its gradient for the student."""
    rows, cols = student.shape
    loss, dx = empty(student, rows), empty(student)
    _jsd[(rows,)](
        student, strides(student)[0], teacher, strides(teacher)[0], loss, dx, strides(dx)[0], beta, cols, BLOCK=128
    )
    return loss, dx


def jsd_reference(student, teacher, beta):
    p, q = np.exp(teacher), np.exp(student)
    if beta == 0:
        return (p * (teacher - student)).sum(1), -p
    if beta == 1:
        return (q * (student - teacher)).sum(1), q * (student - teacher + 1)
    m = np.log(beta * p + (1 - beta) * q)
    return (beta * p * (teacher - m) + (1 - beta) * q * (student - m)).sum(1), (1 - beta) * q * (student - m)


def log_probabilities(rng, rows, cols):
    x = rng.standard_normal((rows, cols))
    return (x - np.log(np.exp(x).sum(1, keepdims=True))).astype(np.float32)


specimen(
    "jsd", jsd, jsd_reference, 1e-3, 1e-5,
    half=lambda rng: {"student": log_probabilities(rng, 5, 300), "teacher": log_probabilities(rng, 5, 300), "beta": 0.5},
    forward=lambda rng: {"student": log_probabilities(rng, 3, 64), "teacher": log_probabilities(rng, 3, 64), "beta": 0.0},
    reverse=lambda rng: {"student": log_probabilities(rng, 3, 100), "teacher": log_probabilities(rng, 3, 100), "beta": 1.0},
)  # fmt: skip
