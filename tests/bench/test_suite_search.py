"""Searching configurations: which ones are tried, which results are kept, and that our own kernels do not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blocknb import kernels, passes
from blocknb.bench.suite import runner, search
from blocknb.bench.suite.catalogue import BENCHMARKS
from blocknb.bench.suite.definition import BenchmarkCase, over_blocks, over_rows
from blocknb.bench.suite.measure import OURS, TRITON, Bench, MeasuringSession, measure
from blocknb.bench.suite.search import Best, TileSweep, grid, sweep
from blocknb.bench.suite.triton_source import Sources, rewritten

CASE = BenchmarkCase("rms_norm", (40, 100), "fp32")


def session() -> MeasuringSession:
    """Ours on the CPU, whose copied sources stand for Triton's; a call takes as many milliseconds as it is the n-th."""
    times = iter(range(1, 10_000))

    def clock(call: Any) -> float:
        call()
        return float(next(times))

    made = MeasuringSession("cpu", (), rounds=1, clock=clock)
    made.peers, made.sources[TRITON] = (TRITON,), Sources("blocknb")
    return made


def test_threads_of_a_configuration_hold_a_sensible_number_of_elements() -> None:
    for shape in ((4096, 781), (4096, 32768), (3, 5)):
        found = list(over_rows(shape))
        block = 1 << (shape[1] - 1).bit_length()
        assert found and all(1 <= c["ROWS"] * block / (32 * c["num_warps"]) <= 64 or block < 128 for c in found)
        assert len({(c["ROWS"], c["num_warps"]) for c in found}) == len(found)
    assert {"ROWS": 4, "num_warps": 4} in list(over_rows((4096, 781)))
    assert {c["ROWS"] for c in over_rows((4096, 32768))} == {1}
    assert {"block": 1024, "num_warps": 4} in list(over_blocks((1 << 26,)))


def test_a_configuration_reaches_the_kernel_of_the_copy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    source, seen = Sources("blocknb"), []
    bench = Bench(session(), BENCHMARKS["rms_norm"], CASE)
    module = source.module("norms")
    assert module is not kernels.norms and module.norm_kernel is not kernels.norms.norm_kernel
    on = type(module.norm_kernel).__getitem__
    monkeypatch.setattr(
        type(module.norm_kernel),
        "__getitem__",
        lambda self, grid: (
            lambda *args, **options: (
                seen.append((grid, options["ROWS"])),
                on(self, grid)(*args, **options),
            )
        ),
    )
    source.call(BENCHMARKS["rms_norm"], bench.arrays, {"ROWS": 8, "num_warps": 2})()
    source.call(BENCHMARKS["rms_norm"], bench.arrays)()
    assert [rows for _, rows in seen] == [8, kernels.norms.tile(bench.arrays["x"])["ROWS"]]
    assert seen[0][0] == (5,) and module.tile is kernels.norms.tile


def test_a_wrapper_without_rows_is_searched_over_warps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Sources("blocknb")
    monkeypatch.delattr(source.module("norms"), "tile")
    found = source.configurations(BENCHMARKS["rms_norm"], (4096, 1024))
    assert found == [{"num_warps": w} for w in (1, 2, 4, 8)]


def test_an_interrupted_search_keeps_no_best_of_what_it_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "best.json", session()
    calls = iter([1.0, 2.0])

    def clock(call: Any) -> float:
        if (found := next(calls, None)) is None:
            raise KeyboardInterrupt
        return found

    made.clock = clock
    best = Best("a GPU", fresh=False, path=path)
    rows = runner._one(BENCHMARKS["rms_norm"], [CASE, CASE], made, best)
    assert rows == [] and made.cancelled and not path.exists() and not best.kept


def test_the_best_of_a_sweep_is_kept_in_a_file_and_not_searched_again(tmp_path: Path) -> None:
    path, made = tmp_path / "best.json", session()
    best = Best("a GPU", fresh=False, path=path)
    row = measure(made, BENCHMARKS["rms_norm"], CASE, before=best.before, best=best)
    kept = json.loads(path.read_text())
    assert kept["a GPU"][str(CASE)]["config"] == row.configs[TRITON] and len(best.sweeps) == 1
    assert best.sweeps[0].times[TRITON][0][0] == row.configs[TRITON]  # the clock only rises
    again = Best("a GPU", fresh=False, path=path)
    measure(made, BENCHMARKS["rms_norm"], CASE, before=again.before, best=again)
    assert not again.sweeps
    other = Best("another GPU", fresh=False, path=path)
    measure(made, BENCHMARKS["rms_norm"], CASE, before=other.before, best=other)
    assert len(other.sweeps) == 1 and set(json.loads(path.read_text())) == {"a GPU", "another GPU"}


def test_a_kernel_whose_source_has_changed_is_searched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "best.json", session()
    best = Best("a GPU", fresh=False, path=path)
    measure(made, BENCHMARKS["rms_norm"], CASE, best=best)
    monkeypatch.setattr(search, "source", lambda name: "another text")
    again = Best("a GPU", fresh=False, path=path)
    measure(made, BENCHMARKS["rms_norm"], CASE, best=again)
    assert len(again.sweeps) == 1


def test_a_search_sweeps_both_compilers_and_shows_the_grid(tmp_path: Path) -> None:
    lines: list[str] = []
    best = Best("a GPU", fresh=True, show=lines.append, path=tmp_path / "best.json")
    measure(session(), BENCHMARKS["rms_norm"], CASE, before=best.before, best=best)
    found = best.sweeps[0]
    assert set(found.times) == {OURS, TRITON} and found.default is not None and not found.problems
    assert "our default" in lines[-1] and any(line.lstrip().startswith("best blocknb") for line in lines)


def test_a_configuration_that_fails_is_named_and_the_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session()
    bench = Bench(made, BENCHMARKS["rms_norm"], CASE)
    configurations = [{"ROWS": 3, "num_warps": 1}, {"ROWS": 4, "num_warps": 1}]
    monkeypatch.setattr(Sources, "configurations", lambda *_: configurations)
    found = sweep(bench, (TRITON,))
    assert [config for config, _ in found.times[TRITON]] == [{"ROWS": 4}]
    assert len(found.problems) == 1 and found.problems[0].startswith("Triton ROWS=3: ")


def test_the_grid_has_warps_across_and_the_rest_down() -> None:
    found = TileSweep("case", {OURS: [({"ROWS": 1, "num_warps": 2}, 0.01), ({"ROWS": 2, "num_warps": 4}, 0.02)]}, 0.015)
    found.times[TRITON] = [({"ROWS": 2, "num_warps": 4}, 0.03)]
    assert [line.split() for line in grid(found)] == [
        ["case,", "us:", "blocknb", "|", "Triton"],
        ["num_warps", "2", "4"],
        ["ROWS=1", "10.00", "|", "-"],
        ["ROWS=2", "20.00", "|", "30.00"],
        ["best", "blocknb:", "10.00", "with", "ROWS=1", "num_warps=2"],
        ["best", "Triton:", "30.00", "with", "ROWS=2", "num_warps=4"],
        ["our", "default:", "15.00"],
    ]


def test_unspecialized_sources_leave_the_pass_out_of_every_kernel() -> None:
    sources = Sources("unspecialized")
    kernel = sources.module("norms").norm_kernel
    assert kernel is sources.module("norms").norm_kernel and kernel.options["without"] == {"warp_specialization"}


def test_sources_for_triton_name_nothing_that_is_ours_alone() -> None:
    text = "import blocknb\nimport blocknb.language as bl\n\n\n@blocknb.kernel\ndef k(x):\n    blocknb.cdiv(1, 2)\n"
    assert rewritten(text, "triton") == (
        "import triton as blocknb\nimport triton.language as bl\n\n\n@blocknb.jit\ndef k(x):\n    blocknb.cdiv(1, 2)\n"
    )
    with pytest.raises(ValueError, match="Triton has no blocknb.roofline"):
        rewritten(text + "blocknb.roofline()\n", "triton")


def test_modules_that_import_kernels_import_copies_of_them() -> None:
    """What `matmul` chooses among are kernels of other modules."""
    sources = Sources("unspecialized")
    own = {"matmul": "by_pointers", "descriptors": "by_descriptors", "split_k": "by_parts"}
    for name, wrapper in own.items():
        assert getattr(sources.module("gemm"), wrapper) is getattr(sources.module(name), wrapper)
    kernel = sources.module("descriptors").matmul_descriptor_kernel
    assert kernel.options["without"] == {"warp_specialization"} and "warp_specialization" in passes.optional()
    assert kernels.descriptors.matmul_descriptor_kernel.options.get("without", ()) == ()


def test_a_variant_that_knows_a_configuration_is_searched_on_request_alone(tmp_path: Path) -> None:
    path, benchmark, case = (
        tmp_path / "best.json",
        BENCHMARKS["gemm_plain"],
        BenchmarkCase("gemm_plain", (64, 48, 32), "fp32"),
    )
    made = session()
    made.prepared |= {TRITON, "Triton TMA"}
    made.peers = (TRITON, "Triton TMA")
    best = Best("a GPU", fresh=False, path=path)
    row = measure(made, benchmark, case, before=best.before, best=best)
    assert not best.sweeps and not row.problems
    assert row.configs["Triton TMA"] == benchmark.variants["Triton TMA"].known(case.shape, "fp32")  # type: ignore[misc]
    kept = {"config": {"tile": [32, 32, 32], "num_warps": 4}, "ms": 1.0, "source": "another"}
    path.write_text(json.dumps({"a GPU": {f"{case}, Triton TMA": kept}}))
    row = measure(made, benchmark, case, best=Best("a GPU", fresh=False, path=path))
    assert row.configs["Triton TMA"] == kept["config"] and not row.problems
