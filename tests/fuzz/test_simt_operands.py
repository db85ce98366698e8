"""The simulator of GPU code reads the operands of instructions: eviction policies, and numbers in constant memory."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from kernels import Case

import blocknb
import blocknb.language as bl
from blocknb.codegen import gpu
from blocknb.codegen.gpu import GpuModule
from blocknb.target import Target
from fuzz import simt
from fuzz.simt_machine import constants_of


@blocknb.kernel
def product(a, b, out, k, BLOCK: bl.constexpr):
    at = bl.arange(0, BLOCK)
    total = bl.zeros((BLOCK, BLOCK), bl.float32)
    for start in range(0, k, BLOCK):
        columns = start + at
        x = bl.load(a + at[:, None] * k + columns[None, :], mask=columns[None, :] < k, eviction_policy="evict_first")
        y = bl.load(b + columns[:, None] * BLOCK + at[None, :], mask=columns[:, None] < k, other=0.0)
        total = bl.dot(x, y, total)
    bl.store(out + at[:, None] * BLOCK + at[None, :], total, eviction_policy="evict_last")


@blocknb.kernel
def converted(x, out, BLOCK: bl.constexpr):
    at = bl.arange(0, BLOCK)
    packed = bl.load(x + at)
    bl.store(out + at[:, None] * 2 + bl.arange(0, 2)[None, :], bl.join(packed & 15, packed >> 4 & 15).to(bl.float16))


def generated(kernel, arguments: dict, target: str) -> GpuModule:
    func, _ = Case(kernel.__name__, kernel, dict, dict).lower(arguments, target)
    return gpu.generate(func, Target.parse(target))


def changed(module: GpuModule, old: str, new: str) -> GpuModule:
    return replace(module, text=re.sub(old, new, module.text))


@pytest.fixture
def factors():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((32, 80), (80, 32)))
    return {"a": a, "b": b, "out": np.zeros((32, 32), np.float32), "k": 80, "BLOCK": 32}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_product_whose_operand_has_a_policy_is_right(factors, target):
    module = generated(product, factors, target)
    a, b, out, k, _ = factors.values()
    assert ".L2::cache_hint" in module.text
    simt.run(module, [a, b, out, k], [1])
    assert (out == a.astype(np.float32) @ b.astype(np.float32)).all()


@pytest.mark.parametrize("policy", [0x12F0000000000000, 0x14F0000000000000])
def test_an_access_with_another_number_as_its_policy_is_refused(factors, policy):
    module = generated(product, factors, "sm_80")
    assert f"i64 {policy}" in module.text
    with pytest.raises(ValueError, match="not the policy of"):
        simt.run(changed(module, f"i64 {policy}", "i64 17"), list(factors.values())[:4], [1])


def test_a_number_in_constant_memory_comes_from_its_definition_not_from_its_name():
    x, out = np.arange(256, dtype=np.uint8), np.zeros((256, 2), np.float16)
    module = generated(converted, {"x": x, "out": out, "BLOCK": 256}, "sm_90a")
    expected = np.stack((x & 15, x >> 4), 1).astype(np.float16)
    assert constants_of(module.text)
    simt.run(module, [x, out], [1])
    assert (out == expected).all()
    simt.run(changed(module, r"\.bits(\d+)", r".bits1\1"), [x, out], [1])
    assert (out == expected).all()
    simt.run(changed(module, r"(addrspace\(4\) externally_initialized constant i32) \d+", r"\1 0"), [x, out], [1])
    assert not (out == expected).all()
