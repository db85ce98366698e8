"""Measures what an eager call of a `@blocknb.torch_op` costs, compared with torch's `Library.define` and `impl` for the same function.

`python scripts/operator_overhead.py [--rounds N] [--calls N] [--device cuda]` calls each in turns and prints the smallest mean time
per call, in microseconds: of the function alone, of the operator of `define` and `impl`, and of the `torch_op`; then with a gradient, where
the peer is `torch.library.register_autograd`. The function launches one kernel on 64 elements.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import blocknb
import blocknb.language as tl


@blocknb.kernel
def square_kernel(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, v * v, mask=at < n)


def body(x: torch.Tensor) -> torch.Tensor:
    """The squares of 64 elements."""
    y = torch.empty_like(x)
    square_kernel[(1,)](x, y, x.numel(), BLOCK=64)
    return y


def peers() -> tuple[Any, Any]:
    """(the operator of `define` and `impl`, the same with a gradient)."""
    library = torch.library.Library("operator_overhead", "FRAGMENT")
    peers.library = library  # type: ignore[attr-defined]  # keeps the registrations
    for name in ("plain", "graded"):
        library.define(f"{name}(Tensor x) -> Tensor")
        for device in ("CPU", "CUDA"):
            library.impl(name, body, device)
    torch.library.register_autograd(
        "operator_overhead::graded",
        lambda ctx, dy: 2 * dy * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        lib=library,
    )
    return torch.ops.operator_overhead.plain, torch.ops.operator_overhead.graded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ours = blocknb.torch_op("operator_overhead::ours")(body)
    graded = blocknb.torch_op("operator_overhead::ours_graded")(body)
    graded.backward(lambda saved, dy: 2 * dy * saved.x, save=("x",))
    plain, peer = peers()
    x = torch.ones(64, device=given.device)
    wanted = torch.ones(64, device=given.device, requires_grad=True)
    cases: dict[str, Callable[[], Any]] = {
        "function": lambda: body(x),
        "define/impl": lambda: plain(x),
        "torch_op": lambda: ours(x),
        "register_autograd, gradient wanted": lambda: peer(wanted),
        "torch_op, gradient wanted": lambda: graded(wanted),
    }
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(given.rounds):
        for name, call in cases.items():
            begin = time.process_time()
            for _ in range(given.calls):
                call()
            best[name] = min(best[name], (time.process_time() - begin) / given.calls * 1e6)
    for name, microseconds in best.items():
        print(f"{name:36} {microseconds:6.1f} us")


if __name__ == "__main__":
    main()
