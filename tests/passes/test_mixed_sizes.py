"""Layouts beside wgmma: tiles of several element sizes share one, and all threads load the elements of a short line that they need."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from fuzz import simt
from kernels.base import Case, parameters
from support import check_pipeline

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.ir.core import Func, Op
from blocknb.target import Target


@blocknb.kernel
def decayed_product(keys, decay, line, kept, out, R: bl.constexpr, K: bl.constexpr):
    """The product of keys times their decay with the keys, times one number per row."""
    rows = bl.arange(0, R)
    at = rows[:, None] * K + bl.arange(0, K)[None, :]
    key = bl.load(keys + at)
    scaled = (key.to(bl.float32) * bl.load(decay + at)).to(key.dtype)
    bl.store(kept + at, scaled)
    product = bl.dot(scaled, bl.trans(key))
    row = bl.load(line + rows).to(bl.float32)
    bl.store(out + rows[:, None] * R + rows[None, :], product * row[:, None])


def given(rows: int = 64, dtype=ml_dtypes.bfloat16) -> dict:
    rng = np.random.default_rng(0)
    keys, decay, line = (rng.integers(-3, 4, shape) for shape in ((rows, 64), (rows, 64), (rows,)))
    return {
        "keys": keys.astype(dtype),
        "decay": decay.astype(np.float32),
        "line": line.astype(ml_dtypes.bfloat16),
        "kept": np.full((rows, 64), 7, dtype),
        "out": np.full((rows, rows), np.nan, np.float32),
        "R": rows,
        "K": 64,
    }


def distributed(arguments: dict, target: str = "sm_90a", warps: int = 4) -> Func:
    func = Case("decayed_product", decayed_product, dict, dict).parse(arguments, num_warps=warps)
    stages = passes.run(func, Target.parse(target))[1]
    return next(stage.after for stage in stages if stage.name == "layout_assignment")


def tiles(func: Func) -> list[tuple[str, int]]:
    """The dtype of each tile that is loaded or stored, and its consecutive elements per thread; without lines and the product."""
    moved = [(op.result if op.name == "load" else op.args[1]).type for op in accesses(func)]
    return [(x.dtype.name, x.layout.contiguous_registers(1)) for x in moved if len(x.shape) == 2][:3]


def accesses(func: Func) -> list[Op]:
    return [op for op in func.ops() if op.name in ("load", "store") and op.args[0].type.shape]


def converted(func: Func) -> list[str]:
    """The dtypes and dimensions of the tiles of floats whose layout is converted."""
    types = [op.result.type for op in func.ops() if op.name == "convert"]
    return [f"{x.dtype.name} {len(x.shape)}" for x in types if x.dtype.is_float]


def test_tiles_of_two_element_sizes_share_the_layout_of_the_smaller_one():
    func = distributed(given())
    assert tiles(func) == [("bf16", 8), ("fp32", 8), ("bf16", 8)]
    assert converted(func) == ["fp32 2"]  # the product, for its store
    used = {(op.result if op.name == "load" else op.args[1]).type.layout for op in accesses(func)[:3]}
    assert len(used) == 1


def test_the_larger_elements_decide_beside_mma_sync():
    func = distributed(given(), "sm_80")
    assert tiles(func)[:2] == [("bf16", 4), ("fp32", 4)]
    assert "bf16 2" in converted(func)


def test_each_thread_loads_the_elements_of_a_short_line_that_it_needs():
    func = distributed(given())
    (line,) = (op.result for op in accesses(func) if op.name == "load" and len(op.args[0].type.shape) == 1)
    (dot,) = (op.result for op in func.ops() if op.name == "dot")
    assert line.type.layout == dot.type.layout.slice(1) and line.type.layout.is_replicated


def test_a_long_line_is_loaded_once_and_converted():
    assert "bf16 1" in converted(distributed(given(128)))


@pytest.mark.parametrize("rows", [64, 128])
def test_each_pass_keeps_the_results(rows):
    arguments = given(rows)
    func = Case("decayed_product", decayed_product, dict, dict).parse(arguments, num_warps=4)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")


def test_the_gpu_code_is_right():
    arguments = given()
    func, _ = Case("decayed_product", decayed_product, dict, dict).lower(arguments, "sm_90a", num_warps=4)
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, arguments), [1])
    keys, line = (arguments[name].astype(np.float32) for name in ("keys", "line"))
    scaled = keys * arguments["decay"]
    assert (arguments["kept"].astype(np.float32) == scaled).all()
    assert (arguments["out"] == scaled @ keys.T * line[:, None]).all()
