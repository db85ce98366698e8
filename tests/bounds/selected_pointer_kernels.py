"""Ways to make a pointer that may come from two arrays, each as a kernel.

Of each kernel, c > 1 chooses `x`, else `y`; it then makes BLOCK accesses from element `off` on, those below n. `table` holds the
addresses of both arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import blocknb
import blocknb.language as tl

ACTIONS = ("load", "store", "atomic", "cas")
WAYS: dict[str, Any] = {}
#: Kernels whose pointers are looked up by address among the arguments.
RESOLVED = ("loaded", "loaded_tile", "summed_integers", "reduced", "split_again")
#: Those of them whose pointers may point to memory outside all arguments.
FOREIGN = ("loaded", "loaded_tile")


@blocknb.kernel
def act(p, i, n, out, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    """Accesses through a tile of pointers."""
    if ACTION == "load":
        tl.store(out + tl.arange(0, BLOCK), tl.load(p, mask=i < n, other=0))
    elif ACTION == "store":
        tl.store(p, i + 100, mask=i < n)
    elif ACTION == "atomic":
        tl.atomic_add(p, i + 100, mask=i < n)
    else:
        tl.store(out + tl.arange(0, BLOCK), tl.load(p, mask=i < n - 1, other=0))


@blocknb.kernel
def finish(p, off, n, out, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    """Accesses through a scalar pointer."""
    i = tl.arange(0, BLOCK)
    if ACTION == "cas":
        tl.store(out, tl.atomic_cas(p + off + n - 1, 7, 5))
    else:
        act(p + off + i, i, n, out, ACTION, BLOCK)


def way(function: Any) -> Any:
    """A kernel that is compiled once for all values of its integer arguments."""
    made = blocknb.kernel(do_not_specialize=["c", "off", "n"])(function)
    WAYS[made.__name__] = made
    return made


@way
def conditional(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    finish(x if c > 1 else y, off, n, out, ACTION, BLOCK)


@way
def where(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    finish(tl.where(c > 1, x, y), off, n, out, ACTION, BLOCK)


@way
def branches(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    if c > 1:
        p = x
    else:
        p = y
    finish(p, off, n, out, ACTION, BLOCK)


@blocknb.kernel
def chosen(x, y, c):
    if c > 1:
        return x
    return y


@way
def helper(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    finish(chosen(x, y, c), off, n, out, ACTION, BLOCK)


@way
def swapped(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    p, q = y, x
    for _ in range(c + 1):
        p, q = q, p
    finish(p, off, n, out, ACTION, BLOCK)


@way
def swapped_while(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    p, q, i = y, x, 0
    while i < c + 1:
        p, q, i = q, p, i + 1
    finish(p, off, n, out, ACTION, BLOCK)


@way
def swapped_tiles(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p, q = y + off + i, x + off + i
    for _ in range(c + 1):
        p, q = q, p
    act(p, i, n, out, ACTION, BLOCK)


@way
def moved_in_a_loop(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    p = x if c > 1 else y
    for _ in range(4):
        p += 3
    finish(p - 12, off, n, out, ACTION, BLOCK)


@way
def nested(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    p = x
    if c < 5:
        q = out
        for _ in range(c + 1):
            q = tl.where(c > 1, x, y)
        p = q
    finish(p, off, n, out, ACTION, BLOCK)


@way
def lanes(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    act(tl.where((i >= 0) & (c > 1), x + off + i, y + off + i), i, n, out, ACTION, BLOCK)


@way
def carried_lanes(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p = y + off + i
    for k in range(c + 1):
        p = tl.where((i >= 0) & (k > 1), x + off + i, p)
    act(p, i, n, out, ACTION, BLOCK)


@way
def gathered(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    both = tl.where(i == 1, x, y)
    at = i * 0 + tl.where(c > 1, 1, 0)
    act(tl.gather(both, at, 0) + off + i, i, n, out, ACTION, BLOCK)


@way
def concatenated(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK // 2)
    p = tl.where(c > 1, x, y) + off
    both = tl.cat(p + i, p + i + BLOCK // 2)
    act(both, tl.arange(0, BLOCK), n, out, ACTION, BLOCK)


@way
def joined(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK // 2)
    p = tl.where(c > 1, x, y) + off
    both = tl.reshape(tl.join(p + 2 * i, p + 2 * i + 1), (BLOCK,))
    act(both, tl.arange(0, BLOCK), n, out, ACTION, BLOCK)


@way
def bitcast(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    p = (x if c > 1 else y).to(tl.pointer_type(tl.int8)).to(tl.pointer_type(tl.int32))
    finish(p, off, n, out, ACTION, BLOCK)


@way
def integer(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    address = x.to(tl.int64) if c > 1 else y.to(tl.int64)
    finish((address + 0).to(tl.pointer_type(tl.int32)), off, n, out, ACTION, BLOCK)


@way
def integer_tile(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    address = tl.where((i >= 0) & (c > 1), x.to(tl.int64), y.to(tl.int64))
    act(address.to(tl.pointer_type(tl.int32)) + off + i, i, n, out, ACTION, BLOCK)


@way
def summed_integers(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    between = y.to(tl.int64) - x.to(tl.int64)
    p = (x.to(tl.int64) + (0 if c > 1 else between)).to(tl.pointer_type(tl.int32))
    finish(p, off, n, out, ACTION, BLOCK)


@way
def reduced(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    both = tl.where(i == 1, x.to(tl.int64), y.to(tl.int64))
    one = tl.sum(tl.where(i == tl.where(c > 1, 1, 0), both, 0), 0)
    finish(one.to(tl.pointer_type(tl.int32)), off, n, out, ACTION, BLOCK)


@way
def loaded(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.load(table + tl.where(c > 1, 0, 1)).to(tl.pointer_type(tl.int32))
    finish(p, off, n, out, ACTION, BLOCK)


@way
def loaded_tile(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p = tl.load(table + i * 0 + tl.where(c > 1, 0, 1)).to(tl.pointer_type(tl.int32))
    act(p + off + i, i, n, out, ACTION, BLOCK)


@way
def split_again(x, y, table, out, c, off, n, ACTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    first, second = tl.split(tl.join(x.to(tl.int64) + i * 0, y.to(tl.int64) + i * 0))
    p = tl.where(c > 1, first, second).to(tl.pointer_type(tl.int32))
    act(p + off + i, i, n, out, ACTION, BLOCK)


@dataclass(frozen=True)
class Found:
    """The text of the access at fault, by the name of the action."""

    verb: str
    text: str


SAID = {
    "load": Found("loads", "tl.load(p"),
    "store": Found("stores to", "tl.store(p"),
    "atomic": Found("updates", "tl.atomic_add(p"),
    "cas": Found("updates", "tl.atomic_cas(p"),
}
