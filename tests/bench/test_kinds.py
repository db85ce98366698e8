"""The benchmarks of public kernels' kinds on small arrays: both dtypes give what float64 gives."""

from typing import Any

import pytest

from blocknb.bench.suite.definition import BenchmarkCase
from blocknb.bench.suite.kinds import BENCHMARKS, FOLDER
from blocknb.bench.suite.measure import OURS, MeasuringSession, measure

CASES = [(benchmark, dtype) for benchmark in BENCHMARKS for dtype in benchmark.gpu]


def clock(call: Any) -> float:
    call()
    return 1.0


@pytest.mark.parametrize(("benchmark", "dtype"), CASES, ids=lambda x: getattr(x, "name", x))
def test_a_kind_gives_what_float64_gives(benchmark: Any, dtype: str) -> None:
    session = MeasuringSession("cpu", (), rounds=1, clock=clock)
    row = measure(session, benchmark, BenchmarkCase(benchmark.name, benchmark.cpu[0], dtype))
    assert not row.problems and row.errors[OURS] < 2e-3 and OURS in row.times


def test_the_sources_import_triton_alone() -> None:
    for path in FOLDER.glob("*.py"):
        assert "blocknb" not in path.read_text().split('"""')[2]
