"""Cross entropy, alone and fused with its linear layer: against float64, and the failures that users report of other implementations."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch
from test_nn_layers import LIMITS, classes, compare, random
from torch.nn import functional as F
from torch_device import DEVICE

from blocknb.torch import nn
from blocknb.torch.nn import linear_loss_plans as plans

Tensor = torch.Tensor


@pytest.fixture(params=[2, 64])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Classes per block: several blocks with an incomplete last one, and one block."""
    monkeypatch.setattr(plans, "wanted_block", lambda rows: request.param)
    return request.param


@pytest.mark.sampled(2, each=["reduction", "m"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 33), (3, 4099)])
def test_cross_entropy_matches_torch_and_float64(m: int, n: int, reduction: str) -> None:
    target = classes(m, n)
    compare(
        lambda x: nn.cross_entropy(x, target, reduction=reduction),
        lambda x: F.cross_entropy(x, target, reduction=reduction),
        [3 * random(m, n).detach().requires_grad_()],
        torch.float32,
        factor=3.0,
    )
    assert nn.cross_entropy(torch.randn(m, n).bfloat16(), target).dtype == torch.bfloat16


def test_cross_entropy_passes_gradcheck_in_float64() -> None:
    target = classes(4, 7)
    for reduction in ("mean", "sum", "none"):
        assert torch.autograd.gradcheck(lambda x, r=reduction: nn.cross_entropy(x, target, reduction=r), random(4, 7))


def test_a_vocabulary_beyond_65536_and_one_unbatched_row_work() -> None:
    x = random(2, 70001, dtype=torch.float32)
    target = torch.tensor([70000, 5])
    torch.testing.assert_close(nn.cross_entropy(x, target), F.cross_entropy(x, target))
    one = x.detach()[0].requires_grad_()
    (gradient,) = torch.autograd.grad(nn.cross_entropy(one, target[0]), one)
    (exact,) = torch.autograd.grad(F.cross_entropy(one, target[0]), one)
    torch.testing.assert_close(gradient, exact, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
def test_a_confident_bf16_prediction_keeps_the_gradient_of_the_true_class(fused: bool, block: int) -> None:
    """p - 1 is far below the spacing of bf16 near 1, so it must not be computed from a probability that is rounded to bf16."""
    logits = torch.zeros(2, 50)
    logits[:, 3] = 12.0
    target = torch.tensor([3, 3])
    exact = torch.softmax(logits.double(), 1)[0, 3] - 1
    x = logits.bfloat16().requires_grad_()
    if fused:
        loss = nn.linear_cross_entropy(x, torch.eye(50).bfloat16(), target, reduction="sum")
    else:
        loss = nn.cross_entropy(x, target, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, x)
    assert -1e-3 < exact < 0
    torch.testing.assert_close(gradient[:, 3].double(), exact.expand(2), rtol=8e-3, atol=0)  # two roundings


def linear_loss(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(F.linear(x, weight, bias), target, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy_passes_gradcheck_in_float64(reduction: str, block: int) -> None:
    target = classes(4, 7)
    options = {"reduction": reduction}
    assert torch.autograd.gradcheck(
        lambda x, w, b: nn.linear_cross_entropy(x, w, target, b, **options), (random(4, 3), random(7, 3), random(7))
    )


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_linear_cross_entropy_matches_float64(dtype: Any, block: int) -> None:
    target = classes(9, 65)
    inputs = [random(9, 17), random(65, 17), random(65)]
    compare(
        lambda x, w, b: nn.linear_cross_entropy(x, w, target, b),
        lambda x, w, b: linear_loss(x, w, b, target),
        inputs,
        dtype,
        factor=5.0,  # the logits are rounded to the dtype, as those of a linear layer
    )


def test_weights_gradient_in_bf16_is_as_good_with_many_blocks_as_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of chunks in bf16 lose small terms: with 512 rows the error must stay that of one rounding."""
    x, weight, target = random(512, 8, dtype=torch.bfloat16), random(40, 8, dtype=torch.bfloat16), classes(512, 40)
    exact = torch.autograd.grad(
        linear_loss(x.double(), w := weight.detach().double().requires_grad_(), None, target), w
    )[0]
    (unfused,) = torch.autograd.grad(linear_loss(x, weight, None, target), weight)
    for step in (8, 40):
        monkeypatch.setattr(plans, "wanted_block", lambda rows, step=step: step)
        (fused,) = torch.autograd.grad(nn.linear_cross_entropy(x, weight, target), weight)
        error, other = ((g.double() - exact).norm() / exact.norm() for g in (fused, unfused))
        assert error < 1.5 * other


def test_training_with_the_fused_loss_in_bf16_follows_the_unfused_one(block: int) -> None:
    losses = {}
    for fused in (False, True):
        torch.manual_seed(7)
        x, target = torch.randn(64, 16).bfloat16(), torch.randint(0, 10, (64,))
        layer = torch.nn.Linear(16, 10, dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(layer.parameters(), 0.02)
        for _ in range(25):
            optimizer.zero_grad()
            if fused:
                loss = nn.linear_cross_entropy(x, layer.weight, target, layer.bias)
            else:
                loss = F.cross_entropy(layer(x).float(), target)
            loss.backward()
            optimizer.step()
        losses[fused] = loss.item()
    assert losses[False] < 2.0
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


def test_autocast_casts_as_for_a_linear_layer_and_gradients_keep_the_dtypes_of_parameters(block: int) -> None:
    x, weight, bias = (random(*s, dtype=torch.float32) for s in ((4, 6), (9, 6), (9,)))
    target = classes(4, 9)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = nn.linear_cross_entropy(x, weight, target, bias)
        other = F.cross_entropy(F.linear(x, weight, bias).float(), target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, other, rtol=1e-3, atol=1e-3)
    assert {g.dtype for g in torch.autograd.grad(loss, (x, weight, bias))} == {torch.float32}
    with pytest.raises(ValueError, match="`weight` is torch.float32, and `x` is torch.bfloat16: use torch.autocast"):
        nn.linear_cross_entropy(x.bfloat16(), weight, target)


def test_a_frozen_weight_gets_no_gradient_and_costs_none(block: int) -> None:
    x, weight, target = random(4, 6, dtype=torch.float32), random(9, 6, dtype=torch.float32).detach(), classes(4, 9)
    (gradient,) = torch.autograd.grad(nn.linear_cross_entropy(x, weight, target), x)
    (exact,) = torch.autograd.grad(linear_loss(x, weight, None, target), x)
    torch.testing.assert_close(gradient, exact)


def test_compile_traces_both_losses_whole_with_dynamic_rows() -> None:
    torch._dynamo.reset()

    def both(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return nn.linear_cross_entropy(x, weight, target) + nn.cross_entropy(x @ weight.t(), target)

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    weight = random(9, 6, dtype=torch.float32)
    for m in (3, 5):
        x, target = random(m, 6, dtype=torch.float32), classes(m, 9)
        found = torch.autograd.grad(compiled(x, weight, target), (x, weight))
        exact = torch.autograd.grad(2 * linear_loss(x, weight, None, target), (x, weight))
        torch.testing.assert_close(found, exact)


def test_modules_have_the_state_of_torchs_and_wrong_inputs_are_one_clear_error() -> None:
    assert set(nn.LinearCrossEntropyLoss(4, 9).state_dict()) == set(torch.nn.Linear(4, 9).state_dict())
    x, target = torch.randn(3, 9), torch.tensor([1, 2, 3])
    torch.testing.assert_close(nn.CrossEntropyLoss()(x, target), torch.nn.CrossEntropyLoss()(x, target))
    for call, message in (
        (lambda: nn.cross_entropy(x, target.float()), "`target` is torch.float32, but classes are int64"),
        (lambda: nn.cross_entropy(x, target[:2]), "`target` has the shape .2,., but `logits` needs .3,."),
        (lambda: nn.cross_entropy(x[None], target), "pass logits.flatten"),
        (lambda: nn.cross_entropy(x, target, reduction="max"), "one of mean, sum, none"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), "has no label_smoothing"),
        (lambda: nn.linear_cross_entropy(x, torch.randn(5, 8), target), "must be .M, H. and .V, H."),
    ):
        with pytest.raises(ValueError, match=message):
            call()
