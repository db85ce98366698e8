"""Functions that the tests compile with `backend="blocknb"`: a table of names, functions and shapes of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

#: Name to (function, shapes of its float arguments).
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {}


def listed(*shapes: tuple[int, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function in the table."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[function.__name__] = function, shapes
        return function

    return enter


ROW, MATRIX, WIDE, IMAGE = (37,), (19, 33), (7, 1500), (2, 6, 9, 11)

_SIMPLE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "add_broadcast": (lambda x, y: x + y * 2 - 1, (MATRIX, (33,))),
    "gelu": (lambda x: F.gelu(x), (MATRIX,)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (MATRIX,)),
    "silu": (lambda x: F.silu(x) * x, (MATRIX,)),
    "mish": (lambda x: F.mish(x), (MATRIX,)),
    "elu": (lambda x: F.elu(x, 0.7), (MATRIX,)),
    "softplus": (lambda x: F.softplus(x, 2), (MATRIX,)),
    "hardswish": (lambda x: F.hardswish(x), (MATRIX,)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), (MATRIX,)),
    "sigmoid_tanh": (lambda x: x.sigmoid() * x.tanh(), (MATRIX,)),
    "erf_exp": (lambda x: x.erf() + (-x * x).exp() + x.expm1(), (MATRIX,)),
    "trigonometry": (lambda x: x.sin() + x.cos() * x.atan(), (MATRIX,)),
    "logarithms": (lambda x: (x.abs() + 1).log() + (x.abs() + 0.5).log2() + x.abs().log1p(), (MATRIX,)),
    "powers": (lambda x: x**3 + (x.abs() + 1) ** 0.5 + (x.abs() + 1).rsqrt(), (MATRIX,)),
    "hypot_atan2": (lambda x, y: torch.hypot(x, y) + torch.atan2(x, y), (MATRIX, MATRIX)),
    "rounding": (lambda x: x.floor() + x.ceil() * 2 + x.trunc() + (x * 3).round(), (MATRIX,)),
    "remainders": (lambda x: torch.remainder(x, 0.7).clamp(0.05, 0.65) + torch.fmod(x, 50.0), (MATRIX,)),
    "where": (lambda x, y: torch.where(x > y, x * 2, y - 1), (MATRIX, MATRIX)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5) + x.clamp_min(0.1), (MATRIX,)),
    "minimum_maximum": (lambda x, y: torch.minimum(x, y) * torch.maximum(x, y), (MATRIX, MATRIX)),
    "comparisons": (lambda x, y: ((x > y) & (x < 1)) | (x.isnan()), (MATRIX, MATRIX)),
    "lerp_addcmul": (lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=0.5), (MATRIX, MATRIX)),
    "sum_last": (lambda x: x.sum(-1), (WIDE,)),
    "sum_first": (lambda x: x.sum(0), (WIDE,)),
    "sum_all": (lambda x: (x * x).sum(), (WIDE,)),
    "mean_var": (lambda x: (x.mean(-1), x.var(-1), x.std(0)), (WIDE,)),
    "amax_amin": (lambda x: x.amax(-1) - x.amin(-1), (WIDE,)),
    "product": (lambda x: (1 + x * 0.01).prod(-1), (WIDE,)),
    "argmax": (lambda x: (x.argmax(-1), x.argmin(0)), (WIDE,)),
    "any_all": (lambda x: ((x > 2).any(-1), (x > -9).all(0)), (WIDE,)),
    "max_with_indices": (lambda x: x.max(-1), (MATRIX,)),
    "norm": (lambda x: x.norm(dim=-1) + x.abs().sum(-1), (WIDE,)),
    "logsumexp": (lambda x: x.logsumexp(-1), (WIDE,)),
    "softmax": (lambda x: x.softmax(-1), (WIDE,)),
    "softmax_first": (lambda x: x.softmax(0), (MATRIX,)),
    "log_softmax": (lambda x: x.log_softmax(-1), (WIDE,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), (MATRIX, (33,), (33,))),
    "rms_norm": (lambda x, w: x * (x.pow(2).mean(-1, True) + 1e-5).rsqrt() * w, (MATRIX, (33,))),
    "group_norm": (lambda x: F.group_norm(x, 3), (IMAGE,)),
    "batch_statistics": (
        lambda x: (x - x.mean((0, 2, 3), True)) / (x.var((0, 2, 3), keepdim=True) + 1e-5).sqrt(),
        (IMAGE,),
    ),
    "cumsum": (lambda x: x.cumsum(-1), (MATRIX,)),
    "cumprod": (lambda x: (1 + x * 0.01).cumprod(-1), (MATRIX,)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), (MATRIX,)),
    "transpose": (lambda x: x.t().contiguous() * 2, (MATRIX,)),
    "permute": (lambda x: x.permute(0, 2, 3, 1).contiguous() + 1, (IMAGE,)),
    "cat": (lambda x, y: torch.cat([x, y * 2], -1).relu(), (MATRIX, (19, 5))),
    "stack": (lambda x, y: torch.stack([x, y], 1) + 1, (MATRIX, MATRIX)),
    "slices": (lambda x: x[:, 1::2] * x[:, :-1:2] + x[3:4, :16], (MATRIX,)),
    "flip_roll": (lambda x: x.flip(-1) + x.roll(3, 0), (MATRIX,)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=0.5) * 2, (MATRIX,)),
    "reflect": (lambda x: F.pad(x, (2, 2, 1, 1), mode="reflect") * 2, (IMAGE,)),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "triangle": (lambda x: x.tril() + x.triu(2), (MATRIX,)),
    "one_hot": (lambda x: F.one_hot(x.argmax(-1), 33) * x, (MATRIX,)),
    "gather": (lambda x: x.gather(1, x.argsort(-1)[:, :4]), (MATRIX,)),
    "index": (lambda x: x[torch.arange(18, -1, -3)] * 2, (MATRIX,)),
    "embedding": (lambda w: F.embedding(torch.arange(12).reshape(3, 4) % 19, w) * 3, (MATRIX,)),
    "scatter_add": (lambda x: torch.zeros(5, 33, dtype=x.dtype).index_add(0, torch.arange(19) % 5, x), (MATRIX,)),
    "matmul_epilogue": (lambda x, y: (x @ y).relu() + 1, (MATRIX, (33, 20))),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.arange(19) % 33), (MATRIX,)),
    "mse_loss": (lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y), (MATRIX, MATRIX)),
    "kl_div": (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), (MATRIX, MATRIX)),
    "cosine": (lambda x, y: F.cosine_similarity(x, y), (MATRIX, MATRIX)),
}
for _name, (_function, _shapes) in _SIMPLE.items():
    FUNCTIONS[_name] = _function, _shapes


@listed(MATRIX, MATRIX)
def swiglu(x: Any, y: Any) -> Any:
    return F.silu(x) * y


@listed((2, 5, 4, 8), (5, 8))
def rotary(x: Any, angle: Any) -> Any:
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


@listed((2, 3, 16, 8), (2, 3, 16, 8), (2, 3, 16, 8))
def attention_by_hand(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-1, -2) / 8**0.5
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def arguments(shapes: tuple[tuple[int, ...], ...], seed: int = 0) -> list[Any]:
    """Normal random numbers in float32."""
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random) for shape in shapes]


def in_double(values: Any) -> Any:
    """The same values in float64."""
    return [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]
