"""`blocknb bench torch_templates`: products with an epilogue, for which Inductor chooses among its templates (`mode="max-autotune"`).

The options leave out libraries, so that both compilers generate the product itself. Each compiler times the candidates that it compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blocknb.bench.torch_steps.definition import TorchStep

OPTIONS = {
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "coordinate_descent_tuning": True,
    "autotune_num_choices_displayed": 0,
}
#: On a CPU, one candidate is enough.
TINY = {
    **OPTIONS,
    "coordinate_descent_tuning": False,
    "test_configs.autotune_choice_name_regex": "triton_mm",
    "test_configs.autotune_choice_desc_regex": r".*BLOCK_K=(16|32), BLOCK_M=32, BLOCK_N=32.*",
}


def linear_gelu(x: Any, weight: Any, bias: Any) -> Any:
    import torch.nn.functional as F

    return F.gelu(F.linear(x, weight, bias))


def product(x: Any, weight: Any) -> Any:
    return x @ weight


#: (name, M, N, K) on a GPU. The weight of a linear layer is (N, K).
PRODUCTS = (
    ("linear_gelu", 4096, 4096, 4096),
    ("linear_gelu", 16, 4096, 4096),
    ("linear_gelu", 1000, 3000, 2000),
    ("product", 8192, 4096, 1024),
)
FUNCTIONS: dict[str, Callable[..., Any]] = {"linear_gelu": linear_gelu, "product": product}


def steps(device: str) -> list[Callable[[], TorchStep]]:
    """Makers of the steps for a device, "cuda" or "cpu"."""

    def made(name: str, m: int, n: int, k: int) -> Callable[[], TorchStep]:
        def inputs(r: Any) -> list[Any]:
            x, scale = r.normal(m, k), k**-0.5
            if name == "product":
                return [x, r.normal(k, n, scale=scale)]
            return [x, r.normal(n, k, scale=scale), r.normal(n)]

        options = OPTIONS if device == "cuda" else TINY
        return lambda: TorchStep(name, f"{m}x{n}x{k}", FUNCTIONS[name], inputs, options=options)

    return [made(*one) for one in (PRODUCTS if device == "cuda" else (("linear_gelu", 64, 48, 32),))]
