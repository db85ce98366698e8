"""A small GPT of blocknb's layers learns in bf16 as eager PyTorch does: `python tests/pytorch/small_gpt.py` prints the curves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch
from small_gpt import SmallGPT, curve, train
from torch_device import DEVICE


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The products are small: more threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_twenty_steps_follow_eager_and_the_loss_falls() -> None:
    ours, eager = (train(kind, 0, 20, DEVICE) for kind in (True, False))
    assert SmallGPT(True).state_dict().keys() == SmallGPT(False).state_dict().keys()
    assert ours[0] == pytest.approx(eager[0], rel=3e-3)
    torch.testing.assert_close(curve(ours, 5), curve(eager, 5), rtol=0.03, atol=0.0)
    assert curve(ours, 5)[-1] < ours[0] - 1.0


@pytest.mark.full
def test_five_hundred_steps_stay_within_the_spread_of_eagers_seeds() -> None:
    eager = torch.stack([curve(train(False, seed, 500, DEVICE)) for seed in range(5)])
    spread = eager.max(0).values - eager.min(0).values
    for seed in (0, 1):
        ours = curve(train(True, seed, 500, DEVICE))
        assert ours[-1] < ours[0] - 0.5
        assert (ours - eager[seed]).abs().max() <= spread.max()
        assert (ours[-1] - eager[seed][-1]).abs() <= spread[-1]
