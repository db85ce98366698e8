"""Random loops with early loads: the IR after every pass and the GPU's LLVM text give the same results and read nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from blocknb import passes
from blocknb.language import types as t
from blocknb.passes.tile import register_prefetch
from blocknb.target import Target
from fuzz.loops import generate
from fuzz.program import Program, asking, check_passes, check_simt, checked

SAMPLE = range(16)
MANY = range(1000, 2000)
TARGETS = ("sm_90a", "sm_75", "sm_80")


def check(program: Program) -> None:
    target = TARGETS[program.seed % 3]
    check_passes(program, target)
    check_simt(program, target)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SAMPLE)
def test_random_loop_gives_the_same_results_with_prefetched_loads(seed):
    checked(generate(seed), check)


@pytest.mark.full
@pytest.mark.parametrize("start", MANY[::50])
def test_many_random_loops_give_the_same_results_with_prefetched_loads(start):
    for seed in range(start, start + 50):
        checked(generate(seed), check)


def test_the_sample_has_loops_with_and_without_prefetch():
    messages: Counter[str] = Counter()
    for seed in SAMPLE:
        _, stages = passes.run(asking(generate(seed).func), Target.parse("sm_90a"))
        notes = [note for stage in stages if stage.name == "register_prefetch" for note in stage.notes]
        messages.update(
            {note.text[:27] for note in notes if note.kind == "info"} | {n.text for n in notes if n.kind == "missed"}
        )
    assert messages["pipelined: loaded 1 iterati"] > 3 and messages["pipelined: loaded 2 iterati"] > 1
    for why in ("its address was loaded in the loop", "an iteration may skip it"):
        assert messages[f"not pipelined: {why}"] > 1


def test_missing_guard_of_a_prefetched_load_is_detected(monkeypatch):
    monkeypatch.setattr(
        register_prefetch.LaterIterations,
        "goes_on",
        lambda iterations, iteration: iterations.builder.const(True, t.int1),
    )
    assert sum(fails(generate(seed)) for seed in SAMPLE[:8]) > 2


def fails(program: Program) -> bool:
    try:
        check(program)
    except Exception:
        return True
    return False
