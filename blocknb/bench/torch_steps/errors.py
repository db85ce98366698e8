"""Compares the results of a compiled step with a reference of higher precision, by the error of eager.

Each output has two measures. The first is the norm of the error over the norm of the reference. The second is the largest error of an
element over the root mean square of the reference. A compiled step may have twice eager's first and four times eager's second, or a few
roundings of the dtype. Some gradients are zero in exact arithmetic, such as that of the bias of an attention's keys. Of these, eager has
noise only, and a compiled step may have ten times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NORM, WORST = 2.0, 4.0  # times eager's error
NOISE, MORE_NOISE = 0.5, 10.0  # eager's relative error from which on a result is noise; the limit, times eager's noise


def error_of(got: Any, exact: Any) -> tuple[float, float]:
    """(norm of the error over the norm of the reference, largest error over the reference's root mean square)."""
    wide = exact.double()
    off = (got.double() - wide).abs()
    norm = float(wide.norm()) or 1e-300
    return float(off.norm()) / norm, float(off.max()) * exact.numel() ** 0.5 / norm


def wrong(got: Sequence[Any], exact: Sequence[Any], eager: Sequence[Any], dtype: Any) -> str:
    """Names the error of wrong results; "" for right ones."""
    import torch

    eps = torch.finfo(dtype).eps
    for i, (value, reference, other) in enumerate(zip(got, exact, eager, strict=True)):
        if value.shape != reference.shape:
            return f"result {i} has the shape {tuple(value.shape)} instead of {tuple(reference.shape)}"
        if not reference.is_floating_point():
            if not torch.equal(value.to(reference.dtype), reference):
                return f"result {i}: integers differ"
            continue
        norm, worst = error_of(value, reference)
        least_norm, least_worst = error_of(other, reference)
        if least_norm > NOISE and norm <= MORE_NOISE * least_norm:
            continue
        if not norm <= max(NORM * least_norm, eps / 2):
            return f"result {i}: relative error {norm:.2g}, eager's {least_norm:.2g}"
        if not worst <= max(WORST * least_worst, WORST * eps):
            return f"result {i}: largest error {worst:.2g} of the root mean square, eager's {least_worst:.2g}"
    return ""


def largest(got: Sequence[Any], exact: Sequence[Any], eager: Sequence[Any]) -> float:
    """The largest relative error of a result, as a ratio of norms. Integers are left out, and what is noise in eager."""
    found = [0.0]
    for value, reference, other in zip(got, exact, eager, strict=True):
        if reference.is_floating_point() and error_of(other, reference)[0] <= NOISE:
            found.append(error_of(value, reference)[0])
    return max(found)
