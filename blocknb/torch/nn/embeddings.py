"""Embedding with the arguments of torch's. The gradient of the table is a sum in fp32 in a fixed order, so it is deterministic."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from blocknb.kernels import embedding as kernels
from blocknb.runtime.launch_context import this_thread
from blocknb.torch.nn.shapes import check_floating, rows
from blocknb.torch.ops import launch, torch_op


def _gather(table: Tensor, ids: Tensor, out: Tensor) -> None:
    if ids.device.type == "cpu" and ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= table.shape[0]):
        raise IndexError(f"embedding: `input` has numbers outside of the table's 0 to {table.shape[0] - 1}")
    kernels.embedding(table, ids, out)


@torch_op("blocknb::embedding")
def _embedding(weight: Tensor, ids: Tensor, padding_idx: int) -> Tensor:
    """The rows of the weight (V, N) with the numbers ids (M)."""
    out = torch.empty((ids.shape[0], weight.shape[1]), dtype=weight.dtype, device=weight.device)
    launch(_gather, rows(weight), ids, out)
    return out


def _sorted(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """ids (M) in ascending order, and where they come from."""
    if this_thread.skips or not ids.is_cuda or ids.shape[0] > kernels.MOST_RANKED:
        return ids.sort(stable=True)
    return kernels.sorted_numbers(ids, torch.empty_like(ids), torch.empty_like(ids, dtype=torch.int64), count)


@torch_op("blocknb::embedding_backward")
def _embedding_backward(dout: Tensor, ids: Tensor, count: int, padding_idx: int) -> Tensor:
    ordered, order = _sorted(ids, count)
    dweight = torch.zeros((count, dout.shape[1]), dtype=dout.dtype, device=dout.device)
    backward = functools.partial(kernels.embedding_backward, ignored=padding_idx)
    launch(backward, rows(dout), ordered, order, dweight)
    return dweight


@_embedding.backward(save=("ids", "weight"))
def _(saved: Any, dout: Tensor) -> Any:
    return {"weight": _embedding_backward(dout, saved.ids, saved.weight.shape[0], saved.padding_idx)}


@_embedding_backward.backward(save=("ids",))
def _(saved: Any, ddweight: Tensor) -> Any:
    found = _embedding(ddweight, saved.ids, saved.padding_idx)
    return {"dout": torch.where((saved.ids == saved.padding_idx)[:, None], 0.0, found)}


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of the weight (V, N) that the int64 or int32 `input` numbers, of the shape (*input.shape, N).

    The row `padding_idx` gets no gradient; a negative one counts from the end, as in torch. Numbers outside of the table raise IndexError
    on a CPU, and give NaN on a GPU. Raises ValueError for other shapes and dtypes.
    """
    check_floating("embedding", weight=weight)
    if input.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"embedding: `input` is {input.dtype}, but numbers of rows are int64: pass input.long()")
    if weight.dim() != 2:
        raise ValueError(f"embedding: `weight` has the shape {tuple(weight.shape)}, but it must be (V, N)")
    padding = _padding("embedding", padding_idx, weight.shape[0])
    return _embedding(weight, input.reshape(-1), padding).view(*input.shape, weight.shape[1])


def _padding(name: str, padding_idx: int | None, count: int) -> int:
    """The row without a gradient, -1 for none."""
    if padding_idx is None:
        return -1
    if not -count <= padding_idx < count:
        raise ValueError(f"{name}: padding_idx is {padding_idx}, but the table has {count} rows")
    return padding_idx % count


class Embedding(torch.nn.Module):
    """`torch.nn.Embedding` without max_norm, scale_grad_by_freq and sparse gradients. The state_dict has `weight`."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Tensor | None = None,
        _freeze: bool = False, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        given = {"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
        for name, value in given.items():
            if value:
                raise ValueError(f"Embedding of blocknb has no {name}: use torch.nn.Embedding")
        _padding("Embedding", padding_idx, num_embeddings)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        more: dict[str, Any] = {"_weight": _weight, "_freeze": _freeze, "device": device, "dtype": dtype}
        original = torch.nn.Embedding(num_embeddings, embedding_dim, padding_idx, **more)
        self.weight = original.weight

    def forward(self, input: Tensor) -> Tensor:
        """The rows that `input` numbers."""
        return embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        more = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{more}"
