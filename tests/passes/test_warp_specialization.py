"""Warp specialization, persistent grids, and MMA and softmax overlap: the decisions and the corner cases of iteration counts.

The corner cases are zero iterations, one iteration, and fewer programs than consumer groups. `test_every_pass` and
`test_warp_specialization_random` check that results stay the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.errors import CompilerBug
from blocknb.ir import interp
from blocknb.ir.core import Block, Func, Op, walk
from blocknb.ir.verify import verify
from blocknb.passes.memory.warp_specialization import SETMAXNREG
from blocknb.target import Target

HALF = np.float16
kernel = blocknb.kernel(do_not_specialize=("k",))


@kernel
def product(
    a, b, c, m, n, k, PITCH: bl.constexpr, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, HOW: bl.constexpr,
):  # fmt: skip
    """c = a b^T, one tile per program; some variants keep loads with the consumer warps."""
    left = bl.make_tensor_descriptor(a, [m, k], [PITCH, 1], [BM, BK])
    right = bl.make_tensor_descriptor(b, [n, k], [PITCH, 1], [BN, BK])
    row, column = bl.program_id(0) * BM, bl.program_id(1) * BN
    total = bl.zeros((BM, BN), bl.float32)
    first = left.load([row, 0])
    if HOW == "ordered":
        bl.debug_barrier()
    depth = bl.program_id(0) * BK + BK if HOW == "uneven" else k
    if HOW == "summed":
        depth = k - k
        for _ in range(k // BK):
            depth += (bl.program_id(0) % 2 + 1) * BK // 2
    for start in range(0, depth, BK):
        x = left.load([row, start])
        y = right.load([column, start])
        if HOW == "scaled":
            x = x * 2
        if HOW == "both":
            total += bl.sum(y, axis=1)[None, :]
        if HOW == "wrapped":
            rows = (row + bl.arange(0, BM)) % m
            inner = start + bl.arange(0, BK)
            x = bl.load(a + rows[:, None] * PITCH + inner[None, :], mask=inner[None, :] < k)
        if HOW == "outer":
            x = first
        total = bl.dot(x, y.T, total)
        if HOW == "written":
            left.store([row, start], bl.zeros((BM, BK), bl.float16))
    rows, columns = row + bl.arange(0, BM), column + bl.arange(0, BN)
    bl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@kernel
def unusual(
    a, b, c, m, n, k, PITCH: bl.constexpr, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, HOW: bl.constexpr,
):  # fmt: skip
    """c = a b^T, with a loop from the end of K to its beginning, or with an extent that is computed first."""
    depth = k & 0xFFF8 if HOW == "and" else -(-k // 8) * 8 if HOW == "negative" else k
    left = bl.make_tensor_descriptor(a, [m, depth], [PITCH, 1], [BM, BK])
    right = bl.make_tensor_descriptor(b, [n, depth], [PITCH, 1], [BN, BK])
    row, column = bl.program_id(0) * BM, bl.program_id(1) * BN
    total = bl.zeros((BM, BN), bl.float32)
    if HOW == "backwards":
        for end in range(k, 0, -BK):
            total = bl.dot(left.load([row, end - BK]), right.load([column, end - BK]).T, total)
    else:
        for start in range(0, depth, BK):
            total = bl.dot(left.load([row, start]), right.load([column, start]).T, total)
    rows, columns = row + bl.arange(0, BM), column + bl.arange(0, BN)
    bl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@kernel
def attention(
    q, k, v, o, keys, WIDTH: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr, HOW: bl.constexpr = "plain",
):  # fmt: skip
    """One block of queries per program, over all keys; zero without keys. In other variants, an iteration reads the running sum."""
    row = bl.program_id(0) * ROWS
    queries = bl.num_programs(0) * ROWS
    query = bl.make_tensor_descriptor(q, [queries, WIDTH], [WIDTH, 1], [ROWS, WIDTH]).load([row, 0])
    of_keys = bl.make_tensor_descriptor(k, [keys, WIDTH], [WIDTH, 1], [COLUMNS, WIDTH])
    of_values = bl.make_tensor_descriptor(v, [keys, WIDTH], [WIDTH, 1], [COLUMNS, WIDTH])
    top = bl.full((ROWS,), -1e30, bl.float32)
    total = bl.zeros((ROWS,), bl.float32)
    result = bl.zeros((ROWS, WIDTH), bl.float32)
    for start in range(0, keys, COLUMNS):
        if HOW == "stored":
            bl.store(o + (row + bl.arange(0, ROWS))[:, None] * WIDTH + bl.arange(0, WIDTH)[None, :], result)
        first = bl.zeros((ROWS, COLUMNS), bl.float32)
        if HOW == "fed":
            first += bl.sum(result, axis=1)[:, None] * 0.0
        scores = bl.dot(query, of_keys.load([start, 0]).T, first)
        columns = start + bl.arange(0, COLUMNS)
        scores = bl.where(columns[None, :] < keys, scores, -float("inf"))
        larger = bl.maximum(top, bl.max(scores, axis=1))
        powers = bl.exp2(scores - larger[:, None])
        factor = bl.exp2(top - larger)
        total = total * factor + bl.sum(powers, axis=1)
        values = of_values.load([start, 0])
        result = bl.dot(powers.to(values.dtype), values, result * factor[:, None])
        top = larger
    result = result / bl.where(total == 0.0, 1.0, total)[:, None]
    places = (row + bl.arange(0, ROWS))[:, None] * WIDTH + bl.arange(0, WIDTH)[None, :]
    bl.store(o + places, result)


TILE = {"BM": 64, "BN": 32, "BK": 32, "HOW": "plain"}


def arrays(m: int = 192, n: int = 64, k: int = 96, seed: int = 0, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    pitch = max(8, -(-k // 8) * 8)
    a, b = (np.where(np.arange(pitch) < k, rng.standard_normal((rows, pitch)), np.nan).astype(HALF) for rows in (m, n))
    return (
        {"a": a, "b": b, "PITCH": pitch, "c": np.full((m, n), np.nan, np.float32), "m": m, "n": n, "k": k} | TILE | more
    )


def lowered(kernel: Any, arguments: dict[str, Any], without: tuple = (), **options: Any) -> tuple[Func, list]:
    func = Case(kernel.__name__, kernel, dict, dict).parse(arguments, **({"num_warps": 4} | options))
    return passes.run(func, Target.parse("sm_90a"), without)


def notes(stages: Any, name: str = "warp_specialization") -> list[str]:
    return [note.text for stage in stages if stage.name == name for note in stage.notes]


def roles(func: Func) -> Op | None:
    return next((op for op in func.ops() if op.name == "roles"), None)


def count(func: Func, name: str) -> int:
    return sum(op.name == name for op in func.ops())


def run(func: Func, arguments: dict[str, Any], grid: tuple[int, ...], seed: int = 0) -> dict[str, Any]:
    verify(func)
    fresh = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    values = [fresh[value.name].reshape(-1) if value.type.is_pointer else fresh[value.name] for value in func.params]
    interp.run(func, values, grid, seed=seed)
    return fresh


def reference(arguments: dict[str, Any]) -> np.ndarray:
    a, b = (arguments[name][:, : arguments["k"]].astype(float) for name in "ab")
    return a @ b.T


def grid_of(arguments: dict[str, Any]) -> tuple[int, int, int]:
    return -(-arguments["m"] // arguments["BM"]), -(-arguments["n"] // arguments["BN"]), 1


# -- copied loads


def test_both_operands_share_mbarriers_and_the_requested_number_of_stages():
    func, stages = lowered(product, arrays(), num_stages=3, without=("persistent_grid",))
    assert notes(stages)[:2] == [
        "pipelined: copied by TMA, by the producer warp: 3 stages of 4096 bytes, 64-byte swizzle",
        "pipelined: copied by TMA, by the producer warp: 3 stages of 2048 bytes, 64-byte swizzle",
    ]
    full, empty = (op for op in func.ops() if op.name == "mbarriers")
    assert (full.attrs["stages"], full.attrs["arrivals"]) == (3, 1)
    assert (empty.attrs["stages"], empty.attrs["arrivals"]) == (3, 4)
    assert roles(func).attrs["warps"] == (4, 1)
    consumers, producer = ([op.name for op in walk(block)] for block in roles(func).blocks)
    assert producer.count("copy_bulk") == 2 and producer.count("expect") == producer.count("await") == 1
    assert (
        "copy_bulk" not in consumers and consumers.count("await") == 1 and consumers.count("arrive") == 2
    )  # one is after the loop


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("wrapped", "its rows wrap around (% m"),
        ("both", "it is used in registers, too"),
        ("scaled", "an operand is computed from it"),
        ("written", "also writes a"),
        ("ordered", "keeps later accesses after it"),
    ],
)
def test_notes_explain_why_a_load_stays_with_the_consumer_warps(how, why):
    func, stages = lowered(product, arrays(m=196, HOW=how))
    refused = [text for text in notes(stages) if text.startswith("not pipelined by TMA: ")]
    assert any(why in text for text in refused)
    copied = [text for text in notes(stages) if text.startswith("pipelined: copied by TMA")]
    assert len(copied) == {"wrapped": 1, "both": 1, "scaled": 1, "written": 1, "ordered": 0}[how]
    assert (roles(func) is None) == (how == "ordered")


@pytest.mark.parametrize("how", ["plain", "wrapped", "both", "scaled", "outer", "uneven"])
def test_loads_of_the_consumer_warps_mix_with_copied_operands(how):
    arguments = arrays(m=128, k=64, HOW=how)
    func, _ = lowered(product, arguments)
    assert roles(func) is not None
    got = run(func, arguments, grid_of(arguments))["c"]
    want = run(lowered(product, arguments, ("warp_specialization",))[0], arguments, grid_of(arguments))["c"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-3)


def test_a_note_reports_stages_that_do_not_fit():
    big = arrays(256, 256, 512, BM=128, BN=256, BK=64)
    func, stages = lowered(product, big, num_stages=7, num_warps=8)
    assert any(text.endswith("(not 7: for lack of shared memory)") for text in notes(stages))
    assert func.attrs["shared_bytes"] <= Target.parse("sm_90a").max_shared


def test_each_optimization_can_be_switched_off():
    arguments = arrays()
    assert roles(lowered(product, arguments, ("warp_specialization",))[0]) is None
    func, _ = lowered(product, arguments, ("persistent_grid",))
    assert (
        roles(func).attrs.get("consumer_groups", 1) == 1
        and not func.attrs.get("persistent")
        and count(func, "program_id")
    )
    assert lowered(product, arguments)[0].attrs["persistent"]


def test_without_room_for_a_producer_warp_the_consumer_warps_copy():
    func, stages = lowered(product, arrays(256, 256, 128, BM=128, BN=256, BK=64), num_warps=32)
    assert roles(func) is None
    assert all(text.endswith("a CTA has 32 warps at most") for text in notes(stages)) and notes(stages)


@pytest.mark.parametrize("warps", sorted(SETMAXNREG))
def test_redistributed_registers_do_not_exceed_those_of_the_launch(warps):
    consumers, producer = SETMAXNREG[warps]
    ctas = 2 if warps == 4 else 1
    begun = (1 << 16) // (32 * (warps + 4) * ctas) // 8 * 8
    assert warps * consumers + 4 * producer <= (warps + 4) * begun
    assert producer < begun < consumers


@pytest.mark.parametrize(("how", "copied"), [("and", False), ("negative", True), ("backwards", True)])
def test_computed_extents_and_backward_loops_give_right_results(how, copied):
    arguments = arrays(m=320, n=32, k=160, HOW=how)
    func, _ = lowered(unusual, arguments)
    gpu.generate(func, Target.parse("sm_90a"))  # the generated code tells the host what to compute
    assert (roles(func) is not None) == copied
    got = run(func, arguments, grid_of(arguments))["c"]
    np.testing.assert_allclose(got, reference(arguments), rtol=0, atol=2e-2)


# -- several programs per CTA


@pytest.mark.parametrize("how", ["uneven", "summed"])
def test_programs_with_different_iteration_counts_are_not_persistent(how):
    func, stages = lowered(product, arrays(HOW=how))
    assert notes(stages, "persistent_grid") == ["not persistent: the number of iterations may differ between programs"]
    assert not func.attrs.get("persistent")


def test_consumer_groups_alternate_if_a_program_is_one_loop_of_products():
    func, stages = lowered(product, arrays())
    assert roles(func).attrs["consumer_groups"] == 2 and roles(func).attrs["warps"] == (8, 1)
    assert any("take turns" in text for text in notes(stages))
    assert (
        roles(lowered(product, arrays(HOW="outer"))[0]).attrs.get("consumer_groups", 1) == 1
    )  # the CTA reads something else, too
    assert roles(lowered(product, arrays(BM=128), num_warps=8)[0]).attrs.get("consumer_groups", 1) == 1


@pytest.mark.parametrize(("m", "n", "k"), [(64, 32, 96), (192, 32, 32), (320, 32, 160), (128, 96, 0), (100, 40, 40)])
def test_consumer_groups_work_for_any_number_of_programs_and_iterations(m, n, k):
    arguments = arrays(m, n, k)
    func, _ = lowered(product, arguments)
    assert roles(func).attrs["consumer_groups"] == 2
    want = reference(arguments)
    for seed in range(3):
        got = run(func, arguments, grid_of(arguments), seed)["c"]
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * max(1, k) ** 0.5)


@pytest.mark.parametrize("name", ["await", "arrive", "expect"])
def test_any_missing_synchronization_of_consumer_groups_is_detected(name):
    arguments = arrays(m=640, n=32, k=160)
    func, _ = lowered(product, arguments)
    found = [op.id for op in func.ops() if op.name == name]
    assert found
    want = reference(arguments)
    for removed in found:
        changed = removing(func, removed)
        with pytest.raises((CompilerBug, AssertionError)):
            for seed in range(8):
                got = run(changed, arguments, grid_of(arguments), seed)["c"]
                np.testing.assert_allclose(got, want, rtol=0, atol=2e-2)


def removing(func: Func, id: int) -> Func:
    def strip(block: Block) -> Block:
        kept = [op.replace(blocks=tuple(map(strip, op.blocks))) if op.blocks else op for op in block.ops if op.id != id]
        return Block(block.args, tuple(kept))

    return func.replace(body=strip(func.body))


# -- delayed products


def heads(keys: int, width: int = 32, rows: int = 64, columns: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng(keys)
    q, k, v = (rng.standard_normal((n, width)).astype(HALF) for n in (2 * rows, max(keys, 1), max(keys, 1)))
    o = np.full((2 * rows, width), np.nan, np.float32)
    return {"q": q, "k": k, "v": v, "o": o, "keys": keys, "WIDTH": width, "ROWS": rows, "COLUMNS": columns}


def test_the_second_product_runs_while_the_softmax_is_computed():
    func, stages = lowered(attention, heads(128, columns=64))
    assert notes(stages, "mma_softmax_overlap") == [
        "dot: delayed by one iteration: it runs while the operand of the next one is computed"
    ]
    order = iteration_ops(func)
    assert order[:3] == [("dot", 1), ("dot", 2), ("dot_wait", 1)]
    assert order.index(("dot_wait", None)) > max(i for i, (name, _) in enumerate(order) if name == "exp2")
    assert not notes(lowered(attention, heads(128), ("warp_specialization",))[1], "mma_softmax_overlap")


def test_a_second_product_with_as_many_sums_as_scores_ends_before_the_softmax():
    order = iteration_ops(lowered(attention, heads(128, columns=32))[0])
    assert order[:3] == [("dot", 1), ("dot", 2), ("dot_wait", 1)]
    assert [order[3:].index(x) for x in (("exp2", None), ("dot_wait", None))] == [0, 1]  # the rescaling factors
    assert ("exp2", None) in order[order.index(("dot_wait", None)) :]  # the weights


def iteration_ops(func: Func) -> list[tuple[str, int | None]]:
    """The products, waits and exponentials of a loop, in order."""
    loop = next(op for op in func.ops() if op.name == "for" and sum(x.name == "dot" for x in op.blocks[0].ops) == 2)
    return [(op.name, op.attrs.get("in_flight")) for op in loop.blocks[0].ops if op.name in ("dot", "dot_wait", "exp2")]


@pytest.mark.parametrize("how", ["stored", "fed"])
def test_a_sum_that_an_iteration_reads_is_complete_at_its_start(how):
    arguments = heads(96) | {"HOW": how}
    func, stages = lowered(attention, arguments)
    (note,) = notes(stages, "mma_softmax_overlap")
    assert roles(func) is not None
    assert note.startswith("dot: not delayed by one iteration: the sum is needed before the first product")
    got, want = (
        run(x, arguments, (2, 1, 1))["o"] for x in (func, lowered(attention, arguments, ("warp_specialization",))[0])
    )
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("without", [(), ("persistent_grid",), ("mma_softmax_overlap",)], ids=str)
@pytest.mark.parametrize(
    ("keys", "columns"),  # a quick run takes one width per number of keys, in turn
    [
        pytest.param(keys, columns, marks=pytest.mark.full if (i + j) % 2 else ())
        for i, keys in enumerate((0, 1, 32, 33, 160))
        for j, columns in enumerate((64, 32))
    ],
)
def test_attention_works_for_any_number_of_iterations(keys, without, columns):
    arguments = heads(keys, columns=columns)
    func, _ = lowered(attention, arguments, without)
    scores = arguments["q"].astype(float) @ arguments["k"][:keys].astype(float).T
    powers = np.exp2(scores - scores.max(axis=1, keepdims=True, initial=-1e30))
    want = powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-300) @ arguments["v"][:keys].astype(float)
    for seed in range(2):
        got = run(func, arguments, (2, 1, 1), seed)["o"]
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-3)


@blocknb.kernel
def counting(a, b, c, count, k, SEM: bl.constexpr):
    """A product, and an atomic whose result all warps use."""
    left = bl.make_tensor_descriptor(a, [64, k], [k, 1], [64, 32])
    right = bl.make_tensor_descriptor(b, [32, k], [k, 1], [32, 32])
    total = bl.zeros((64, 32), bl.float32)
    for start in range(0, k, 32):
        total = bl.dot(left.load([0, start]), right.load([0, start]).T, total)
        total += bl.atomic_add(count, 1, sem=SEM).to(bl.float32)
    bl.store(c + bl.arange(0, 64)[:, None] * 32 + bl.arange(0, 32)[None, :], total)


@pytest.mark.parametrize(("sem", "specialized"), [("relaxed", True), ("acq_rel", False)])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_an_atomic_whose_result_all_warps_read_counts_as_used(target, sem, specialized):
    a, b = arrays(64, 32, 96)["a"], arrays(64, 32, 96)["b"]
    arguments = {
        "a": a,
        "b": b,
        "c": np.zeros((64, 32), np.float32),
        "count": np.zeros(1, np.int32),
        "k": 96,
        "SEM": sem,
    }
    func = Case("counting", counting, dict, dict).parse(arguments, num_warps=4)
    made = passes.run(func, Target.parse(target))[0]
    assert (roles(made) is not None) == (specialized and target == "sm_90a")
    got = run(made, arguments, (1,))
    expected = a.astype(float) @ b.astype(float).T + 0 + 1 + 2
    np.testing.assert_allclose(got["c"], expected, rtol=1e-3, atol=1e-3)
