"""Microbenchmarks: kernels that each saturate one part of a machine (memory, a cache, shared memory, the FP32 units).

They are compiled like any other kernel. Their arguments determine the bytes or operations of a launch, so a measured time gives a
rate. `ceilings` launches them.
"""

from __future__ import annotations

import blocknb.language as bl
from blocknb.runtime.kernel import kernel

SHARED_READS = 16  # of 16 bytes, per thread and iteration of `shared_kernel`
PRODUCT = (128, 256, 128)  # M, N and K of a product of `product_kernel`
FMA_CHAIN = {"cpu": 8, "cuda": 32}  # per element and iteration of `fma_kernel`


@kernel
def copy_kernel(x, y, n, BLOCK: bl.constexpr):
    at = bl.program_id(0).to(bl.int64) * BLOCK + bl.arange(0, BLOCK)
    bl.store(y + at, bl.load(x + at, mask=at < n), mask=at < n)


@kernel
def update_kernel(x, n, BLOCK: bl.constexpr):
    """Reads and writes the same memory, so a CPU fetches no extra cache lines for the stores."""
    at = bl.program_id(0).to(bl.int64) * BLOCK + bl.arange(0, BLOCK)
    bl.store(x + at, bl.load(x + at, mask=at < n) + 1.0, mask=at < n)


@kernel
def read_kernel(x, out, BLOCK: bl.constexpr, ITERATIONS: bl.constexpr):
    """Each program adds up ITERATIONS adjacent blocks."""
    start = bl.program_id(0).to(bl.int64) * (BLOCK * ITERATIONS)
    total = bl.zeros((BLOCK,), bl.float32)
    for iteration in bl.static_range(ITERATIONS):
        total += bl.load(x + start + iteration * BLOCK + bl.arange(0, BLOCK))
    bl.store(out + bl.program_id(0), bl.sum(total, axis=0))


@kernel
def fill_kernel(x, BLOCK: bl.constexpr):
    at = bl.program_id(0).to(bl.int64) * BLOCK + bl.arange(0, BLOCK)
    bl.store(x + at, bl.zeros((BLOCK,), bl.float32))


@kernel
def reread_kernel(x, out, blocks, iterations, BLOCK: bl.constexpr):
    """Reads `iterations` blocks of the array and bypasses the L1 cache. Each program begins at a different block."""
    pid = bl.program_id(0)
    total = bl.zeros((BLOCK,), bl.float32)
    for iteration in range(iterations):
        at = (pid * 17 + iteration) % blocks * BLOCK + bl.arange(0, BLOCK)
        total += bl.load(x + at, cache_modifier=".cg")
    bl.store(out + pid * BLOCK + bl.arange(0, BLOCK), total)


@kernel
def reread_sum_kernel(x, out, blocks, iterations, BLOCK: bl.constexpr):
    """Does the same with a scalar total, which a CPU keeps in a register."""
    pid, total = bl.program_id(0), 0.0
    for iteration in range(iterations):
        at = (pid * 17 + iteration) % blocks * BLOCK + bl.arange(0, BLOCK)
        total += bl.sum(bl.load(x + at), axis=0)
    bl.store(out + pid, total)


@kernel
def shared_kernel(out, iterations, THREADS: bl.constexpr):
    """Each thread reads 16 bytes of shared memory repeatedly. Adjacent threads read adjacent bytes, without bank conflicts."""
    seen = bl.arange(0, THREADS)
    for _ in range(iterations):
        seen = bl.inline_asm_elementwise(
            """
            {
                .shared .align 16 .b8 words[16384];
                .reg .b32 at, thread, a, b, c, d;
                mov.u32 thread, %tid.x;
                mov.u32 at, words;
                mad.lo.u32 at, thread, 16, at;
                mov.b32 $0, $1;
            """
            + 16 * "ld.volatile.shared.v4.b32 {a, b, c, d}, [at]; xor.b32 $0, $0, a;\n"
            + "}",
            "=&r,r",
            [seen],
            bl.int32,
            is_pure=False,
            pack=1,
        )
    bl.store(out + bl.program_id(0) * THREADS + bl.arange(0, THREADS), seen)


@kernel
def fma_kernel(x, out, iterations, BLOCK: bl.constexpr, CHAIN: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    factor = bl.load(x + at)
    value = factor
    for _ in range(iterations):
        for _ in bl.static_range(CHAIN):
            value = bl.fma(value, factor, factor)
    bl.store(out + at, value)


@kernel
def product_kernel(a, b, out, iterations, M: bl.constexpr, N: bl.constexpr, K: bl.constexpr, FORM: bl.constexpr):
    """Multiplies two tiles of bytes, reinterpreted as FORM, `iterations` times."""
    row, column, inner = bl.arange(0, M), bl.arange(0, N), bl.arange(0, K)
    x = bl.load(a + row[:, None] * K + inner[None, :]).to(FORM, bitcast=True)
    y = bl.load(b + column[None, :] * K + inner[:, None]).to(FORM, bitcast=True)
    total = bl.zeros((M, N), bl.int32 if bl.int8 == FORM else bl.float32)
    for _ in range(iterations):
        total = bl.dot(x, y, total)
    bl.store(out + bl.program_id(0) * (M * N) + row[:, None] * N + column[None, :], total)
