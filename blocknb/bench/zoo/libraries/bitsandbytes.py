"""Calls of bitsandbytes' Triton backend: quantization to 8 and 4 bits, and optimizers with states of 32 and 8 bits."""

from __future__ import annotations

from typing import Any

from blocknb.bench.zoo.cases import CaseList, RandomInputs

SIZES = {"of_4096x4096": (4096, 4096), "of_1000x3000": (1000, 3008)}


def register(cases: CaseList) -> None:
    """Adds the cases. Raises ImportError without bitsandbytes."""
    from bitsandbytes.backends.triton import ops
    from bitsandbytes.functional import create_dynamic_map

    _quantization(cases, ops, create_dynamic_map)
    _optimizers(cases, ops, create_dynamic_map)


def _quantization(cases: CaseList, ops: Any, create_map: Any) -> None:
    import torch

    def eight(m: int, n: int) -> Any:
        return lambda r: {"x": r.normal(m, n), "code": create_map().to(r.device)}

    def bytes_of(m: int, n: int) -> Any:
        return lambda r: {
            "x": r.integers(0, 256, m, n, dtype="uint8"),
            "absmax": r.uniform(m * n // 256 + 1, low=0.5),
            "code": create_map().to(r.device),
        }

    def halves_of(m: int, n: int) -> Any:
        return lambda r: {
            "x": r.integers(0, 256, m * n // 2, 1, dtype="uint8"),
            "absmax": r.uniform(m * n // 64, low=0.5),
        }

    def floats(m: int, n: int) -> Any:
        return lambda r: {"x": r.normal(m, n, dtype="bfloat16")}

    cases.add(
        "quantize_blockwise", lambda x, code: ops.quantize_blockwise(x, code, 256),
        **{shape: eight(*size) for shape, size in SIZES.items()},
    )  # fmt: skip
    cases.add(
        "dequantize_blockwise", lambda x, a, code: ops.dequantize_blockwise(x, a, code, 256, torch.float16),
        **{shape: bytes_of(*size) for shape, size in SIZES.items()},
    )  # fmt: skip
    for kind in ("nf4", "fp4"):
        cases.add(
            f"quantize_{kind}", lambda x, kind=kind: ops.quantize_4bit(x, 64, kind, torch.uint8),
            **{shape: floats(*size) for shape, size in SIZES.items()},
        )  # fmt: skip
        cases.add(
            f"dequantize_{kind}", lambda x, a, kind=kind: ops.dequantize_4bit(x, a, 64, kind, (x.numel() * 2,), torch.bfloat16),
            **{shape: halves_of(*size) for shape, size in SIZES.items()},
        )  # fmt: skip


def _optimizers(cases: CaseList, ops: Any, create_map: Any) -> None:
    n = 1 << 24

    def states(r: RandomInputs) -> dict[str, Any]:
        given = {name: r.normal(n, dtype="float32") for name in ("g", "p", "state1")}
        return given | {"state2": r.uniform(n)}

    def update(name: str) -> Any:
        def call(g: Any, p: Any, state1: Any, state2: Any) -> Any:
            second = state2 if name == "adam" else None
            ops.optimizer_update_32bit(
                name, g, p, state1, second, None, 0.0, 0.0, 0.9, 0.99, 0.0, 0.0, 1e-8, 0.01, 3, 1e-3, 1.0
            )
            return p, state1, state2

        return call

    for name in ("adam", "momentum", "lion", "rmsprop"):
        cases.add(f"{name}_32bit", update(name), of_2p24=states)

    def bytes_states(r: RandomInputs) -> dict[str, Any]:
        maps = {"qmap1": create_map(signed=True).to(r.device), "qmap2": create_map(signed=False).to(r.device)}
        return {
            "g": r.normal(n, dtype="float32"), "p": r.normal(n, dtype="float32"),
            "state1": r.integers(0, 256, n, dtype="uint8"), "state2": r.integers(0, 256, n, dtype="uint8"),
            "absmax1": r.uniform(n // 256, low=0.5), "absmax2": r.uniform(n // 256, low=0.5), **maps,
        }  # fmt: skip

    def adam(g: Any, p: Any, state1: Any, state2: Any, absmax1: Any, absmax2: Any, qmap1: Any, qmap2: Any) -> Any:
        ops.optimizer_update_8bit_blockwise(
            "adam", g, p, state1, state2, 0.9, 0.99, 0.0, 0.0, 1e-8, 3, 1e-3, qmap1, qmap2, absmax1, absmax2, 0.01, 1.0
        )
        return p, absmax1, absmax2

    cases.add("adam_8bit", adam, of_2p24=bytes_states)
