"""Mistakes of beginners are named at their line by `%%blockkernel --check` without a GPU, and right cells are not accused."""

from __future__ import annotations

import gc

import pytest
from corpus import Entry, Shell, entries

WRONG, RIGHT = entries("wrong"), entries("right")
#: Mistakes that `--check` calls wrong without the cause or the line, or does not find.
OPEN = frozenset(
    (
        "a lock that no program releases in order",
        "a tile's offset overflows before it reaches the pointer",
        "arrays of NumPy and of the GPU",
        "strides in bytes",
        "the kernel returns its tile",
    )
)
#: The share of the corpus that is named, as a floor for the whole corpus and not for a chosen part of it.
NAMED = 0.969


@pytest.fixture(scope="module")
def shell():
    # IPython collects garbage before each cell. What earlier tests left stays frozen, which would take it a second each time.
    gc.collect(1)
    gc.freeze()
    yield Shell()
    gc.unfreeze()


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", sorted(set(WRONG) - OPEN))
def test_a_mistake_is_named_at_its_line(shell: Shell, name: str):
    entry: Entry = WRONG[name]
    told = shell.run(entry)
    assert not told.missing(entry), told.text


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_right_cell_is_not_accused(shell: Shell, name: str):
    told = shell.run(RIGHT[name])
    assert not told.accused, told.text


def test_the_named_share_of_the_whole_corpus_is_high():
    assert set(WRONG) >= OPEN
    assert len(set(WRONG) - OPEN) / len(WRONG) >= NAMED
    assert len(WRONG) >= 160 and len(RIGHT) >= 47
