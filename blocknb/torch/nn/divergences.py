"""Kullback-Leibler and Jensen-Shannon divergences, for distillation. Terms and sums are computed in fp32 and rounded once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from blocknb.kernels import divergences
from blocknb.torch.nn.shapes import autocast_to_float32, check_same_shape, rows, sums_dtype
from blocknb.torch.ops import launch, torch_op

REDUCTIONS = ("mean", "batchmean", "sum", "none")


@torch_op("blocknb::divergence")
def _divergence(x: Tensor, target: Tensor, kind: str, beta: float, summed: bool, dtype: torch.dtype) -> Tensor:
    """The sums of the rows of matrices (M, N) in fp32, or with `summed` False the terms in `dtype`."""
    out = torch.empty(x.shape[:1] if summed else x.shape, dtype=sums_dtype(x) if summed else dtype, device=x.device)
    forward = functools.partial(divergences.divergence, kind=kind, beta=beta)
    launch(forward, rows(x), rows(target), None if summed else out, out if summed else None)
    return out


@torch_op("blocknb::divergence_backward")
def _divergence_backward(
    x: Tensor, target: Tensor, dout: Tensor, kind: str, beta: float, summed: bool, of_x: bool, of_target: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of x and the target; one that is not wanted is empty."""
    dx = torch.empty(x.shape if of_x else (0,), dtype=x.dtype, device=x.device)
    dtarget = torch.empty(x.shape if of_target else (0,), dtype=x.dtype, device=x.device)
    given = dout[:, None].expand(x.shape) if summed else dout
    backward = functools.partial(divergences.divergence_backward, kind=kind, beta=beta)
    launch(backward, rows(x), rows(target), given, dx if of_x else None, dtarget if of_target else None)
    return dx, dtarget


@_divergence.backward(save=("x", "target"))
def _(saved: Any, dout: Tensor) -> Any:
    wanted = ["x" in saved.needs, "target" in saved.needs]
    found = _divergence_backward(saved.x, saved.target, dout, saved.kind, saved.beta, saved.summed, *wanted)
    return {name: value for name, value, needed in zip(("x", "target"), found, wanted, strict=True) if needed}


def _reduced(name: str, x: Tensor, target: Tensor, kind: str, beta: float, reduction: str) -> Tensor:
    """The divergence of tensors (..., N) with one of torch's reductions."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: reduction is {reduction!r}, but it must be one of {', '.join(REDUCTIONS)}")
    dtype = torch.float32 if autocast_to_float32(x) else x.dtype
    matrices = [t.reshape(-1, t.shape[-1]) if t.dim() else t.view(1, 1) for t in (x, target)]
    if reduction == "none":
        return _divergence(*matrices, kind, beta, False, dtype).view(x.shape)
    total = _divergence(*matrices, kind, beta, True, dtype).sum()
    if reduction != "sum":
        total = total / (x.shape[0] if reduction == "batchmean" and x.dim() else x.numel())
    return total.to(dtype)


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """`torch.nn.functional.kl_div`: the sum of target (log target - input) for logarithms `input` and a target of probabilities, or of
    logarithms with `log_target`. Both get gradients. Where the target is 0, the term is 0, also for an input of minus infinity.

    `reduction` is "mean" over elements, "batchmean" over the first axis, "sum" or "none". Raises ValueError unless both tensors have one
    shape and dtype.
    """
    check_same_shape("kl_div", input=input, target=target)
    return _reduced("kl_div", input, target, "logarithms" if log_target else "probabilities", 0.5, reduction)


def jsd(input: Tensor, target: Tensor, beta: float = 0.5, reduction: str = "batchmean") -> Tensor:
    """The generalized Jensen-Shannon divergence of a student `input` and a teacher `target`, both logarithms of probabilities (..., N).

    It is beta KL(teacher, m) + (1 - beta) KL(student, m) for the mixture m = beta teacher + (1 - beta) student. As in TRL and
    Liger-Kernel, `beta` 0 is KL(teacher, student), and 1 is KL(student, teacher). `reduction` is as in `kl_div`. Raises ValueError unless
    both tensors have one shape and dtype, and for a beta outside of 0 to 1.
    """
    check_same_shape("jsd", input=input, target=target)
    if not 0 <= beta <= 1:
        raise ValueError(f"jsd: beta is {beta}, but it must be from 0 to 1")
    if beta in (0, 1):
        one, other = (input, target) if beta == 0 else (target, input)
        return _reduced("jsd", one, other, "logarithms", 0.5, reduction)
    return _reduced("jsd", input, target, "jsd", float(beta), reduction)


class KLDivLoss(torch.nn.Module):
    """`torch.nn.KLDivLoss`."""

    def __init__(self, reduction: str = "mean", log_target: bool = False):
        super().__init__()
        self.reduction, self.log_target = reduction, log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The divergence of logarithms and a target."""
        return kl_div(input, target, self.reduction, self.log_target)


class JSDLoss(torch.nn.Module):
    """`jsd` as a module."""

    def __init__(self, beta: float = 0.5, reduction: str = "batchmean"):
        super().__init__()
        self.beta, self.reduction = beta, reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The divergence of a student's and a teacher's logarithms."""
        return jsd(input, target, self.beta, self.reduction)
