"""The helpers that random block programs call."""

import re

#: The helpers that precede every program; a program calls some of them.
HELPERS = """\
@blocknb.kernel
def both(x, y):
    return x + y, x - y


@blocknb.kernel
def crossed(x, y):
    a, b = both(x, y)
    return (b, a), x


@blocknb.kernel
def either(x, y, first: bl.constexpr):
    if first:
        return x
    else:
        return y


@blocknb.kernel
def least(x, y):
    if x < y:
        return x
    if x == y:
        return y
    return y


@blocknb.kernel
def mixed(x, rounds: bl.constexpr = 2):
    for k in bl.static_range(rounds):
        x = x * 3 + k
    return x


@blocknb.kernel
def climbed(x, n):
    for k in range(n):
        if k != 1:
            x = x + k
    return x
"""

NAMES = re.compile(r"\b(" + "|".join(re.findall(r"def (\w+)", HELPERS)) + r")\(")
