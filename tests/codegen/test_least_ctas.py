"""The least number of CTAs per SM that a kernel asks ptxas for. With fewer CTAs, it may take more registers for loads of a later
iteration."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import simt
from kernels.base import Case, parameters

import blocknb
import blocknb.language as bl
from blocknb.codegen import gpu
from blocknb.ir.build import rebuild, revised
from blocknb.ir.core import Func
from blocknb.target import Target


@blocknb.kernel(do_not_specialize=["steps"])
def scaled_products(x, scale, shift, out, steps, R: bl.constexpr, PRODUCT: bl.constexpr, SHIFT: bl.constexpr):
    rows, columns = bl.arange(0, R), bl.arange(0, 16)
    at = rows[:, None] * 16 + columns[None, :]
    total = bl.zeros((R, 16), bl.float32)
    for step in range(steps):
        s = bl.load(scale + step * R + rows)
        t = bl.load(shift + step * R + rows) if SHIFT else s
        a = bl.load(x + step * R * 16 + at)
        if PRODUCT:
            b = bl.load(x + step * R * 16 + columns[:, None] * 16 + columns[None, :])
            total += bl.dot(a, b) * s[:, None] + t[:, None]
        else:
            total += a.to(bl.float32) * s[:, None] + t[:, None]
    bl.store(out + at, total)


def given(rows: int, product: bool, shift: bool) -> dict:
    rng = np.random.default_rng(0)
    x, scale, offset = (rng.integers(-3, 4, shape) for shape in ((3, rows, 16), (3, rows), (3, rows)))
    arrays = {"x": x.astype(np.float16), "scale": scale.astype(np.float32), "shift": offset.astype(np.float32)}
    out = np.full((rows, 16), np.nan, np.float32)
    return {**arrays, "out": out, "steps": 3, "R": rows, "PRODUCT": product, "SHIFT": shift}


def lowered(arguments: dict, warps: int = 1) -> Func:
    case = Case("scaled_products", scaled_products, dict, dict)
    return case.lower(arguments, "sm_80", num_warps=warps, num_stages=2)[0]


def prefetched(func: Func) -> int:
    """The registers per thread of the loads in the loop with a scheduling barrier."""
    (loop,) = (op for op in func.ops() if op.name == "for")
    loads = [op for op in loop.blocks[0].ops if op.name == "load"]
    assert loads[-1].attrs["scheduling_barrier"] is True
    return sum(max(1, op.result.type.layout.num_registers * op.result.type.dtype.bytes // 4) for op in loads)


def text_of(func: Func) -> str:
    return gpu.generate(func, Target.parse("sm_80")).text


def straightened(func: Func) -> Func:
    """The function with the other kind of scheduling barrier."""

    def visit(op, rebuild):
        if not op.attrs.get("scheduling_barrier"):
            return NotImplemented
        return rebuild.keep(revised(op, attrs={**op.attrs, "scheduling_barrier": "straight"})).results

    return rebuild(func, visit)


@pytest.mark.parametrize(("rows", "shift", "registers"), [(16, False, 2), (16, True, 4), (32, False, 4), (32, True, 8)])
def test_beside_products_a_prefetch_of_8_registers_sets_the_least_number_of_ctas(rows, shift, registers):
    func = lowered(given(rows, True, shift))
    assert any(op.name == "dot" for op in func.ops()) and prefetched(func) == registers
    assert ('"nvvm.minctasm"="1"' in text_of(func)) is (registers >= 8)


@pytest.mark.parametrize(("rows", "warps", "registers"), [(16, 4, 2), (32, 1, 10)])
def test_without_products_any_prefetch_sets_it(rows, warps, registers):
    func = lowered(given(rows, False, False), warps)
    assert prefetched(func) == registers
    assert '"nvvm.minctasm"="1"' in text_of(func)


@pytest.mark.parametrize("product", [False, True])
def test_a_straight_barrier_never_sets_it_but_ends_a_basic_block(product):
    func = lowered(given(32, product, True))
    text, other = text_of(func), text_of(straightened(func))
    assert "nvvm.minctasm" in text and "nvvm.minctasm" not in other
    assert "sreg.clock" not in text and "sreg.clock" in other


@pytest.mark.parametrize("straight", [False, True])
@pytest.mark.parametrize("product", [False, True])
def test_the_gpu_code_is_right_with_both_barriers(product, straight):
    arguments = given(32, product, True)
    func = lowered(arguments)
    module = gpu.generate(straightened(func) if straight else func, Target.parse("sm_80"))
    simt.run(module, parameters(func, arguments), [1])
    x, s, t = (arguments[name].astype(np.float32) for name in ("x", "scale", "shift"))
    values = x @ x[:, :16] if product else x
    assert (arguments["out"] == (values * s[..., None] + t[..., None]).sum(0)).all()
