"""Card, roofline, timeline and benchmarks give the same flops and bytes for a launch, because they ask one evaluator.

Each kernel of the tests is launched on the CPU. The card and the roofline count its tile IR, and the timeline runs the IR after the last
pass for sm_90a. The benchmarks have formulas, which the counted work of their launches confirms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kernels import CASES
from kernels.base import Case, host_address
from observed import observed
from zoo import ZOO

from blocknb import passes
from blocknb.analysis.partial_evaluation.evaluator import Undecided
from blocknb.bench.suite.catalogue import BENCHMARKS
from blocknb.bench.suite.definition import BenchmarkCase
from blocknb.bench.suite.kinds import KINDS
from blocknb.bench.suite.measure import OURS, Bench, MeasuringSession
from blocknb.notebook import numbers, roofline
from blocknb.notebook.observe import Observation, Specialisation
from blocknb.profile.ceilings import Ceilings
from blocknb.profile.replay import captured_by, work_of
from blocknb.profile.timeline import timeline
from blocknb.profile.work import Work
from blocknb.target import Target

#: The timeline does not know the sum across warps on which its loop depends.
UNDRAWN = {"mandelbrot[few_steps]"}


def launch(case: Case, arguments: dict[str, Any]) -> Any:
    return case.kernel[case.grid](**arguments, **case.options)


@pytest.mark.sampled(22)
@pytest.mark.parametrize("name", sorted(CASES))
def test_card_roofline_and_timeline_agree(name: str) -> None:
    case = CASES[name]
    arguments = case.make(np.random.default_rng(7))
    case.link(arguments, host_address)
    made = observed(lambda: launch(case, arguments)).latest
    assert made is not None
    limits, clock = Ceilings("none", "", ()), lambda call: 1.0
    rate, work = counts(made)
    if name != "tickets":  # a second launch would write past the end of its array
        (point,) = roofline.roofline(lambda: launch(case, arguments), limits=limits, clock=clock).points
        assert (point.flops, point.bytes, point.issued_bytes) == (work.flops, work.unique_bytes, work.issued_bytes)
    agree(made, rate, work)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", [name for name, specimen in ZOO.items() if not specimen.gpu_only])
def test_card_and_timeline_agree_about_a_kernel_of_the_zoo(name: str) -> None:
    observation = Observation()
    observation.start()
    try:
        ZOO[name].run(ZOO[name].make(np.random.default_rng(7)), "numpy", "cpu")
    finally:
        observation.stop()
    made = [one for record in observation.records.values() for one in record.specialisations.values()]
    assert made
    for one in made:
        agree(one, *counts(one), name in UNDRAWN)


def counts(made: Specialisation) -> tuple[numbers.Rate | None, Work]:
    """The rate of the card, from a quick count, and the work that the roofline shows."""
    return numbers.rate(made), work_of(made.compiled, made.arguments, made.grid)


def agree(made: Specialisation, rate: numbers.Rate | None, work: Work, undrawn: bool = False) -> None:
    """The card's rate has the work of the launch, and the timeline of the GPU code has its issued work."""
    about = "" if work.exact else "about"
    if work.flops and work.dot_flops:
        assert rate is not None and rate.unit == "TFLOP/s" and rate.short.startswith(about)
        assert rate.value * made.timing.median * 1e9 == pytest.approx(work.flops)
    elif work.unique_bytes:
        assert rate is not None and rate.unit == "GB/s" and rate.short.startswith(about)
        assert rate.value * made.timing.median * 1e6 == pytest.approx(work.unique_bytes)
    else:
        assert rate is None or rate.short.startswith("about")

    tile = made.compiled.trace.stages[0].after
    func, _ = passes.run(tile, Target.parse("sm_90a"))
    draw = lambda: timeline(  # noqa: E731
        func, numbers.scalars(made), made.grid, ctas=1, programs=math.prod(made.grid), most=10**7
    )
    if "depends on" in work.why_flops or undrawn:
        with pytest.raises(Undecided):
            draw()
        return
    found = draw()
    split = {op.attrs.get("precision") == "tf32x3" for op in tile.ops() if op.name == "dot"} == {True}
    assert not found.cut and found.flops == work.issued_dot_flops * (3 if split else 1)  # three MMAs for a dot
    if work.issued_bytes is not None:  # else a mask is loaded data, which the timeline assumes to be on
        assert found.bytes == work.issued_bytes


# ---- the formulas of the benchmarks

#: Benchmarks whose launches depend on data: the addresses of classes, the sizes of groups.
BY_DATA = {"cross_entropy", "gemm_grouped"}
SHAPES = {1: (3000,), 2: (96, 200), 3: (64, 48, 80), 4: (2, 64, 48, 80)}
SHAPES_BY_NAME = {"skinny_int4": (64, 64, 128)}  # whole groups of weights and whole tiles
#: Benchmarks that count what a user counts, not what their kernels do. `decode` and triangles read more than once or less than all. Public
#: forms of stream-K and block-sparse products take their own shapes.
UNCOUNTED = {f"{KINDS}_{name}" for name in (
    "argmax_all", "block_rows", "block_sparse", "split_k_in_turn", "stream_k", "stream_k_one_loop", "triangles_16", "triangles_32",
    "triangles_64",
)} | {"decode_contiguous", "decode_paged"}  # fmt: skip
COUNTED = [name for name in BENCHMARKS if name not in UNCOUNTED]


def counted(name: str) -> tuple[Bench, list[Work]]:
    """The arrays of a benchmark on the CPU, and the work of each launch of our kernels."""
    benchmark = BENCHMARKS[name]
    shape = (256, 64) if name.startswith("attention") else SHAPES_BY_NAME.get(name, SHAPES[len(benchmark.cpu[0])])
    bench = Bench(MeasuringSession("cpu", (), rounds=1), benchmark, BenchmarkCase(name, shape, "fp32"))
    return bench, [replay.work for replay in captured_by(bench.candidate(OURS, None).call)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in COUNTED if BENCHMARKS[name].flops is None])
def test_a_benchmark_in_bytes_moves_each_array_once(name: str) -> None:
    bench, works = counted(name)
    if name in BY_DATA:
        assert [bool(work.why_bytes) for work in works] == [True]
        return
    intermediate = sum(sum(work.read.values()) for work in works[1:])  # written by one launch, read by the next
    assert sum(work.unique_bytes or 0 for work in works) - 2 * intermediate == bench.bytes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in COUNTED if BENCHMARKS[name].flops is not None])
def test_a_benchmark_in_flops_has_those_of_the_dots(name: str) -> None:
    bench, works = counted(name)
    if name in BY_DATA:
        assert [bool(work.why_flops) for work in works] == [True]
        return
    done, said = sum(work.dot_flops or 0 for work in works), bench.benchmark.flops(*bench.case.shape)
    if "backward" in name:  # the field counts five products; the kernels recompute two
        said = said * 7 // 5
    if "causal" in name:  # the field counts half of the matrix; the kernels compute whole tiles on its diagonal
        assert said <= done < 2 * said
    else:
        assert done == said
