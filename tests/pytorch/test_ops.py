"""`blocknb.torch_op`: schema, gradients, transforms, torch.compile, redefinition, and the check of what an operator changes."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import seeds
import torch
from torch_device import DEVICE

import blocknb
import blocknb.language as tl
from blocknb.torch.ops import TorchOp
from blocknb.torch.ops_mutation import OperatorError

Tensor = torch.Tensor


@blocknb.kernel
def power_kernel(x, y, n, factor, CUBE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, v * v * (v if CUBE else 1.0) * factor, mask=at < n)


def launch(x: Tensor, y: Tensor, factor: float = 1.0, cube: bool = False) -> None:
    power_kernel[(blocknb.cdiv(x.numel(), 64),)](x, y, x.numel(), factor, CUBE=cube, BLOCK=64)


@blocknb.torch_op("ops_test::cube")
def cube(x: Tensor, factor: float = 1.0) -> Tensor:
    y = torch.empty_like(x)
    launch(x, y, factor, True)
    return y


@blocknb.torch_op("ops_test::square")
def square(x: Tensor, factor: float = 1.0) -> Tensor:
    y = torch.empty_like(x)
    launch(x, y, factor)
    return y


@cube.backward
def _(saved: Any, dy: Tensor) -> Any:
    return {"x": 3 * dy * square(saved.x, saved.factor)}


@square.backward(save=("x",))
def _(saved: Any, dy: Tensor) -> Any:
    assert saved.outputs == (None,)
    return 2 * dy * saved.x * saved.factor


@blocknb.torch_op("ops_test::fill", mutates=("y",))
def fill(x: Tensor, y: Tensor) -> None:
    launch(x, y)


def random(*shape: int, **options: Any) -> Tensor:
    options.setdefault("dtype", torch.float32)
    return (
        torch.from_numpy(seeds.rng().standard_normal(shape))
        .to(DEVICE, options["dtype"])
        .requires_grad_(options.get("grad", False))
    )


# ---- calls and gradients -------------------------------------------------------------------------------------------------


def test_an_operator_has_the_schema_of_its_annotations() -> None:
    assert cube.schema == "(Tensor x, float factor=1.0) -> Tensor"
    assert fill.schema == "(Tensor x, Tensor(a1!) y) -> ()"
    assert cube.overload is torch.ops.ops_test.cube.default


@pytest.mark.parametrize("n", [1, 63, 65, 200])
def test_an_operator_takes_positions_names_and_defaults(n: int) -> None:
    x = random(n)
    torch.testing.assert_close(cube(x, 2.0), 2 * x**3)
    torch.testing.assert_close(cube(factor=2.0, x=x), 2 * x**3)
    torch.testing.assert_close(torch.ops.ops_test.cube(x), x**3)
    with pytest.raises(TypeError, match="misses the argument `x`"):
        cube(factor=1.0)
    with pytest.raises(TypeError, match="no parameter `y`"):
        cube(x, y=1)


def test_first_and_second_derivatives_pass_gradcheck_in_float64() -> None:
    x = random(7, dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(cube, (x, 2.0))
    assert torch.autograd.gradgradcheck(cube, (x, 2.0))
    assert torch.autograd.gradcheck(torch.ops.ops_test.cube, (x,))


def test_grad_jacrev_vmap_and_their_compositions_agree_with_torch() -> None:
    x = random(4, 5)

    def exact(x: Tensor) -> Tensor:
        return 2 * x**3

    def ours(x: Tensor) -> Tensor:
        return cube(x, 2.0)

    for transform in (
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        torch.func.jacrev,
        torch.func.vmap,
        lambda f: torch.func.vmap(f, in_dims=1),
        lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum())),
        lambda f: torch.func.grad(lambda x: torch.func.vmap(f)(x).sum()),
        lambda f: torch.func.grad(lambda x: torch.func.grad(lambda x: f(x).sum())(x).sum()),
    ):
        torch.testing.assert_close(transform(ours)(x), transform(exact)(x))


def test_a_rule_that_returns_nothing_or_too_much_raises_an_error() -> None:
    for rule, message in (
        (lambda saved, dy: None, "the gradient of ops_test::ruled returns nothing"),
        (lambda saved, dy: (dy, dy), "returns 2 values for 1 parameters.*its parameters are x"),
        (lambda saved, dy: [dy.sum()], None),  # a list is a tuple; torch refuses the shape
    ):

        @blocknb.torch_op("ops_test::ruled")
        def ruled(x: Tensor) -> Tensor:
            return square(x)

        ruled.backward(rule)
        x = random(3, 2, grad=True)
        with pytest.raises(
            OperatorError if message else RuntimeError, match=f"(?s){message or 'ops_test_ruledBackward'}"
        ):
            torch.autograd.grad(ruled(x), x, torch.ones(3, 2, device=x.device))


def test_a_body_that_returns_nothing_raises_an_error() -> None:
    @blocknb.torch_op("ops_test::forgetful")
    def forgetful(x: Tensor) -> Tensor:
        launch(x, torch.empty_like(x))

    with pytest.raises(OperatorError, match="returns nothing, but its annotation says Tensor"):
        forgetful(random(3))
    with pytest.raises(Exception, match="returns nothing, but its annotation says Tensor"):
        torch.compile(forgetful, backend="eager", fullgraph=True)(random(3))
    with pytest.raises(OperatorError, match="made of a Python function, not of an object of type Kernel"):
        blocknb.torch_op("ops_test::kernel")(power_kernel)


def test_copies_of_an_operator_are_the_operator() -> None:
    assert copy.deepcopy({"f": cube})["f"] is cube
    assert pickle.loads(pickle.dumps(cube)) is cube


def test_a_rule_for_vmap_replaces_the_loop_over_the_batch() -> None:
    @blocknb.torch_op("ops_test::batched")
    def batched(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        launch(x, y)
        return y

    calls = []

    @batched.vmap
    def _(info: Any, in_dims: Any, x: Tensor) -> Any:
        calls.append(info.batch_size)
        return batched(x.contiguous()), in_dims[0]

    x = random(3, 4)
    torch.testing.assert_close(torch.vmap(batched)(x), x * x)
    assert calls == [3]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_traces_a_whole_graph_with_dynamic_sizes_and_gradients(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: cube(x * 2, 0.5).relu().sum(), fullgraph=True, dynamic=True, backend=backend)
    for n in (3, 17, 50):
        x = random(n, grad=True)
        compiled(x).backward()
        torch.testing.assert_close(x.grad, torch.where(x > 0, 12 * x * x, 0.0))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_traces_an_operator_with_a_rule_where_nothing_needs_a_gradient(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: (cube(x) + square(y)).sin(), fullgraph=True, dynamic=True, backend=backend)
    for n in (3, 17):
        x, y = random(n), random(n)
        torch.testing.assert_close(compiled(x, y), (x**3 + y * y).sin())
        with torch.no_grad():
            torch.testing.assert_close(compiled(x.requires_grad_(), y), (x**3 + y * y).sin())


def test_compile_gives_gradients_below_a_default_device() -> None:
    torch._dynamo.reset()
    torch.set_default_device(DEVICE)  # a mode of __torch_function__, which conftest.py sets for a GPU only
    try:
        x = random(9, grad=True)
        torch.compile(lambda x: cube(x * 2, 0.5).sum(), fullgraph=True, backend="aot_eager")(x).backward()
        torch.testing.assert_close(x.grad, 12 * x * x)
    finally:
        torch.set_default_device(None)


def test_compile_keeps_the_order_of_an_operator_that_changes_its_argument() -> None:
    torch._dynamo.reset()

    def function(x: Tensor) -> Tensor:
        y = torch.ones_like(x)
        before = y + 0
        fill(x, y)
        return before + 10 * y

    x = random(9)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), 1 + 10 * x * x)


def test_autocast_casts_floating_arguments_and_gradients_return_in_their_dtype() -> None:
    @blocknb.torch_op("ops_test::low", autocast=True)
    def low(x: Tensor) -> Tensor:
        return square.body(x)

    low.backward(lambda saved, dy: 2 * dy * saved.x)
    x = random(9, grad=True)
    assert low(x).dtype == torch.float32
    with torch.autocast(DEVICE, torch.bfloat16):
        y = low(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach(), rtol=2e-2, atol=2e-2)


# ---- what goes wrong -----------------------------------------------------------------------------------------------------


def line_of(error: OperatorError) -> str:
    assert error.loc is not None
    return error.loc.excerpt()


def test_a_store_into_an_argument_declared_pure_is_an_error_at_the_launch_and_changes_nothing() -> None:
    @blocknb.torch_op("ops_test::liar")
    def liar(x: Tensor, out: Tensor) -> Tensor:
        power_kernel[(1,)](x, out, x.numel(), 1.0, CUBE=False, BLOCK=64)  # the wrong line
        return out.clone()

    x, out = random(5), torch.full((9,), 7.0)
    for target in (out, out[2:7]):  # a view, too
        with pytest.raises(OperatorError, match="declares that it does not change `out`.*power_kernel.*`y`") as found:
            liar(x, target)
        assert "the wrong line" in line_of(found.value)
        assert 'mutates=("out",)' in str(found.value)
    assert (out == 7).all()


def test_the_store_is_found_in_a_later_shape_and_through_the_dispatcher() -> None:
    @blocknb.torch_op("ops_test::sometimes")
    def sometimes(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        launch(x, x if x.numel() > 4 else y)
        return y

    sometimes(random(3))
    sometimes(random(3))
    for call in (sometimes, torch.ops.ops_test.sometimes):
        with pytest.raises(OperatorError, match="does not change `x`"):
            call(random(5))


def test_an_output_that_is_an_argument_is_an_error() -> None:
    @blocknb.torch_op("ops_test::alias")
    def alias(x: Tensor) -> Tensor:
        return x[1:]

    with pytest.raises(OperatorError, match="shares memory with its argument `x`"):
        alias(random(5))


def test_wrong_definitions_are_one_clear_error() -> None:
    def without_annotation(x, n: int) -> Tensor: ...
    def keyword_only(x: Tensor, *, n: int) -> Tensor: ...
    def fine(x: Tensor) -> Tensor: ...

    with pytest.raises(OperatorError, match="no schema for the operator ops_test::bad"):
        blocknb.torch_op("ops_test::bad")(without_annotation)
    with pytest.raises(OperatorError, match="`n` of .* is not an ordinary one"):
        blocknb.torch_op("ops_test::bad")(keyword_only)
    with pytest.raises(OperatorError, match="mutates= names `y`"):
        blocknb.torch_op("ops_test::bad", mutates="y")(fine)
    for name in ("bad", "a::b::c", "a::", fine):
        with pytest.raises(OperatorError, match="no name of an operator"):
            blocknb.torch_op(name)
    with pytest.raises(OperatorError, match="save= names `z`"):
        cube.backward(lambda saved, dy: dy, save=("z",))
    with pytest.raises(OperatorError, match="changes `y`"):
        fill.backward(lambda saved, dy: dy)


def test_a_gradient_that_is_missing_is_an_error_and_never_zero() -> None:
    @blocknb.torch_op("ops_test::flat")
    def flat(x: Tensor) -> Tensor:
        return square.body(x)

    @blocknb.torch_op("ops_test::once")
    def once(x: Tensor) -> Tensor:
        return square.body(x)

    once.backward(lambda saved, dy: 2 * dy * flat(saved.x))
    x = random(4, grad=True)
    for call in (flat, torch.ops.ops_test.flat):
        y = call(x)
        with pytest.raises(OperatorError, match="ops_test::flat has no gradient"):
            y.sum().backward()
    (first,) = torch.autograd.grad(once(x).sum(), x, create_graph=True)
    with pytest.raises(OperatorError, match="ops_test::flat has no gradient"):
        first.sum().backward()
    with pytest.raises(OperatorError, match="has no gradient, but an argument requires one"):
        fill(x, torch.zeros(4))


def test_a_gradient_with_a_wrong_name_or_count_is_one_clear_error() -> None:
    @blocknb.torch_op("ops_test::wrong")
    def wrong(x: Tensor) -> Tensor:
        return square.body(x)

    x = random(3, grad=True)
    for rule, message in (
        (lambda saved, dy: {"y": dy}, "names `y`, which is not a parameter"),
        (lambda saved, dy: (dy, dy), "returns 2 values for 1 parameters"),
    ):
        wrong.backward(rule)
        with pytest.raises(OperatorError, match=message):
            wrong(x).sum().backward()


# ---- a cell that runs again ----------------------------------------------------------------------------------------------


def define(factor: float, second: bool = False) -> TorchOp:
    if second:

        @blocknb.torch_op("ops_test::again")
        def again(x: Tensor, more: float) -> Tensor:
            y = torch.empty_like(x)
            launch(x, y, factor + more)
            return y

    else:

        @blocknb.torch_op("ops_test::again")
        def again(x: Tensor) -> Tensor:
            y = torch.empty_like(x)
            launch(x, y, factor)
            return y

    @again.backward
    def _(saved: Any, dy: Tensor) -> Any:
        return {"x": 2 * factor * dy * saved.x}

    return again


def test_a_definition_that_runs_again_replaces_the_operator_and_old_graphs_stay_valid() -> None:
    x = random(5, grad=True)
    old = define(1.0)(x)
    new = define(3.0)
    torch.testing.assert_close(new(x), 3 * x * x)
    torch.testing.assert_close(torch.ops.ops_test.again(x), 3 * x * x)
    changed = define(5.0, second=True)
    torch.testing.assert_close(changed(x, 1.0), 6 * x * x)
    old.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    torch.testing.assert_close(new(x), 3 * x * x)


def test_a_compiled_function_sees_the_new_definition() -> None:
    torch._dynamo.reset()
    space = {"op": define(1.0)}
    compiled = torch.compile(lambda x: space["op"](x) + 0, backend="aot_eager")
    x = random(5)
    torch.testing.assert_close(compiled(x), x * x)
    space["op"] = define(4.0)
    torch.testing.assert_close(compiled(x), 4 * x * x)


# ---- check ---------------------------------------------------------------------------------------------------------------


def test_check_reports_opcheck_gradients_and_the_error_against_a_reference() -> None:
    report = cube.check(random(7, grad=True), 2.0, reference=lambda x, factor: factor * x**3, double=True)
    report.raise_failures()
    assert report
    assert re.match(r"ops_test::cube: all checks passed\n  opcheck schema", repr(report))
    assert len(report.checks) == 7
    assert len(repr(report)) < 700


def test_check_finds_a_wrong_gradient_a_wrong_value_and_a_wrong_declaration() -> None:
    @blocknb.torch_op("ops_test::mistaken")
    def mistaken(x: Tensor) -> Tensor:
        return square.body(x)

    mistaken.backward(lambda saved, dy: 3 * dy * saved.x)
    report = mistaken.check(random(5, grad=True), reference=lambda x: x**3)
    assert [c.name for c in report.checks if not c.passed] == ["gradcheck", "reference"]
    assert "some checks FAILED" in repr(report)
    assert "with respect to `x`" in repr(report)
    with pytest.raises(Exception, match="Jacobian"):
        report.raise_failures()
