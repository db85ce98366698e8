"""Sentences about wrong launches, each with its level, its line and its words; right launches of the same shape have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl

N = 1000
X = np.random.default_rng(0).standard_normal(N).astype(np.float32)


def out(n: int = N) -> np.ndarray:
    return np.zeros(n, np.float32)


@blocknb.kernel
def stepped(x, out, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.program_id(0), mask=at < n)


@blocknb.kernel
def without_id(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * tl.program_id(0))


@blocknb.kernel
def shifted(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at + 1, mask=at + 1 < n), mask=at < n)


@blocknb.kernel
def storeless(x, out, BLOCK: tl.constexpr):
    tl.load(x + tl.arange(0, BLOCK))


@blocknb.kernel
def strided(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def colliding(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at // 2, tl.load(x + at))


@blocknb.kernel
def mixed(x, total, BLOCK: tl.constexpr):
    if tl.program_id(0) == 0:
        tl.store(total, 0.0)
    tl.atomic_add(total, tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))))


@blocknb.kernel
def peeking(x, total, out, BLOCK: tl.constexpr):
    seen = tl.load(total)
    tl.atomic_add(total, tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))), sem="relaxed")
    tl.store(out + tl.program_id(0), seen)


@blocknb.kernel
def unmasked(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@dataclass(frozen=True)
class Case:
    call: Callable[[], Any]
    level: str
    kind: str
    text: str
    line: str = "tl.store"
    hint: str = ""


SEVERAL = "programs 0 and 1 both store element 127 of `out` (7 elements have several writers)"
CASES = {
    "overlap": Case(lambda: stepped.footprint(8)(X, out(), N, STEP=127, BLOCK=128), "error", "race", SEVERAL),
    "no program id": Case(
        lambda: without_id.footprint(4)(X, out(), BLOCK=128), "error", "race", "both store element 0 of `out`",
        hint="every program stores the same elements: is program_id in the address?",
    ),
    "in place": Case(
        lambda: shifted.footprint(8)(X.copy(), N, BLOCK=128), "error", "race",
        "program 0 loads element 128 of `x`, which program 1 stores", "tl.load",
    ),
    "no store": Case(lambda: storeless.footprint(1)(X, out(), BLOCK=64), "error", "no store", "the kernel has no store", "def storeless"),
    "strided": Case(
        lambda: strided.footprint(1)(np.zeros(128, np.float32)[::2], out(), 64, BLOCK=64), "warning", "strides",
        "`x` is a strided view, and the kernel reads it as contiguous", "tl.load",
    ),
    "strided output": Case(
        lambda: strided.footprint(1)(X, np.zeros(128, np.float32)[::2], 64, BLOCK=64), "error", "strides",
        "`out` is a strided view, and the kernel writes it as contiguous",
    ),
    "lanes": Case(
        lambda: colliding.footprint(1)(X, out(), BLOCK=64), "error", "lanes", "program 0 stores several values to one element of `out`"
    ),
    "store and atomic": Case(
        lambda: mixed.footprint(4)(X, out(1), BLOCK=128), "error", "race", "updates element 0 of `total`, which program 0 stores",
        "tl.atomic_add",
    ),
    "load and atomic": Case(
        lambda: peeking.footprint(4)(X, out(1), out(4), BLOCK=128), "warning", "race", "loads element 0 of `total`, which program",
        "tl.load(total)",
    ),
    "outside": Case(
        lambda: unmasked.footprint(8)(X, out(), BLOCK=128), "error", "outside",
        "program 7 loads element 1000 of `x`, which has 1000 elements",
        "tl.load",
    ),
    "holes": Case(
        lambda: stepped.footprint(7)(X, out(), N, STEP=128, BLOCK=128), "remark", "holes",
        "`out`: 104 of 1000 elements are never stored: 896:1000",
    ),
    "unread": Case(
        lambda: stepped.footprint(7)(X, out(), N, STEP=128, BLOCK=128), "remark", "unread",
        "`x`: 104 of 1000 elements are never loaded: 896:1000", "tl.load",
    ),
    "idle": Case(
        lambda: stepped.footprint(N)(X, out(), N, STEP=128, BLOCK=128), "remark", "idle",
        "992 of 1000 programs touch nothing: the grid is larger than the work", "",
    ),
    "all idle": Case(
        lambda: stepped.footprint(4)(X, out(), 0, STEP=128, BLOCK=128), "warning", "idle", "no program touches any element", "",
    ),
    "two axes": Case(
        lambda: without_id.footprint((2, 3))(X, out(), BLOCK=64), "error", "race", "programs (0, 0) and (1, 2) both store",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_launch_has_its_sentence(name: str) -> None:
    case, found = CASES[name], CASES[name].call()
    said = [f for f in found.findings if f.kind == case.kind]
    assert [(f.level, case.text in f.text) for f in said][:1] == [(case.level, True)], str(found)
    finding = next(f for f in said if case.text in f.text)
    assert case.hint in finding.hint
    if case.line:
        assert finding.loc is not None
        assert case.line in finding.loc.excerpt()
        assert finding.short.endswith(")")
    levels = [f.level for f in found.findings]
    assert levels == sorted(levels, key=("error", "warning", "remark").index)


def test_a_race_of_two_lines_names_both() -> None:
    (race,) = shifted.footprint(8)(X.copy(), N, BLOCK=128).errors
    assert race.loc is not None
    assert race.other is not None
    assert "tl.load" in race.loc.excerpt()
    assert "tl.store" in race.other.excerpt()


@blocknb.kernel
def agreeing(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * (BLOCK - 1) + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def alike(x, out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK) // 2, 3.0)


@blocknb.kernel
def last_one(x, partial, ticket, out, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    p = tl.program_id(0)
    tl.store(partial + p, tl.sum(tl.load(x + p * BLOCK + tl.arange(0, BLOCK))))
    if tl.atomic_add(ticket, 1) == PROGRAMS - 1:
        tl.store(out, tl.sum(tl.load(partial + tl.arange(0, PROGRAMS))))


@blocknb.kernel
def locked(x, lock, out, BLOCK: tl.constexpr):
    value = tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out, tl.load(out) + value)
    tl.atomic_xchg(lock, 0)


@blocknb.kernel
def split(x, out, BLOCK: tl.constexpr):
    tl.atomic_add(out + tl.arange(0, BLOCK), tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))


@blocknb.kernel
def printed(x, BLOCK: tl.constexpr):
    tl.device_print("x", tl.load(x + tl.arange(0, BLOCK)))


RIGHT = {
    "equal values": lambda: agreeing.footprint(8)(X, out(), N, BLOCK=128),
    "equal lanes": lambda: alike.footprint(1)(X, out(), BLOCK=64),
    "a ticket": lambda: last_one.footprint(4)(X, out(4), np.zeros(1, np.int32), out(1), BLOCK=128, PROGRAMS=4),
    "a lock": lambda: locked.footprint(4)(X, np.zeros(1, np.int32), out(1), BLOCK=128),
    "atomics": lambda: split.footprint(4)(X, out(128), BLOCK=128),
    "prints": lambda: printed.footprint(1)(X, BLOCK=64),
    "in place": lambda: stepped.footprint(8)(*[X.copy()] * 2, N, STEP=128, BLOCK=128),
    "part of a buffer": lambda: stepped.footprint(2)(X, out(5000), 200, STEP=128, BLOCK=128),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_launch_is_not_accused(name: str) -> None:
    found = RIGHT[name]()
    assert not found.problems, str(found)
    assert not found.sampled


def test_equal_values_are_a_remark() -> None:
    (remark,) = (f for f in RIGHT["equal values"]().findings if f.kind == "race")
    assert remark.level == "remark"
    assert remark.text == "programs 0 and 1 both store element 127 of `out`, with the same value"


def test_a_removed_lock_is_a_race() -> None:
    @blocknb.kernel
    def unlocked(x, out, BLOCK: tl.constexpr):
        value = tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
        tl.store(out, tl.load(out) + value)

    kinds = {f.text.split(":")[0] for f in unlocked.footprint(4)(X, out(1), BLOCK=128).errors}
    assert kinds == {"race"}


@blocknb.kernel
def loads_what_it_adds_to(x, out):
    tl.atomic_add(x, 1.0)
    tl.store(out + tl.program_id(0), tl.load(x))


@blocknb.kernel
def swaps_beside_a_load(x, out):
    tl.atomic_cas(x, 1, 2, sem="relaxed")
    tl.store(out + tl.program_id(0), tl.load(x))


def test_a_load_after_an_atomic_of_the_same_program_is_no_ticket():
    (finding,) = loads_what_it_adds_to.footprint(4)(np.zeros(1, np.float32), out(4)).problems
    assert "loads element 0 of `x`, which program" in finding.text
    assert "updates atomically" in finding.text


def test_a_load_of_what_a_swap_may_change_is_a_remark():
    found = swaps_beside_a_load.footprint(4)(np.zeros(1, np.int32), np.zeros(4, np.int32))
    assert not found.problems
    assert any("updates atomically" in finding.text for finding in found.findings)
