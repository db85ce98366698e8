"""The requests for sequences of cells to a worker process of `blocknb.fuzz.worker`. It imports this module before its first request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blocknb.cell_fuzz.cell import CellSequence
from blocknb.cell_fuzz.generate import generate
from blocknb.fuzz.worker import REQUESTS, Setup


def _generated(setup: Setup, seed: int, number: int) -> Iterator[Any]:
    return _given(setup, generate(seed, number))


def _given(setup: Setup, sequence: CellSequence) -> Iterator[Any]:
    """Yields the number of each cell before it runs, and then the outcome."""
    from blocknb.cell_fuzz.shell import run_sequence

    return run_sequence(sequence)


REQUESTS |= {"generated": _generated, "given": _given}
