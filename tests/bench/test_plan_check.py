"""plan_check: the random shapes, and a row for a shape, with times that a test gives."""

from __future__ import annotations

import numpy as np
import pytest

from blocknb.bench import plan_check
from blocknb.bench.suite.definition import Make
from blocknb.bench.suite.runner import BenchOptions
from blocknb.kernels import plans
from blocknb.kernels.shapes import OperandRows
from blocknb.kernels.strides import Device
from blocknb.profile.timing import Timings, summary
from blocknb.runtime import machine

HOPPER = Device(132, 90, 227 << 10)
ALIGNED = (OperandRows.LINE_ALIGNED, OperandRows.LINE_ALIGNED)


def test_shapes_follow_from_the_seed_and_have_every_alignment():
    shapes = plan_check.drawn(3, 60)
    assert shapes == plan_check.drawn(3, 60) != plan_check.drawn(4, 60)
    assert all(plan_check.LEAST <= size <= plan_check.MOST for shape in shapes for size in shape)
    assert all(size % 64 == 0 for shape in shapes[2::3] for size in shape)
    assert any(size % 8 for shape in shapes[::3] for size in shape)


def test_a_row_compares_the_chosen_plan_with_the_fastest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan_check, "device", lambda array: HOPPER)
    found, asked = plans.candidates(256, 192, 320, HOPPER, ALIGNED, True), []
    monkeypatch.setattr(plans, "candidates", lambda *given: found)
    chosen, *others = (str(one) for _, one in sorted(found))
    times = {chosen: 3.0, **dict.fromkeys(others, 4.0), others[-1]: 2.0}

    def measured(calls, *, going, **options):
        asked.append(going({name: [times[name]] for name in calls}))
        asked.append(going({name: [times[name]] * plan_check.FIRST_ROUNDS for name in calls}))
        return Timings((name, summary([times[name]])) for name in calls)

    def computed(a, b, out, one):
        out[...] = a.astype(np.float32) @ b.astype(np.float32)

    monkeypatch.setattr(plan_check, "interleaved", measured)
    monkeypatch.setattr(plan_check, "_compute", computed)
    row = plan_check.check(Make(np, "fp16"), 256, 192, 320, 9)
    assert row["ratio"] == 1.5 and row["us"] == 2000 and row["candidates"] == len(found)
    assert (row["chosen"], row["fastest"]) == (chosen, others[-1]) and "problems" not in row
    assert len(asked[0]) == len(found) and set(asked[1]) == {chosen, others[-1]}


def test_candidates_with_wrong_results_are_named():
    make = Make(np, "fp16")
    exact, out = make.wide(make.normal(200, 300)) * 70, make.poison(200, 300)

    def stored(change):
        def call():
            out[...] = exact
            change()

        return call

    faults = {
        "right": lambda: None,
        "an element": lambda: out.__setitem__((7, 9), out[7, 9] + 2),
        "the last column is not stored": lambda: out[:, -1].fill(np.nan),
        "all elements by a little": lambda: np.multiply(out, 1.002, out=out),
    }
    calls = {name: stored(change) for name, change in faults.items()}
    assert plan_check.wrong_results(make, exact, out, calls) == list(faults)[1:]


def test_a_wrong_choice_has_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan_check, "device", lambda array: HOPPER)
    monkeypatch.setattr(plan_check, "_compute", lambda a, b, out, one: None)  # NaN stays
    row = plan_check.check(Make(np, "fp16"), 256, 192, 320, 9)
    assert row["ratio"] == float("inf") and len(row["problems"]) == row["candidates"]


def test_an_interrupt_ends_the_shapes_and_keeps_those_before(monkeypatch: pytest.MonkeyPatch, capsys):
    rows = [{"shape": "1x2x3", "ratio": 1.0, "candidates": 4}, {"shape": "4x5x6", "ratio": 1.2, "candidates": 4}]
    left = list(rows)

    def check(make, m, n, k, rounds):
        if not left:
            raise KeyboardInterrupt
        return left.pop(0)

    monkeypatch.setattr(plan_check, "check", check)
    monkeypatch.setattr(plan_check, "MakeTorch", lambda device, dtype: None)
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    assert plan_check.run(BenchOptions()) == [*rows, {"interrupted": True}]
    assert "50.0% of 2 shapes" in capsys.readouterr().out
    assert plan_check.run(BenchOptions()) == [{"interrupted": True}]


def test_times_of_an_interrupted_measurement_are_not_complete():
    found = Timings(a=summary([1.0]))
    assert found.complete() is found
    found.cancelled = True
    with pytest.raises(KeyboardInterrupt):
        found.complete()
