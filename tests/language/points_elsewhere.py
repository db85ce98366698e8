"""A module of helpers, for the tests of functions that live in another one."""

import blocknb.language as tl
from blocknb import kernel


@kernel
def larger(a, b):
    return tl.where(_first(a, b), a, b)


@kernel
def _first(a, b):
    return a > b
