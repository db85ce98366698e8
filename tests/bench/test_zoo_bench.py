"""`blocknb bench zoo` without torch and without a GPU: processes in turns, matching of kernels, differences of results, the summary."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from blocknb.bench.zoo import cases, compare, process, run
from blocknb.target import UnknownTarget


class PretendProcess:
    """A worker with given results, launches and microseconds."""

    def __init__(self, kernels: list[str], times: list[float], results: list[np.ndarray], errors: list[float]) -> None:
        self.kernels, self.times, self.results, self.errors = kernels, times, results, errors
        self.asked: list[str] = []

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        self.asked.append(do)
        if do == "check":
            np.savez(request["save"], *self.results)
            return {"kernels": self.kernels, "errors": self.errors}
        return {"kernels": self.kernels, "times": [self.times] * request["repeats"]}


def measured(ours: PretendProcess, theirs: PretendProcess) -> list[dict[str, Any]]:
    workers: Any = {run.OURS: ours, run.TRITON: theirs}
    return run.one_case(workers, "liger.case[small]", run.ZooOptions(rounds=15))


def test_kernels_are_matched_by_name_and_number_of_the_launch() -> None:
    result = [np.arange(4.0)]
    ours = PretendProcess(["a", "b", "a"], [1.0, 2.0, 4.0], result, [])
    theirs = PretendProcess(["a", "a", "b"], [2.0, 2.0, 2.0], result, [])
    assert [(row["kernel"], row["ratio"]) for row in measured(ours, theirs)] == [("a", 2.0), ("b", 1.0), ("a", 0.5)]
    assert ours.asked == ["check", "time", "time", "time"]


def test_wrong_results_of_a_case_without_common_kernels_are_told() -> None:
    ours = PretendProcess([], [], [np.array([1.0, 2.5])], [])
    theirs = PretendProcess([], [], [np.array([1.0, 2.0])], [])
    rows = measured(ours, theirs)
    assert rows == [{"case": "liger.case[small]", "kernel": "", "problem": "result 0 differs by 0.22"}]
    text = compare.summary(rows)
    assert text.splitlines() == ["no kernel was measured", "  failed: liger.case[small]: result 0 differs by 0.22"]


def test_a_launch_of_only_one_compiler_is_a_problem() -> None:
    ours = PretendProcess(["a"], [1.0], [], [])
    theirs = PretendProcess(["a", "b"], [1.0, 1.0], [], [])
    assert measured(ours, theirs)[1]["problem"] == "blocknb launched it less often"


@pytest.mark.parametrize(
    ("ours", "theirs", "errors", "wrong"),
    [
        ([1.0, 2.0], [1.0, 2.0], ([], []), ""),
        ([1.0, 2.5], [1.0, 2.0], ([], []), "result 0 differs by 0.22"),
        ([1.0, np.nan], [1.0, 2.0], ([], []), "result 0 differs by inf"),
        ([np.nan, np.inf], [np.nan, np.inf], ([], []), ""),
        ([1.0, 2.5], [1.0, 2.0], ([1e-3], [1e-3]), ""),
        ([1.0, 2.0], [1.0, 2.0], ([3e-3], [1e-3]), "result 0: error 0.003, by Triton 0.001"),
    ],
)
def test_results_are_compared(ours: list[float], theirs: list[float], errors: tuple[Any, Any], wrong: str) -> None:
    mine = PretendProcess(["a"], [1.0], [np.array(ours)], errors[0])
    other = PretendProcess(["a"], [1.0], [np.array(theirs)], errors[1])
    assert measured(mine, other)[0].get("problem", "") == wrong


def test_summary_names_the_slow_and_the_wrong() -> None:
    rows = [
        {"case": "c", "kernel": "fast", "triton": 4.0, "blocknb": 1.0, "ratio": 4.0},
        {
            "case": "c",
            "kernel": "slow",
            "triton": 1.0,
            "blocknb": 4.0,
            "ratio": 0.25,
            "problem": "result 0 differs by 1",
        },
        {"case": "d", "kernel": "", "problem": "blocknb: CompilationError: no"},
    ]
    text = compare.summary(rows)
    assert "2 kernels" in text and "mean 1.000; 1 below 0.9 (50.0%)" in text
    assert "slow: c" in text and "failed: d: blocknb: CompilationError: no" in text
    assert compare.totals(rows) == {"kernels": 2, "mean": 1.0, "slow": 1}


def test_dead_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.sys, "executable", "true")
    worker = process.CompilerProcess(run.OURS)
    assert worker.ask("list", library="liger") == {"error": "the process died"}
    worker.stop()


def test_limited_autotuner_keeps_evenly_spaced_configurations() -> None:
    code = """
    import blocknb
    blocknb.compat.install()
    import triton
    from blocknb.bench.zoo.worker import limit_configurations
    limit_configurations(2)
    configs = [triton.Config({"BLOCK": 2**i}) for i in range(8)]
    def kernel(x, BLOCK: triton.language.constexpr): pass
    tuned = triton.autotune(configs, key=[])(triton.jit(kernel))
    print([config.kwargs["BLOCK"] for config in tuned.configs], tuned.measuring.do_bench is not None)
    """
    made = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[4, 64] True"


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases.importlib.util, "find_spec", lambda name: None)
    said: list[str] = []
    names, rows = run.chosen({}, run.ZooOptions(("liger", "own")), said.append)
    assert names == [] and [row["case"] for row in rows] == ["liger", "own"]
    assert "failed: liger: liger_kernel is not installed" in compare.summary(rows)
    assert said == [
        "liger: left out: liger_kernel is not installed",
        "own: left out: the folder tests/ of blocknb's repository is not on the path",
    ]
    with pytest.raises(ValueError, match="no library 'lige'; there are liger, fla"):
        run.chosen({}, run.ZooOptions(("lige",)), said.append)


def test_an_unknown_target_is_refused_before_a_library_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CompilerProcess", lambda *_: pytest.fail("it started a process"))
    with pytest.raises(UnknownTarget, match="unknown target 'sm_9000'"):
        run.compile_only(run.ZooOptions(), "sm_9000")


def test_process_without_a_usable_context_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = '{"error": "AccessError: a program accessed memory outside of its arrays on the GPU"}'
    script = f"print({answer!r}, flush=True); input(); input()"
    start = process.subprocess.Popen
    monkeypatch.setattr(
        process.subprocess, "Popen", lambda command, **rest: start([sys.executable, "-c", script], **rest)
    )
    worker = process.CompilerProcess(run.OURS)
    assert "outside of its arrays" in worker.ask("check", case="c")["error"]
    assert worker.process is None
