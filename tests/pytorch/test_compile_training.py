"""Each model of the list, compiled with `backend="blocknb"`, trains as eager does in float64: loss and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch_models import MODELS, loss_of

import blocknb.torch

#: The blocks of "small_gpt" are such blocks.
PART_OF_ANOTHER = {"transformer_block"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in PART_OF_ANOTHER else ()) for name in MODELS]
)
def test_a_compiled_model_has_the_loss_and_the_gradients_of_eager_in_float64(name):
    model, value = MODELS[name]()
    reference = copy.deepcopy(model).double()
    expected = loss_of(reference(value.double() if value.is_floating_point() else value))
    expected.backward()
    found = loss_of(torch.compile(model, backend=blocknb.torch.backend)(value))
    found.backward()
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-4, atol=1e-5)
    for (parameter, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        scale = theirs.grad.abs().max().item()
        torch.testing.assert_close(
            ours.grad,
            theirs.grad,
            check_dtype=False,
            rtol=1e-4,
            atol=2e-5 * max(scale, 1),
            msg=lambda m: f"{parameter}: {m}",
        )


def test_the_list_has_at_least_20_models():
    assert len(MODELS) >= 20
