"""An autotuned matrix product with a fused activation, grouped program order, and a helper from below."""

import torch
import triton
import triton.language as tl


def configurations():
    if triton.runtime.driver.active.get_current_target().backend == "cuda":
        sizes = [(128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4)]
    else:
        sizes = [(32, 64, 32, 2, 4), (64, 32, 32, 2, 4)]
    return [
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8}, num_stages=stages, num_warps=warps) for m, n, k, stages, warps in sizes
    ]  # fmt: skip


@triton.autotune(configs=configurations(), key=["M", "N", "K"], warmup=1, rep=2)
@triton.jit
def matmul_kernel(
    # the matrices
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    # how far it is to the next row and column
    stride_am, stride_ak,  #
    stride_bk, stride_bn,  #
    stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,  #
    GROUP: tl.constexpr,  #
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """C = activation(A @ B)."""
    pid = tl.program_id(axis=0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * tiles_n
    first = pid // in_group * GROUP
    height = min(tiles_m - first, GROUP)
    pid_m = first + (pid % in_group) % height
    pid_n = (pid % in_group) // height
    tl.assume(pid_m >= 0)
    tl.assume(stride_am > 0)
    row = (pid_m * BM + tl.arange(0, BM)) % M
    col = (pid_n * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_ptrs = a_ptr + (row[:, None] * stride_am + k[None, :] * stride_ak)
    b_ptrs = b_ptr + (k[:, None] * stride_bk + col[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=k[None, :] < K - i * BK, other=0.0)
        b = tl.load(b_ptrs, mask=k[:, None] < K - i * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    if ACTIVATION == "leaky_relu":
        acc = leaky_relu(acc)
    c = acc.to(c_ptr.dtype.element_ty)
    row, col = pid_m * BM + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * row[:, None] + stride_cn * col[None, :]
    tl.store(c_ptrs, c, mask=(row[:, None] < M) & (col[None, :] < N))


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


def matmul(a, b, activation=""):
    assert a.shape[1] == b.shape[0], "incompatible dimensions"
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda META: (triton.cdiv(M, META["BM"]) * triton.cdiv(N, META["BN"]),)  # noqa: E731
    matmul_kernel[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), ACTIVATION=activation)
    return c
