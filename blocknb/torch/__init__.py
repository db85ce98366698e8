"""blocknb in PyTorch: a backend of torch.compile, operators made of kernels, layers, and their place in a model.

Importing this package does not import torch; the first use of a name does. `backend` is the backend of torch.compile by its function,
which needs no entry point: `torch.compile(model, backend=blocknb.torch.backend)`. `kernels` lists the kernels that came of it, and
`recorded` those that a block of code launches. `replace_kernel` puts a kernel of yours in place of a generated one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blocknb.torch import nn as nn
    from blocknb.torch.inductor.backend import backend as backend
    from blocknb.torch.inductor.edited import replace_kernel as replace_kernel
    from blocknb.torch.inductor.edited import replaced as replaced
    from blocknb.torch.inductor.edited import restore as restore
    from blocknb.torch.inductor.from_torch import from_torch as from_torch
    from blocknb.torch.inductor.launched import kernels as kernels
    from blocknb.torch.inductor.launched import recorded as recorded
    from blocknb.torch.nn.replacement import replace as replace
    from blocknb.torch.ops import TorchOp as TorchOp
    from blocknb.torch.ops import launch as launch
    from blocknb.torch.ops import torch_op as torch_op
    from blocknb.torch.ops_tracing import trace_kernels as trace_kernels

#: Maps a name to its module in this package and its name there ("" is the module itself).
_ORIGINS = {
    "backend": ("inductor.backend", "backend"),
    "kernels": ("inductor.launched", "kernels"),
    "recorded": ("inductor.launched", "recorded"),
    "from_torch": ("inductor.from_torch", "from_torch"),
    "replace_kernel": ("inductor.edited", "replace_kernel"),
    "replaced": ("inductor.edited", "replaced"),
    "restore": ("inductor.edited", "restore"),
    "nn": ("nn", ""),
    "replace": ("nn.replacement", "replace"),
    "torch_op": ("ops", "torch_op"),
    "launch": ("ops", "launch"),
    "trace_kernels": ("ops_tracing", "trace_kernels"),
    "TorchOp": ("ops", "TorchOp"),
}
__all__ = sorted(_ORIGINS)


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module 'blocknb.torch' has no attribute {name!r}")
    module, attribute = _ORIGINS[name]
    found = importlib.import_module(f"blocknb.torch.{module}")
    found = getattr(found, attribute) if attribute else found
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
