"""An RMS normalisation with optional weight as a torch.autograd.Function: forward and backward kernels, heuristics, saved statistics."""

import torch
import triton
import triton.language as tl

HEURISTICS = {"HAS_WEIGHT": lambda args: args["W"] is not None, "BLOCK": lambda args: triton.next_power_of_2(args["N"])}


@triton.heuristics(HEURISTICS)
@triton.jit(do_not_specialize=["eps"], repr=lambda spec: f"rms_norm_{spec.constants['BLOCK']}")
def forward_kernel(X, W, Y, RSTD, stride, N, eps, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = 1 / tl.sqrt(tl.sum(x * x, axis=0) / N + eps)
    tl.store(RSTD + row, rstd)
    y = x * rstd
    if HAS_WEIGHT:
        y *= tl.load(W + cols, mask=mask).to(tl.float32)
    tl.store(Y + row * stride + cols, y, mask=mask)


@triton.heuristics(HEURISTICS)
@triton.jit
def backward_kernel(
    DY, X, W, RSTD, DX, DW, stride, M, N, rows_per_program, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr
):
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    if HAS_WEIGHT:
        w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
        dw = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(pid * rows_per_program, min((pid + 1) * rows_per_program, M)):
        x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(DY + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(RSTD + row)
        normed = x * rstd
        if HAS_WEIGHT:
            dw += dy * normed
            dy *= w
        dx = (dy - normed * (tl.sum(normed * dy, axis=0) / N)) * rstd
        tl.store(DX + row * stride + cols, dx, mask=mask)
    if HAS_WEIGHT:
        tl.store(DW + pid * N + cols, dw, mask=mask)


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight=None, eps=1e-5):
        rows = x.reshape(-1, x.shape[-1])
        y, rstd = torch.empty_like(rows), torch.empty(rows.shape[0], dtype=torch.float32, device=x.device)
        forward_kernel[(rows.shape[0],)](rows, weight, y, rstd, rows.stride(0), rows.shape[1], eps)
        ctx.save_for_backward(rows, weight, rstd)
        return y.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        (M, N), programs = x.shape, 4
        dx = torch.empty_like(x)
        dw = None if weight is None else torch.empty((programs, N), dtype=torch.float32, device=x.device)
        backward_kernel[(programs,)](
            dy.reshape(M, N).contiguous(), x, weight, rstd, dx, dw, x.stride(0), M, N, triton.cdiv(M, programs)
        )
        return dx.view_as(dy), None if dw is None else dw.sum(0).to(weight.dtype), None


rms_norm = RMSNorm.apply
