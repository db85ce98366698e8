"""Rules refuse right results that break them, with a sentence that names the array, the line, and the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from learn.examples import GEMM, SOFTMAX, rows

from blocknb import learn
from blocknb.errors import LaunchError
from blocknb.learn.cell import answer_of
from blocknb.learn.running import Attempt, prepared


def with_rules(exercise: learn.Exercise, *rules: learn.Rule, **more: object) -> learn.Exercise:
    return replace(exercise, rules=rules, **more)


def broken(exercise: learn.Exercise, source: str, *rules: learn.Rule) -> str:
    """The headline of an answer whose result is right."""
    verdict = learn.check(with_rules(exercise, *rules), source, seed=1, devices=("cpu",))
    assert all(case.passed for case in verdict.cases), verdict
    return verdict.headline


LOADS_TWICE = SOFTMAX.solution.replace(
    "tl.sum(powers, axis=0), mask",
    'tl.sum(tl.exp(tl.load(x + row * n + lanes, mask=inside, other=-float("inf")) - tl.max(values, axis=0)), axis=0), mask',
)


def test_bytes_once_counts_loads() -> None:
    assert broken(SOFTMAX, SOFTMAX.solution, learn.bytes_once).startswith("passed")
    said = broken(SOFTMAX, LOADS_TWICE, learn.bytes_once)
    assert (
        "the programs load `x` 2 times in lines 6 and 8: once is enough (8,192 bytes issued, 4,096 unique) (line 6)"
        in said
    )
    assert broken(SOFTMAX, LOADS_TWICE, learn.bytes_at_most(2)).startswith("passed")
    assert broken(SOFTMAX, LOADS_TWICE, learn.bytes_at_most(1, "out")).startswith("passed")


def test_stored_once_refuses_second_stores() -> None:
    store = "    tl.store(out + row * n + lanes, values, mask=inside)\n"
    twice = SOFTMAX.solution.replace("    powers =", store + "    powers =")
    assert "a program stores all of `out` 2 times" in broken(SOFTMAX, twice, learn.stored_once)


def test_stored_once_refuses_lanes_of_one_store_that_share_an_element() -> None:
    """All lanes store the row's maximum to one element: the result is right."""
    flat = replace(
        SOFTMAX,
        cases=(learn.Case("12x64", lambda rng: rows(12, 64, 64)(rng) | {"out": np.empty(12, np.float32)}),),
        reference=lambda x: {"out": x.max(axis=1).astype(np.float64)},
    )
    store = "tl.store(out + row * n + lanes, powers / tl.sum(powers, axis=0), mask=inside)"
    most = "tl.max(values, axis=0)"
    source = SOFTMAX.solution.replace(store, f"tl.store(out + row + 0 * lanes, {most} + 0.0 * values)")
    said = broken(flat, source, learn.stored_once)
    assert "program 0 stores an element of `out` twice: lanes of one tl.store have the same address (line 8)" in said
    assert said.startswith("not accepted, although 1 of 1 cases give the right result")
    once = SOFTMAX.solution.replace(store, f"tl.store(out + row, {most})")
    assert broken(flat, once, learn.stored_once).startswith("passed")


def test_no_race_refuses_loads_of_what_others_store() -> None:
    racing = SOFTMAX.solution.replace(
        "    tl.store(",
        "    other = tl.load(out + (row + 1) % tl.num_programs(0) * n + lanes, mask=inside, other=0.0)\n    tl.store(",
    ).replace("powers / tl.sum", "0.0 * tl.minimum(tl.maximum(other, 0.0), 0.0) + powers / tl.sum")
    verdict = learn.check(with_rules(SOFTMAX, learn.no_race), racing, seed=1)
    assert "race: program" in str(verdict)


SUM = learn.Exercise(
    "total-0",
    "Add all elements",
    task="",
    cases=(
        learn.Case("512", lambda rng: {"x": rng.integers(0, 9, 512).astype(np.int32), "out": np.zeros(1, np.int32)}),
    ),
    outputs=("out",),
    updated=("out",),
    grid=lambda: (4,),
    reference=lambda x: {"out": x.sum(keepdims=True)},
    rules=(),
    solution="""\
@blocknb.kernel
def total(x, out):
    tl.atomic_add(out, tl.sum(tl.load(x + tl.program_id(0) * 128 + tl.arange(0, 128))))
""",
    blanks=((3, 3),),
    mistakes=(),
)


def test_sums_over_programs_need_atomics() -> None:
    plain = SUM.solution.replace("tl.atomic_add(out, ", "tl.store(out, tl.load(out) + ")
    assert broken(SUM, SUM.solution, learn.no_race, learn.any_order(4)).startswith("passed")
    assert "race" in str(learn.check(with_rules(SUM, learn.no_race), plain, seed=1))


def test_any_order_runs_other_orders() -> None:
    last = SUM.solution.replace("tl.atomic_add(out, ", "tl.atomic_xchg(out, tl.program_id(0) * 0 + ")
    first = replace(SUM, reference=lambda x: {"out": x[384:].sum(keepdims=True)}, rules=(learn.any_order(4),))
    verdict = learn.check(first, last, seed=1, devices=("interpreted",))
    assert "depends on the order of the programs" in str(verdict)


def test_any_order_reports_a_kernel_that_fails_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: object) -> None:
        raise LaunchError("element 9 is outside of `x`")

    monkeypatch.setattr("blocknb.learn.rules.check_orders", failing)
    said = broken(SUM, SUM.solution, learn.any_order(4))
    assert "the kernel fails in another order of the programs: element 9 is outside of `x`" in said


def test_first_programs_load_counts_different_bytes() -> None:
    rule = learn.first_programs_load(2, at_most=lambda n: 2 * 4 * n)
    assert broken(SOFTMAX, SOFTMAX.solution, rule).startswith("passed")
    said = broken(SOFTMAX, SOFTMAX.solution, learn.first_programs_load(3, at_most=100))
    assert "the first 3 programs load 768 different bytes, and 100 are wanted" in said


def test_ideal_sectors_refuses_strided_loads() -> None:
    wide = replace(SOFTMAX, cases=(learn.Case("64x64", rows(64, 64, 64)),))
    turned = """\
@blocknb.kernel
def softmax(x, out, n, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes * n + column, tl.load(x + lanes * n + column))
"""
    copying = replace(wide, reference=lambda x: {"out": x.astype(np.float64)}, solution=turned)
    straight = turned.replace("lanes * n + column", "column * n + lanes")
    assert broken(replace(copying, solution=straight), straight, learn.ideal_sectors).startswith("passed")
    said = broken(replace(copying, solution=straight), turned, learn.ideal_sectors)
    assert "a program loads `x` in 128 sectors, and 16 would hold the same elements" in said
    assert said.endswith("(line 5)")
    assert "moves 4 bytes of `x`" in broken(copying, turned, learn.bytes_per_lane(16, "x"))
    assert broken(copying, turned, learn.ideal_sectors).startswith("passed"), "the solution's own ratio is allowed"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("at < room", "at < n", "the mask may change after 1 element, as `n` is not known to be a multiple of 4"),
        (
            "tl.load(x + at,",
            "tl.load(x + at // 2,",
            "the index is computed so that only 1 consecutive address is proved",
        ),
    ],
)
def test_bytes_per_lane_names_what_keeps_an_access_narrow(old: str, new: str, why: str) -> None:
    exercise = learn.exercise("pad-1")
    assert isinstance(exercise, learn.Exercise)
    attempt = learn.launch(exercise, exercise.solution.replace(old, new))
    found = [finding.text for finding in learn.bytes_per_lane(16).check(attempt)]
    assert found[0].startswith(f"a lane moves 4 bytes of `x` with one instruction, and 16 are wanted: {why}")
    assert not list(learn.bytes_per_lane(16).check(learn.launch(exercise, exercise.solution)))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (learn.assembles, ""),
        (learn.no_spills, ""),
        (learn.registers_at_most(255), ""),
        (learn.registers_at_most(16), "registers, and at most 16 are wanted"),
        (learn.shared_at_most(1 << 17), ""),
        (learn.shared_at_most(64), "bytes of shared memory, and at most 64 are wanted"),
        (learn.programs_per_multiprocessor(2), ""),
        (learn.programs_per_multiprocessor(1000), "and 1000 are wanted"),
        (learn.emits("mma.sync"), ""),
        (learn.emits("wgmma"), "the code for sm_90a has no wgmma"),
        (learn.mma_utilization(0.01, M=512, N=512, K=512), ""),
        (learn.mma_utilization(0.999, M=512, N=512, K=512), "under way"),
        (learn.waves_busy(0.001), ""),
        (learn.waves_busy(0.9), "4 programs take 1 wave"),
    ],
    ids=lambda value: value.name if isinstance(value, learn.Rule) else None,
)
def test_rules_about_code(rule: learn.Rule, words: str) -> None:
    said = broken(GEMM, GEMM.solution, rule)
    assert (words in said) if words else said.startswith("passed"), said


def test_a_kernel_that_one_target_refuses_does_not_assemble() -> None:
    """The interpreter and the CPU have no PTX, so the rule gets an attempt without a launch. sm_80 has no wgmma."""
    asm = "tl.inline_asm_elementwise('wgmma.fence.sync.aligned; mov.u32 $0, $1;', '=r,r', [lanes], tl.int32, False, 1)"
    case = SOFTMAX.cases[2]
    answer = answer_of(SOFTMAX, f"{SOFTMAX.solution}    {asm}\n")
    made = Attempt(SOFTMAX, answer, case, 1, given=prepared(SOFTMAX, case, 1))
    (found,) = learn.assembles.check(made)
    assert found.text.startswith("the kernel does not compile for sm_80: ptxas rejects the assembly")
    assert found.line == 9


def test_orders_that_differ_in_late_digits_are_distinct_texts() -> None:
    from blocknb.learn.rules import _distinct_texts

    assert _distinct_texts(1.5, 2.5) == ("1.5", "2.5")
    assert _distinct_texts(np.float32(2053.8586), np.float32(2053.8589)) == ("2053.8586", "2053.8589")
    assert _distinct_texts(float("nan"), float("nan")) == ("nan", "nan")


def test_an_output_of_one_element_has_no_room_for_the_program_in_its_address() -> None:
    plain = SUM.solution.replace("tl.atomic_add(out, ", "tl.store(out, tl.load(out) + ")
    said = str(learn.check(with_rules(SUM, learn.no_race, learn.stored_once), plain, seed=1))
    assert "use an atomic to combine the values of several programs" in said
    assert "in the address" not in said
