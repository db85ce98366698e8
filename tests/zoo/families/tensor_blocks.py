"""Products on tensor cores with operands in blocks or patches: block-sparse matrices and convolution."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty
from zoo.registry import normal, specimen

from blocknb.bench.suite.kinds import loaded

HALF = np.float16


def blocksparse(values, b, starts, columns):
    c = empty(b, (64 * (len(starts) - 1), b.shape[1]))
    loaded("blocks", "blocknb").block_sparse(values, b, starts, columns, c)
    return c


def blocksparse_reference(values, b, starts, columns):
    c = np.zeros((64 * (len(starts) - 1), b.shape[1]))
    for row in range(len(starts) - 1):
        for i in range(starts[row], starts[row + 1]):
            c[64 * row : 64 * row + 64] += values[i] @ b[64 * columns[i] : 64 * columns[i] + 64]
    return c


specimen(
    "blocksparse", blocksparse, blocksparse_reference, 1e-2, 2e-3,
    ragged=lambda rng: {
        "values": normal(rng, 4, 64, 64, dtype=HALF), "b": normal(rng, 192, 80, dtype=HALF),
        "starts": np.array([0, 2, 2, 4], np.int32), "columns": np.array([0, 2, 1, 2], np.int32),
    },
)  # fmt: skip


@triton.jit
def _conv(
    X, W, Bias, Y, H, Wd, C, F, OH, OW, S: tl.constexpr, R: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    DILATION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, total,
):  # fmt: skip
    """Convolution in NHWC, as the product of patches and filters (F, R, S, C)."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rf = tl.program_id(1) * BN + tl.arange(0, BN)
    n = rm // (OH * OW)
    oh = rm // OW % OH
    ow = rm % OW
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    steps = R * S * tl.cdiv(C, BK)
    per = tl.cdiv(C, BK)
    for i in range(steps):
        rs = i // per
        rc = i % per * BK + tl.arange(0, BK)
        h = oh * STRIDE - PAD + rs // S * DILATION
        w = ow * STRIDE - PAD + rs % S * DILATION
        seen = (rm < total) & (h >= 0) & (h < H) & (w >= 0) & (w < Wd)
        x = tl.load(
            X + (((n * H + h) * Wd + w) * C)[:, None] + rc[None, :], mask=seen[:, None] & (rc < C)[None, :], other=0.0
        )
        f = tl.load(
            W + (rf[None, :] * (R * S) + rs) * C + rc[:, None], mask=(rf < F)[None, :] & (rc < C)[:, None], other=0.0
        )
        acc = tl.dot(x, f, acc)
    acc += tl.load(Bias + rf, mask=rf < F, other=0.0)[None, :]
    tl.store(Y + rm[:, None] * F + rf[None, :], acc.to(Y.dtype.element_ty), (rm < total)[:, None] & (rf < F)[None, :])


def conv(x, w, bias, stride, pad, dilation):
    (B, H, Wd, C), (F, R, S, _) = x.shape, w.shape
    OH, OW = (
        (n + 2 * pad - dilation * (r - 1) - 1) // stride + 1 for n, r in ((H, R), (Wd, S))
    )  # fmt: skip
    y = empty(x, (B, OH, OW, F))
    total = B * OH * OW
    _conv[(triton.cdiv(total, 64), triton.cdiv(F, 64))](
        x, w, bias, y, H, Wd, C, F, OH, OW, S, R, stride, pad, dilation, 64, 64, 32, total, num_warps=4
    )
    return y


def conv_reference(x, w, bias, stride, pad, dilation):
    R, S = w.shape[1:3]
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    OH, OW = ((n - dilation * (r - 1) - 1) // stride + 1 for n, r in ((x.shape[1], R), (x.shape[2], S)))
    y = 0.0
    for r in range(R):
        for s in range(S):
            part = x[
                :,
                r * dilation : r * dilation + stride * OH : stride,
                s * dilation : s * dilation + stride * OW : stride,
            ]
            y = y + part[:, :OH, :OW] @ w[:, r, s].T
    return y + bias


specimen(
    "conv", conv, conv_reference, 1e-2, 2e-3,
    strided=lambda rng: {"x": normal(rng, 2, 9, 11, 40, dtype=HALF), "w": normal(rng, 72, 3, 3, 40, dtype=HALF),
                         "bias": normal(rng, 72), "stride": 2, "pad": 1, "dilation": 1},
    dilated=lambda rng: {"x": normal(rng, 1, 10, 10, 32, dtype=HALF), "w": normal(rng, 64, 2, 3, 32, dtype=HALF),
                         "bias": normal(rng, 64), "stride": 1, "pad": 2, "dilation": 2},
)  # fmt: skip
