"""Random kernels on a GPU give the evaluator's results: a sample of `blocknb fuzz --target cuda`."""

from __future__ import annotations

import pytest

from blocknb.fuzz import execute
from blocknb.fuzz.generate import generate


def check(seed: int, first: int, count: int) -> None:
    kernels = [generate(seed, i) for i in range(first, first + count)]
    for kernel, outcome in zip(kernels, execute.attempts(kernels, "cuda", 8), strict=True):
        shown = f"{outcome.kind}: {outcome.detail}\n{execute.describe(kernel)}"
        assert outcome.kind in ("right", "ambiguous"), shown


def test_sample_of_random_kernels_is_correct_on_a_gpu() -> None:
    check(2028, 0, 48)


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_more_random_kernels_are_correct_on_a_gpu(part: int) -> None:
    check(2029, 64 * part, 64)
