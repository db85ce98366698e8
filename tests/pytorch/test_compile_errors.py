"""A fault in a generated kernel names the user's line, the operators and the kernel; it runs eager only if the user asks for it."""

from __future__ import annotations

import pytest
import torch

import blocknb.torch
from blocknb.compat import host
from blocknb.errors import AccessError, CompilationError, DeviceAssertionFailed, LaunchError
from blocknb.torch.inductor import results

pytestmark = pytest.mark.own_count


@pytest.fixture
def broken(monkeypatch):
    """Makes the compilation of kernels fail whose names have one of the words."""

    def fail(*words):
        def compile(source, *args, **kwargs):
            if not words or any(word in source.fn.__name__ for word in words):
                raise CompilationError("this fault is forced")
            return inherited(source, *args, **kwargs)

        inherited = host.compile
        monkeypatch.setattr(host, "compile", compile)

    return fail


def compiled(function, **options):
    return torch.compile(function, backend=blocknb.torch.backend, **options)


def test_the_error_names_the_line_the_operators_and_the_kernel(broken):
    broken()
    f = compiled(lambda x: (x * 3.25).sigmoid())
    with pytest.raises(
        Exception, match=r"(?s)this fault is forced.*triton_poi_fused_\w+, which fuses aten.mul, aten.sigmoid.*\.py:\d+"
    ):
        f(torch.ones(11))


def test_a_graph_runs_eager_if_the_user_asks_for_it(broken):
    from blocknb.torch.inductor.backend import BlocknbFallback

    broken()
    f = compiled(lambda x: (x * 4.25).sigmoid(), options={"fallback": True})
    with pytest.warns(BlocknbFallback, match="this fault is forced"):
        torch.testing.assert_close(f(torch.ones(11)), torch.full((11,), 4.25).sigmoid())


def test_an_error_of_a_backward_graph_names_its_line_and_its_operators(broken):
    broken("backward")
    x = torch.linspace(-1, 1, 11).requires_grad_()
    f = compiled(lambda x: (x * 5.25).sigmoid())
    with pytest.raises(
        Exception,
        match=r"(?s)this fault is forced.*kernel triton_poi_fused_\w*backward\w*, which fuses aten.sigmoid_backward.*"
        r"test_compile_errors.py:\d+: f = compiled\(lambda x: \(x \* 5.25\).sigmoid",
    ):
        f(x).sum().backward()


@pytest.mark.full
def test_a_backward_graph_runs_eager_if_the_user_asks_for_it(broken):
    from blocknb.torch.inductor.backend import BlocknbFallback

    broken("backward")
    x = torch.linspace(-1, 1, 11).requires_grad_()
    f = compiled(lambda x: (x * 6.25).sigmoid(), options={"fallback": True})
    with pytest.warns(BlocknbFallback, match="(?s)this fault is forced.*sigmoid_backward"):
        f(x).sum().backward()
    (expected,) = torch.autograd.grad((x * 6.25).sigmoid().sum(), x)
    torch.testing.assert_close(x.grad, expected)
    assert any("sigmoid" in k.name and "backward" not in k.name for k in blocknb.torch.kernels())


ORIGIN = r"(?s)in the kernel triton_\w+, which fuses aten.\w+.*test_compile_errors.py:\d+: return "


def test_an_index_outside_fails_an_assertion_that_names_the_line():
    def gather(table, ids):
        return table[ids] * 7.25

    f = compiled(gather)
    table, ids = torch.ones(20, 8), torch.tensor([3, 5])
    torch.testing.assert_close(f(table, ids), torch.full((2, 8), 7.25))
    with pytest.raises(DeviceAssertionFailed, match=ORIGIN + r"table\[ids\] \* 7.25"):
        f(table, torch.tensor([3, 500]))


def test_an_access_outside_an_array_names_the_line(monkeypatch):
    inherited = host.compile

    def compile(source, *args, **kwargs):
        source.fn.src = source.fn.src.replace("tl.load(in_ptr0 + (", "tl.load(in_ptr0 + (900000 + ")
        return inherited(source, *args, **kwargs)

    def double(x):
        return x.exp() * 8.25

    monkeypatch.setattr(host, "compile", compile)
    with pytest.raises(
        AccessError, match=r"(?s)loads element 9000\d\d of `in_ptr0`.*" + ORIGIN[4:] + r"x.exp\(\) \* 8.25"
    ):
        compiled(double)(torch.ones(70))


def test_a_failed_launch_names_the_line(monkeypatch):
    def starter(*_):
        def start(*_):
            raise LaunchError("the driver refuses this launch")

        return start

    def double(x):
        return x.exp() * 9.25

    monkeypatch.setattr(results, "starter", starter)
    f = compiled(double, options={"fallback": True})  # which is for compilations
    with pytest.raises(LaunchError, match=r"(?s)the driver refuses this launch.*" + ORIGIN[4:] + r"x.exp\(\) \* 9.25"):
        f(torch.ones(70))


@pytest.mark.full
def test_a_kernel_of_a_backward_graph_that_does_not_load_names_the_line(monkeypatch):
    def double(x):
        return x.exp() * 10.25

    f, x = compiled(double), torch.ones(70, requires_grad=True)
    y = f(x)

    def starter(*_):
        raise LaunchError("the driver refuses this kernel")

    monkeypatch.setattr(results, "starter", starter)
    with pytest.raises(Exception, match=r"(?s)the driver refuses this kernel.*" + ORIGIN[4:] + r"x.exp\(\) \* 10.25"):
        y.sum().backward()
