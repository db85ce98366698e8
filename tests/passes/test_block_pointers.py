"""Kernels with block pointers and descriptors compile as well as those with tiles of pointers: vectors, tensor cores, small loops."""

from __future__ import annotations

from typing import Any

import pytest
from kernels import blocks

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.frontend.parse import ArgType, Constant, parse
from blocknb.ir.core import Func
from blocknb.language import types as t
from blocknb.target import Target

BLOCKS = {"BM": 128, "BN": 128, "BK": 32}


@blocknb.kernel
def with_pointers(a, b, c, m, n, k, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    pa, pb = a + rows[:, None] * sa + inner[None, :], b + inner[:, None] * sb + columns[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        x = tl.load(pa, mask=(rows[:, None] < m) & (inner[None, :] < k - at), other=0.0)
        y = tl.load(pb, mask=(inner[:, None] < k - at) & (columns[None, :] < n), other=0.0)
        acc = tl.dot(x, y, acc)
        pa += BK
        pb += BK * sb
    tl.store(
        c + rows[:, None] * sc + columns[None, :], acc.to(tl.float16), mask=(rows[:, None] < m) & (columns[None, :] < n)
    )


@blocknb.kernel
def with_block_pointers(a, b, c, m, n, k, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    pa = tl.make_block_ptr(a, (m, k), (sa, 1), (i, 0), (BM, BK), (1, 0))
    pb = tl.make_block_ptr(b, (k, n), (sb, 1), (0, j), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        acc = tl.dot(tl.load(pa, boundary_check=(0, 1)), tl.load(pb, boundary_check=(0, 1)), acc)
        pa, pb = tl.advance(pa, (0, BK)), tl.advance(pb, (BK, 0))
    tl.store(tl.make_block_ptr(c, (m, n), (sc, 1), (i, j), (BM, BN), (1, 0)), acc.to(tl.float16), boundary_check=(0, 1))


@blocknb.kernel
def with_descriptors(a, b, c, m, n, k, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    da = tl.make_tensor_descriptor(a, (m, k), (sa, 1), (BM, BK))
    db = tl.make_tensor_descriptor(b, (k, n), (sb, 1), (BK, BN))
    dc = tl.make_tensor_descriptor(c, (m, n), (sc, 1), (BM, BN))
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        acc = tl.dot(da.load([i, at]), db.load([at, j]), acc)
    dc.store([i, j], acc.to(tl.float16))


@blocknb.kernel
def with_passed_descriptors(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        acc = tl.dot(a.load([i, at]), b.load([at, j]), acc)
    c.store([i, j], acc.to(tl.float16))


def lowered(kernel: Any, divisor: int = 16, constants: dict[str, Any] = BLOCKS) -> dict[str, Func]:
    """The function after each pass."""
    shapes = {"a": ("BM", "BK"), "b": ("BK", "BN"), "c": ("BM", "BN")}
    given: dict[str, Any] = {}
    for p in kernel.source.parameters:
        if p.constexpr:
            given[p.name] = Constant(constants[p.name])
        elif kernel is with_passed_descriptors and p.name in shapes:
            given[p.name] = ArgType(t.Descriptor(t.float16, tuple(constants[n] for n in shapes[p.name])), divisor)
        elif p.name in ("abc" if kernel is not blocks.block_attention else ("q", "k", "v", "out")):
            given[p.name] = ArgType(t.Tile(t.Pointer(t.float16)), 16)
        else:
            given[p.name] = ArgType(t.Tile(t.float32 if p.name == "scale" else t.int32), divisor)
    func = parse(kernel.source, given, {"num_warps": 4, "num_stages": 3})
    return {stage.name: stage.after for stage in passes.run(func, Target.parse("sm_90a"))[1]}


def vectors(func: Func) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(op.name, op.attrs["vec"], op.args[0].type.shape) for op in func.ops() if op.name in ("load", "store")]


def inner_loop(func: Func) -> list[str]:
    return [op.name for op in next(op for op in func.ops() if op.name == "for").blocks[0].ops]


TWINS = [with_block_pointers, with_descriptors, with_passed_descriptors]


@pytest.mark.parametrize(
    ("kernel", "divisor"), [*((k, 16) for k in TWINS), (with_block_pointers, 1), (with_descriptors, 1)]
)
def test_accesses_are_as_wide_as_with_pointers(kernel: Any, divisor: int) -> None:
    expected = vectors(lowered(with_pointers, divisor)["coalesce"])
    assert vectors(lowered(kernel, divisor)["coalesce"]) == expected
    assert {vec for _, vec, _ in expected} == ({8} if divisor == 16 else {1})


@pytest.mark.parametrize("kernel", TWINS, ids=lambda k: k.__name__)
def test_products_use_the_same_instruction_and_layouts(kernel: Any) -> None:
    def dot(k: Any) -> Any:
        return next(dict(op.attrs) for op in lowered(k)["select_wgmma"].ops() if op.name == "dot")

    assert dot(kernel) == dot(with_pointers)
    assert dot(kernel)["instr"].startswith("wgmma.m64n")


@pytest.mark.parametrize("kernel", TWINS, ids=lambda k: k.__name__)
def test_inner_loop_has_few_more_ops_than_with_pointers(kernel: Any) -> None:
    mine, theirs = (inner_loop(lowered(k)["pointers"]) for k in (kernel, with_pointers))
    func = lowered(kernel)["pointers"]
    loop = next(op for op in func.ops() if op.name == "for")
    tiles = [op for op in loop.blocks[0].ops if op.results and op.result.type.shape]
    wide = [op.name for op in tiles if not op.result.type.is_pointer and op.result.type.dtype == t.int64]
    assert not wide  # offsets within a block are computed before the loop
    for name in ("load", "dot", "and", "broadcast"):
        assert mine.count(name) == theirs.count(name)
    assert mine.count("cmp") <= theirs.count("cmp") + 1
    assert len(mine) <= len(theirs) + (11 if kernel is with_block_pointers else 5)


def test_attention_with_block_pointers_loads_vectors_and_uses_tensor_cores() -> None:
    given = {"ROWS": 64, "COLUMNS": 64, "HEAD": 64, "CAUSAL": True}
    stages = lowered(blocks.block_attention, 16, given)
    assert vectors(stages["coalesce"]) == [
        ("load", 8, (64, 64)),
        ("load", 8, (64, 64)),
        ("load", 8, (64, 64)),
        ("store", 8, (64, 64)),
    ]
    assert all("wgmma.m64n64k16" in op.attrs["instr"] for op in stages["select_wgmma"].ops() if op.name == "dot")
