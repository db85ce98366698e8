"""Which of two tests a quick run has of a kernel: the interpreter after the passes, or its GPU code. `make test-full` has both."""

from __future__ import annotations

from sampling import part

#: Kernels that take the interpreter seconds.
SLOW = {
    "attention_masked", "attention_wide", "attention_key_gradients", "attention_key_gradients_wide", "attention_query_gradients",
    "attention_gradients", "attention_gradients_ahead", "attention_gradients_boxes", "attention_gradients_long", "boxed_fp16",
    "boxed_fp16_wide", "blocks_attention_causal", "crossed_fp16", "gemm_grouped_wgmma", "special_float32", "special_float64",
    "wgmma_attention_wide",
}  # fmt: skip
#: Kernels whose GPU code `tests/fuzz/simt.py` cannot run, with the reason.
NOT_SIMULATED = {
    "exact_float32": "a routine in which threads part",
    "exact_float64": "a routine in which threads part",
    "integer_functions_int64": "128-bit integers",
    "integer_functions_uint64": "128-bit integers",
}


def interpreted(name: str) -> bool:
    """Whether a quick run interprets the kernel after the passes (tests/passes/test_every_pass.py).

    Of the others it simulates the GPU code (tests/fuzz/test_gpu_code.py).
    """
    return name in NOT_SIMULATED or (name not in SLOW and part(f"interpreted/{name}", 2) == 0)
