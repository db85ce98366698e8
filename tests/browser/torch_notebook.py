"""A notebook with a small transformer block, compiled by torch.compile and read kernel by kernel, for the tests and the documentation."""

from __future__ import annotations

SETUP = """%load_ext blocknb
import torch, torch.nn as nn, torch.nn.functional as F
import blocknb.torch

class Block(nn.Module):
    def __init__(self, d=64, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = (q @ k.transpose(-1, -2) / 4).softmax(-1)
        x = x + self.out((p @ v).transpose(1, 2).reshape(b, t, d))
        torch._dynamo.graph_break()
        return x + self.down(F.gelu(self.up(self.norm2(x))))

torch.manual_seed(0)
block = Block()
compiled = torch.compile(block, backend=blocknb.torch.backend)
x = torch.randn(2, 32, 64, requires_grad=False)
with torch.no_grad():
    y = compiled(x)"""
RUN = """%%torchkernels
with torch.no_grad():
    y = compiled(x)"""
COMPARED = """with torch.no_grad():
    found = blocknb.torch.kernels(compiled, x, eager=block)
found"""
