"""The cross entropy of a linear layer without its logits in memory: cross_entropy(x weight^T + bias, target), block of classes by block.

The backward pass computes each block of logits again. A block of the weight's gradient is then one product over all rows, so nothing is
added up in 16 bits, and no copy of that gradient in fp32 exists. The gradient of x is added up in fp32. Implementations that split the rows
instead add gradients of the weight in 16 bits, and their training diverges from that of unfused layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import blocknb
from blocknb.kernels.blocked_cross_entropy import block_of_classes, block_of_gradients
from blocknb.runtime.launch_context import this_thread
from blocknb.torch.nn.losses import check_target, reduced
from blocknb.torch.nn.shapes import check_floating, sums_dtype
from blocknb.torch.ops import torch_op

BLOCK_ELEMENTS = (
    1 << 24
)  # logits of one block; 32 MiB in 16 bits, which the L2 cache of a large GPU keeps until the next product
FEWEST, MOST = 1024, 16384  # classes per block


def _block(rows: int) -> int:
    """The classes per block for a number of rows."""
    wanted = max(FEWEST, min(MOST, BLOCK_ELEMENTS // max(rows, 1)))
    return wanted // 64 * 64 or wanted


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None, begin: int, end: int) -> Tensor:
    part = weight[begin:end].t()
    return torch.mm(x, part) if bias is None else torch.addmm(bias[begin:end], x, part)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without rounding the product to 16 bits where torch multiplies 16 bits into fp32: on GPUs since sm_80."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.is_cuda and torch.cuda.get_device_capability(a.device)[0] >= 8:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += torch.mm(a, b)


def _add_to_parts(totals: list[Tensor], a: Tensor, b: Tensor) -> None:
    """totals += a b, for parts of the rows."""
    for total, rows in zip(totals, a.split(max(totals[0].shape[0], 1)), strict=True):
        _add_product(total, rows, b)


@torch_op("blocknb::linear_cross_entropy")
def _linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The losses of x (M, H) for the weight (V, H), in fp32, and the logsumexp."""
    largest = torch.empty(x.shape[0], dtype=sums_dtype(x), device=x.device)
    total, chosen = torch.empty_like(largest), torch.zeros_like(largest)
    if not this_thread.skips:
        step = _block(x.shape[0])
        for begin in range(0, weight.shape[0], step):
            logits = _logits(x, weight, bias, begin, begin + step)
            block_of_classes(logits, target, largest, total, chosen, begin)
            del logits  # before the next block exists
    logsumexp = largest + total.log()
    return torch.where(target == ignore_index, 0.0, logsumexp - chosen), logsumexp


@torch_op("blocknb::linear_cross_entropy_backward")
def _linear_cross_entropy_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, dlosses: Tensor, logsumexp: Tensor, ignore_index: int,
    needs_x: bool, needs_weight: bool, needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, the weight and the bias; those that are not needed are empty."""
    dx = x.new_empty(x.shape if needs_x else (0,)) if this_thread.skips or not needs_x else None
    parts_of_x: list[Tensor] = []
    dweight = torch.empty_like(weight) if needs_weight else x.new_empty(0)
    dbias = torch.empty_like(bias) if needs_bias and bias is not None else x.new_empty(0)
    if not this_thread.skips:
        step = _block(x.shape[0])
        if needs_x:  # in two parts of the rows, so that only half of it exists in both dtypes at the end
            half = x.shape[0] if x.dtype == sums_dtype(x) else blocknb.cdiv(x.shape[0], 2)
            parts_of_x = [torch.zeros_like(part, dtype=sums_dtype(x)) for part in x.split(max(half, 1))]
        for begin in range(0, weight.shape[0], step):
            gradients = _logits(x, weight, bias, begin, begin + step)
            block_of_gradients(gradients, target, dlosses, logsumexp, begin, ignore_index)
            part = slice(begin, begin + step)
            if needs_x:
                _add_to_parts(parts_of_x, gradients, weight[part])
            if needs_weight:
                torch.mm(gradients.t(), x, out=dweight[part])
            if needs_bias and bias is not None:
                dbias[part] = gradients.sum(0, dtype=sums_dtype(x))
            del gradients
    for i, total in enumerate(parts_of_x):
        parts_of_x[i] = total.to(x.dtype)
        del total
    if dx is None:
        dx = parts_of_x[0] if len(parts_of_x) == 1 else torch.cat(parts_of_x)
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


def linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:  # fmt: skip
    """cross_entropy(linear(x, weight, bias), target, ...) for x (M, H), a weight (V, H), a bias (V) and classes (M), in fp32.

    The logits have the dtype of x. Inside `torch.autocast`, x, weight and bias are cast as for a linear layer. The classes must be below
    V, which is not checked on a GPU. Raises ValueError for shapes and dtypes that do not fit.
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
        losses = _linear_cross_entropy(x.contiguous(), weight, bias, target.contiguous(), ignore_index)[0]
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
