"""Declares the builtins of the language: `load`, `arange`, `dot`...

Each builtin is a Python function with a signature and a docstring, so `help(tl.load)` and completion work. `blocknb.frontend` emits the
ops. It identifies a builtin by its attribute `builtin`, so any alias (`exp = tl.exp`, `from ... import load`) is the same builtin.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from blocknb.language.constants import PropagateNan
from blocknb.language.declarations import BUILTINS, builtin, method
from blocknb.language.ops import named

# -- programs and sources --------------------------------------------------------------------------------------------------


@builtin
def program_id(axis): ...


@builtin
def num_programs(axis): ...


@builtin
def arange(start, end): ...


@builtin
def full(shape, value, dtype):
    """Returns a tile of the given shape that is filled with one value, a number or a scalar."""


@builtin
def zeros(shape, dtype):
    """Returns a tile of zeros. The sizes of the shape are powers of two that are known at compile time."""


@builtin
def zeros_like(input):
    """Returns zeros with the shape and the dtype of another tile."""


@builtin
def to_tensor(x):
    """Returns a number as a run-time scalar."""


# -- memory ----------------------------------------------------------------------------------------------------------------


@builtin
def load(
    pointer,
    mask=None,
    other=None,
    boundary_check=(),
    padding_option="",
    cache_modifier="",
    eviction_policy="",
    volatile=False,
): ...


@method
def store(pointer, value, mask=None, boundary_check=(), cache_modifier="", eviction_policy=""): ...


def _atomic(name: str, does: str) -> Callable:
    def declaration(pointer, val, mask=None, sem=None, scope=None): ...

    declaration.__name__ = declaration.__qualname__ = name
    declaration.__doc__ = f"""{does} atomically, where the mask is on. Returns the old values, and zero where the mask is off.

    Each element is one atomic operation, and their order is not defined. `sem` is the memory order: "relaxed", "acquire", "release" or
    "acq_rel", the default. In a `while`, an atomic whose result is used always has acquire semantics. Accesses after the loop then see
    the data that it waited for. `scope` is "cta", "gpu" (the default) or "sys": the threads to which the order applies.
    """
    return method(declaration)


atomic_add = _atomic("atomic_add", "Adds `val` to memory")
atomic_max = _atomic("atomic_max", "Stores the maximum of `val` and the value in memory")
atomic_min = _atomic("atomic_min", "Stores the minimum of `val` and the value in memory")
atomic_and = _atomic("atomic_and", "Stores the bitwise and of `val` and the value in memory")
atomic_or = _atomic("atomic_or", "Stores the bitwise or of `val` and the value in memory")
atomic_xor = _atomic("atomic_xor", "Stores the bitwise exclusive or of `val` and the value in memory")
atomic_xchg = _atomic("atomic_xchg", "Stores `val`")


@method
def atomic_cas(pointer, cmp, val, sem=None, scope=None):
    """Stores `val` atomically where memory holds `cmp`, compared bit by bit. Returns the old values.

    A loop `while tl.atomic_cas(lock, 0, 1) == 1: pass` acquires a lock. A program may wait only for programs with lower ids, because
    programs with higher ids may not have started. `sem` and `scope` have the meaning of those of `atomic_add`.
    """


@builtin
def debug_barrier():
    """Synchronizes all threads of the program; each thread then sees the stores of the others."""


# -- shapes ----------------------------------------------------------------------------------------------------------------


@method
def reshape(input, *shape, can_reorder=False): ...


@method
def view(input, *shape):
    """Gives the tile another shape; the same as `reshape`."""


@method
def broadcast_to(input, *shape):
    """Repeats the tile to a shape, along axes of size one and new leading axes."""


@builtin
def broadcast(input, other):
    """Repeats both tiles to their common shape, and returns the two."""


@method
def expand_dims(input, axis):
    """Adds axes of size one. `axis` is the position in the result, an int or a tuple of ints."""


@method
def ravel(x, can_reorder=False):
    """Returns the tile as one row."""


@method
def trans(input, *dims):
    """Permutes the axes by `dims`, or swaps the last two axes without `dims`."""


@method
def permute(input, *dims):
    """Permutes the axes: axis i of the result is axis dims[i] of the input."""


# -- types and selection ---------------------------------------------------------------------------------------------------


@method
def cast(input, dtype, fp_downcast_rounding=None, bitcast=False): ...


@method
def to(input, dtype, fp_downcast_rounding=None, bitcast=False):
    """Converts to another dtype; `bitcast=True` keeps the bits instead of the numbers.

    Floats are rounded to nearest, ties to even, or toward zero with `fp_downcast_rounding="rtz"`. Numbers beyond the range of an fp8
    dtype, and infinities, become its largest number. fp8 supports signs, comparisons and tl.dot only.
    A float that becomes an integer is truncated. Out of range it becomes the smallest or largest integer, and NaN becomes 0.

    Example:
        tl.full((), 300.7, tl.float32).to(tl.uint8)  # 255
        tl.full((), 1000.0, tl.float32).to(tl.float8e4nv).to(tl.float32)  # 448.0
        tl.full((), 1.3, tl.float32).to(tl.float8e5).to(tl.float32)  # 1.25
    """


@method
def item(input):
    """Returns the only element of a tile of size one, as a scalar.

    Example:
        tl.full((1, 1), 7, tl.int32).item()  # 7
    """


@builtin
def where(condition, x, y):
    """Selects x where the condition holds and y elsewhere. Both are computed, and all three broadcast."""


# -- arithmetic ------------------------------------------------------------------------------------------------------------


def _unary(name: str, doc: str | None = None) -> Callable:
    def declaration(x): ...

    declaration.__doc__ = doc
    declaration.__name__ = declaration.__qualname__ = name
    return method(declaration)


exp, exp2, log, log2, sqrt, rsqrt, sin, cos, tanh, erf, floor, ceil, abs = map(
    _unary, ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil", "abs")
)
#: The table declares these functions. The names above are for editors and type checkers; a new function works without one.
FUNCTIONS = {name: BUILTINS.get(name) or _unary(name) for name in sorted(named("special_function"))}
sqrt_rn = _unary("sqrt_rn", "Square root, rounded to nearest.")


@builtin
def maximum(x, y, propagate_nan=PropagateNan.NONE):
    """Returns the elementwise maximum. A NaN loses against a number unless propagate_nan is PropagateNan.ALL; -0.0 is below 0.0."""


@builtin
def minimum(x, y, propagate_nan=PropagateNan.NONE):
    """Returns the elementwise minimum. A NaN loses against a number unless propagate_nan is PropagateNan.ALL; -0.0 is below 0.0."""


@builtin
def clamp(x, min, max, propagate_nan=PropagateNan.NONE):
    """Limits x to the range from min to max. A NaN becomes min unless propagate_nan is PropagateNan.ALL."""


@builtin
def umulhi(x, y):
    """Returns the upper half of the product of two unsigned integers of 32 or 64 bits."""


def _operator(name: str, symbol: str) -> Callable:
    compute = getattr(operator, name)

    def declaration(x, y, sanitize_overflow=True): ...

    declaration.__name__ = declaration.__qualname__ = name
    declaration.__doc__ = f"""Computes `x {symbol} y`. Integers wrap; `sanitize_overflow` has no effect.

    Example:
        tl.{name}(tl.arange(0, 4), 2)  # {[compute(i, 2) for i in (0, 1, 2, 3)]}
    """
    return builtin(declaration)


add, sub, mul = (_operator(name, symbol) for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*")))


@builtin
def fma(x, y, z): ...


@builtin
def fdiv(x, y, ieee_rounding=False):
    """Divides two floats."""


@builtin
def div_rn(x, y):
    """Divides two floats, rounded to nearest."""


@method
def logical_and(input, other):
    """Computes the logical and. Both sides are evaluated."""


@method
def logical_or(input, other):
    """Computes the logical or. Both sides are evaluated."""


@builtin
def dot(
    input, other, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=None,
    *, trans_a=False, trans_b=False,
):  # fmt: skip
    """Computes the matrix product `input @ other` (+ acc), accumulated in fp32, in int32 for int8, and in fp64 for fp64.

    fp32 operands are rounded to tf32 unless `input_precision` is "ieee" or "tf32x3", or `allow_tf32=False`. Products of two fp8
    operands are exact, also of different fp8 dtypes. Sums are always in fp32; `max_num_imprecise_acc` has no effect. With
    `out_dtype=tl.float16`, tensor cores accumulate in fp32, and the sum is rounded after the loop. `trans_a` and `trans_b` transpose an
    operand, as in early versions of Triton; prefer tl.trans.
    """


# -- reductions ------------------------------------------------------------------------------------------------------------


@method
def sum(input, axis=None, keep_dims=False, dtype=None):
    """Returns the sum along an axis, or of all elements. Integers narrower than 32 bits are summed in 32."""


@method
def max(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    """Returns the maximum along an axis, or of all elements, and with `return_indices` its index. A NaN loses; -0.0 is below 0.0."""


@method
def min(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    """Returns the minimum along an axis, or of all elements, and with `return_indices` its index. A NaN loses; -0.0 is below 0.0."""


@method
def argmax(input, axis, tie_break_left=True, keep_dims=False):
    """Returns the index of the maximum along an axis: the lowest, or any with tie_break_left=False. NaN loses, as in tl.max."""


@method
def argmin(input, axis, tie_break_left=True, keep_dims=False):
    """Returns the index of the minimum along an axis: the lowest, or any with tie_break_left=False. NaN loses, as in tl.min."""


@method
def xor_sum(input, axis=None, keep_dims=False):
    """Returns the bitwise exclusive or of the integers along an axis."""


@method
def reduce_or(input, axis=None, keep_dims=False):
    """Returns the bitwise or of the integers along an axis."""


@method
def reduce(input, axis, combine_fn, keep_dims=False):
    """Combines the elements along an axis by an associative and commutative kernel function.

    The function takes two elements, or two tuples of elements. It may branch and call other kernel functions. If it loops, the tile is
    combined in halves. A GPU combines distant elements first, as Triton does. For a function that does not commute, take the last element
    of `associative_scan`.

    Example:
        tl.reduce(tl.arange(0, 8) + 1, 0, tl.standard._prod_combine)  # 40320
    """


# -- scans and moves along an axis ---------------------------------------------------------------------------------------------


@method
def associative_scan(input, axis, combine_fn, reverse=False):
    """Combines each element along an axis with all elements before it, by an associative kernel function.

    With `reverse`, it combines each element with all elements after it. The function takes two elements, or two tuples of elements. It
    may branch, loop and call other kernel functions.

    Example:
        tl.associative_scan(tl.arange(0, 4) + 1, 0, tl.standard._prod_combine)  # [1, 2, 6, 24]
    """


@method
def cumsum(input, axis=0, reverse=False, dtype=None):
    """Returns the cumulative sum along an axis. Integers narrower than 32 bits are summed in 32, bf16 in fp32."""


@method
def cumprod(input, axis=0, reverse=False):
    """Returns the cumulative product along an axis. Integers narrower than 32 bits are multiplied in 32, bf16 in fp32."""


@method
def gather(src, index, axis):
    """Gathers elements along an axis: element i is element index[i] of `src`. Other axes are equal; indices are taken modulo the size."""


@method
def flip(x, dim=-1):
    """Reverses the tile along an axis."""


@builtin
def xor_shuffle(x, axis, mask):
    """Permutes elements along an axis: element i is element i ^ mask of `x`. A mask of one bit swaps neighbours at that distance."""


# -- loops, hints, compile time ----------------------------------------------------------------------------------------------


@builtin
def range(
    arg1,
    arg2=None,
    step=None,
    num_stages=None,
    loop_unroll_factor=None,
    disallow_acc_multi_buffer=False,
    flatten=False,
    warp_specialize=False,
    disable_licm=False,
):
    """Iterates like Python's range, with hints for the compiler. It is allowed only as the iterator of a `for`."""


@builtin
def condition(arg1, disable_licm=False):
    """Marks the condition of a `while`, with a hint for the compiler: `while tl.condition(i < n):`. The compiler may move invariant
    code out of the loop in any case.

    Example:
        i = 0
        while tl.condition(i < 5, disable_licm=True):
            i += 2
        i  # 6
    """


@builtin
def static_range(arg1, arg2=None, step=None):
    """Iterates like range and unrolls the loop. The bounds and the index are compile-time constants."""


@builtin
def multiple_of(input, values):
    """Promises that the first element of each contiguous group is a multiple of `values`, and returns the input.

    `values` is one number, or one per axis. For a pointer, the promise concerns the address in bytes. Accesses become as wide as the
    promises allow.

    Example:
        start = tl.multiple_of(tl.load(i_ptr + 8), 8)
        start + tl.arange(0, 2)  # [8, 9]
    """


@builtin
def max_contiguous(input, values):
    """Promises that each group of `values` elements is contiguous, along each axis, and returns the input.

    Example:
        i = tl.max_contiguous(tl.arange(0, 8) % 8, 8)
        tl.sum(i)  # 28
    """


@builtin
def max_constancy(input, values):
    """Promises that each group of `values` elements is constant, along each axis, and returns the input.

    Example:
        i = tl.max_constancy(tl.arange(0, 8) // 4, 4)
        i  # [0, 0, 0, 0, 1, 1, 1, 1]
    """


@builtin
def assume(cond):
    """Promises that a condition holds. Comparisons with constants (`n > 0`, `0 <= i`, joined by `&`) give bounds, and `n % 16 == 0` means
    the same as `multiple_of`. A promise in a branch or a loop applies to values that are computed there.

    Example:
        n = tl.load(i_ptr + 5)
        tl.assume((n >= 0) & (n < 16))
        n  # 5
    """


@builtin
def static_assert(cond, msg=""):
    """Stops the compilation with the message unless the compile-time condition holds."""


@builtin
def static_print(*values, sep=" ", end="\n", file=None, flush=False):
    """Prints at compile time: constants as they are, and run-time values by their type."""
