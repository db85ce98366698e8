"""Attention with the arguments of `torch.nn.functional.scaled_dot_product_attention`: grouped heads, causal masks, fp16, bf16 and fp32."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from blocknb import kernels
from blocknb.torch.nn.shapes import check_floating
from blocknb.torch.ops import launch, torch_op


@torch_op("blocknb::attention")
def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, tf32: bool) -> tuple[Tensor, Tensor]:
    q, k, v = map(_last_contiguous, (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    logsumexp = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    options: dict[str, Any] = {"causal": causal, "scale": scale, "input_precision": _precision(tf32)}
    launch(functools.partial(kernels.attention, logsumexp=logsumexp, **options), q, k, v, out)
    return out, logsumexp


@torch_op("blocknb::attention_backward")
def _attention_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, dout: Tensor, causal: bool, scale: float | None,
    deterministic: bool, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, dout = map(_last_contiguous, (q, k, v, dout))
    found = tuple([torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)])
    options: dict[str, Any] = {"causal": causal, "scale": scale, "input_precision": _precision(tf32)}
    options["deterministic"] = deterministic
    launch(functools.partial(kernels.attention_backward, **options), q, k, v, out, logsumexp, dout, *found)
    return found


@_attention.backward(save=("q", "k", "v", 0, 1), undifferentiable=(1,))
def _(saved: Any, dout: Tensor) -> Any:
    deterministic = torch.are_deterministic_algorithms_enabled()
    return _attention_backward(
        saved.q, saved.k, saved.v, *saved.outputs, dout, saved.causal, saved.scale, deterministic, saved.tf32
    )


def _precision(tf32: bool) -> str:
    return "tf32" if tf32 else "ieee"


@torch.compiler.assume_constant_result  # Dynamo compiles again when the setting changes
def _allows_tf32() -> bool:
    """Whether torch's own products of fp32 matrices use TF32. The older settings set this one, too."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _last_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def attention(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False
) -> Tensor:
    """softmax(scale q k^T) v for q (batch, heads, queries, head) and k, v (batch, kv heads, keys, head), as torch's
    `scaled_dot_product_attention` without a mask tensor and dropout.

    With `enable_gqa`, consecutive heads of q share one head of k and v. A head has 8 to 256 elements. `scale` is 1 / sqrt(head) by default.
    Products of fp32 on a GPU use TF32 only if `torch.backends.cuda.matmul.allow_tf32` or `torch.set_float32_matmul_precision` say so, as
    torch's own do. On some GPUs the gradient of q is added up in memory, and its last bits differ from run to run, unless
    `torch.use_deterministic_algorithms(True)` is set. Raises ValueError for other shapes and dtypes.
    """
    check_floating("attention", q=q, k=k, v=v)
    if q.dim() == 4 and k.dim() == 4 and q.shape[1] != k.shape[1] and not enable_gqa:
        raise ValueError(f"attention: q has {q.shape[1]} heads and k {k.shape[1]}: pass enable_gqa=True")
    return _attention(q, k, v, is_causal, scale, _allows_tf32())[0]
