"""Rotary position embedding (Su et al. 2021) of queries and keys, with the arguments of Hugging Face's `apply_rotary_pos_emb`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from blocknb.kernels import rotary as kernels
from blocknb.torch.nn.shapes import check_floating
from blocknb.torch.ops import launch, torch_op


def _last_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


@torch_op("blocknb::rotary_embedding")
def _rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    """Rotates q (batch, positions, heads, D) and k, which may have another batch, by the angles (batch or 1, positions, D)."""
    q, k, cos, sin = (_last_contiguous(x) for x in (q, k, cos, sin))
    out = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k)]
    kernel = functools.partial(kernels.rotary, backward=backward)
    if q.shape[:2] == k.shape[:2]:
        launch(kernel, q, k, cos, sin, *out)
    else:  # other numbers of batches, with the same angles
        for x, rotated in ((q, out[0]), (k, out[1])):
            launch(kernel, x, x[:, :, :0], cos, sin, rotated, rotated[:, :, :0])
    return out[0], out[1]


@_rotary.backward(save=("cos", "sin"))
def _(saved: Any, dq: Tensor, dk: Tensor) -> Any:
    q, k = _rotary(dq, dk, saved.cos, saved.sin, not saved.backward)
    return {"q": q, "k": k}


def rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Rotates q and k, (batch, heads, positions, D), or with `unsqueeze_dim` 2 (batch, positions, heads, D), by angles. Their
    cosines and sines are (batch or 1, positions, D), the two halves of D alike. With 1, q and k may differ in their batch. The angles get
    no gradient.

    Raises ValueError for shapes that do not fit, and for cos or sin that require a gradient.
    """
    check_floating("rotary_embedding", q=q, k=k, cos=cos, sin=sin)
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"rotary_embedding: unsqueeze_dim is {unsqueeze_dim}, but it must be 1 or 2")
    if cos.requires_grad or sin.requires_grad:
        raise ValueError("rotary_embedding: cos and sin get no gradient: pass cos.detach() and sin.detach()")
    by_position = [_checked(n, x, cos, sin, unsqueeze_dim) for n, x in (("q", q), ("k", k))]
    if by_position[0].shape[3] != by_position[1].shape[3]:
        raise ValueError(
            f"rotary_embedding: q has {q.shape[-1]} elements per head, and k {k.shape[-1]}: both need one number"
        )
    q_out, k_out = _rotary(*by_position, cos, sin, False)
    return (q_out.transpose(1, 2), k_out.transpose(1, 2)) if unsqueeze_dim == 1 else (q_out, k_out)


def _checked(name: str, x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> Tensor:
    """x as (batch, positions, heads, D)."""
    if x.dim() != 4 or x.shape[-1] % 2:
        raise ValueError(
            f"rotary_embedding: `{name}` has the shape {tuple(x.shape)}, but it needs four axes, and the last even"
        )
    by_position = x.transpose(1, 2) if unsqueeze_dim == 1 else x
    batch, positions, _, width = by_position.shape
    for key, angles in (("cos", cos), ("sin", sin)):
        if angles.shape not in ((batch, positions, width), (1, positions, width)):
            message = f"`{key}` has the shape {tuple(angles.shape)}, but `{name}` needs {(batch, positions, width)}"
            raise ValueError(f"rotary_embedding: {message}")
    return by_position


# ---- the angles of a model -----------------------------------------------------------------------------------------------


@torch_op("blocknb::in_memory")
def _in_memory(x: Tensor) -> Tensor:
    """A copy of x. Graphs do not look into operators, so they compute x once."""
    return x.clone(memory_format=torch.contiguous_format)


class RotaryAngles(torch.nn.Module):
    """A module of Hugging Face that returns the cosines and sines of rotary embeddings, for example LlamaRotaryEmbedding.

    In a graph of torch.compile, the cosines and sines are computed once and read from memory. Inductor would compute them again for each
    element of all queries and keys, in each layer, forward and backward. In eager mode the module is called as it is. Its attributes are
    those of the original, which is `original`.
    """

    def __init__(self, original: torch.nn.Module) -> None:
        super().__init__()
        self.original = original

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("original"), name)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The result of the original function."""
        cos, sin = self.original.forward(*args, **kwargs)  # no hooks: `replace` compares both by one
        if not torch.compiler.is_compiling() or cos.requires_grad:
            return cos, sin
        return _in_memory(cos), _in_memory(sin)
