"""Operand staging: the inputs of a computed operand go through shared memory if there is enough of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case, poison

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.errors import CompilerBug
from blocknb.ir.build import rebuild
from blocknb.target import Target
from blocknb.trace import Stage


@blocknb.kernel
def doubled(a, b, c, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    rows, columns = bl.arange(0, BM), bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.float32)
    for start in bl.range(0, k, BK):
        inner = start + bl.arange(0, BK)
        x = bl.load(a + rows[:, None] * k + inner[None, :])
        y = bl.load(b + inner[:, None] * n + columns[None, :])
        total = bl.dot(x, (y * 2).to(bl.float16), total)
    bl.store(c + rows[:, None] * n + columns[None, :], total)


def case(m: int, n: int, step: int, iterations: int = 2) -> tuple[Case, dict[str, Any]]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape) for shape in ((m, step * iterations), (step * iterations, n)))
    arguments = {"a": a.astype(np.float16), "b": b.astype(np.float32), "c": poison((m, n), np.float32)}
    arguments |= {"n": n, "k": step * iterations, "BM": m, "BN": n, "BK": step}
    return Case("doubled", doubled, dict, lambda _: {"c": a @ (b * 2)}), arguments


def texts(stages: tuple[Stage, ...], name: str) -> list[str]:
    return [note.text for stage in stages if stage.name == name for note in stage.notes]


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90a"])
def test_a_tile_without_room_for_two_stages_stays_in_registers(target: str):
    """b takes 128 KB. Shared memory of sm_86 cannot hold even one stage next to the operands, and other targets have none for a second
    stage."""
    kernel, arguments = case(64, 256, 128)
    func, stages = kernel.lower(arguments, target, num_warps=8, num_stages=2)
    assert func.attrs["shared_bytes"] <= Target.parse(target).max_shared
    assert texts(stages, "operand_staging") == ["not staged: shared memory has no room for two of its tiles"]
    copied = texts(stages, "warp_specialization") + texts(stages, "software_pipelining")
    if target != "sm_86":
        assert sum("stages of 16384 bytes" in text for text in copied) == 1
    without, _ = passes.run(
        kernel.parse(arguments, num_warps=8, num_stages=2), Target.parse(target), ("operand_staging",)
    )
    assert func.attrs["shared_bytes"] == without.attrs["shared_bytes"]


def test_a_smaller_tile_is_staged():
    kernel, arguments = case(64, 64, 32)
    for target in ("sm_86", "sm_90a"):
        func, stages = kernel.lower(arguments, target, num_warps=4)
        (messages,) = texts(stages, "operand_staging")
        assert messages.startswith("8192 bytes through shared memory")
        assert any(
            "stages of 8192 bytes" in text
            for text in texts(stages, "warp_specialization") + texts(stages, "software_pipelining")
        )
        kernel.interpret(func, arguments)


@blocknb.kernel
def various(a, b, bias, table, c, n, k, WAY: bl.constexpr, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """c = f(a) b, where f depends on WAY."""
    rows, columns = bl.arange(0, BM), bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.float32)
    for start in bl.range(0, k, BK):
        inner = start + bl.arange(0, BK)
        at = a + rows[:, None] * k + inner[None, :]
        if WAY == "found":
            at = a + rows[:, None] * k + bl.load(table + start // BK) * BK + bl.arange(0, BK)[None, :]
        x = bl.load(at, mask=inner[None, :] < k, other=1.0 if WAY == "ones" else 0.0)
        if WAY == "written":
            bl.store(at, x)
        y = bl.load(b + inner[:, None] * n + columns[None, :], mask=inner[:, None] < k, other=0.0)
        if WAY != "plain":
            x = x * 2
        if WAY == "scores":
            part = bl.dot(x, y) + bl.load(bias + rows[:, None] * n + columns[None, :] + start * n)
            total = bl.dot(part.to(bl.float16), bl.trans(y), total)
        else:
            total = bl.dot(x, y, total)
    bl.store(c + rows[:, None] * n + columns[None, :], total)


def lowered(way: str, target: str = "sm_90a", k: int = 192, without: tuple = (), **options):
    rng, m, n = np.random.default_rng(1), 64, 64
    a, b, bias = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n), (m + k, n)))
    table = np.array([2, 0, 1], np.int32)
    arguments = {
        "a": a,
        "b": b,
        "bias": bias,
        "table": table,
        "c": poison((m, n), np.float32),
        "n": n,
        "k": k,
        "WAY": way,
    }
    arguments |= {"BM": m, "BN": n, "BK": 64}
    wide, right, expected = a.astype(float), b.astype(float), np.zeros((m, n))
    for iteration, start in enumerate(range(0, k, 64)):
        where = table[iteration] * 64 if way == "found" else start
        x, y = wide[:, where : where + 64] * (1 if way == "plain" else 2), right[start : start + 64]
        part = x @ y
        expected += (part + bias[start : start + m].astype(float)) @ y.T if way == "scores" else part
    kernel = Case("various", various, dict, lambda _: {"c": expected})
    func, stages = kernel.lower(arguments, target, without, **{"num_warps": 4, **options})
    return kernel, func, stages, arguments


@pytest.mark.sampled(2, each=["target", "way"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("way", ["scaled", "scores", "found"])
def test_inputs_of_computed_operands_are_staged_with_right_results(way: str, target: str) -> None:
    kernel, func, stages, arguments = lowered(way, target, num_stages=2)
    messages = texts(stages, "operand_staging")
    assert messages == ["8192 bytes through shared memory: an operand is computed from them"]
    for seed in range(3):
        kernel.interpret(func, arguments, seed=seed)


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("plain", {}),
        ("written", {}),
        ("ones", {}),
        ("scaled", {"num_stages": 1}),
        ("scaled", {"without": ("operand_staging",)}),
    ],
    ids=str,
)
def test_inputs_that_cannot_be_staged_stay_in_registers(way: str, options: dict) -> None:
    kernel, func, stages, arguments = lowered(way, **options)
    assert not [text for text in texts(stages, "operand_staging") if text != "switched off"]
    kernel.interpret(func, arguments)


@blocknb.kernel
def bytes_wide(a, b, c, apart, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """8-bit weights that are `apart` elements from each other."""
    rows, columns = bl.arange(0, BM), bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.float32)
    for start in range(0, k, BK):
        inner = start + bl.arange(0, BK)
        y = bl.load(b + (inner[:, None] * BN + columns[None, :]) * apart)
        total = bl.dot(bl.load(a + rows[:, None] * k + inner[None, :]), y.to(bl.float16), total)
    bl.store(c + rows[:, None] * BN + columns[None, :], total)


@pytest.mark.parametrize(("columns", "apart", "copied"), [(64, 1, True), (64, 3, False), (16, 1, False)])
def test_small_tiles_and_single_bytes_stay_in_registers(columns: int, apart: int, copied: bool) -> None:
    """16 columns of 16 rows are 256 bytes; with three bytes between elements, no four bytes are contiguous."""
    rng, k = np.random.default_rng(3), 96
    a, b = rng.integers(-2, 3, (64, k)).astype(np.float16), rng.integers(-5, 6, (k, columns * apart)).astype(np.int8)
    expected = {"c": a.astype(float) @ b[:, ::apart].astype(float)}
    arguments = {
        "a": a,
        "b": b,
        "c": poison((64, columns), np.float32),
        "apart": apart,
        "k": k,
        "BM": 64,
        "BN": columns,
        "BK": 32 if columns > 16 else 16,
    }
    kernel = Case("bytes_wide", bytes_wide, dict, lambda _: expected)
    for target in ("sm_80", "sm_90a"):
        func, stages = kernel.lower(arguments, target, num_warps=4)
        assert bool(texts(stages, "operand_staging")) == copied
        kernel.interpret(func, arguments)


@pytest.mark.parametrize("way", ["scaled", "scores"])
def test_a_stage_is_released_after_its_reads_complete(way: str) -> None:
    """An mbarrier arrival does not wait for pending reads of shared memory; on an H200, the next copy overwrote them."""
    kernel, func, _, arguments = lowered(way, num_stages=2)
    (body,) = (
        block.ops
        for op in func.ops()
        if op.name == "for"
        for block in op.blocks
        if any(x.name == "dot" for x in block.ops)
    )
    awaited = {op.args[1] for op in body if op.name == "await"}
    stages = {op.result: op.args[1] for op in body if op.name == "stage" and op.args[1] in awaited}
    reads = [op for op in body if op.name == "local_load" and op.args[0] in stages]
    assert len(reads) == (2 if way == "scores" else 1), "a, and the bias that joins the product"
    arrivals = [next(op for op in body if op.name == "arrive" and op.args[1] is stages[read.args[0]]) for read in reads]
    for read, arrival in zip(reads, arrivals, strict=True):
        assert any(op.name == "fence" for op in body[body.index(read) : body.index(arrival)])
    read, arrival = reads[0], arrivals[0]  # the producer copies this tile first, and no earlier arrival makes it wait

    def early(op, walk):
        if op.id == arrival.id:
            return ()
        if op.id != read.id:
            return NotImplemented
        walk.builder.append(op)
        walk.builder.append(arrival.replace(args=tuple(map(walk.get, arrival.args))))
        return op.results

    with pytest.raises(CompilerBug, match="may still load"):
        for seed in range(6):
            kernel.interpret(rebuild(func, early, "mutant"), arguments, seed=seed)


@blocknb.kernel
def lined(a, b, line, table, c, k, WAY: bl.constexpr, B: bl.constexpr):
    """c = sum of (a b) times elements of a line, one per row and iteration; or where a table points."""
    rows, total = bl.arange(0, B), bl.zeros((B, B), bl.float32)
    for start in range(0, k, B):
        inner = start + bl.arange(0, B)
        place = start
        if WAY == "table":
            place = bl.load(table + start // B) * B
        x = bl.load(a + rows[:, None] * k + place + bl.arange(0, B)[None, :])
        part = bl.dot(x, bl.load(b + inner[:, None] * B + rows[None, :]))
        if WAY == "two":
            part += bl.dot(x, x)
        total += part * bl.load(line + start + rows)[:, None]
    bl.store(c + rows[:, None] * B + rows[None, :], total)


@pytest.mark.parametrize(("way", "early"), [("one", 1), ("two", 0), ("table", 1)])
def test_row_of_factors_is_prefetched_but_no_table_of_tile_positions(way: str, early: int) -> None:
    rng, size, k = np.random.default_rng(2), 32, 96
    a, b, line = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((size, k), (k, size), (k,)))
    table, expected = np.array([2, 0, 1], np.int32), np.zeros((size, size))
    for iteration, start in enumerate(range(0, k, size)):
        where = table[iteration] * size if way == "table" else start
        x = a[:, where : where + size].astype(float)
        part = x @ b[start : start + size] + (x @ x if way == "two" else 0)
        expected += part * line[start : start + size, None]
    arguments = {
        "a": a,
        "b": b,
        "line": line,
        "table": table,
        "c": poison((size, size), np.float32),
        "k": k,
        "WAY": way,
        "B": size,
    }
    kernel = Case("lined", lined, dict, lambda _: {"c": expected})
    for target in ("sm_80", "sm_90a"):
        func, stages = kernel.lower(arguments, target, num_warps=4)
        assert (
            texts(stages, "register_prefetch")
            == ["pipelined: loaded 1 iteration ahead, in 1 register per thread"] * early
        )
        kernel.interpret(func, arguments)
