"""A linear layer with a low-rank adapter (LoRA, Hu et al. 2021), with the names of PEFT: W x + b + scaling B A x.

Only x and the weights are kept for the backward pass: A x, which has few columns, is computed again. A frozen weight costs no gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from blocknb.torch.nn.shapes import check_floating
from blocknb.torch.ops import torch_op


@torch_op("blocknb::lora_linear")
def _lora_linear(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """x (M, K), the weight (N, K), a (R, K) and b (N, R)."""
    out = torch.nn.functional.linear(x, weight, bias)
    return out.addmm_(torch.mm(x, a.t()), b.t(), alpha=scaling)


@torch_op("blocknb::lora_linear_backward")
def _lora_linear_backward(
    x: Tensor, weight: Tensor, a: Tensor, b: Tensor, dout: Tensor, scaling: float, of_x: bool, of_weight: bool, of_bias: bool,
    of_a: bool, of_b: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, the weight, the bias, a and b; those that are not wanted are empty."""
    none = x.new_empty(0)
    low = torch.mm(dout, b).mul_(scaling) if of_x or of_a else none
    dx = torch.mm(dout, weight).addmm_(low, a) if of_x else none
    dweight = torch.mm(dout.t(), x) if of_weight else none.clone()
    dbias = dout.sum(0) if of_bias else none.clone()
    da = torch.mm(low.t(), x) if of_a else none.clone()
    db = torch.mm(dout.t(), torch.mm(x, a.t())).mul_(scaling) if of_b else none.clone()
    return dx, dweight, dbias, da, db


@_lora_linear.backward(save=("x", "weight", "a", "b"))
def _(saved: Any, dout: Tensor) -> Any:
    names = ("x", "weight", "bias", "a", "b")
    wanted = [name in saved.needs for name in names]
    found = _lora_linear_backward(saved.x, saved.weight, saved.a, saved.b, dout, saved.scaling, *wanted)
    return {name: value for name, value, needed in zip(names, found, wanted, strict=True) if needed}


def lora_linear(
    x: Tensor, weight: Tensor, lora_A: Tensor, lora_B: Tensor, scaling: float = 1.0, bias: Tensor | None = None
) -> Tensor:  # fmt: skip
    """linear(x, weight, bias) + scaling linear(linear(x, lora_A), lora_B) for x (..., K), a weight (N, K), lora_A (R, K) and lora_B (N, R).

    An adapter of another dtype than the weight is cast to that of x, and its gradients keep its own dtype. Inside `torch.autocast`, all
    are cast to its dtype. Raises ValueError for shapes and dtypes that do not fit.
    """
    name = "lora_linear"
    check_floating(name, x=x, weight=weight, lora_A=lora_A, lora_B=lora_B, bias=bias)
    n, k = weight.shape
    if x.shape[-1] != k or lora_A.shape[-1] != k or tuple(lora_B.shape) != (n, lora_A.shape[0]):
        given = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, lora_A {tuple(lora_A.shape)} and lora_B {tuple(lora_B.shape)}"
        raise ValueError(f"{name} takes x (..., K), weight (N, K), lora_A (R, K) and lora_B (N, R), not {given}")
    device = x.device.type
    dtype = (
        torch.get_autocast_dtype(device)
        if torch.is_autocast_enabled(device) and x.dtype != torch.float64
        else weight.dtype
    )
    if x.dtype != dtype and not torch.is_autocast_enabled(device):
        raise ValueError(
            f"{name}: `x` is {x.dtype}, and `weight` is {weight.dtype}: use torch.autocast, or cast one of them"
        )
    flat = x.reshape(-1, k).to(dtype)
    others = [None if t is None else t.to(dtype) for t in (weight, bias, lora_A, lora_B)]
    with torch.autocast(device, enabled=False):
        return _lora_linear(flat, *others, float(scaling)).view(*x.shape[:-1], n)


class LoRALinear(torch.nn.Module):
    """PEFT's LoRA layer of a linear layer, with one adapter and without dropout. The state_dict has `base_layer.weight`,
    `lora_A.default.weight` and `lora_B.default.weight`, and a bias where the layer has one.

    The base layer is frozen. B is zero at first, so the module computes what the layer did.
    """

    def __init__(
        self, base_layer: torch.nn.Linear, r: int = 8, lora_alpha: float = 8, lora_dropout: float = 0.0, use_rslora: bool = False,
        adapter_name: str = "default", device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        if lora_dropout:
            raise ValueError(f"LoRALinear of blocknb has no dropout: pass lora_dropout=0.0 instead of {lora_dropout}")
        if r < 1:
            raise ValueError(f"r is the rank of the adapter, 1 or more, not {r}")
        self.base_layer = base_layer.requires_grad_(False)
        self.in_features, self.out_features = base_layer.in_features, base_layer.out_features
        self.adapter_name, self.r, self.lora_alpha = adapter_name, {adapter_name: r}, {adapter_name: lora_alpha}
        self.scaling = {adapter_name: lora_alpha / (math.sqrt(r) if use_rslora else r)}
        more = {"bias": False, "device": device or base_layer.weight.device, "dtype": dtype or base_layer.weight.dtype}
        self.lora_A = torch.nn.ModuleDict({adapter_name: torch.nn.Linear(self.in_features, r, **more)})
        self.lora_B = torch.nn.ModuleDict({adapter_name: torch.nn.Linear(r, self.out_features, **more)})
        torch.nn.init.kaiming_uniform_(self.lora_A[adapter_name].weight, a=math.sqrt(5))
        torch.nn.init.zeros_(self.lora_B[adapter_name].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (..., in_features) to (..., out_features)."""
        name = self.adapter_name
        weights = self.base_layer.weight, self.lora_A[name].weight, self.lora_B[name].weight
        return lora_linear(x, *weights, self.scaling[name], self.base_layer.bias)

    def merged(self) -> torch.nn.Linear:
        """A new linear layer with the adapter added to the weight, in fp32 with one rounding."""
        base, name = self.base_layer, self.adapter_name
        found = torch.nn.Linear(
            self.in_features, self.out_features, base.bias is not None, base.weight.device, base.weight.dtype
        )
        wide = torch.float64 if base.weight.dtype == torch.float64 else torch.float32
        with torch.no_grad():
            delta = self.lora_B[name].weight.to(wide) @ self.lora_A[name].weight.to(wide)
            found.weight.copy_(base.weight.to(wide) + self.scaling[name] * delta)
            if base.bias is not None:
                found.bias.copy_(base.bias)
        return found

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, r={self.r[self.adapter_name]}, scaling={self.scaling[self.adapter_name]}"
