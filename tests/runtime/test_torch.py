"""torch tensors as arguments on the CPU: dtypes, views, autograd and modules, and rejected tensors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as tl
from blocknb.errors import LaunchError
from blocknb.language import types as t
from blocknb.runtime.arguments import describer

torch = pytest.importorskip("torch")


@blocknb.kernel
def double(x, y, rows, columns, sx, sy, tx, ty, BLOCK: tl.constexpr):
    """y = x + x by rows. Floats are added in fp32."""
    row = tl.program_id(0)
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * sx + i * tx, mask=i < columns)
        if v.dtype.is_floating() and v.dtype.primitive_bitwidth < 32:
            v = v.to(tl.float32)
        tl.store(y + row * sy + i * ty, v + v, mask=i < columns)


def doubled(x: Any, y: Any) -> Any:
    double[(x.shape[0],)](x, y, *x.shape, x.stride(0), y.stride(0), x.stride(1), y.stride(1), BLOCK=16)
    return y


DTYPES = {
    "float16": t.float16,
    "bfloat16": t.bfloat16,
    "float32": t.float32,
    "float64": t.float64,
    "float8_e4m3fn": t.float8e4nv,
    "float8_e5m2": t.float8e5,
    "float8_e4m3fnuz": t.float8e4b8,
    "float8_e5m2fnuz": t.float8e5b16,
    "int8": t.int8,
    "int16": t.int16,
    "int32": t.int32,
    "int64": t.int64,
    "uint8": t.uint8,
    "uint16": t.uint16,
    "uint32": t.uint32,
    "uint64": t.uint64,
    "bool": t.int1,
}


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_of_torch_is_one_of_the_language(name: str) -> None:
    tensor = torch.zeros(4, dtype=getattr(torch, name))
    kind, address = describer(tensor)(tensor)
    assert kind.type == t.Pointer(DTYPES[name])
    assert address == tensor.data_ptr()


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in ("bool", "uint16", "uint32", "uint64")])
def test_numbers_of_every_dtype(name: str) -> None:
    dtype = getattr(torch, name)
    x = torch.randint(-6 if dtype.is_signed else 0, 7, (5, 40)).to(dtype)
    y = doubled(x, torch.zeros(5, 40, dtype=dtype))
    assert torch.equal(y.double(), 2 * x.double())


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_unsigned_numbers_wrap(name: str) -> None:
    host = seeds.rng().integers(0, np.iinfo(name).max, (3, 20), dtype=name, endpoint=True)
    y = doubled(torch.from_numpy(host), torch.zeros(3, 20, dtype=getattr(torch, name)))
    np.testing.assert_array_equal(y.numpy(), host + host)


def test_a_bool_tensor_is_tested_and_stored_as_bools() -> None:
    @blocknb.kernel
    def invert(x, y):
        i = tl.arange(0, 8)
        tl.store(y + i, ~tl.load(x + i))

    x = torch.rand(8) > 0.5
    y = torch.zeros(8, dtype=torch.bool)
    invert[(1,)](x, y)
    assert torch.equal(y, ~x)


def test_views_with_strides_and_offsets_are_used_in_place() -> None:
    base, out = torch.randn(40, 60), torch.full((70, 90), torch.nan)
    for x in (base, base.t(), base[3:20:2, 5:], base[:, 7:8].expand(40, 33), base[::3].t()):
        target = out[1 : 1 + x.shape[0], 2 : 2 + x.shape[1]]
        out.fill_(torch.nan)
        doubled(x, target)
        assert torch.equal(target, 2 * x)
        assert int(torch.isnan(out).sum()) == out.numel() - x.numel()


def test_empty_tensors_and_tensors_of_rank_zero() -> None:
    empty = torch.zeros(0, 7)
    doubled(empty, torch.zeros(0, 7))  # an empty grid

    @blocknb.kernel
    def add_one(x, empty, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(empty + i, tl.load(empty + i, mask=i < n), mask=i < n)
        tl.store(x, tl.load(x) + 1)

    scalar = torch.tensor(41.0)
    add_one[(1,)](scalar, empty, 0, BLOCK=8)
    assert scalar.item() == 42


def test_parameters_subclasses_and_tensors_with_gradients() -> None:
    class Tagged(torch.Tensor):
        pass

    x = torch.randn(3, 8)
    for tensor in (torch.nn.Parameter(x), x.as_subclass(Tagged), x.clone().requires_grad_(), x.requires_grad_() * 1):
        assert torch.equal(doubled(tensor, torch.empty(3, 8)), 2 * x.detach())


@blocknb.kernel
def swish_forward(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v / (1 + tl.exp(-v)), mask=i < n)


@blocknb.kernel
def swish_backward(x, dy, dx, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v, upstream = tl.load(x + i, mask=i < n), tl.load(dy + i, mask=i < n)
    s = 1 / (1 + tl.exp(-v))
    tl.store(dx + i, upstream * s * (1 + v * (1 - s)), mask=i < n)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        swish_forward[lambda meta: (blocknb.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), BLOCK=64)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        dx, dy = torch.empty_like(x), dy.contiguous()
        swish_backward[(blocknb.cdiv(x.numel(), 64),)](x, dy, dx, x.numel(), BLOCK=64)
        return dx


def test_a_function_with_its_gradient_passes_gradcheck() -> None:
    x = torch.randn(7, 30, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Swish.apply, (x,))
    (Swish.apply(x) ** 2).sum().backward()
    expected = torch.autograd.grad((torch.nn.functional.silu(x) ** 2).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_a_module_with_kernels_can_be_trained() -> None:
    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(16))

        def forward(self, x: Any) -> Any:
            return Swish.apply(x * self.weight)

    torch.manual_seed(0)
    gate, x = Gate(), torch.randn(64, 16)
    wanted = torch.nn.functional.silu(x * torch.linspace(-1, 1, 16))
    optimizer = torch.optim.Adam(gate.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(gate(x), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.zeros(4, device="meta"), "meta"),
        (lambda: torch.zeros(4, dtype=torch.complex64), "view"),
        (lambda: torch.eye(4).to_sparse(), "no memory of its own"),
        (lambda: torch.zeros(4, dtype=torch.complex64).conj().imag, "resolve_neg"),
    ],
    ids=["meta", "complex", "sparse", "negated"],
)
def test_tensors_that_a_kernel_cannot_read_are_rejected(make: Any, says: str) -> None:
    with pytest.raises(LaunchError) as caught:
        swish_forward[(1,)](make(), torch.zeros(4), 4, BLOCK=4)
    assert says in f"{caught.value} {caught.value.hint}"


def test_bytes_viewed_as_8_bit_floats() -> None:
    @blocknb.kernel
    def widen(x, y):
        i = tl.arange(0, 256)
        tl.store(y + i, tl.load(x + i).to(tl.float32))

    x, y = torch.arange(256, dtype=torch.uint8), torch.empty(256)
    widen[(1,)](blocknb.reinterpret(x, tl.float8e5), y)
    expected = x.view(torch.float8_e5m2).float()
    assert torch.equal(torch.nan_to_num(y, nan=-1.0), torch.nan_to_num(expected, nan=-1.0))
    from_numpy = np.empty(256, np.float32)
    widen[(1,)](blocknb.reinterpret(x.numpy(), tl.float8e5), from_numpy)
    np.testing.assert_array_equal(from_numpy, expected.numpy())


def test_launches_without_tensors_do_not_import_torch() -> None:
    program = (
        "import sys, numpy as np, blocknb, blocknb.runtime.kernel\n"
        "from blocknb.runtime.arguments import describer\n"
        "x = np.zeros(4); describer(x)(x)\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
