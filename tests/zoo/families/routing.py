"""Gates of experts, partial sums that programs pass on, and small matrices in registers."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty
from zoo.registry import normal, specimen


@triton.jit
def _gate(Logits, Weights, Experts, tokens, E: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.arange(0, E)
    mask = t < tokens
    logits = tl.load(Logits + t[:, None] * E + e[None, :], mask=mask[:, None], other=-float("inf"))
    p = tl.exp(logits - tl.max(logits, axis=1, keep_dims=True))
    p = p / tl.sum(p, axis=1, keep_dims=True)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(K):
        largest, place = tl.max(p, axis=1, return_indices=True)
        tl.store(Weights + t * K + k, largest, mask=mask)
        tl.store(Experts + t * K + k, place, mask=mask)
        total += largest
        p = tl.where(e[None, :] == place[:, None], -1.0, p)
    tl.debug_barrier()
    for k in tl.static_range(K):
        tl.store(Weights + t * K + k, tl.load(Weights + t * K + k, mask=mask) / total, mask=mask)


@triton.jit
def _order(Experts, Order, Offsets, n, E: tl.constexpr, BLOCK: tl.constexpr):
    """A stable counting sort: each program collects the tokens of its expert."""
    mine = tl.program_id(0)
    before, count = 0, 0
    for start in range(0, n, BLOCK):
        expert = tl.load(Experts + start + tl.arange(0, BLOCK), mask=start + tl.arange(0, BLOCK) < n, other=E)
        before += tl.sum((expert < mine).to(tl.int32))
        count += tl.sum((expert == mine).to(tl.int32))
    tl.store(Offsets + mine, before)
    if mine == E - 1:
        tl.store(Offsets + E, before + count)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        hit = tl.load(Experts + at, mask=at < n, other=E) == mine
        tl.store(Order + before + tl.cumsum(hit.to(tl.int32), 0) - 1, at, mask=hit)
        before += tl.sum(hit.to(tl.int32))


def gate(logits, k):
    """Returns the k experts of each token with their weights, and the positions of the token in the order of experts."""
    tokens, experts = logits.shape
    weights, chosen = empty(logits, (tokens, k)), empty(logits, (tokens, k), "int32")
    order, offsets = empty(logits, tokens * k, "int32"), empty(logits, experts + 1, "int32")
    _gate[(triton.cdiv(tokens, 8),)](logits, weights, chosen, tokens, experts, k, BLOCK=8)
    _order[(experts,)](chosen, order, offsets, tokens * k, experts, BLOCK=32)
    return weights, chosen, order, offsets


def gate_reference(logits, k):
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    chosen = np.argsort(-p, 1, kind="stable")[:, :k].astype(np.int32)
    weights = np.take_along_axis(p, chosen, 1)
    flat = chosen.ravel()
    offsets = np.searchsorted(np.sort(flat), np.arange(logits.shape[1] + 1)).astype(np.int32)
    return weights / weights.sum(1, keepdims=True), chosen, np.argsort(flat, kind="stable").astype(np.int32), offsets


specimen(
    "gate", gate, gate_reference, 1e-4, 1e-6,
    two=lambda rng: {"logits": normal(rng, 37, 16), "k": 2},
    four=lambda rng: {"logits": normal(rng, 9, 64), "k": 4},
)  # fmt: skip


@triton.jit
def _cholesky(A, L, B, X, n: tl.constexpr):
    program = tl.program_id(0)
    r = tl.arange(0, n)
    i, j = r[:, None], r[None, :]
    a = tl.load(A + program * n * n + i * n + j)
    for k in tl.static_range(n):
        column = tl.sum(tl.where(j == k, a, 0.0), 1)
        pivot = tl.sqrt(tl.sum(tl.where(r == k, column, 0.0), 0))
        column = tl.where(r == k, pivot, tl.where(r > k, column / pivot, 0.0))
        a = tl.where(j > k, a - column[:, None] * column[None, :], tl.where(j == k, column[:, None], a))
    tl.store(L + program * n * n + i * n + j, a)
    b = tl.load(B + program * n + r)
    x = tl.zeros((n,), tl.float32)
    for k in range(n):
        row = tl.sum(tl.where(i == k, a, 0.0), 0)
        rest = tl.sum(tl.where(r == k, b, 0.0), 0) - tl.sum(row * x, 0)
        x = tl.where(r == k, rest / tl.sum(tl.where(r == k, row, 0.0), 0), x)
    tl.store(X + program * n + r, x)


def cholesky(a, b):
    """Computes the Cholesky factors of 16 x 16 matrices, and solves L x = b."""
    factors, x = empty(a), empty(b)
    _cholesky[(a.shape[0],)](a, factors, b, x, n=a.shape[1])
    return factors, x


def cholesky_reference(a, b):
    factors = np.linalg.cholesky(a)
    return factors, np.linalg.solve(factors, b[..., None])[..., 0]


def positive_definite(rng):
    m = rng.standard_normal((5, 16, 16))
    return {"a": (m @ m.transpose(0, 2, 1) + 16 * np.eye(16)).astype(np.float32), "b": normal(rng, 5, 16)}


specimen("cholesky", cholesky, cholesky_reference, 1e-3, 1e-5, small=positive_definite)


@triton.jit
def _halves(x, N: tl.constexpr, H: tl.constexpr):
    a, b = tl.split(tl.permute(tl.reshape(x, (N // (2 * H), 2, H)), (0, 2, 1)))
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (N,))


@triton.jit
def _transformed(x, N: tl.constexpr, H: tl.constexpr):
    """A recursion that ends at compile time."""
    if H == N:
        return x
    else:
        return _transformed(_halves(x, N, H), N, 2 * H)


@triton.jit
def _hadamard(X, Y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(Y + at, _transformed(tl.load(X + at), N, 1))


def hadamard(x):
    y = empty(x)
    _hadamard[(x.shape[0],)](x, y, x.shape[1])
    return y


def hadamard_reference(x):
    signs = np.ones((1, 1))
    while len(signs) < x.shape[1]:
        signs = np.block([[signs, signs], [signs, -signs]])
    return x @ signs


specimen("hadamard", hadamard, hadamard_reference, 1e-4, 1e-5, rows=lambda rng: {"x": normal(rng, 4, 64)})
