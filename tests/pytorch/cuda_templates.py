"""Functions whose kernels Inductor makes from templates for CUDA: a table of names, functions, arguments and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

#: Inductor chooses among its Triton templates only.
MAX_AUTOTUNE = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "max_autotune_conv_backends": "TRITON"}
PERSISTENT_TMA = {
    "triton.enable_persistent_tma_matmul": True,
    "test_configs.autotune_choice_name_regex": "persistent_tma",
}
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


@dataclass(frozen=True)
class TemplateCase:
    """A function of tensors with these shapes and one dtype. With `backward`, its gradients are compiled, too."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = HALF
    options: dict[str, Any] = field(default_factory=dict)
    backward: bool = False

    def arguments(self) -> list[Any]:
        random = torch.Generator().manual_seed(0)
        if self.dtype == torch.int8:
            return [torch.randint(-9, 9, shape, dtype=self.dtype, generator=random) for shape in self.shapes]
        made = [torch.randn(shape, generator=random).to(self.dtype) for shape in self.shapes]
        return [value.requires_grad_() for value in made] if self.backward else made


A, B, BIAS = (256, 128), (128, 512), (512,)
BATCH_A, BATCH_B = (4, 96, 128), (4, 128, 64)
PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mm": (lambda a, b: a @ b, (A, B)),
    "mm_relu": (lambda a, b: (a @ b).relu(), (A, B)),
    "mm_of_transposes": (lambda a, b: a.t() @ b.t(), ((128, 256), (512, 128))),
    "mm_of_ragged_sizes": (lambda a, b: a @ b, ((200, 72), (72, 136))),
    "addmm_gelu": (lambda c, a, b: F.gelu(torch.addmm(c, a, b)), (BIAS, A, B)),
    "linear_silu": (lambda x, w: F.silu(F.linear(x, w)) * 2, (A, (512, 128))),
    "bmm": (lambda a, b: torch.bmm(a, b), (BATCH_A, BATCH_B)),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b), ((4, 96, 64), BATCH_A, BATCH_B)),
}
IMAGE = (2, 32, 14, 14)
CONVOLUTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, (64, 32, 3, 3))),
    "conv2d_strided_relu": (lambda x, w, b: F.conv2d(x, w, b, stride=2).relu(), (IMAGE, (48, 32, 3, 3), (48,))),
    "conv2d_1x1": (lambda x, w: F.conv2d(x, w), (IMAGE, (64, 32, 1, 1))),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, groups=2), (IMAGE, (64, 16, 3, 3))),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), ((1, 16, 6, 8, 8), (32, 16, 3, 3, 3))),
}
QKV = ((1, 2, 256, 64),) * 3
DECODING = ((1, 8, 1, 64), (1, 8, 1024, 64), (1, 8, 1024, 64))
GROUPED = ((1, 8, 256, 64), (1, 2, 256, 64), (1, 2, 256, 64))


def _bias(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (q - k) * 0.01


def _soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(score / 20)


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def _masked(q: Any, k: Any, v: Any) -> Any:
    mask = create_block_mask(_causal, None, None, q.shape[-2], k.shape[-2], device=q.device)
    return flex_attention(q, k, v, block_mask=mask)


ATTENTION: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "flex": (lambda q, k, v: flex_attention(q, k, v), QKV),
    "flex_bias": (lambda q, k, v: flex_attention(q, k, v, _bias), QKV),
    "flex_soft_cap": (lambda q, k, v: flex_attention(q, k, v, _soft_cap), QKV),
    "flex_causal": (_masked, QKV),
    "flex_grouped": (lambda q, k, v: flex_attention(q, k, v, enable_gqa=True), GROUPED),
}
TEMPLATES: dict[str, TemplateCase] = {
    **{
        f"{name}_{str(dtype)[6:]}": TemplateCase(function, shapes, dtype)
        for name, (function, shapes) in PRODUCTS.items()
        for dtype in (HALF, BRAIN, SINGLE)
    },
    **{
        f"{name}_{str(dtype)[6:]}": TemplateCase(function, shapes, dtype)
        for name, (function, shapes) in CONVOLUTIONS.items()
        for dtype in (HALF, SINGLE)
    },
    "int8_mm": TemplateCase(torch._int_mm, (A, B), torch.int8),
    "int8_mm_scaled": TemplateCase(lambda a, b: torch._int_mm(a, b).float() * 0.125, (A, B), torch.int8),
    "persistent_tma": TemplateCase(lambda a, b: a @ b, (A, B), HALF, PERSISTENT_TMA),
    "persistent_tma_bfloat16": TemplateCase(lambda a, b: (a @ b).relu(), (A, B), BRAIN, PERSISTENT_TMA),
    "persistent_tma_addmm": TemplateCase(lambda c, a, b: torch.addmm(c, a, b), (BIAS, A, B), HALF, PERSISTENT_TMA),
    **{name: TemplateCase(function, shapes) for name, (function, shapes) in ATTENTION.items()},
    **{
        f"{name}_backward": TemplateCase(function, shapes, BRAIN, backward=True)
        for name, (function, shapes) in ATTENTION.items()
    },
    "decoding": TemplateCase(ATTENTION["flex"][0], DECODING),
    "decoding_bias": TemplateCase(ATTENTION["flex_bias"][0], DECODING),
    "decoding_grouped": TemplateCase(ATTENTION["flex_grouped"][0], ((1, 8, 1, 64), (1, 2, 1024, 64), (1, 2, 1024, 64))),
}
