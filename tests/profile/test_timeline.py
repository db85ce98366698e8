"""Timelines: waits follow from the IR, and durations from a table of rates."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from blocknb.analysis.partial_evaluation.evaluator import Undecided
from blocknb.bench.suite.steps import PING_PONG, STEPS, Step, matmul
from blocknb.profile.timeline import has_timeline, timeline
from blocknb.profile.timeline_spans import Timeline

ITERATIONS, TILES = 8, 2
BY_NAME = {step.name: step for step in (*STEPS, PING_PONG)}
PIPELINED = (
    "copies ahead",
    "wgmma",
    "a warp that copies",
    "persistent programs",
    "results by TMA",
    "larger tiles",
    "ping-pong",
)


@cache
def drawn(name: str) -> Timeline:
    """The timeline of a step of the ladder: two tiles of 8 iterations for each consumer group."""
    step: Step = BY_NAME[name]
    trace = matmul.trace(*["*fp16:16"] * 3, *["i32:16"] * 3, target="sm_90a", **step.launch)
    count = 2 * TILES if name == "ping-pong" else TILES
    sizes = {"M": step.tile[0] * count, "N": step.tile[1], "K": ITERATIONS * step.tile[2]}
    return timeline(trace.stages[-1].after, sizes, (count, 1, 1), ctas=1, programs=count)


def of(found: Timeline, kind: str) -> list:
    return [span for span in found.spans if span.kind == kind]


@pytest.mark.parametrize("name", list(BY_NAME))
def test_every_step_multiplies_each_tile_and_its_products_never_overlap(name):
    found = drawn(name)
    products = sorted(of(found, "product"), key=lambda s: s.start)
    assert len(products) == ITERATIONS * TILES * (2 if name == "ping-pong" else 1)
    assert all(a.end <= b.start + 1e-6 for a, b in itertools.pairwise(products))
    assert 0 < found.busy <= 1 and not found.cut


@pytest.mark.parametrize("name", list(BY_NAME))
def test_a_product_begins_after_its_copy_completes(name):
    found = drawn(name)
    landed = {(c.number, c.stage): c for c in of(found, "copy")}
    for product in of(found, "product"):
        assert product.number >= 0
        assert landed[product.number, product.stage].end <= product.start + 1e-6


@pytest.mark.parametrize("name", PIPELINED)
def test_a_stage_is_filled_again_only_when_it_has_been_read(name):
    found = drawn(name)
    for lane in {copy.lane for copy in of(found, "copy")}:
        mine = sorted((c for c in of(found, "copy") if c.lane == lane), key=lambda c: c.start)
        assert len(mine) > 1
        assert all(a.until <= b.start + 1e-6 for a, b in itertools.pairwise(mine))


def test_copies_of_the_next_tile_begin_before_a_persistent_program_has_stored():
    def ahead(name):
        found = drawn(name)
        stored = min(s.start for s in of(found, "store"))
        return sum(c.start < stored for c in of(found, "copy"))

    assert ahead("a warp that copies") == ITERATIONS < ahead("persistent programs")


def test_one_consumer_group_multiplies_while_the_other_stores():
    found = drawn("ping-pong")
    other = {"consumer 0": "consumer 1 MMA", "consumer 1": "consumer 0 MMA"}
    together = [
        (s.lane, p.number)
        for s in of(found, "store")
        for p in of(found, "product")
        if s.lane in other and p.lane == other[s.lane] and p.start < s.end and s.start < p.end
    ]
    assert together
    assert {"consumer 0 MMA", "consumer 1 MMA", "producer"} <= set(found.lanes)


def test_steps_keep_the_tensor_cores_busier():
    for before, after in (
        ("tensor cores", "copies ahead"),
        ("wgmma", "a warp that copies"),
        ("persistent programs", "results by TMA"),
    ):
        assert drawn(before).busy < drawn(after).busy


def test_bytes_are_those_of_the_operands():
    copies = of(drawn("a warp that copies"), "copy")
    assert {copy.bytes for copy in copies} == {2 * 128 * 64 * 2}
    assert {copy.what for copy in copies} == {"a, b"}


def test_the_text_has_one_line_per_lane():
    found = drawn("a warp that copies")
    lines = found.text(60).split("\n")
    assert [line.split("|")[0].rstrip() for line in lines] == list(found.lanes)
    assert {len(line) for line in lines} == {len(lines[0])}
    assert "█" in lines[-1] and "░" in lines[0]


def test_data_dependent_loops_raise_and_long_kernels_are_cut():
    import blocknb
    import blocknb.language as tl

    @blocknb.kernel
    def chosen(x, out, counts, B: tl.constexpr):
        at = tl.arange(0, B)
        tile = at[:, None] * B + at[None, :]
        total = tl.zeros((B, B), tl.float32)
        for _ in range(tl.load(counts)):
            value = tl.load(x + tile)
            total = tl.dot(value, value, total)
        tl.store(out + tile, total)

    trace = chosen.trace("*fp16", "*fp32", "*i32", target="sm_90a", B=64)
    func = trace.stages[-1].after
    assert has_timeline(func)
    with pytest.raises(Undecided, match=r"the for in line \d+ depends on loaded data"):
        timeline(func, {}, (1, 1, 1))
    step = matmul.trace(*["*fp16:16"] * 3, *["i32:16"] * 3, target="sm_90a", **STEPS[4].launch)
    short = timeline(step.stages[-1].after, {"M": 128, "N": 128, "K": 1 << 14}, (1, 1, 1), most=400)
    assert short.cut and np.isfinite(short.end)
