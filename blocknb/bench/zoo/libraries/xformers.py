"""Calls of xformers: attention with split keys, RMS norm, rotary embeddings, gathers, and products of tiles."""

from __future__ import annotations

from typing import Any

from blocknb.bench.zoo.cases import CaseList, RandomInputs


def register(cases: CaseList) -> None:
    """Adds the cases. Raises ImportError without xformers."""
    _rows(cases)
    _attention(cases)


def _rows(cases: CaseList) -> None:
    import torch
    from xformers.ops.indexing import index_select_cat, scaled_index_add
    from xformers.ops.rmsnorm import rms_norm, rms_norm_add
    from xformers.ops.tiled_matmul import tiled_matmul

    def rows(m: int, n: int, *names: str) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            return {name: r.normal(m, n, dtype="bfloat16") for name in names} | {"w": r.normal(n, dtype="bfloat16")}

        return make

    def exact(x: Any, w: Any) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)

    cases.add("rms_norm", rms_norm, exact, of_4096x4096=rows(4096, 4096, "x"), of_32x8192=rows(32, 8192, "x"))
    cases.add(
        "rms_norm_add", rms_norm_add, lambda x, y, w: exact(x + y, w),
        of_4096x4096=rows(4096, 4096, "x", "y"), of_32x8192=rows(32, 8192, "x", "y"),
    )  # fmt: skip

    def some(r: RandomInputs, count: int, kept: int) -> Any:
        return r.torch.randperm(count, generator=r.generator, device=r.device)[:kept]

    cases.add(
        "index_select_cat", lambda a, b, i, j: index_select_cat([a, b], [i, j]),
        of_8192x1024=lambda r: {
            "a": r.normal(8192, 1024, dtype="float16", grad=True), "b": r.normal(4096, 1536, dtype="float16", grad=True),
            "i": some(r, 8192, 6000), "j": some(r, 4096, 3000)},
    )  # fmt: skip
    cases.add(
        "scaled_index_add",
        lambda x, i, s, w: scaled_index_add(x, i, s, w, 0.5),
        of_64x256x1024=lambda r: {
            "x": r.normal(64, 256, 1024, dtype="float16"), "i": some(r, 64, 48),
            "s": r.normal(48, 256, 1024, dtype="float16"), "w": r.normal(1024, dtype="float16")},
    )  # fmt: skip
    cases.add(
        "tiled_matmul",
        lambda a, b, c, d: tiled_matmul([[a, b]], [[c], [d]])[0][0],
        lambda a, b, c, d: a @ c + b @ d,
        of_2048x2048x2x1024=lambda r: {name: r.normal(2048, 1024, dtype="float16") for name in "ab"}
        | {name: r.normal(1024, 2048, dtype="float16") for name in "cd"},
    )  # fmt: skip


def _attention(cases: CaseList) -> None:
    from xformers.ops import fmha
    from xformers.ops.fmha.attn_bias import BlockDiagonalCausalWithOffsetPaddedKeysMask as Mask
    from xformers.ops.rope_padded import rope_padded

    def decoding(b: int, keys: int, heads: int, groups: int, d: int) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            q = r.normal(b, 1, groups, heads, d, dtype="bfloat16")
            k, v = (r.normal(b, keys, groups, 1, d, dtype="bfloat16").expand(-1, -1, -1, heads, -1) for _ in "kv")
            return {"q": q, "k": k, "v": v}

        return make

    def padded(r: RandomInputs, b: int, keys: int) -> Any:
        return Mask.from_seqlens(q_seqlen=[1] * b, kv_seqlen=[keys - 7 * i for i in range(b)], kv_padding=keys)

    cases.add(
        "splitk_attention",
        lambda q, k, v: fmha.memory_efficient_attention_forward(q, k, v, op=fmha.triton_splitk.FwOp),
        of_1x8192x8x8x128=decoding(1, 8192, 8, 8, 128), of_16x2048x8x4x128=decoding(16, 2048, 8, 4, 128),
        of_4x4096x1x16x64=decoding(4, 4096, 1, 16, 64),
    )  # fmt: skip
    cases.add(
        "rope_padded",
        lambda q, k, v, ck, cv, bias: rope_padded(q, k, v, ck, cv, bias),
        of_16x1x32x128=lambda r: {
            "q": r.normal(1, 16, 32, 128, dtype="bfloat16"), "k": r.normal(1, 16, 8, 128, dtype="bfloat16"),
            "v": r.normal(1, 16, 8, 128, dtype="bfloat16"), "ck": r.normal(1, 16 * 1024, 8, 128, dtype="bfloat16"),
            "cv": r.normal(1, 16 * 1024, 8, 128, dtype="bfloat16"), "bias": padded(r, 16, 1024)},
    )  # fmt: skip
