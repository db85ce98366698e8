"""Cells that define and launch the first kernels of a newcomer: an addition, a softmax, and a matrix product with ragged sizes."""

from __future__ import annotations

SETUP = """\
%load_ext blocknb

import numpy as np

import blocknb
import blocknb.language as tl
"""
ADD = """\
%%blockkernel
@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


n = 1_000_000  # no multiple of the block
x, y = np.random.rand(2, n).astype(np.float32)
out = np.empty_like(x)
add[blocknb.cdiv(n, 1024),](x, y, out, n, BLOCK=1024)
"""
SOFTMAX = """\
%%blockkernel
@blocknb.kernel
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=inside)


rows, columns = 2048, 960
x = np.random.standard_normal((rows, columns)).astype(np.float32)
out = np.empty_like(x)
for _ in range(10):
    softmax[rows,](x, out, columns, BLOCK=blocknb.next_power_of_2(columns))
"""
MATMUL = """\
%%blockkernel
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr = 8, LEAKY: tl.constexpr = False):
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tl.program_id(0) // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    inside = tl.program_id(0) % (GROUP * across)
    row, column = first + inside % height, inside // height

    m = row * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    x_at = a + m[:, None] * K + k[None, :]
    y_at = b + k[:, None] * N + n[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(x_at, mask=(m[:, None] < M) & (k[None, :] < K - start))
        y = tl.load(y_at, mask=(k[:, None] < K - start) & (n[None, :] < N))
        total = tl.dot(x, y, total)
        x_at += BK
        y_at += BK * N
    if LEAKY:
        total = tl.where(total > 0, total, 0.01 * total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


M, N, K = 512, 384, 448
a = np.random.standard_normal((M, K)).astype(np.float32)
b = np.random.standard_normal((K, N)).astype(np.float32)
c = np.empty((M, N), np.float32)
grid = lambda t: (blocknb.cdiv(M, t["BM"]) * blocknb.cdiv(N, t["BN"]),)
matmul[grid](a, b, c, M, N, K, BM=64, BN=64, BK=32)
"""
#: The cell of each kernel; SETUP runs before them.
CELLS = {"add": ADD, "softmax": SOFTMAX, "matmul": MATMUL}
