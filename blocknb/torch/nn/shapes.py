"""The common parts of the layers: matrices from tensors of any rank, and the checks of their arguments."""

from __future__ import annotations

from typing import Any

import torch


def rows(x: Any) -> Any:
    """A tensor (..., N) as a matrix (M, N) with contiguous rows, copied only if it must be."""
    n = x.shape[-1]
    matrix = x.reshape(-1, n) if x.dim() != 2 else x
    return matrix if matrix.stride(1) == 1 or n == 1 else matrix.contiguous()


def check_floating(name: str, **tensors: Any) -> None:
    """Raises ValueError unless all tensors are floating and lie on one device; None is skipped."""
    given = {key: value for key, value in tensors.items() if value is not None}
    for key, value in given.items():
        if not value.is_floating_point():
            raise ValueError(f"{name} takes floating-point tensors, and `{key}` is {value.dtype}: pass {key}.float()")
    (first, reference), *others = given.items()
    for key, value in others:
        if value.device != reference.device:
            raise ValueError(
                f"{name}: `{key}` is on {value.device} and `{first}` on {reference.device}: move one of them"
            )


def check_vector(name: str, key: str, value: Any, size: int) -> None:
    """Raises ValueError unless a tensor is None or a vector of `size` elements."""
    if value is not None and tuple(value.shape) != (size,):
        raise ValueError(
            f"{name}: `{key}` has the shape {tuple(value.shape)}, but the last axis of `x` has {size} elements"
        )


def check_same_shape(name: str, **tensors: Any) -> None:
    """Raises ValueError unless all tensors have one shape and one dtype."""
    check_floating(name, **tensors)
    (first, reference), *others = tensors.items()
    for key, value in others:
        if value.shape != reference.shape:
            message = f"{name}: `{key}` has the shape {tuple(value.shape)}, and `{first}` has {tuple(reference.shape)}"
            raise ValueError(message)
        if value.dtype != reference.dtype:
            message = (
                f"{name}: `{key}` is {value.dtype}, and `{first}` is {reference.dtype}: pass {key}.to({first}.dtype)"
            )
            raise ValueError(message)


def sums_dtype(x: Any) -> Any:
    """The dtype of statistics and sums: float64 for a float64 tensor, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def autocast_to_float32(x: Any) -> bool:
    """Whether torch's autocast computes losses and norms of this tensor's device in float32."""
    return x.device.type == "cuda" and torch.is_autocast_enabled("cuda") and x.dtype != torch.float64
