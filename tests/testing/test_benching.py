"""do_bench, perf_report and assert_close."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import testing
from blocknb.testing import benching
from blocknb.testing.benching import summarize

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    """A clock that advances only while a call sleeps."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def nap(self) -> np.ndarray:
        self.now += 2.0**-9  # of a second, which is 1.953125 ms exactly
        return np.zeros(1)  # says that it ran on the CPU


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(benching, "time", made)
    return made


@pytest.mark.parametrize("mode", ["min", "max", "mean", "median"])
def test_the_time_of_a_call_is_reduced_by_the_mode(clock: Clock, mode: str) -> None:
    assert testing.do_bench(clock.nap, warmup=4, rep=20, return_mode=mode) == 1.953125


@pytest.mark.parametrize("mode", ["min", "max", "mean", "median"])
def test_each_mode_returns_one_number(mode: str) -> None:
    assert summarize([3.0, 1.0, 8.0], None, mode) == {"min": 1.0, "max": 8.0, "mean": 4.0, "median": 3.0}[mode]


def test_the_mode_all_returns_every_time_and_the_budget_limits_their_number(clock: Clock) -> None:
    assert testing.do_bench(clock.nap, warmup=8, rep=20, return_mode="all") == [1.953125] * 10
    assert clock.now == 2.0**-9 * (1 + 5 + 4 + 10)  # to see where it runs, for an estimate, to warm up, to measure


def test_the_measured_time_is_that_of_the_call() -> None:
    """Each time is at least what the call itself measures, and their sum is at most the total."""
    within: list[float] = []

    def call() -> np.ndarray:
        begin = time.perf_counter()
        time.sleep(0.002)
        within.append((time.perf_counter() - begin) * 1e3)
        return np.zeros(1)

    begin = time.perf_counter()
    times = testing.do_bench(call, warmup=1, rep=20, return_mode="all")
    assert sum(times) <= (time.perf_counter() - begin) * 1e3
    assert all(t >= w for t, w in zip(times, within[-len(times) :], strict=True))


def test_quantiles_interpolate_and_a_single_one_is_a_number() -> None:
    times = [4.0, 1.0, 2.0, 3.0]
    assert summarize(times, [0.5, 0.0, 1.0], "mean") == [2.5, 1.0, 4.0]
    assert summarize(times, [0.5], "mean") == 2.5


def test_an_unknown_mode_is_an_error_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="return_mode must be .* not 'average'"):
        testing.do_bench(lambda: pytest.fail("ran"), return_mode="average")


def test_gradients_are_dropped_before_each_repetition(clock: Clock) -> None:
    class Tensor:
        grad: Any = "old"

    tensor, seen = Tensor(), []

    def call() -> np.ndarray:
        seen.append(tensor.grad)
        tensor.grad = "new"
        return clock.nap()

    testing.do_bench(call, warmup=1, rep=6, grad_to_none=[tensor])
    assert seen[0] == "old" and seen[-1] is None


@blocknb.kernel
def zero(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


def test_a_kernel_is_timed_on_the_device_of_its_arrays() -> None:
    x, begin = np.ones(64, np.float32), time.perf_counter()
    times = testing.do_bench(lambda: zero[(1,)](x, BLOCK=64), warmup=1, rep=2, return_mode="all")
    assert min(times) > 0 and sum(times) < (time.perf_counter() - begin) * 1e3
    assert not x.any()


def test_graphs_need_a_gpu() -> None:
    from blocknb.runtime import machine

    if machine.has_gpu():
        pytest.skip("there is one")
    with pytest.raises(blocknb.LaunchError, match="needs a GPU"):
        testing.do_bench_cudagraph(lambda: pytest.fail("ran"))


# -- assert_close ------------------------------------------------------------------------------------------------------------


def test_close_arrays_of_any_kind_pass() -> None:
    testing.assert_close([1.0, 2.0], np.array([1.005, 2.0]))
    testing.assert_close(np.array([1.0], ml_dtypes.bfloat16), np.float32([1.0]))
    testing.assert_close(float("nan"), float("nan"))
    torch = pytest.importorskip("torch")
    testing.assert_close(torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True), np.array([1.0, 2.0]))


def test_arrays_further_apart_than_the_tolerance_fail_with_the_message() -> None:
    with pytest.raises(AssertionError, match="matmul"):
        testing.assert_close(np.array([1.0, 2.0]), np.array([1.02, 2.0]), err_msg="matmul")
    with pytest.raises(AssertionError):
        testing.assert_close(1.0, 1.0 + 1e-4, atol=lambda dtype: 1e-5)
    testing.assert_close(100.0, 101.0, atol=0.0, rtol=0.02)


def test_arrays_of_different_shapes_are_not_close() -> None:
    with pytest.raises(AssertionError):
        testing.assert_close(np.zeros(3), np.zeros(4))


# -- perf_report -------------------------------------------------------------------------------------------------------------


def report(**changes: Any) -> testing.Mark:
    given = dict(  # noqa: C408
        x_names=["M", "N"], x_vals=[2, (4, 8)], line_arg="by", line_vals=["a", "b"], line_names=["A", "B"],
        plot_name="speed", args={"scale": 10.0}, ylabel="GB/s", x_log=True, styles=[("blue", "-"), ("green", "--")],
    )  # fmt: skip

    @testing.perf_report(testing.Benchmark(**{**given, **changes}))
    def measure(M: int, N: int, by: str, scale: float) -> Any:
        value = scale * M * N
        return value if by == "a" else (value + 1, value, value + 2)

    return measure


def test_a_report_measures_every_size_with_every_candidate(capsys: pytest.CaptureFixture) -> None:
    report().run(print_data=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["speed:"],
        ["M", "N", "A", "(GB/s)", "B", "(GB/s)"],
        ["0", "2", "2", "40.000000", "41.000000"],
        ["1", "4", "8", "320.000000", "321.000000"],
    ]


def test_a_report_is_saved_as_table_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    report().run(save_path=str(tmp_path / "out"), save_precision=2)
    assert (tmp_path / "out/speed.csv").read_text() == "M,N,A (GB/s),B (GB/s)\n2,2,40.00,41.00\n4,8,320.00,321.00\n"
    assert (tmp_path / "out/speed.png").read_bytes().startswith(b"\x89PNG")
    assert 'src="speed.png"' in (tmp_path / "out/results.html").read_text()


def test_a_row_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs 2 values"):
        report(x_vals=[(1, 2, 3)]).run()


def test_neither_matplotlib_nor_pandas_is_loaded_for_a_table() -> None:
    code = (
        "import sys; from blocknb import testing; b = testing.Benchmark(['n'], [1], 'by', ['a'], ['A'], 'p', {});"
        "testing.perf_report(b)(lambda n, by: 1.0).run(print_data=True);"
        "print({'matplotlib', 'pandas', 'torch'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert answer.stdout.splitlines()[-1] == "set()"
