"""Every name of the language on a GPU, over dtypes and shapes: a sample in few kernels, and all of it with --full."""

from __future__ import annotations

import pytest
import seeds
from matrix.groups import batches
from test_cases import run

pytest.importorskip("cupy")
SAMPLE = {case.name: case for case in batches("gpu", full=False)}
WHOLE = {case.name: case for case in batches("gpu", full=True)}


def on_gpu(case):
    arguments = case.make(seeds.rng())
    case.check(arguments, run(case, arguments))


@pytest.mark.parametrize("name", SAMPLE)
def test_each_name_matches_numpy(name):
    on_gpu(SAMPLE[name])


@pytest.mark.full
@pytest.mark.parametrize("name", WHOLE)
def test_each_name_matches_numpy_in_every_dtype_and_shape(name):
    on_gpu(WHOLE[name])
