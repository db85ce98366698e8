"""RMS norm, RMS norm of a sum with a residual, and layer norm, with the kernels of `blocknb.kernels.norms` and `norm_gradients`.

Implementations of RMS norm differ in where they round (`casting`):

- "torch": everything in fp32, and one rounding of the result to the dtype of x, as `torch.nn.RMSNorm`.
- "llama": the normalised values are rounded to the dtype of x, and then multiplied by the weight, as Hugging Face's Llama. The result has
  the dtype of x * weight.
- "gemma": as "torch", with 1 + weight for the weight, as Hugging Face's Gemma.

The gradients of the weights are sums in fp32 in a fixed order, so they are deterministic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blocknb import kernels
from blocknb.torch.nn.shapes import autocast_to_float32, check_floating, check_vector, rows, sums_dtype
from blocknb.torch.ops import launch, torch_op

CASTINGS = ("torch", "llama", "gemma")


@torch_op("blocknb::rms_norm")
def _rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, rounded: bool, dtype: torch.dtype, offset: float
) -> tuple[Tensor, Tensor]:
    matrix = rows(x)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    rstd = torch.empty(matrix.shape[0], dtype=sums_dtype(x), device=x.device)
    forward = functools.partial(kernels.rms_norm, eps=eps, rstd=rstd, rounded=rounded, offset=offset)
    launch(forward, matrix, weight, rows(y))
    return y, rstd


@torch_op("blocknb::add_rms_norm")
def _add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, rounded: bool, dtype: torch.dtype, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    matrix = rows(x)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    added = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = torch.empty(matrix.shape[0], dtype=sums_dtype(x), device=x.device)
    more = {"residual": rows(residual.contiguous()), "added": rows(added)}
    forward = functools.partial(kernels.rms_norm, eps=eps, rstd=rstd, rounded=rounded, offset=offset, **more)
    launch(forward, matrix, weight, rows(y))
    return y, added, rstd


@torch_op("blocknb::rms_norm_backward")
def _rms_norm_backward(
    x: Tensor, weight: Tensor | None, dy: Tensor, rstd: Tensor, dadded: Tensor | None, offset: float
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight; that of no weight is empty."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight = x.new_empty(0) if weight is None else torch.empty_like(weight)
    extra = None if dadded is None else rows(dadded.contiguous())
    backward = functools.partial(kernels.rms_norm_backward, dadded=extra, offset=offset)
    launch(backward, rows(x), weight, rows(dy), rstd, rows(dx), None if weight is None else dweight)
    return dx, dweight


@_rms_norm.backward(save=("x", "weight", 1), undifferentiable=(1,))
def _(saved: Any, dy: Tensor) -> Any:
    dx, dweight = _rms_norm_backward(saved.x, saved.weight, dy, saved.outputs[1], None, saved.offset)
    return {"x": dx, "weight": None if saved.weight is None else dweight}


@_add_rms_norm.backward(save=("weight", 1, 2), undifferentiable=(2,))
def _(saved: Any, dy: Tensor, dadded: Tensor) -> Any:
    dx, dweight = _rms_norm_backward(saved.outputs[1], saved.weight, dy, saved.outputs[2], dadded, saved.offset)
    return {"x": dx, "residual": dx, "weight": None if saved.weight is None else dweight}


@torch_op("blocknb::layer_norm")
def _layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    matrix = rows(x)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    mean = torch.empty(matrix.shape[0], dtype=sums_dtype(x), device=x.device)
    rstd = torch.empty_like(mean)
    launch(functools.partial(kernels.layer_norm, eps=eps, mean=mean, rstd=rstd), matrix, weight, bias, rows(y))
    return y, mean, rstd


@torch_op("blocknb::layer_norm_backward")
def _layer_norm_backward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, the weight and the bias; that of no weight is empty."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight, dbias = (x.new_empty(0) if p is None else torch.empty_like(p) for p in (weight, bias))
    wanted = None if weight is None else dweight, None if bias is None else dbias
    launch(kernels.layer_norm_backward, rows(x), weight, rows(dy), mean, rstd, rows(dx), *wanted)
    return dx, dweight, dbias


@_layer_norm.backward(save=("x", "weight", "bias", 1, 2), undifferentiable=(1, 2))
def _(saved: Any, dy: Tensor) -> Any:
    _, mean, rstd = saved.outputs
    dx, dweight, dbias = _layer_norm_backward(saved.x, saved.weight, saved.bias, dy, mean, rstd)
    given = {"weight": (saved.weight, dweight), "bias": (saved.bias, dbias)}
    return {"x": dx, **{name: gradient for name, (value, gradient) in given.items() if value is not None}}


# ---- functions -----------------------------------------------------------------------------------------------------------


def _rms_arguments(name: str, x: Tensor, weight: Tensor | None, eps: float | None, casting: str) -> tuple[Any, ...]:
    """(weight, eps, whether normalised values are rounded, dtype of the result, what is added to the weight)."""
    check_vector(name, "weight", weight, x.shape[-1])
    if casting not in CASTINGS:
        raise ValueError(f"{name}: casting is {casting!r}, but it must be one of {', '.join(CASTINGS)}")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    dtype = torch.float32 if autocast_to_float32(x) else x.dtype
    if casting == "llama" and weight is not None:
        dtype = torch.promote_types(x.dtype, weight.dtype)
    return weight, float(eps), casting == "llama", dtype, 1.0 if casting == "gemma" else 0.0


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = None, *, casting: str = "torch") -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight along the last axis. `eps` None is that of the dtype, as in torch. `casting` is described in this
    module. Raises ValueError for a weight that does not fit."""
    check_floating("rms_norm", x=x, weight=weight)
    return _rms_norm(x, *_rms_arguments("rms_norm", x, weight, eps, casting))[0]


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float | None = None, *, casting: str = "torch"
) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual, ...), x + residual) in one kernel. Raises ValueError unless x and residual have one shape and dtype."""
    check_floating("add_rms_norm", x=x, residual=residual, weight=weight)
    if x.shape != residual.shape or x.dtype != residual.dtype:
        message = f"`residual` is {residual.dtype}, {tuple(residual.shape)}, and `x` is {x.dtype}, {tuple(x.shape)}"
        raise ValueError(f"add_rms_norm: {message}: both need one shape and one dtype")
    y, added, _ = _add_rms_norm(x, residual, *_rms_arguments("add_rms_norm", x, weight, eps, casting))
    return y, added


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias along the last axis. Raises ValueError for vectors that do not fit."""
    check_floating("layer_norm", x=x, weight=weight, bias=bias)
    check_vector("layer_norm", "weight", weight, x.shape[-1])
    check_vector("layer_norm", "bias", bias, x.shape[-1])
    return _layer_norm(x, weight, bias, float(eps), torch.float32 if autocast_to_float32(x) else x.dtype)[0]


# ---- modules -------------------------------------------------------------------------------------------------------------


def _last_axis(name: str, shape: int | Sequence[int]) -> int:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(sizes) != 1:
        raise ValueError(f"{name} normalises the last axis, so normalized_shape is one size, not {sizes}")
    return int(sizes[0])


class RMSNorm(torch.nn.Module):
    """`torch.nn.RMSNorm` over the last axis; with `casting` "llama" or "gemma" that of Hugging Face. The state_dict has `weight`."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: Any = None, *, casting: str = "torch",
    ):  # fmt: skip
        super().__init__()
        size = _last_axis(type(self).__name__, normalized_shape)
        if casting not in CASTINGS:
            raise ValueError(f"casting is {casting!r}, but it must be one of {', '.join(CASTINGS)}")
        self.normalized_shape, self.eps, self.casting = (size,), eps, casting
        initial = torch.zeros if casting == "gemma" else torch.ones
        self.weight = torch.nn.Parameter(initial(size, device=device, dtype=dtype)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalises (..., N)."""
        return rms_norm(x, self.weight, self.eps, casting=self.casting)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape[0]}, eps={self.eps}, casting={self.casting!r}"


class AddRMSNorm(RMSNorm):
    """RMSNorm of the sum with a residual: `y, added = module(x, residual)`."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """(the norm of x + residual, x + residual)."""
        return add_rms_norm(x, residual, self.weight, self.eps, casting=self.casting)


class LayerNorm(torch.nn.Module):
    """`torch.nn.LayerNorm` over the last axis. The state_dict has `weight` and `bias`."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        size = _last_axis("LayerNorm", normalized_shape)
        self.normalized_shape, self.eps = (size,), eps
        self.weight = torch.nn.Parameter(torch.ones(size, device=device, dtype=dtype)) if elementwise_affine else None
        with_bias = elementwise_affine and bias
        self.bias = torch.nn.Parameter(torch.zeros(size, device=device, dtype=dtype)) if with_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalises (..., N)."""
        return layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape[0]}, eps={self.eps}"
