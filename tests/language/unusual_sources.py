"""Kernels with unusual source layouts, for tests of the search for a kernel's source."""

import functools

import blocknb as triton
import blocknb.language as tl
from blocknb.language import libdevice

KERNELS, EXPECTED = {}, {}


def expect(value):
    """Records a kernel and its expected result; a decorator above the others."""

    def record(k):
        KERNELS[k.__name__], EXPECTED[k.__name__] = k, value
        return k

    return record


@expect(5)
@triton.autotune(
    configs=[
        triton.Config({"N": 4}),
    ],
    key=[],
)
@triton.heuristics({"M": lambda args: args["N"] + 1})
# a comment between decorators
@triton.jit
def decorated(out, N: tl.constexpr, M: tl.constexpr):
    tl.store(out, M)


USE_FAST = False
# fmt: off
if USE_FAST:
    @triton.jit
    def exp(x): return libdevice.exp(x)
else:
    @triton.jit
    def exp(x): return tl.exp(x)
# fmt: on


@expect(1)
@triton.jit
def one_line_helpers(out):
    tl.store(out, exp(0.0))


@expect(3)
@triton.jit
def docstrings(
    out,  # the result
):
    """A docstring.

    def not_a_kernel(): pass
    """
    x = 3.0
    "a bare string"
    """
    tl.store(out, 100.0)
    """
    tl.store(out, x)


@expect(7)
@triton.jit
def größe(out):
    # Kommentar: Länge × Breite → Fläche
    länge = 3.0
    tl.static_assert(länge.dtype == tl.float32, "größe ≠ 3")
    tl.store(out, länge + 4)


@expect(8)
@triton.jit()
def brackets(out):
    tl.store(out, 8.0)


@expect(9)
@triton.jit(do_not_specialize=["n"], debug=False)
def options(out, n=9):
    tl.store(out, n)


class Holder:
    @staticmethod
    @triton.jit
    def method(out):
        tl.store(out, 10.0)

    @triton.jit
    @staticmethod
    def other_order(out):
        tl.store(out, 11.0)

    @triton.jit
    def helper(x):
        return x * 2


expect(10)(Holder.method)
expect(11)(Holder.other_order)


@expect(12)
@triton.jit
def calls_a_static_method(out):
    tl.store(out, Holder.helper(6.0))


def applied(out):
    tl.store(out, 13.0)


applied = expect(13)(triton.jit(applied))

if triton.__name__ == "blocknb":

    @triton.jit
    def twin(out):
        first = 1.0
        tl.store(out, first)

else:

    @triton.jit
    def twin(out):
        first = 2.0
        tl.store(out, first)


def _made(first_value):
    @functools.cache
    def make():
        @triton.jit
        def twin(out):
            first = first_value
            tl.store(out, first)

        return twin

    return make()


OTHER_TWIN = _made(2.0)
expect(1)(twin)


@expect(15)
@triton.jit
def continued(out):
    tl.store(out,
             15.0)  # fmt: skip


@expect(16)
@triton.jit
def semicolons(out): x = 16.0; tl.store(out, x)  # noqa: E702  # fmt: skip


@triton.jit
def bad_one_liner(out): tl.stoer(out, 1.0)  # fmt: skip
