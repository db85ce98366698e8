"""Stream-K products: programs take equal shares of all steps along K. Programs that share a tile meet at a lock or at a flag.

Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023.
"""

import triton
import triton.language as tl


@triton.jit
def _share(
    A, B, C, Locks, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, start, end, steps,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Adds the steps from `start` to `end` of one tile. The program with the last step stores first; the others wait for its lock."""
    tile = start // steps
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = tile // (GROUP * columns)
    size = tl.minimum(rows - group * GROUP, GROUP)
    pid_m = group * GROUP + tile % size
    pid_n = (tile % (GROUP * columns)) // size
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_ptrs = A + rm[:, None] * stride_am + rk[None, :] * stride_ak + BK * stride_ak * (start % steps)
    b_ptrs = B + rk[:, None] * stride_bk + rn[None, :] * stride_bn + BK * stride_bk * (start % steps)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(start, end):
        a = tl.load(a_ptrs)
        b = tl.load(b_ptrs)
        acc += tl.dot(a, b)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    c_ptrs = C + rm[:, None] * stride_cm + rn[None, :] * stride_cn
    if end % steps == 0:
        tl.store(c_ptrs, acc)
        if start % steps != 0:
            tl.debug_barrier()
            tl.atomic_xchg(Locks + tile, 1)
    else:
        while tl.atomic_cas(Locks + tile, 1, 1) != 1:
            pass
        tl.debug_barrier()
        tl.atomic_add(c_ptrs, acc)


@triton.jit
def _stream_k(
    A, B, C, Locks, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, each, more, steps,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Every program takes `each` steps, the first `more` programs one step more."""
    pid = tl.program_id(0)
    start = pid * each + tl.minimum(pid, more)
    last = (pid + 1) * each + tl.minimum(pid + 1, more)
    while start < last:
        end = tl.minimum(start + (steps - start % steps), last)
        _share(
            A, B, C, Locks, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, start, end, steps,
            BM, BN, BK, GROUP,
        )  # fmt: skip
        start = end


def stream_k(a, b, c, locks, programs, tile=(128, 128, 32), num_warps=8, num_stages=3):
    """C (M, N) fp32 = A (M, K) B (K, N), by sums in memory. M, N and K are multiples of the tile's sides."""
    (M, K), N = a.shape, b.shape[1]
    BM, BN, BK = tile
    steps = triton.cdiv(K, BK)
    total = triton.cdiv(M, BM) * triton.cdiv(N, BN) * steps
    locks[...] = 0
    _stream_k[(programs,)](
        a, b, c, locks, M, N, K, K, 1, N, 1, N, 1, total // programs, total % programs, steps,
        BM=BM, BN=BN, BK=BK, GROUP=8, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


@triton.jit
def _handed_on(A, B, C, Parts, Flags, M, N, K, total, each, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The program with the last step of a tile waits for the flags of the programs with the other steps."""
    program = tl.program_id(0)
    step, end = program * each, min(program * each + each, total)
    steps, columns = tl.cdiv(K, BK), tl.cdiv(N, BN)
    part = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    while step < end:
        tile, first = step // steps, step % steps
        last = min(steps, first + end - step)
        m = tile // columns * BM + tl.arange(0, BM)
        n = tile % columns * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for i in range(first, last):
            k = i * BK + tl.arange(0, BK)
            a = tl.load(A + m[:, None] * K + k[None, :], (m[:, None] < M) & (k[None, :] < K), 0.0)
            b = tl.load(B + k[:, None] * N + n[None, :], (k[:, None] < K) & (n[None, :] < N), 0.0)
            acc = tl.dot(a, b, acc)
        if last < steps:
            tl.store(Parts + program * BM * BN + part, acc)
            tl.debug_barrier()
            tl.atomic_xchg(Flags + program, tile + 1, sem="release")
        else:
            left, other = first, program - 1
            while left > 0:
                while tl.atomic_cas(Flags + other, tile + 1, tile + 1, sem="acquire") != tile + 1:
                    pass
                tl.debug_barrier()
                acc += tl.load(Parts + other * BM * BN + part)
                left -= each
                other -= 1
            tl.store(C + m[:, None] * N + n[None, :], acc, (m[:, None] < M) & (n[None, :] < N))
        step += last - first


def handed_on(a, b, c, parts, flags, programs, tile=(64, 64, 32), num_warps=4):
    """C (M, N) fp32 = A (M, K) B (K, N), by partial sums in `parts` (programs, BM BN) and `flags` (programs,)."""
    (M, K), N = a.shape, b.shape[1]
    BM, BN, BK = tile
    total = triton.cdiv(M, BM) * triton.cdiv(N, BN) * triton.cdiv(K, BK)
    flags[...] = 0
    _handed_on[(programs,)](
        a, b, c, parts, flags, M, N, K, total, triton.cdiv(total, programs), BM=BM, BN=BN, BK=BK, num_warps=num_warps
    )


@triton.jit
def _one_loop(A, B, C, Locks, M, N, K, total, each, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """All steps of a program in one loop, which stores a tile after its last step. A `tl.debug_barrier` would keep Triton from pipelining
    it, so such kernels have none."""
    start = tl.program_id(0) * each
    end = tl.minimum(start + each, total)
    columns = tl.cdiv(N, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(start, end):
        tile, step = at // steps, at % steps
        rm = tile // columns * BM + tl.arange(0, BM)
        rn = tile % columns * BN + tl.arange(0, BN)
        rk = step * BK + tl.arange(0, BK)
        a = tl.load(A + rm[:, None] * K + rk[None, :])
        b = tl.load(B + rk[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
        c_ptrs = C + rm[:, None] * N + rn[None, :]
        if step == steps - 1:
            tl.store(c_ptrs, acc)
            tl.atomic_xchg(Locks + tile, 1)
            acc = tl.zeros((BM, BN), tl.float32)
        elif at == end - 1:
            while tl.atomic_cas(Locks + tile, 1, 1) != 1:
                pass
            tl.atomic_add(c_ptrs, acc)


def one_loop(a, b, c, locks, programs, tile=(128, 128, 32), num_warps=8):
    """As `stream_k`."""
    (M, K), N = a.shape, b.shape[1]
    BM, BN, BK = tile
    steps = triton.cdiv(K, BK)
    total = triton.cdiv(M, BM) * triton.cdiv(N, BN) * steps
    locks[...] = 0
    _one_loop[(programs,)](
        a, b, c, locks, M, N, K, total, triton.cdiv(total, programs), steps, BM=BM, BN=BN, BK=BK, num_warps=num_warps
    )


@triton.jit
def _in_turn(
    A, B, C, Locks, Counts, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr
):
    """Programs that share a tile add their parts to it one after another: a lock protects the tile."""
    tile, part = tl.program_id(0), tl.program_id(1)
    columns = tl.cdiv(N, BN)
    rm = tile // columns * BM + tl.arange(0, BM)
    rn = tile % columns * BN + tl.arange(0, BN)
    rk = part * BK + tl.arange(0, BK)
    a_ptrs = A + rm[:, None] * K + rk[None, :]
    b_ptrs = B + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(tl.cdiv(K, BK * SPLIT)):
        acc += tl.dot(tl.load(a_ptrs), tl.load(b_ptrs))
        a_ptrs += BK * SPLIT
        b_ptrs += BK * SPLIT * N
    c_ptrs = C + rm[:, None] * N + rn[None, :]
    while tl.atomic_cas(Locks + tile, 0, 1) == 1:
        pass
    tl.debug_barrier()
    if tl.load(Counts + tile) == 0:
        tl.atomic_xchg(Counts + tile, 1)
    else:
        acc += tl.load(c_ptrs)
    tl.store(c_ptrs, acc)
    tl.debug_barrier()
    tl.atomic_xchg(Locks + tile, 0)


def in_turn(a, b, c, locks, counts, split, tile=(128, 128, 32), num_warps=8):
    """C (M, N) fp32 = A (M, K) B (K, N); K is a multiple of BK `split`."""
    (M, K), N = a.shape, b.shape[1]
    BM, BN, BK = tile
    locks[...] = 0
    counts[...] = 0
    grid = triton.cdiv(M, BM) * triton.cdiv(N, BN), split
    _in_turn[grid](a, b, c, locks, counts, M, N, K, BM=BM, BN=BN, BK=BK, SPLIT=split, num_warps=num_warps)
