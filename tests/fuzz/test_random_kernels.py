"""Random kernels: the interpreter after every pass, the CPU, and ptxas agree with the front end's IR.

A failure prints its seed and the program; `python -m fuzz` makes it small. `--full` runs many more.
"""

from __future__ import annotations

import pytest

from blocknb.codegen import toolchain
from blocknb.passes import barriers
from blocknb.target import Target
from fuzz.generator import generate
from fuzz.program import Line, Program, check_native, check_passes, checked, ptx
from fuzz.shrink import shrink

SAMPLE = range(28)
MANY = range(1000, 1600)
TARGETS = ["sm_90a", "sm_75", "sm_80"]


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_random_kernel_means_the_same_after_every_pass(seed):
    checked(generate(seed), lambda program: check_passes(program, TARGETS[seed % 3]))


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_random_kernel_computes_the_same_on_the_cpu(seed):
    checked(generate(seed), check_native)


def assemble(seeds: range, target: str) -> None:
    programs = [generate(seed) for seed in seeds]
    waiting = [checked(program, lambda p: ptx(p, target)) for program in programs]
    texts = [checked(program, lambda p, wait=wait: wait()) for program, wait in zip(programs, waiting, strict=True)]
    assembly = toolchain.assemble_many(texts, Target.parse(target))
    assert set(assembly.resources) == {program.name for program in programs}


def test_random_kernels_assemble():
    assemble(SAMPLE, "sm_90a")


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("start", MANY[::50])
def test_many_random_kernels_mean_the_same_after_every_pass(start, target):
    for seed in range(start, start + 50):
        checked(generate(seed), lambda program: check_passes(program, target))


@pytest.mark.full
@pytest.mark.parametrize("without", [("simplify",), ("pointers",), ("coalesce",), ("tensorcore",)])
@pytest.mark.parametrize("start", MANY[::150])
def test_many_random_kernels_mean_the_same_without_a_pass(start, without):
    for seed in range(start, start + 25):
        checked(generate(seed), lambda program: check_passes(program, "sm_90a", without))


@pytest.mark.full
@pytest.mark.parametrize("start", MANY[::50])
def test_many_random_kernels_compute_the_same_on_the_cpu(start):
    for seed in range(start, start + 50):
        checked(generate(seed), check_native)


@pytest.mark.full
@pytest.mark.parametrize("target", [*TARGETS, "sm_70", "sm_120a"])
def test_many_random_kernels_assemble(target):
    assemble(MANY[:200], target)


# -- the instrument itself ---------------------------------------------------------------------------------------------


def test_a_seed_gives_one_program():
    assert generate(7) == generate(7)
    assert str(generate(7)) != str(generate(8))


def test_missing_barriers_are_noticed_and_the_program_that_shows_it_is_small(monkeypatch):
    monkeypatch.setattr(barriers, "barriers", lambda func, target, notes: func)

    def check(program: Program) -> None:
        check_passes(program, "sm_90a")

    failing = next(program for program in map(generate, SAMPLE) if fails(program, check))
    small = shrink(failing, check)
    assert fails(small, check)
    assert count(small.body) < min(20, count(failing.body))


def fails(program: Program, check) -> bool:
    try:
        check(program)
    except Exception:
        return True
    return False


def count(body: tuple[Line, ...]) -> int:
    return sum(1 + count(line.body) for line in body)
