"""The cross entropy of a linear layer without its logits in memory: cross_entropy(x weight^T + bias, target), block of classes by block.

Training in eager mode uses the memory of the weight's gradient for logits. First it computes the gradient of x there, for the rows of x (M,
H) after the first H. Then it keeps the logits of the first H rows there. The backward pass computes the logits of the other rows again. A
block of the weight's gradient is then one product over all rows. So nothing is added up in 16 bits, and no copy of that gradient in fp32
exists. Sums for the gradient of x are in fp32.

In a graph of torch.compile, one operator does both passes for the mean and the sum. A graph cannot keep logits in the memory of a later
result. With `keep_logits`, this operator keeps all logits and computes none again. Other implementations split the rows and add gradients
of the weight in 16 bits. Their training diverges from that of unfused layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from blocknb.runtime.launch_context import this_thread
from blocknb.torch.nn import linear_loss_plans as plans
from blocknb.torch.nn.linear_loss_gradients import (
    LossGradients,
    all_gradients,
    early_gradients,
    kept_statistics,
    row_statistics,
)
from blocknb.torch.nn.losses import check_target, reduced
from blocknb.torch.nn.shapes import check_floating, sums_dtype
from blocknb.torch.ops import torch_op


@torch_op("blocknb::linear_cross_entropy")
def _linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The losses of x (M, H) for the weight (V, H), in fp32, and the logsumexp."""
    if this_thread.skips:
        logsumexp = torch.empty(x.shape[0], dtype=sums_dtype(x), device=x.device)
        chosen = torch.empty_like(logsumexp)
    else:
        step = plans.forward_block(x.shape[0], x.shape[0], x.shape[1], weight.shape[0])
        logsumexp, chosen = row_statistics(x, weight, bias, target, step)
    return torch.where(target == ignore_index, 0.0, logsumexp - chosen), logsumexp


@torch_op("blocknb::linear_cross_entropy_backward")
def _linear_cross_entropy_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, dlosses: Tensor, logsumexp: Tensor, ignore_index: int,
    needs_x: bool, needs_weight: bool, needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, the weight and the bias; those that are not needed are empty."""
    dx = x.new_empty(x.shape if needs_x else (0,))
    dweight = torch.empty_like(weight) if needs_weight else x.new_empty(0)
    dbias = torch.empty_like(bias) if needs_bias and bias is not None else x.new_empty(0)
    if not this_thread.skips:
        wanted = dx if needs_x else None, dweight if needs_weight else None, dbias if needs_bias else None
        LossGradients(x, weight, bias, target, dlosses, logsumexp, ignore_index).run(*wanted)
    return dx, dweight, dbias


@_linear_cross_entropy.backward(save=("x", "weight", "bias", "target", 1), undifferentiable=(1,))
def _(saved: Any, dlosses: Tensor) -> Any:
    names = ("x", "weight", "bias")
    wanted = [name in saved.needs for name in names]
    found = _linear_cross_entropy_backward(
        saved.x,
        saved.weight,
        saved.bias,
        saved.target,
        dlosses.contiguous(),
        saved.outputs[1],
        saved.ignore_index,
        *wanted,
    )
    return {name: value for name, value, needed in zip(names, found, wanted, strict=True) if needed}


def _statistics(
    given: tuple[Tensor, Tensor, Tensor | None, Tensor], kept: int, expected: Tensor | None, ignored: int, memory: Tensor,
    dx: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The logsumexp of each row, and the logit of its class. The logits of the first `kept` rows stay in `memory` (V, H). With dx, the
    other rows get their gradients, for losses with the gradient `expected`."""
    x, weight, bias, target = given
    others, statistics = (x[kept:], weight, bias, target[kept:]), []
    if kept < x.shape[0]:
        if expected is not None and dx is not None:
            statistics = early_gradients(*others, expected, ignored, memory, dx[kept:])
        else:
            m, h = x.shape
            statistics = [row_statistics(*others, plans.forward_block(m - kept, m, h, weight.shape[0]))]
    statistics.insert(0, kept_statistics(x[:kept], weight, bias, target[:kept], memory))
    logsumexp, chosen = (torch.cat(parts) for parts in zip(*statistics, strict=True))
    return logsumexp, chosen


@torch_op("blocknb::linear_cross_entropy_with_gradients")
def _with_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, expected: Tensor, ignore_index: int, needs_x: bool,
    needs_bias: bool, keep_logits: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The sum of the losses (1), and the gradients of x, the weight and the bias for losses with the gradient `expected`, a scalar. The
    gradients of x and the bias are empty if they are not needed."""
    total = torch.empty(1, dtype=sums_dtype(x), device=x.device)
    dx = x.new_empty(x.shape if needs_x else (0,))
    dweight = torch.empty_like(weight)
    dbias = torch.empty_like(bias) if needs_bias and bias is not None else x.new_empty(0)
    if not this_thread.skips:
        given = x, weight, bias, target
        dlosses = expected.expand(x.shape[0]).contiguous()
        wanted = dx if needs_x else None, dweight, dbias if needs_bias else None
        if keep_logits:
            logsumexp, chosen = all_gradients(*given, dlosses, ignore_index, *wanted)
        else:
            kept = plans.kept_rows(*x.shape)
            logsumexp, chosen = _statistics(given, kept, expected, ignore_index, dweight, wanted[0])
            gradients = LossGradients(*given, dlosses, logsumexp, ignore_index)
            gradients.run(*wanted, kept, expected if needs_x else None)
        losses = torch.where(target == ignore_index, 0.0, logsumexp - chosen)
        torch.sum(losses, 0, keepdim=True, out=total)
    return total, dx, dweight, dbias


def _scaled(expected: Tensor, dtotal: Tensor, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients for losses with the gradient `expected`, for those with the gradient dtotal (1)."""
    factor = torch.where(expected.isinf(), 1.0, dtotal[0] / expected)  # inf where all rows are ignored
    return [None if g is None else g * factor for g in gradients]


@_with_gradients.backward(save=("expected", 1, 2, 3), undifferentiable=(1, 2, 3))
def _(saved: Any, dtotal: Tensor) -> Any:
    names = ("x", "weight", "bias")
    wanted = [g if name in saved.needs else None for name, g in zip(names, saved.outputs[1:], strict=True)]
    return dict(zip(names, _scaled(saved.expected, dtotal, wanted), strict=True))


class _KeptGradients(torch.autograd.Function):
    """`_with_gradients` in eager mode, where the gradients are no outputs: autograd would make zeros for their gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignored: int, expected: Tensor
    ) -> Tensor:
        needs_x, _, needs_bias = ctx.needs_input_grad[:3]
        total, *found = _with_gradients(x, weight, bias, target, expected, ignored, needs_x, needs_bias, True)
        ctx.save_for_backward(expected, *found)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        expected, *found = ctx.saved_tensors
        wanted = [g if needed else None for g, needed in zip(found, ctx.needs_input_grad, strict=False)]
        return (*_scaled(expected, dtotal, wanted), None, None, None)


class _KeptLogits(torch.autograd.Function):
    """The losses in eager mode. The first backward pass uses the kept logits up; a second one computes all of them again. `expected` is
    the gradient of all losses that the backward pass will probably get, a scalar."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignored: int, expected: Tensor | None
    ) -> Tensor:
        kept = plans.kept_rows(*x.shape)
        memory, dx = weight.new_empty(weight.shape), None
        if kept < x.shape[0] and expected is not None and ctx.needs_input_grad[0]:
            dx = x.new_empty(x.shape)
        logsumexp, chosen = _statistics((x, weight, bias, target), kept, expected, ignored, memory, dx)
        ctx.save_for_backward(x, weight, bias, target, logsumexp)
        ctx.kept, ctx.ignored, ctx.expected = kept, ignored, expected
        ctx.memory, ctx.dx = memory, dx
        return torch.where(target == ignored, 0.0, logsumexp - chosen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, target, logsumexp = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        dweight, dx, ctx.memory, ctx.dx, kept = ctx.memory, ctx.dx, None, None, ctx.kept
        expected = None if dx is None else ctx.expected
        if dweight is None or not needs_weight:
            dweight, kept = weight.new_empty(weight.shape) if needs_weight else None, 0
            dx, expected = None, None  # without kept logits, all rows are computed again
        if dx is None and needs_x:
            dx = x.new_empty(x.shape)
        dbias = bias.new_empty(bias.shape) if needs_bias and bias is not None else None
        gradients = LossGradients(x, weight, bias, target, dlosses.contiguous(), logsumexp, ctx.ignored)
        gradients.run(dx, dweight, dbias, kept, expected)
        return dx, dweight, dbias, None, None, None


def _expected(target: Tensor, ignore_index: int, reduction: str, x: Tensor) -> Tensor | None:
    """The gradient of each loss where that of the result is 1. None where it is unknown, and in fp16, whose small numbers need the factor
    of a gradient scaler."""
    if reduction == "none" or x.dtype == torch.float16:
        return None
    one = torch.ones((), dtype=sums_dtype(x), device=x.device)
    return one if reduction == "sum" else one / (target != ignore_index).sum()


def _in_one_pass(x: Tensor, weight: Tensor, reduction: str, eager: bool) -> bool:
    """Whether the forward pass also computes the gradients. It does so if the gradient of the losses is known, in the training step of a
    graph, or in eager mode on request."""
    in_graph = torch.compiler.is_compiling() and torch.is_grad_enabled() and weight.requires_grad
    known = reduction in ("mean", "sum") and x.dtype != torch.float16
    return known and (eager or (in_graph and weight.is_contiguous() and weight.shape[0] > 0 and weight.shape[1] >= 8))


def _keeps_logits(x: Tensor, weight: Tensor) -> bool:
    """Whether an autograd Function with memory of its own serves this call: plain tensors outside transforms, graphs and hooks."""
    return (
        torch.is_grad_enabled()
        and weight.requires_grad
        and not torch.compiler.is_compiling()
        and type(x) in (Tensor, torch.nn.Parameter)
        and type(weight) in (Tensor, torch.nn.Parameter)
        and weight.is_contiguous()
        and 0 not in weight.shape
        and plans.kept_rows(*x.shape) > 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        and get_proxy_mode() is None
    )


def linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean", keep_logits: bool = False,
) -> Tensor:  # fmt: skip
    """cross_entropy(linear(x, weight, bias), target, ...) for x (M, H), a weight (V, H), a bias (V) and classes (M), in fp32.

    The logits have the dtype of x. Inside `torch.autocast`, x, weight and bias are cast as for a linear layer. The classes must be below
    V, which is not checked on a GPU. `keep_logits`, in training with the reduction "mean" or "sum" outside of fp16, holds all M V logits
    once, while the forward pass computes the gradients. This takes three products instead of almost four, and half the memory of a linear
    layer and a cross entropy. Raises ValueError for shapes and dtypes that do not fit.
    """
    name = "linear_cross_entropy"
    check_floating(name, x=x, weight=weight, bias=bias)
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        message = (
            f"`x` has the shape {tuple(x.shape)} and `weight` {tuple(weight.shape)}, but they must be (M, H) and (V, H)"
        )
        raise ValueError(f"{name}: {message}")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"{name}: `bias` has the shape {tuple(bias.shape)}, but `weight` needs {(weight.shape[0],)}")
    check_target(name, "x", x.shape[:1], target)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    for key, value in (("weight", weight), ("bias", bias)):
        if value is not None and value.dtype != x.dtype:
            raise ValueError(
                f"{name}: `{key}` is {value.dtype}, and `x` is {x.dtype}: use torch.autocast, or cast one of them"
            )
    with torch.autocast(x.device.type, enabled=False):
        x, target = x.contiguous(), target.contiguous()
        eager = _keeps_logits(x, weight)
        if _in_one_pass(x, weight, reduction, eager and keep_logits):
            expected = _expected(target, ignore_index, reduction, x)
            if eager:
                total = _KeptGradients.apply(x, weight, bias, target, ignore_index, expected)[0]
            else:
                needs = x.requires_grad, bias is not None and bias.requires_grad
                total = _with_gradients(x, weight, bias, target, expected, ignore_index, *needs, keep_logits)[0][0]
            return total if reduction == "sum" else total / (target != ignore_index).sum()
        if eager:
            expected = _expected(target, ignore_index, reduction, x)
            losses = _KeptLogits.apply(x, weight, bias, target, ignore_index, expected)
        else:
            losses = _linear_cross_entropy(x, weight, bias, target, ignore_index)[0]
        return reduced(losses, target, ignore_index, reduction, name)


class LinearCrossEntropyLoss(torch.nn.Module):
    """`torch.nn.Linear` and `torch.nn.CrossEntropyLoss` in one: `loss = module(x, target)`. The state_dict is that of the linear layer."""

    def __init__(
        self, in_features: int, num_classes: int, bias: bool = True, ignore_index: int = -100, reduction: str = "mean",
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        linear = torch.nn.Linear(in_features, num_classes, bias, device, dtype)
        self.weight, self.bias = linear.weight, linear.bias
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss of x (M, in_features) and classes (M)."""
        return linear_cross_entropy(x, self.weight, target, self.bias, self.ignore_index, self.reduction)
