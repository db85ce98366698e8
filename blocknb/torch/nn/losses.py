"""Cross entropy with the arguments of torch's, for any number of classes. The gradient is computed in fp32 and rounded once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from blocknb import kernels
from blocknb.torch.nn.shapes import autocast_to_float32, check_floating, rows, sums_dtype
from blocknb.torch.ops import launch, torch_op

REDUCTIONS = ("mean", "sum", "none")


@torch_op("blocknb::cross_entropy")
def _cross_entropy(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The losses of logits (M, N), in fp32, and the logsumexp."""
    losses = torch.empty(logits.shape[0], dtype=sums_dtype(logits), device=logits.device)
    logsumexp = torch.empty_like(losses)
    launch(functools.partial(kernels.cross_entropy, ignored=ignore_index), rows(logits), target, losses, logsumexp)
    return losses, logsumexp


@torch_op("blocknb::cross_entropy_backward")
def _cross_entropy_backward(
    logits: Tensor, target: Tensor, dlosses: Tensor, logsumexp: Tensor, ignore_index: int
) -> Tensor:
    dlogits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    backward = functools.partial(kernels.cross_entropy_backward, ignored=ignore_index)
    launch(backward, rows(logits), target, dlosses.contiguous(), logsumexp, dlogits)
    return dlogits


@_cross_entropy.backward(save=("logits", "target", 1), undifferentiable=(1,))
def _(saved: Any, dlosses: Tensor) -> Any:
    given = saved.logits, saved.target, dlosses, saved.outputs[1]
    return {"logits": _cross_entropy_backward(*given, saved.ignore_index)}


def check_target(name: str, first: str, leading: Any, target: Tensor) -> None:
    """Raises ValueError unless `target` has integer classes of the leading shape of `first`."""
    if target.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name}: `target` is {target.dtype}, but classes are int64: pass target.long()")
    if tuple(target.shape) != tuple(leading):
        raise ValueError(f"{name}: `target` has the shape {tuple(target.shape)}, but `{first}` needs {tuple(leading)}")


def reduced(losses: Tensor, target: Tensor, ignore_index: int, reduction: str, name: str) -> Tensor:
    """The losses themselves, their sum, or their mean over the targets that count. Raises ValueError for another reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: reduction is {reduction!r}, but it must be one of {', '.join(REDUCTIONS)}")
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()


def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """`torch.nn.functional.cross_entropy` of logits (M, N), or (N) alone, and classes (M). The result has the dtype of the logits.

    The classes must be below N, which is not checked on a GPU. Raises ValueError for other shapes and dtypes.
    """
    check_floating("cross_entropy", logits=logits)
    if logits.dim() not in (1, 2):
        raise ValueError(
            f"cross_entropy: `logits` has the shape {tuple(logits.shape)}: pass logits.flatten(0, -2), (M, N)"
        )
    check_target("cross_entropy", "logits", logits.shape[:-1], target)
    matrix, classes = (logits, target) if logits.dim() == 2 else (logits[None], target[None])
    losses = _cross_entropy(matrix, classes.contiguous(), ignore_index)[0]
    found = reduced(losses, classes, ignore_index, reduction, "cross_entropy")
    found = found[0] if logits.dim() == 1 and reduction == "none" else found
    return found if autocast_to_float32(logits) else found.to(logits.dtype)


class CrossEntropyLoss(torch.nn.Module):
    """`torch.nn.CrossEntropyLoss` for integer classes, without class weights and label smoothing."""

    def __init__(
        self, weight: None = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ):
        super().__init__()
        if weight is not None or label_smoothing:
            wrong = "weight" if weight is not None else "label_smoothing"
            raise ValueError(f"CrossEntropyLoss of blocknb has no {wrong}: use torch.nn.CrossEntropyLoss")
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of logits (M, N) and classes (M)."""
        return cross_entropy(logits, target, self.ignore_index, self.reduction)
