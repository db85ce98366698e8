"""Tiles that exceed a thread's registers, and sorts that are too long to unroll: short code and right results, simulated in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from frontend_helpers import kind
from kernels import CASES
from kernels.base import array_of, copied, host_address

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.bench import scaling
from blocknb.codegen import gpu
from blocknb.codegen.gpu import scheduling
from blocknb.frontend.parse import Constant, parse
from blocknb.ir.core import Func
from blocknb.language import moves
from blocknb.language.constants import constexpr
from blocknb.passes.memory import strip_mining
from blocknb.passes.support.emission import IN_PIECES, emitted
from blocknb.target import Target
from fuzz import reports

SM90A = Target.parse("sm_90a")


def parsed(kernel, warps=4, **constants) -> Func:
    types = {p.name: kind("i32" if p.name == "n" else "*f32") for p in kernel.source.parameters if not p.constexpr}
    arguments = types | {name: Constant(value) for name, value in constants.items()}
    return parse(kernel.source, arguments, {"num_warps": warps, "num_stages": 3}, SM90A)


def lowered(kernel, warps=4, **constants) -> Func:
    return passes.run(parsed(kernel, warps, **constants), SM90A)[0]


def lines(operation: str, size: int) -> int:
    return gpu.generate(lowered(scaling.tile(operation, size)), SM90A).text.count("\n")


@pytest.mark.parametrize("operation", ["add", "reduce", "softmax"])
def test_code_size_of_a_strip_mined_tile_does_not_grow_with_the_tile(operation):
    """Only the number of iterations grows, and a constant or two."""
    assert lines(operation, 1 << 16) == lines(operation, 1 << 18) < 3000


@pytest.mark.sampled(2, each=["operation", "registers"])
@pytest.mark.parametrize("operation", ["add", "reduce", "softmax"])
@pytest.mark.parametrize(("registers", "piece"), [(16, 8), (8, 4), (12, 16)])
def test_strip_mined_tile_gives_the_same_result(operation, registers, piece, monkeypatch):
    monkeypatch.setattr(strip_mining, "registers", lambda func: registers)
    monkeypatch.setattr(strip_mining, "piece_of", lambda func: piece)
    func = lowered(scaling.tile(operation, 2048), warps=2)
    assert "piece" in gpu.generate(func, SM90A).text
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(2048).astype(np.float32) for _ in range(2))
    out = np.full(2048, np.nan, np.float32)
    n = 2048 if operation == "softmax" else 2000
    reports.run(func, {"x_ptr": x, "y_ptr": y, "out_ptr": out, "n": n}, (1, 1, 1))
    if operation == "reduce":
        np.testing.assert_allclose(out[0], x[:n].astype(np.float64).sum(), rtol=1e-5)
        return
    exact = np.exp(x.astype(np.float64) - x.max())
    expected = (x + y if operation == "add" else exact / exact.sum())[:n]
    np.testing.assert_allclose(out[:n], expected, rtol=1e-5)
    assert np.isnan(out[n:]).all()


@blocknb.kernel
def in_place(x_ptr, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    x = bl.load(x_ptr + i, mask=i < n)
    bl.store(x_ptr + i, bl.exp(x - bl.max(x, 0)), mask=i < n)


@blocknb.kernel
def shifted(x_ptr, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.store(x_ptr + i + 1, bl.load(x_ptr + i, mask=i < n), mask=i < n)


@blocknb.kernel
def twice(x_ptr, out_ptr, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    x = bl.load(x_ptr + i, mask=i < n)
    bl.store(out_ptr + i, x - bl.max(x, 0), mask=i < n)
    bl.store(x_ptr + BLOCK - 1 - i, 0.0, mask=i < n)


@blocknb.kernel
def flagged(x_ptr, out_ptr, flag_ptr, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    x = bl.load(x_ptr + i, mask=i < n)
    bl.store(flag_ptr, 1.0)
    bl.store(out_ptr + i, x, mask=i < n)


@blocknb.kernel
def counted(x_ptr, out_ptr, flag_ptr, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    x = bl.load(x_ptr + i, mask=i < n)
    bl.atomic_add(flag_ptr, 1.0)
    bl.store(out_ptr + i, x, mask=i < n)


@blocknb.kernel
def square(x_ptr, out_ptr, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)[:, None] * BLOCK + bl.arange(0, BLOCK)[None, :]
    x = bl.load(x_ptr + i)
    bl.store(out_ptr + i, x + bl.sum(x, 1)[:, None])


@pytest.fixture
def few_registers(monkeypatch):
    monkeypatch.setattr(strip_mining, "registers", lambda func: 8)
    monkeypatch.setattr(strip_mining, "piece_of", lambda func: 4)


def test_strip_mined_tile_may_be_stored_in_place(few_registers):
    func = lowered(in_place, BLOCK=2048)
    assert "piece" in gpu.generate(func, SM90A).text
    x = np.random.default_rng(2).standard_normal(2048).astype(np.float32)
    got = x.copy()
    reports.run(func, {"x_ptr": got, "n": 2048}, (1, 1, 1))
    np.testing.assert_allclose(got, np.exp(x - x.max()), rtol=1e-5)


@blocknb.kernel
def old_and_new(x_ptr, y_ptr, out_ptr, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    x, y = bl.load(x_ptr + i), bl.load(y_ptr + i)
    bl.store(x_ptr + i, x + y)
    bl.store(out_ptr + i, x)


@blocknb.kernel
def exchanged(x_ptr, y_ptr, x_too_ptr, y_too_ptr, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    x, y = bl.load(x_ptr + i), bl.load(y_ptr + i)
    bl.store(x_too_ptr + i, y)
    bl.store(y_too_ptr + i, x)


@blocknb.kernel
def permuted(x_ptr, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    x = bl.load(x_ptr + i)
    bl.store(x_ptr + i, bl.reshape(bl.trans(bl.reshape(x, (2, 2, BLOCK // 4)), 1, 0, 2), (BLOCK,)))


@blocknb.kernel
def after_a_barrier(x_ptr, out_ptr, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    x = bl.load(x_ptr + i)
    bl.debug_barrier()
    bl.store(out_ptr + i, x)


def test_strip_mined_load_reads_the_values_before_a_later_store(few_registers):
    func = lowered(old_and_new, BLOCK=2048)
    assert emitted(func, IN_PIECES)  # y, not x
    x, y = np.random.default_rng(5).standard_normal((2, 2048)).astype(np.float32)
    new, out = x.copy(), np.full_like(x, np.nan)
    reports.run(func, {"x_ptr": new, "y_ptr": y, "out_ptr": out, "n": 2048}, (1, 1, 1))
    np.testing.assert_array_equal(new, x + y)
    np.testing.assert_array_equal(out, x)


def test_strip_mined_arguments_may_alias(few_registers):
    func = lowered(exchanged, BLOCK=2048)
    x, y = np.random.default_rng(6).standard_normal((2, 2048)).astype(np.float32)
    a, b = x.copy(), y.copy()
    reports.run(func, {"x_ptr": a, "y_ptr": b, "x_too_ptr": a, "y_too_ptr": b}, (1, 1, 1))
    np.testing.assert_array_equal(a, y)
    np.testing.assert_array_equal(b, x)


def test_permuted_tile_is_stored_in_place_correctly(few_registers):
    func = lowered(permuted, warps=1, BLOCK=2048)
    x = np.random.default_rng(7).standard_normal(2048).astype(np.float32)
    got = x.copy()
    reports.run(func, {"x_ptr": got}, (1, 1, 1))
    np.testing.assert_array_equal(got, x.reshape(2, 2, -1).transpose(1, 0, 2).ravel())


@pytest.mark.parametrize("kernel", [shifted, twice, flagged, counted, after_a_barrier])
def test_load_stays_before_accesses_that_may_alias(kernel):
    assert "piece" not in gpu.generate(lowered(kernel, BLOCK=1 << 16), SM90A).text


def test_tiles_of_two_axes_are_strip_mined(monkeypatch):
    monkeypatch.setattr(strip_mining, "registers", lambda func: 8)
    monkeypatch.setattr(strip_mining, "piece_of", lambda func: 8)
    func = lowered(square, BLOCK=64)
    assert emitted(func, IN_PIECES)
    x = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    out = np.full_like(x, np.nan)
    reports.run(func, {"x_ptr": x, "out_ptr": out}, (1, 1, 1))
    np.testing.assert_allclose(out, x + x.sum(1, keepdims=True), rtol=1e-4, atol=1e-4)


def test_a_note_reports_strip_mining():
    _, stages = passes.run(parsed(scaling.tile("softmax", 1 << 16)), SM90A)
    notes = next(stage for stage in stages if stage.name == "strip_mining").notes
    assert any("512 registers a thread" in note.text and "3 times" in note.text and note.loc for note in notes)


@pytest.mark.parametrize("most", [64, pytest.param(scheduling.MANY_ACCESSES, marks=pytest.mark.full)])
def test_kernel_with_many_accesses_is_split_into_basic_blocks(most, monkeypatch):
    """A quick run has a lower limit, because the passes take longer than linear time for many accesses."""
    few, many = (lowered(scaling.kernel("memory", most * n // 256), COUNT=1) for n in (100, 800))
    monkeypatch.setattr(scheduling, "MANY_ACCESSES", most)
    monkeypatch.setattr("blocknb.codegen.gpu.module.MANY_ACCESSES", most)  # of the note
    assert "sreg.clock" not in gpu.generate(few, SM90A).text
    module = gpu.generate(many, SM90A)
    assert module.text.count("call i32 @llvm.nvvm.read.ptx.sreg.clock") == 3
    assert module.notes[0].text.startswith(f"4 basic blocks of up to {most} accesses")


def test_kernel_in_several_basic_blocks_gives_the_same_result(monkeypatch):
    few = lowered(scaling.kernel("memory", 100), COUNT=1)
    monkeypatch.setattr(scheduling, "MANY_ACCESSES", 8)
    x = np.random.default_rng(4).standard_normal(256).astype(np.float32)
    out = np.full_like(x, np.nan)
    reports.run(few, {"x_ptr": x, "out_ptr": out, "n": 128}, (1, 1, 1))
    np.testing.assert_array_equal(out[:177], np.concatenate([x[:128] + x[49:177], x[128:177]]))


def test_kernel_with_many_loops_is_optimized_by_ptxas_only():
    few, many = (lowered(scaling.kernel("nested", n), COUNT=1) for n in (64, 320))
    assert gpu.generate(few, SM90A).select == 1 and gpu.generate(few, SM90A).notes == ()
    module = gpu.generate(many, SM90A)
    assert module.select == 0 and "loops" in module.notes[0].text


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("sorting")])
def test_sort_generated_as_loops_sorts(name, monkeypatch):
    monkeypatch.setattr(moves, "WRITTEN_OUT", constexpr(0))
    case = CASES[name]
    arguments = case.make(seeds.rng())
    parsed = case.parse(arguments, SM90A)
    assert any(op.name == "for" for op in parsed.ops())
    func, _ = passes.run(parsed, SM90A)
    got = {key: copied(value) for key, value in arguments.items()}
    case.link(got, host_address)
    arrays = [array for value in got.values() if isinstance(array := array_of(value), np.ndarray)]
    reports.run(func, got, case.grid, reachable=arrays)
    case.check(arguments, got)


def test_code_of_a_long_sort_is_short():
    assert lines("sort", 1 << 15) < 12_000
