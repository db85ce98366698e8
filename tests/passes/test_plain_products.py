"""Products by plain multiply-adds, and forward substitution: what the passes and the code generator make of small tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case

import blocknb.language as bl
from blocknb import kernel, passes
from blocknb.bench.suite.kinds import loaded
from blocknb.codegen import gpu
from blocknb.ir import interp
from blocknb.ir.core import Func, walk
from blocknb.target import Target

SM = Target.parse("sm_90a")


@kernel
def chained(a, b, c, N: bl.constexpr):
    """c = b (a b)"""
    at = bl.arange(0, N)[:, None] * N + bl.arange(0, N)[None, :]
    x, y = bl.load(a + at), bl.load(b + at)
    bl.store(c + at, bl.dot(y, bl.dot(x, y, input_precision="ieee"), input_precision="ieee"))


def lowered(kernel: Any, arguments: dict[str, Any], num_warps: int) -> Func:
    func = Case(kernel.__name__, kernel, dict, dict).parse(arguments, num_warps=num_warps)
    return passes.run(func, SM)[0]


@pytest.mark.parametrize("warps", [1, 4])
def test_operands_are_stored_once_and_read_as_vectors(warps: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (16, 16)).astype(np.float32) for _ in range(2))
    arguments = {"a": a, "b": b, "c": np.full((16, 16), np.nan, np.float32), "N": 16}
    func = lowered(chained, arguments, warps)
    assert sum(op.name == "local_store" for op in func.ops()) == 3  # a, b, and the first product
    interp.run(func, [a, b, arguments["c"]], 1)
    np.testing.assert_array_equal(arguments["c"], b @ (a @ b))
    text = gpu.generate(func, SM).text
    each = 16 * 16 // (32 * warps)  # the elements of a thread
    assert text.count("call float @llvm.fma.f32") == 2 * 16 * each
    assert text.count("load <4 x float>, ptr addrspace(3)") >= 2 * 4
    assert "load float, ptr addrspace(3)" not in text


def test_forward_substitution_has_no_barrier_in_its_loop() -> None:
    module = loaded("triangles", "blocknb")
    a = (np.random.default_rng(0).standard_normal((1, 32, 1, 32)) * 0.1).astype(np.float32)
    arguments = {"A": a, "Ai": np.zeros((1, 32, 1, 16), np.float32), "T": 32, "H": 1, "BT": 32}
    func = lowered(module._solve_16, arguments, 4)
    loops = [op for op in func.ops() if op.name == "for"]
    assert loops and not [op for loop in loops for op in walk(loop.blocks[0]) if op.name in ("barrier", "local_store")]
    interp.run(func, [a, arguments["Ai"], 32], (2, 1))
    expected = [np.linalg.inv(np.eye(16) + np.tril(a[0, i : i + 16, 0, i : i + 16], -1)) for i in (0, 16)]
    np.testing.assert_allclose(arguments["Ai"][0, :, 0], np.concatenate(expected), 1e-5, 1e-6)
