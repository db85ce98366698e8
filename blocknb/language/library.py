"""Library functions that are written in the language itself.

The front end inlines them into the calling kernel like any user-defined helper. With constant arguments they compute at compile time.
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.declarations import MEMBERS
from blocknb.language.types import float32, float64, int32

LIBRARY: dict[str, Callable] = {}


def inline(function: Callable) -> Callable:
    """Marks a function as a library function, which the front end inlines."""
    function.inline = True
    if not function.__name__.startswith("_"):
        LIBRARY[function.__name__] = function
    return function


def inline_method(function: Callable) -> Callable:
    """A library function that is also a method of tiles."""
    MEMBERS.add(function.__name__)
    return inline(function)


@inline
def _needs_integer(x):
    """Raises a compilation error for floats. Python itself checks compile-time numbers."""
    if isinstance(x, (int, float)):
        return
    tl.static_assert(not x.dtype.is_floating(), f"it divides integers, not {x.dtype}; write tl.ceil(x / y)")


@inline_method
def cdiv(x, div):
    """Divides two positive integers and rounds up.

    `x` and `div` are integers, or constants. Operands broadcast to one shape, in the dtype that the two promote to.

    Example:
        tl.cdiv(7, 2)  # 4
        tl.cdiv(tl.arange(0, 4), 2)  # [0, 1, 1, 2]
    """
    _needs_integer(x)
    _needs_integer(div)
    return (x + (div - 1)) // div


@inline_method
def sigmoid(x):
    """Computes 1 / (1 + exp(-x)) in the dtype of x, or in fp32 for integers.

    The result has the shape of `x`.

    Example:
        tl.sigmoid(tl.zeros((2,), tl.float32))  # [0.5, 0.5]
    """
    wide = x if x.dtype == float64 else x.to(float32)
    result = 1 / (1 + tl.exp(-wide))
    return result.to(x.dtype) if x.dtype.is_floating() else result


@inline_method
def softmax(x, dim=None, keep_dims=False, ieee_rounding=False):
    """Computes exp(x - max) / sum(exp(x - max)) along an axis, by default the first, in fp32 or fp64.

    The result has the shape of `x`.

    Example:
        tl.softmax(tl.zeros((4,), tl.float32))  # [0.25, 0.25, 0.25, 0.25]
    """
    axis: constexpr = 0 if dim is None else dim
    wide = x if x.dtype == float64 else x.to(float32)
    numerator = tl.exp(wide - tl.max(wide, axis, keep_dims=True))
    return numerator / tl.sum(numerator, axis, keep_dims=True)


@inline
def swizzle2d(i, j, size_i, size_j, size_g):
    """Reorders the positions (i, j) of a size_i x size_j grid into groups of size_g rows, walked column by column. Programs that run at the
    same time then share columns of the second operand. Returns the new (i, j).

    The arguments are integer scalars or tiles.

    Example:
        i, j = tl.swizzle2d(0, 1, 4, 4, 2)
        i  # 1
        j  # 0
    """
    position = i * size_j + j
    group = position // (size_g * size_j)
    first = group * size_g
    rows = tl.minimum(size_i - first, size_g)
    inside = position % (size_g * size_j)
    return first + inside % rows, inside // rows


@inline
def squeeze(x, dim):
    """Removes an axis of size one.

    The result has the other axes of `x`.

    Example:
        tl.squeeze(tl.zeros((1, 2), tl.int32) + 7, 0)  # [7, 7]
    """
    axis: constexpr = dim % len(x.shape)
    tl.static_assert(-len(x.shape) <= dim and dim < len(x.shape), "squeeze removes an axis of the tile")
    tl.static_assert(x.shape[axis] == 1, "squeeze removes an axis of size one")
    return tl.reshape(x, x.shape[:axis] + x.shape[axis + 1 :])


@inline
def unsqueeze(x, dim):
    """Inserts an axis of size one; the same as `expand_dims`.

    The result has one axis more than `x`.

    Example:
        tl.unsqueeze(tl.arange(0, 2), 1)  # [[0], [1]]
    """
    return tl.expand_dims(x, dim)


@inline_method
def atomic_poll(pointer, expected_value, sem=None, scope=None, timeout_ns=None):
    """Waits until memory holds the expected value at every pointer. Returns whether it was seen, as int1.

    `sem` is "acquire", the default, or "relaxed"; `scope` is that of `atomic_add`. `timeout_ns` is None, or 0 for one look at memory. A
    program may wait only for programs with lower ids, because programs with higher ids may not have started.

    Example:
        tl.atomic_poll(i_ptr, tl.load(i_ptr))  # True
    """
    tl.static_assert(
        timeout_ns is None or timeout_ns == 0, "atomic_poll waits without a limit (None), or looks once (0)"
    )
    dtype: constexpr = pointer.type.element_ty
    if pointer.type.is_block():
        dtype: constexpr = pointer.type.element_ty.element_ty
    tl.static_assert(
        dtype.is_int() and dtype.primitive_bitwidth >= 16,
        "atomic_poll needs pointers to integers of 16, 32 or 64 bits; poll such a flag",
    )
    order: constexpr = "acquire" if sem is None else sem
    tl.static_assert(order == "acquire" or order == "relaxed", 'the sem of atomic_poll is "acquire" or "relaxed"')
    seen = tl.atomic_cas(pointer, expected_value, expected_value, sem=order, scope=scope) == expected_value
    if timeout_ns is None:
        while not _everywhere(seen):
            seen = tl.atomic_cas(pointer, expected_value, expected_value, sem=order, scope=scope) == expected_value
    return seen


@inline
def _everywhere(condition):
    return condition if len(condition.shape) == 0 else tl.min(condition.to(int32)) == 1
