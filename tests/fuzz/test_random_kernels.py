"""Random kernels: the IR after every pass, CPU code and the GPU's LLVM text compute the same as the front end's IR.

A failure prints its seed and the program, and `python -m fuzz` reduces it. The reduced program belongs in found/, with every program that
once failed. `--full` runs many more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import replace_pass

from blocknb.codegen import batch_assembly
from blocknb.target import Target
from fuzz.generator import generate
from fuzz.program import Line, Program, check_native, check_passes, check_simt, checked, ptx, read
from fuzz.shrink import shrink

SAMPLE = range(16)
MANY = range(1000, 1600)
NATIVE = range(1000, 6000)  # on the CPU, where a kernel takes a quarter of a second
TARGETS = ["sm_90a", "sm_75", "sm_80"]
FOUND = {file.stem: file.read_text() for file in sorted((Path(__file__).parent / "found").glob("*.txt"))}


@pytest.mark.parametrize("name", FOUND)
def test_found_failures_stay_fixed(name):
    program = read(FOUND[name])
    for target in ("sm_90a", "sm_75"):
        checked(program, lambda program, target=target: check_passes(program, target))
        checked(program, lambda program, target=target: check_simt(program, target))
    checked(program, check_native)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SAMPLE)
def test_random_kernel_keeps_its_results_after_every_pass(seed):
    checked(generate(seed), lambda program: check_passes(program, TARGETS[seed % 3]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", SAMPLE)
def test_random_kernel_gives_the_same_results_on_the_cpu(seed):
    checked(generate(seed), check_native)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SAMPLE)
def test_random_kernel_gives_the_same_results_as_gpu_code(seed):
    checked(generate(seed), lambda program: check_simt(program, TARGETS[seed % 3]))


def assemble(seeds: range, target: str) -> None:
    programs = [generate(seed) for seed in seeds]
    waiting = [checked(program, lambda p: ptx(p, target)) for program in programs]
    texts = [checked(program, lambda p, wait=wait: wait()) for program, wait in zip(programs, waiting, strict=True)]
    assembly = batch_assembly.assemble_many(texts, Target.parse(target))
    assert set(assembly.resources) == {program.name for program in programs}


def test_random_kernels_assemble(request):
    assemble(SAMPLE if request.config.getoption("--full") else SAMPLE[::2], "sm_90a")
    found = [checked(read(text), lambda p: ptx(p, "sm_90a"))() for text in FOUND.values()]
    batch_assembly.assemble_many(found, Target.parse("sm_90a"))


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("start", MANY[::50])
def test_many_random_kernels_keep_their_results_after_every_pass(start, target):
    for seed in range(start, start + 50):
        checked(generate(seed), lambda program: check_passes(program, target))


@pytest.mark.full
@pytest.mark.parametrize("without", [("simplify",), ("pointers",), ("coalesce",), ("select_mma",)])
@pytest.mark.parametrize("start", MANY[::150])
def test_many_random_kernels_keep_their_results_without_a_pass(start, without):
    for seed in range(start, start + 25):
        checked(generate(seed), lambda program: check_passes(program, "sm_90a", without))


@pytest.mark.full
@pytest.mark.parametrize("start", NATIVE[::50])
def test_many_random_kernels_give_the_same_results_on_the_cpu(start):
    for seed in range(start, start + 50):
        checked(generate(seed), check_native)


@pytest.mark.full
@pytest.mark.parametrize("target", [*TARGETS, "sm_70"])
@pytest.mark.parametrize("start", MANY[::50])
def test_many_random_kernels_give_the_same_results_as_gpu_code(start, target):
    for seed in range(start, start + 50):
        checked(generate(seed), lambda program: check_simt(program, target))


@pytest.mark.full
@pytest.mark.parametrize("target", [*TARGETS, "sm_70", "sm_120a"])
def test_many_random_kernels_assemble(target):
    assemble(MANY[:200], target)


# -- the generator itself ----------------------------------------------------------------------------------------------


def test_printed_program_can_be_read_back():
    for seed in SAMPLE:
        assert read(str(generate(seed))) == generate(seed)


def test_a_seed_determines_the_program():
    assert generate(7) == generate(7)
    assert str(generate(7)) != str(generate(8))


def test_missing_barriers_are_detected_and_the_failing_program_is_reduced(monkeypatch):
    replace_pass(monkeypatch, "barriers", lambda func, target, notes: func)

    def check(program: Program) -> None:
        check_passes(program, "sm_90a")

    shortest_first = sorted(map(generate, SAMPLE), key=lambda program: len(program.source))
    failing = next(program for program in shortest_first if fails(program, check))
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
