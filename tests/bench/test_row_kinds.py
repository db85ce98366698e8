"""The benchmarks of kernels over rows and columns on small arrays: each dtype gives what float64 gives."""

from typing import Any

import pytest

from blocknb.bench.suite.definition import BenchmarkCase
from blocknb.bench.suite.measure import OURS, MeasuringSession, measure
from blocknb.bench.suite.row_kinds import BENCHMARKS

CASES = [
    pytest.param(benchmark, dtype, marks=() if dtype == "fp32" else pytest.mark.full, id=f"{benchmark.name}-{dtype}")
    for benchmark in BENCHMARKS
    for dtype in benchmark.gpu
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("benchmark", "dtype"), CASES)
def test_a_kernel_over_rows_gives_what_float64_gives(benchmark: Any, dtype: str) -> None:
    session = MeasuringSession("cpu", (), rounds=1, clock=lambda call: float(call() is None))
    row = measure(session, benchmark, BenchmarkCase(benchmark.name, (37, 50), dtype))
    assert not row.problems and row.errors[OURS] < 2e-3
