"""A module of helpers, for tests of functions that are defined in another module."""

import blocknb.language as tl
from blocknb import kernel


@kernel
def larger(a, b):
    return tl.where(_first(a, b), a, b)


@kernel
def _first(a, b):
    return a > b
