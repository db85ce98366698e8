"""The names of the language: what `load`, `arange`, `dot`... look like from outside a kernel.

Each is declared once, as a Python function with its signature and a docstring, so that `help(tl.load)` and completion work as
for any function; where an op of the same name exists its doc is taken from the op table. Called from plain Python they raise
a clear error, because a block program only means something inside a kernel. What they emit stands in `blocknb.frontend`, which
finds them by `builtin`, an attribute with the name: so any alias (`exp = tl.exp`, `from ... import load`) is the same builtin.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from blocknb.errors import KernelError
from blocknb.language.constants import PropagateNan
from blocknb.language.examples import documented
from blocknb.language.ops import OPS, named

#: While a kernel is interpreted: how a function of the language is called there, (function, args, kwargs).
running: ContextVar[Callable[..., Any] | None] = ContextVar("running", default=None)
BUILTINS: dict[str, Callable] = {}
MEMBERS: set[str] = set()  # builtins that are also methods of a tile: x.sum(0)


def builtin(declaration: Callable, member: bool = False) -> Callable:
    """Makes a declaration a builtin of the language. `member`: also a method of tiles, which are then its first argument."""
    name = declaration.__qualname__
    if not declaration.__doc__ and name in OPS:
        declaration.__doc__ = OPS[name].help.text
    declaration.__doc__ = documented(name, declaration.__doc__)

    @functools.wraps(declaration)
    def outside(*args: Any, **kwargs: Any) -> Any:
        if (run := running.get()) is not None:
            return run(outside, args, kwargs)
        raise KernelError(
            f"`{name}` computes on blocks and works only inside a kernel",
            hint="put it in a function decorated with @blocknb.kernel and launch that with kernel[grid](...)",
        )

    outside.builtin = name  # type: ignore[attr-defined]
    BUILTINS[name] = outside
    if member:
        MEMBERS.add(name)
    return outside


def method(declaration: Callable) -> Callable:
    """A builtin that is also a method of tiles."""
    return builtin(declaration, member=True)


# -- programs and sources --------------------------------------------------------------------------------------------------


@builtin
def program_id(axis): ...


@builtin
def num_programs(axis): ...


@builtin
def arange(start, end): ...


@builtin
def full(shape, value, dtype):
    """A tile of the given shape filled with one value (a number or a scalar)."""


@builtin
def zeros(shape, dtype):
    """A tile of zeros. The sizes of the shape are powers of two known at compile time."""


@builtin
def zeros_like(input):
    """Zeros of the shape and dtype of another tile."""


@builtin
def to_tensor(x):
    """A number as a run-time scalar."""


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
    declaration.__doc__ = f"""{does} where the mask is on, each element in one step that no other program can see half done; returns
    what was there before (zero where the mask is off). In which order elements take their turn is not said.

    `sem` ("relaxed", "acquire", "release", "acq_rel", the default): whether other accesses of the program stay before or after.
    In a `while`, an atomic whose result is used acquires in any case, so that accesses after the loop see what it waited for.
    `scope` ("cta", "gpu", the default, "sys"): among whom.
    """
    return method(declaration)


atomic_add = _atomic("atomic_add", "Adds to memory")
atomic_max = _atomic("atomic_max", "Stores the larger of `val` and what memory holds")
atomic_min = _atomic("atomic_min", "Stores the smaller of `val` and what memory holds")
atomic_and = _atomic("atomic_and", "Stores the bitwise and of `val` and what memory holds")
atomic_or = _atomic("atomic_or", "Stores the bitwise or of `val` and what memory holds")
atomic_xor = _atomic("atomic_xor", "Stores the bitwise exclusive or of `val` and what memory holds")
atomic_xchg = _atomic("atomic_xchg", "Stores `val`")


@method
def atomic_cas(pointer, cmp, val, sem=None, scope=None):
    """Stores `val` where memory holds `cmp` (compared bit by bit), in one step; returns what was there before.

    A loop `while tl.atomic_cas(lock, 0, 1) == 1: pass` waits until it gets the lock. A program may wait only for programs with
    lower ids: those have started, but nobody knows whether higher ones have. `sem` and `scope` are those of `atomic_add`.
    """


@builtin
def debug_barrier():
    """All threads of the program meet here: what they have stored before, each of them sees after."""


# -- shapes ----------------------------------------------------------------------------------------------------------------


@method
def reshape(input, *shape, can_reorder=False): ...


@method
def view(input, *shape):
    """The same elements in row-major order under another shape (the same as `reshape`)."""


@method
def broadcast_to(input, *shape):
    """The tile repeated to a shape, along axes of size one and new leading axes."""


@builtin
def broadcast(input, other):
    """Both tiles repeated to their common shape; returns the two."""


@method
def expand_dims(input, axis):
    """New axes of size one; `axis` is an int or a tuple of ints in the result."""


@method
def ravel(x, can_reorder=False):
    """The tile as one row."""


@method
def trans(input, *dims):
    """The axes permuted by `dims`; without, the last two swapped."""


@method
def permute(input, *dims):
    """The axes permuted: axis i of the result is axis dims[i] of the input."""


# -- types and selection ---------------------------------------------------------------------------------------------------


@method
def cast(input, dtype, fp_downcast_rounding=None, bitcast=False): ...


@method
def to(input, dtype, fp_downcast_rounding=None, bitcast=False):
    """The same numbers as another dtype (`bitcast=True`: the same bits).

    Floats are rounded to nearest, ties to even (`fp_downcast_rounding="rtz"`: toward zero). What is beyond the largest number of an
    fp8 dtype becomes that number, infinity too; nothing is computed in fp8 but signs, comparisons and tl.dot.
    A float that becomes an integer is truncated. Out of the integer's range it becomes the smallest or largest one, and NaN becomes 0.

    Example:
        tl.full((), 300.7, tl.float32).to(tl.uint8)  # 255
        tl.full((), 1000.0, tl.float32).to(tl.float8e4nv).to(tl.float32)  # 448.0
        tl.full((), 1.3, tl.float32).to(tl.float8e5).to(tl.float32)  # 1.25
    """


@method
def item(input):
    """The only element of a tile of size one, as a scalar.

    Example:
        tl.full((1, 1), 7, tl.int32).item()  # 7
    """


@builtin
def where(condition, x, y):
    """x where the condition holds, y elsewhere; both are computed, the three broadcast."""


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
    """The larger of two, element by element. A NaN loses against a number unless propagate_nan is PropagateNan.ALL; -0.0 is below 0.0."""


@builtin
def minimum(x, y, propagate_nan=PropagateNan.NONE):
    """The smaller of two, element by element. A NaN loses against a number unless propagate_nan is PropagateNan.ALL; -0.0 is below 0.0."""


@builtin
def clamp(x, min, max, propagate_nan=PropagateNan.NONE):
    """x kept between min and max: `minimum(maximum(x, min), max)`, so a NaN becomes min unless propagate_nan is PropagateNan.ALL."""


@builtin
def umulhi(x, y):
    """The upper half of the product of two integers of 32 or 64 bits, taken as unsigned."""


def _operator(name: str, symbol: str) -> Callable:
    compute = getattr(operator, name)

    def declaration(x, y, sanitize_overflow=True): ...

    declaration.__name__ = declaration.__qualname__ = name
    declaration.__doc__ = f"""`x {symbol} y`. Integers wrap, whatever `sanitize_overflow` says.

    Example:
        tl.{name}(tl.arange(0, 4), 2)  # {[compute(i, 2) for i in (0, 1, 2, 3)]}
    """
    return builtin(declaration)


add, sub, mul = (_operator(name, symbol) for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*")))


@builtin
def fma(x, y, z): ...


@builtin
def fdiv(x, y, ieee_rounding=False):
    """The quotient of two floats."""


@builtin
def div_rn(x, y):
    """The quotient of two floats, rounded to nearest."""


@method
def logical_and(input, other):
    """Both hold (run-time `and`: both sides are computed)."""


@method
def logical_or(input, other):
    """One of the two holds (run-time `or`: both sides are computed)."""


@builtin
def dot(
    input, other, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=None,
    *, trans_a=False, trans_b=False,
):  # fmt: skip
    """The matrix product `input @ other` (+ acc), accumulated in fp32 (int32 for int8, fp64 for fp64).

    fp32 operands are rounded to tf32 unless `input_precision` is "ieee" or "tf32x3", or `allow_tf32=False`. Two operands of fp8,
    also of two kinds, are multiplied exactly; `max_num_imprecise_acc` is accepted, but sums are always those of fp32. What is asked
    for in fp16 is added up in fp32 by tensor cores, and rounded behind the loop. `trans_a` and `trans_b`, of the first versions of
    the language, stand for tl.trans of an operand.
    """


# -- reductions ------------------------------------------------------------------------------------------------------------


@method
def sum(input, axis=None, keep_dims=False, dtype=None):
    """The sum along an axis, or of all elements. Integers narrower than 32 bits are summed in 32."""


@method
def max(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    """The maximum along an axis, or of all elements; with `return_indices` also where. NaN loses against numbers; -0.0 is below 0.0."""


@method
def min(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    """The minimum along an axis, or of all elements; with `return_indices` also where. NaN loses against numbers; -0.0 is below 0.0."""


@method
def argmax(input, axis, tie_break_left=True, keep_dims=False):
    """The index of the maximum along an axis; of equal ones the lowest (tie_break_left=False: any). NaN loses, as in tl.max."""


@method
def argmin(input, axis, tie_break_left=True, keep_dims=False):
    """The index of the minimum along an axis; of equal ones the lowest (tie_break_left=False: any). NaN loses, as in tl.min."""


@method
def xor_sum(input, axis=None, keep_dims=False):
    """The exclusive or of the integers along an axis."""


@method
def reduce_or(input, axis=None, keep_dims=False):
    """The bitwise or of the integers along an axis."""


@method
def reduce(input, axis, combine_fn, keep_dims=False):
    """Combines along an axis with a kernel function of two elements (or of two tuples of elements), which must be associative and
    commutative. It may branch and call other kernel functions; where it loops, the tile is combined in halves.

    Example:
        tl.reduce(tl.arange(0, 8) + 1, 0, tl.standard._prod_combine)  # 40320
    """


# -- scans and moves along an axis ---------------------------------------------------------------------------------------------


@method
def associative_scan(input, axis, combine_fn, reverse=False):
    """Each element combined with all before it along an axis (`reverse`: after it), by a kernel function of two elements or
    of two tuples of elements, which must be associative. It may branch, loop and call other kernel functions.

    Example:
        tl.associative_scan(tl.arange(0, 4) + 1, 0, tl.standard._prod_combine)  # [1, 2, 6, 24]
    """


@method
def cumsum(input, axis=0, reverse=False, dtype=None):
    """The running sum along an axis. Integers narrower than 32 bits are summed in 32, bf16 in fp32."""


@method
def cumprod(input, axis=0, reverse=False):
    """The running product along an axis. Integers narrower than 32 bits are multiplied in 32, bf16 in fp32."""


@method
def gather(src, index, axis):
    """Element i along the axis is element index[i] of `src` along it. Other axes are equal; indices are taken modulo the size."""


@method
def flip(x, dim=-1):
    """The tile reversed along an axis."""


@builtin
def xor_shuffle(x, axis, mask):
    """Element i along the axis is element i ^ mask of `x`: a single bit as the mask swaps neighbours that far apart."""


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
    """Python's range with hints for the compiler; only as the iterator of a `for`."""


@builtin
def condition(arg1, disable_licm=False):
    """The condition of a `while`, with a hint for the compiler: `while tl.condition(i < n):`. What does not change in the loop may
    be moved before it all the same.

    Example:
        i = 0
        while tl.condition(i < 5, disable_licm=True):
            i += 2
        i  # 6
    """


@builtin
def static_range(arg1, arg2=None, step=None):
    """A range that is unrolled while compiling: its bounds and its index are compile-time constants."""


@builtin
def multiple_of(input, values):
    """Promises that the first element of every group of contiguous ones is a multiple of `values` (one number, or one for each axis);
    of a pointer, its address in bytes. Returns the input. Accesses become as wide as promises allow.

    Example:
        start = tl.multiple_of(tl.load(i_ptr + 8), 8)
        start + tl.arange(0, 2)  # [8, 9]
    """


@builtin
def max_contiguous(input, values):
    """Promises that the first `values` elements of every group are contiguous, along each axis. Returns the input.

    Example:
        i = tl.max_contiguous(tl.arange(0, 8) % 8, 8)
        tl.sum(i)  # 28
    """


@builtin
def max_constancy(input, values):
    """Promises that the first `values` elements of every group are equal, along each axis. Returns the input.

    Example:
        i = tl.max_constancy(tl.arange(0, 8) // 4, 4)
        i  # [0, 0, 0, 0, 1, 1, 1, 1]
    """


@builtin
def assume(cond):
    """Promises that a condition holds. Comparisons with constants (`n > 0`, `0 <= i`, joined by `&`) bound what they compare, and
    `n % 16 == 0` says what `multiple_of` says; what is promised in a branch or a loop holds for values made there.

    Example:
        n = tl.load(i_ptr + 5)
        tl.assume((n >= 0) & (n < 16))
        n  # 5
    """


@builtin
def static_assert(cond, msg=""):
    """Stops compilation with the message unless the compile-time condition holds."""


@builtin
def static_print(*values, sep=" ", end="\n", file=None, flush=False):
    """Prints while compiling: constants as they are, run-time values by their type."""
