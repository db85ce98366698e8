"""Small models that the tests train with `backend="blocknb"`: a table of names and functions that make a model and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Rms(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x: Any) -> Any:
        return x * (x.pow(2).mean(-1, True) + 1e-5).rsqrt() * self.weight


class Attention(nn.Module):
    def __init__(self, n: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(n, 3 * n), nn.Linear(n, n)

    def forward(self, x: Any) -> Any:
        b, t, n = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * (n // self.heads) ** -0.5
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, n))


class SwiGlu(nn.Module):
    def __init__(self, n: int, hidden: int):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(n, hidden), nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class TransformerBlock(nn.Module):
    def __init__(self, n: int = 16, heads: int = 2):
        super().__init__()
        self.first, self.second = nn.LayerNorm(n), Rms(n)
        self.attention, self.mlp = Attention(n, heads), SwiGlu(n, 2 * n)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class SmallGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(29, 16), nn.Embedding(8, 16)
        self.blocks, self.norm, self.head = nn.Sequential(TransformerBlock()), nn.LayerNorm(16), nn.Linear(16, 29)

    def forward(self, x: Any) -> Any:
        h = self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1])))
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), (x.flatten() + 1) % 29)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3), nn.GELU()
        )
        self.head = nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).mean((2, 3)))


class Residual(nn.Module):
    def __init__(self, *parts: nn.Module):
        super().__init__()
        self.inner = nn.Sequential(*parts)

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


class Applied(nn.Module):
    """A function with one weight."""

    def __init__(self, function: Callable[[Any, Any], Any], *shape: int):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(shape) * 0.3)

    def forward(self, x: Any) -> Any:
        return self.function(x, self.weight)


def numbers(*shape: int) -> Any:
    return torch.randn(shape)


#: Name to a function that makes (model, input).
MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "mlp": lambda: (nn.Sequential(nn.Linear(9, 17), nn.GELU(), nn.Linear(17, 5)), numbers(7, 9)),
    "deep_mlp": lambda: (nn.Sequential(*(Residual(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))), numbers(5, 8)),
    "layer_norm": lambda: (nn.Sequential(nn.Linear(9, 12), nn.LayerNorm(12), nn.SiLU()), numbers(7, 9)),
    "rms_norm": lambda: (nn.Sequential(nn.Linear(9, 12), Rms(12), nn.ELU()), numbers(7, 9)),
    "group_norm": lambda: (nn.Sequential(nn.Conv2d(3, 6, 1), nn.GroupNorm(2, 6), nn.SiLU()), numbers(2, 3, 5, 5)),
    "batch_norm": lambda: (nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), numbers(9, 6)),
    "convnet": lambda: (ConvNet(), numbers(2, 3, 8, 8)),
    "conv1d": lambda: (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Softplus(), nn.AvgPool1d(2)), numbers(2, 2, 12)),
    "upsampling": lambda: (
        nn.Sequential(nn.Conv2d(2, 2, 1), nn.Upsample(scale_factor=2), nn.Tanh()),
        numbers(1, 2, 4, 4),
    ),
    "attention": lambda: (Attention(12, 3), numbers(2, 6, 12)),
    "swiglu": lambda: (SwiGlu(8, 20), numbers(3, 4, 8)),
    "transformer_block": lambda: (TransformerBlock(), numbers(2, 6, 16)),
    "small_gpt": lambda: (SmallGpt(), torch.arange(16).reshape(2, 8) * 5 % 29),
    "embedding_bag": lambda: (nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8)), torch.arange(12).reshape(3, 4) % 11),
    "softmax": lambda: (Applied(lambda x, w: (x * w).softmax(-1)[:, 0], 9), numbers(5, 9)),
    "log_sum_exp": lambda: (Applied(lambda x, w: (x @ w).logsumexp(0), 6, 4), numbers(5, 6)),
    "cross_entropy": lambda: (Applied(lambda x, w: F.cross_entropy(x @ w, torch.arange(6) % 5), 7, 5), numbers(6, 7)),
    "cosine_loss": lambda: (Applied(lambda x, w: 1 - F.cosine_similarity(x, w, -1), 8), numbers(6, 8)),
    "cumulative": lambda: (Applied(lambda x, w: (x * w).cumsum(-1).sigmoid(), 8), numbers(6, 8)),
    "gathered": lambda: (Applied(lambda x, w: w[torch.arange(6) % 4] * x.max(-1, True)[0], 4, 3), numbers(6, 3)),
    "rotated": lambda: (
        Applied(lambda x, w: torch.cat([-x[:, 2:] * w.sin(), x[:, :2] * w.cos()], 1), 2),
        numbers(5, 4),
    ),
    "huber": lambda: (Applied(lambda x, w: F.huber_loss(x * w, x.flip(0)), 4), numbers(5, 4)),
}


def loss_of(value: Any) -> Any:
    """A scalar in which every element of a result has another weight."""
    return (value * torch.arange(1, value.numel() + 1, dtype=value.dtype).reshape(value.shape)).sum() / value.numel()
