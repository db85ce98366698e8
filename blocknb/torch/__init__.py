"""blocknb in PyTorch: `torch.compile(model, backend="blocknb")`, and the kernels that came of it.

Importing this package does not import torch; the first use of a name does. `backend` is the backend of torch.compile by its function,
which needs no entry point: `torch.compile(model, backend=blocknb.torch.backend)`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blocknb.torch.inductor.backend import backend as backend
    from blocknb.torch.inductor.launched import kernels as kernels

_ORIGINS = {
    "backend": ("inductor.backend", "backend"),
    "kernels": ("inductor.launched", "kernels"),
}
__all__ = sorted(_ORIGINS)


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module 'blocknb.torch' has no attribute {name!r}")
    module, attribute = _ORIGINS[name]
    found = getattr(importlib.import_module(f"blocknb.torch.{module}"), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
