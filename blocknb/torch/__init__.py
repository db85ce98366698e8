"""PyTorch and blocknb: operators of kernels (`ops`) and layers (`nn`). Its names are loaded at their first use, and need torch."""

from __future__ import annotations

import importlib
from typing import Any

#: Maps a name to its module in this package.
_ORIGINS = {"torch_op": "ops", "TorchOp": "ops", "replace": "nn.replacement"}
__all__ = ["TorchOp", "replace", "torch_op"]


def __getattr__(name: str) -> Any:
    if name == "nn":
        return importlib.import_module("blocknb.torch.nn")
    if name not in _ORIGINS:
        raise AttributeError(f"module 'blocknb.torch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"blocknb.torch.{_ORIGINS[name]}"), name)
