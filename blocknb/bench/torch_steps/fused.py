"""`blocknb bench torch_fused`: functions that Inductor fuses into one or two kernels, in bf16, at sizes of several times the L2 cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blocknb.bench.torch_steps.definition import RandomTensors, Tensors, TorchStep

EPS = 1e-5
CLASSES = 32768
#: Shapes by benchmark: those for a GPU, and a tiny one for a CPU.
SHAPES: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
    "residual_rms_norm": (((16384, 4096), (8192, 8192)), (37, 96)),
    "softmax": (((16384, 4096), (4096, CLASSES)), (37, 96)),
    "cross_entropy": (((8192, CLASSES),), (23, 130)),
    "cross_entropy_step": (((8192, CLASSES),), (23, 130)),
    "layer_norm_backward": (((16384, 4096), (32768, 1024)), (37, 96)),
    "gelu_bias": (((16384, 4096), (8192, 14336)), (37, 96)),
    "swiglu": (((16384, 4096), (8192, 14336)), (37, 96)),
    "embedding_backward": (((16384, 4096, 32000), (32768, 768, 50257)), (37, 32, 50)),
}


def residual_rms_norm(x: Any, residual: Any, weight: Any) -> Any:
    """The sum of both, and its RMS norm, which is computed in float32 as in Llama."""
    total = x + residual
    wide = total if total.element_size() == 8 else total.float()
    return total, (wide * (wide.pow(2).mean(-1, True) + EPS).rsqrt()).to(total.dtype) * weight


def softmax(x: Any) -> Any:
    return x.softmax(-1)


def cross_entropy(logits: Any, classes: Any) -> Any:
    """The mean loss, computed in float32 from logits of any dtype."""
    import torch.nn.functional as F

    return F.cross_entropy(logits if logits.element_size() == 8 else logits.float(), classes)


def layer_norm_backward(dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Any:
    import torch

    return torch.ops.aten.native_layer_norm_backward(dy, x, weight.shape, mean, rstd, weight, bias, [True] * 3)


def gelu_bias(x: Any, bias: Any) -> Any:
    import torch.nn.functional as F

    return F.gelu(x + bias)


def swiglu(gate: Any, up: Any) -> Any:
    import torch.nn.functional as F

    return F.silu(gate) * up


def embedding_backward(rows: int) -> Callable[[Any, Any], Any]:
    """The gradient of a table with a number of rows, from the gradients of looked-up rows and their indices."""

    def gradient(dy: Any, indices: Any) -> Any:
        import torch

        return torch.ops.aten.embedding_dense_backward(dy, indices, rows, -1, False)

    return gradient


def _norm_backward(r: RandomTensors, m: int, n: int) -> Tensors:
    x = r.normal(m, n)
    wide = x.float()
    mean = wide.mean(-1, True)
    rstd = (wide.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
    if r.device == "cpu":  # whose operator takes one dtype
        mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
    return [r.normal(m, n), x, mean, rstd, r.normal(n), r.normal(n)]


#: Name to (function of the shape that gives the function, inputs).
FUSED: dict[str, tuple[Callable[..., Callable[..., Any]], Callable[..., Tensors]]] = {
    "residual_rms_norm": (
        lambda m, n: residual_rms_norm,
        lambda r, m, n: [r.normal(m, n), r.normal(m, n), r.normal(n)],
    ),
    "softmax": (lambda m, n: softmax, lambda r, m, n: [r.normal(m, n, scale=3)]),
    "cross_entropy": (lambda m, n: cross_entropy, lambda r, m, n: [r.normal(m, n, scale=3), r.integers_below(n, m)]),
    "cross_entropy_step": (
        lambda m, n: cross_entropy,
        lambda r, m, n: [r.normal(m, n, scale=3, gradient=True), r.integers_below(n, m)],
    ),
    "layer_norm_backward": (lambda m, n: layer_norm_backward, _norm_backward),
    "gelu_bias": (lambda m, n: gelu_bias, lambda r, m, n: [r.normal(m, n), r.normal(n)]),
    "swiglu": (lambda m, n: swiglu, lambda r, m, n: [r.normal(m, n), r.normal(m, n)]),
    "embedding_backward": (
        lambda m, n, rows: embedding_backward(rows),
        lambda r, m, n, rows: [r.normal(m, n), r.integers_below(rows, m)],
    ),
}


def steps(device: str) -> list[Callable[[], TorchStep]]:
    """Makers of the steps for a device, "cuda" or "cpu"."""

    def made(name: str, shape: tuple[int, ...]) -> Callable[[], TorchStep]:
        function, inputs = FUSED[name]
        return lambda: TorchStep(name, "x".join(map(str, shape)), function(*shape), lambda r: inputs(r, *shape))

    return [
        made(name, shape)
        for name, (large, tiny) in SHAPES.items()
        for shape in (large if device == "cuda" else (tiny,))
    ]
