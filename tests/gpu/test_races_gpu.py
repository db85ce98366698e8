"""Every racy kernel of the corpus is found on a GPU, and no right one is accused. `--full` runs each 50 times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from races import plain_races, right_kernels, synchronization_races
from races.corpus import RACY, RIGHT, check, launch

import blocknb

cupy = pytest.importorskip("cupy")
assert plain_races and synchronization_races and right_kernels
#: Kernels whose arrays share memory, which a copy to the device would separate.
SHARE = ("arrays_that_overlap", "neighbouring_views", "interleaved_views")


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> int:
    return 50 if request.config.getoption("--full") else 3


def on_device(x: np.ndarray) -> Any:
    """A copy of an array on the device."""
    return cupy.asarray(np.ascontiguousarray(x))


@pytest.mark.parametrize("name", [name for name in RACY if name not in SHARE])
def test_a_race_is_found_on_a_gpu(name, runs):
    for _ in range(runs):
        check(RACY[name], launch(RACY[name], on_device))


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in SHARE])
def test_a_right_kernel_is_not_accused_on_a_gpu(name, runs):
    for _ in range(runs):
        assert launch(RIGHT[name], on_device) is None


def test_views_of_one_array_share_their_cells(runs):
    base = cupy.arange(80, dtype=cupy.float32)
    case = RACY["arrays_that_overlap"]
    with pytest.raises(blocknb.RaceError) as caught:
        case.kernel[case.grid](x=base[:64], view=base[16:], B=16, checked="race")
    check(case, caught.value)
    pairs = cupy.zeros((64, 2), cupy.float32)
    right_kernels.interleaved_views[(4,)](pairs[:, 0], pairs[:, 1], B=16, checked="race")
    right_kernels.neighbouring_views[(4,)](base[:64], cupy.zeros(64, cupy.float32), B=16, checked="race")
