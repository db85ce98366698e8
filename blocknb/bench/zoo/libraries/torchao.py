"""Calls of torchao: quantization to 8-bit floats and microscaling formats, and products of quantized matrices."""

from __future__ import annotations

from typing import Any

from blocknb.bench.zoo.cases import CaseList, RandomInputs


def register(cases: CaseList) -> None:
    """Adds the cases. Raises ImportError without torchao."""
    _blockwise(cases)
    _training(cases)
    _integers(cases)
    _experts(cases)


def _matrix(m: int, n: int) -> Any:
    return lambda r: {"x": r.normal(m, n, dtype="bfloat16")}


def _blockwise(cases: CaseList) -> None:
    from torchao.kernel import blockwise_quantization as blockwise

    cases.add("fp8_blockwise_act_quant", blockwise.fp8_blockwise_act_quant, of_4096x4096=_matrix(4096, 4096))
    cases.add("fp8_blockwise_weight_quant", blockwise.fp8_blockwise_weight_quant, of_4096x4096=_matrix(4096, 4096))

    def weights(m: int, n: int) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            return {"x": r.normal(m, n).to(r.torch.float8_e4m3fn), "s": r.uniform(m // 128, n // 128, low=0.5)}

        return make

    cases.add("fp8_blockwise_weight_dequant", blockwise.fp8_blockwise_weight_dequant, of_4096x4096=weights(4096, 4096))

    def product(m: int, n: int, k: int) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            return {
                "a": r.normal(m, k).to(r.torch.float8_e4m3fn), "a_s": r.uniform(m, k // 128, low=0.5),
                "b": r.normal(n, k).to(r.torch.float8_e4m3fn), "b_s": r.uniform(n // 128, k // 128, low=0.5),
            }  # fmt: skip

        return make

    cases.add(
        "blockwise_fp8_gemm",
        blockwise.blockwise_fp8_gemm,
        of_2048x4096x4096=product(2048, 4096, 4096),
        of_64x4096x4096=product(64, 4096, 4096),
    )


def _training(cases: CaseList) -> None:
    from torchao.prototype.blockwise_fp8_training import kernels as training

    for name in (
        "act_quant_lhs",
        "act_quant_rhs",
        "act_quant_transposed_lhs",
        "weight_quant_rhs",
        "weight_quant_transposed_rhs",
    ):
        function = getattr(training, f"triton_fp8_blockwise_{name}")
        cases.add(name, function, of_4096x4096=_matrix(4096, 4096), of_2048x7168=_matrix(2048, 7168))

    def product(m: int, n: int, k: int, columns: int) -> Any:
        def make(r: RandomInputs) -> dict[str, Any]:
            eight = r.torch.float8_e4m3fn
            return {
                "a": r.normal(m, k).to(eight), "b": r.normal(n, k).to(eight).T,
                "a_s": r.uniform(k // 128, m, low=0.5).T, "b_s": r.uniform(n // columns, k // 128, low=0.5).T,
            }  # fmt: skip

        return make

    cases.add(
        "fp8_gemm_1x128_128x128",
        training.triton_fp8_gemm_1x128_128x128,
        of_2048x4096x4096=product(2048, 4096, 4096, 128),
    )


def _integers(cases: CaseList) -> None:
    from torchao.prototype.quantized_training.int8_mm import scaled_int8_mm_cuda

    def product(m: int, n: int, k: int) -> Any:
        return lambda r: {
            "a": r.integers(-128, 128, m, k, dtype="int8"), "b": r.integers(-128, 128, n, k, dtype="int8").T,
            "row": r.uniform(m, low=0.5, dtype="bfloat16"), "column": r.uniform(n, low=0.5, dtype="bfloat16"),
        }  # fmt: skip

    def exact(a: Any, b: Any, row: Any, column: Any) -> Any:
        return (a.double() @ b.double()) * row[:, None] * column

    cases.add(
        "scaled_int8_mm",
        scaled_int8_mm_cuda,
        exact,
        of_2048x4096x4096=product(2048, 4096, 4096),
        of_512x4096x1024=product(512, 4096, 1024),
    )


def _experts(cases: CaseList) -> None:
    from torchao.prototype.moe_training.kernels import (
        triton_fp8_per_group_colwise_scales,
        triton_fp8_per_group_rowwise_scales,
        triton_fp8_rowwise_3d_transpose_rhs,
    )

    offsets = lambda r, m: r.tensor([m // 8 * (i + 1) for i in range(8)], "int32")  # noqa: E731
    rows = lambda r: {"x": r.normal(8192, 2048, dtype="bfloat16"), "o": offsets(r, 8192)}  # noqa: E731
    columns = lambda r: {"x": r.normal(2048, 8192, dtype="bfloat16"), "o": offsets(r, 8192)}  # noqa: E731
    # Only the scales are compared. torchao 0.18 passes stride 1 for the rows and for the columns of the output. So its elements overwrite
    # each other in any order, and most of its bytes are never stored.
    cases.add(
        "per_group_rowwise_scales", lambda x, o: triton_fp8_per_group_rowwise_scales(x, o)[1], of_8x1024x2048=columns
    )
    cases.add("per_group_colwise_scales", lambda x, o: triton_fp8_per_group_colwise_scales(x, o), of_8x1024x2048=rows)
    cases.add(
        "rowwise_3d_transpose_rhs", lambda w: triton_fp8_rowwise_3d_transpose_rhs(w),
        of_8x2048x1024=lambda r: {"w": r.normal(8, 2048, 1024, dtype="bfloat16")},
    )  # fmt: skip
