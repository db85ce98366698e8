"""Kernels of a module that workers can import."""

from __future__ import annotations

import blocknb
import blocknb.language as tl

SCALE = 2.0


@blocknb.kernel
def scaled(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * SCALE, mask=at < n)


@blocknb.autotune([blocknb.Config({"BLOCK": 64}), blocknb.Config({"BLOCK": 128})], key=["n"])
@blocknb.kernel
def tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * SCALE, mask=at < n)
