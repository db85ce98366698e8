"""Program swizzle: which kernels get groups of columns and which keep the grid's order; every program runs exactly once."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from fuzz import simt
from kernels import CASES
from kernels.base import Case, copied, parameters

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.ir.verify import verify
from blocknb.passes.memory.program_swizzle import ReuseFinder, with_swizzled_ids
from blocknb.passes.support.program_order import place_of
from blocknb.target import Target

HALF = np.float16
WAYS = ("pointers", "descriptors", "divided")
TILE = {"BM": 64, "BN": 8, "BK": 16}  # tile sides differ so much that groups are four columns wide
FLAT = {"BM": 64, "BN": 32, "BK": 16}  # sixteen, if b's columns count fastest


@blocknb.kernel
def product(
    a, b, c, m, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, WAY: bl.constexpr, HOW: bl.constexpr,
):  # fmt: skip
    """c = a b^T, one tile per program. In some variants, the results depend on the order of programs."""
    if WAY == "divided":
        across = bl.cdiv(n, BN)
        x, y = bl.program_id(0) // across, bl.program_id(0) % across
    else:
        x, y = bl.program_id(0), bl.program_id(1)
    row, column = x * BM, y * BN
    if HOW == "waits":
        while bl.atomic_cas(c, 1, 1) != 1:
            pass
    if HOW == "says":
        bl.device_print("row", row)
    if HOW == "ticket":
        column += bl.minimum(bl.atomic_add(c, 1.0).to(bl.int32), 0)
    if HOW == "assembly":
        row += bl.minimum(bl.inline_asm_elementwise("mov.u32 $0, %ctaid.x;", "=r", [], bl.int32, True, 1), 0)
    rows, columns = row + bl.arange(0, BM), column + bl.arange(0, BN)
    left = bl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    right = bl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    total = bl.zeros((BM, BN), bl.float32)
    for start in range(0, x * BK if HOW == "uneven" else k, BK):
        inner = start + bl.arange(0, BK)
        if WAY == "descriptors":
            left_tile, right_tile = left.load([row, start]), right.load([column, start])
        else:
            left_mask = (rows[:, None] < m) & (inner[None, :] < k)
            right_mask = (columns[:, None] < n) & (inner[None, :] < k)
            left_tile = bl.load(a + rows[:, None] * k + inner[None, :], mask=left_mask, other=0.0)
            right_tile = bl.load(b + columns[:, None] * k + inner[None, :], mask=right_mask, other=0.0)
        if HOW == "own":
            total += bl.load(c + rows[:, None] * n + columns[None, :] + start)
        total = bl.dot(left_tile, right_tile.T, total)
    bl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


def case(way: str, how: str = "plain") -> Case:
    """A grid that groups do not divide: six columns in groups of four, or, for "divided", two rows of eighteen in groups of sixteen."""
    m, n, k = (72, 568, 16) if way == "divided" else (328, 24, 32)
    tile = FLAT if way == "divided" else TILE

    def make(rng: np.random.Generator) -> dict[str, Any]:
        a, b = (rng.standard_normal((rows, k)).astype(HALF) for rows in (m, n))
        c = np.full((m, n), np.nan, np.float32)
        return {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k} | tile | {"WAY": way, "HOW": how}

    across, down = -(-m // tile["BM"]), -(-n // tile["BN"])
    return Case(
        f"product_{way}", product, make, lambda x: {"c": x["a"].astype(float) @ x["b"].astype(float).T},
        grid=(across * down,) if way == "divided" else (across, down), rtol=1e-3, atol=1e-3,
    )  # fmt: skip


def lowered(found: Case, target: str = "sm_90a", without: tuple = (), **options: Any) -> tuple[Func, list[str], dict]:
    """The last IR, the notes of the pass, and the arguments."""
    arguments = found.make(np.random.default_rng(1))
    func, stages = found.lower(arguments, target, without, num_warps=4, **options)
    verify(func)
    return func, [note.text for stage in stages if stage.name == "program_swizzle" for note in stage.notes], arguments


# -- the permutation


def test_swizzle_is_a_bijection_if_groups_do_not_divide_the_grid():
    for across, down, width in itertools.product(range(1, 21), range(1, 9), (1, 2, 4, 8, 16)):
        found = [place_of(number, across, down, width) for number in range(across * down)]
        assert sorted(found) == sorted(itertools.product(range(across), range(down)))
        group = sorted(found[: min(width, across) * down])
        assert group == sorted(itertools.product(range(min(width, across)), range(down)))


def test_x_varies_fastest_within_a_group():
    found = [place_of(number, 5, 3, 2) for number in range(15)]
    assert found[:7] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0)]
    assert found[-3:] == [(4, 0), (4, 1), (4, 2)]


@blocknb.kernel
def logged(log, count, across):
    """Logs the program ids in the order in which programs begin."""
    at = bl.atomic_add(count, 1, sem="relaxed")
    bl.store(log + at, bl.program_id(0) + 100 * bl.program_id(1) + 10000 * bl.program_id(2))


def test_program_id_follows_from_the_cta_number():
    grid, log = (5, 3, 2), np.zeros(30, np.int32)
    arguments = {"log": log, "count": np.zeros(1, np.int32), "across": 5}
    func = Case("logged", logged, dict, dict).parse(arguments, num_warps=2)
    made = passes.run(func, Target.parse("sm_80"), {"program_packing"})[0].with_attrs(order=2)
    simt.run(gpu.generate(made, Target.parse("sm_80")), parameters(made, arguments), grid)
    ctas = [(x, y, z) for x, y, z in np.ndindex(*grid)]  # in the order of `simt`
    places = [(*place_of(x + 5 * y, 5, 3, 2), z) for x, y, z in ctas]
    assert log.tolist() == [x + 100 * y + 10000 * z for x, y, z in places]


@blocknb.kernel
def logged_product(a, b, log, count, k):
    left = bl.make_tensor_descriptor(a, [64, k], [k, 1], [64, 16])
    right = bl.make_tensor_descriptor(b, [16, k], [k, 1], [16, 16])
    total = bl.zeros((64, 16), bl.float32)
    for start in range(0, k, 16):
        total = bl.dot(left.load([0, start]), right.load([0, start]).T, total)
    at = bl.atomic_add(count, 1, sem="relaxed")
    place = bl.program_id(0) + 100 * bl.program_id(1) + 10000 * bl.program_id(2)
    bl.store(log + at, place + bl.max(bl.max(total, axis=1), axis=0).to(bl.int32))


def test_persistent_cta_runs_programs_in_swizzled_order():
    grid, log = (3, 2, 2), np.zeros(12, np.int32)
    zeros = np.zeros((64, 16), HALF)
    arguments = {"a": zeros, "b": zeros[:16], "log": log, "count": np.zeros(1, np.int32), "k": 16}
    func = Case("logged_product", logged_product, dict, dict).parse(arguments, num_warps=8)
    made = passes.run(func.with_attrs(order=2), Target.parse("sm_90a"), {"program_swizzle"})[0]
    assert made.attrs["persistent"]
    interp.run(made, parameters(made, arguments), grid, ctas=1)
    places = [(*place_of(number % 6, 3, 2, 2), number // 6) for number in range(12)]
    assert log.tolist() == [x + 100 * y + 10000 * z for x, y, z in places]


# -- kernels that are swizzled


@pytest.mark.parametrize("way", WAYS)
def test_group_width_of_a_product_follows_its_tile_shape(way):
    _, (note,), _ = lowered(case(way))
    wide, other, along, across = (16, 8, "b", "a") if way == "divided" else (4, 32, "a", "b")
    assert note == (
        f"programs start in groups of {wide} along x: of 128 at a time, {other} read the same tile of `{along}` and {wide} the same of "
        f"`{across}`, so L2 serves all reads but the first"
    )


@pytest.mark.sampled(3, each=["way", "without"])
@pytest.mark.parametrize("without", [(), ("persistent_grid",), ("warp_specialization",)])
@pytest.mark.parametrize("way", WAYS)
def test_results_are_unchanged_if_groups_do_not_divide_the_grid(way, without):
    found = case(way)
    func, (note,), arguments = lowered(found, without=without)
    assert note.startswith("programs start in groups")
    assert ("persistent" in func.attrs) == (not without)
    if not without:
        found.interpret(func, arguments)
    got = {name: copied(value) for name, value in arguments.items()}
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, got), found.grid)
    found.check(arguments, got)


@pytest.mark.parametrize("way", WAYS)
def test_swizzle_applies_before_hopper_too(way):
    found = case(way)
    func, (note,), arguments = lowered(found, "sm_80")
    assert note.startswith("programs start in groups")
    got = {name: copied(value) for name, value in arguments.items()}
    simt.run(gpu.generate(func, Target.parse("sm_80")), parameters(func, got), found.grid)
    found.check(arguments, got)


def test_without_the_pass_programs_keep_the_order_of_the_grid():
    func, notes, _ = lowered(case("descriptors"), without=("program_swizzle",))
    assert "order" not in func.attrs and notes == ["switched off"]


def test_pass_name_is_accepted_and_ignored_on_a_cpu():
    func = case("pointers").parse(case("pointers").make(np.random.default_rng(0)))
    made, stages = passes.run(func, Target.parse("cpu:x86-64"), {"program_swizzle"})
    assert "order" not in made.attrs and all(stage.name != "program_swizzle" for stage in stages)


def test_swizzle_keeps_warp_specialization_and_tma_stores():
    """The swizzled ids have the same properties as the original ones: they are not negative, and computed from scalars."""
    for way in WAYS:
        kinds = [
            {op.name for op in lowered(case(way), without=without)[0].ops()} for without in ((), ("program_swizzle",))
        ]
        assert kinds[0] >= {"roles", "copy_bulk"} and ("store_bulk" in kinds[0]) == ("store_bulk" in kinds[1])


# -- grids of one axis, whose ids are divided


@blocknb.kernel
def taken_apart(out, across):
    row, column = bl.program_id(0) // across, bl.program_id(0) % across
    bl.store(out + bl.program_id(0), row * 100 + column)


@blocknb.kernel
def only_taken_apart(out, across):
    row, column = bl.program_id(0) // across, bl.program_id(0) % across
    bl.atomic_add(out + row * 16 + column, 1)


def test_programs_of_a_partial_last_row_keep_their_order():
    arguments = {"out": np.zeros(512, np.int32), "across": 7}
    func = Case("", only_taken_apart, dict, dict).parse(arguments)
    made = with_swizzled_ids(func, ReuseFinder(func), 4)
    verify(made)
    for across, programs in itertools.product((1, 3, 4, 5, 9), (1, 2, 5, 8, 13, 18)):
        out = np.zeros(512, np.int32)
        interp.run(made, [out, across], (programs,))
        expected = np.zeros(512, np.int32)
        numbers = np.arange(programs)
        expected[numbers // across * 16 + numbers % across] = 1
        assert (out == expected).all()


def test_program_id_with_other_uses_is_not_split():
    arguments = {"out": np.zeros(512, np.int32), "across": 7}
    assert not ReuseFinder(Case("", taken_apart, dict, dict).parse(arguments)).split


# -- kernels that are not swizzled


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("uneven", "the number of iterations differs between programs"),
        ("waits", "the `while` at line {} may wait for programs that started before"),
        ("ticket", "the atomic at line {} reveals the order in which programs start"),
        ("assembly", "the assembly at line {} reads the id of its CTA"),
        ("own", "the load at line {} reads a different tile in every program, so no order lets programs share it"),
    ],
)
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_programs_keep_their_order_if_it_may_be_intended_or_swizzling_does_not_help(how, why, target):
    func, (note,), _ = lowered(case("pointers", how=how), target)
    assert "order" not in func.attrs
    head, _, tail = f"programs start in the order of the grid: {why}".partition("{}")
    assert note.startswith(head) and note.endswith(tail)


def test_programs_that_reveal_their_ids_are_not_swizzled():
    """This holds for one axis. With two, programs reveal their place in the grid, which does not depend on the order."""
    func, (note,), _ = lowered(case("divided", how="says"))
    assert note.endswith("reveals the numbers of programs") and "order" not in func.attrs
    assert lowered(case("pointers", how="says"))[0].attrs["order"] == 4


ELSEWHERE = "loops do not read some tiles that depend on x only and others that depend on y only"
OWN = "the kernel computes rows and columns from one axis, so it orders them itself"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("attention_masked", ELSEWHERE),
        ("attention_query_gradients", ELSEWHERE),
        ("blocks_attention_causal", ELSEWHERE),
        ("wgmma_gated", ELSEWHERE),
        ("gemm_batch_tn", OWN),
        ("matmul_float16", OWN),
        ("host_descriptor_matmul", OWN),
    ],
)
def test_attention_and_products_with_their_own_order_are_unchanged(name, why):
    found = CASES[name]
    _, stages = found.lower(found.make(np.random.default_rng(0)), "sm_90a")
    (stage,) = [stage for stage in stages if stage.name == "program_swizzle"]
    assert stage.after is stage.before and stage.notes[0].text == f"programs start in the order of the grid: {why}"


@pytest.mark.parametrize("name", ["softmax_781", "add_float16", "blocks_transpose", "online_softmax"])
def test_pass_does_not_apply_to_kernels_without_reuse(name):
    found = CASES[name]
    _, stages = found.lower(found.make(np.random.default_rng(0)), "sm_90a")
    assert all(stage.name != "program_swizzle" for stage in stages)


# -- assembled


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_swizzled_large_tiles_cause_no_spills(way, target):
    kinds = {**dict.fromkeys("ab", "*fp16:16"), "c": "*fp32:16", **dict.fromkeys("mnk", "i32:16")}
    tile = {"BM": 128, "BN": 256, "BK": 64} if target == "sm_90a" else {"BM": 128, "BN": 128, "BK": 32}
    trace = product.trace(**kinds, **tile, WAY=way, HOW="plain", num_warps=8, target=target)
    assert trace.resources.spill_bytes == 0
