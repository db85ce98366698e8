"""`blocknb bench torch_fused`, `torch_models`, `torch_templates`: their checks, their division of times, and tiny runs on the CPU."""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch

from blocknb.bench import command
from blocknb.bench.suite.runner import BenchOptions
from blocknb.bench.torch_steps import errors, fused, kernel_times, measured, peers, run
from blocknb.bench.torch_steps.definition import RandomTensors, TorchStep
from blocknb.bench.torch_steps.measured import TorchRow, TorchSession
from blocknb.profile import timing
from blocknb.profile.timing import summary

pytestmark = pytest.mark.own_count
HALF = torch.bfloat16


def timed(name: str, ours: float, triton: float, shape: str = "1x1") -> TorchRow:
    row = TorchRow(TorchStep(name, shape, torch.add, lambda r: []), peers.TRITON)
    row.times = {peers.OURS: summary([ours] * 3), peers.TRITON: summary([triton] * 3)}
    row.launched, row.by_blocknb = {peers.OURS: ["a", "b"]}, 2
    return row


# -- checks


def test_one_wrong_element_in_a_million_is_found():
    exact = torch.randn(1000, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eager = exact.to(HALF)
    assert errors.wrong([eager.clone()], [exact], [eager], HALF) == ""
    one = eager.clone()
    one[500, 500] += 1
    assert "largest error" in errors.wrong([one], [exact], [eager], HALF)
    one[500, 500] = math.nan
    assert "result 0" in errors.wrong([one], [exact], [eager], HALF)
    rough = (exact * (1 + 0.02 * torch.randn(1000, 1000))).to(HALF)
    assert "relative error" in errors.wrong([rough], [exact], [eager], HALF)


def test_other_integers_and_other_shapes_are_found():
    exact = torch.arange(6)
    assert errors.wrong([exact.clone()], [exact], [exact], HALF) == ""
    assert "integers differ" in errors.wrong([exact + 1], [exact], [exact], HALF)
    assert "shape" in errors.wrong([exact[:5]], [exact], [exact], HALF)


def test_a_gradient_that_is_zero_in_exact_arithmetic_may_be_noise_like_eagers():
    exact = torch.full((64,), 1e-12)
    eager, ours = torch.full((64,), 1e-7), torch.full((64,), 3e-7)
    assert errors.wrong([ours], [exact], [eager], HALF) == ""
    assert errors.largest([ours], [exact], [eager]) == 0
    assert errors.wrong([ours * 100], [exact], [eager], HALF)


def test_a_step_that_misses_a_write_is_found_by_the_poison(monkeypatch):
    step = TorchStep("half", "8", lambda x: x * 2, lambda r: [r.normal(8)])

    class Missing(peers.CapturedStep):
        def __call__(self):
            first = not self.outputs
            self.outputs = self.outputs or [torch.empty(8, dtype=HALF)]
            self.outputs[0][: 8 if first else 7] = (self.inputs[0] * 2)[: 8 if first else 7]

    random = RandomTensors("cpu", 1)
    captured = Missing(step, step.bound(), step.draw(random))
    captured()
    fresh = step.draw(random)
    got = captured.on(fresh)
    assert errors.wrong(got, step.exact(fresh), [fresh[0] * 2], HALF)


# -- times of kernels


def test_events_are_divided_among_the_replays_by_their_order():
    names = {"blocknb": ["a", "b"], "Triton": ["a"]}
    order = ["Triton", "blocknb", "blocknb", "Triton"]
    events = [
        (10, "a", 1000),
        (20, "a", 2000),
        (25, "gemm", 9),
        (30, "b", 3000),
        (40, "a", 4000),
        (50, "b", 5000),
        (60, "a", 6000),
    ]
    found = kernel_times.divided(events[::-1], names, order)
    assert found == {"blocknb": [[2, 3], [4, 5]], "Triton": [[1], [6]]}
    assert kernel_times.sums(found["blocknb"]) == [0.005, 0.009]
    assert kernel_times.by_kernel(found["blocknb"], ["a", "a"]) == {"a": (7, 2)}
    with pytest.raises(ValueError, match="saw 5 launches"):
        kernel_times.divided(events[1:], names, order)


# -- verdicts


def test_the_lowest_ratio_and_the_mean_are_compared_with_the_floors():
    text = "\n".join(run.verdicts("torch_fused", [timed("low", 1, 0.85), timed("high", 1, 1.5)]))
    assert "MISSED  lowest 0.850 (low 1x1); floor 0.9" in text
    assert "goal    mean 1.129" in text and "compiled 4 of 4" in text
    assert "goal    lowest 1.040" in "\n".join(run.verdicts("torch_models", [timed("model", 1, 1.04)]))
    failed = timed("failed", 1, 1)
    del failed.times[peers.TRITON]
    assert "without a ratio: failed" in "\n".join(run.verdicts("torch_models", [failed, timed("model", 1, 1)]))


def test_kernels_that_are_slower_than_tritons_are_listed_with_the_worst_first():
    row = timed("step", 1, 1)
    row.kernels = {
        peers.OURS: {"a": (10, 1), "b": (30, 2), "c": (5, 1)},
        peers.TRITON: {"a": (9, 1), "b": (20, 2), "c": (5, 1)},
    }
    lines = [line for line in run.lines(row) if "slower" in line]
    assert [line.split()[1] for line in lines] == ["b", "a"] and "30.0 us, Triton 20.0 us (2 launches)" in lines[0]


# -- runs


def test_what_is_missing_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs a GPU that torch can use; --device cpu"):
        run.ready("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run, "version_of", lambda name: "")
    with pytest.raises(ValueError, match="needs Triton for the comparison"):
        run.ready("")


def test_a_run_on_the_cpu_checks_every_step_and_keeps_its_rows(monkeypatch, tmp_path, capsys):
    shapes = {name: fused.SHAPES[name] for name in ("softmax", "embedding_backward")}
    monkeypatch.setattr(fused, "SHAPES", shapes)
    path = tmp_path / "found.json"
    assert command.run(["torch_fused"], BenchOptions("cpu", rounds=2), str(path)) == 0
    rows = json.loads(path.read_text())["torch_fused"]
    assert [row["step"] for row in rows] == list(shapes)
    assert all(row["compiled by blocknb"] == row["launches"]["blocknb"] > 0 and not row["problems"] for row in rows)
    assert all(0 < row["relative errors"]["blocknb"] < 3e-3 for row in rows)
    said = capsys.readouterr().out
    assert f"torch {torch.__version__}" in said and "compiled 4 of 4 generated kernels" in said


def test_a_step_with_wrong_results_is_not_timed(monkeypatch):
    step = TorchStep("scaled", "64", lambda x: x * 1.5, lambda r: [r.normal(64)])
    monkeypatch.setattr(measured, "compiled", lambda step, peer: lambda x: x * (1.5 if peer == peers.EAGER else 1.6))
    row = measured.measure(TorchSession("cpu", 2), step)
    assert "wrong: result 0" in row.problems[peers.OURS] and peers.OURS not in row.times and peers.EAGER in row.times


def test_a_step_that_cannot_be_made_leaves_the_others(monkeypatch, capsys):
    def broken():
        raise ImportError("no transformers")

    step = TorchStep("doubled", "64", lambda x: x + x, lambda r: [r.normal(64)])
    monkeypatch.setattr(run, "steps", lambda *_: [broken, lambda: step])
    kept = []
    rows = run.run("torch_models", BenchOptions("cpu", rounds=2), lambda rows: kept.append(len(rows)))
    assert "no transformers" in rows[0]["problem"] and rows[1]["step"] == "doubled" and kept == [1, 2]
    assert "  MISSED  ImportError: no transformers" in capsys.readouterr().out


def test_steps_that_failed_are_missed_even_if_nothing_was_timed():
    assert run.verdicts("torch_models", [], ["ImportError: no transformers"])[1:] == [
        "  MISSED  ImportError: no transformers"
    ]
    failed = timed("failed", 1, 1)
    del failed.times[peers.OURS]
    assert run.verdicts("torch_models", [failed])[1:] == ["  MISSED  without a ratio: failed 1x1"]


@pytest.mark.parametrize(("clean", "kind"), [(True, timing.CleanTorchClock), (False, timing.TorchClock)])
def test_without_cupy_the_clock_is_torchs_and_reads_if_it_shall(monkeypatch, clean, kind):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(timing.EventClock, "__init__", lambda self, cold: None)
    clock = timing.clock_of(True, clean=clean)
    assert type(clock) is kind
    clock.flush = torch.zeros(8, dtype=torch.uint8)
    clock.fill()
    assert bool(clock.flush.any()) is not clean


@pytest.mark.full
@pytest.mark.parametrize("name", ["torch_models", "torch_templates"])
def test_models_and_templates_agree_with_eager(name):
    if name == "torch_models":
        pytest.importorskip("transformers")
    rows = run.run(name, BenchOptions("cpu", rounds=1))
    assert rows and not any(row.get("problem") or row["problems"] for row in rows)
