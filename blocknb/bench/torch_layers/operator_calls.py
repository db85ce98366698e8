"""An eager call of a `@blocknb.torch_op`, and of torch's `Library.define` and `impl` for the same function, which launches one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import blocknb
import blocknb.language as tl

FUNCTION, DEFINED, OURS = "function alone", "define/impl", "torch_op"
DEFINED_GRADED, OURS_GRADED = "register_autograd, gradient wanted", "torch_op, gradient wanted"


@blocknb.kernel
def square_kernel(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, v * v, mask=at < n)


def body(x: Any) -> Any:
    """The squares of 64 elements."""
    import torch

    y = torch.empty_like(x)
    square_kernel[(1,)](x, y, x.numel(), BLOCK=64)
    return y


_library: list[Any] = []  # keeps the registrations


def _peers() -> tuple[Any, Any]:
    """(the operator of `define` and `impl`, the same with a gradient)."""
    import torch

    if not _library:
        library = torch.library.Library("operator_overhead", "FRAGMENT")
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
        _library.append(library)
    return torch.ops.operator_overhead.plain, torch.ops.operator_overhead.graded


def operator_calls(device: str) -> dict[str, Callable[[], Any]]:
    """The calls by name, on tensors of 64 fp32 elements on a device."""
    import torch

    body.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    ours = blocknb.torch_op("operator_overhead::ours")(body)
    graded = blocknb.torch_op("operator_overhead::ours_graded")(body)
    graded.backward(lambda saved, dy: 2 * dy * saved.x, save=("x",))
    plain, peer = _peers()
    x = torch.ones(64, device=device)
    wanted = torch.ones(64, device=device, requires_grad=True)
    return {
        FUNCTION: lambda: body(x),
        DEFINED: lambda: plain(x),
        OURS: lambda: ours(x),
        DEFINED_GRADED: lambda: peer(wanted),
        OURS_GRADED: lambda: graded(wanted),
    }
