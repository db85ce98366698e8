"""`blocknb bench`: its names, what the options select, and its output."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from blocknb.bench import command, plan_check, unmeasured
from blocknb.bench.suite import launching, runner, steps, tutorial
from blocknb.bench.suite.definition import BenchmarkCase
from blocknb.bench.suite.runner import BenchOptions
from blocknb.bench.visible_gpu import select
from blocknb.cli import main
from blocknb.profile.timing import Timings, summary
from blocknb.runtime import machine


def test_an_unknown_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "sofmax", "launch"]) == 2
    said = capsys.readouterr().err
    assert (
        "no benchmark sofmax; there are kernels, gemm, ragged, skinny, attention, decode, kinds, torch, add, copy, sum, softmax"
        in said
        and "ceilings, compile" in said
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--shapes", "100xq"), "'100xq' is not a shape; write 4096x1024 or 2^26"),
        (("--threads", "1,0"), "'0' is not a positive integer"),
        (("--rounds", "many"), "'many' is not a positive integer"),
        (("--peers", "Unheard"), "no peer 'Unheard'; there are CuPy, FlexAttention, NumPy"),
        (("--dtypes", "f32"), "nothing to measure: no benchmark has these shapes and dtypes on a CPU (add: fp32)"),
        (("--json", "/nowhere/found.json"), "--json /nowhere/found.json: No such file or directory"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_measured(
    given: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.delattr(runner, "_in_a_process")
    try:
        status = main(["bench", "add", "--device", "cpu", *given])
    except SystemExit as left:  # argparse
        status = left.code
    assert status and said in capsys.readouterr().err


def test_a_list_names_every_benchmark_once(capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "--list"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.split()[0] for line in lines] == [*command.groups(), *command.names()]
    assert all(len(line.split()) > 2 for line in lines)


def test_a_run_on_one_thread_prints_a_table_and_writes_json(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    path = tmp_path / "found.json"
    given = "--device cpu --threads 1 --peers NumPy --shapes 5x33,1000 --rounds 2".split()
    assert main(["bench", "softmax", "add", *given, "--json", str(path)]) == 0
    said = capfd.readouterr().out
    assert "1 thread:" in said and "x NumPy" in said and f"written: {path}" in said
    assert "5x33" in said and "Targets" in said and "softmax against NumPy" in said
    (document,) = json.loads(path.read_text())["kernels"]
    assert document["threads"] == 1 and document["versions"]["numpy"]
    assert [(r["benchmark"], r["shape"]) for r in document["rows"]] == [("softmax", [5, 33]), ("add", [1000])]
    assert document["rows"][0]["ms"]["NumPy"]["runs"] == 2 and not document["rows"][0]["problems"]
    assert document["means"]["softmax"]["NumPy"]["cases"] == 1


def test_a_gpu_that_is_not_there_is_an_error_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from blocknb.runtime import machine

    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    monkeypatch.setitem(command.BENCHMARKS, "scaling", lambda: [{"ran": True}])
    assert main(["bench", "softmax", "launch", "scaling", "--device", "gpu"]) == 1
    said = capsys.readouterr().err
    assert "kernels: CuPy found no GPU" in said and "launch: CuPy found no GPU" in said


def test_a_number_makes_one_gpu_the_only_visible_one(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [select(text) for text in ("", "cpu", "gpu")] == ["", "cpu", "gpu"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert select("1") == "gpu" and os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    assert select("1") == "gpu" and os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert main(["bench", "add", "--device", "3"]) == 2
    assert "--device 3: CUDA_VISIBLE_DEVICES=GPU-7 has GPUs 0 to 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "add", "--device", "tpu"])


def test_a_benchmark_that_breaks_is_told_in_full_and_what_the_others_found_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setitem(command.BENCHMARKS, "ceilings", lambda: [{"found": 1}])
    monkeypatch.setitem(command.BENCHMARKS, "scaling", lambda: [{"found": 1 / 0}])
    path = tmp_path / "found.json"
    assert command.run(["ceilings", "scaling"], BenchOptions(), str(path)) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert json.loads(path.read_text()) == {"ceilings": [{"found": 1}]}


@pytest.mark.parametrize(("hidden", "wanted"), [("", "0"), ("-1", "0"), ("2,-1,3", "1"), ("2,,3", "1")])
def test_a_number_does_not_show_a_gpu_that_the_environment_hides(
    monkeypatch: pytest.MonkeyPatch, hidden: str, wanted: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with pytest.raises(ValueError, match="hides all GPUs" if hidden in ("", "-1") else "has GPUs 0 to 0"):
        select(wanted)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == hidden


def test_steps_of_a_product_and_the_tutorial_take_rounds_peers_and_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    monkeypatch.setattr(steps, "measure", lambda **taken: asked.setdefault("steps", taken) and [])
    monkeypatch.setattr(tutorial, "measure", lambda *taken, **more: asked.setdefault("tutorial", (*taken, more)) and [])
    options = BenchOptions("gpu", rounds=3, peers=("torch",), shapes=("64x32x16",))
    assert command.run(["gemm_steps", "attention_tutorial"], options) == 0
    assert asked["steps"] == {"shapes": [(64, 32, 16)], "rounds": 3, "library": False}
    assert asked["tutorial"] == (3, {"triton": False})
    asked.clear()
    assert command.run(["gemm_steps", "attention_tutorial"], BenchOptions(peers=("CuPy", "Triton"))) == 0
    assert asked["steps"] == {"shapes": steps.SHAPES, "rounds": 30, "library": True}
    assert asked["tutorial"] == (30, {"triton": True})


def test_benchmarks_of_a_gpu_do_not_run_on_one_if_a_cpu_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    for module in (steps, tutorial):
        monkeypatch.setattr(module, "measure", lambda *_, **__: pytest.fail("it measured"))
    assert command.run(["gemm_steps", "attention_tutorial"], BenchOptions("cpu")) == 1
    said = capsys.readouterr().err
    assert "gemm_steps has no measurement on a CPU" in said and "attention_tutorial has no" in said
    assert command.run(["gemm_steps"], BenchOptions(shapes=("64x32",))) == 1
    assert "--shapes 64x32: the steps of a matrix product need MxNxK" in capsys.readouterr().err


def test_an_option_that_a_named_benchmark_does_not_take_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(command.BENCHMARKS, "scaling", lambda: [{"ran": True}])
    assert command.run(["scaling"], BenchOptions("cpu", rounds=3, shapes_count=2)) == 0
    assert capsys.readouterr().err == "scaling takes no --device, --rounds, --shapes-count\n"
    assert command.run(["scaling"], BenchOptions()) == 0 and capsys.readouterr().err == ""


def test_shapes_without_names_are_one_error_that_lists_who_takes_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(command, "measured", lambda jobs: pytest.fail("it measured"))
    assert main(["bench", "--shapes", "64x32x16,4096x1024"]) == 2
    said, *lines, last = capsys.readouterr().err.splitlines()
    assert last == "  only sizes of its own layers: torch_layers"
    assert said.startswith("--shapes 64x32x16,4096x1024 needs the names of the benchmarks that take these shapes")
    takers = {int(line.split()[0]): line.partition(": ")[2].split(", ") for line in lines}
    assert list(takers) == [1, 2, 3, 4, 6] and "gemm_steps" in takers[3] and "softmax" in takers[2]
    listed = [name for names in takers.values() for name in names]
    assert sorted(listed) == sorted([*command.groups()["kernels"], *command.groups()["kinds"], "gemm_steps"])
    example = said.rpartition("such as: blocknb ")[2].split()
    assert example[1] in takers[3] and example[2:] == ["--shapes", "64x32x16"]
    assert main(["bench", "--shapes", "1x2x3x4x5"]) == 2 and "such as: blocknb" not in capsys.readouterr().err


def test_a_ready_made_kernel_takes_no_options_of_other_benchmarks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(runner, "run", lambda names, options: [])
    for names, options, said in (
        (
            ["add", "ragged_any"],
            BenchOptions(seed=2, compile="sm_90a"),
            "add takes no --seed, --compile\nragged_any takes no --compile\n",
        ),
        (["decode"], BenchOptions(layers=2), "decode_contiguous, decode_paged take no --layers\n"),
        (["kernels"], BenchOptions(configs=2), "add, copy, sum, softmax and 33 others take no --configs\n"),
        (["add"], BenchOptions("cpu", (1,), ("NumPy",), ("2^9",), ("fp32",), rounds=3), ""),
        ([], BenchOptions(layers=2), ""),
    ):
        if names:
            assert command.run(names, options) == 0
        else:
            monkeypatch.setattr(command, "jobs", lambda *_: {})
            assert command.run(names, options) == 0
        assert capsys.readouterr().err == said


def test_the_seed_of_random_shapes_is_printed() -> None:
    names = ["add", "ragged_any", "ragged_multiples"]
    assert runner.seed_lines(names, BenchOptions(), "gpu") == [
        "seed 1 has drawn the shapes of ragged_any, ragged_multiples"
    ]
    assert runner.seed_lines(names, BenchOptions(seed=7), "gpu")[0].startswith("seed 7 has drawn")
    assert runner.seed_lines(names, BenchOptions(seed=7), "cpu")[0].startswith("--seed has no effect on a CPU")
    assert runner.seed_lines(names, BenchOptions(), "cpu") == runner.seed_lines(["add"], BenchOptions(), "gpu") == []
    assert runner.seed_lines(names, BenchOptions(shapes=("64x64x64",)), "gpu") == []


def test_an_interrupt_ends_all_and_what_was_measured_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "_in_a_process", lambda names, options: {"interrupted": options.threads == (2,)})
    monkeypatch.setitem(command.BENCHMARKS, "scaling", lambda: [{"ran": True}])
    path = tmp_path / "found.json"
    assert command.run(["add", "scaling"], BenchOptions("cpu", (1, 2, 3)), str(path)) == command.INTERRUPTED
    assert json.loads(path.read_text()) == {"kernels": [{"interrupted": False}, {"interrupted": True}]}


def test_names_without_any_are_all_and_kernels_stands_for_the_ready_made_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(runner, "run", lambda names, options: ran.append(list(names)) or [])
    monkeypatch.setattr(launching, "run", lambda device: ran.append("launch") or [])
    monkeypatch.setattr(plan_check, "run", lambda options: ran.append("plan_check") or [])
    for name in list(command.BENCHMARKS):
        monkeypatch.setitem(command.BENCHMARKS, name, lambda name=name, **taken: ran.append(name) or [])
    assert command.run([], BenchOptions()) == 0
    assert ran[0][:4] == ["add", "copy", "sum", "softmax"] and ran[1:] == ["launch", "plan_check", *command.BENCHMARKS]
    ran.clear()
    assert command.run(["kernels", "add"], BenchOptions()) == 0
    assert len(ran) == 1 and ran[0].count("add") == 1 and "gemm_plain" in ran[0]


def test_options_choose_cases() -> None:
    def cases(device: str, name: str, **options: Any) -> list[BenchmarkCase]:
        return runner.chosen([name], BenchOptions(**options), device)[0][1]

    assert len(cases("gpu", "softmax")) == 29 and {c.dtype for c in cases("gpu", "softmax")} == {"fp32", "fp16"}
    assert [str(c) for c in cases("cpu", "add")] == ["add 2^24 fp32"]
    assert {c.dtype for c in cases("gpu", "softmax", dtypes=("fp16",))} == {"fp16"}
    assert [str(c) for c in cases("gpu", "add", shapes=("8x9", "2^20"))] == ["add 2^20 fp32", "add 2^20 fp16"]
    with pytest.raises(ValueError):
        cases("gpu", "add", shapes=("8-9",))


def test_a_case_that_breaks_leaves_the_next_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    real = runner.measure

    def measure(session: Any, benchmark: Any, case: BenchmarkCase, **options: Any) -> Any:
        if case.shape == (5, 33):
            raise MemoryError("too large")
        return real(session, benchmark, case, **options)

    monkeypatch.setattr(runner, "measure", measure)
    options = BenchOptions("cpu", (1,), ("NumPy",), ("5x33", "6x34"), rounds=1)
    document = runner.on_cpu(["softmax"], options)
    said = capsys.readouterr().out
    assert "    all failed: MemoryError: too large" in said and "; not measured: softmax 5x33 fp32" in said
    assert "softmax against torch" not in said  # no peer of this run
    assert [(r["shape"], r["problems"]) for r in document["rows"]] == [
        ([5, 33], {"all": "failed: MemoryError: too large"}),
        ([6, 34], {}),
    ]


def test_a_run_lists_what_it_could_not_measure_and_its_exit_status_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    row = {
        "benchmark": "softmax",
        "shape": [5, 33],
        "dtype": "fp32",
        "problems": {"Triton": "failed: X: no", "CuPy": "left out: GPU only"},
    }
    document = {"threads": 2, "missing": {"numba": "not installed (No module named 'numba')"}, "rows": [row]}
    monkeypatch.setattr(runner, "run", lambda names, options: [document])
    monkeypatch.setattr(
        launching, "run", lambda device: [{"peer": "Triton", "problem": "ImportError: no"}, {"peer": "torch"}]
    )
    assert command.run(["softmax", "launch"], BenchOptions("cpu")) == 1
    assert capsys.readouterr().out.split("Not measured\n")[1].splitlines() == [
        "  kernels: numba: not installed (No module named 'numba')",
        "  kernels: softmax 5x33 fp32 (2 threads), Triton: failed: X: no",
        "  launch: Triton: ImportError: no",
    ]
    document["missing"], row["problems"] = {}, {"CuPy": "left out: GPU only"}
    assert command.run(["softmax"], BenchOptions("cpu")) == 0
    assert "Not measured" not in capsys.readouterr().out


def test_a_process_that_dies_loses_no_results_of_other_numbers_of_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    def measured(names: Any, options: BenchOptions) -> dict[str, Any]:
        if options.threads == (2,):
            raise subprocess.CalledProcessError(-11, "runner")
        return {"threads": options.threads[0], "rows": [], "interrupted": False}

    monkeypatch.setattr(runner, "_in_a_process", measured)
    path = tmp_path / "found.json"
    assert command.run(["add"], BenchOptions("cpu", (1, 2, 3)), str(path)) == 1
    assert "  kernels: all peers on 2 threads: the process ended with status -11" in capsys.readouterr().out
    assert [document["threads"] for document in json.loads(path.read_text())["kernels"]] == [1, 2, 3]


def test_a_long_list_of_failures_is_cut() -> None:
    rows = [{"case": f"c{i}", "problem": "no"} for i in range(unmeasured.SHOWN + 3)]
    lines = unmeasured.summary({"zoo": unmeasured.unmeasured(rows)}).splitlines()
    assert lines[1:3] == ["Not measured", "  zoo: c0: no"] and lines[-1] == "  zoo: and 3 more"


def test_the_state_of_a_gpu_is_asked_for_by_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text('#!/bin/sh\necho "$@" > "$0.given"\necho "1980, 2619, 70.1, 31"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert runner.gpu_state("0000:17:00.0")["clocks.sm"] == 1980
    assert "--id=0000:17:00.0" in (tmp_path / "nvidia-smi.given").read_text()


def test_an_interrupt_of_the_launches_ends_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def interrupted(*args: Any, **options: Any) -> Timings:
        found = Timings({launching.OURS: summary([1.0])})
        found.cancelled = True
        return found

    monkeypatch.setattr(launching, "interleaved", interrupted)
    monkeypatch.setitem(command.BENCHMARKS, "scaling", lambda: [{"ran": 1 / 0}])
    assert command.run(["launch", "scaling"], BenchOptions("cpu")) == command.INTERRUPTED
    assert "ZeroDivisionError" not in capsys.readouterr().err


def test_clocks_are_those_that_the_driver_tells() -> None:
    found = runner.readings(("clocks.sm", "power.draw"), "1980, [N/A]\n")
    assert found == {"clocks.sm": 1980.0} and runner._state_text(found) == "SM 1980 MHz"
    assert runner._state_text({}) == "clocks unknown"


def test_launches_on_a_cpu_are_timed_beside_their_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(launching, "ROUNDS", 2)
    monkeypatch.setattr(launching, "BATCH", 3)
    rows = {row["peer"]: row for row in launching.run("cpu")}
    assert rows["blocknb"]["ours / it"] == 1 and rows["numpy.add"]["us"] > 0
    assert "Host time of a launch with five arguments, CPU" in capsys.readouterr().out


def test_a_launch_peer_that_fails_is_left_out_with_its_reason() -> None:
    def missing() -> Any:
        raise ImportError("No module named 'triton'")

    calls, why = launching.ready({"a": lambda: lambda: 1, "b": missing, "c": lambda: lambda: 1 / 0})
    assert list(calls) == ["a"]
    assert why == {"b": "ImportError: No module named 'triton'", "c": "ZeroDivisionError: division by zero"}
