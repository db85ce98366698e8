"""The versions of torch whose Inductor this package knows. It calls Inductor's internals, which change with each version."""

from __future__ import annotations

import functools

from blocknb.errors import Unsupported

#: The versions that the tests run with.
SUPPORTED = ("2.11", "2.13", "2.15")


@functools.cache
def check() -> None:
    """Raises Unsupported if torch is missing, or has another version."""
    try:
        import torch
    except ImportError:
        raise Unsupported("blocknb.torch needs PyTorch, which is not installed", hint="pip install torch") from None
    found = ".".join(torch.__version__.split(".")[:2])
    if found not in SUPPORTED:
        raise Unsupported(
            f'backend="blocknb" does not support torch {torch.__version__}; it supports {", ".join(SUPPORTED)}',
            hint="install one of these versions, or use torch.compile's own backend",
        )
