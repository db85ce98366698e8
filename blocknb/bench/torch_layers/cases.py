"""The layers that blocknb.torch.nn and Liger-Kernel both have, with realistic sizes, and their formulas for float64.

A `LayerCase` makes its tensors from a generator and sizes. `ours` and `exact` take the tensors by name; `liger` imports Liger-Kernel and
returns such a function. All three return one tensor or a tuple. The sizes are those of Llama, Gemma, GPT and a diffusion model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tensors = dict[str, Any]


class LayerInputs:
    """Makes random tensors on a device from a seed; floating ones are bf16 unless a dtype is given."""

    def __init__(self, device: str, seed: int) -> None:
        import torch

        self.torch, self.device = torch, device
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Any:
        found = self.torch.randn(shape, generator=self.generator, device=self.device, dtype=self.torch.float32)
        return found.mul_(scale).add_(shift).to(self.torch.bfloat16)

    def integers(self, high: int, *shape: int) -> Any:
        return self.torch.randint(high, shape, generator=self.generator, device=self.device)

    def logarithms(self, *shape: int) -> Any:
        """The logarithms of probabilities along the last axis."""
        return self.normal(*shape).log_softmax(-1)


@dataclass(frozen=True)
class LayerCase:
    """One layer. `sizes` are measured on a GPU, `small` is for tests. `graded` names the tensors whose gradients are wanted.
    `memory`: the peak memory is compared, too."""

    name: str
    sizes: tuple[tuple[int, ...], ...]
    small: tuple[int, ...]
    make: Callable[..., Tensors]
    ours: Callable[..., Any]
    liger: Callable[[], Callable[..., Any]]
    exact: Callable[..., Any]
    graded: tuple[str, ...]
    memory: bool = False
    limit: float = 0.02  # of the error of outputs and gradients against float64, relative in norm; bf16 rounds by 0.002


def layer_cases() -> list[LayerCase]:
    """All cases, in the order in which they are measured. Raises ImportError without torch."""
    return [*_norms(), *_elementwise(), *_losses(), *_linear_losses(), *_tables()]


def _rms(x: Any, weight: Any) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def _liger(name: str, **keywords: Any) -> Callable[[], Callable[..., Any]]:
    """A maker of Liger's function `name`."""

    def make() -> Callable[..., Any]:
        from liger_kernel.transformers import functional

        function = getattr(functional, name)
        return lambda *args: function(*args, **keywords)

    return make


def _by_name(make: Callable[[], Callable[..., Any]], *names: str) -> Callable[[], Callable[..., Any]]:
    """The function of positional arguments as one that takes tensors by name."""

    def made() -> Callable[..., Any]:
        function = make()
        return lambda **tensors: function(*[tensors[name] for name in names])

    return made


def _norms() -> list[LayerCase]:
    import torch
    from torch.nn import functional as F

    from blocknb.torch import nn

    def normed(r: LayerInputs, m: int, n: int) -> Tensors:
        return {"x": r.normal(m, n), "weight": r.normal(n, scale=0.1, shift=1.0)}

    def gemma(r: LayerInputs, m: int, n: int) -> Tensors:
        return {"x": r.normal(m, n), "weight": r.normal(n, scale=0.1)}

    def liger_group_norm() -> Callable[..., Any]:
        function = _liger("liger_group_norm")()
        return lambda x, weight, bias: function(x, weight, bias, x.shape[1], 32, 1e-5)

    return [
        LayerCase(
            "RMSNorm (llama)", ((8192, 4096), (8192, 2048)), (6, 40), normed,
            lambda x, weight: nn.rms_norm(x, weight, 1e-6, casting="llama"),
            _by_name(_liger("liger_rms_norm", eps=1e-6, offset=0.0, casting_mode="llama"), "x", "weight"),
            _rms, ("x", "weight"),
        ),
        LayerCase(
            "RMSNorm (gemma)", ((8192, 3072),), (6, 40), gemma,
            lambda x, weight: nn.rms_norm(x, weight, 1e-6, casting="gemma"),
            _by_name(_liger("liger_rms_norm", eps=1e-6, offset=1.0, casting_mode="gemma"), "x", "weight"),
            lambda x, weight: _rms(x, 1 + weight), ("x", "weight"),
        ),
        LayerCase(
            "residual + RMSNorm", ((8192, 4096),), (6, 40),
            lambda r, m, n: {**normed(r, m, n), "residual": r.normal(m, n)},
            lambda x, residual, weight: nn.add_rms_norm(x, residual, weight, 1e-6, casting="llama"),
            _by_name(_liger("liger_fused_add_rms_norm", eps=1e-6), "x", "residual", "weight"),
            lambda x, residual, weight: (_rms(x + residual, weight), x + residual), ("x", "residual", "weight"),
        ),
        LayerCase(
            "LayerNorm", ((8192, 4096),), (6, 40),
            lambda r, m, n: {**normed(r, m, n), "bias": r.normal(n, scale=0.1)},
            lambda x, weight, bias: nn.layer_norm(x, weight, bias, 1e-5),
            _by_name(_liger("liger_layer_norm", eps=1e-5), "x", "weight", "bias"),
            lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5), ("x", "weight", "bias"),
        ),
        LayerCase(
            "GroupNorm, 32 groups", ((16, 512, 4096),), (2, 64, 9),
            lambda r, m, c, s: {"x": r.normal(m, c, s), "weight": r.normal(c, scale=0.1, shift=1.0), "bias": r.normal(c)},
            lambda x, weight, bias: nn.group_norm(x, 32, weight, bias, 1e-5),
            liger_group_norm,
            lambda x, weight, bias: torch.nn.functional.group_norm(x, 32, weight, bias, 1e-5), ("x", "weight", "bias"),
        ),
    ]  # fmt: skip


def _elementwise() -> list[LayerCase]:
    import torch
    from torch.nn import functional as F

    from blocknb.torch import nn

    def pair(r: LayerInputs, m: int, n: int) -> Tensors:
        return {"gate": r.normal(m, n), "up": r.normal(m, n)}

    def rotary(r: LayerInputs, batch: int, positions: int, heads: int, kv: int, width: int) -> Tensors:
        angles = torch.arange(positions, device=r.device)[:, None] * 1e4 ** -torch.linspace(0, 1, width // 2 + 1)[
            :-1
        ].to(r.device)
        twice = torch.cat((angles, angles), -1)[None]
        q, k = (r.normal(batch, positions, h, width).transpose(1, 2) for h in (heads, kv))
        return {"q": q, "k": k, "cos": twice.cos().bfloat16(), "sin": twice.sin().bfloat16()}

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]

    return [
        LayerCase(
            "rotary embedding", ((4, 2048, 32, 8, 128),), (2, 5, 4, 2, 16), rotary,
            nn.rotary_embedding, _by_name(_liger("liger_rope"), "q", "k", "cos", "sin"),
            lambda q, k, cos, sin: (rotated(q, cos, sin), rotated(k, cos, sin)), ("q", "k"),
        ),
        LayerCase(
            "SwiGLU", ((8192, 14336),), (6, 40), pair, nn.swiglu,
            _by_name(_liger("liger_swiglu"), "gate", "up"), lambda gate, up: F.silu(gate) * up, ("gate", "up"),
        ),
        LayerCase(
            "GEGLU (tanh)", ((8192, 16384),), (6, 40), pair, lambda gate, up: nn.geglu(gate, up, "tanh"),
            _by_name(_liger("liger_geglu"), "gate", "up"),
            lambda gate, up: F.gelu(gate, approximate="tanh") * up, ("gate", "up"),
        ),
    ]  # fmt: skip


def _losses() -> list[LayerCase]:
    from torch.nn import functional as F

    from blocknb.torch import nn

    def labelled(r: LayerInputs, m: int, n: int) -> Tensors:
        return {"logits": r.normal(m, n), "target": r.integers(n, m)}

    def distributions(r: LayerInputs, m: int, n: int) -> Tensors:
        return {"input": r.logarithms(m, n), "target": r.logarithms(m, n)}

    def mixed(input: Any, target: Any) -> Any:
        p, q = target.exp(), input.exp()
        middle = ((p + q) / 2).log()
        return (p * (target - middle) + q * (input - middle)).sum() / 2 / input.shape[0]

    return [
        LayerCase(
            "cross entropy", ((8192, 32000), (4096, 128256)), (6, 50), labelled,
            nn.cross_entropy, _by_name(_liger("liger_cross_entropy"), "logits", "target"),
            lambda logits, target: F.cross_entropy(logits, target), ("logits",),
        ),
        LayerCase(
            "KL divergence", ((4096, 32000),), (6, 50), distributions,
            lambda input, target: nn.kl_div(input, target, "batchmean", log_target=True),
            _by_name(_liger("liger_kl_div", reduction="batchmean", log_target=True), "input", "target"),
            lambda input, target: F.kl_div(input, target, reduction="batchmean", log_target=True), ("input",),
        ),
        LayerCase(
            "JSD", ((4096, 32000),), (6, 50), distributions, nn.jsd,
            _by_name(_liger("liger_jsd"), "input", "target"), mixed, ("input",),
        ),
    ]  # fmt: skip


def _linear_losses() -> list[LayerCase]:
    import torch
    from torch.nn import functional as F

    from blocknb.torch import nn

    def head(r: LayerInputs, m: int, h: int, v: int) -> Tensors:
        return {"x": r.normal(m, h), "weight": r.normal(v, h, scale=h**-0.5), "target": r.integers(v, m)}

    def preference(r: LayerInputs, answers: int, tokens: int, h: int, v: int) -> Tensors:
        x, weight = r.normal(answers, tokens, h), r.normal(v, h, scale=h**-0.5)
        return {
            "x": x, "weight": weight, "target": r.integers(v, answers, tokens),
            "ref_x": x + r.normal(answers, tokens, h, scale=0.01), "ref_weight": weight.clone(),
        }  # fmt: skip

    def logps(x: Any, weight: Any, target: Any) -> Any:
        logarithms = (x @ weight.t()).log_softmax(-1)
        return logarithms.gather(-1, target[..., None])[..., 0].sum(-1)

    def dpo(x: Any, weight: Any, target: Any, ref_x: Any, ref_weight: Any) -> Any:
        chosen, rejected = logps(x, weight, target).chunk(2)
        with torch.no_grad():
            ref_chosen, ref_rejected = logps(ref_x, ref_weight, target).chunk(2)
        return -F.logsigmoid(0.1 * (chosen - ref_chosen - rejected + ref_rejected)).mean()

    def liger_dpo() -> Callable[..., Any]:
        from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss

        loss = LigerFusedLinearDPOLoss(beta=0.1)
        return lambda x, weight, target, ref_x, ref_weight: loss(weight, x, target, None, ref_x, ref_weight, None)[0]

    return [
        LayerCase(
            "fused linear cross entropy", ((8192, 2048, 128256), (8192, 4096, 32000)), (6, 16, 50), head,
            nn.linear_cross_entropy, _by_name(_liger("liger_fused_linear_cross_entropy"), "x", "weight", "target"),
            lambda x, weight, target: F.cross_entropy(x @ weight.t(), target), ("x", "weight"), memory=True,
        ),
        LayerCase(
            "fused linear DPO", ((8, 1024, 2048, 32000),), (4, 3, 16, 50), preference,
            lambda x, weight, target, ref_x, ref_weight: nn.linear_dpo_loss(x, weight, target, ref_x, ref_weight)[0],
            liger_dpo, dpo, ("x", "weight"), memory=True,
            limit=0.1,  # logits are rounded to bf16, and the factor of all gradients is a sum over an answer's tokens
        ),
    ]  # fmt: skip


def _tables() -> list[LayerCase]:
    from torch.nn import functional as F

    from blocknb.torch import nn

    def table(r: LayerInputs, m: int, v: int, n: int) -> Tensors:
        return {"ids": r.integers(v, m), "weight": r.normal(v, n)}

    def liger() -> Callable[..., Any]:
        from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction

        return lambda ids, weight: LigerEmbeddingFunction.apply(weight, ids)

    return [
        LayerCase(
            "embedding", ((8192, 128256, 2048),), (9, 5, 40), table,
            lambda ids, weight: nn.embedding(ids, weight), liger,
            lambda ids, weight: F.embedding(ids, weight), ("weight",),
        )
    ]  # fmt: skip
