"""Calls of flash-linear-attention: linear attention in chunks and by recurrence, delta rules, and attention, forward and backward."""

from __future__ import annotations

from typing import Any

from blocknb.bench.zoo.cases import CaseList, RandomInputs

SIZES = {"of_4x2048x8x64": (4, 2048, 8, 64), "of_2x4096x4x128": (2, 4096, 4, 128)}  # batch, length, heads, head size


def register(cases: CaseList) -> None:
    """Adds the cases. Raises ImportError without flash-linear-attention."""
    from fla import ops

    _gated(cases, ops)
    _delta(cases, ops)
    _attention(cases, ops)
    _recurrent(cases, ops)
    _modules(cases)


def _heads(*names: str, dtype: str = "bfloat16", sizes: tuple[int, ...] = (), **more: Any) -> Any:
    """Inputs [batch, length, heads, head size] by name, then those of `more(random, b, t, h, d)`."""

    def make(r: RandomInputs) -> dict[str, Any]:
        given = {name: r.normal(*sizes, dtype=dtype, grad=True) for name in names}
        return given | {name: function(r, *sizes) for name, function in more.items()}

    return make


def _all_sizes(*names: str, **more: Any) -> dict[str, Any]:
    return {shape: _heads(*names, sizes=sizes, **more) for shape, sizes in SIZES.items()}


def _unit(r: RandomInputs, *shape: int) -> Any:
    """Rows of length one."""
    rows = r.normal(*shape, dtype="float32")
    return (rows / rows.norm(dim=-1, keepdim=True)).to(r.torch.bfloat16).requires_grad_(True)


def _gate(r: RandomInputs, b: int, t: int, h: int, d: int) -> Any:
    """The logarithm of a gate for each element of a head."""
    return r.torch.nn.functional.logsigmoid(r.normal(b, t, h, d, dtype="float32")).div(16).requires_grad_(True)


def _head_gate(r: RandomInputs, b: int, t: int, h: int, d: int) -> Any:
    """The logarithm of a gate for each head."""
    return r.torch.nn.functional.logsigmoid(r.normal(b, t, h, dtype="float32")).div(16).requires_grad_(True)


def _beta(r: RandomInputs, b: int, t: int, h: int, d: int) -> Any:
    return r.uniform(b, t, h, dtype="bfloat16", grad=True)


def _detached(make: Any) -> Any:
    """The inputs of `make` without gradients. The library refuses the backward pass of gated rules on Hopper with Triton 3.4 to 3.7."""

    def made(r: RandomInputs) -> dict[str, Any]:
        return {name: value.detach() for name, value in make(r).items()}

    return made


def _gated(cases: CaseList, ops: Any) -> None:
    cases.add("chunk_gla", lambda q, k, v, g: ops.chunk_gla(q, k, v, g)[0], **_all_sizes("q", "k", "v", g=_gate))
    cases.add(
        "chunk_simple_gla",
        lambda q, k, v, g: ops.chunk_simple_gla(q, k, v, g)[0],
        **{shape: _detached(make) for shape, make in _all_sizes("q", "k", "v", g=_head_gate).items()},
    )
    cases.add("chunk_retention", lambda q, k, v: ops.chunk_retention(q, k, v)[0], **_all_sizes("q", "k", "v"))
    cases.add(
        "fused_chunk_simple_gla",
        lambda q, k, v, g: ops.fused_chunk_simple_gla(q, k, v, g)[0],
        **_all_sizes("q", "k", "v", g=_head_gate),
    )
    cases.add("chunk_linear_attn", lambda q, k, v: ops.chunk_linear_attn(q, k, v)[0], **_all_sizes("q", "k", "v"))
    cases.add(
        "chunk_rwkv6",
        lambda r, k, v, w, u: ops.chunk_rwkv6(r, k, v, w, u)[0],
        of_4x2048x8x64=_heads(
            "r", "k", "v", sizes=SIZES["of_4x2048x8x64"], w=_gate,
            u=lambda r, b, t, h, d: r.normal(h, d, dtype="bfloat16", grad=True)),
    )  # fmt: skip
    slots = lambda r, b, t, h, d: r.normal(b, t, h, 64, dtype="bfloat16", grad=True)  # noqa: E731
    cases.add("chunk_abc", lambda q, k, v, s: ops.chunk_abc(q, k, v, s)[0], **_all_sizes("q", "k", "v", s=slots))
    cases.add("chunk_gsa", lambda q, k, v, s: ops.chunk_gsa(q, k, v, s)[0], **_all_sizes("q", "k", "v", s=slots))


def _delta(cases: CaseList, ops: Any) -> None:
    cases.add(
        "chunk_delta_rule",
        lambda q, v, k, beta: ops.chunk_delta_rule(q, k, v, beta)[0],
        **_all_sizes("q", "v", k=_unit, beta=_beta),
    )
    cases.add(
        "chunk_gated_delta_rule",
        lambda q, v, k, g, beta: ops.chunk_gated_delta_rule(q, k, v, g, beta)[0],
        **{shape: _detached(make) for shape, make in _all_sizes("q", "v", k=_unit, g=_head_gate, beta=_beta).items()},
    )
    cases.add(
        "chunk_kda",
        lambda q, v, k, g, beta: ops.chunk_kda(q, k, v, g, beta)[0],
        **_all_sizes("q", "v", k=_unit, g=_gate, beta=_beta),
    )
    cases.add(
        "chunk_comba",
        lambda q, v, k, p, g, beta: ops.chunk_comba(q, k, v, p, g, beta)[0],
        of_4x2048x8x64=_detached(
            _heads("q", "v", sizes=SIZES["of_4x2048x8x64"], k=_unit, p=_unit, g=_head_gate, beta=_beta)
        ),
    )
    small = (2, 2048, 8, 64)
    direction = lambda r, *shape: _unit(r, *shape)  # noqa: E731
    cases.add(
        "chunk_dplr_delta_rule",
        lambda q, v, k, a, b, gk: ops.chunk_dplr_delta_rule(q, k, v, a, b, gk)[0],
        of_2x2048x8x64=_heads("q", "v", sizes=small, k=_unit, a=direction, b=direction, gk=_gate),
    )
    cases.add(
        "chunk_rwkv7",
        lambda r, v, k, a, b, w: ops.chunk_rwkv7(r, w, k, v, a, b)[0],
        of_2x2048x8x64=_heads("r", "v", sizes=small, k=_unit, a=direction, b=direction, w=_gate),
    )
    cases.add(
        "chunk_mesa_net",
        lambda q, v, k, g, beta, lamb: ops.chunk_mesa_net(q, k, v, g, beta, lamb, max_CG_iteration=8)[0],
        of_2x2048x8x64=_heads(
            "q", "v", sizes=small, k=_unit, g=_head_gate, beta=_beta,
            lamb=lambda r, b, t, h, d: r.uniform(h, d, low=0.25, high=1.0, grad=True)),
    )  # fmt: skip


def _attention(cases: CaseList, ops: Any) -> None:
    cases.add("parallel_attn", lambda q, k, v: ops.parallel_attn(q, k, v), **_all_sizes("q", "k", "v"))
    cases.add(
        "parallel_forgetting_attn",
        lambda q, k, v, g: ops.parallel_forgetting_attn(q, k, v, g),
        **_all_sizes("q", "k", "v", g=_head_gate),
    )
    one = {"of_4x2048x8x64": SIZES["of_4x2048x8x64"]}
    for name, sizes in one.items():
        cases.add(
            "parallel_path_attn",
            lambda q, k, v, w, beta: ops.parallel_path_attn(q, k, v, w, beta)[0],
            **{
                name: _heads(
                    "q",
                    "k",
                    "v",
                    sizes=sizes,
                    w=lambda *a: _unit(*a).detach().float().requires_grad_(True),
                    beta=lambda *a: _beta(*a).detach().float().requires_grad_(True),
                )
            },
        )
        cases.add(
            "parallel_stickbreaking_attn",
            lambda q, k, v: ops.parallel_stickbreaking_attn(q, k, v)[0],
            **{name: _heads("q", "k", "v", sizes=sizes)},
        )
        cases.add(
            "parallel_retention", lambda q, k, v: ops.parallel_retention(q, k, v)[0],
            **{name: _heads("q", "k", "v", sizes=sizes)},
        )  # fmt: skip
    cases.add(
        "parallel_based", lambda q, k, v: ops.parallel_based(q, k, v),
        of_4x2048x8x16=lambda r: {
            "q": r.normal(4, 2048, 8, 16, dtype="bfloat16", grad=True),
            "k": r.normal(4, 2048, 8, 16, dtype="bfloat16", grad=True),
            "v": r.normal(4, 2048, 8, 128, dtype="bfloat16", grad=True)},
    )  # fmt: skip
    cases.add(
        "parallel_nsa",
        lambda q, k, v, g_cmp, g_slc: ops.parallel_nsa(q, k, v, g_cmp, g_slc, block_counts=8, block_size=64),
        of_1x2048x32x64=lambda r: {
            "q": r.normal(1, 2048, 32, 64, dtype="bfloat16", grad=True),
            "k": r.normal(1, 2048, 2, 64, dtype="bfloat16", grad=True),
            "v": r.normal(1, 2048, 2, 64, dtype="bfloat16", grad=True),
            "g_cmp": r.uniform(1, 2048, 32, dtype="bfloat16", grad=True),
            "g_slc": r.uniform(1, 2048, 32, dtype="bfloat16", grad=True)},
    )  # fmt: skip


def _recurrent(cases: CaseList, ops: Any) -> None:
    sizes = (4, 512, 8, 64)
    cases.add(
        "fused_recurrent_gla", lambda q, k, v, g: ops.fused_recurrent_gla(q, k, v, g)[0],
        of_4x512x8x64=_heads("q", "k", "v", sizes=sizes, g=_gate),
    )  # fmt: skip
    cases.add(
        "fused_recurrent_simple_gla", lambda q, k, v, g: ops.fused_recurrent_simple_gla(q, k, v, g)[0],
        of_4x512x8x64=_heads("q", "k", "v", sizes=sizes, g=_head_gate),
    )  # fmt: skip
    cases.add(
        "fused_recurrent_delta_rule", lambda q, v, k, beta: ops.fused_recurrent_delta_rule(q, k, v, beta)[0],
        of_4x512x8x64=_heads("q", "v", sizes=sizes, k=_unit, beta=_beta),
    )  # fmt: skip
    cases.add(
        "fused_recurrent_hgrn", lambda x, g: ops.fused_recurrent_hgrn(x, g)[0],
        of_8x2048x1024=lambda r: {
            "x": r.normal(8, 2048, 1024, dtype="bfloat16", grad=True),
            "g": r.torch.nn.functional.logsigmoid(r.normal(8, 2048, 1024)).requires_grad_(True)},
    )  # fmt: skip
    plain = lambda name: lambda r, b, t, h, d: r.normal(b, t, h, d, dtype="bfloat16")  # noqa: E731
    cases.add(
        "fused_recurrent_gated_delta_rule",
        lambda q, k, v, g, beta: ops.fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta)[0],
        of_64x1x16x128=_heads(
            sizes=(64, 1, 16, 128), q=plain("q"), k=lambda *a: _unit(*a).detach(), v=plain("v"),
            g=lambda *a: _head_gate(*a).detach(), beta=lambda *a: _beta(*a).detach()),
    )  # fmt: skip


def _modules(cases: CaseList) -> None:
    from fla.modules import convolution, l2norm, layernorm
    from fla.modules.fused_norm_gate import rms_norm_gated

    def rows(m: int, n: int, *vectors: str) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            return {"x": r.normal(m, n, dtype="bfloat16", grad=True)} | {
                name: r.normal(n, dtype="bfloat16", grad=True) for name in vectors
            }

        return make

    cases.add("layer_norm", lambda x, w, b: layernorm.layer_norm(x, w, b), of_8192x2048=rows(8192, 2048, "w", "b"))
    cases.add("rms_norm", lambda x, w: layernorm.rms_norm(x, w, None), of_8192x2048=rows(8192, 2048, "w"))
    cases.add(
        "rms_norm_gated", lambda x, g, w: rms_norm_gated(x, g, w, None),
        of_65536x128=lambda r: {
            "x": r.normal(65536, 128, dtype="bfloat16", grad=True), "g": r.normal(65536, 128, dtype="bfloat16", grad=True),
            "w": r.normal(128, dtype="bfloat16", grad=True)},
    )  # fmt: skip
    cases.add("l2norm", lambda x: l2norm.l2norm(x), of_65536x128=rows(65536, 128))
    cases.add(
        "causal_conv1d",
        lambda x, w, b: convolution.causal_conv1d(x, w, b, activation="silu")[0],
        of_4x4096x1024=lambda r: {
            "x": r.normal(4, 4096, 1024, dtype="bfloat16", grad=True), "w": r.normal(1024, 4, dtype="bfloat16", grad=True),
            "b": r.normal(1024, dtype="bfloat16", grad=True)},
    )  # fmt: skip
