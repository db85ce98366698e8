"""Mixtures of experts: grouped products, experts with a gated activation, and the block of Mixtral and Qwen with its router.

The rows of the tokens are sorted by their expert. One grouped product then multiplies all rows, each by the matrix of its expert, and a
token adds up its rows in fp32. The gradients have the same form, so all of it is deterministic.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from blocknb import kernels
from blocknb.kernels import mixture
from blocknb.kernels.embedding import embedding as gather_rows
from blocknb.torch.nn.activations import ACTIVATIONS
from blocknb.torch.nn.attention import _allows_tf32, _precision
from blocknb.torch.nn.shapes import check_floating, rows
from blocknb.torch.ops import launch, torch_op


def _multiply(a: Tensor, b: Tensor, ends: Tensor, out: Tensor, tf32: bool) -> None:
    if a.is_cuda and a.dtype == torch.float32 and not tf32:  # the kernel of grouped products has no fp32 without TF32
        begin = 0
        for group, end in enumerate(ends.tolist()):
            torch.mm(a[begin:end], b[group], out=out[begin:end])
            begin = end
        return
    kernels.grouped_matmul(a, b, ends, out)


@torch_op("blocknb::grouped_mm")
def _grouped_mm(a: Tensor, b: Tensor, ends: Tensor, filled: bool, tf32: bool) -> Tensor:
    """`filled`: the last end is M, so every row is written."""
    new = torch.empty if filled else torch.zeros
    out = new((a.shape[0], b.shape[2]), dtype=a.dtype, device=a.device)
    launch(_multiply, a, b, ends, out, tf32)
    return out


@torch_op("blocknb::grouped_mm_backward")
def _grouped_mm_backward(a: Tensor, b: Tensor, dout: Tensor, ends: Tensor, tf32: bool) -> Tensor:
    """The gradient of b, with its strides."""
    db = torch.empty_like(b)
    backward = functools.partial(mixture.grouped_matmul_gradients, input_precision=_precision(tf32))
    launch(backward, a, dout, ends, db)
    return db


@_grouped_mm.backward(save=("a", "b", "ends"))
def _(saved: Any, dout: Tensor) -> Any:
    found = {}
    if "a" in saved.needs:
        found["a"] = _grouped_mm(dout, saved.b.transpose(1, 2), saved.ends, saved.filled, saved.tf32)
    if "b" in saved.needs:
        found["b"] = _grouped_mm_backward(saved.a, saved.b, dout, saved.ends, saved.tf32)
    return found


@_grouped_mm_backward.backward(save=("a", "dout", "ends"))
def _(saved: Any, ddb: Tensor) -> Any:
    return {
        "a": _grouped_mm(saved.dout, ddb.transpose(1, 2), saved.ends, False, saved.tf32),
        "dout": _grouped_mm(saved.a, ddb, saved.ends, False, saved.tf32),
    }


@torch_op("blocknb::gather_experts")
def _gather(x: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
    """x[tokens]; the rows of token t have the places places[t]."""
    out = torch.empty((tokens.shape[0], x.shape[1]), dtype=x.dtype, device=x.device)
    launch(gather_rows, rows(x), tokens, out)
    return out


@torch_op("blocknb::combine_experts")
def _combine(y: Tensor, weights: Tensor | None, places: Tensor, tokens: Tensor) -> Tensor:
    out = torch.empty((places.shape[0], y.shape[1]), dtype=y.dtype, device=y.device)
    launch(mixture.combine, rows(y), None if weights is None else weights.contiguous(), places, out)
    return out


@_gather.backward(save=("tokens", "places"))
def _(saved: Any, dout: Tensor) -> Any:
    return {"x": _combine(dout, None, saved.places, saved.tokens)}


@torch_op("blocknb::combine_experts_backward")
def _combine_backward(y: Tensor, weights: Tensor, places: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    dy = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    dweights = torch.empty(weights.shape, dtype=weights.dtype, device=weights.device)
    launch(mixture.combine_backward, rows(y), weights.contiguous(), places, dout.contiguous(), dy, dweights)
    return dy, dweights


@_combine.backward(save=("y", "weights", "places", "tokens"))
def _(saved: Any, dout: Tensor) -> Any:
    if saved.weights is None:
        return {"y": _gather(dout, saved.tokens, saved.places)}
    dy, dweights = _combine_backward(saved.y, saved.weights, saved.places, dout)
    return {"y": dy, "weights": dweights}


# ---- functions -----------------------------------------------------------------------------------------------------------


def grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """out[r] = a[r] b[g] for the rows offs[g - 1] <= r < offs[g] of group g, with the arguments of `torch.nn.functional.grouped_mm`.

    a is (M, K), b (G, K, N) with any strides, and offs G non-decreasing int32. Rows from the last of them on are zero. fp32 on a GPU uses
    TF32 only where torch's own products do, and otherwise multiplies one group after the other. Raises ValueError for other shapes.
    """
    check_floating("grouped_mm", a=a, b=b)
    if a.dim() != 2 or b.dim() != 3 or a.shape[1] != b.shape[1] or tuple(offs.shape) != tuple(b.shape[:1]):
        given = f"a {tuple(a.shape)}, b {tuple(b.shape)} and offs {tuple(offs.shape)}"
        raise ValueError(f"grouped_mm takes a (M, K), b (G, K, N) and offs (G), not {given}")
    if offs.dtype != torch.int32:
        raise ValueError(f"grouped_mm: `offs` is {offs.dtype}: pass offs.int()")
    if torch.is_autocast_enabled(a.device.type) and a.dtype != torch.float64:
        a, b = (x.to(torch.get_autocast_dtype(a.device.type)) for x in (a, b))
    if a.dtype != b.dtype:
        raise ValueError(f"grouped_mm: `b` is {b.dtype}, and `a` is {a.dtype}: use torch.autocast, or cast one of them")
    return _grouped_mm(a, b, offs, False, _allows_tf32())


def experts_mlp(
    x: Tensor,
    gate_up_proj: Tensor,
    down_proj: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    hidden_act: str = "silu",
) -> Tensor:
    """The weighted sum of the MLPs of each token's experts: `down(act(gate) * up)`. The shapes are x (T, H), gate_up_proj (E, 2 I, H) and
    down_proj (E, H, I). The numbers and weights of the experts are (T, top k). Raises ValueError for dtypes and shapes that do not fit."""
    name = "experts_mlp"
    check_floating(name, x=x, gate_up_proj=gate_up_proj, down_proj=down_proj, top_k_weights=top_k_weights)
    experts, double, hidden = gate_up_proj.shape
    if x.dim() != 2 or x.shape[1] != hidden or tuple(down_proj.shape) != (experts, hidden, double // 2):
        given = f"x {tuple(x.shape)}, gate_up_proj {tuple(gate_up_proj.shape)} and down_proj {tuple(down_proj.shape)}"
        raise ValueError(f"{name} takes x (T, H), gate_up_proj (E, 2 I, H) and down_proj (E, H, I), not {given}")
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        x, gate_up_proj, down_proj = (t.to(dtype) for t in (x, gate_up_proj, down_proj))
    if not x.dtype == gate_up_proj.dtype == down_proj.dtype:
        raise ValueError(
            f"{name}: x is {x.dtype}, and the weights are {gate_up_proj.dtype}: use torch.autocast, or cast one"
        )
    most = top_k_index.shape[1]
    ordered, order = top_k_index.reshape(-1).sort(stable=True)
    places = torch.empty_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device)).view(-1, most)
    ends = torch.searchsorted(
        ordered, torch.arange(experts, device=x.device, dtype=ordered.dtype), right=True, out_int32=True
    )
    tokens, tf32 = order // most, _allows_tf32()
    gate, up = _grouped_mm(_gather(x, tokens, places), gate_up_proj.transpose(1, 2), ends, True, tf32).chunk(2, -1)
    y = _grouped_mm(ACTIVATIONS[hidden_act](gate, up), down_proj.transpose(1, 2), ends, True, tf32)
    return _combine(y, top_k_weights, places, tokens)


# ---- modules -------------------------------------------------------------------------------------------------------------


class Experts(torch.nn.Module):
    """The experts of Hugging Face's MixtralExperts and Qwen3MoeExperts: `module(x, top_k_index, top_k_weights)`. The state_dict has
    `gate_up_proj` (E, 2 I, H) and `down_proj` (E, H, I)."""

    def __init__(
        self, num_experts: int, hidden_size: int, intermediate_size: int, hidden_act: str = "silu", device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        if hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act is {hidden_act!r}, but it must be one of {', '.join(ACTIVATIONS)}")
        self.num_experts, self.hidden_act, more = num_experts, hidden_act, {"device": device, "dtype": dtype}
        self.gate_up_proj = torch.nn.Parameter(torch.empty(num_experts, 2 * intermediate_size, hidden_size, **more))
        self.down_proj = torch.nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size, **more))
        for parameter in (self.gate_up_proj, self.down_proj):
            torch.nn.init.uniform_(parameter, -(parameter.shape[2] ** -0.5), parameter.shape[2] ** -0.5)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Maps (T, H) to the same shape."""
        return experts_mlp(
            hidden_states, self.gate_up_proj, self.down_proj, top_k_index, top_k_weights, self.hidden_act
        )


class TopKRouter(torch.nn.Module):
    """The router of Mixtral and Qwen: the probabilities of the experts in fp32, and the largest `top_k`, of which the sum is 1 with
    `norm_topk_prob`. The state_dict has `weight` (E, H)."""

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        top_k: int,
        norm_topk_prob: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.top_k, self.norm_topk_prob = top_k, norm_topk_prob
        self.weight = torch.nn.Parameter(torch.empty(num_experts, hidden_size, device=device, dtype=dtype))
        torch.nn.init.uniform_(self.weight, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(logits (T, E), weights (T, top_k) in their dtype, numbers of the experts (T, top_k)) of (T, H)."""
        logits = torch.nn.functional.linear(hidden_states.reshape(-1, self.weight.shape[1]), self.weight)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        weights, index = torch.topk(torch.softmax(logits, -1, dtype=dtype), self.top_k, -1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(logits.dtype), index


class MoE(torch.nn.Module):
    """The sparse block of Mixtral and Qwen: a router, and `top_k` experts per token. The state_dict is that of Hugging Face's
    MixtralSparseMoeBlock and Qwen3MoeSparseMoeBlock: `gate.weight`, `experts.gate_up_proj` and `experts.down_proj`."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_experts: int, top_k: int, hidden_act: str = "silu",
        norm_topk_prob: bool = True, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.gate = TopKRouter(num_experts, hidden_size, top_k, norm_topk_prob, device, dtype)
        self.experts = Experts(num_experts, hidden_size, intermediate_size, hidden_act, device, dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps (..., H) to the same shape."""
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        _, weights, index = self.gate(flat)
        return self.experts(flat, index, weights).view(hidden_states.shape)
