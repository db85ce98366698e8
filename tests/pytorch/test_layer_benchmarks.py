"""The benchmarks of layers, of a Llama and of overheads, at tiny sizes on the CPU: what they check, and what they say."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from blocknb.cli import main

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch

import blocknb.torch
from blocknb.bench.suite.runner import BenchOptions
from blocknb.bench.torch_layers import layers, llama, overheads, session
from blocknb.bench.torch_layers.cases import LayerCase, LayerInputs, layer_cases
from blocknb.bench.torch_layers.session import StepClock
from blocknb.profile.timing import summary

CLOCK = StepClock("cpu", rounds=3)
CASES = {case.name: case for case in layer_cases()}


@pytest.mark.parametrize("name", CASES)
def test_every_layer_agrees_with_its_formula_in_float64(name: str) -> None:
    """Outputs and gradients of our layer differ by a few roundings to bf16, and none of them is zero."""
    case = CASES[name]
    tensors = case.make(LayerInputs("cpu", 1), *case.small)
    exact = layers.LayerStep(case, case.exact, tensors, 1, wide=True).results()
    found = layers.LayerStep(case, case.ours, tensors, 1).results()
    assert max(layers.relative_errors(found, exact).values()) < 0.006
    assert all(value.abs().max() > 0 for value in exact.values())


@pytest.mark.parametrize("name", ["RMSNorm (gemma)", "SwiGLU", "cross entropy"])
def test_a_layer_is_checked_and_timed(name: str) -> None:
    case = CASES[name]
    row = layers.measure(case, case.small, CLOCK, peers=(layers.EAGER,))
    assert row.errors[layers.OURS] < case.limit and not row.problems
    assert all(set(times) == {layers.OURS, layers.EAGER} for times in row.times.values())
    document = row.as_json()
    assert document["ratios"]["step"][layers.EAGER] > 0 and document["ms"]["loop"][layers.OURS]["runs"] == 3
    assert name in layers.line(row)


def test_a_wrong_layer_and_a_missing_peer_are_not_timed() -> None:
    right = CASES["SwiGLU"]
    wrong = LayerCase(
        right.name, right.sizes, right.small, right.make, lambda gate, up: gate * up, lambda: 1 / 0, right.exact, right.graded
    )  # fmt: skip
    row = layers.measure(wrong, wrong.small, CLOCK)
    assert "wrong: " in row.problems[layers.OURS] and "ZeroDivisionError" in row.problems[layers.LIGER]
    assert set(row.times["step"]) == {layers.EAGER} and "wrong" in layers.line(row)


def test_errors_are_relative_and_those_of_a_nan_infinite() -> None:
    one = torch.tensor([3.0, 4.0])
    found = {"a": one + torch.tensor([0.0, 0.5]), "b": one * float("nan"), "c": one[:1]}
    errors = layers.relative_errors(found, dict.fromkeys("abc", one.double()))
    assert errors == {"a": pytest.approx(0.1), "b": float("inf"), "c": float("inf")}


def test_the_summary_has_the_mean_the_lowest_and_the_share_of_memory() -> None:
    rows = []
    for name, theirs in (("SwiGLU", 1.0), ("fused linear cross entropy", 4.0)):
        row = layers.LayerRow(CASES[name], (2, 3))
        row.times["step"] = {layers.OURS: summary([1.0, 1.0]), layers.LIGER: summary([theirs, theirs])}
        row.peaks = {layers.OURS: 3 << 20, layers.LIGER: 4 << 20}
        rows.append(row)
    said = "\n".join(layers.summary(rows))
    assert "goal   step against Liger-Kernel: geometric mean 2.000 of 2, lowest 1.00 (SwiGLU 2x3)" in said
    assert "goal   peak memory of fused linear cross entropy 2x3: blocknb 3 MiB, Liger 4 MiB; 0.75 of Liger's" in said
    assert "peak memory of SwiGLU" not in said and "MISSED" not in said
    del rows[0].times["step"][layers.OURS]
    rows.append(layers.LayerRow(CASES["JSD"], (4, 5), problems={"all": "failed: OutOfMemoryError"}))
    assert layers.summary(rows)[-1] == "  MISSED without a ratio: SwiGLU 2x3, JSD 4x5"
    del rows[1].times["step"][layers.LIGER]
    assert layers.summary(rows, [layers.EAGER])[-1].endswith("ratio: SwiGLU 2x3, JSD 4x5")


def test_a_case_that_does_not_fit_into_memory_is_a_row_with_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def full(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(layers, "measure", full)
    monkeypatch.setattr(layers, "layer_cases", lambda: [CASES["SwiGLU"]])
    monkeypatch.setattr(layers.session, "require", lambda *_: None)
    monkeypatch.setattr(layers.session, "device_name", lambda _: "a GPU")
    _, row = layers.run(BenchOptions())
    assert row["layer"] == "SwiGLU" and "out of memory" in row["problems"]["all"]
    assert "MISSED without a ratio: SwiGLU 8192x14336" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("figure", "lower", "word"),
    [(1.2, False, "goal"), (1.0, False, "floor"), (0.9, False, "MISSED"), (0.9, True, "goal"), (2.0, True, "MISSED")],
)
def test_a_verdict_compares_with_the_floor_and_the_goal(figure: float, lower: bool, word: str) -> None:
    limits = (1.5, 1.0) if lower else (1.0, 1.1)
    assert session.verdict(figure, *limits, lower=lower) == word


def test_overheads_are_the_differences_of_medians() -> None:
    times = {overheads.OURS: summary([0.006, 0.006]), overheads.STATIC: summary([0.004, 0.004])}
    rows = overheads._rows("pointwise, 3 pointers", times, overheads.STATIC, overheads.OURS)
    assert rows[0]["added to the peer"] == pytest.approx(2.0) and rows[1]["added to the peer"] == ""
    (said,) = overheads.verdicts(rows)
    assert said.startswith("  floor  launch, added to torch's static launcher: 2.00 us")


def test_a_launch_that_fails_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch_of(function: Any, count: int, backend: str, device: str) -> Any:
        if backend == overheads.STATIC:
            raise ValueError("no compiler")
        return (lambda: None), "BlocknbResult"

    monkeypatch.setattr(overheads, "launch_of", launch_of)
    said = overheads.verdicts(overheads.launches(CLOCK))
    assert said == [f"  MISSED {name}, Inductor: ValueError: no compiler" for name in overheads.graphs()]


def test_the_launch_of_a_generated_kernel_writes_its_result() -> None:
    """The recorded launch of the compiled sum of two vectors runs again; only our backend has kernels on a CPU."""
    call, kind = overheads.launch_of(lambda x, y: x + 2 * y, 2, overheads.OURS, "cpu")
    call()
    assert kind == "BlocknbResult"
    with pytest.raises(ValueError, match="launched 2 kernels"):
        overheads.launch_of(lambda x: (x.sum(0, keepdim=True) * x).sum(1), 1, overheads.OURS, "cpu")


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_small_llama_shares_parameters_and_is_compared_with_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    size = llama.LlamaSize(64, 1, 96, 4, 2, 128, 2, 8)
    compile_with = torch.compile

    def eager_compile(model: Any, **options: Any) -> Any:
        return compile_with(model, backend="eager", dynamic=False)

    monkeypatch.setattr(torch, "compile", eager_compile)
    found = llama.measure(size, CLOCK)
    assert not found.problems and set(found.times) == {*llama.PEERS, *llama.PEERS.values(), llama.EAGER}
    assert found.off[llama.OURS][1] <= llama.SLACK * found.off[llama.EAGER][1]
    assert found.verdicts() and found.rows()[0]["contestant"] == llama.OURS
    model = llama.model_of(size, "cpu", 1)
    copied = llama.sharing(model)
    assert copied.lm_head.weight is model.lm_head.weight
    llama.without_mask(copied)
    assert copied.config._attn_implementation == llama.UNMASKED_ATTENTION
    copied = llama.sharing(model)
    with blocknb.torch.replace(copied, attention="causal"):
        used = copied.model.layers[0].self_attn.config._attn_implementation
        assert used == "blocknb_causal" and model.config._attn_implementation == "sdpa"


def test_a_nan_is_wrong_and_without_eager_nothing_is_right() -> None:
    limits = (1e-3, 1e-2)
    assert llama.wrong((2e-3, 2e-2), limits) == ""
    for found in ((float("nan"), 1e-2), (1e-3, float("inf")), (1.0, 1e-2), (1e-3, 3e-2)):
        assert llama.wrong(found, limits).startswith("wrong: ")
    assert llama.wrong((float("nan"), 0.0), (float("nan"), 0.0)).startswith("wrong: ")
    assert llama.wrong((0.0, 0.0), None).startswith("not checked: the eager step")


def test_a_contestant_with_a_problem_is_missed_and_compared_with_nothing() -> None:
    found = llama.LlamaResults(problems={llama.ALL: "wrong: far from fp32"})
    for name, ms in ((llama.OURS, 1.0), (llama.ALL, 1.0), (llama.COMPILED, 2.0), (llama.UNMASKED, 1.05)):
        found.times[name], found.peaks[name] = summary([ms, ms]), 1 << 20
    step, memory, missed = found.verdicts()
    assert step.startswith("  goal   step, time of torch.compile over that of replace + blocknb: 2.000")
    assert (
        memory.startswith("  floor  peak memory") and missed == "  MISSED all options + blocknb: wrong: far from fp32"
    )
    found.problems.clear()
    assert (
        "  floor  step, time of torch.compile, no mask over that of all options + blocknb: 1.050" in found.verdicts()[2]
    )


@pytest.mark.parametrize("name", ["torch_layers", "torch_llama", "torch_overheads"])
def test_without_a_gpu_or_a_library_one_line_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", name]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{name}: ") and ("found no GPU" in said or "cannot be imported" in said)
