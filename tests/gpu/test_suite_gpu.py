"""The benchmark harness on a GPU, at small sizes with partial tiles: every baseline is right, and is timed with the kernel."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("cupy")
pytest.importorskip("torch")
from benchmark_shapes import OWN_SIZES, small_shape

from blocknb.bench.suite import launching, runner
from blocknb.bench.suite.catalogue import BENCHMARKS
from blocknb.bench.suite.definition import BenchmarkCase
from blocknb.bench.suite.kinds import KINDS
from blocknb.bench.suite.measure import COMPILED, COPY, OURS, TORCH, TRITON, MeasuringSession, measure
from blocknb.bench.suite.search import Best

SMALL = {1: (100_003,), 2: (300, 1001), 3: (70, 6, 64), 4: (3, 70, 48, 64)}
PEERS = (COPY, TORCH, TRITON) if find_spec("triton") else (COPY, TORCH)


def small(name: str, dtype: str) -> BenchmarkCase:
    return BenchmarkCase(name, small_shape(name, SMALL, attention=(300, 64)), dtype)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_baseline_is_correct_and_timed(name: str, dtype: str) -> None:
    if dtype not in BENCHMARKS[name].gpu:
        pytest.skip(f"{name} is not measured in {dtype}")
    peers = (
        (COPY,) if name.startswith(("decode_", "skinny_int")) else PEERS
    )  # torch's kernels for these take other sizes
    row = measure(MeasuringSession("gpu", peers, rounds=3), BENCHMARKS[name], small(name, dtype))
    assert not {peer: why for peer, why in row.problems.items() if why != "none"}
    timed = {OURS} if name.startswith(OWN_SIZES) else {OURS, TORCH}
    timed |= {TRITON} if name.startswith(f"{KINDS}_") and TRITON in PEERS else set()
    assert timed <= set(row.times) and all(t.median > 0 for t in row.times.values())


@pytest.mark.skipif(TRITON not in PEERS, reason="needs Triton")
def test_search_times_both_compilers_in_the_same_configurations(tmp_path: Path) -> None:
    best = Best("this GPU", fresh=True, show=lambda line: None, path=tmp_path / "best.json")
    row = measure(MeasuringSession("gpu", (TRITON, COMPILED), rounds=3), BENCHMARKS["rms_norm"], small("rms_norm", "fp16"),
                  before=best.before, best=best)  # fmt: skip
    assert not row.problems and row.configs[TRITON] in [config for config, _ in best.sweeps[0].times[TRITON]]
    assert len(best.sweeps[0].times[OURS]) >= 10 and not best.sweeps[0].problems


def test_launch_is_timed_together_with_the_drivers_call() -> None:
    rows = {row["peer"]: row for row in launching.run("gpu")}
    assert 0 < rows["driver call alone"]["us"] < rows[OURS]["us"] < 1000
    assert {"CuPy RawKernel", "torch.add", f"{OURS}, CuPy arrays"} <= set(rows)


def test_description_of_the_machine_names_its_versions() -> None:
    import cupy

    assert "numpy" in runner.versions() and isinstance(runner.gpu_state(cupy.cuda.Device().pci_bus_id), dict)
