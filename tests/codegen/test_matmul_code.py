"""GPU code of `matmul` and related functions: the expected instructions of each target, no spills, and no messages from ptxas."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from launches_for_gpus import captured

from blocknb import kernels as ready
from blocknb.kernels.shapes import OperandRows, choose, plan
from blocknb.kernels.strides import Device
from blocknb.runtime.kernel import Launch

DEVICES = {
    "sm_90a": Device(132, 90, 227 << 10), "sm_80": Device(108, 80, 163 << 10), "sm_75": Device(40, 75, 64 << 10),
}  # fmt: skip
MODULES = ("operands", "gemm", "descriptors", "grouped", "split_k")
DTYPES = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "int8": np.int8,
    "fp8": ml_dtypes.float8_e4m3fn,
}
#: Shapes of results for which different tiles are chosen.
SHAPES = (
    (4096, 4096, 4096),
    (4096, 4096, 512),
    (1024, 1024, 1024),
    (512, 512, 512),
    (256, 4096, 4096),
    (128, 256, 8192),
)
INSTRUCTION = {"sm_90a": "wgmma.mma_async", "sm_80": "mma.sync", "sm_75": "mma.sync"}


def zeros(shape: tuple[int, ...], dtype: str, transposed: bool = False) -> Any:
    """An array of these sizes and strides that occupies almost no memory. It begins at a multiple of 128 bytes, as on a GPU."""
    kind = np.dtype(DTYPES.get(dtype, dtype))
    memory = np.zeros(256, np.uint8)
    made = memory[-memory.ctypes.data % 128 :][: kind.itemsize].view(kind)
    step, steps = made.itemsize, []
    for size in shape[::1] if transposed else shape[::-1]:
        steps.append(step)
        step *= size
    return np.lib.stride_tricks.as_strided(made, shape, steps if transposed else steps[::-1])


def launches(call: Callable[[], Any], target: str, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The kernels that a wrapper would launch on that GPU."""
    for name in MODULES:
        monkeypatch.setattr(importlib.import_module(f"blocknb.kernels.{name}"), "device", lambda array: DEVICES[target])
    found: list[Launch] = []
    with captured(found.append):
        call()
    return found


def check(
    call: Callable[[], Any], target: str, monkeypatch: pytest.MonkeyPatch, multiplies: bool = True
) -> list[Launch]:
    found = launches(call, target, monkeypatch)
    assert found
    for launch in found:
        trace = launch.retarget(target)
        used = trace.resources
        assert used.spill_bytes == 0, f"{launch.kernel.__name__}: {used}"
        assert not used.warnings  # C7514 and similar: the messages of ptxas when it serialises wgmma
    if multiplies:
        assert any(INSTRUCTION[target] in (launch.retarget(target).ptx or "") for launch in found)
    return found


def sample(step: int, *lists: Sequence[Any]) -> list[Any]:
    """Every combination; only each n-th of them runs without --full."""
    return [
        pytest.param(*x, marks=() if i % step == 0 else pytest.mark.full)
        for i, x in enumerate(itertools.product(*lists))
    ]


@pytest.mark.parametrize(("shape", "target"), sample(2, SHAPES, list(DEVICES)))
def test_strategy_chosen_for_a_shape_fits_its_target(target, shape, monkeypatch):
    m, n, k = shape
    a, b = zeros((m, k), "fp16"), zeros((k, n), "fp16")
    (first, *rest) = check(lambda: ready.matmul(a, b, zeros((m, n), "fp16")), target, monkeypatch)
    device, by_tma = DEVICES[target], target == "sm_90a"
    chosen = (
        plan(*shape, 2, device, (OperandRows.LINE_ALIGNED,) * 2, True).tile
        if by_tma
        else choose(*shape, 2, device, 1, True)
    )
    split = chosen.splits > 1
    assert len(rest) == split
    names = {True: ("matmul_descriptor_kernel", "split_descriptor_kernel"), False: ("matmul_kernel", "split_kernel")}
    assert first.kernel.__name__ == names[by_tma][split]


@pytest.mark.parametrize(("dtype", "order"), sample(3, list(DTYPES), ["nn", "nt", "tn", "tt"]))
def test_matmul_of_every_dtype_and_order_on_hopper(dtype, order, monkeypatch):
    n = 4096
    a, b = (zeros((n, n), dtype, way == "t") for way in order)
    out = zeros((n, n), {"int8": np.int32, "fp8": "bf16"}.get(dtype, dtype))
    check(lambda: ready.matmul(a, b, out), "sm_90a", monkeypatch)


@pytest.mark.parametrize(("m", "order"), [(2048, "nn"), (4096, "tt"), (2048, "tn")])
def test_fp32_matmul_of_any_order_with_epilogues_on_hopper(order, m, monkeypatch):
    """TMA copies both operands and stores the result."""
    a, b, out = (
        zeros((m, 2048), "fp32", order[0] == "t"),
        zeros((2048, 4096), "fp32", order[1] == "t"),
        zeros((m, 4096), "fp32"),
    )
    *transposed, launch = check(
        lambda: ready.matmul(a, b, out, bias=zeros((4096,), "fp32"), activation="gelu"), "sm_90a", monkeypatch
    )
    assert [x.kernel.__name__ for x in transposed] == ["transpose_kernel"] * (order == "tn")
    names = [op.name for op in launch.retarget("sm_90a").stages[-1].after.ops()]
    assert names.count("copy_bulk") == 2 and "store_bulk" in names and "store" not in names


@pytest.mark.parametrize(("dtype", "target"), sample(2, ["fp16", "fp32", "int8"], ["sm_80", "sm_75"]))
def test_matmul_of_every_dtype_before_hopper(target, dtype, monkeypatch):
    a, b = zeros((4096, 4096), dtype), zeros((4096, 4096), dtype, True)
    out = zeros((4096, 4096), np.int32 if dtype == "int8" else dtype)
    check(lambda: ready.matmul(a, b, out), target, monkeypatch, multiplies=target != "sm_75" or dtype == "fp16")


WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "pointers": lambda a, b, out: ready.matmul_pointers(a, b, out, activation="leaky_relu"),
    "host": lambda a, b, out: ready.matmul_descriptors(a, b, out, strategy="host"),
    "persistent": lambda a, b, out: ready.matmul_descriptors(a, b, out, strategy="persistent", num_warps=8),
    "followed": lambda a, b, out: ready.matmul(a, b, out, bias=zeros((4096,), "fp16"), activation="gelu"),
    "scaled": lambda a, b, out: ready.matmul(a, b, out, a_scale=zeros((4096,), "fp32"), b_scale=zeros((4096,), "fp32")),
}


@pytest.mark.parametrize(("way", "target"), sample(5, list(WAYS), list(DEVICES)))
def test_every_matmul_strategy(target, way, monkeypatch):
    a, b, out = (zeros((4096, 4096), "fp16") for _ in range(3))
    check(lambda: WAYS[way](a, b, out), target, monkeypatch)


@pytest.mark.parametrize(
    ("dtype", "activation", "bias", "scales"),
    sample(13, ("fp16", "fp8", "fp32"), ("leaky_relu", "silu", "gelu"), (False, True), (0, 1, 4096)),
)
def test_matmul_epilogues_on_hopper(dtype, activation, bias, scales, monkeypatch):
    if dtype == "fp32" and bias and scales > 1:
        pytest.skip("a row, a column and a bias of fp32 do not fit next to 128 accumulators per thread")
    a, b = (zeros((4096, 4096), dtype, way == "t") for way in "nt")
    result = {"fp8": "bf16"}.get(dtype, dtype)
    given = {"a_scale": zeros((scales,), "fp32"), "b_scale": zeros((scales,), "fp32")} if scales else {}
    given |= {"bias": zeros((4096,), result)} if bias else {}
    out = zeros((4096, 4096), result)
    check(lambda: ready.matmul(a, b, out, activation=activation, **given), "sm_90a", monkeypatch)


@pytest.mark.parametrize("target", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.full), "sm_75"])
def test_batched_and_grouped_matmul(target, monkeypatch):
    a, b = zeros((8, 1024, 1024), "fp16"), zeros((8, 1024, 1024), "fp16")
    check(lambda: ready.matmul(a, b, zeros((8, 1024, 1024), "fp16")), target, monkeypatch)
    check(
        lambda: ready.grouped_matmul(
            zeros((8192, 1024), "fp16"), b, np.zeros(8, np.int32), zeros((8192, 1024), "fp16")
        ),
        target,
        monkeypatch,
    )
    some = [zeros((n, 512), "fp16") for n in (256, 1024)]
    check(lambda: ready.matmul_many(some, [zeros((512, 768), "fp16")] * 2), target, monkeypatch)
