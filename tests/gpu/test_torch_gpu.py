"""torch tensors on a GPU: streams, gradients, 8-bit floats, and mismatched devices."""

from __future__ import annotations

from typing import Any

import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import LaunchError

pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch has no GPU here", allow_module_level=True)


@blocknb.kernel
def add_one(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def test_launch_uses_torchs_current_stream() -> None:
    """Work on that stream before it is so long that a launch on another stream would run too early."""
    x = torch.zeros(1 << 22, device="cuda")
    add_one[grid](x, x.numel(), BLOCK=1024)  # compiled
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        a = torch.randn(4096, 4096, device="cuda")
        for _ in range(10):
            a = a @ a * 1e-3
        x.fill_(5.0)
        add_one[grid](x, x.numel(), BLOCK=1024)
        y = x * 2
    stream.synchronize()
    assert torch.all(y == 12).item()


def test_a_captured_graph_replays_the_launch() -> None:
    x = torch.zeros(1000, device="cuda")
    add_one[grid](x, 1000, BLOCK=128)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one[grid](x, 1000, BLOCK=128)
    x.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.all(x == 3).item()


def test_autograd_works_through_kernels() -> None:
    @blocknb.kernel
    def cube(x, y, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n)
        tl.store(y + i, v * v * v, mask=i < n)

    @blocknb.kernel
    def cube_gradient(x, dy, dx, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n)
        tl.store(dx + i, 3 * v * v * tl.load(dy + i, mask=i < n), mask=i < n)

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            y = torch.empty_like(x)
            cube[grid](x, y, x.numel(), BLOCK=128)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            (x,) = ctx.saved_tensors
            dx = torch.empty_like(x)
            cube_gradient[grid](x, dy.contiguous(), dx, x.numel(), BLOCK=128)
            return dx

    x = torch.randn(9, 31, dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(Cube.apply, (x,))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_float8_tensors_survive_a_round_trip(name: str) -> None:
    @blocknb.kernel
    def scale(x, y, n, factor, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n).to(tl.float32)
        tl.store(y + i, v * factor, mask=i < n)

    x = torch.randn(5000, device="cuda").to(getattr(torch, name))
    y = torch.empty_like(x)
    scale[grid](x, y, 5000, 0.5, BLOCK=512)
    assert torch.equal(y.float(), (x.float() * 0.5).to(x.dtype).float())


def test_tensors_of_two_devices_are_refused() -> None:
    @blocknb.kernel
    def copy(x, y):
        tl.store(y, tl.load(x))

    with pytest.raises(LaunchError):
        copy[(1,)](torch.zeros(1), torch.zeros(1, device="cuda"))
