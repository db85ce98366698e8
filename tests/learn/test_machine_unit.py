"""The answers to the predictions of unit 3 are what the card shows for the kernels of its notebook."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import learn
from blocknb.learn.units.unit03_the_machine import sectors
from blocknb.notebook.accesses import accesses


@blocknb.kernel
def strided(x, out, STEP: tl.constexpr, OFFSET: tl.constexpr):
    i = tl.arange(0, 32)
    tl.store(out + i, tl.load(x + OFFSET + STEP * i))


@pytest.mark.parametrize(
    ("name", "step", "offset"),
    [
        ("predict-sectors-1", 1, 0),
        ("predict-sectors-2", 2, 0),
        ("predict-sectors-8", 8, 0),
        ("predict-sectors-offset", 1, 1),
        ("predict-sectors-column", 64, 0),
    ],
)
def test_the_sectors_of_a_prediction_are_those_of_the_compiled_load(name: str, step: int, offset: int) -> None:
    x, out = np.zeros(32 * step + offset, np.float32), np.zeros(32, np.float32)
    load = accesses(lambda: strided[1,](x, out, STEP=step, OFFSET=offset, num_warps=1)).rows[0]
    assert (load.name, load.requests, load.sectors) == ("load", 1, sectors(step, offset))
    assert learn.check(name, load.sectors).passed


def test_the_wrong_answers_of_the_course_have_other_values_than_the_right_one() -> None:
    for item in learn.exercises(3):
        if isinstance(item, learn.Prediction):
            assert not [text for value, text in item.wrong if learn.check(item, value).passed]
