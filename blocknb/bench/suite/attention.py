"""The benchmarks of attention: forward and backward, with and without a causal mask, 16 k tokens per batch, hidden size 2048.

A shape is (sequence length, head dimension). The float64 score matrices of all heads exceed the memory of a GPU. So results are compared
for one random head, and all others must be finite. The peers are torch's scaled_dot_product_attention by cuDNN and by flash attention, and
our own kernel compiled by Triton. Another peer is a kernel written for Triton (`fused_triton`), with and without warp specialization.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from blocknb.bench.suite.definition import Arrays, Config, Make, Shape, SuiteBenchmark, Variant

TOKENS, HIDDEN = 16384, 2048
SHAPES: tuple[Shape, ...] = ((4096, 64), (4096, 128), (16384, 64), (16384, 128))
SMALL: tuple[Shape, ...] = ((256, 64),)
CUDNN, FLASH, FUSED, WS = "cuDNN", "flash", "fused", "fused ws"
TOLERANCE = 2e-2  # relative to the maximum of a result: a few roundings of 16-bit operands


def sizes(tokens: int, head: int) -> tuple[int, int, int, int]:
    """Batches, heads, tokens and head dimension. TOKENS and HIDDEN give batches and heads; short sequences, for a CPU, have two of each."""
    if tokens < 1024:
        return 2, 2, tokens, head
    return max(1, TOKENS // tokens), max(1, HIDDEN // head), tokens, head


def flops(tokens: int, head: int, causal: bool, backward: bool) -> int:
    """Two matrix products forward, five backward; a causal mask halves them."""
    batch, heads, *_ = sizes(tokens, head)
    return (10 if backward else 4) * batch * heads * tokens * tokens * head // (2 if causal else 1)


# -- the float64 reference of one head


def transposed(x: Any) -> Any:
    return x.T


def weights(xp: Any, q: Any, k: Any, causal: bool) -> Any:
    """softmax(scale q k^T) of one head: q (queries, head), k (keys, head)."""
    scores = q @ transposed(k) * q.shape[1] ** -0.5
    if causal:
        ones = xp.ones_like(scores)
        scores = xp.where(xp.cumsum(ones, 1) <= xp.cumsum(ones, 0), scores, -float("inf"))
    powers = xp.exp(scores - xp.amax(scores, axis=1, keepdims=True))
    return powers / xp.sum(powers, axis=1, keepdims=True)


def gradients(xp: Any, q: Any, k: Any, v: Any, dout: Any, causal: bool) -> tuple[Any, Any, Any]:
    p = weights(xp, q, k, causal)
    dp = dout @ transposed(v)
    ds = p * (dp - xp.sum(dp * p, axis=1, keepdims=True)) * q.shape[1] ** -0.5
    return ds @ k, transposed(ds) @ q, transposed(p) @ dout


def compared(xp: Any, found: Arrays, exact: Callable[[int, int], tuple[Any, ...]]) -> str:
    """Compares one random head of the results with `exact(batch, head)`. Returns an error text, or ""."""
    for name, value in found.items():
        if not bool(xp.isfinite(value).all()):
            return f"{name} has elements that are not finite or not written"
    shape = next(iter(found.values())).shape
    batch, head = random.randrange(shape[0]), random.randrange(shape[1])
    for (name, value), right in zip(found.items(), exact(batch, head), strict=False):
        error = float(xp.abs(value[batch, head] - right).max() / xp.abs(right).max())
        if error > TOLERANCE:
            return f"{name} is wrong: relative error {error:.2g} in batch {batch}, head {head}"
    return ""


# -- definitions


def _forward(causal: bool) -> SuiteBenchmark:
    def arrays(make: Make, tokens: int, head: int) -> tuple[Arrays, Arrays]:
        shape = sizes(tokens, head)
        return {name: make.normal(*shape) for name in "qkv"}, {"out": make.poison(*shape)}

    def check(xp: Any, inputs: Arrays, outputs: Arrays) -> str:
        def exact(batch: int, head: int) -> tuple[Any, ...]:
            q, k, v = (inputs[name][batch, head] for name in "qkv")
            return (weights(xp, q, k, causal) @ v,)

        return compared(xp, outputs, exact)

    def ours(kernels: Any, a: Arrays, **config: Any) -> Any:
        return kernels.attention(a["q"], a["k"], a["v"], a["out"], causal=causal, **config)

    variants = {
        "Triton": Variant("triton", ours, "attention", over_tiles, first(over_tiles)),
        FUSED: Variant("triton", Fused(causal, False), "attention", over_tiles, first(over_tiles)),
    }
    if not causal:  # Triton 3.6 aborts on a causal kernel with warp specialization
        variants[WS] = Variant("triton", Fused(causal, True), "attention", over_many_warps, first(over_many_warps))
    return SuiteBenchmark(
        f"attention_forward{'_causal' * causal}", "attention", arrays, ours, None, {"fp16": SHAPES, "bf16": SHAPES[1:2]},
        SMALL, over_our_tiles, flops=lambda tokens, head: flops(tokens, head, causal, False), check=check, variants=variants,
        peers=(CUDNN, FLASH, *variants), timed=15,
    )  # fmt: skip


def run_forward(inputs: Arrays, kept: Arrays, causal: bool) -> None:
    """Runs the forward pass and keeps its output and logsumexp for the backward pass."""
    from blocknb.kernels import attention

    attention(inputs["q"], inputs["k"], inputs["v"], kept["out"], causal=causal, logsumexp=kept["logsumexp"])


def _backward(causal: bool) -> SuiteBenchmark:
    def arrays(make: Make, tokens: int, head: int) -> tuple[Arrays, Arrays]:
        shape = sizes(tokens, head)
        inputs = {name: make.normal(*shape) for name in ("q", "k", "v", "dout")}
        kept = {"out": make.poison(*shape), "logsumexp": make.poison(*shape[:3], dtype="float32")}
        run_forward(inputs, kept, causal)
        return inputs | kept, {name: make.poison(*shape) for name in ("dq", "dk", "dv")}

    def check(xp: Any, inputs: Arrays, outputs: Arrays) -> str:
        def exact(batch: int, head: int) -> tuple[Any, ...]:
            q, k, v, dout = (inputs[name][batch, head] for name in ("q", "k", "v", "dout"))
            return gradients(xp, q, k, v, dout, causal)

        return compared(xp, outputs, exact)

    def ours(kernels: Any, a: Arrays, **config: Any) -> Any:
        order = ("q", "k", "v", "out", "logsumexp", "dout", "dq", "dk", "dv")
        return kernels.attention_backward(*(a[name] for name in order), causal=causal, **config)

    variants = {"Triton": Variant("triton", ours, "attention_gradients", over_two_tiles, first(over_two_tiles))}
    return SuiteBenchmark(
        f"attention_backward{'_causal' * causal}", "attention_gradients", arrays, ours, None,
        {"fp16": SHAPES, "bf16": SHAPES[1:2]}, SMALL, over_our_two_tiles,
        flops=lambda tokens, head: flops(tokens, head, causal, True), check=check, variants=variants,
        peers=(CUDNN, FLASH, *variants), timed=10,
    )  # fmt: skip


# -- configurations


def tiles(*rows: tuple[int, int, int, int]) -> list[Config]:
    return [dict(zip(("ROWS", "COLUMNS", "num_warps", "num_stages"), row, strict=True)) for row in rows]


def over_our_tiles(shape: Shape) -> Iterator[Config]:
    """Configurations of our kernel: two warpgroups, or one warpgroup and two programs per SM."""
    few = ((128, 128, 8, 2), (128, 64, 8, 4), (64, 128, 4, 2), (64, 64, 4, 2), (64, 64, 4, 4))
    more = ((128, 128, 8, 3), (256, 64, 16, 2), (256, 64, 16, 3), (256, 64, 16, 4)) if shape[1] <= 64 else ()
    yield from ({"tile": tile} for tile in tiles(*few, *more))


def over_our_two_tiles(shape: Shape) -> Iterator[Config]:
    keys = tiles((64, 128, 8, 2), (64, 128, 8, 4), (32, 128, 8, 4), (64, 64, 4, 2), (32, 64, 4, 3))
    queries = tiles((128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 4), (64, 128, 4, 2), (64, 64, 4, 3))
    yield from ({"tile": tile} for tile in tiles((64, 128, 8, 2), (64, 128, 8, 3), (64, 128, 8, 1), (64, 64, 8, 2)))
    yield from ({"key_tile": a, "query_tile": b} for a, b in zip(keys, queries, strict=True))


def over_tiles(shape: Shape) -> Iterator[Config]:
    """Tiles of the forward kernel; the first one is good for Triton on Hopper."""
    found = tiles((128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 128, 8, 3))
    if shape[1] > 64:
        found = tiles(
            (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 4), (128, 64, 8, 2), (64, 128, 4, 2)
        )
    yield from ({"tile": tile} for tile in found)


def over_many_warps(shape: Shape) -> Iterator[Config]:
    """The configurations that Triton's warp specialization supports."""
    yield from (config for config in over_tiles(shape) if config["tile"]["num_warps"] == 8)


def over_two_tiles(shape: Shape) -> Iterator[Config]:
    """Tiles of the programs over keys and of the programs over queries in the backward pass."""
    keys = tiles((64, 128, 8, 2), (32, 128, 4, 3), (32, 64, 4, 2), (64, 64, 4, 2), (64, 128, 8, 3), (128, 128, 8, 2))
    queries = tiles((128, 64, 8, 2), (128, 32, 4, 3), (64, 32, 4, 2), (64, 64, 4, 2), (128, 128, 8, 2), (64, 128, 4, 2))
    yield from ({"key_tile": a, "query_tile": b} for a, b in zip(keys, queries, strict=True))


def first(sweep: Callable[[Shape], Iterator[Config]]) -> Callable[[Shape, str], Config]:
    """The first configuration of a sweep, used before a search."""
    return lambda shape, dtype: next(sweep(shape))


class Fused:
    """The call of a variant: `fused_kernel` compiled by Triton. Launches on the same arrays reuse their descriptors."""

    def __init__(self, causal: bool, roles: bool) -> None:
        self.causal, self.roles = causal, roles
        self.kept: dict[str, Any] = {}
        self.of: Any = None

    def __call__(self, kernels: Any, a: Arrays, tile: Config) -> Any:
        from blocknb.bench.suite import fused_triton

        if self.of is not a["q"]:
            self.kept, self.of = {}, a["q"]
        key = str(tile)
        if key not in self.kept:
            self.kept[key] = fused_triton.launch(a, self.causal, self.roles, tile)
        return self.kept[key]()


BENCHMARKS = (_forward(False), _forward(True), _backward(False), _backward(True))


# -- torch's peers


def torch_peers(kind: str) -> dict[str, Callable[..., Any]]:
    """scaled_dot_product_attention by benchmark. `kind` is "cuDNN", "flash", or another text for torch's own choice. A backward benchmark
    times autograd's backward pass only."""
    names = [benchmark.name for benchmark in BENCHMARKS]
    return {name: _TorchAttention(kind, "causal" in name, "backward" in name) for name in names}


class _TorchAttention:
    def __init__(self, kind: str, causal: bool, backward: bool) -> None:
        self.kind, self.causal, self.backward = kind, causal, backward
        self.of: Any = None

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backends = {CUDNN: SDPBackend.CUDNN_ATTENTION, FLASH: SDPBackend.FLASH_ATTENTION}
        chosen = sdpa_kernel(backends[self.kind]) if self.kind in backends else contextlib.nullcontext()
        with chosen:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def __call__(self, q: Any, k: Any, v: Any, dout: Any = None, *_: Any) -> Any:
        import torch

        if not self.backward:
            with torch.no_grad():
                return self.forward(q, k, v)
        if self.of is not q:
            self.leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            self.out, self.of = self.forward(*self.leaves), q
        return torch.autograd.grad(self.out, self.leaves, dout, retain_graph=True)
