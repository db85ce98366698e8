"""`--sweep`: what it measures, that the user's data does not change, and that an interrupt keeps the measured values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import blocknb
import blocknb.language as tl
from blocknb.notebook import option_sweep, plots, progress, sweep, sweep_answer, sweep_launches
from blocknb.notebook.document import MIME
from blocknb.notebook.observe import record_of
from blocknb.notebook.progress import Progress
from blocknb.profile import noise
from blocknb.profile.replay import captured_by
from blocknb.runtime import compile as compiler
from blocknb.runtime import launch_context, parallel_compile


@blocknb.kernel
def accumulate(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(total + i, tl.load(total + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)


def launched(n: int = 1000, block: int = 64) -> tuple[Callable[[], Any], np.ndarray]:
    x, total = np.ones(n, np.float32), np.zeros(n, np.float32)
    return lambda: accumulate[(blocknb.cdiv(n, block),)](x, total, n, BLOCK=block), total


def ticking(milliseconds: float = 2.0) -> Callable[[Callable[[], Any]], float]:
    def clock(call: Callable[[], Any]) -> float:
        call()
        return milliseconds

    return clock


# ---- replays


def test_a_captured_launch_runs_nothing_and_its_replay_writes_to_a_copy() -> None:
    call, total = launched()
    seen: list[Any] = []
    launch_context.observers.append(seen.append)
    try:
        (replay,) = captured_by(call)
    finally:
        launch_context.observers.remove(seen.append)
    assert not total.any() and not seen and replay.grid == (16, 1, 1) and not replay.gpu
    replay()
    replay()
    assert not total.any() and (replay.given["total"] == 2).all()
    assert replay.work.unique_bytes == 3 * 4 * 1000 and replay.work.flops == 1000
    call()
    assert (total == 1).all()


def test_capturing_ends_with_the_block_even_after_an_error() -> None:
    call, total = launched()
    with pytest.raises(ZeroDivisionError):
        captured_by(lambda: 1 / 0)
    call()
    assert (total == 1).all()


# ---- measuring


def test_each_value_becomes_a_rate_by_its_own_work() -> None:
    made = sweep.run(
        "accumulate",
        "n",
        [100, 1000],
        lambda n: captured_by(launched(n)[0]),
        lambda n: {"nothing": lambda: None},
        ticking(0.001),
    )
    assert made.unit == "GB/s" and made.values == [100, 1000] and not made.cancelled
    kernel, baseline = made.series
    assert kernel.median == pytest.approx([1.2, 12]) == baseline.median
    assert (kernel.kind, baseline.kind) == ("kernel", "baseline")
    assert made.part["series"][0] == {
        "label": "accumulate", "kind": "kernel", "median": [1.2, 12.0], "low": [1.2, 12.0], "high": [1.2, 12.0],
    }  # fmt: skip
    assert "n" in made.text().splitlines()[0] and "12" in made.text().splitlines()[2]


def test_an_interrupt_keeps_the_values_that_were_measured() -> None:
    def replays(n: int) -> Any:
        if n == 300:
            raise KeyboardInterrupt
        return captured_by(launched(n)[0])

    made = sweep.run("accumulate", "n", [100, 200, 300, 400], replays, clock=ticking())
    assert made.cancelled and made.values == [100, 200] and made.part["cancelled"] is True
    assert len(made.series[0].median) == 2 and "partial" in made.text()


def test_an_interrupt_while_timing_keeps_that_value_too() -> None:
    calls = 0

    def clock(call: Callable[[], Any]) -> float:
        nonlocal calls
        calls += 1
        if calls == 25:
            raise KeyboardInterrupt
        return 1.0

    made = sweep.run("accumulate", "n", [100, 200, 300], lambda n: captured_by(launched(n)[0]), clock=clock)
    # Each value was timed three times before they were timed in turns.
    assert made.cancelled and made.values == [100, 200, 300]


def test_a_value_that_does_not_compile_is_left_out_with_a_note() -> None:
    call, _ = launched()
    (first,) = captured_by(call)

    def replays(block: int) -> Any:
        return captured_by(lambda: accumulate.launch((1,), **{**first.given, "BLOCK": block}))

    made = sweep.run("accumulate", "BLOCK", [64, 100, 128], replays, clock=ticking())
    assert made.values == [64, 128] and len(made.notes) == 1 and made.notes[0].startswith("BLOCK = 100: ")


def test_a_sweep_of_uncounted_work_shows_milliseconds() -> None:
    @blocknb.kernel
    def gather(x, index, out, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + tl.load(index + i)))

    x, index, out = np.ones(64, np.float32), np.zeros(64, np.int32), np.zeros(64, np.float32)
    made = sweep.run(
        "gather", "n", [64], lambda n: captured_by(lambda: gather[(1,)](x, index, out, BLOCK=n)), clock=ticking()
    )
    assert made.unit == "ms" and made.series[0].median == [2.0]


def test_plots_are_figures_with_a_line_each_and_pictures() -> None:
    part = sweep.run(
        "a", "n", [100, 1000], lambda n: captured_by(launched(n)[0]), lambda n: {"b": lambda: None}, ticking(0.001)
    ).part
    (axes,) = plots.figure("sweep", part).axes
    assert [line.get_label() for line in axes.lines] == ["a", "b"] and axes.get_ylabel() == "GB/s"
    assert axes.lines[0].get_linestyle() != axes.lines[1].get_linestyle()
    assert list(axes.lines[0].get_ydata()) == part["series"][0]["median"]
    assert set(plots.images({"sweep": part})) == {"image/png"} and plots.images({}) == {}
    assert plots.png(plots.figure("sweep", {**part, "values": ["a", "b"]})).startswith(b"\x89PNG")


# ---- the option


@pytest.fixture
def shell() -> Any:
    made = InteractiveShell.instance()
    blocknb.load_ipython_extension(made)
    made.user_ns.update(np=np, blocknb=blocknb, tl=tl)
    return made


def axis(text: str, shell: Any) -> Any:
    (found,) = option_sweep.prepare([text.split(" ")], shell)
    return found.values


def test_an_axis_is_a_list_a_doubling_range_a_stepped_one_or_any_expression(shell: Any) -> None:
    assert axis("BLOCK=64,128", shell) == (64, 128)
    assert axis("n=2**4..2**7", shell) == (16, 32, 64, 128)
    assert axis("n=10..30..10", shell) == (10, 20, 30)
    assert axis("n: [2**k for k in range(3)]", shell) == (1, 2, 4)
    assert axis("num_warps=8", shell) == (8,)
    for wrong in ("BLOCK", "BLOCK=", "1n=3", "n=0..8", "n=1..9..0", "n=[]", "n=range(1000)", "n=1.5..3"):
        with pytest.raises(UsageError):
            axis(wrong, shell)


CELL = """
@blocknb.kernel
def add_up(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(total + i, tl.load(total + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)
"""


def run_cell(shell: Any, monkeypatch: pytest.MonkeyPatch, options: str, body: str) -> tuple[Any, dict[str, Any] | None]:
    published = CapturingDisplayPublisher(shell=shell)
    monkeypatch.setattr(shell, "display_pub", published)
    monkeypatch.setattr(sweep, "SECONDS", 0.02)
    shell.user_ns.update(x=np.ones(2000, np.float32), total=np.zeros(2000, np.float32), n=2000)
    result = shell.run_cell(f"%%blockkernel {options}\n{CELL}{body}")
    bundles = [output["data"] for output in published.outputs if MIME in output["data"]]
    return result, {**bundles[-1][MIME], "bundle": bundles[-1]} if bundles else None


LAUNCH = "add_up[lambda m: (blocknb.cdiv(n, m['BLOCK']),)](x, total, n, BLOCK=64)"


def test_a_constant_is_swept_on_copies_against_a_baseline(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result, doc = run_cell(shell, monkeypatch, "--sweep BLOCK=64,256 --baseline np.add(total,x,out=total)", LAUNCH)
    assert result.success and (shell.user_ns["total"] == 1).all()
    part = doc["sweep"]
    assert (part["axis"], part["values"], part["unit"]) == ("BLOCK", [64, 256], "GB/s")
    assert [s["label"] for s in part["series"]] == ["add_up", "np.add(total,x,out=total)"]
    assert all(
        0 < low <= mid <= high
        for s in part["series"]
        for low, mid, high in zip(s["low"], s["median"], s["high"], strict=True)
    )
    assert "image/png" in doc["bundle"] and ["sweep", part["answer"]] in [[*fact] for fact in doc["facts"]]


def test_an_option_is_swept(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, doc = run_cell(shell, monkeypatch, "--sweep num_warps=1,2", LAUNCH)
    assert doc["sweep"]["values"] == [1, 2] and (shell.user_ns["total"] == 1).all()


def test_all_values_of_a_constant_are_compiled_together(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    together, alone = [], []
    monkeypatch.setattr(
        parallel_compile,
        "compile_all",
        lambda found, compile=parallel_compile.compile_all, **given: together.append(compile(found, **given)),
    )
    monkeypatch.setattr(
        compiler, "keep", lambda one, made, keep=compiler.keep: (alone.append(one.key), keep(one, made))[1]
    )
    compiler.forget()
    _, doc = run_cell(shell, monkeypatch, "--sweep BLOCK=128,256,8192,512", LAUNCH)
    assert doc["sweep"]["values"] == [128, 256, 8192, 512]
    assert [one.trace.constants["BLOCK"] for one in together[0]] == [128, 256, 8192, 512]
    assert len(alone) == len(set(alone))  # each once: its turn finds it


def test_a_size_sweep_evaluates_the_launch_and_restores_the_variable(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, doc = run_cell(shell, monkeypatch, f"--sweep n=500..2000..500 --launch {LAUNCH}", "")
    assert result.success and doc["sweep"]["values"] == [500, 1000, 1500, 2000]
    assert shell.user_ns["n"] == 2000 and (shell.user_ns["total"] == 1).all()


def test_a_grid_of_numbers_that_no_longer_covers_the_array_is_left_out(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, doc = run_cell(shell, monkeypatch, "--sweep BLOCK=32,64", "add_up[(32,)](x, total, n, BLOCK=64)")
    assert doc["sweep"]["values"] == [64]
    assert "the grid is fixed" in doc["sweep"]["notes"][0] and (shell.user_ns["total"] == 1).all()


def test_a_value_that_changes_the_outputs_is_wrong_and_the_best_is_compared_with_the_cells(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = CELL.replace("add_up", "drop").replace("i < n", "i < n - n % SKIP")
    body = body.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, SKIP: tl.constexpr")
    launch = LAUNCH.replace("add_up", "drop").replace("BLOCK=64", "BLOCK=64, SKIP=1")
    run_cell(shell, monkeypatch, "--quiet", LAUNCH)  # sets the arrays and the publisher
    result = shell.run_cell(f"%%blockkernel --sweep SKIP=1,2,3,7\n{body}\n{launch}")
    assert result.success
    doc = shell.display_pub.outputs[-1]["data"][MIME]
    assert doc["sweep"]["values"] == [1, 2]
    assert [note.split(",")[0] for note in doc["sweep"]["notes"]] == ["SKIP = 3: ✗ WRONG", "SKIP = 7: ✗ WRONG"]
    assert doc["sweep"]["cold"] and doc["sweep"]["device"] == "CPU" and doc["sweep"]["n"] >= 3
    (text,) = [text for label, text in doc["facts"] if label == "sweep"]
    assert "2 values omitted (SKIP = 3: ✗ WRONG" in text
    assert "best at 1" in text or "the cell’s 1" in text or doc["sweep"]["undecided"]


def swept(*spreads: tuple[float, float, float]) -> sweep.Sweep:
    """A sweep over BLOCK = 0, 1, ... with the low, median and high of each point, in GB/s."""
    made = sweep.Sweep("a", "BLOCK", [*range(len(spreads))], "GB/s", [sweep.Series("a", "kernel")])
    for low, median, high in spreads:
        made.series[0].add((median, low, high))
    return made


def cells(value: int, ratio: noise.TimeRatio | None) -> Any:
    """A cell with this value of BLOCK, and the ratio that a comparison in turns finds."""
    return SimpleNamespace(value=value, cell=f"the cell’s {value}", against_cell=lambda best: ratio)


def answered(made: sweep.Sweep, cell: Any = None) -> str:
    sweep_answer.answer(made, cell)
    return made.answer


NOISE = noise.TimeRatio(1.01, 0.93, 1.11, 12)
SPREAD = (1, 2, 3), (98, 299, 523), (257, 303, 524)


def test_the_answer_names_the_points_within_noise_of_the_best_and_not_the_best_itself() -> None:
    assert answered(swept(*SPREAD), cells(0, NOISE)) == (
        "BLOCK over 3 values, best at 2: 303 GB/s; 1 is within noise of it: the interquartile ranges overlap; "
        "2 takes 1.01 times the time of the cell’s 0 (0.93 to 1.11), within noise"
    )
    assert "noise" not in answered(swept((1, 2, 3), (4, 5, 6)))
    assert "1 is within" not in answered(swept(*SPREAD), cells(1, NOISE)), "the comparison in turns decides more"
    most = answered(swept((0, 0, 0), *[(1, 2, 3)] * 9))
    assert "; 2, 3, 4, 5, 6, 7, 8 and 9 are within noise of it" in most
    assert "; 2, 3, 4, 5, 6, 7, 8 and 2 more are within noise of it" in answered(swept((0, 0, 0), *[(1, 2, 3)] * 10))
    faster = noise.TimeRatio(0.8, 0.78, 0.82, 12)
    assert answered(swept(*SPREAD), cells(0, faster)).endswith(
        "; 2 is 1.25 times as fast as the cell’s 0 (1.22 to 1.28)"
    )
    few = noise.TimeRatio(1.0, 0.0, math.inf, 5)
    assert answered(swept(*SPREAD), cells(0, few)).endswith("; 5 pairs of runs: too few to compare with the cell’s 0")
    assert answered(swept(*SPREAD), cells(0, None)).endswith("overlap; interrupted")


def test_no_value_is_the_best_if_all_ranges_overlap_or_the_machine_is_busy() -> None:
    made = swept((11, 12.1, 14), (10, 12.4, 13), (9, 12.2, 13))
    assert answered(made, cells(0, NOISE)) == (
        "BLOCK over 3 values: no difference beyond noise: 0 to 2 are equal (a median of 12.1 to 12.4 GB/s)"
    )
    assert made.undecided and made.part["undecided"]
    assert "0 and 1 are equal (a median of 2 GB/s)" in answered(swept(*[(1, 2, 3)] * 2))
    faster = noise.TimeRatio(0.8, 0.78, 0.82, 12)
    slower = noise.TimeRatio(1.25, 1.2, 1.3, 12)
    assert answered(made, cells(0, slower)).endswith(
        "GB/s); 1 takes 1.25 times the time of the cell’s 0 (1.20 to 1.30)"
    )
    assert "best at 1" in answered(made, cells(0, faster)) and not made.undecided, "found in turns"
    made = swept(*SPREAD)
    made.busy = "the machine is busy: the load average is 13.5 on 2 cores"
    assert answered(made, cells(0, NOISE)) == (
        "BLOCK over 3 values: no value is named the best, because the machine is busy: the load average is 13.5 on 2 cores; "
        "the best median is 303 GB/s at 2"
    )
    assert made.undecided
    assert answered(swept((1, 2, 3))) == "BLOCK over 1 value, 0: 2 GB/s"


def test_the_answer_of_a_sweep_in_python_stands_above_its_table(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cell(shell, monkeypatch, "--quiet", LAUNCH)
    monkeypatch.setattr(noise, "busy", lambda timings=(): "")
    found = shell.user_ns["add_up"].sweep(BLOCK=[256, 512])
    assert found.part["answer"].startswith("BLOCK over 2 values")
    assert ("the cell’s 64" in found.part["answer"]) != found.undecided
    assert found.text().splitlines()[0] == found.part["answer"]


def test_a_slow_comparison_takes_the_pairs_of_a_verdict(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cell(shell, monkeypatch, "--quiet", LAUNCH)
    monkeypatch.setattr(sweep_launches, "USUAL_SECONDS", 0.0)
    source = sweep_launches.ConstantSweep(record_of(shell.user_ns["add_up"]), ["BLOCK"])
    found = source.against_cell(256)
    assert found is not None and found.pairs >= noise.LEAST_PAIRS


def test_an_unknown_axis_stops_the_cell_with_a_hint(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result, doc = run_cell(shell, monkeypatch, "--sweep m=1,2", LAUNCH)
    assert isinstance(result.error_in_exec, UsageError) and "--launch" in str(result.error_in_exec)
    assert doc is not None and "sweep" not in doc


def test_a_cell_gives_the_same_result_with_and_without_a_sweep(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for options in ("--quiet", "--sweep BLOCK=32,64,128"):
        run_cell(shell, monkeypatch, options, f"for _ in range(3):\n    {LAUNCH}")
        results.append(shell.user_ns["total"].copy())
    np.testing.assert_array_equal(*results)
    assert (results[0] == 3).all()


def test_progress_writes_one_line_to_a_terminal_and_nothing_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def __init__(self, terminal: bool):
            self.terminal, self.text = terminal, ""

        def isatty(self) -> bool:
            return self.terminal

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    steps = itertools.count(128)  # of 1/128 s each
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(steps) / 128))
    for terminal in (True, False):
        stream = Stream(terminal)
        with Progress(100, "sweep", stream) as shown:
            for i in range(100):
                shown.step(f"n = {i}")
        assert stream.text.count("sweep") == (8 if terminal else 0)  # ten times a second at most: every 13th


@pytest.mark.parametrize(("seconds", "shown"), [(0.01, 0), (0.2, 1)])
def test_progress_with_patience_shows_only_long_work(
    monkeypatch: pytest.MonkeyPatch, seconds: float, shown: int
) -> None:
    now, bars = [100.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setattr(Progress, "_show", lambda self: bars.append(self.label))
    with progress.of_compiles(5, "compiling") as step:
        for i in range(5):
            step(f"{i + 1} of 5")
            now[0] += seconds
    assert bool(bars) == bool(shown)


def test_only_notebooks_show_the_progress_of_compilations() -> None:
    assert parallel_compile.shows is not progress.of_compiles  # this is no notebook, though the magics are registered
    with progress.of_compiles(5, "compiling") as step:
        step("not shown")


def test_an_interrupted_cell_keeps_its_partial_sweep_and_the_kernel_its_data(notebook: Any) -> None:
    setup = "total = np.zeros_like(x); n = 64\ndef slow():\n    import time\n    print('at', n, flush=True); begin = time.perf_counter()\n"
    setup += "    while time.perf_counter() - begin < (30 if n == 10 else 0.02): pass  # at 10, until the interrupt"
    assert notebook.run(setup).status == "ok"
    cell = f"%%blockkernel --sweep n=1..64..1 --baseline slow() --launch {LAUNCH}\n{CELL}"
    answer = notebook.run(cell, interrupt_after="at 10")
    (card,) = answer.cards
    part = card[MIME]["sweep"]
    assert part["cancelled"] and 0 < len(part["values"]) < 64 and part["values"][0] == 1
    assert len(part["series"][0]["median"]) == len(part["values"])
    assert "True 64" in notebook.run("print((total == x).all(), n)").printed


def test_a_progress_bar_leaves_nothing_in_the_notebook(notebook: Any) -> None:
    setup = f"total = np.zeros_like(x); n = 64\n{CELL}"
    assert notebook.run(setup).status == "ok"
    bar, card = notebook.run(f"%%blockkernel --sweep BLOCK=16,32\n{LAUNCH}").bundles
    assert bar == {"text/plain": ""} and MIME in card
