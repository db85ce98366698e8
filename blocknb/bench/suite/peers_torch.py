"""The benchmarks in torch: `eager()` for eager mode, `formulas()` for torch.compile.

Both map benchmark names to functions. A function takes the inputs in the order of the definition and returns the outputs, or the first
few of them. The functions are closures over torch, which torch.compile can trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blocknb.bench.suite import attention, decoding
from blocknb.bench.suite.catalogue import EPS, P
from blocknb.bench.suite.products import PRODUCTS

Peer = Callable[..., Any]


def formulas() -> dict[str, Peer]:
    """The functions for torch.compile, in the form that inductor fuses into the fewest kernels."""
    import torch

    functional, aten = torch.nn.functional, torch.ops.aten

    def total(x: Any) -> Any:
        return torch.sum(x, dtype=torch.float32).reshape(1)

    def softmax(x: Any) -> Any:
        return torch.softmax(x, dim=-1)

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (x.shape[1],), weight, bias, EPS)

    def rms_norm(x: Any, weight: Any) -> Any:
        return functional.rms_norm(x, (x.shape[1],), weight, EPS)

    def layer_norm_backward(x: Any, weight: Any, dy: Any, mean: Any, rstd: Any) -> Any:
        statistics = mean[:, None], rstd[:, None]
        return aten.native_layer_norm_backward(dy, x, [x.shape[1]], *statistics, weight, weight, [True, True, True])

    def rms_norm_backward(x: Any, weight: Any, dy: Any, rstd: Any) -> Any:
        given, scale = dy.float(), rstd[:, None]
        z, g = x.float() * scale, given * weight.float()
        dx = (g - z * (g * z).mean(1, keepdim=True)) * scale
        return dx.to(x.dtype), (given * z).sum(0).to(x.dtype)

    def cross_entropy(x: Any, classes: Any) -> Any:
        return functional.cross_entropy(x, classes, reduction="none")

    def cross_entropy_backward(x: Any, classes: Any, dlosses: Any, logsumexp: Any) -> Any:
        chosen = torch.arange(x.shape[1], device=x.device)[None, :] == classes[:, None]
        return (((x.float() - logsumexp[:, None]).exp() - chosen.float()) * dlosses[:, None]).to(x.dtype)

    def swiglu(gate: Any, up: Any) -> Any:
        return functional.silu(gate) * up

    def rope(x: Any, cosines: Any, sines: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        c, s = cosines[:, None], sines[:, None]
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1)

    def dropout(x: Any) -> Any:
        return functional.dropout(x, P, training=True)

    found: dict[str, Peer] = {
        "add": lambda x, y: x + y, "copy": lambda x: x.clone(), "sum": total, "softmax": softmax,
        "layer_norm": layer_norm, "rms_norm": rms_norm, "layer_norm_backward": layer_norm_backward,
        "rms_norm_backward": rms_norm_backward, "cross_entropy": cross_entropy,
        "cross_entropy_backward": cross_entropy_backward, "swiglu": swiglu, "rope": rope, "dropout": dropout,
        "transpose": lambda x: x.T.contiguous(),
        **attention.torch_peers("torch"), **decoding.torch_peers("torch"),
    }  # fmt: skip
    return found | products()


def products() -> dict[str, Peer]:
    """Matrix products by cuBLAS, or by torch's operator for the dtype."""
    import torch

    def leaky(a: Any, b: Any) -> Any:
        return torch.nn.functional.leaky_relu(a @ b)

    def tf32(a: Any, b: Any) -> Any:
        flags = torch.backends.cuda.matmul
        before, flags.allow_tf32 = flags.allow_tf32, True
        try:
            return a @ b
        finally:
            flags.allow_tf32 = before

    def scaled(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
        """Products of fp8 with scales, with fast accumulation as in our kernel."""
        if a.dtype != torch.float8_e4m3fn:
            return a @ b * (a_scale * b_scale)
        found = torch._scaled_mm(
            a, b, a_scale.reshape(()), b_scale.reshape(()), out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return found[0] if isinstance(found, tuple) else found

    def integers(a: Any, b: Any) -> Any:
        return torch._int_mm(a, b) if a.dtype == torch.int8 else a @ b

    from blocknb.bench.suite.catalogue import BENCHMARKS
    from blocknb.bench.suite.products import by_groups

    def grouped(a: Any, b: Any, ends: Any) -> Any:
        """torch's fused operator on GPUs for bf16, otherwise one product per group."""
        if a.is_cuda and a.dtype == torch.bfloat16:
            return torch._grouped_mm(a, b, offs=ends)
        return torch.cat(by_groups(torch.matmul, a, b, ends))

    def int8_weights(x: Any, w: Any, scales: Any) -> Any:
        """torch's operator of weight-only quantization, on GPUs."""
        return torch._weight_int8pack_mm(x, w, scales.to(x.dtype))

    plain: dict[str, Peer] = {name: lambda a, b: a @ b for name in BENCHMARKS if name.split("_")[0] in PRODUCTS}
    return plain | {
        "gemm_leaky": leaky, "gemm_tf32": tf32, "gemm_tf32_nn": tf32, "gemm_fp8": scaled, "gemm_int8": integers,
        "gemm_grouped": grouped, "skinny_int8": int8_weights, "skinny_int4": _Int4Weights(),
    }  # fmt: skip


class _Int4Weights:
    """torch's product with weights of 4 bits and bf16 activations. The first call brings the weights to torch's own order."""

    only_gpu = "left out: torch's operator for weights of 4 bits runs on GPUs only"
    dtypes = ("bf16",)

    def __init__(self) -> None:
        self.of: Any = None

    def __call__(self, x: Any, w: Any, scales: Any) -> Any:
        import torch

        if self.of is not w:
            swapped = (w << 4 | w >> 4).contiguous()  # torch's operator takes the first weight from the upper bits
            self.packed, self.of = torch._convert_weight_to_int4pack(swapped, 8), w
            self.scales = torch.stack([scales.T, torch.zeros_like(scales.T)], 2).contiguous()
        return torch._weight_int4pack_mm(x, self.packed, 128, self.scales)


def with_cupy() -> dict[str, Peer]:
    """Matrix products by cuBLAS as CuPy calls it, on torch's tensors. Raises ImportError without CuPy."""
    import cupy
    import torch

    leaky = cupy.ElementwiseKernel("T x", "T y", "float v = x; y = v >= 0 ? v : 0.01f * v", "leaky_relu")

    def shared(tensor: Any) -> Any:
        return cupy.from_dlpack(tensor)

    def plain(a: Any, b: Any) -> Any:
        return torch.from_dlpack(cupy.matmul(shared(a), shared(b)))

    def followed(a: Any, b: Any) -> Any:
        return torch.from_dlpack(leaky(cupy.matmul(shared(a), shared(b))))

    names = (
        "gemm_plain",
        "gemm_nt",
        "gemm_tn",
        "gemm_tt",
        "gemm_batch",
        "ragged_any",
        "ragged_multiples",
        "skinny_nn",
        "skinny_nt",
    )
    return dict.fromkeys(names, plain) | {"gemm_leaky": followed}


def eager() -> dict[str, Peer]:
    """The functions for eager mode: those of `formulas`, with torch's fused operators for backward passes."""
    import torch

    aten = torch.ops.aten
    plain = formulas()

    def rms_norm_backward(x: Any, weight: Any, dy: Any, rstd: Any) -> Any:
        """torch's fused operator, available on GPUs since 2.9."""
        if x.is_cuda and hasattr(aten, "_fused_rms_norm_backward"):
            return aten._fused_rms_norm_backward(dy, x, [x.shape[1]], rstd[:, None], weight, [True, True])
        return plain["rms_norm_backward"](x, weight, dy, rstd)

    return plain | {"rms_norm_backward": rms_norm_backward, "cross_entropy_backward": _CrossEntropyBackward()}


class _CrossEntropyBackward:
    """The backward pass of functional.cross_entropy, as autograd runs it on the kept log-softmax. The first call computes that."""

    def __init__(self) -> None:
        self.kept: Any = None
        self.of: Any = None

    def __call__(self, x: Any, classes: Any, dlosses: Any, logsumexp: Any) -> Any:
        import torch

        aten = torch.ops.aten
        if self.of is not x:
            self.kept, self.of, self.weight = torch.log_softmax(x, dim=-1), x, x.new_zeros(())
            self.given = dlosses.to(x.dtype)
        chosen = aten.nll_loss_backward(self.given, self.kept, classes, None, 0, -100, self.weight)
        return aten._log_softmax_backward_data(chosen, self.kept, -1, x.dtype)
