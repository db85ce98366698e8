"""A matrix product in the style of files written for Triton 3.4 and later: descriptors from the host, tuned, and made on the device."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def set_blocks(nargs):
    nargs["a_desc"].block_shape = [nargs["BLOCK_M"], nargs["BLOCK_K"]]
    nargs["b_desc"].block_shape = [nargs["BLOCK_N"], nargs["BLOCK_K"]]
    nargs["c_desc"].block_shape = [nargs["BLOCK_M"], nargs["BLOCK_N"]]


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": m, "BLOCK_N": 32, "BLOCK_K": 32}, num_warps=w, num_stages=2, pre_hook=set_blocks)
        for m, w in ((16, 2), (32, 4))
    ],
    key=["M", "N", "K"],
)
@triton.jit
def host_kernel(a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    dtype = c_desc.dtype
    pid = tl.program_id(0)
    across = tl.cdiv(N, BLOCK_N)
    row, column = pid // across * BLOCK_M, pid % across * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in tl.range(0, tl.cdiv(K, BLOCK_K), warp_specialize=False):
        a = a_desc.load([row, k * BLOCK_K])
        b = b_desc.load([column, k * BLOCK_K])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([row, column], acc.to(dtype))


@triton.jit
def _load(desc_or_ptr, offsets, stride, BLOCK: tl.constexpr):
    if isinstance(desc_or_ptr, tl.tensor_descriptor):
        return desc_or_ptr.load(offsets)
    else:
        rows = offsets[0] + tl.arange(0, BLOCK)
        columns = offsets[1] + tl.arange(0, BLOCK)
        return tl.load(desc_or_ptr + rows[:, None] * stride + columns[None, :])


@triton.jit
def either_kernel(x, out, stride, BLOCK: tl.constexpr, DESCRIBE: tl.constexpr):
    if DESCRIBE:
        x = tl.make_tensor_descriptor(x, shape=[BLOCK, stride], strides=[stride, 1], block_shape=[BLOCK, BLOCK])
    rows = tl.arange(0, BLOCK)
    tl.store(out + rows[:, None] * BLOCK + rows[None, :], _load(x, [0, 4], stride, BLOCK))


def matmul(a, b):
    def allocate(size: int, alignment: int, stream):
        return torch.empty(size, device=a.device, dtype=torch.int8)

    triton.set_allocator(allocate)
    (M, K), (N, _) = a.shape, b.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    dummy = [1, 1]
    a_desc = TensorDescriptor.from_tensor(a, dummy)
    b_desc = TensorDescriptor(b, b.shape, b.stride(), dummy)
    c_desc = TensorDescriptor.from_tensor(c, dummy)

    def grid(META):
        return (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]),)

    host_kernel[grid](a_desc, b_desc, c_desc, M, N, K)
    return c


def corner(x, describe):
    out = torch.empty((16, 16), device=x.device, dtype=x.dtype)
    either_kernel[(1,)](x, out, x.stride(0), BLOCK=16, DESCRIBE=describe)
    return out


# The style of Triton 3.1 to 3.3: descriptors of addresses, which know the size of an element and not its dtype.


@triton.jit
def older_kernel(x_desc, out_desc, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    x = tl._experimental_descriptor_load(x_desc, [at, 0], [BLOCK, 16], tl.float16)
    tl._experimental_descriptor_store(out_desc, x * 2, [at, 0])


def older_double(x):
    from triton.tools.experimental_descriptor import create_2d_tma_descriptor

    out = torch.empty_like(x)
    x_desc, out_desc = (create_2d_tma_descriptor(t.data_ptr(), *t.shape, 8, 16, t.element_size()) for t in (x, out))
    older_kernel[(triton.cdiv(x.shape[0], 8),)](x_desc, out_desc, BLOCK=8)
    return out
