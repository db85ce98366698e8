"""Random kernels give right results: a fixed sample of those of `blocknb fuzz`, and more with --full."""

from __future__ import annotations

import pytest

from blocknb.fuzz import execute, source
from blocknb.fuzz.generate import generate
from blocknb.fuzz.shrink import well_formed


def check(seed: int, first: int, count: int) -> None:
    kernels = [generate(seed, i) for i in range(first, first + count)]
    for kernel, outcome in zip(kernels, execute.attempts(kernels), strict=True):
        command = f"blocknb fuzz --seed {seed} --first {kernel.name.removeprefix('kernel')} --count 1"
        shown = f"{outcome.kind}: {outcome.detail}\n{execute.describe(kernel)}\n{command}"
        assert outcome.kind in ("right", "ambiguous"), shown


def test_a_sample_of_random_kernels_agrees_with_the_evaluator() -> None:
    check(2026, 0, 20)


@pytest.mark.full
def test_a_larger_sample_of_random_kernels_agrees_with_the_evaluator() -> None:
    check(2026, 20, 20)


@pytest.mark.full
@pytest.mark.parametrize("part", range(20))
def test_more_random_kernels_agree_with_the_evaluator(part: int) -> None:
    check(2027, 40 * part, 40)


def test_a_kernel_depends_only_on_its_seed_and_number() -> None:
    together = [generate(3, i) for i in range(6)]
    alone = generate(3, 4)
    assert source.one(alone) == source.one(together[4])
    assert alone.arguments == together[4].arguments
    assert source.one(generate(4, 4)) != source.one(alone)


def test_generated_kernels_are_well_formed() -> None:
    for i in range(150):
        kernel = generate(5, i)
        assert well_formed(kernel), source.one(kernel)


def test_few_kernels_are_ambiguous_and_none_is_invalid() -> None:
    from blocknb.fuzz import data
    from blocknb.fuzz.evaluate import evaluate
    from blocknb.fuzz.numbers import Ambiguous

    ambiguous = 0
    for i in range(60):
        kernel = generate(6, i)
        try:
            evaluate(kernel, data.inputs(kernel, 0), 0)
        except Ambiguous:
            ambiguous += 1
    assert ambiguous <= 3
