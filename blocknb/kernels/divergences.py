"""Divergences of distributions in rows, and their gradients: Kullback-Leibler, and the generalized Jensen-Shannon divergence.

The first distribution is given as logarithms x. The second one, t, is given as probabilities or logarithms. KL is the sum of
t (log t - x). JSD (Lin 1991; with a weight, Agarwal et al. 2024) is beta KL(t, m) + (1 - beta) KL(x, m) with the mixture
m = beta t + (1 - beta) x. Terms with a probability of 0 are 0.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import matrix, vector
from blocknb.kernels.strides import strides

BLOCK = 1024  # elements per iteration
KINDS = ("probabilities", "logarithms", "jsd")


@blocknb.kernel
def divergence_kernel(
    x, target, out, sums, x_row, target_row, n, beta, KIND: bl.constexpr, BETA: bl.constexpr, BLOCK: bl.constexpr
):
    """Computes one row: the terms `out`, and their sum, where given."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    row = bl.program_id(0).to(bl.int64)
    total = bl.zeros((BLOCK,), WIDE)
    for first in range(0, n, BLOCK):
        at = first + bl.arange(0, BLOCK)
        inside = at < n
        a = bl.load(x + row * x_row + at, mask=inside, other=0.0).to(WIDE)
        b = bl.load(target + row * target_row + at, mask=inside, other=0.0).to(WIDE)
        if KIND == "probabilities":
            term = bl.where(b > 0.0, b * (bl.log(bl.where(b > 0.0, b, 1.0)) - a), 0.0 * b)
        elif KIND == "logarithms":
            p = bl.exp(b)
            term = bl.where(p > 0.0, p * (b - a), 0.0)
        else:
            p, q = bl.exp(b) * (beta if BETA is None else BETA), bl.exp(a) * (1.0 - (beta if BETA is None else BETA))
            middle = bl.log(bl.where(p + q > 0.0, p + q, 1.0))
            term = bl.where(p > 0.0, p * (b - middle), 0.0) + bl.where(q > 0.0, q * (a - middle), 0.0)
        term = bl.where(inside, term, 0.0)
        if out is not None:
            bl.store(out + row * n + at, term, mask=inside)
        total += term
    if sums is not None:
        bl.store(sums + row, bl.sum(total, axis=0))


@blocknb.kernel
def divergence_backward_kernel(
    x, target, dout, dx, dtarget, x_row, target_row, dout_row, dout_column, n, blocks, beta, KIND: bl.constexpr, BETA: bl.constexpr,
    BLOCK: bl.constexpr,
):  # fmt: skip
    """Computes one block of the gradients of a row, of x and of the target, where given."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    row = (bl.program_id(0) // blocks).to(bl.int64)
    at = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    inside = at < n
    a = bl.load(x + row * x_row + at, mask=inside, other=0.0).to(WIDE)
    b = bl.load(target + row * target_row + at, mask=inside, other=0.0).to(WIDE)
    given = bl.load(dout + row * dout_row + at * dout_column, mask=inside, other=0.0).to(WIDE)
    if KIND == "probabilities":
        of_x, of_target = -b, bl.log(b) + 1.0 - a
    elif KIND == "logarithms":
        p = bl.exp(b)
        of_x, of_target = -p, bl.where(p > 0.0, p * (b - a + 1.0), 0.0)
    else:
        p, q = bl.exp(b) * (beta if BETA is None else BETA), bl.exp(a) * (1.0 - (beta if BETA is None else BETA))
        middle = bl.log(bl.where(p + q > 0.0, p + q, 1.0))
        of_x, of_target = bl.where(q > 0.0, q * (a - middle), 0.0), bl.where(p > 0.0, p * (b - middle), 0.0)
    if dx is not None:
        bl.store(dx + row * n + at, given * of_x, mask=inside)
    if dtarget is not None:
        bl.store(dtarget + row * n + at, given * of_target, mask=inside)


def _sizes(x: Any, target: Any, kind: str) -> tuple[int, int]:
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, but it must be one of {', '.join(KINDS)}")
    m, n = matrix(x, "x", longest=1 << 30)
    matrix(target, "target", like=x, longest=1 << 30)
    return m, n


def _weight(x: Any, beta: float) -> dict[str, Any]:
    """beta as an argument, and for fp64 as a constant, which keeps all of its digits."""
    return {"beta": beta, "BETA": beta if x.dtype.itemsize == 8 else None}


def divergence(x: Any, target: Any, out: Any, sums: Any, *, kind: str, beta: float = 0.5) -> None:
    """Writes the terms of the divergence of rows x (M, N) and target (M, N) to `out` (M, N), contiguous. Writes their sums, fp32 (M), to
    `sums`. Either may be None. `kind` says what the target is, or "jsd" of two matrices of logarithms. Raises ValueError for other shapes
    and kinds."""
    m, n = _sizes(x, target, kind)
    vector(sums, "sums", m)
    if m:
        divergence_kernel[(m,)](
            x, target, out, sums, strides(x)[0], strides(target)[0], n, KIND=kind, BLOCK=BLOCK, num_warps=4, **_weight(x, beta)
        )  # fmt: skip


def divergence_backward(x: Any, target: Any, dout: Any, dx: Any, dtarget: Any, *, kind: str, beta: float = 0.5) -> None:
    """Writes the gradients dx and dtarget (M, N), contiguous, or None, from those of the terms, dout (M, N) with any strides. Raises
    ValueError for other shapes and kinds."""
    m, n = _sizes(x, target, kind)
    if tuple(dout.shape) != (m, n):
        raise ValueError(f"dout must have the shape {(m, n)}, not {tuple(dout.shape)}")
    blocks = blocknb.cdiv(n, BLOCK)
    if m * n:
        divergence_backward_kernel[(m * blocks,)](
            x, target, dout, dx, dtarget, strides(x)[0], strides(target)[0], *strides(dout), n, blocks, KIND=kind, BLOCK=BLOCK,
            num_warps=4, **_weight(x, beta),
        )  # fmt: skip
