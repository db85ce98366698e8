"""Gated activations: SwiGLU, silu(gate) up, and GEGLU, gelu(gate) up (Shazeer 2020), and the MLP of Llama and Gemma with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from blocknb import kernels
from blocknb.torch.nn.shapes import check_alike, rows
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


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, computed in fp32. Raises ValueError unless both have one shape and dtype."""
    check_alike("swiglu", gate=gate, up=up)
    return _swiglu(gate, up)


def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    """gelu(gate, approximate) * up, computed in fp32; `approximate` is "none" or "tanh", as in torch. Raises ValueError unless both tensors
    have one shape and dtype."""
    check_alike("geglu", gate=gate, up=up)
    if approximate not in ("none", "tanh"):
        raise ValueError(f"geglu: approximate is {approximate!r}, but it must be 'none' or 'tanh'")
    return _geglu(gate, up, approximate == "tanh")


class GatedMLP(torch.nn.Module):
    """The MLP of Llama (`hidden_act="silu"`) and Gemma ("gelu_pytorch_tanh", or "gelu"): down_proj(act(gate_proj(x)) * up_proj(x)).

    The state_dict is that of Hugging Face's LlamaMLP and GemmaMLP: `gate_proj`, `up_proj` and `down_proj`.
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
        return self.down_proj(ACTIVATIONS[self.hidden_act](self.gate_proj(x), self.up_proj(x)))


ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": swiglu,
    "gelu": geglu,
    "gelu_pytorch_tanh": functools.partial(geglu, approximate="tanh"),
}
