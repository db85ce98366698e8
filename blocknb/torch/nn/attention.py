"""Attention with the arguments of `torch.nn.functional.scaled_dot_product_attention`, and those of Hugging Face's attention functions.

Plain and causal attention of fp16, bf16 and fp32 takes the kernels of `blocknb.kernels.attention`. A mask, lengths, a window, ALiBi, a soft
cap and fp64 take those of `blocknb.kernels.masked_attention`, whose gradients are exact for all of these.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from blocknb import kernels
from blocknb.kernels.masked_attention import (
    masked_attention,
    masked_attention_backward,
    masked_attention_mask_gradient,
)
from blocknb.torch.nn.shapes import check_floating, sums_dtype
from blocknb.torch.ops import launch, torch_op


@torch_op("blocknb::attention")
def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, shift: int, tf32: bool
) -> tuple[Tensor, Tensor]:
    q, k, v = map(_last_contiguous, (q, k, v))
    out = _like(q)
    logsumexp = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    options: dict[str, Any] = {"causal": causal, "scale": scale, "shift": shift, "input_precision": _precision(tf32)}
    launch(functools.partial(kernels.attention, logsumexp=logsumexp, **options), q, k, v, out)
    return out, logsumexp


@torch_op("blocknb::attention_backward")
def _attention_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, dout: Tensor, causal: bool, scale: float | None,
    shift: int, deterministic: bool, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, dout = map(_last_contiguous, (q, k, v, dout))
    found = _like(q), _like(k), _like(v)
    options: dict[str, Any] = {"causal": causal, "scale": scale, "shift": shift, "input_precision": _precision(tf32)}
    options["deterministic"] = deterministic
    launch(functools.partial(kernels.attention_backward, **options), q, k, v, out, logsumexp, dout, *found)
    return found


@_attention.backward(save=("q", "k", "v", 0, 1), undifferentiable=(1,))
def _(saved: Any, dout: Tensor) -> Any:
    deterministic = torch.are_deterministic_algorithms_enabled()
    return _attention_backward(
        saved.q, saved.k, saved.v, *saved.outputs, dout, saved.causal, saved.scale, saved.shift, deterministic, saved.tf32
    )  # fmt: skip


# ---- with a mask, lengths, a window, ALiBi or a soft cap -----------------------------------------------------------------


@torch_op("blocknb::masked_attention")
def _masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None, slopes: Tensor | None, causal: bool,
    scale: float | None, shift: int, window: int | None, soft_cap: float | None, tf32: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v = map(_last_contiguous, (q, k, v))
    out = _like(q)
    logsumexp = torch.empty(q.shape[:3], dtype=sums_dtype(q), device=q.device)
    options = _options(q, k, mask, lengths, slopes, causal, scale, shift, window, soft_cap, tf32)
    launch(functools.partial(masked_attention, **options), q, k, v, out, logsumexp)
    return out, logsumexp


@torch_op("blocknb::masked_attention_backward")
def _masked_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None, slopes: Tensor | None, causal: bool,
    scale: float | None, shift: int, window: int | None, soft_cap: float | None, tf32: bool, out: Tensor, logsumexp: Tensor,
    dout: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, dout = map(_last_contiguous, (q, k, v, dout))
    found = _like(q), _like(k), _like(v)
    options = _options(q, k, mask, lengths, slopes, causal, scale, shift, window, soft_cap, tf32)
    launch(functools.partial(masked_attention_backward, **options), q, k, v, out, logsumexp, dout, *found)
    return found


@torch_op("blocknb::masked_attention_mask_gradient")
def _mask_gradient(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, lengths: Tensor | None, slopes: Tensor | None, causal: bool,
    scale: float | None, shift: int, window: int | None, soft_cap: float | None, tf32: bool, out: Tensor, logsumexp: Tensor,
    dout: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of an added mask, like the mask."""
    q, k, v, dout = map(_last_contiguous, (q, k, v, dout))
    shape = (*mask.shape[:2], q.shape[2], k.shape[2])
    found = torch.empty(shape, dtype=logsumexp.dtype, device=q.device)
    options = _options(q, k, mask, lengths, slopes, causal, scale, shift, window, soft_cap, tf32)
    launch(functools.partial(masked_attention_mask_gradient, **options), q, k, v, out, logsumexp, dout, found)
    return found.sum_to_size(mask.shape).to(mask.dtype)


@_masked_attention.backward(save=("q", "k", "v", "mask", "lengths", "slopes", 0, 1), undifferentiable=(1,))
def _(saved: Any, dout: Tensor) -> Any:
    given = [getattr(saved, name) for name in _masked_attention.parameters]
    found = {}
    if "mask" in saved.needs:
        found["mask"] = _mask_gradient(*given, *saved.outputs, dout)
    if saved.needs & {"q", "k", "v"}:
        found |= zip("qkv", _masked_attention_backward(*given, *saved.outputs, dout), strict=True)
    return found


def _options(
    q: Tensor, k: Tensor, mask: Any, lengths: Any, slopes: Any, causal: bool, scale: Any, shift: int, window: Any, soft_cap: Any,
    tf32: bool,
) -> dict[str, Any]:  # fmt: skip
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    return {
        "mask": mask, "lengths": lengths, "alibi_slopes": slopes, "causal": causal, "scale": scale, "shift": shift,
        "window": window, "soft_cap": soft_cap, "input_precision": _precision(tf32),
    }  # fmt: skip


def _precision(tf32: bool) -> str:
    return "tf32" if tf32 else "ieee"


@torch.compiler.assume_constant_result  # Dynamo compiles again when the setting changes
def _allows_tf32() -> bool:
    """Whether torch's own products of fp32 matrices use TF32. The older settings set this one, too."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _last_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _like(x: Tensor) -> Tensor:
    """An empty tensor whose axes have the order in memory of those of x. A model that has positions before heads then copies neither the
    result nor the gradients of its projections."""
    found = torch.empty_like(x)
    return found if found.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


# ---- functions -----------------------------------------------------------------------------------------------------------


def attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False, *, shift: int = 0, window: int | None = None,
    soft_cap: float | None = None, alibi_slopes: Tensor | None = None, lengths: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Computes `softmax(scale q k^T + mask) v`, with the arguments of torch's `scaled_dot_product_attention`, without dropout. q is (batch,
    heads, queries, head), and k and v are (batch, kv heads, keys, head).

    `attn_mask` is bool, where False hides a key, or floating and added to the scores (a number below -1e30 hides a key). Its shape
    broadcasts to (batch, heads, queries, keys). With `is_causal`, query i sees keys 0 to i + `shift`; keys - queries is the shift of a KV
    cache. `window`, with `is_causal`, is the number of keys up to there that a query sees. `soft_cap` makes each score
    cap tanh(score / cap), before masks. `alibi_slopes` (heads,) adds -slope |position - key|. `lengths`, int32 or int64 (batch,), is the
    number of keys of each sequence. A query that sees no key gets zeros. A floating mask gets a gradient, and slopes get none.

    With `enable_gqa`, consecutive heads of q share one head of k and v. A head has 8 to 256 elements. `scale` is 1 / sqrt(head) by default.
    Inside `torch.autocast`, q, k and v are cast to its dtype, as torch does. Products of fp32 on a GPU use TF32 only if
    `torch.backends.cuda.matmul.allow_tf32` or `torch.set_float32_matmul_precision` say so, as torch's own do. On some GPUs the gradient of
    q is added up in memory, and its last bits differ from run to run. They do not differ if `torch.use_deterministic_algorithms(True)` is
    set, or with a mask or another option. Raises ValueError for other shapes and dtypes, and for slopes that require a gradient.
    """
    check_floating("attention", q=q, k=k, v=v)
    if dropout_p:
        raise ValueError(f"attention has no dropout: pass dropout_p=0.0 instead of {dropout_p}")
    if q.dim() == 4 and k.dim() == 4 and q.shape[1] != k.shape[1] and not enable_gqa:
        raise ValueError(f"attention: q has {q.shape[1]} heads and k {k.shape[1]}: pass enable_gqa=True")
    if window is not None and not is_causal:
        raise ValueError("attention: a window counts keys up to a query's position: pass is_causal=True")
    if alibi_slopes is not None and alibi_slopes.requires_grad:
        raise ValueError(
            "attention: `alibi_slopes` gets no gradient: pass alibi_slopes.detach(), or the bias as attn_mask, which gets one"
        )
    if torch.is_autocast_enabled(q.device.type) and q.dtype != torch.float64:
        q, k, v = (x.to(torch.get_autocast_dtype(q.device.type)) for x in (q, k, v))
    options = attn_mask, lengths, alibi_slopes, window, soft_cap
    if q.dtype != torch.float64 and all(option is None for option in options):
        return _attention(q, k, v, is_causal, scale, shift, _allows_tf32())[0]
    mask = None if attn_mask is None else _mask(attn_mask, q, k)
    slopes = None if alibi_slopes is None else alibi_slopes.float().contiguous()
    tf32 = _allows_tf32()
    return _masked_attention(q, k, v, mask, lengths, slopes, is_causal, scale, shift, window, soft_cap, tf32)[0]


def _mask(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A mask of four axes as the kernels take it, without a copy where the dtype fits; an axis may be 1. Raises ValueError for another
    shape or dtype."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"attention: `attn_mask` is {mask.dtype}, but it must be bool or floating: pass attn_mask.bool()"
        )
    if q.dim() != 4 or k.dim() != 4:
        raise ValueError(
            f"attention: q and k must have four axes, not the shapes {tuple(q.shape)} and {tuple(k.shape)}"
        )
    shape = (*q.shape[:3], k.shape[2])
    if mask.dim() > 4 or any(a not in (1, b) for a, b in zip(reversed(mask.shape), reversed(shape), strict=False)):
        raise ValueError(
            f"attention: `attn_mask` has the shape {tuple(mask.shape)}, which does not broadcast to {shape}"
        )
    if mask.dtype == torch.bool:
        # A view costs nothing. In a graph, Inductor would write it as a bitcast of one bit, which no compiler of Triton's language takes.
        mask = mask.to(torch.uint8) if torch.compiler.is_compiling() else mask.view(torch.uint8)
    elif mask.dtype == torch.float64 and q.dtype != torch.float64:
        mask = mask.float()
    return mask[(None,) * (4 - mask.dim())]


def hugging_face_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
    dropout: float = 0.0, softcap: float | None = None, sliding_window: int | None = None, is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """`attention` as a function of Hugging Face's `AttentionInterface`: the result is (batch, queries, heads, head), and no weights.

    Register it once, with the masks of "sdpa", and name it in the model:

        transformers.AttentionInterface.register("blocknb", blocknb.torch.nn.hugging_face_attention)
        transformers.AttentionMaskInterface.register("blocknb", transformers.masking_utils.sdpa_mask)
        model.set_attn_implementation("blocknb")

    Without a mask, attention is causal where the module is, and `sliding_window` applies; a mask contains both. Raises ValueError as
    `attention` does, and for a call with dropout.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    window = sliding_window if causal else None
    out = attention(
        query, key, value, attention_mask, dropout, causal, scaling, True, window=window, soft_cap=softcap,
        alibi_slopes=kwargs.get("alibi_slopes"),
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None
