"""Group norm with the arguments of torch's. The gradients of the weights are sums in fp32 in a fixed order, so they are deterministic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blocknb.kernels.group_norm import channel_gradients, channel_statistics, normalized_groups
from blocknb.torch.nn.shapes import autocast_to_float32, check_floating, sums_dtype
from blocknb.torch.ops import launch, torch_op


def _wide(x: Tensor, *shape: Any) -> Tensor:
    return torch.empty(shape, dtype=sums_dtype(x), device=x.device)


@torch_op("blocknb::group_norm")
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and the mean and rstd (N, groups), of x (N, C, S)."""
    x = x.contiguous()
    samples, channels, n = x.shape
    means, squares = _wide(x, samples, channels), _wide(x, samples, channels)
    launch(channel_statistics, x, means, squares)
    of_groups = means.view(samples, groups, channels // groups)
    mean = of_groups.mean(-1)
    between = (of_groups - mean[..., None]).square().mean(-1)
    within = squares.view(samples, groups, channels // groups).sum(-1) / (channels // groups * n)
    rstd = torch.rsqrt(between + within + eps)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    launch(normalized_groups, x, y, weight, bias, mean, rstd, groups)
    return y, mean, rstd


@torch_op("blocknb::group_norm_backward")
def _group_norm_backward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor, mean: Tensor, rstd: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, the weight and the bias; that of no weight is empty."""
    x, dy = x.contiguous(), dy.contiguous()
    samples, channels, n = x.shape
    totals, products = _wide(x, samples, channels), _wide(x, samples, channels)
    launch(channel_gradients, x, dy, mean, rstd, groups, totals, products)
    shape = samples, groups, channels // groups
    factor = 1.0 if weight is None else weight.to(totals.dtype)
    of_groups = [(t * factor).view(shape).sum(-1) / (channels // groups * n) for t in (totals, products)]
    dx = torch.empty_like(x)
    launch(normalized_groups, x, dx, weight, None, mean, rstd, groups, dy, *of_groups)
    dweight = x.new_empty(0) if weight is None else products.sum(0).to(weight.dtype)
    dbias = x.new_empty(0) if bias is None else totals.sum(0).to(bias.dtype)
    return dx, dweight, dbias


@_group_norm.backward(save=("x", "weight", "bias", 1, 2), undifferentiable=(1, 2))
def _(saved: Any, dy: Tensor) -> Any:
    _, mean, rstd = saved.outputs
    dx, dweight, dbias = _group_norm_backward(saved.x, saved.weight, saved.bias, dy, mean, rstd, saved.groups)
    given = {"weight": (saved.weight, dweight), "bias": (saved.bias, dbias)}
    return {"x": dx, **{name: gradient for name, (value, gradient) in given.items() if value is not None}}


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """`torch.nn.functional.group_norm` of x (N, C, *): each of `num_groups` groups of consecutive channels is normalised, and weight and
    bias (C) scale channels. Raises ValueError for shapes that do not fit."""
    check_floating("group_norm", x=x, weight=weight, bias=bias)
    if x.dim() < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ValueError(
            f"group_norm: `x` has the shape {tuple(x.shape)}, and its second axis must be a multiple of {num_groups} groups"
        )
    for key, value in (("weight", weight), ("bias", bias)):
        if value is not None and tuple(value.shape) != (x.shape[1],):
            raise ValueError(
                f"group_norm: `{key}` has the shape {tuple(value.shape)}, but `x` has {x.shape[1]} channels"
            )
    dtype = torch.float32 if autocast_to_float32(x) else x.dtype
    flat = x.reshape(x.shape[0], x.shape[1], x.shape[2:].numel())
    return _group_norm(flat, weight, bias, num_groups, float(eps), dtype)[0].view(x.shape)


class GroupNorm(torch.nn.Module):
    """`torch.nn.GroupNorm`. The state_dict has `weight` and `bias`."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None, dtype: Any = None,
        *, bias: bool = True,
    ):  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels is {num_channels}, which is not a multiple of num_groups, {num_groups}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        more = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.ones(num_channels, **more)) if affine else None
        self.bias = torch.nn.Parameter(torch.zeros(num_channels, **more)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalises (N, C, *)."""
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
