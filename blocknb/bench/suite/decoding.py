"""The benchmarks of attention for decoding: a few queries per sequence over a long cache of keys and values, contiguous or in pages of 16.

A shape is (batch, heads, kv heads, head dimension, queries, keys). All sequences are full, because some peers know no lengths. The peers
are torch's scaled_dot_product_attention by each backend that accepts the case, and FlexAttention compiled by torch. If vLLM is installed,
its two Triton kernels for decoding are peers, too. The unified kernel runs as vLLM's backend calls it; the older one with a number of
splits that a short search finds. A copy that moves as many bytes shows the ceiling: reading the cache once takes almost all of the time.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from blocknb.bench.suite.attention import CUDNN, FLASH, compared, weights
from blocknb.bench.suite.definition import Arrays, Config, Make, Shape, SuiteBenchmark

EFFICIENT, FLEX, VLLM, VLLM_DECODE = "efficient", "FlexAttention", "vLLM", "vLLM decode"
PEERS = (EFFICIENT, FLEX, VLLM, VLLM_DECODE)
PAGE = 16  # keys per page, vLLM's default
SEGMENTS, LEAST_GRID = 16, 128  # of vLLM's backend: parts per sequence, and the programs from which it does not split
SPLITS = (4, 8, 16, 32, 64)  # candidates for vLLM's older kernel

SHAPES: tuple[Shape, ...] = (
    (1, 32, 8, 128, 1, 1024), (1, 32, 8, 128, 1, 4096), (1, 32, 8, 128, 1, 16384), (1, 32, 8, 128, 1, 131072),
    (8, 32, 8, 128, 1, 4096), (32, 32, 8, 128, 1, 4096), (64, 32, 8, 128, 1, 1024), (8, 32, 32, 128, 1, 4096),
    (8, 64, 8, 128, 1, 4096), (8, 32, 1, 128, 1, 16384), (8, 32, 8, 64, 1, 4096), (8, 32, 8, 128, 4, 4096),
    (8, 32, 8, 128, 16, 4096), (8, 32, 1, 128, 16, 16384), (1, 64, 8, 64, 4, 16384),
)  # fmt: skip
SMALL: tuple[Shape, ...] = ((2, 4, 2, 64, 2, 256),)


def _arrays(
    make: Make, batch: int, heads: int, kv_heads: int, head: int, queries: int, keys: int
) -> tuple[Arrays, Arrays]:
    of_queries, of_keys = (batch, heads, queries, head), (batch, kv_heads, keys, head)
    return {"q": make.normal(*of_queries), **{x: make.normal(*of_keys) for x in "kv"}}, {
        "out": make.poison(*of_queries)
    }


def _paged(
    make: Make, batch: int, heads: int, kv_heads: int, head: int, queries: int, keys: int
) -> tuple[Arrays, Arrays]:
    """The memory order of the cache is (pages, page size, kv heads, head), vLLM's; pages are in random order."""
    pages = batch * keys // PAGE
    inputs = {"q": make.normal(batch, heads, queries, head)}
    inputs |= {x: make.normal(pages, PAGE, kv_heads, head) for x in "kv"}
    order = make.integers_below(1 << 40, pages).argsort()
    inputs["block_table"] = make.cast(order, "int32").reshape(batch, keys // PAGE)
    inputs["lengths"] = make.cast(make.integers_below(1, batch) + keys, "int32")
    return inputs, {"out": make.poison(batch, heads, queries, head)}


def _exact_head(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """One head, float64: query i of Q sees the keys up to keys - Q + i."""
    queries, keys = q.shape[0], k.shape[0]
    if queries == 1:
        return weights(xp, q, k, False) @ v
    rows = [
        weights(xp, q[i : i + 1], k[: keys - queries + 1 + i], False) @ v[: keys - queries + 1 + i]
        for i in range(queries)
    ]
    return xp.concatenate(rows)


def _check(xp: Any, inputs: Arrays, outputs: Arrays) -> str:
    def exact(batch: int, head: int) -> tuple[Any, ...]:
        q, k, v = (inputs[name] for name in "qkv")
        shared = head * k.shape[2 if "block_table" in inputs else 1] // q.shape[1]
        if "block_table" in inputs:
            pages = inputs["block_table"][batch]
            pages = pages.astype(int) if hasattr(pages, "astype") else pages.long()
            k, v = (x[pages][:, :, shared].reshape(-1, q.shape[3]) for x in (k, v))
        else:
            k, v = k[batch, shared], v[batch, shared]
        return (_exact_head(xp, q[batch, head], k, v),)

    return compared(xp, outputs, exact)


def _ours(kernels: Any, a: Arrays, **config: Any) -> Any:
    if "block_table" not in a:
        return kernels.attention_decoding(a["q"], a["k"], a["v"], a["out"], **config)
    k, v = a["k"].swapaxes(1, 2), a["v"].swapaxes(1, 2)
    return kernels.attention_decoding(
        a["q"], k, v, a["out"], lengths=a["lengths"], block_table=a["block_table"], **config
    )


def _over_splits(shape: Shape) -> Iterator[Config]:
    yield from ({"splits": splits} for splits in (1, 2, 4, 8, 16, 32, 64, 128))


def _benchmark(name: str, arrays: Callable[..., tuple[Arrays, Arrays]], peers: tuple[str, ...]) -> SuiteBenchmark:
    return SuiteBenchmark(
        name, "attention_decoding", arrays, _ours, None, {"fp16": SHAPES, "bf16": SHAPES[4:5]}, SMALL, _over_splits, check=_check,
        peers=peers, timed=20,
    )  # fmt: skip


BENCHMARKS = (
    _benchmark("decode_contiguous", _arrays, ("copy", FLASH, CUDNN, EFFICIENT, FLEX, VLLM, VLLM_DECODE)),
    _benchmark("decode_paged", _paged, ("copy", VLLM, VLLM_DECODE)),
)


# -- peers


def numpy_peers() -> dict[str, Callable[..., None]]:
    """The benchmarks in NumPy, which fill `out`."""
    import numpy as np

    def contiguous(q: Any, k: Any, v: Any, out: Any) -> None:
        (batch, heads, queries, head), keys = q.shape, k.shape[2]
        rows = q.reshape(batch, k.shape[1], -1, head)  # consecutive heads of q share one head of keys
        scores = rows @ k.swapaxes(2, 3)
        scores *= np.float32(head**-0.5)
        scores.reshape(batch, heads, queries, keys)[:, :, *np.triu_indices(queries, 1 + keys - queries, keys)] = -np.inf
        scores -= np.max(scores, axis=3, keepdims=True)
        np.exp(scores, out=scores)
        scores /= np.sum(scores, axis=3, keepdims=True)
        np.matmul(scores, v, out=out.reshape(rows.shape))

    def paged(q: Any, k: Any, v: Any, block_table: Any, lengths: Any, out: Any) -> None:
        keys, values = (x[block_table].reshape(len(q), -1, *x.shape[2:]).swapaxes(1, 2) for x in (k, v))
        contiguous(q, keys, values, out)

    return {"decode_contiguous": contiguous, "decode_paged": paged}


def torch_peers(kind: str) -> dict[str, Callable[..., Any]]:
    """A peer by benchmark. `kind` is one of PEERS, "cuDNN", "flash", or another text for torch's own choice of a backend.

    Raises ImportError if vLLM is not installed.
    """
    ops = "vllm.v1.attention.ops"
    if kind == VLLM:
        unified = importlib.import_module(f"{ops}.triton_unified_attention").unified_attention
        return {benchmark.name: _Prepared(_Unified(unified)) for benchmark in BENCHMARKS}
    if kind == VLLM_DECODE:
        older = importlib.import_module(f"{ops}.triton_decode_attention").decode_attention_fwd
        return {benchmark.name: _Prepared(_Searched(older)) for benchmark in BENCHMARKS}
    return {BENCHMARKS[0].name: _Prepared(_flex if kind == FLEX else _Sdpa(kind))}


class _Prepared:
    """A peer with arrays and masks of its own: `make(*inputs)` returns its call, once for the same inputs."""

    def __init__(self, make: Callable[..., Callable[[], Any]]) -> None:
        self.make = make
        self.of: Any = None
        self.call: Callable[[], Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self.of is not inputs[0] or self.call is None:
            self.of, self.call = inputs[0], None  # frees the arrays of the last case first
            self.call = self.make(*inputs)
        return self.call()


class _Sdpa:
    """scaled_dot_product_attention by one backend. Each backend gets the mask of the last queries in the form that it takes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, q: Any, k: Any, v: Any) -> Callable[[], Any]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right

        kinds = {
            CUDNN: SDPBackend.CUDNN_ATTENTION,
            FLASH: SDPBackend.FLASH_ATTENTION,
            EFFICIENT: SDPBackend.EFFICIENT_ATTENTION,
        }
        backends = [kinds[self.kind]] if self.kind in kinds else [*kinds.values(), SDPBackend.MATH]
        queries, keys, mask = q.shape[2], k.shape[2], None
        if queries > 1:
            whole = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
            mask = causal_lower_right(queries, keys) if self.kind == FLASH else whole.tril(keys - queries)
        attention = torch.nn.functional.scaled_dot_product_attention
        shared = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}

        def call() -> Any:
            with torch.no_grad(), sdpa_kernel(backends):
                return attention(q, k, v, attn_mask=mask, **shared)

        return call


def _flex(q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """FlexAttention, compiled for this case."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    queries, keys, mask = q.shape[2], k.shape[2], None
    if queries > 1:
        mask = create_block_mask(lambda b, h, i, j: j <= i + keys - queries, None, None, queries, keys, device=q.device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def _pages(q: Any, k: Any, v: Any, block_table: Any = None, lengths: Any = None) -> tuple[Any, ...]:
    """The queries as (tokens, heads, head), and a paged cache; a contiguous one is copied to pages."""
    tokens = q.transpose(1, 2).reshape(-1, q.shape[1], q.shape[3]).contiguous()
    if block_table is not None:
        return tokens, k, v, block_table, lengths
    import torch

    batch, _, keys, _ = k.shape
    pages = (x.transpose(1, 2).reshape(batch * keys // PAGE, PAGE, k.shape[1], k.shape[3]).contiguous() for x in (k, v))
    table = torch.arange(batch * keys // PAGE, device=q.device, dtype=torch.int32).reshape(batch, -1)
    lengths = torch.full((batch,), keys, device=q.device, dtype=torch.int32)
    return tokens, *pages, table, lengths


class _Unified:
    """vLLM's unified attention, with the threshold for splits and the number of parts of its backend."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *inputs: Any) -> Callable[[], Any]:
        import torch

        batch, heads, queries, head = inputs[0].shape
        tokens, k, v, table, lengths = _pages(*inputs)
        starts = torch.arange(0, batch * queries + 1, queries, dtype=torch.int32, device=tokens.device)
        out, keys = torch.empty_like(tokens), table.shape[1] * PAGE
        parts, most, sums = (
            torch.empty(*shape, device=tokens.device)
            for shape in (
                (len(tokens), heads, SEGMENTS, head),
                (len(tokens), heads, SEGMENTS),
                (len(tokens), heads, SEGMENTS),
            )
        )

        def call() -> Any:
            self.function(
                tokens, k, v, out, starts, queries, lengths, keys, head**-0.5, True, (-1, -1), table, 0, None, None, None,
                seq_threshold_3D=LEAST_GRID // k.shape[2], num_par_softmax_segments=SEGMENTS, softmax_segm_output=parts,
                softmax_segm_max=most, softmax_segm_expsum=sums,
            )  # fmt: skip
            return out.view(batch, queries, heads, head).transpose(1, 2)

        return call


class _Searched:
    """vLLM's older decoding kernel, of one query per sequence, with the fastest number of splits."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *inputs: Any) -> Callable[[], Any]:
        if inputs[0].shape[2] > 1:
            raise ValueError("it takes one query per sequence")
        paged = _pages(*inputs)
        calls = {splits: self.with_splits(splits, *paged) for splits in SPLITS}
        return calls[min(calls, key=lambda splits: _milliseconds(calls[splits]))]

    def with_splits(self, splits: int, tokens: Any, k: Any, v: Any, table: Any, lengths: Any) -> Callable[[], Any]:
        import torch

        (batch, heads, head), one = tokens.shape, torch.ones((), device=tokens.device)
        out, logsums = torch.empty_like(tokens), torch.empty(batch, heads, device=tokens.device)
        parts = torch.empty(batch, heads, splits, head + 1, device=tokens.device)

        def call() -> Any:
            self.function(
                tokens,
                k,
                v,
                out,
                logsums,
                table,
                lengths,
                parts,
                splits,
                head**-0.5,
                page_size=PAGE,
                k_scale=one,
                v_scale=one,
            )
            return out.view(batch, heads, 1, head)

        return call


def _milliseconds(call: Callable[[], Any]) -> float:
    """The median of a few calls with a warm cache."""
    import torch

    call()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)
