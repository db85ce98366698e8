"""Forward mode of operators: a rule of the user, one derived from the gradient, and one clear error where neither exists."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch
from test_ops import cube, launch, random, square
from torch_device import DEVICE

import blocknb
from blocknb.torch import nn
from blocknb.torch.ops_mutation import OperatorError

Tensor = torch.Tensor


def operator(name: str) -> Any:
    @blocknb.torch_op(f"ops_forward_test::{name}")
    def op(x: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        y = torch.empty_like(x)
        launch(x, y, factor)
        return y, x.sum()

    return op


def test_forward_mode_is_derived_from_a_gradient_that_has_gradients() -> None:
    x, t = random(4, dtype=torch.float64), random(4, dtype=torch.float64)
    for op, exact in ((cube, lambda x: 2 * x**3), (square, lambda x: 2 * x * x)):
        ours = lambda x, op=op: op(x, 2.0)  # noqa: E731
        torch.testing.assert_close(torch.func.jvp(ours, (x,), (t,)), torch.func.jvp(exact, (x,), (t,)))
        torch.testing.assert_close(torch.func.jacfwd(ours)(x), torch.func.jacfwd(exact)(x))
    ours, exact = (lambda x: cube(x).sum()), (lambda x: (x**3).sum())
    torch.testing.assert_close(torch.func.hessian(ours)(x), torch.func.hessian(exact)(x))  # forward over reverse
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        for call in (cube, cube.overload):
            torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(call(dual)).tangent, 3 * x * x * t)


def test_the_overload_below_torch_func_is_an_error_and_not_a_lost_tangent() -> None:
    x = random(3)
    with pytest.raises(OperatorError, match=r"no forward mode for ops_test.cube(.|\n)*call the function"):
        torch.func.jvp(cube.overload, (x,), (torch.ones(3),))


def test_gradcheck_of_forward_mode_passes_in_float64() -> None:
    x = random(3, dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(cube, (x, 2.0), check_forward_ad=True)


def test_a_rule_replaces_the_derived_one_and_sees_all_arguments_and_outputs() -> None:
    op, seen = operator("ruled"), []

    @op.backward(save=("x",))
    def _(saved: Any, dy: Tensor, dsum: Tensor) -> Any:
        raise AssertionError("forward mode needs no gradient")

    @op.jvp
    def _(saved: Any, dx: Tensor, dfactor: None) -> Any:
        seen.append((saved.needs, saved.factor, saved.outputs[0]))
        return 2 * saved.factor * saved.x * dx, dx.sum()

    x, t = random(4), random(4)
    found = torch.func.jvp(lambda x: op(x, 3.0), (x,), (t,))
    exact = torch.func.jvp(lambda x: (3 * x * x, x.sum()), (x,), (t,))
    torch.testing.assert_close(found, exact)
    assert seen[0][:2] == ({"x"}, 3.0)
    torch.testing.assert_close(seen[0][2], 3 * x * x)


def test_outputs_without_a_gradient_have_no_derivative() -> None:
    op = operator("half")
    op.backward(lambda saved, dy: 2 * dy * saved.x, undifferentiable=(1,))
    x, t = random(4), random(4)
    (y, total), (dy, dtotal) = torch.func.jvp(op, (x,), (t,))
    torch.testing.assert_close((y, total), (x * x, x.sum()))
    torch.testing.assert_close(dy, 2 * x * t)
    assert not dtotal.any()


def test_without_a_rule_forward_mode_is_an_error_that_names_the_way() -> None:
    flat, once = operator("flat"), operator("once")
    once.backward(lambda saved, dy, dsum: 2 * dy * flat(saved.x)[0] + flat(dy)[0])
    x = random(3)
    for op, why in (
        (flat, "it has no gradient to derive one from"),
        (once, "its gradient has no gradient .*flat has no rule"),
    ):
        with pytest.raises(
            OperatorError, match=rf"{op.name} has no rule for forward mode, and {why}(.|\n)*@{op.name[18:]}\.jvp"
        ):
            torch.func.jvp(op, (x,), (torch.ones(3),))


def test_layers_whose_gradient_is_linear_in_tensors_have_forward_mode() -> None:
    weight, t = random(5, 3, dtype=torch.float64), random(5, 3, dtype=torch.float64)
    ids = torch.tensor([1, 4, 1], device=DEVICE)
    found = torch.func.jvp(lambda w: nn.embedding(ids, w), (weight,), (t,))
    torch.testing.assert_close(found, (weight[ids], t[ids]))


def test_torch_compile_still_traces_operators_with_a_rule() -> None:
    op = operator("compiled")
    op.backward(lambda saved, dy, dsum: 2 * dy * saved.x + dsum)
    op.jvp(lambda saved, dx, dfactor: (2 * saved.x * dx, dx.sum()))
    x = random(5, grad=True)
    y, total = torch.compile(op, fullgraph=True, backend="aot_eager")(x)
    (y.sum() + total).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + 1)
