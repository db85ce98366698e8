"""Every benchmark at small sizes with partial tiles on the CPU: our kernel and each installed baseline match float64."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from blocknb.bench.suite import peers_numpy
from blocknb.bench.suite.catalogue import BENCHMARKS, P
from blocknb.bench.suite.definition import BenchmarkCase, Make
from blocknb.bench.suite.kinds import KINDS
from blocknb.bench.suite.measure import (
    COMPILED,
    COPY,
    NUMBA,
    NUMPY,
    OURS,
    TORCH,
    TRITON,
    Bench,
    MeasuringSession,
    measure,
)
from blocknb.bench.suite.triton_source import Sources

#: Why torch is missing on a CPU. It has no attention of one query per sequence on pages, and its packed weights are a GPU's.
WITHOUT_TORCH = {
    "decode_paged": "none",
    "skinny_int4": "left out: torch's operator for weights of 4 bits runs on GPUs only",
}
#: The benchmarks of ready-made kernels; `test_kinds` and `test_row_kinds` have the others.
READY_MADE = [name for name in BENCHMARKS if not name.startswith(f"{KINDS}_")]
SMALL = {1: (3001,), 2: (7, 301), 3: (5, 3, 6), 4: (2, 5, 3, 6), 6: (2, 4, 2, 16, 3, 64)}
HALF = [name for name in READY_MADE if "fp16" in BENCHMARKS[name].gpu]


def small(name: str, dtype: str = "fp32") -> BenchmarkCase:
    if BENCHMARKS[name].module == "quantized":  # whole groups of weights
        return BenchmarkCase(name, (5, 3, 256), dtype)
    return BenchmarkCase(
        name, (45, 24) if name.startswith("attention_") else SMALL[len(BENCHMARKS[name].cpu[0])], dtype
    )


def clock(call: Any) -> float:
    call()
    return 1.0


@pytest.fixture(scope="module")
def session() -> MeasuringSession:
    return MeasuringSession("cpu", (NUMPY, TORCH), rounds=2, clock=clock)


@pytest.mark.parametrize("name", READY_MADE)
def test_every_peer_on_a_cpu_gives_what_float64_gives(session: MeasuringSession, name: str) -> None:
    row = measure(session, BENCHMARKS[name], small(name))
    missing = {TORCH: WITHOUT_TORCH[name]} if TORCH in session.peers and name in WITHOUT_TORCH else {}
    assert row.problems == missing
    assert set(row.times) == {OURS, *session.peers} - missing.keys() and NUMPY in row.times
    rounding = 1e-3 if BENCHMARKS[name].module == "quantized" else 1e-4  # fp16 results
    assert all(error < rounding for error in row.errors.values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", HALF)
def test_ours_in_half_precision_gives_what_float64_gives(name: str) -> None:
    row = measure(MeasuringSession("cpu", (), rounds=1, clock=clock), BENCHMARKS[name], small(name, "fp16"))
    assert not row.problems and row.errors[OURS] < 2e-3


@pytest.mark.full
@pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")
@pytest.mark.parametrize("name", READY_MADE)
def test_numba_gives_what_float64_gives(name: str) -> None:
    row = measure(MeasuringSession("cpu", (NUMBA,), rounds=1, clock=clock), BENCHMARKS[name], small(name))
    assert row.problems.get(NUMBA) == ("none" if name not in peers_numpy.numba_peers() else None)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", HALF)
def test_a_gpus_peers_give_what_float64_gives_on_cpu_tensors(name: str, dtype: str) -> None:
    """The way of a GPU's session with torch's tensors; our copied sources stand for Triton's."""
    pytest.importorskip("torch")
    if dtype not in BENCHMARKS[name].gpu or (dtype == "fp16" and name == "layer_norm_backward"):
        pytest.skip("torch's CPU operator wants fp16 statistics")
    session = MeasuringSession("gpu", (COPY, TORCH), rounds=2, torch_device="cpu", clock=clock)
    session.peers, session.sources[TRITON] = (*session.peers, TRITON), Sources("blocknb")
    found = session.sources[TRITON].configurations(BENCHMARKS[name], small(name).shape)
    row = measure(
        session, BENCHMARKS[name], small(name, dtype), best=lambda bench, peer: found[0] if peer == TRITON else None
    )
    assert bool(found) is (BENCHMARKS[name].module != "quantized")
    missing = {TORCH: WITHOUT_TORCH[name]} if name in WITHOUT_TORCH else {}
    missing |= {} if found else {TRITON: "none"}
    assert {peer: why for peer, why in row.problems.items() if peer != COPY} == missing
    assert row.problems.get(COPY, "none") == "none"
    assert {OURS, TORCH, TRITON} - missing.keys() <= set(row.times)
    assert row.configs == ({TRITON: found[0]} if found else {})


def test_torchs_product_with_weights_of_4_bits_takes_bf16_only() -> None:
    pytest.importorskip("torch")
    session = MeasuringSession("gpu", (TORCH,), rounds=2, torch_device="cpu", clock=clock)
    session.torch_device = "cuda"
    found = {dtype: session.absent(TORCH, BENCHMARKS["skinny_int4"], dtype) for dtype in ("bf16", "fp16")}
    assert found == {"bf16": "", "fp16": "none"}


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in READY_MADE if BENCHMARKS[name].flops is None])
def test_what_torch_compiles_gives_what_float64_gives(name: str) -> None:
    pytest.importorskip("torch")
    session = MeasuringSession("gpu", (COMPILED,), rounds=1, torch_device="cpu", clock=clock)
    row = measure(session, BENCHMARKS[name], small(name))
    assert not row.problems and COMPILED in row.times


def test_what_is_not_written_or_wrong_or_fails_is_named_and_not_timed() -> None:
    session = MeasuringSession("cpu", (NUMPY,), rounds=2, clock=clock)

    def half(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        np.add(x[:-1], y[:-1], out=out[:-1])

    def off(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        np.add(x, y * 1.001, out=out)

    def broken(*arrays: Any) -> None:
        raise RuntimeError("no such\n function")

    bench = Bench(session, BENCHMARKS["add"], small("add"))
    for function, words in ((half, "out is wrong: relative error nan"), (off, "out is wrong: relative error 0.0")):
        session.functions[NUMPY] = {"add": function}
        assert words in bench.verify(bench.candidate(NUMPY, None))[0]
    session.functions[NUMPY] = {"add": broken}
    row = measure(session, BENCHMARKS["add"], small("add"))
    assert row.problems == {NUMPY: "failed: RuntimeError: no such function"} and set(row.times) == {OURS}


def test_a_dropout_that_keeps_too_many_or_scales_wrongly_is_found(session: MeasuringSession) -> None:
    bench = Bench(session, BENCHMARKS["dropout"], BenchmarkCase("dropout", (100_000,), "fp32"))
    x = bench.inputs["x"].astype(np.float64)
    check: Any = BENCHMARKS["dropout"].check
    dropped = np.where(np.random.default_rng(1).random(x.shape) >= P, x / (1 - P), 0)
    assert check(np, {"x": x}, {"out": dropped}) == ""
    assert "not 0.1" in check(np, {"x": x}, {"out": x / (1 - P)})
    assert "neither" in check(np, {"x": x}, {"out": np.where(dropped == 0, 0, x)})
    assert "neither" in check(np, {"x": x}, {"out": np.full_like(x, np.nan)})


def test_a_peer_that_is_not_installed_is_named_and_an_unknown_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    session = MeasuringSession("cpu", (NUMPY, NUMBA))
    assert session.peers == (NUMPY,) and "not installed" in session.missing[NUMBA]
    with pytest.raises(
        ValueError,
        match="no peer 'Torch'; there are CuPy, FlexAttention, NumPy, Triton, ceiling, copy, cuDNN, efficient, flash, numba, torch",
    ):
        MeasuringSession("cpu", ("Torch",))


def test_inputs_are_fresh_and_bytes_are_those_of_every_array_once() -> None:
    session = MeasuringSession("cpu", ())
    case = BenchmarkCase("swiglu", (7, 301), "fp32")
    first, second = (Bench(session, BENCHMARKS["swiglu"], case) for _ in range(2))
    assert first.bytes == 3 * 7 * 301 * 4
    assert (first.inputs["gate"] != second.inputs["gate"]).all() and np.isnan(first.outputs["out"]).all()
    assert Make(np, "fp16").normal(3).dtype == np.float16
