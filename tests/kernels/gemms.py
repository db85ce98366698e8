"""The ready-made matrix-product kernels: descriptors made by kernel and host, batches, groups, split-K, epilogues."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import blocknb.language as bl
from blocknb import TensorDescriptor
from blocknb.kernels import descriptors, split_k
from blocknb.kernels.grouped import grouped_kernel
from blocknb.kernels.matmul import matmul_kernel
from kernels.base import array_of, case, integers, normal, poison, wide

M, N, K = 72, 80, 48  # partial tiles of (64, 64, 32); rows are multiples of 16 bytes


def blocks(tile, group=2):
    return dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True)) | {"GROUP": group}


def operand(rng, shape, transposed, dtype):
    """A matrix, or the transpose of one."""
    shape = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    return integers(rng, shape, np.int8) if dtype == np.int8 else normal(rng, shape, dtype)


def stored(array, transposed):
    return wide(array).swapaxes(-1, -2) if transposed else wide(array)


AFTER = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x >= 0, x, 0.01 * x),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


def grid_of(tile, m=M, n=N, *more):
    return (-(-m // tile[0]) * -(-n // tile[1]), *more)


def descriptor_case(
    name, order="nn", dtype=np.float16, result=None, tile=(64, 64, 32), activation="", bias=False, swapped=False, rtol=2e-3,
    **options,
):  # fmt: skip
    transposed = order[0] == "t", order[1] == "t"

    def make(rng):
        a, b = operand(rng, (M, K), transposed[0], dtype), operand(rng, (K, N), transposed[1], dtype)
        return {
            "a": a, "b": b, "c": poison((M, N), result or dtype), "m": M, "n": N, "k": K, "a_step": a.shape[1], "b_step": b.shape[1],
            "c_step": N, **blocks(tile), "TRANS_A": transposed[0], "TRANS_B": transposed[1],
            "bias": normal(rng, N, np.float32) if bias else None, "ACTIVATION": activation,
            "SUM": bl.int32 if dtype == np.int8 else bl.float32, "SWAPPED": swapped,
        }  # fmt: skip

    def reference(x):
        total = stored(x["a"], transposed[0]) @ stored(x["b"], transposed[1])
        return {"c": AFTER[activation](total + (wide(x["bias"]) if bias else 0))}

    case(
        f"gemm_{name}", descriptors.matmul_descriptor_kernel, make, reference, grid=grid_of(tile), rtol=rtol, atol=rtol * 20,
        options={"num_warps": 4, **options},
    )  # fmt: skip


descriptor_case("nn_leaky", activation="leaky_relu", num_stages=2)
descriptor_case("tt_bias", "tt", ml_dtypes.bfloat16, np.float16, bias=True, activation="silu", num_warps=8, rtol=8e-3)
descriptor_case("int8", "nt", np.int8, np.int32, rtol=0)
descriptor_case(
    "fp32_nn", "nn", np.float32, tile=(128, 128, 32), swapped=True, activation="relu", num_warps=8, num_stages=2
)
descriptor_case("fp32_tt", "tt", np.float32, tile=(64, 128, 32), bias=True, num_stages=2)


def batch_case(name, order, batch=2):
    transposed, tile = (order[0] == "t", order[1] == "t"), (64, 64, 32)

    def make(rng):
        a, b = (
            operand(rng, (batch, M, K), transposed[0], np.float16),
            operand(rng, (batch, K, N), transposed[1], np.float16),
        )
        return {
            "a": a, "b": b, "c": poison((batch, M, N), np.float16), "batch": batch, "m": M, "n": N, "k": K, "a_batch": M * K,
            "a_step": a.shape[2], "b_batch": K * N, "b_step": b.shape[2], "c_batch": M * N, "c_step": N, **blocks(tile),
            "TRANS_A": transposed[0], "TRANS_B": transposed[1], "ACTIVATION": "relu",
        }  # fmt: skip

    def reference(x):
        return {"c": np.maximum(stored(x["a"], transposed[0]) @ stored(x["b"], transposed[1]), 0)}

    case(
        f"gemm_batch_{name}", descriptors.matmul_batch_kernel, make, reference, grid=grid_of(tile, M, N, batch), rtol=2e-3, atol=4e-2,
        options={"num_warps": 4},
    )  # fmt: skip


batch_case("tn", "tn")


def host_case(name, kernel, grid, **constants):
    tile = (64, 32, 32)

    def make(rng):
        a, b, c = normal(rng, (M, K), np.float16), normal(rng, (N, K), np.float16), poison((M, N), np.float16)
        wide_c = tile[1] // 2 if constants.get("EPILOGUE_SUBTILES") else tile[1]
        return {
            "a": TensorDescriptor.from_tensor(a, [tile[0], tile[2]]), "b": TensorDescriptor.from_tensor(b, [tile[1], tile[2]]),
            "c": TensorDescriptor.from_tensor(c, [tile[0], wide_c]), "m": M, "n": N, "k": K, **blocks(tile), **constants,
            "TRANS_B": True,
        }  # fmt: skip

    def reference(x):
        return {"c": wide(array_of(x["a"])) @ wide(array_of(x["b"])).T}

    case(f"gemm_{name}", kernel, make, reference, grid=grid, rtol=2e-3, atol=4e-2, options={"num_warps": 4})


host_case("host", descriptors.matmul_host_descriptor_kernel, grid_of((64, 32)))
host_case("persistent", descriptors.matmul_persistent_kernel, (4,), PROGRAMS=4, EPILOGUE_SUBTILES=True)


def scaled_case():
    """Pointers, a batch that shares b, scales per row and column, GELU."""
    m, n, k, tile = 20, 24, 40, (32, 32, 16)

    def make(rng):
        return {
            "a": normal(rng, (2, m, k), np.float16), "b": normal(rng, (k, n), np.float16), "c": poison((2, m, n), np.float32), "m": m,
            "n": n, "k": k, "a_row": k, "a_column": 1, "b_row": n, "b_column": 1, "c_row": n, "c_column": 1, **blocks(tile),
            "a_batch": m * k, "b_batch": 0, "c_batch": m * n, "a_scale": normal(rng, m), "b_scale": normal(rng, n), "BY_ROW": True,
            "ACTIVATION": "gelu", "FAR": True,
        }  # fmt: skip

    def reference(x):
        total = wide(x["a"]) @ wide(x["b"]) * wide(x["a_scale"])[:, None] * wide(x["b_scale"])
        return {"c": AFTER["gelu"](total)}

    case(
        "gemm_scaled", matmul_kernel, make, reference, grid=grid_of(tile, m, n, 2), rtol=1e-4, atol=1e-3,
        options={"num_warps": 4},
    )  # fmt: skip


scaled_case()


def split_cases():
    tile, splits, length = (64, 64, 32), 2, 32
    high, across = 128, 128

    def make(rng):
        return {
            "a": normal(rng, (M, K), np.float16), "b": normal(rng, (K, N), np.float16),
            "parts": poison((splits, high, across), np.float32), "m": M, "n": N, "k": K, "length": length, "a_row": K, "a_column": 1,
            "b_row": N, "b_column": 1, "parts_row": across, **blocks(tile), "SUM": bl.float32, "PRECISION": "tf32", "FAR": False,
        }  # fmt: skip

    def reference(x):
        parts = np.zeros((splits, high, across))
        for s in range(splits):
            along = slice(s * length, (s + 1) * length)
            parts[s, :M, :N] = wide(x["a"])[:, along] @ wide(x["b"])[along]
        return {"parts": parts}

    case(
        "gemm_split", split_k.split_kernel, make, reference, grid=grid_of(tile, M, N, splits), rtol=1e-4, atol=1e-3,
        options={"num_warps": 4},
    )  # fmt: skip

    def make_sum(rng):
        return {
            "parts": normal(rng, (3, 20, 32)), "c": poison((19, 30), np.float16), "m": 19, "n": 30, "splits": 3, "parts_apart": 640,
            "parts_row": 32, "c_row": 30, "c_column": 1, "bias": normal(rng, 30, np.float16), "a_scale": None, "b_scale": None,
            "BY_ROW": False, "ACTIVATION": "relu", "ROWS": 16, "COLUMNS": 32, "SUM": bl.float32,
        }  # fmt: skip

    def total(x):
        return {"c": np.maximum(wide(x["parts"]).sum(0)[:19, :30] + wide(x["bias"]), 0)}

    case("gemm_sum", split_k.sum_kernel, make_sum, total, grid=(2, 1), rtol=2e-3, atol=2e-3)


split_cases()


def grouped_case(name, ends, m, n, k, tile, result=np.float32, rtol=1e-4, **options):
    groups = len(ends)

    def make(rng):
        return {
            "a": normal(rng, (m, k), np.float16), "b": normal(rng, (groups, k, n), np.float16), "c": np.full((m, n), 7, result),
            "ends": np.array(ends, np.int32), "groups": groups, "m": m, "n": n, "k": k, "a_row": k, "a_column": 1, "b_group": k * n,
            "b_row": n, "b_column": 1, "c_row": n, "c_column": 1, "BLOCK_M": tile[0], "BLOCK_N": tile[1],
            "BLOCK_K": tile[2], "GROUP": 2, "SUM": bl.float32,
        }  # fmt: skip

    def reference(x):
        c, begin = np.full((m, n), 7.0), 0
        for g, end in enumerate(ends):
            c[begin:end], begin = wide(x["a"])[begin:end] @ wide(x["b"])[g], end
        return {"c": c}

    programs = (-(-m // tile[0]) + groups) * -(-n // tile[1])
    case(
        name,
        grouped_kernel,
        make,
        reference,
        grid=(programs,),
        rtol=rtol,
        atol=10 * rtol,
        options={"num_warps": 4, **options},
    )


grouped_case("gemm_grouped", [5, 5, 47, 52], 60, 40, 48, (32, 32, 16))
grouped_case(
    "gemm_grouped_wgmma", [3, 3, 70, 90, 90, 91, 92, 93, 160], 170, 72, 48, (64, 64, 32), np.float16, 2e-3, num_stages=2
)
