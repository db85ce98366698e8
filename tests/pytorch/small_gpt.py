"""Trains a small GPT on the text of this repository's documentation, in bf16, with the layers of torch or of blocknb.

    python tests/pytorch/small_gpt.py --steps 500 --seeds 5

prints the losses of eager PyTorch for each seed and those of blocknb's layers, which begin with the same weights and see the same text. The
largest difference between both, of the same seed, should stay below the spread of eager's seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blocknb.torch import nn

DOCS = Path(__file__).parents[2] / "docs"
VOCABULARY, LENGTH, BATCH = 128, 64, 8
WINDOW = 50  # steps whose mean loss is a point of the curve


class EagerAttention(torch.nn.Module):
    """Causal attention with 4 heads, and 2 of keys and values."""

    def __init__(self, size: int, ours: bool):
        super().__init__()
        self.ours, self.width = ours, size // 4
        self.q_proj, self.o_proj = (torch.nn.Linear(size, size, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (torch.nn.Linear(size, size // 2, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        attend = nn.attention if self.ours else F.scaled_dot_product_attention
        return self.o_proj(attend(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2))


class EagerGatedMLP(torch.nn.Module):
    """SwiGLU with the names of `nn.GatedMLP`."""

    def __init__(self, size: int, inner: int):
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(size, inner, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class GPTBlock(torch.nn.Module):
    """Attention and MLP, each after an RMS norm."""

    def __init__(self, size: int, ours: bool):
        super().__init__()
        norm = nn.RMSNorm if ours else torch.nn.RMSNorm
        self.norm_1, self.norm_2 = norm(size, 1e-5), norm(size, 1e-5)
        self.attention = EagerAttention(size, ours)
        self.mlp = (nn.GatedMLP if ours else EagerGatedMLP)(size, 2 * size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class SmallGPT(torch.nn.Module):
    """The loss of tokens (batch, length + 1), with layers of blocknb (`ours`) or of torch. Both have one state_dict."""

    def __init__(self, ours: bool, size: int = 64, layers: int = 2):
        super().__init__()
        self.ours = ours
        embedding = nn.Embedding if ours else torch.nn.Embedding
        self.tokens, self.positions = embedding(VOCABULARY, size), embedding(LENGTH, size)
        self.blocks = torch.nn.Sequential(*[GPTBlock(size, ours) for _ in range(layers)])
        self.norm = (nn.RMSNorm if ours else torch.nn.RMSNorm)(size, 1e-5)
        self.head = torch.nn.Linear(size, VOCABULARY, bias=False)
        for module in (self.tokens, self.positions, self.head):
            torch.nn.init.normal_(module.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens[:, :-1]) + self.positions(torch.arange(LENGTH, device=tokens.device))
        x, target = self.norm(self.blocks(x)).flatten(0, 1), tokens[:, 1:].flatten()
        if self.ours:
            return nn.linear_cross_entropy(x, self.head.weight, target)
        return F.cross_entropy(self.head(x).float(), target)


def corpus() -> Tensor:
    """The ASCII characters of the documentation's pages."""
    text = "".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    return torch.tensor([b for b in text.encode() if b < VOCABULARY])


def train(ours: bool, seed: int, steps: int, device: str = "cpu", compiled: bool = False) -> list[float]:
    """The losses of a training in bf16; `seed` decides about weights and text."""
    torch.manual_seed(seed)
    model: Any = SmallGPT(ours)
    if ours:  # the weights of eager's seed, whatever the order in which modules draw them
        torch.manual_seed(seed)
        model.load_state_dict(SmallGPT(False).state_dict())
    model = model.to(device, torch.bfloat16)
    text, generator = corpus().cpu(), torch.Generator().manual_seed(seed)  # one text for all devices
    offsets = torch.arange(LENGTH + 1, device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    run = torch.compile(model, fullgraph=True) if compiled else model
    losses = []
    for _ in range(steps):
        at = torch.randint(0, len(text) - LENGTH - 1, (BATCH, 1), generator=generator, device="cpu")
        loss = run(text[at + offsets].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def curve(losses: list[float], window: int = WINDOW) -> Tensor:
    """The mean losses of consecutive windows."""
    return torch.tensor(losses).view(-1, window).mean(1)


def main() -> None:
    """Trains with all seeds and prints the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the products are small
    curves = {}
    for ours in (False, True):
        for seed in range(given.seeds):
            curves[ours, seed] = found = curve(train(ours, seed, given.steps, given.device))
            points = " ".join(f"{x:.3f}" for x in found)
            print(f"{'blocknb' if ours else 'eager  '} seed {seed}: {points}", flush=True)
    eager = torch.stack([curves[False, seed] for seed in range(given.seeds)])
    spread = eager.max(0).values - eager.min(0).values
    off = torch.stack([(curves[True, seed] - curves[False, seed]).abs() for seed in range(given.seeds)]).max(0).values
    print("spread of eager's seeds:     ", " ".join(f"{x:.3f}" for x in spread))
    print("largest difference, per seed:", " ".join(f"{x:.3f}" for x in off))


if __name__ == "__main__":
    main()
