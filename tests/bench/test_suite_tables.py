"""Tables, geometric means, promises and JSON from given times."""

from __future__ import annotations

import json

import pytest

from blocknb.bench.suite import floors, table
from blocknb.bench.suite.definition import BenchmarkCase, parse_shape, shape_text
from blocknb.bench.suite.measure import COPY, OURS, TRITON, MeasuredRow
from blocknb.profile.timing import summary

PEERS = (COPY, TRITON)


def row(n: int, ours: list[float], name: str = "softmax", m: int = 4096, **peers: list[float]) -> MeasuredRow:
    times = {OURS: summary(ours)} | {peer: summary(values) for peer, values in peers.items()}
    return MeasuredRow(BenchmarkCase(name, (m, n), "fp32"), 2_000_000, times=times)


def test_a_ratio_is_of_medians_and_its_spread_of_rounds() -> None:
    one = row(8, [1.0, 2.0, 3.0, 4.0, 5.0], Triton=[2.0, 6.0, 3.0, 2.0, 10.0])
    ratio = one.ratio(TRITON)
    assert ratio is not None and one.ratio(COPY) is None
    assert ratio.value == pytest.approx(3.0 / 3.0)
    assert (ratio.low, ratio.high) == (1.0, 2.0)  # of 2, 3, 1, 0.5, 2
    assert one.rate == pytest.approx(2_000_000 / 3.0 / 1e6)


def test_a_row_shows_times_ratios_and_what_went_wrong() -> None:
    one = row(781, [0.5, 0.5], copy=[1.0, 1.0])
    one.problems[TRITON] = "wrong: out is wrong: relative error 0.1"
    text = table.line(one, (*PEERS, "torch"))
    assert text.split() == ["4096x781", "fp32", "0.5000", "4", "2.00", "(2.00-2.00)", "wrong", "-"]
    assert table.problems(one) == ["    Triton wrong: out is wrong: relative error 0.1"]
    head = table.header("softmax", (*PEERS, "torch"), "GB/s")
    assert len(head) == len(text) and head.split() == [
        "softmax", "ms", "GB/s", "x", "copy", "x", "Triton", "x", "torch",
    ]  # fmt: skip


def test_a_row_whose_own_result_is_wrong_says_so_and_has_peers_times() -> None:
    one = MeasuredRow(
        BenchmarkCase("add", (1 << 26,), "fp16"), 8, times={TRITON: summary([2.0, 2.0])}, problems={OURS: "wrong: out"}
    )
    assert table.line(one, PEERS).split() == ["2^26", "fp16", "wrong", "-", "2.0000", "ms"]
    assert one.rate is None


def test_means_are_geometric_and_name_the_lowest() -> None:
    rows = [row(8, [1.0], Triton=[0.5]), row(16, [1.0], Triton=[8.0]), row(32, [1.0])]
    assert table.means(rows, PEERS) == {TRITON: (pytest.approx(2.0), 0.5, "softmax 4096x8 fp32", 2)}
    assert table.summary("softmax", rows, PEERS) == [
        "  softmax against Triton: geometric mean 2.00 of 2, lowest 0.50 (softmax 4096x8 fp32)"
    ]
    assert table.geometric_mean([]) is None


def test_promises_are_judged_by_the_lowest_or_by_the_mean_of_the_rows_they_are_of() -> None:
    rows = [
        row(256, [1.0], Triton=[0.96], copy=[0.5]),
        row(512, [1.0], Triton=[1.3]),
        row(8192, [1.0], m=32768, Triton=[0.1], copy=[0.96]),
        row(256, [1.0], name="rms_norm", Triton=[0.9]),
    ]
    found = {(v.floor.names[0], v.floor.peer, v.floor.how): v for v in floors.check_floors("gpu", rows)}
    each, mean = found["softmax", TRITON, "each"], found["softmax", TRITON, "mean"]
    assert (each.figure, each.cases, each.word) == (pytest.approx(0.96), 2, "floor")
    assert (mean.figure, mean.word) == (pytest.approx((0.96 * 1.3) ** 0.5), "goal")
    huge = found["softmax", COPY, "each"]
    assert (huge.figure, huge.cases, huge.word) == (pytest.approx(0.96), 1, "floor")
    assert found["rms_norm", TRITON, "each"].word == "MISSED"
    assert str(each) == (
        "  floor  softmax M=4096 against Triton: lowest 0.960 of 2; floor 0.95, goal 1.05 (softmax 4096x256 fp32)"
    )
    assert ("add", COPY, "each") not in found and not floors.check_floors("cpu", rows)


def test_a_case_in_which_our_kernel_fails_misses_the_promise() -> None:
    wrong = row(1024, [1.0], Triton=[2.0])
    del wrong.times[OURS]
    wrong.problems[OURS] = "wrong: out is wrong"
    unknown = row(2048, [1.0])
    unknown.problems[TRITON] = "failed: OutOfResources"
    lost = MeasuredRow(BenchmarkCase("softmax", (4096, 4096), "fp32"), 0, problems={"all": "failed: MemoryError"})
    other = row(4096, [1.0])
    other.problems[TRITON] = "none"
    rows = [row(512, [1.0], Triton=[2.0]), wrong, unknown, lost, other]
    found = {v.floor.how: v for v in floors.check_floors("gpu", rows) if v.floor.peer == TRITON}
    assert {how: (v.word, v.figure, v.cases) for how, v in found.items()} == {
        "each": ("MISSED", 2.0, 1),
        "mean": ("MISSED", 2.0, 1),
    }
    assert str(found["mean"]).endswith(
        "; blocknb failed: softmax 4096x1024 fp32; not measured: softmax 4096x2048 fp32, softmax 4096x4096 fp32"
    )
    (only,) = [v for v in floors.check_floors("gpu", [unknown]) if v.floor.how == "each" and v.floor.peer == TRITON]
    assert (only.word, only.figure) == ("none", None) and "no ratio; floor 0.95, goal 1.05" in str(only)
    assert not floors.check_floors("gpu", [lost])


def test_a_promise_of_a_variant_is_judged_by_its_time() -> None:
    one = row(4096, [1.0], name="gemm_plain", Triton=[0.9], pointers=[0.75])
    one.case = BenchmarkCase("gemm_plain", (4096, 4096, 4096), "fp16")
    found = {v.floor.ours: v for v in floors.check_floors("gpu", [one])}
    assert (
        set(found) == {"pointers"}
        and found["pointers"].figure == pytest.approx(1.2)
        and found["pointers"].word == "goal"
    )


def test_a_row_as_json_has_every_figure() -> None:
    one = row(8, [1.0, 3.0], Triton=[2.0, 6.0])
    one.configs[TRITON], one.problems = {"ROWS": 2, "num_warps": 4}, {COPY: "none", "torch": "failed: it"}
    found = json.loads(json.dumps(table.as_json(one, PEERS)))
    assert found["ms"][TRITON] == {"median": 4.0, "low": 3.0, "high": 5.0, "runs": 2}
    assert found["ratios"] == {TRITON: {"value": 2.0, "low": 2.0, "high": 2.0}}
    assert found["shape"] == [4096, 8] and found["problems"] == {"torch": "failed: it"}
    assert found["configurations"] == {TRITON: {"ROWS": 2, "num_warps": 4}} and found["unit"] == "GB/s"


def test_shapes_are_written_and_read() -> None:
    for shape, text in (((1 << 26,), "2^26"), ((4096, 781), "4096x781"), ((3000,), "3000"), ((2, 3, 4), "2x3x4")):
        assert shape_text(shape) == text and parse_shape(text) == shape
    with pytest.raises(ValueError):
        parse_shape("4096,781")
