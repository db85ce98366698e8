"""Calls of unsloth's kernels: norms, activations, rotary embeddings, cross entropy, and dequantization.

`import unsloth` patches other packages in the process, so only its kernels are imported: the package's own start-up code does not run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import types
from types import SimpleNamespace
from typing import Any

from blocknb.bench.zoo.cases import CaseList, RandomInputs


def register(cases: CaseList) -> None:
    """Adds the cases. Raises ImportError without unsloth."""
    # It writes generated code into the working directory otherwise.
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", os.path.join(tempfile.gettempdir(), "unsloth_compiled_cache"))
    for package in ("unsloth", "unsloth.kernels", "unsloth_zoo"):
        _without_start_up(package)
    _share(importlib.import_module("unsloth_zoo.device_type"), sys.modules["unsloth_zoo"])
    _activations(cases)
    _norms(cases)
    _others(cases)


def _without_start_up(name: str) -> None:
    """Enters a package in sys.modules without running its __init__.py."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{name} is not installed")
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__path__ = list(spec.submodule_search_locations)
        sys.modules[name] = module


def _share(source: types.ModuleType, target: types.ModuleType) -> None:
    """Gives a package the public names of one of its modules, as its __init__.py would."""
    vars(target).update({name: value for name, value in vars(source).items() if not name.startswith("_")})


def _activations(cases: CaseList) -> None:
    from unsloth.kernels import geglu, swiglu

    def gates(r: RandomInputs) -> dict[str, Any]:
        return {name: r.normal(2, 2048, 11008, dtype="bfloat16") for name in ("gate", "up")}

    def gradients(r: RandomInputs) -> dict[str, Any]:
        return {name: r.normal(4096, 11008, dtype="bfloat16") for name in ("dw", "e", "g")}

    cases.add("swiglu", swiglu.swiglu_fg_kernel, of_4096x11008=gates)
    cases.add("swiglu_backward", swiglu.swiglu_DWf_DW_dfg_kernel, of_4096x11008=gradients)
    for kind in ("exact", "approx"):
        cases.add(f"geglu_{kind}", getattr(geglu, f"geglu_{kind}_forward_kernel"), of_4096x11008=gates)
        cases.add(f"geglu_{kind}_backward", getattr(geglu, f"geglu_{kind}_backward_kernel"), of_4096x11008=gradients)


def _norms(cases: CaseList) -> None:
    from unsloth.kernels.layernorm import fast_layernorm
    from unsloth.kernels.rms_layernorm import fast_rms_layernorm

    def rows(m: int, n: int, *names: str) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            x = r.normal(1, m, n, dtype="bfloat16", grad=True)
            return {"x": x} | {name: r.normal(n, dtype="bfloat16") for name in names}

        return make

    def norm(weight: Any, bias: Any = None) -> Any:
        return SimpleNamespace(weight=weight, bias=bias, variance_epsilon=1e-6, elementwise_affine=True)

    cases.add(
        "rms_layernorm", lambda x, w: fast_rms_layernorm(norm(w), x),
        of_4096x4096=rows(4096, 4096, "w"), of_16384x896=rows(16384, 896, "w"),
    )  # fmt: skip
    cases.add(
        "gemma_rms_layernorm",
        lambda x, w: fast_rms_layernorm(norm(w), x, gemma=True),
        of_4096x3072=rows(4096, 3072, "w"),
    )
    cases.add("layernorm", lambda x, w, b: fast_layernorm(norm(w, b), x), of_4096x4096=rows(4096, 4096, "w", "b"))


def _others(cases: CaseList) -> None:
    from unsloth.kernels.cross_entropy_loss import fast_cross_entropy_loss
    from unsloth.kernels.fp8 import act_quant, w8a8_block_fp8_matmul_triton, weight_dequant
    from unsloth.kernels.rope_embedding import fast_rope_embedding

    def rope(r: RandomInputs) -> dict[str, Any]:
        angles = r.uniform(2048, 64, high=6.0)
        twice = r.torch.cat((angles, angles), -1)
        q, k = (r.normal(2, heads, 2048, 128, dtype="bfloat16", grad=True) for heads in (32, 8))
        return {"q": q, "k": k, "cos": twice.cos().to(q.dtype), "sin": twice.sin().to(q.dtype)}

    cases.add("rope", fast_rope_embedding, of_2x2048x32x128=rope)
    labels = lambda n: lambda r: {  # noqa: E731
        "x": r.normal(2, 1024, n, dtype="bfloat16", grad=True), "y": r.integers(0, n, 2, 1024)}  # fmt: skip
    cases.add("cross_entropy", fast_cross_entropy_loss, of_2048x32000=labels(32000), of_2048x128256=labels(128256))
    cases.add("act_quant", act_quant, of_4096x4096=lambda r: {"x": r.normal(4096, 4096, dtype="bfloat16")})

    def weights(r: RandomInputs) -> dict[str, Any]:
        return {"x": r.normal(4096, 4096).to(r.torch.float8_e4m3fn), "s": r.uniform(32, 32, low=0.5)}

    cases.add("weight_dequant", weight_dequant, of_4096x4096=weights)

    def product(m: int) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            return {
                "a": r.normal(m, 4096).to(r.torch.float8_e4m3fn), "b": r.normal(4096, 4096).to(r.torch.float8_e4m3fn),
                "a_s": r.uniform(m, 32, low=0.5), "b_s": r.uniform(32, 32, low=0.5),
            }  # fmt: skip

        return make

    cases.add(
        "w8a8_block_fp8_matmul", lambda a, b, a_s, b_s: w8a8_block_fp8_matmul_triton(a, b, a_s, b_s, [128, 128]),
        of_2048x4096x4096=product(2048), of_32x4096x4096=product(32),
    )  # fmt: skip
