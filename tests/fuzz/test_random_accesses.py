"""GPU code keeps random orders of loads, stores and atomics, also in strip-mined tiles, and has the necessary barriers."""

from __future__ import annotations

import pytest
from support import replace_pass

from blocknb import passes
from blocknb.passes.memory import strip_mining
from blocknb.passes.support.emission import IN_PIECES, emitted
from blocknb.target import Target
from fuzz.access_order import generate
from fuzz.program import Program, check_passes, check_simt, checked, read
from fuzz.races import Race

SAMPLE = range(100, 124)
MANY = range(1000, 3000)


@pytest.fixture
def few_registers(monkeypatch):
    monkeypatch.setattr(strip_mining, "registers", lambda func: 8)
    monkeypatch.setattr(strip_mining, "piece_of", lambda func: 4)


@pytest.mark.parametrize("seed", SAMPLE)
def test_accesses_keep_their_order_when_tiles_are_strip_mined(seed, few_registers):
    checked(generate(seed), check_simt)


@pytest.mark.parametrize("seed", SAMPLE[:6])
def test_accesses_keep_their_order_after_every_pass(seed):
    checked(generate(seed), lambda program: check_passes(program, "sm_90a"))


@pytest.mark.full
@pytest.mark.parametrize("start", MANY[::100])
def test_many_accesses_keep_their_order_when_tiles_are_strip_mined(start, few_registers):
    for seed in range(start, start + 100):
        checked(generate(seed), check_simt)


@pytest.mark.full
@pytest.mark.parametrize("start", range(0, 60, 10))
def test_accesses_of_tiles_beyond_the_registers_keep_their_order(start):
    for seed in range(start, start + 10):
        checked(generate(seed, 8192), check_simt)


def test_the_sample_strip_mines_some_tiles_and_not_others(few_registers):
    found = []
    for seed in SAMPLE:
        func, _ = passes.run(generate(seed).func, Target.parse("sm_90a"))
        found.append(bool(emitted(func, IN_PIECES)))
    assert 3 <= sum(found) <= len(found) - 3


def test_missing_barrier_is_a_race(monkeypatch):
    replace_pass(monkeypatch, "barriers", lambda func, target, notes: func)
    assert sum(races(generate(seed)) for seed in SAMPLE[:12]) > 2


MEETING = """
# seed 1: grid 2, 1 warps
def random_1(a, b):
    pid = bl.program_id(0)
    at = bl.arange(0, 32)
    x = bl.load(a + at)
    bl.store(b + pid * 0 + at, x + {what})

# a: 32 x i32, whole, shifted by 0, within 0.0
# b: 32 x i32, poison, shifted by 0, within 0.0
"""


@pytest.mark.parametrize(("what", "race"), [("pid", True), ("1", False)])
def test_programs_that_write_different_values_to_one_place_race(what, race):
    assert races(read(MEETING.format(what=what))) == race


def races(program: Program) -> bool:
    try:
        check_simt(program)
    except Race:
        return True
    return False
