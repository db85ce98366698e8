"""Software pipelining: operands are copied to circular buffers in shared memory some iterations early; results stay the same.

The interpreter runs memory IR with its races, waits and barriers; `simt` runs the generated code.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fuzz import reports
from kernels.base import Case, parameters

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.ir import interp
from blocknb.ir.core import Func, Op
from blocknb.ir.verify import verify
from blocknb.target import Target
from blocknb.trace import Stage

kernel = blocknb.kernel(do_not_specialize=("m", "n", "k"))  # one iteration is compiled like several
HALF = np.float16


@kernel
def product(
    a, b, c, m, n, k, a_row: bl.constexpr, a_column: bl.constexpr, b_row: bl.constexpr, b_column: bl.constexpr,
    BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, STAGES: bl.constexpr, WHOLE: bl.constexpr, UNIT: bl.constexpr,
):  # fmt: skip
    """m, n and k are given in units, so that the sizes are known to be multiples."""
    m, n, k = m * UNIT, n * UNIT, k * UNIT
    rows = bl.program_id(0) * BM + bl.arange(0, BM)
    columns = bl.program_id(1) * BN + bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.int32 if a.dtype.element_ty == bl.int8 else bl.float32)
    for start in bl.range(0, k, BK, num_stages=STAGES):
        inner = start + bl.arange(0, BK)
        at_a = a + rows[:, None] * a_row + inner[None, :] * a_column
        at_b = b + inner[:, None] * b_row + columns[None, :] * b_column
        if WHOLE:
            x, y = bl.load(at_a), bl.load(at_b)
        else:
            x = bl.load(at_a, mask=(rows[:, None] < m) & (inner[None, :] < k))
            y = bl.load(at_b, mask=(inner[:, None] < k) & (columns[None, :] < n), other=0)
        total = bl.dot(x, y, total, input_precision="ieee")
    bl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


def numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return rng.integers(-4, 5, shape).astype(dtype)


def empty(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def operands(m: int, n: int, k: int, dtype: Any = HALF, order: str = "nn", pad: int = 0, **more: Any) -> dict[str, Any]:
    """Arguments of `product`; rows (columns in an order "t") have a pitch that is `pad` elements longer."""
    arrays = {}
    for name, shape, transposed in (("a", (m, k), order[0] == "t"), ("b", (k, n), order[1] == "t")):
        stored = shape[::-1] if transposed else shape
        whole = numbers((stored[0] + 1, stored[1] + pad), dtype)
        array = whole[: stored[0], : stored[1]]
        arrays[name] = array.T if transposed else array
    c = np.full((m, n), 77, np.int32 if dtype == np.int8 else np.float32)
    strides = {}
    for name, x in arrays.items():
        strides |= {f"{name}_row": x.strides[0] // x.itemsize, f"{name}_column": x.strides[1] // x.itemsize}
    unit = 1 if any(size % 8 for size in (m, n, k)) else 8
    sizes = {"m": m // unit, "n": n // unit, "k": k // unit, "UNIT": unit}
    tile = {"BM": 16, "BN": 16, "BK": 16, "STAGES": 3, "WHOLE": False}
    return arrays | {"c": c} | sizes | strides | tile | more


def lowered(
    kernel: Any, arguments: dict[str, Any], target: str | Target = "sm_80", without: tuple = (), **options: Any
) -> tuple[Func, Stage | None]:
    """Lowers the kernel; returns the memory IR and the pass's stage."""
    func = Case(kernel.__name__, kernel, dict, dict).parse(arguments, **({"num_warps": 2} | options))
    func, stages = passes.run(func, Target.parse(target), without)
    return func, next((stage for stage in stages if stage.name == "software_pipelining"), None)


def copied(func: Func) -> int:
    """The number of copies per iteration of a loop with products."""
    blocks = (loop.blocks[0].ops for loop in loops(func))
    return sum(op.name == "copy_async" for ops in blocks if any(x.name == "dot" for x in ops) for op in ops)


def loops(func: Func) -> list[Op]:
    return [op for op in func.ops() if op.name == "for"]


def texts(stage: Stage | None, kind: str = "info") -> list[str]:
    assert stage is not None and all(note.loc is not None for note in stage.notes)
    return [note.text for note in stage.notes if note.kind == kind]


def runs(
    func: Func, arguments: dict[str, Any], grid: tuple[int, ...], interpreted: bool = True
) -> list[dict[str, Any]]:
    """The arguments after runs by the interpreter and of the GPU code."""
    verify(func)
    found = []

    def fresh() -> dict[str, Any]:
        whole = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray) and x.flags.c_contiguous}
        found.append(arguments | {name: x.copy() for name, x in whole.items()})
        return found[-1]

    for seed in (0, 1) if interpreted else ():
        interp.run(func, parameters(func, fresh()), grid, seed=seed)
    reports.run(func, fresh(), grid, "sm_80")
    return found


def check(arguments: dict[str, Any], copies: int = 2, interpreted: bool = True, **options: Any) -> Stage | None:
    """Checks that the product is right and that this many operands are pipelined."""
    func, stage = lowered(product, arguments, **options)
    assert copied(func) == copies, stage and stage.notes
    m, n = arguments["c"].shape
    grid = (-(-m // arguments["BM"]), -(-n // arguments["BN"]))
    expected = arguments["a"].astype(np.float64) @ arguments["b"].astype(np.float64)
    for got in runs(func, arguments, grid, interpreted):
        np.testing.assert_array_equal(got["c"], expected)
    return stage


@pytest.mark.sampled(2, each=["stages", "k"])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("k", [0, 8, 16, 24, 32, 40, 64, 88, 128])
def test_any_number_of_iterations_and_stages_gives_right_results(k: int, stages: int) -> None:
    """No iterations, fewer than stages, and a partial last one. Rows have 16 bytes of padding, which reveal a wrong mask."""
    check(operands(16, 16, k, pad=8, STAGES=stages), interpreted=k in (0, 16, 88))


@pytest.mark.sampled(3, each=["order", "sizes"])
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(16, 16, 48), (24, 40, 40), (1, 8, 72), (8, 1, 16), (9, 24, 30)])
def test_ragged_tiles_in_every_order_give_right_results(sizes: tuple[int, int, int], order: str) -> None:
    """An operand is not pipelined if addresses or masks allow fewer than 4 bytes; the numbers stay the same."""
    arguments = operands(*sizes, order=order, pad=8)
    func, stage = lowered(product, arguments)
    check(arguments, copies=copied(func), interpreted=order == "nt")
    narrow = [text for text in texts(stage, "missed") if "fewer than 4 bytes" in text]
    assert copied(func) + len(narrow) == 2


@pytest.mark.parametrize(
    ("dtype", "bytes"),
    [(HALF, 2), (ml_dtypes.bfloat16, 2), (np.float32, 4), (np.int8, 1)],
    ids=["fp16", "bf16", "fp32", "int8"],
)
def test_every_dtype_of_products_is_pipelined(dtype: Any, bytes: int) -> None:
    """fp32 in ieee precision is multiplied from the circular buffer itself; int8 has tensor cores only in one order of B."""
    arguments = operands(32, 32, 96, dtype, order="nt", BM=32, BN=32, BK=32, WHOLE=True)
    stage = check(arguments)
    assert all("copied to shared memory 2 iterations ahead" in text for text in texts(stage))


def test_one_barrier_per_iteration_and_stages_in_order() -> None:
    func, stage = lowered(product, operands(16, 16, 64))
    (loop,) = loops(func)
    names = [op.name for op in loop.blocks[0].ops]
    assert names.count("barrier") == names.count("wait") == names.count("commit") == 1
    assert names.index("wait") < names.index("barrier") < names.index("copy_async") < names.index("local_load")
    buffers = [op.attrs["type"] for op in func.ops() if op.name == "alloc" and op.attrs["type"].stages > 1]
    assert [buffer.stages for buffer in buffers] == [3, 3]
    assert (
        texts(stage)
        == [
            "pipelined: copied to shared memory 2 iterations ahead, past the registers: 3 stages of 512 bytes, 8 bytes per copy"
        ]
        * 2
    )


@kernel
def scaled(a, b, c, k, SCALE: bl.constexpr):
    """int8 weights, which the kernel converts to fp16 in registers."""
    row, column = bl.arange(0, 16)[:, None], bl.arange(0, 16)[None, :]
    total = bl.zeros((16, 16), bl.float32)
    for start in range(0, k, 16):
        inner = start + bl.arange(0, 16)
        x = bl.load(a + row * 80 + inner[None, :])
        y = bl.load(b + inner[:, None] * 16 + column)
        total = bl.dot(x, y.to(bl.float16), total)
    bl.store(c + row * 16 + column, total * SCALE)


def test_converted_operands_stay_in_registers() -> None:
    arguments = {
        "a": numbers((16, 80), HALF),
        "b": numbers((80, 16), np.int8),
        "c": np.zeros((16, 16), np.float32),
        "k": 80,
        "SCALE": 2,
    }
    func, stage = lowered(scaled, arguments)
    assert copied(func) == 1 and texts(stage, "missed") == ["not pipelined: it becomes fp16 on its way"]
    expected = 2 * arguments["a"].astype(float) @ arguments["b"].astype(float)
    for got in runs(func, arguments, (1,)):
        np.testing.assert_array_equal(got["c"], expected)


@kernel
def various(a, b, c, k, WAY: bl.constexpr):
    row, column = bl.arange(0, 16)[:, None], bl.arange(0, 16)[None, :]
    total = bl.zeros((16, 16), bl.float32)
    for start in range(0, k, 16):
        inner = start + bl.arange(0, 16)
        at = a + row * 80 + inner[None, :]
        if WAY == "other":
            x = bl.load(at, mask=inner[None, :] < k - 8, other=1)
        elif WAY == "same":
            x = bl.load(a + row * 80 + bl.arange(0, 16)[None, :], volatile=False)
        elif WAY == "twice":
            x = bl.load(at)
            total += x.to(bl.float32)
        else:
            x = bl.load(at)
            bl.store(at, x * 0)
        total = bl.dot(x, bl.load(b + inner[:, None] * 16 + column), total)
    bl.store(c + row * 16 + column, total)


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("other", "its masked-off elements are not zero"),
        ("written", "also writes a"),
    ],
)
def test_notes_explain_why_an_operand_is_not_pipelined(way: str, why: str) -> None:
    arguments = {
        "a": numbers((16, 80), HALF),
        "b": numbers((80, 16), HALF),
        "c": np.zeros((16, 16), np.float32),
        "k": 80,
        "WAY": way,
    }
    func, stage = lowered(various, arguments)
    assert [text for text in texts(stage, "missed") if why in text], texts(stage, "missed")
    assert copied(func) == 1
    a, b = arguments["a"].astype(float), arguments["b"].astype(float)
    if way == "other":
        a[:, 72:] = 1
    for got in runs(func, arguments | {"a": arguments["a"].copy()}, (1,), interpreted=way != "written"):
        np.testing.assert_array_equal(got["c"], a @ b)


def test_an_operand_that_also_joins_the_result_is_copied_once() -> None:
    """Both uses read the buffer that the copy fills."""
    arguments = {
        "a": numbers((16, 80), HALF),
        "b": numbers((80, 16), HALF),
        "c": np.zeros((16, 16), np.float32),
        "k": 80,
        "WAY": "twice",
    }
    func, stage = lowered(various, arguments)
    assert copied(func) == 2 and not texts(stage, "missed")
    a, b = arguments["a"].astype(float), arguments["b"].astype(float)
    for got in runs(func, arguments, (1,)):
        np.testing.assert_array_equal(got["c"], a @ b + a.reshape(16, 5, 16).sum(axis=1))


@kernel
def paged(a, b, c, table, k, WAY: bl.constexpr, STAGES: bl.constexpr):
    """Rows of b are in pages of 8 rows, whose numbers a table holds."""
    row, column = bl.arange(0, 16)[:, None], bl.arange(0, 16)[None, :]
    total = bl.zeros((16, 16), bl.float32)
    for start in bl.range(0, k, 16, num_stages=STAGES):
        inner = start + bl.arange(0, 16)
        inside = inner < k
        if WAY == "page":  # one number per iteration: pages of 16 rows
            place = bl.load(table + start // 8) // 2 * 16 + bl.arange(0, 16)
        else:
            page = bl.load(table + inner // 8, mask=inside, other=1 << 20)
            if WAY == "twice":
                page = bl.load(table + page, mask=inside)
            place = page * 8 + inner % 8
        x = bl.load(a + row * 80 + inner[None, :])
        y = bl.load(b + place[:, None] * 16 + column, mask=inside[:, None], other=0.0)
        total = bl.dot(x, y, total)
        if WAY == "changed":  # the table of the next iteration
            bl.store(table + start // 8 + 2 + bl.arange(0, 2), bl.arange(0, 2))
    bl.store(c + row * 16 + column, total)


@pytest.mark.sampled(2, each=["k", "stages", "way"])
@pytest.mark.parametrize("k", [8, 72])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("way", ["page", "rows", "twice", "changed"])
def test_indices_of_a_gather_are_loaded_before_its_copies(way: str, stages: int, k: int) -> None:
    table = np.array([4, 5, 0, 1, 8, 9, 2, 3, 6, 7, 0, 0], np.int32)
    arguments = {
        "a": numbers((16, 80), HALF), "b": numbers((80, 16), HALF), "c": empty(16, 16), "table": table, "k": k, "WAY": way,
        "STAGES": stages,
    }  # fmt: skip
    func, stage = lowered(paged, arguments)
    early = [text for text in texts(stage) if "its indices are loaded one iteration earlier" in text]
    if way == "changed":
        assert not early and "is loaded from an array that may change" in texts(stage, "missed")[0]
    else:
        assert early and copied(func) == 2
    used = table[table] if way == "twice" else table
    if way == "changed":
        used = np.array([4, 5, *[0, 1] * 5], np.int32)
    rows = (used[:10, None] * 8 + np.arange(8)).ravel()[:k]
    expected = arguments["a"][:, :k].astype(float) @ arguments["b"][rows].astype(float)
    for got in runs(func, arguments | {"table": table.copy()}, (1,), interpreted=way != "changed"):
        np.testing.assert_array_equal(got["c"], expected)


@kernel
def attend(q, keys, values, c, n, CAUSAL: bl.constexpr, D: bl.constexpr, B: bl.constexpr):
    """Two products per iteration, the second of which uses the first one's result; keys are loaded as stored and transposed."""
    rows, inner = bl.arange(0, 16), bl.arange(0, D)
    queries = bl.load(q + rows[:, None] * D + inner[None, :])
    most, weight = bl.full((16,), -float("inf"), bl.float32), bl.zeros((16,), bl.float32)
    total = bl.zeros((16, D), bl.float32)
    for start in range(0, n, B):
        at = start + bl.arange(0, B)
        k = bl.load(keys + at[:, None] * D + inner[None, :], mask=at[:, None] < n, other=0.0)
        v = bl.load(values + at[:, None] * D + inner[None, :], mask=at[:, None] < n, other=0.0)
        scores = bl.dot(queries, bl.trans(k))
        scores = bl.where(at[None, :] < n, scores, -float("inf"))
        if CAUSAL:
            scores = bl.where(rows[:, None] >= at[None, :], scores, -float("inf"))
        higher = bl.maximum(most, bl.max(scores, 1))
        power = bl.exp(scores - higher[:, None])
        fade = bl.exp(most - higher)
        weight = weight * fade + bl.sum(power, 1)
        total = bl.dot(power.to(bl.float16), v, total * fade[:, None])
        most = higher
    bl.store(c + rows[:, None] * D + inner[None, :], total / weight[:, None])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [16, 40, 96])
def test_several_products_in_a_loop_are_pipelined(n: int, causal: bool) -> None:
    rng = np.random.default_rng(n)
    q, k, v = (rng.standard_normal((rows, 32)).astype(HALF) for rows in (16, n, n))
    arguments = {
        "q": q,
        "keys": k,
        "values": v,
        "c": np.zeros((16, 32), np.float32),
        "n": n,
        "CAUSAL": causal,
        "D": 32,
        "B": 16,
    }
    func, stage = lowered(attend, arguments, num_warps=1)
    assert copied(func) == 2 and texts(stage, "missed") == []
    scores = q.astype(float) @ k.astype(float).T
    if causal:
        scores[np.arange(16)[:, None] < np.arange(n)] = -np.inf
    power = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = power @ v.astype(float) / power.sum(axis=1, keepdims=True)
    for got in runs(func, arguments, (1,), interpreted=n == 40):
        np.testing.assert_allclose(got["c"], expected, rtol=0, atol=4e-3)


@kernel
def staged_before(q, keys, c, table, n, PICKED: bl.constexpr):
    """Queries pass through shared memory before a loop over keys; PICKED rows of the keys do, too, because all warps add them up."""
    rows, inner = bl.arange(0, 16), bl.arange(0, 32)
    queries = bl.load(q + rows[:, None] * 32 + inner[None, :])
    place = rows
    if PICKED:
        place = bl.sum(bl.load(table + bl.arange(0, 64)[:, None] * 16 + rows[None, :]), 0)
    total = bl.zeros((16, 16), bl.float32)
    for start in range(0, n, 16):
        k = bl.load(keys + (start + place)[:, None] * 32 + inner[None, :])
        total += bl.dot(queries, bl.trans(k)) * (start + 1)
    bl.store(c + rows[:, None] * 16 + rows[None, :], total)


@pytest.mark.parametrize("picked", [False, True])
def test_the_first_copies_start_before_queries_pass_through_shared_memory_unless_they_depend_on_that(
    picked: bool,
) -> None:
    table = np.zeros((64, 16), np.int32)
    table[40] = np.random.default_rng(0).permutation(16)
    arguments = {
        "q": numbers((16, 32), HALF),
        "keys": numbers((64, 32), HALF),
        "c": empty(16, 16),
        "table": table,
        "n": 64,
    }
    func, _ = lowered(staged_before, arguments | {"PICKED": picked}, num_warps=4)
    names = [op.name for op in func.body.ops]
    assert copied(func) == 1 and (names.index("local_store") < names.index("copy_async")) is picked
    q, k = arguments["q"].astype(float), arguments["keys"].astype(float)
    place = table[40] if picked else np.arange(16)
    expected = sum(q @ k[start + place].T * (start + 1) for start in range(0, 64, 16))
    for got in runs(func, arguments, (1,)):
        np.testing.assert_array_equal(got["c"], expected)


@kernel
def persistent(a, b, c, tiles, depth, first, BK: bl.constexpr):
    """A loop of products in a loop over tiles, in descending order."""
    row, column = bl.arange(0, 16)[:, None], bl.arange(0, 16)[None, :]
    for tile in range(first, tiles):
        total = bl.zeros((16, 16), bl.float32)
        for start in range(depth - BK, -1, -BK):
            inner = start + bl.arange(0, BK)
            x = bl.load(a + (tile * 16 + row) * depth + inner[None, :])
            total = bl.dot(x, bl.load(b + inner[:, None] * 16 + column), total)
        bl.store(c + (tile * 16 + row) * 16 + column, total)


@pytest.mark.parametrize("k", [16, 32, 96])
def test_nested_and_backward_loops_are_pipelined(k: int) -> None:
    arguments = {
        "a": numbers((48, k), HALF),
        "b": numbers((k, 16), HALF),
        "c": np.zeros((48, 16), np.float32),
        "tiles": 3,
        "depth": k,
        "first": 0,
        "BK": 16,
    }
    func, _ = lowered(persistent, arguments)
    assert copied(func) == 2
    for got in runs(func, arguments, (1,)):
        np.testing.assert_array_equal(got["c"], arguments["a"].astype(float) @ arguments["b"].astype(float))
