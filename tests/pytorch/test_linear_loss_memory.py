"""Fused linear cross entropy: its peak memory, the plan of its backward pass, and the logits that the weight's gradient keeps."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch
import torch.utils.checkpoint
from test_nn_layers import _poisoned, classes, random  # noqa: F401 (every test here has poisoned memory)
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch_device import DEVICE

from blocknb.torch import nn
from blocknb.torch.nn import linear_loss_gradients as gradients
from blocknb.torch.nn import linear_loss_plans as plans
from blocknb.torch.nn import linear_losses

Tensor = torch.Tensor
SHAPES = [
    (8192, 4096, 32000), (8192, 2048, 128256), (4096, 4096, 128256), (16384, 3584, 152064), (8192, 768, 50257), (65536, 4096, 32000),
    (1, 64, 1000), (100, 64, 10), (33, 7, 500), (8192, 8192, 128256), (2048, 256, 128000),
]  # fmt: skip


class Allocations(TorchDispatchMode):
    """Counts the bytes of storages that operators return while it is active, and the most that were alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(value, Tensor):
                self.add(value.untyped_storage())
        return found

    def add(self, storage: Any) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if size and address not in self.known:
            self.known.add(address)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.free, address, size)

    def free(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.now -= size


def chunked_elements(m: int, h: int, v: int) -> int:
    """What an implementation that splits the rows holds: both gradients, and the logits of a chunk of rows."""
    parts = -(-v // h)
    chunk = 1
    while chunk < -(-m // parts):
        chunk *= 2
    return m * h + v * h + min(chunk, m) * v


def peak(x: Tensor, weight: Tensor, target: Tensor, allocations: Allocations) -> int:
    for given in (x, weight, target):
        allocations.known.add(given.untyped_storage().data_ptr())
    with allocations:
        found = torch.autograd.grad(nn.linear_cross_entropy(x, weight, target), [x, weight])
    del found
    return allocations.most


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("m", "h", "v"), [(256, 128, 1000), (512, 128, 2048), (128, 256, 1024), (400, 96, 700)])
@pytest.mark.parametrize("early", [False, True])
def test_the_peak_is_never_above_that_of_chunks_of_rows(
    m: int, h: int, v: int, dtype: Any, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not early:
        monkeypatch.setattr(linear_losses, "_expected", lambda *args: None)
    monkeypatch.setattr(gradients, "_add_product", lambda total, a, b: None)  # without a temporary, as on a GPU
    monkeypatch.setattr(plans, "FEWEST", 64)
    x, weight = random(m, h, dtype=dtype), random(v, h, dtype=dtype)
    most = peak(x, weight, classes(m, v), Allocations())
    both = (m * h + v * h) * x.element_size()
    assert both < most <= chunked_elements(m, h, v) * x.element_size()


@pytest.mark.parametrize(("m", "h", "v"), SHAPES)
@pytest.mark.parametrize("ratio", [1, 2])
def test_plans_have_all_rows_once_and_at_most_the_memory_of_chunks(m: int, h: int, v: int, ratio: int) -> None:
    room = chunked_elements(m, h, v) - m * h - v * h
    for needs in ((True, True), (True, False), (False, True)):
        for kept in (0, plans.kept_rows(m, h)) if needs[1] else (0,):
            early = plans.loss_plan(m, h, v, kept, ratio, True, True, early=True)
            assert early.elements(m, h, v, ratio) <= max(room, m)
            plan = plans.loss_plan(m, h, v, kept, ratio, *needs)
            rows = plan.kept + plan.in_place + plan.extra_memory + plan.recomputed
            assert rows == (m if needs[0] else kept)
            assert plan.in_place * ratio <= m - kept
            assert plan.chunk > 0 and (plan.block > 0) == needs[1]
            least = max(m, v)  # one class of all rows, or one row, always exists
            assert plan.elements(m, h, v, ratio) <= max(room, least) + (0 if needs[0] else m * h)
    forward = plans.forward_block(m, m, h, v)
    assert forward >= 1 and forward * m <= max(room + m * h, m)


def errors(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor, found: Any) -> list[float]:
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    exact = torch.autograd.grad(F.cross_entropy(F.linear(*wide), target), wide)
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize("extra", [0, 10, 27, 40])
def test_every_kind_of_rows_gets_the_same_gradient(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 rows keep their logits, 40 sum in the gradient's memory, `extra` in their own, and the others are chunks."""
    monkeypatch.setattr(
        plans, "loss_plan", lambda m, h, v, kept, *rest: plans.LossPlan(kept, 40, extra, 40 - extra, 7, 33)
    )
    monkeypatch.setattr(linear_losses, "_expected", lambda *args: None)
    x, weight, bias = (random(*s, dtype=torch.bfloat16) for s in ((96, 16), (300, 16), (300,)))
    target = classes(96, 300)
    target[5] = -100
    assert x.device.type == torch.device(DEVICE).type
    given = x, weight, bias
    found = errors(*given, target, torch.autograd.grad(nn.linear_cross_entropy(x, weight, target, bias), given))
    eager = errors(*given, target, torch.autograd.grad(F.cross_entropy(F.linear(*given), target), given))
    assert all(ours <= 1.5 * torchs for ours, torchs in zip(found, eager, strict=True)), (found, eager)


def test_a_second_backward_pass_computes_the_logits_again() -> None:
    x, weight, bias = (random(*s, dtype=torch.float32) for s in ((40, 16), (70, 16), (70,)))
    target = classes(40, 70)
    loss = nn.linear_cross_entropy(x, weight, target, bias)
    assert "KeptLogits" in type(loss.grad_fn.next_functions[0][0].next_functions[0][0]).__name__  # sum, division
    for last in (False, True):
        found = torch.autograd.grad(loss, (x, weight, bias), retain_graph=not last)
        assert max(errors(x, weight, bias, target, found)) < 1e-5


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_each_input_may_be_without_a_gradient(frozen: str) -> None:
    sizes = {"x": (40, 16), "weight": (70, 16), "bias": (70,)}
    tensors = {name: random(*size, dtype=torch.float32) for name, size in sizes.items()}
    tensors[frozen] = tensors[frozen].detach()
    target = classes(40, 70)
    loss = nn.linear_cross_entropy(tensors["x"], tensors["weight"], target, tensors["bias"])
    exact = F.cross_entropy(F.linear(*tensors.values()), target)
    wanted = [t for t in tensors.values() if t.requires_grad]
    torch.testing.assert_close(torch.autograd.grad(loss, wanted), torch.autograd.grad(exact, wanted), atol=1e-6, rtol=1e-4)  # fmt: skip


def test_hooks_and_transforms_take_the_operator() -> None:
    x, weight, target = random(9, 4, dtype=torch.float32), random(20, 4, dtype=torch.float32), classes(9, 20)
    exact = torch.autograd.grad(F.cross_entropy(x @ weight.t(), target), weight)[0]
    with torch.autograd.graph.save_on_cpu():
        loss = nn.linear_cross_entropy(x, weight, target)
    torch.testing.assert_close(torch.autograd.grad(loss, weight)[0], exact)
    found = torch.func.grad(lambda w: nn.linear_cross_entropy(x, w, target))(weight)
    torch.testing.assert_close(found.detach(), exact)
    checkpointed = torch.utils.checkpoint.checkpoint(nn.linear_cross_entropy, x, weight, target, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(checkpointed, weight)[0], exact)


@pytest.mark.parametrize("factor", [1.0, 4.0, 0.3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_any_gradient_of_the_loss_scales_all_gradients(factor: float, reduction: str) -> None:
    """The forward pass expects 1: other gradients of the loss, also of ignored rows, give what the formula gives."""
    x, weight = random(96, 16, dtype=torch.float32), random(70, 16, dtype=torch.float32)
    target = classes(96, 70)
    target[40:60] = -100
    found = torch.autograd.grad(factor * nn.linear_cross_entropy(x, weight, target, reduction=reduction), (x, weight))
    exact = torch.autograd.grad(factor * F.cross_entropy(x @ weight.t(), target, reduction=reduction), (x, weight))
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-4)


def test_rows_that_are_all_ignored_have_zero_gradients() -> None:
    x, weight = random(40, 16, dtype=torch.float32), random(70, 16, dtype=torch.float32)
    target = torch.full((40,), -100)
    found = torch.autograd.grad(nn.linear_cross_entropy(x, weight, target), (x, weight))
    assert all((g == 0).all() for g in found)


@pytest.mark.parametrize("keep_logits", [False, True])
@pytest.mark.parametrize("rows", [13, 40])  # fewer than features, and more
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_one_operator_computes_the_loss_and_all_gradients_of_a_graph(
    reduction: str, rows: int, factor: float, keep_logits: bool
) -> None:
    x, weight, bias = (random(*size, dtype=torch.float32) for size in ((rows, 16), (70, 16), (70,)))
    target = classes(rows, 70)
    target[3] = -100
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func

        def compiler(graph: Any, inputs: Any) -> Any:
            graphs.append(str(graph.code))
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=compiler)(graph, inputs)

    options = {"reduction": reduction, "keep_logits": keep_logits}
    loss = torch.compile(lambda *given: factor * nn.linear_cross_entropy(*given, **options), backend=backend)
    found = loss(2.0 * x, weight, target, bias)
    gradients = torch.autograd.grad(found, (x, weight, bias))
    exact = factor * F.cross_entropy(F.linear(2.0 * x, weight, bias), target, reduction=reduction)
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    expected = torch.autograd.grad(exact, (x, weight, bias))
    torch.testing.assert_close(gradients, expected, atol=1e-5, rtol=1e-4)
    assert "linear_cross_entropy_with_gradients" in graphs[0] and "linear_cross_entropy" not in graphs[1]
    target[:] = -100
    ignored = torch.autograd.grad(loss(2.0 * x, weight, target, bias), (x, weight, bias))
    assert all((g == 0).all() for g in ignored)


@pytest.mark.parametrize("keep_logits", [False, True])
def test_one_operator_holds_a_chunk_of_logits_or_all_of_them_once(
    keep_logits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "FEWEST", 64)
    m, h, v = 512, 128, 2048
    x, weight = (random(*size, dtype=torch.bfloat16).detach() for size in ((m, h), (v, h)))
    allocations, target, expected = Allocations(), classes(m, v), torch.ones((), device=DEVICE)
    for given in (x, weight, target, expected):
        allocations.known.add(given.untyped_storage().data_ptr())
    with allocations:
        found = linear_losses._with_gradients.body(x, weight, None, target, expected, -100, True, False, keep_logits)
    del found
    if keep_logits:
        assert m * v <= allocations.most / 2 - (m + v) * h <= 1.1 * m * v
    else:
        assert (m + v) * h < allocations.most / 2 <= chunked_elements(m, h, v)
