"""Random kernels on a GPU against the interpreter, with fresh seeds in every run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import seeds
from fuzz.access_order import generate as generate_places
from fuzz.generator import generate
from fuzz.loops import generate as generate_loop
from fuzz.program import Program, check_gpu

from blocknb.errors import AccessError

cupy = pytest.importorskip("cupy")

COUNT = 40  # kernels; those with big tiles take seconds each


pytestmark = pytest.mark.usefixtures("fresh_cache")


def new_seeds(count: int) -> list[int]:
    return [int(seed) for seed in seeds.rng().integers(1 << 31, size=count)]


def run(program_seeds: list[int], generate: Callable[[int], Program] = generate) -> None:
    """Reports every failure. A GPU fault ends the run, because the context is lost."""
    failures, done = [], 0
    for seed in program_seeds:
        program = generate(seed)
        done += 1
        try:
            check_gpu(program)
        except Exception as error:
            failures.append((len(program.source), seed, f"{type(error).__name__}: {error}\n\n{program}"))
            if isinstance(error, (AccessError, cupy.cuda.runtime.CUDARuntimeError)):
                break
    if failures:
        failures.sort()
        failing = ", ".join(str(seed) for _, seed, _ in failures)
        pytest.fail(
            f"{len(failures)} of {done} failed; seeds {failing}. The shortest:\n{failures[0][2]}", pytrace=False
        )


def test_random_kernels_give_the_same_results_on_the_gpu():
    run(new_seeds(COUNT))


def test_random_loops_with_prefetch_give_the_same_results_on_the_gpu():
    run(new_seeds(COUNT), generate_loop)


def test_random_accesses_of_big_tiles_keep_their_order_on_the_gpu():
    run(new_seeds(COUNT // 4), lambda seed: generate_places(seed, 8192))


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_random_kernels_give_the_same_results_on_the_gpu(part):
    run(new_seeds(100))
