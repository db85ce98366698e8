"""Rotary position embedding (Su et al. 2021) of queries and keys, with the arguments of Hugging Face's `apply_rotary_pos_emb`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from blocknb import kernels
from blocknb.torch.nn.shapes import check_floating
from blocknb.torch.ops import launch, torch_op


@torch_op("blocknb::rotary")
def _rotary(x: Tensor, cos: Tensor, sin: Tensor, backward: bool) -> Tensor:
    """Rotates x (positions, heads, D) by the angles (positions, D / 2)."""
    source = x if x.stride(2) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(functools.partial(kernels.rope, backward=backward), source, cos.contiguous(), sin.contiguous(), out)
    return out


@_rotary.backward(save=("cos", "sin"))
def _(saved: Any, dout: Tensor) -> Any:
    return {"x": _rotary(dout, saved.cos, saved.sin, not saved.backward)}


def rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Rotates q and k, (batch, heads, positions, D), or with `unsqueeze_dim` 2 (batch, positions, heads, D), by angles. Their
    cosines and sines are (batch or 1, positions, D), the two halves of D alike. The angles get no gradient.

    Raises ValueError for shapes that do not fit, and for cos or sin that require a gradient.
    """
    check_floating("rotary_embedding", q=q, k=k, cos=cos, sin=sin)
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"rotary_embedding: unsqueeze_dim is {unsqueeze_dim}, but it must be 1 or 2")
    if cos.requires_grad or sin.requires_grad:
        raise ValueError("rotary_embedding: cos and sin get no gradient: pass cos.detach() and sin.detach()")
    return tuple([_rotated(name, x, cos, sin, unsqueeze_dim) for name, x in (("q", q), ("k", k))])


def _rotated(name: str, x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> Tensor:
    if x.dim() != 4 or x.shape[-1] % 2:
        raise ValueError(
            f"rotary_embedding: `{name}` has the shape {tuple(x.shape)}, but it needs four axes, and the last even"
        )
    by_position = x.transpose(1, 2) if unsqueeze_dim == 1 else x
    batch, positions, heads, width = by_position.shape
    halves = []
    for key, angles in (("cos", cos), ("sin", sin)):
        if angles.shape not in ((batch, positions, width), (1, positions, width)):
            message = f"`{key}` has the shape {tuple(angles.shape)}, but `{name}` needs {(batch, positions, width)}"
            raise ValueError(f"rotary_embedding: {message}")
        halves.append(angles[..., : width // 2].expand(batch, positions, width // 2).reshape(-1, width // 2))
    out = _rotary(by_position.reshape(batch * positions, heads, width), *halves, False)
    out = out.view(batch, positions, heads, width)
    return out.transpose(1, 2) if unsqueeze_dim == 1 else out
