"""Lines around products: read before a loop and used after it, spread over the threads for sorting, and operands of 8-bit floats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from fuzz import simt
from kernels.base import Case, parameters
from support import check_pipeline

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.ir.core import Func
from blocknb.target import Target

TARGET = Target.parse("sm_90a")


@blocknb.kernel(do_not_specialize=["steps"])
def scaled_matmul(x, y, row, column, out, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SAME: tl.constexpr):
    """A loop of products, whose sum is scaled by rows and columns. With SAME the loop stores to the array of the columns."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for step in range(steps):
        a = tl.load(x + m[:, None] * K + k[None, :] + step * M * K)
        b = tl.load(y + k[:, None] * N + n[None, :] + step * K * N)
        total += tl.dot(a, b)
        if SAME:
            tl.store(column + n, n.to(tl.float32))
    rows = tl.load(row + m[:, None]).to(tl.float32)
    columns = tl.load(column + n).to(tl.float32)
    tl.store(out + m[:, None] * N + n[None, :], total * rows * columns[None, :])


@blocknb.kernel(do_not_specialize=["steps"])
def chosen_row(x, y, at, row, out, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SAME: tl.constexpr):
    """A loop of products, whose sum is scaled by a row. With SAME the loop stores the number of the row."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for step in range(steps):
        a = tl.load(x + m[:, None] * K + k[None, :] + step * M * K)
        b = tl.load(y + k[:, None] * N + n[None, :] + step * K * N)
        total += tl.dot(a, b)
        if SAME:
            tl.store(at, step)
    scale = tl.load(row + tl.load(at) * N + n)
    tl.store(out + m[:, None] * N + n[None, :], total * scale[None, :])


@blocknb.kernel
def swapped(x, ids, at: tl.constexpr, B: tl.constexpr):
    """Exchanges neighbours at a distance of `at`, so that the first is the smaller one; with their numbers."""
    shape: tl.constexpr = [B // (2 * at), 2, at]
    one = tl.arange(0, 2)[None, :, None]
    pairs, numbers = tl.reshape(x, shape), tl.reshape(ids, shape)
    left = tl.reshape(tl.broadcast_to(tl.sum(pairs * (1 - one), 1)[:, None, :], shape), [B])
    right = tl.reshape(tl.broadcast_to(tl.sum(pairs * one, 1)[:, None, :], shape), [B])
    left_id = tl.reshape(tl.broadcast_to(tl.sum(numbers * (1 - one), 1)[:, None, :], shape), [B])
    right_id = tl.reshape(tl.broadcast_to(tl.sum(numbers * one, 1)[:, None, :], shape), [B])
    first = tl.reshape(tl.broadcast_to(one == 0, shape), [B])
    change = (left > right) == first
    other = tl.where(first, right, left)
    return x + tl.where(change, other - x, 0), ids ^ tl.where(change, left_id ^ right_id, 0)


@blocknb.kernel(do_not_specialize=["steps"])
def swapped_scores(q, k, out, order, steps, R: tl.constexpr, B: tl.constexpr, D: tl.constexpr, TIMES: tl.constexpr):
    """Adds up the scores of each column in a loop of products, and exchanges neighbours `TIMES` times."""
    r, b, d = tl.arange(0, R), tl.arange(0, B), tl.arange(0, D)
    query = tl.load(q + r[:, None] * D + d[None, :])
    for step in range(steps):
        key = tl.load(k + step * B * D + d[:, None] + b[None, :] * D)
        score = tl.sum(tl.dot(query, key), 0)
        ids = b
        for i in tl.static_range(TIMES):
            score, ids = swapped(score, ids, 1 << (i % 3), B)
        tl.store(out + step * B + b[:, None], score[:, None])
        tl.store(order + step * B + b, ids)


@blocknb.kernel(do_not_specialize=["steps"])
def float8_matmul(
    x, y, out, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SCALED: tl.constexpr, WAY: tl.constexpr
):
    """WAY 0 loads the second operand from columns, 1 transposes it, and 2 loads it from rows, which are not contiguous along K."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for step in range(steps):
        a = tl.load(x + m[:, None] * K + k[None, :] + step * M * K)
        if WAY == 0:
            b = tl.load(y + k[:, None] + n[None, :] * K + step * K * N)
        elif WAY == 1:
            b = tl.trans(tl.load(y + k[None, :] + n[:, None] * K + step * K * N))
        else:
            b = tl.load(y + k[:, None] * N + n[None, :] + step * K * N)
        if SCALED:
            a = (a.to(tl.float32) * 2).to(a.dtype)
        total += tl.dot(a, b)
    tl.store(out + m[:, None] * N + n[None, :], total)


@blocknb.kernel
def scaled_transpose(x, scale, row, out, R: tl.constexpr, C: tl.constexpr, SAME: tl.constexpr):
    """Scales a transposed tile by a number, and by one per row. With SAME it stores to the array of the rows before."""
    r, c = tl.arange(0, R), tl.arange(0, C)
    tile = tl.trans(tl.load(x + r[:, None] * C + c[None, :]))
    if SAME:
        tl.store(row + r, tl.full((R,), 2, tl.float32))
    tile = tile * tl.load(scale)
    tl.store(out + c[:, None] * R + r[None, :], tile * tl.load(row + r)[None, :])


def numbers(*shape: int, dtype=np.float32) -> np.ndarray:
    """Small integers, whose products and sums are exact."""
    return np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)


def matmul(m: int = 64, n: int = 64, same: bool = False, k: int = 32, steps: int = 3) -> dict:
    half = ml_dtypes.bfloat16
    return {
        "x": numbers(steps, m, k, dtype=half), "y": numbers(steps, k, n, dtype=half), "row": numbers(m, dtype=half), "column": numbers(n),
        "out": np.full((m, n), np.nan, np.float32), "steps": steps, "M": m, "N": n, "K": k, "SAME": same,
    }  # fmt: skip


def transposed(rows: int = 64, columns: int = 32, same: bool = False) -> dict:
    return {
        "x": numbers(rows, columns), "scale": numbers(1) + 5, "row": numbers(rows), "out": np.full((columns, rows), np.nan, np.float32),
        "R": rows, "C": columns, "SAME": same,
    }  # fmt: skip


def scores(times: int) -> dict:
    half = ml_dtypes.bfloat16
    return {
        "q": numbers(16, 32, dtype=half), "k": numbers(2, 64, 32, dtype=half), "out": np.zeros((2, 64), np.float32),
        "order": np.zeros((2, 64), np.int32), "steps": 2, "R": 16, "B": 64, "D": 32, "TIMES": times,
    }  # fmt: skip


def float8(
    m: int = 32, n: int = 32, k: int = 64, scaled: bool = False, way: int = 0, dtype=ml_dtypes.float8_e4m3fn
) -> dict:
    return {
        "x": numbers(3, m, k, dtype=dtype), "y": numbers(3, n, k, dtype=dtype), "out": np.full((m, n), np.nan, np.float32),
        "steps": 3, "M": m, "N": n, "K": k, "SCALED": scaled, "WAY": way,
    }  # fmt: skip


def parsed(kernel, arguments: dict, warps: int = 4) -> Func:
    return Case(kernel.__name__, kernel, dict, dict).parse(arguments, num_warps=warps)


def after(name: str, kernel, arguments: dict, warps: int = 4, target: Target = TARGET) -> Func:
    stages = passes.run(parsed(kernel, arguments, warps), target)[1]
    return next(stage.after for stage in stages if stage.name == name)


def keeps_results(kernel, arguments: dict, warps: int = 4) -> None:
    """Checks that the IR has the same results after each pass."""
    func = parsed(kernel, arguments, warps)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a", tolerance=0)


def places(func: Func) -> list[str]:
    """In order: the loop, and the loads of lines outside of it."""
    ops = [op for op in func.body.ops if op.name in ("for", "load")]
    return [op.name for op in ops]


@pytest.mark.parametrize(
    ("m", "n", "same", "expected"),
    [
        (64, 64, False, ["load", "load", "for"]),
        (64, 64, True, ["load", "for", "load"]),  # the loop stores to the array of the columns
        (128, 128, False, ["for", "load", "load"]),  # the results take 128 registers per thread
    ],
)
def test_lines_for_the_end_of_a_product_are_loaded_before_its_loop(m, n, same, expected):
    assert places(after("early_loads", scaled_matmul, matmul(m, n, same))) == expected


def test_a_line_is_converted_where_it_is_used():
    """The line is loaded before the loop, and converted, which waits for memory, after it."""
    ops = list(after("layout_assignment", scaled_matmul, matmul(128, 32)).body.ops)
    (loop,) = (i for i, op in enumerate(ops) if op.name == "for")
    (load,) = (i for i, op in enumerate(ops) if op.name == "load" and op.result.type.shape == (128, 1))
    (line,) = (i for i, op in enumerate(ops) if op.name == "convert" and op.args[0] is ops[load].result)
    assert load < loop < line


@pytest.mark.parametrize("same", [False, True])
def test_lines_that_are_loaded_early_keep_their_results(same):
    keeps_results(scaled_matmul, matmul(same=same))


@pytest.mark.parametrize(("same", "expected"), [(False, ["load", "load", "for"]), (True, ["for", "load", "load"])])
def test_a_line_stays_after_the_loop_that_stores_its_index(same, expected):
    half = ml_dtypes.bfloat16
    arguments = {
        "x": numbers(3, 16, 16, dtype=half), "y": numbers(3, 16, 128, dtype=half), "at": np.zeros(1, np.int32),
        "row": numbers(3, 128), "out": np.full((16, 128), np.nan, np.float32), "steps": 3, "M": 16, "N": 128, "K": 16, "SAME": same,
    }  # fmt: skip
    assert places(after("early_loads", chosen_row, arguments, 2)) == expected
    keeps_results(chosen_row, arguments, 2)


def read(func: Func) -> list[str]:
    """The loads in order, with the dimensions of what they load, and the other ops around them."""
    ops = [op for op in func.ops() if op.name in ("load", "trans", "store")]
    return [f"load {len(op.result.type.shape)}" if op.name == "load" else op.name for op in ops]


@pytest.mark.parametrize(
    ("same", "expected"),
    [
        (False, ["load 2", "load 0", "load 1", "trans", "store"]),
        (True, ["load 2", "load 0", "trans", "store", "load 1", "store"]),  # the store is to the array of the line
    ],
)
def test_short_loads_stand_beside_the_tile_for_which_a_kernel_waits(same, expected):
    assert read(after("early_loads", scaled_transpose, transposed(same=same))) == expected


def test_short_loads_stay_behind_a_short_tile():
    """It takes 2 registers per thread."""
    found = read(after("early_loads", scaled_transpose, transposed(16, 16)))
    assert found == ["load 2", "trans", "load 0", "load 1", "store"]


@pytest.mark.parametrize("same", [False, True])
def test_loads_beside_a_tile_keep_their_results(same):
    keeps_results(scaled_transpose, transposed(same=same))


def conversions(times: int) -> int:
    """The conversions of lines of scores and their numbers."""
    func = after("layout_assignment", swapped_scores, scores(times), 2)
    return sum(op.name == "convert" and op.result.type.size in (32, 64) for op in func.ops())


def test_scores_that_a_network_exchanges_are_converted_once():
    """A product's reduction leaves 8 copies of each score. Without a layout of their own, each exchange would convert them."""
    assert conversions(9) <= 4


def test_sorted_scores_keep_their_results():
    keeps_results(swapped_scores, scores(4), 2)


def halves_in_shared(func: Func) -> bool:
    """Whether fp16 operands pass through shared memory."""
    return any(op.name == "alloc" and op.result.type.dtype.name == "fp16" for op in func.ops())


@pytest.mark.parametrize(
    ("arguments", "target", "direct"),
    [
        (float8(), "sm_90a", True),
        (float8(way=1), "sm_90a", True),
        (float8(way=2), "sm_90a", False),
        (float8(dtype=ml_dtypes.float8_e5m2), "sm_90a", True),
        (float8(), "sm_80", False),  # converts by integer arithmetic
        (float8(scaled=True), "sm_90a", False),  # one operand is computed
    ],
)
def test_8_bit_floats_are_converted_between_shared_memory_and_a_product(arguments, target, direct):
    func = after("lower_conversions", float8_matmul, arguments, target=Target.parse(target))
    runs = [op.attrs.get("run", 0) for op in func.ops() if op.name == "dot"]
    assert runs == [4 if direct else 0]
    assert halves_in_shared(func) is not direct


@pytest.mark.parametrize(
    "arguments",
    [
        float8(),
        float8(dtype=ml_dtypes.float8_e5m2),
        float8(scaled=True),
        float8(16, 64, 32),
        float8(way=1),
        float8(way=2),
    ],
)
def test_products_of_8_bit_floats_keep_their_results(arguments):
    keeps_results(float8_matmul, arguments)


def run_threads(kernel, arguments: dict, warps: int = 4) -> None:
    """Runs the LLVM text of the GPU's code, thread by thread."""
    func, _ = Case(kernel.__name__, kernel, dict, dict).lower(arguments, "sm_90a", num_warps=warps)
    simt.run(gpu.generate(func, TARGET), parameters(func, arguments), [1])


@pytest.mark.parametrize(
    "arguments", [float8(), float8(dtype=ml_dtypes.float8_e5m2), float8(scaled=True), float8(way=1)]
)
def test_the_gpu_code_of_8_bit_floats_is_right(arguments):
    run_threads(float8_matmul, arguments)
    x, y = (arguments[name].astype(np.float32) for name in ("x", "y"))
    assert (arguments["out"] == (x @ y.transpose(0, 2, 1)).sum(0) * (2 if arguments["SCALED"] else 1)).all()


def test_the_gpu_code_of_a_scaled_product_is_right():
    arguments = matmul(16, 32)
    run_threads(scaled_matmul, arguments)
    x, y = (arguments[name].astype(np.float32) for name in ("x", "y"))
    assert (
        arguments["out"] == (x @ y).sum(0) * arguments["row"].astype(np.float32)[:, None] * arguments["column"]
    ).all()
