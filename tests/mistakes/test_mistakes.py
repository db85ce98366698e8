"""Mistakes of beginners are named at their line by `%%blockkernel --check` without a GPU, and right cells are not accused."""

from __future__ import annotations

import pytest
from corpus import Entry, Shell, entries

WRONG, RIGHT = entries("wrong"), entries("right")
#: Mistakes that `--check` calls wrong without the cause or the line, or does not find.
OPEN = frozenset(
    (
        "`&` without parentheses",
        "a barrier is taken for one between programs",
        "a lock that no program releases in order",
        "a loop that never runs",
        "a maximum of negative numbers without `other`",
        "a minimum without `other`",
        "a product of a matrix and a vector",
        "a program reads what another one stores",
        "a softmax with other=0",
        "a tile's offset overflows before it reaches the pointer",
        "a transpose in place",
        "a transposed view is read as contiguous",
        "an online maximum that starts at zero",
        "arrays of NumPy and of the GPU",
        "atomics add to an output of np.empty",
        "fractions are stored to integers",
        "negative numbers are stored to unsigned integers",
        "np.zeros for an accumulator",
        "strides in bytes",
        "the accumulator is half precision",
        "the accumulator is overwritten instead of added to",
        "the accumulator of tl.dot is dropped",
        "the arguments are in another order",
        "the division by zero in a lane that tl.where discards",
        "the kernel returns its tile",
        "the mean subtracted from masked lanes enters the variance",
        "the output is read before it is written",
        "the output of float64 for a result of float32",
        "the product of small integers overflows",
        "the result overflows half precision",
        "the sum of bytes",
        "tl.where does not guard a store",
    )
)


#: A right cell that `--check` warns about: an array without elements has no mask that is on.
ACCUSED = frozenset({"a launch of nothing"})


@pytest.fixture(scope="module")
def shell():
    return Shell()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", sorted(set(WRONG) - OPEN))
def test_a_mistake_is_named_at_its_line(shell: Shell, name: str):
    entry: Entry = WRONG[name]
    told = shell.run(entry)
    assert not told.missing(entry), told.text


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", sorted(set(RIGHT) - ACCUSED))
def test_a_right_cell_is_not_accused(shell: Shell, name: str):
    told = shell.run(RIGHT[name])
    assert not told.accused, told.text


def test_the_corpus_is_large_enough():
    assert len(set(WRONG) - OPEN) >= 76 and len(RIGHT) >= 40
    assert set(WRONG) >= OPEN
