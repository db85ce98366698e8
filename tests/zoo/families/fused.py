"""A linear layer fused with its loss, without the matrix of logits or with one chunk of it at a time; and a stream-K product, whose
programs share the iterations evenly."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, zeros
from zoo.registry import integers, normal, specimen


@triton.jit
def _linear_lse(
    H, W, Target, Lse, Loss, rows, V, D, stride_h, stride_w, IGNORE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Computes the loss and log-sum-exp of a block of rows, over one block of the vocabulary at a time."""
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    target = tl.load(Target + rm, mask=rm < rows, other=IGNORE)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    picked = tl.zeros([BLOCK_M], tl.float32)
    for v in range(0, V, BLOCK_V):
        rv = v + tl.arange(0, BLOCK_V)
        logits = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        for d in range(0, D, BLOCK_D):
            rd = d + tl.arange(0, BLOCK_D)
            h = tl.load(
                H + rm[:, None] * stride_h + rd[None, :], mask=(rm < rows)[:, None] & (rd < D)[None, :], other=0.0
            )
            w = tl.load(W + rv[None, :] * stride_w + rd[:, None], mask=(rv < V)[None, :] & (rd < D)[:, None], other=0.0)
            logits = tl.dot(h, w, logits, input_precision="ieee")
        logits = tl.where((rv < V)[None, :], logits, float("-inf"))
        new = tl.maximum(m, tl.max(logits, 1))
        total = total * tl.exp(m - new) + tl.sum(tl.exp(logits - new[:, None]), 1)
        picked += tl.sum(tl.where(rv[None, :] == target[:, None], logits, 0.0), 1)
        m = new
    lse = m + tl.log(total)
    tl.store(Lse + rm, lse, mask=rm < rows)
    tl.store(Loss + rm, tl.where(target == IGNORE, 0.0, lse - picked), mask=rm < rows)


@triton.jit
def _linear_loss_backward(
    H, W, Target, Lse, DH, DW, factor, rows, V, D, stride_h, stride_w, IGNORE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rv = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    logits = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for d in range(0, D, BLOCK_D):
        rd = d + tl.arange(0, BLOCK_D)
        h = tl.load(H + rm[:, None] * stride_h + rd[None, :], mask=(rm < rows)[:, None] & (rd < D)[None, :], other=0.0)
        w = tl.load(W + rv[:, None] * stride_w + rd[None, :], mask=(rv < V)[:, None] & (rd < D)[None, :], other=0.0)
        logits = tl.dot(h, w.T, logits, input_precision="ieee")
    lse = tl.load(Lse + rm, mask=rm < rows, other=0.0)
    target = tl.load(Target + rm, mask=rm < rows, other=IGNORE)
    grad = tl.exp(logits - lse[:, None]) - tl.where(rv[None, :] == target[:, None], 1.0, 0.0)
    grad = tl.where((target != IGNORE)[:, None] & (rv < V)[None, :], grad * factor, 0.0)
    for d in range(0, D, BLOCK_D):
        rd = d + tl.arange(0, BLOCK_D)
        m, v = (rm < rows)[:, None] & (rd < D)[None, :], (rv < V)[:, None] & (rd < D)[None, :]
        h = tl.load(H + rm[:, None] * stride_h + rd[None, :], mask=m, other=0.0)
        w = tl.load(W + rv[:, None] * stride_w + rd[None, :], mask=v, other=0.0)
        tl.atomic_add(
            DH + rm[:, None] * D + rd[None, :], tl.dot(grad, w.to(tl.float32), input_precision="ieee"), mask=m
        )
        tl.atomic_add(
            DW + rv[:, None] * D + rd[None, :], tl.dot(grad.T, h.to(tl.float32), input_precision="ieee"), mask=v
        )


def fused_linear_loss(h, w, target):
    """Returns the mean cross entropy of h @ w.T and the gradients; rows with the target -100 are ignored."""
    (rows, D), V = h.shape, w.shape[0]
    lse, loss = empty(h, rows, "float32"), empty(h, rows, "float32")
    dh, dw = zeros(h, h.shape, "float32"), zeros(w, w.shape, "float32")
    sizes = {"IGNORE": -100, "BLOCK_M": 16, "BLOCK_V": 32, "BLOCK_D": 16}
    numbers = (rows, V, D, strides(h)[0], strides(w)[0])
    _linear_lse[(triton.cdiv(rows, 16),)](h, w, target, lse, loss, *numbers, **sizes)
    counted = max(int((target != -100).sum()), 1)
    _linear_loss_backward[(triton.cdiv(rows, 16), triton.cdiv(V, 32))](
        h, w, target, lse, dh, dw, 1.0 / counted, *numbers, **sizes
    )
    return loss, dh, dw


def fused_linear_loss_reference(h, w, target):
    logits = h @ w.T
    kept = target != -100
    lse = np.logaddexp.reduce(logits, 1)
    hot = np.zeros(logits.shape)
    hot[np.flatnonzero(kept), target[kept]] = 1
    grad = (np.exp(logits - lse[:, None]) - hot) * kept[:, None] / max(kept.sum(), 1)
    return np.where(kept, lse - (logits * hot).sum(1), 0), grad @ w, grad.T @ h


def linear_loss_inputs(rng, rows, V, D, dtype=np.float32):
    target = np.where(rng.random(rows) < 0.2, -100, integers(rng, 0, V, rows)).astype(np.int64)
    return {"h": normal(rng, rows, D, dtype=dtype), "w": normal(rng, V, D, dtype=dtype), "target": target}


specimen(
    "fused_linear_loss", fused_linear_loss, fused_linear_loss_reference, 1e-4, 1e-5,
    ragged=lambda rng: linear_loss_inputs(rng, 21, 75, 20),
)  # fmt: skip


@triton.jit
def _row_lse(X, stride, V, temperature, BLOCK: tl.constexpr):
    m = float("-inf")
    total = 0.0
    for v in range(0, V, BLOCK):
        at = v + tl.arange(0, BLOCK)
        x = tl.load(X + at, mask=at < V, other=float("-inf")).to(tl.float32) / temperature
        new = max(m, tl.max(x))
        total = total * tl.exp(m - new) + tl.sum(tl.exp(x - new))
        m = new
    return m + tl.log(total)


@triton.jit
def _divergence(Student, Teacher, Loss, beta, temperature, V, stride, BLOCK: tl.constexpr):
    """Computes the generalised Jensen-Shannon divergence of a row, and overwrites the student's logits with their gradient."""
    row = tl.program_id(0).to(tl.int64)
    Student += row * stride
    Teacher += row * stride
    lse_s = _row_lse(Student, stride, V, temperature, BLOCK)
    lse_t = _row_lse(Teacher, stride, V, temperature, BLOCK)
    loss = 0.0
    inner = 0.0
    for v in range(0, V, BLOCK):
        at = v + tl.arange(0, BLOCK)
        x = tl.load(Student + at, mask=at < V, other=float("-inf")).to(tl.float32) / temperature - lse_s
        y = tl.load(Teacher + at, mask=at < V, other=float("-inf")).to(tl.float32) / temperature - lse_t
        q, p = tl.exp(x), tl.exp(y)
        mid = beta * p + (1 - beta) * q
        log_m = tl.log(tl.where(mid > 0, mid, 1.0))
        loss += tl.sum(tl.where(at < V, beta * p * (y - log_m) + (1 - beta) * q * (x - log_m), 0.0))
        inner += tl.sum(tl.where(at < V, (1 - beta) * q * (x - log_m), 0.0))
    for v in range(0, V, BLOCK):
        at = v + tl.arange(0, BLOCK)
        x = tl.load(Student + at, mask=at < V, other=float("-inf")).to(tl.float32) / temperature - lse_s
        y = tl.load(Teacher + at, mask=at < V, other=float("-inf")).to(tl.float32) / temperature - lse_t
        q = tl.exp(x)
        mid = beta * tl.exp(y) + (1 - beta) * q
        log_m = tl.log(tl.where(mid > 0, mid, 1.0))
        grad = (1 - beta) * q * (x - log_m) - q * inner
        tl.store(Student + at, grad / temperature, mask=at < V)
    tl.store(Loss + row, loss)


@triton.jit
def _multiply(
    A, B, C, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr
):
    rm = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rn = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a = tl.make_block_ptr(A, (M, K), (stride_am, stride_ak), (tl.program_id(0) * BLOCK, 0), (BLOCK, BLOCK_K), (1, 0))
    b = tl.make_block_ptr(B, (K, N), (stride_bk, stride_bn), (0, tl.program_id(1) * BLOCK), (BLOCK_K, BLOCK), (1, 0))
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for _ in range(0, K, BLOCK_K):
        left = tl.load(a, boundary_check=(0, 1), padding_option="zero")
        right = tl.load(b, boundary_check=(0, 1), padding_option="zero")
        acc += tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
        a, b = tl.advance(a, (0, BLOCK_K)), tl.advance(b, (BLOCK_K, 0))
    tl.store(C + rm[:, None] * stride_cm + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


def multiply(a, b, c):
    (M, K), N = a.shape, b.shape[1]
    _multiply[(triton.cdiv(M, 32), triton.cdiv(N, 32))](
        a, b, c, M, N, K, *strides(a), *strides(b), strides(c)[0], BLOCK=32, BLOCK_K=16
    )


def fused_linear_divergence(student, student_w, teacher, teacher_w, beta, temperature):
    """Returns the losses of the rows and the gradients of the student's input and weight, in chunks of 16 rows of logits."""
    rows, V = student.shape[0], student_w.shape[0]
    loss, dh = empty(student, rows), empty(student)
    parts = []
    for at in range(0, rows, 16):
        n = min(16, rows - at)
        ours, theirs = empty(student, (n, V)), empty(student, (n, V))
        multiply(student[at : at + n], student_w.T, ours)
        multiply(teacher[at : at + n], teacher_w.T, theirs)
        _divergence[(n,)](ours, theirs, loss[at : at + n], beta, temperature, V, V, BLOCK=32)
        multiply(ours, student_w, dh[at : at + n])
        parts.append(empty(student_w))
        multiply(ours.T, student[at : at + n], parts[-1])
    return loss, dh, sum(parts[1:], parts[0])


def fused_linear_divergence_reference(student, student_w, teacher, teacher_w, beta, temperature):
    x, y = (a @ w.T / temperature for a, w in ((student, student_w), (teacher, teacher_w)))
    x, y = (a - np.logaddexp.reduce(a, 1, keepdims=True) for a in (x, y))
    q, p = np.exp(x), np.exp(y)
    log_m = np.log(beta * p + (1 - beta) * q)
    part = (1 - beta) * q * (x - log_m)
    grad = (part - q * part.sum(1, keepdims=True)) / temperature
    return (beta * p * (y - log_m)).sum(1) + part.sum(1), grad @ student_w, grad.T @ student


specimen(
    "fused_linear_divergence", fused_linear_divergence, fused_linear_divergence_reference, 1e-3, 1e-4,
    ragged=lambda rng: {"student": normal(rng, 21, 20), "student_w": normal(rng, 45, 20), "teacher": normal(rng, 21, 28),
                        "teacher_w": normal(rng, 45, 28), "beta": 0.3, "temperature": 2.0},
)  # fmt: skip


@triton.jit
def _stream_k(
    A, B, C, M, N, K, stride_am, stride_bn, stride_cm, iterations, per_program, more, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Stream-K: each program takes an equal share of the iterations of all tiles. Atomics add the parts of a shared tile."""
    pid = tl.program_id(0)
    at = pid * per_program + tl.minimum(pid, more)
    end = (pid + 1) * per_program + tl.minimum(pid + 1, more)
    tiles_n = tl.cdiv(N, BLOCK_N)
    while at < end:
        tile = at // iterations
        stop = tl.minimum((tile + 1) * iterations, end)
        rm = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
        rn = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
        whole = (at % iterations == 0) & (stop - at == iterations)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(at, stop):
            rk = step % iterations * BLOCK_K + tl.arange(0, BLOCK_K)
            a = tl.load(
                A + rm[:, None] * stride_am + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0
            )
            b = tl.load(
                B + rn[None, :] * stride_bn + rk[:, None], mask=(rn < N)[None, :] & (rk < K)[:, None], other=0.0
            )
            acc = tl.dot(a, b, acc)
        c_ptrs = C + rm[:, None] * stride_cm + rn[None, :]
        mask = (rm < M)[:, None] & (rn < N)[None, :]
        if whole:
            tl.store(c_ptrs, acc, mask=mask)
        else:
            tl.atomic_add(c_ptrs, acc, mask=mask)
        at = stop


def stream_k(a, b, programs):
    """a @ b.T"""
    (M, K), N = a.shape, b.shape[0]
    c = zeros(a, (M, N), "float32")
    iterations = triton.cdiv(K, 16)
    steps = triton.cdiv(M, 16) * triton.cdiv(N, 32) * iterations
    _stream_k[(programs,)](
        a, b, c, M, N, K, strides(a)[0], strides(b)[0], strides(c)[0], iterations, steps // programs, steps % programs, BLOCK_M=16,
        BLOCK_N=32, BLOCK_K=16,
    )  # fmt: skip
    return c


specimen(
    "stream_k", stream_k, lambda a, b, programs: a @ b.T, 2e-3, 1e-4,
    ragged=lambda rng: {"a": normal(rng, 40, 75, dtype=np.float16), "b": normal(rng, 70, 75, dtype=np.float16), "programs": 7},
)  # fmt: skip
