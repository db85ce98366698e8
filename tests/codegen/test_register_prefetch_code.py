"""Machine code of loops with register prefetch: the next iteration's loads come before this one's computation, without spills."""

from __future__ import annotations

import re

import pytest

import blocknb
import blocknb.language as bl
from blocknb.kernels.norm_gradients import norm_backward_kernel, sum_columns_kernel
from blocknb.trace import Trace

TARGETS = ["sm_80", "sm_90a", "sm_120a"]


@blocknb.kernel
def logsumexp(x, out, x_row, n, BLOCK: bl.constexpr):
    row, columns = bl.program_id(0), bl.arange(0, BLOCK)
    most = bl.full((BLOCK,), -float("inf"), bl.float32)
    total = bl.zeros((BLOCK,), bl.float32)
    for start in range(0, n, BLOCK):
        at = start + columns
        values = bl.load(x + row * x_row + at, mask=at < n, other=-float("inf")).to(bl.float32)
        higher = bl.maximum(most, values)
        total = total * bl.exp(most - higher) + bl.exp(values - higher)
        most = higher
    top = bl.max(most, 0)
    bl.store(out + row, bl.log(bl.sum(total * bl.exp(most - top), 0)) + top)


@blocknb.kernel
def softmax_rows(x, out, x_row, m, n, BLOCK: bl.constexpr):
    columns = bl.arange(0, BLOCK)
    for row in range(bl.program_id(0), m, bl.num_programs(0)):
        values = bl.load(x + row * x_row + columns, mask=columns < n, other=-float("inf")).to(bl.float32)
        power = bl.exp(values - bl.max(values, 0))
        bl.store(out + row * x_row + columns, power / bl.sum(power, 0), mask=columns < n)


def loops(trace: Trace) -> list[list[str]]:
    """The opcodes of each loop of the machine code: from a label to the branch back to it."""
    labels: dict[str, int] = {}
    codes: list[str] = []
    found = []
    for line in trace.sass.text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(codes)
        elif code := re.match(r"\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*)", line):
            codes.append(code[1].split(".")[0])
            target = re.search(r"\(?(\.L_x_\d+)", code[2]) if codes[-1] == "BRA" else None
            if target and target[1] in labels and labels[target[1]] < len(codes) - 1:
                found.append(codes[labels[target[1]] :])
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("kernel", [logsumexp, softmax_rows])
def test_loads_of_the_next_iteration_are_issued_before_any_computation(kernel, dtype, target):
    more = {"m": "i32"} if "m" in kernel.arg_names else {}
    trace = kernel.trace(
        f"*{dtype}:16",
        "*fp32:16",
        "i32:16",
        n="i32:16",
        BLOCK=4096,
        num_warps=8,
        num_stages=2,
        target=target,
        **more,
    )
    (loop,) = (codes for codes in loops(trace) if "LDG" in codes)
    computes = min(loop.index(code) for code in ("MUFU", "SHFL") if code in loop)
    last = max(i for i, code in enumerate(loop) if code == "LDG")
    assert loop.count("LDG") == {"fp16": 2, "fp32": 4}[dtype]
    assert last < computes
    assert trace.resources.spill_bytes == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
def test_packed_16_bit_pairs_are_carried_without_unpacking(target):
    """Unpacking and packing would need one or two PRMT per pair and iteration."""
    trace = softmax_rows.trace(
        "*fp16:16",
        "*fp16:16",
        "i32:16",
        "i32",
        "i32:16",
        BLOCK=4096,
        num_warps=8,
        num_stages=2,
        target=target,
    )
    (loop,) = (codes for codes in loops(trace) if "LDG" in codes)
    assert "PRMT" not in loop


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("block", "warps"), [(1024, 4), (4096, 8), (8192, 16)])
def test_prefetched_values_cause_no_spills(block, warps, target, stages):
    half, row, sums = "*fp16:16", "i32:16", "*fp32:16"
    trace = norm_backward_kernel.trace(
        half, half, half, sums, sums, half, sums, sums, row, row, row, row, row, CENTRED=True, ROWS=1, BLOCK=block,
        num_warps=warps, num_stages=stages, target=target,
    )  # fmt: skip
    assert trace.resources.spill_bytes == 0
    trace = sum_columns_kernel.trace(sums, sums, sums, "i32", row, ROWS=32, BLOCK=64, num_stages=stages, target=target)
    assert trace.resources.spill_bytes == 0
