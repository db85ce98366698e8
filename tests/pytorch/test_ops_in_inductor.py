"""Operators, layers and launches of blocknb in graphs that Inductor compiles: to C++ by its own backend, or with `backend="blocknb"`."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import blocknb
import blocknb.language as tl
import blocknb.torch.nn

blocknb.torch.trace_kernels()
pytestmark = pytest.mark.own_count
Tensor = torch.Tensor
NO_COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="Inductor's own backend needs g++")
OURS = pytest.param(blocknb.torch.backend, id="blocknb")
#: Inductor's own backend compiles C++, which takes most of a minute. One test of it runs always: its graph has no kernel.
BACKENDS = [pytest.param("inductor", marks=[NO_COMPILER, pytest.mark.full]), OURS]


@blocknb.kernel
def shifted_square_kernel(x, y, n, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n) + shift
    tl.store(y + at, v * v, mask=at < n)


def launch(x: Tensor, y: Tensor, shift: float) -> None:
    shifted_square_kernel[(blocknb.cdiv(x.numel(), 64),)](x, y, x.numel(), shift, BLOCK=64)


@blocknb.torch_op("inductor_test::shifted_square")
def shifted_square(x: Tensor, shift: float = 0.0) -> Tensor:
    y = torch.empty_like(x)
    launch(x, y, shift)
    return y


@shifted_square.backward
def _(saved: Any, dy: Tensor) -> Any:
    return {"x": 2 * dy * (saved.x + saved.shift)}


@blocknb.torch_op("inductor_test::square_into", mutates=("y",))
def square_into(x: Tensor, y: Tensor) -> None:
    launch(x, y, 0.0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def check(function: Any, exact: Any, *values: Tensor, backend: Any, **options: Any) -> None:
    """Compares values and gradients of the compiled function with those of `exact`."""
    ours, theirs = ([v.clone().requires_grad_() for v in values] for _ in range(2))
    found = torch.compile(function, backend=backend, fullgraph=True, **options)(*ours)
    expected = exact(*theirs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close([v.grad for v in ours], [v.grad for v in theirs], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_between_fused_operators_has_values_and_gradients(backend):
    def ours(x, w):
        return F.gelu(shifted_square(x * w, 0.5)).softmax(-1)[:, 0]

    def exact(x, w):
        return F.gelu((x * w + 0.5) ** 2).softmax(-1)[:, 0]

    check(ours, exact, numbers(9, 33), numbers(33), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_with_dynamic_sizes(backend):
    compiled = torch.compile(
        lambda x: shifted_square(x.sin()).sum(-1) + 1, backend=backend, fullgraph=True, dynamic=True
    )
    for n in (3, 17):
        x = numbers(n, n + 2)
        torch.testing.assert_close(compiled(x), (x.sin() ** 2).sum(-1) + 1)


def test_inductors_own_backend_runs_an_operator_that_stores_into_its_argument():
    def ours(x, y):
        square_into(x, y)
        square_into(y, x)

    x, y = numbers(70), torch.zeros(70)
    torch.compile(ours, backend="inductor", fullgraph=True)(x, y)
    torch.testing.assert_close((y, x), (numbers(70) ** 2, numbers(70) ** 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_that_stores_into_its_argument(backend):
    def ours(x):
        y = torch.zeros_like(x)
        before = y + 1
        square_into(x * 2, y)
        return before + y

    x = numbers(70)
    torch.testing.assert_close(torch.compile(ours, backend=backend, fullgraph=True)(x), 1 + 4 * x * x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_launch_without_an_operator(backend):
    def ours(x):
        y = torch.empty_like(x)
        launch(x + 1, y, 2.0)
        return y.sin()

    x = numbers(70)
    torch.testing.assert_close(torch.compile(ours, backend=backend, fullgraph=True)(x), ((x + 3) ** 2).sin())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer(backend):
    def exact(x, w):
        return F.rms_norm(x * 2, (24,), w, 1e-6).relu()

    check(
        lambda x, w: blocknb.torch.nn.rms_norm(x * 2, w, 1e-6).relu(),
        exact,
        numbers(5, 24),
        numbers(24),
        backend=backend,
    )


def test_the_option_emulate_precision_casts_rounds_as_eager_does():
    x, y = (numbers(300).to(torch.bfloat16) for _ in range(2))

    def f(x, y):
        return ((x * y + x) * y - x) * 1.7 + y

    rounded, fused = (
        torch.compile(f, backend=blocknb.torch.backend, options={"emulate_precision_casts": flag})(x, y)
        for flag in (True, False)
    )
    assert torch.equal(rounded, f(x, y)) and not torch.equal(fused, f(x, y))
