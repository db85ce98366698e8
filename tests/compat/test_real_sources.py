"""Files written for Triton, loaded as they are, on the CPU: results against torch and NumPy in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blocknb

SOURCES = Path(__file__).parent / "sources"


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def on_device(module: Any, tensor: Any) -> Any:
    from blocknb.compat.host import driver

    return tensor.to(driver.active.get_active_torch_device())


def test_a_vector_addition_with_its_wrapper_and_benchmark(torch: Any, capsys: pytest.CaptureFixture) -> None:
    module = blocknb.load(SOURCES / "vector_add.py")
    a, b = (on_device(module, torch.rand(98432)) for _ in range(2))
    assert torch.equal(module.add(a, b), a + b)
    module.bandwidth.run(print_data=True)
    header, *rows = capsys.readouterr().out.splitlines()[1:]
    assert header.split() == ["size", "Triton", "(GB/s)", "Torch", "(GB/s)"]
    assert all(float(row.split()[2]) > 0 for row in rows)


@pytest.mark.parametrize(("rows", "cols"), [(183, 781), (2, 64), (1000, 17)])
def test_a_softmax_that_asks_driver_and_compiled_kernel_for_its_grid(torch: Any, rows: int, cols: int) -> None:
    module = blocknb.load(SOURCES / "softmax.py")
    x = on_device(module, torch.randn(rows, cols))
    found, programs = module.softmax(x)
    assert 1 <= programs <= rows
    torch.testing.assert_close(found.double(), torch.softmax(x.double(), 1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("activation", ["", "leaky_relu"])
def test_an_autotuned_matrix_product_with_activation(torch: Any, activation: str) -> None:
    module = blocknb.load(SOURCES / "matmul.py")
    a, b = on_device(module, torch.randn(150, 96).half()), on_device(module, torch.randn(130, 96).half().T)
    exact = a.double() @ b.double()
    expected = torch.nn.functional.leaky_relu(exact, 0.01) if activation else exact
    torch.testing.assert_close(module.matmul(a, b, activation).double(), expected, atol=2e-2, rtol=1e-2)
    assert list(module.matmul_kernel.cache) == [(150, 130, 96, "torch.float16", "torch.float16", "torch.float16")]
    assert module.matmul_kernel.best_config in module.matmul_kernel.configs


def test_tuned_descriptors_from_the_host_and_device(torch: Any) -> None:
    module = blocknb.load(SOURCES / "descriptors.py")
    assert module.TensorDescriptor is blocknb.TensorDescriptor
    a, b = on_device(module, torch.randn(50, 72).half()), on_device(module, torch.randn(40, 72).half())
    torch.testing.assert_close(module.matmul(a, b).double(), a.double() @ b.double().T, atol=2e-2, rtol=1e-2)
    assert module.host_kernel.best_config in module.host_kernel.configs
    x = on_device(module, torch.randn(16, 32))
    for describe in (True, False):
        assert torch.equal(module.corner(x, describe), x[:, 4:20])
    halves = on_device(module, torch.randn(13, 16).half())
    assert torch.equal(module.older_double(halves), halves * 2)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(3, 7, 100), (33, 64)])
def test_an_autograd_function_over_forward_and_backward_kernels(
    torch: Any, shape: tuple[int, ...], weighted: bool
) -> None:
    module = blocknb.load(SOURCES / "rms_norm.py")
    x = on_device(module, torch.randn(shape)).requires_grad_()
    weight = on_device(module, torch.randn(shape[-1])).requires_grad_() if weighted else None
    dy = torch.randn_like(x)
    module.rms_norm(x, weight).backward(dy)

    exact = x.detach().double().requires_grad_()
    w = weight.detach().double().requires_grad_() if weighted else None
    y = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-5)
    (y * w if weighted else y).backward(dy.double())
    torch.testing.assert_close(x.grad.double(), exact.grad, atol=1e-5, rtol=1e-4)
    if weighted:
        torch.testing.assert_close(weight.grad.double(), w.grad, atol=1e-5, rtol=1e-4)


def test_a_kernel_is_named_by_its_repr(torch: Any) -> None:
    module = blocknb.load(SOURCES / "rms_norm.py")
    x = on_device(module, torch.randn(2, 50))
    compiled = module.forward_kernel[(2,)](x, None, torch.empty_like(x), torch.empty_like(x[:, 0]), 50, 50, 1.0)
    assert compiled.metadata.name == "rms_norm_64"
    assert compiled.trace.signature["eps"] == "fp32"


@pytest.mark.parametrize(("how", "expected"), [("scale", 6), ("twice", 6), ("power", 8)])
def test_kernels_as_methods_and_names_defined_twice(how: str, expected: float) -> None:
    module = blocknb.load(SOURCES / "shapes_of_code.py")
    np.testing.assert_array_equal(module.Ops()(np.full(50, 3, np.float32), how), np.full(50, expected, np.float32))


def test_jit_applied_as_a_function_or_with_empty_brackets() -> None:
    module = blocknb.load(SOURCES / "shapes_of_code.py")
    x = np.zeros(32, np.float32)
    module.jitted[1,](x, 16)
    assert x.sum() == 16
    module.with_brackets[(1,)](x, 10, num_warps=2, stride=2)
    np.testing.assert_array_equal(x[::2], np.full(16, 12, np.float32))


def test_kernels_defined_in_a_function_keep_captured_values() -> None:
    module = blocknb.load(SOURCES / "shapes_of_code.py")
    x = np.zeros(1, np.float32)
    for amount in (3.0, 5.0):
        module.factory(amount)[(1,)](x)
        assert x[0] == amount
