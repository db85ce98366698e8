"""Calls of Liger-Kernel: norms, activations, rotary embeddings and losses, forward and backward."""

from __future__ import annotations

from typing import Any

from blocknb.bench.zoo.cases import CaseList, RandomInputs


def register(cases: CaseList) -> None:
    """Adds the cases. Raises ImportError without Liger-Kernel."""
    from liger_kernel.transformers import functional as liger

    _norms(cases, liger)
    _elementwise(cases, liger)
    _rows(cases, liger)
    _losses(cases, liger)


def _norms(cases: CaseList, liger: Any) -> None:
    import torch

    def rows(m: int, n: int, *vectors: str, dtype: str = "bfloat16", more: int = 0) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            wide = {name: r.normal(m, n, dtype=dtype, grad=True) for name in ("X", "R")[: 1 + more]}
            return wide | {name: r.normal(n, dtype=dtype, grad=True) for name in vectors}

        return make

    def rms(X: Any, W: Any) -> Any:
        return X * torch.rsqrt(X.square().mean(-1, keepdim=True) + 1e-6) * W

    cases.add(
        "rms_norm", lambda X, W: liger.liger_rms_norm(X, W, 1e-6, 0.0, "llama", False), rms,
        of_4096x4096=rows(4096, 4096, "W"), of_64x8192=rows(64, 8192, "W"), of_65536x128=rows(65536, 128, "W"),
        of_2000x3000=rows(2000, 3000, "W", dtype="float32"),
    )  # fmt: skip
    cases.add(
        "layer_norm",
        lambda X, W, B: liger.liger_layer_norm(X, W, B, 1e-6),
        lambda X, W, B: torch.nn.functional.layer_norm(X, X.shape[-1:], W, B, 1e-6),
        of_4096x4096=rows(4096, 4096, "W", "B"), of_16384x1024=rows(16384, 1024, "W", "B", dtype="float32"),
    )  # fmt: skip
    cases.add(
        "fused_add_rms_norm",
        lambda X, R, W: liger.liger_fused_add_rms_norm(X, R, W, 1e-6, in_place=False),
        lambda X, R, W: (rms(X + R, W), X + R),
        of_4096x4096=rows(4096, 4096, "W", more=1), of_256x7168=rows(256, 7168, "W", more=1),
    )  # fmt: skip
    cases.add(
        "poly_norm",
        lambda X, W, B: liger.liger_poly_norm(X, W, B, 1e-6, False),
        of_4096x4096=lambda r: {
            "X": r.normal(4096, 4096, grad=True), "W": r.normal(3, grad=True), "B": r.normal(grad=True)},
    )  # fmt: skip
    cases.add(
        "group_norm",
        lambda X, W, B: liger.liger_group_norm(X, W, B, 256, 32, 1e-5),
        lambda X, W, B: torch.nn.functional.group_norm(X, 32, W, B, 1e-5),
        of_16x256x4096=lambda r: {
            "X": r.normal(16, 256, 4096, dtype="float32", grad=True),
            "W": r.normal(256, dtype="float32", grad=True), "B": r.normal(256, dtype="float32", grad=True)},
    )  # fmt: skip
    cases.add(
        "dyt",
        lambda X, A, W, B: liger.liger_dyt(X, A, W, B),
        lambda X, A, W, B: torch.tanh(A * X) * W + B,
        of_4096x4096=lambda r: {"X": r.normal(4096, 4096, dtype="float32", grad=True),
            "A": r.normal(1, dtype="float32", grad=True), "W": r.normal(4096, dtype="float32", grad=True),
            "B": r.normal(4096, dtype="float32", grad=True)},
    )  # fmt: skip


def _elementwise(cases: CaseList, liger: Any) -> None:
    import torch

    def pair(m: int, n: int, dtype: str = "bfloat16") -> Any:
        return lambda r: {name: r.normal(m, n, dtype=dtype, grad=True) for name in ("a", "b")}

    shapes = {"of_4096x11008": pair(4096, 11008), "of_512x14336": pair(512, 14336, "float16")}
    swiglu = lambda a, b: torch.nn.functional.silu(a) * b  # noqa: E731
    geglu = lambda a, b: torch.nn.functional.gelu(a, approximate="tanh") * b  # noqa: E731
    cases.add("swiglu", liger.liger_swiglu, swiglu, **shapes)
    cases.add("geglu", liger.liger_geglu, geglu, **shapes)
    cases.add(
        "relu_squared", liger.liger_relu_squared, lambda x: x.relu().square(),
        of_4096x11008=lambda r: {"x": r.normal(4096, 11008, dtype="bfloat16", grad=True)},
    )  # fmt: skip

    def rope(b: int, t: int, heads: int, kv: int, d: int) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            angles = r.uniform(1, t, d // 2, high=6.0)
            twice = r.torch.cat((angles, angles), -1)
            q, k = (r.normal(b, h, t, d, dtype="bfloat16", grad=True) for h in (heads, kv))
            return {"q": q, "k": k, "cos": twice.cos().to(q.dtype), "sin": twice.sin().to(q.dtype)}

        return make

    cases.add(
        "rope", liger.liger_rope, of_4x2048x32x128=rope(4, 2048, 32, 8, 128), of_1x512x16x64=rope(1, 512, 16, 16, 64)
    )


def _rows(cases: CaseList, liger: Any) -> None:
    def rows(m: int, n: int, dtype: str) -> Any:
        return lambda r: {"x": r.normal(m, n, dtype=dtype, grad=True)}

    cases.add(
        "softmax", liger.liger_softmax, lambda x: x.softmax(-1),
        of_4096x4096=rows(4096, 4096, "bfloat16"), of_1024x32000=rows(1024, 32000, "float32"),
    )  # fmt: skip
    cases.add(
        "sparsemax",
        liger.liger_sparsemax,
        of_4096x1024=rows(4096, 1024, "float32"),
        of_512x8192=rows(512, 8192, "float32"),
    )
    cases.add(
        "multi_token_attention",
        lambda scores, weight: liger.liger_multi_token_attention(scores, weight, None, 1, 1),
        of_2x4x256=lambda r: {
            "scores": r.normal(2, 4, 256, 256, dtype="float32", grad=True),
            "weight": r.normal(4, 4, 3, 3, dtype="float32", grad=True)},
    )  # fmt: skip


def _losses(cases: CaseList, liger: Any) -> None:
    import torch

    def labelled(m: int, n: int, dtype: str = "bfloat16") -> Any:
        return lambda r: {"x": r.normal(m, n, dtype=dtype, grad=True), "y": r.integers(0, n, m)}

    cases.add(
        "cross_entropy", liger.liger_cross_entropy, lambda x, y: torch.nn.functional.cross_entropy(x, y),
        of_4096x32000=labelled(4096, 32000), of_512x128256=labelled(512, 128256),
    )  # fmt: skip
    cases.add(
        "cross_entropy_smooth",
        lambda x, y: liger.liger_cross_entropy(x, y, label_smoothing=0.1, lse_square_scale=1e-4, softcap=30.0),
        of_2048x50257=labelled(2048, 50257),
    )  # fmt: skip

    def linear(t: int, h: int, v: int) -> Any:
        return lambda r: {
            "x": r.normal(t, h, dtype="bfloat16", grad=True),
            "w": r.normal(v, h, dtype="bfloat16", scale=h**-0.5, grad=True),
            "y": r.integers(0, v, t),
        }

    cases.add(
        "fused_linear_cross_entropy",
        liger.liger_fused_linear_cross_entropy,
        of_2048x2048x32000=linear(2048, 2048, 32000),
    )

    def two(m: int, n: int) -> Any:
        return lambda r: {
            "x": r.normal(m, n, dtype="float32").log_softmax(-1).requires_grad_(True),
            "y": r.normal(m, n, dtype="float32").softmax(-1),
        }

    def logs(m: int, n: int) -> Any:
        return lambda r: {
            "x": r.normal(m, n, dtype="float32").log_softmax(-1).requires_grad_(True),
            "y": r.normal(m, n, dtype="float32").log_softmax(-1),
        }

    kl = lambda x, y: torch.nn.functional.kl_div(x, y, reduction="mean")  # noqa: E731
    cases.add("kl_div", liger.liger_kl_div, kl, of_2048x32000=two(2048, 32000))
    cases.add("jsd", liger.liger_jsd, of_2048x32000=logs(2048, 32000))
    probabilities = lambda r: {  # noqa: E731
        "x": r.normal(2048, 32000, dtype="float32").softmax(-1).requires_grad_(True),
        "y": r.normal(2048, 32000, dtype="float32").softmax(-1),
    }
    cases.add("tvd", liger.liger_tvd, of_2048x32000=probabilities)
