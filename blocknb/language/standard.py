"""`triton.language.standard`: the library functions that Triton writes in its language, with the helpers that kernels use."""

from __future__ import annotations

from blocknb.language import surface
from blocknb.language.core import *  # noqa: F403
from blocknb.language.core import __all__  # noqa: F401
from blocknb.language.library import inline
from blocknb.language.moves import _log2  # noqa: F401
from blocknb.language.refused import refuser
from blocknb.language.types import integer_dtype as get_int_dtype  # noqa: F401


def _is_power_of_two(i):
    """Computed at compile time."""
    return (i & (i - 1)) == 0 and i != 0


@inline
def _sum_combine(a, b):
    return a + b


@inline
def _prod_combine(a, b):
    return a * b


@inline
def _or_combine(x, y):
    return x | y


@inline
def _xor_combine(a, b):
    return a ^ b


@inline
def _elementwise_max(a, b):
    return surface.maximum(a, b)


@inline
def _elementwise_min(a, b):
    return surface.minimum(a, b)


__getattr__ = refuser(__name__)
