"""Every kernel of tests/kernels on a GPU, against float64, with fresh random inputs each time and poisoned outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import seeds
from kernels import CASES, GPU_CASES, Case
from kernels.base import array_of, described

import blocknb
from blocknb import TensorDescriptor
from blocknb.language.types import FLOAT8_NAMES
from blocknb.runtime.interface import TensorWrapper

cupy = pytest.importorskip("cupy")


def to_device(value: Any) -> Any:
    """An array on the GPU with the same strides; bf16 is passed as a torch tensor, and 8-bit floats as reinterpreted bytes."""
    if isinstance(value, TensorDescriptor):
        return described(value, to_device(value.base))
    if not isinstance(value, np.ndarray):
        return value
    if not value.flags.c_contiguous:
        low, high = np.lib.array_utils.byte_bounds(value)
        raw = (ctypes.c_ubyte * (high - low)).from_address(low)
        memory = to_device(np.frombuffer(raw, np.uint8).view(value.dtype))
        offset, strides = (value.ctypes.data - low) // value.itemsize, [n // value.itemsize for n in value.strides]
        if isinstance(memory, cupy.ndarray):
            return cupy.lib.stride_tricks.as_strided(memory[offset:], value.shape, value.strides)
        return memory.as_strided(value.shape, strides, offset)
    if value.dtype == ml_dtypes.bfloat16:
        torch = pytest.importorskip("torch")
        return torch.from_numpy(value.view(np.int16)).cuda().view(torch.bfloat16)
    if value.dtype.name in FLOAT8_NAMES:
        return blocknb.reinterpret(cupy.asarray(value.view(np.uint8)), FLOAT8_NAMES[value.dtype.name])
    return cupy.asarray(value)


def device_address(array: Any) -> int:
    return array.data.ptr if isinstance(array, cupy.ndarray) else array.data_ptr()


def to_host(value: Any) -> Any:
    value = array_of(value)
    if isinstance(value, cupy.ndarray):
        return cupy.asnumpy(value)
    if isinstance(value, TensorWrapper):
        return cupy.asnumpy(value.base).view(value.dtype.numpy)
    if hasattr(value, "cpu"):
        import torch

        return value.contiguous().cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value


def run(case: Case, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments after a launch on the GPU."""
    on_device = {name: to_device(value) for name, value in arguments.items()}
    case.link(on_device, device_address, to_device)
    case.kernel[case.grid](**on_device, **case.options)
    cupy.cuda.get_current_stream().synchronize()
    return {name: to_host(value) for name, value in on_device.items()}


@pytest.mark.parametrize("name", [*CASES, *GPU_CASES])
def test_shared_kernels_match_float64_on_the_gpu(name):
    case = CASES.get(name) or GPU_CASES[name]
    for _ in range(2):
        arguments = case.make(seeds.rng())
        case.check(arguments, run(case, arguments))


@pytest.mark.parametrize("warps", [1, 2, 8])
@pytest.mark.parametrize(
    "name",
    [
        "softmax_781",
        "reductions_64x32_float32",
        "online_softmax",
        "matmul_float16",
        "attention",
        "transpose_float32",
        "blocks_attention_causal",
    ],
)
def test_any_number_of_warps_gives_the_same_results(name, warps):
    case = CASES[name]
    arguments = case.make(seeds.rng())
    on_device = {key: to_device(value) for key, value in arguments.items()}
    case.kernel[case.grid](**on_device, **{**case.options, "num_warps": warps})
    case.check(arguments, {key: to_host(value) for key, value in on_device.items()})


@pytest.mark.parametrize(
    "without", ["simplify", "pointers", "register_prefetch", "software_pipelining", "coalesce", "select_mma"]
)
@pytest.mark.parametrize(
    "name",
    [
        "add_float32",
        "softmax_781",
        "matmul_float16",
        "attention",
        "layer_norm_float32",
        "blocks_matmul_ragged",
        "descriptor_matmul",
        "ahead_float16",
    ],
)
def test_switching_a_pass_off_changes_no_result(name, without):
    case = CASES[name]
    arguments = case.make(seeds.rng())
    on_device = {key: to_device(value) for key, value in arguments.items()}
    case.kernel[case.grid](**on_device, **case.options, without={without})
    case.check(arguments, {key: to_host(value) for key, value in on_device.items()})


@pytest.mark.parametrize("name", ["softmax_781", "matmul_float16", "attention", "reductions_4x256_float32"])
def test_a_hundred_launches_give_the_same_result(name):
    """A result that changes between runs is a race."""
    case = CASES[name]
    arguments = case.make(seeds.rng())
    first = run(case, arguments)
    for _ in range(100):
        again = run(case, arguments)
        for key, value in first.items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(again[key].view(np.uint8), value.view(np.uint8), err_msg=f"{name}: {key}")
