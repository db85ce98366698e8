"""Gated activations: SwiGLU, silu(gate) up, and GEGLU, gelu(gate) up (Shazeer 2020), and the MLP of Llama and Gemma with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from blocknb import kernels
from blocknb.torch.nn.shapes import check_same_shape, rows
from blocknb.torch.ops import launch, torch_op


@torch_op("blocknb::swiglu")
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    launch(kernels.swiglu, rows(gate), rows(up), rows(out))
    return out


@torch_op("blocknb::swiglu_backward")
def _swiglu_backward(gate: Tensor, up: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    dgate, dup = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
    launch(kernels.swiglu_backward, rows(gate), rows(up), rows(dout), rows(dgate), rows(dup))
    return dgate, dup


@_swiglu.backward(save=("gate", "up"))
def _(saved: Any, dout: Tensor) -> Any:
    return _swiglu_backward(saved.gate, saved.up, dout)


@torch_op("blocknb::geglu")
def _geglu(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    launch(functools.partial(kernels.geglu, tanh=tanh), rows(gate), rows(up), rows(out))
    return out


@torch_op("blocknb::geglu_backward")
def _geglu_backward(gate: Tensor, up: Tensor, dout: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    dgate, dup = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
    backward = functools.partial(kernels.geglu_backward, tanh=tanh)
    launch(backward, rows(gate), rows(up), rows(dout), rows(dgate), rows(dup))
    return dgate, dup


@_geglu.backward(save=("gate", "up"))
def _(saved: Any, dout: Tensor) -> Any:
    return _geglu_backward(saved.gate, saved.up, dout, saved.tanh)


# ---- with the linear layer behind it, without keeping the result -----------------------------------------------------------


@torch_op("blocknb::swiglu_backward_and_result")
def _swiglu_backward_and_result(gate: Tensor, up: Tensor, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dgate, dup, out = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(3))
    launch(kernels.swiglu_backward, rows(gate), rows(up), rows(dout), rows(dgate), rows(dup), rows(out))
    return dgate, dup, out


@torch_op("blocknb::geglu_backward_and_result")
def _geglu_backward_and_result(gate: Tensor, up: Tensor, dout: Tensor, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    dgate, dup, out = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(3))
    backward = functools.partial(kernels.geglu_backward, tanh=tanh)
    launch(backward, rows(gate), rows(up), rows(dout), rows(dgate), rows(dup), rows(out))
    return dgate, dup, out


class _GatedLinear(torch.autograd.Function):
    """linear(act(gate) * up, weight, bias). Its backward pass computes act(gate) * up again, in the kernel that has both in registers."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, act: str) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        ctx.act = act
        return functional.linear(ACTIVATIONS[act](gate, up), weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight = ctx.saved_tensors
        dout = torch.matmul(dy, weight)
        if ctx.act == "silu":
            dgate, dup, out = _swiglu_backward_and_result(gate, up, dout)
        else:
            dgate, dup, out = _geglu_backward_and_result(gate, up, dout, ctx.act == "gelu_pytorch_tanh")
        dys = dy.reshape(-1, dy.shape[-1])
        dweight = torch.mm(dys.t(), out.reshape(-1, out.shape[-1]))
        return dgate, dup, dweight, dys.sum(0) if ctx.needs_input_grad[3] else None, None


def _keeps_no_result(layer: Any, gate: Tensor, up: Tensor) -> bool:
    """Whether _GatedLinear serves a layer: a plain linear layer that is trained, outside of autocast and of transforms."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        torch.is_grad_enabled()
        and type(layer) is torch.nn.Linear
        and layer.weight.requires_grad
        and gate.requires_grad
        and up.requires_grad
        and type(layer.weight) in (Tensor, torch.nn.Parameter)
        and gate.dtype == up.dtype == layer.weight.dtype
        and not torch.is_autocast_enabled(gate.device.type)
        and not any(getattr(layer, name) for name in hooks)
        and (torch.compiler.is_compiling() or not _transformed())
    )


def _transformed() -> bool:
    """Whether a transform of torch.func or forward-mode AD is active."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, computed in fp32. Raises ValueError unless both have one shape and dtype."""
    check_same_shape("swiglu", gate=gate, up=up)
    return _swiglu(gate, up)


def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    """gelu(gate, approximate) * up, computed in fp32; `approximate` is "none" or "tanh", as in torch. Raises ValueError unless both tensors
    have one shape and dtype."""
    check_same_shape("geglu", gate=gate, up=up)
    if approximate not in ("none", "tanh"):
        raise ValueError(f"geglu: approximate is {approximate!r}, but it must be 'none' or 'tanh'")
    return _geglu(gate, up, approximate == "tanh")


class GatedMLP(torch.nn.Module):
    """The MLP of Llama (`hidden_act="silu"`) and Gemma ("gelu_pytorch_tanh", or "gelu"): down_proj(act(gate_proj(x)) * up_proj(x)).

    The state_dict is that of Hugging Face's LlamaMLP and GemmaMLP: `gate_proj`, `up_proj` and `down_proj`. In training, the input of a
    plain `down_proj` is not kept: the backward pass computes it again in the kernel of the gradients. So a layer keeps two of three
    tensors (..., intermediate_size).
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, hidden_act: str = "silu", bias: bool = False,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        if hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act is {hidden_act!r}, but it must be one of {', '.join(ACTIVATIONS)}")
        self.hidden_act = hidden_act
        more = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_proj = torch.nn.Linear(hidden_size, intermediate_size, **more)
        self.up_proj = torch.nn.Linear(hidden_size, intermediate_size, **more)
        self.down_proj = torch.nn.Linear(intermediate_size, hidden_size, **more)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., hidden_size) to the same shape."""
        gate, up, last = self.gate_proj(x), self.up_proj(x), self.down_proj
        if _keeps_no_result(last, gate, up):
            return _GatedLinear.apply(gate, up, last.weight, last.bias, self.hidden_act)
        return last(ACTIVATIONS[self.hidden_act](gate, up))


ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": swiglu,
    "gelu": geglu,
    "gelu_pytorch_tanh": functools.partial(geglu, approximate="tanh"),
}
