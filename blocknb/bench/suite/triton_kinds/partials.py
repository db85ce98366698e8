"""The place of the largest element of a vector: of each block, then of all blocks. Another kernel finds that of each row by a combining
function."""

import triton
import triton.language as tl


@triton.jit
def _argmax_parts(X, Best, Where, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n, other=-float("inf"))
    value, at = tl.max(x, axis=0, return_indices=True)
    tl.store(Best + pid, value)
    tl.store(Where + pid, pid * BLOCK + at)


@triton.jit
def _argmax_all(Best, Where, Out, parts, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(Best + i, mask=i < parts, other=-float("inf"))
    at = tl.argmax(x, axis=0, tie_break_left=True)
    tl.store(Out, tl.load(Where + at))


def argmax_parts(x, best, where, block):
    _argmax_parts[(triton.cdiv(len(x), block),)](x, best, where, len(x), BLOCK=block)


def argmax_all(best, where, out):
    parts = len(best)
    _argmax_all[(1,)](best, where, out, parts, BLOCK=triton.next_power_of_2(parts))


@triton.jit
def _larger(value_a, at_a, value_b, at_b):
    first = (value_a > value_b) | ((value_a == value_b) & (at_a < at_b))
    return tl.where(first, value_a, value_b), tl.where(first, at_a, at_b)


@triton.jit
def _argmax_rows(X, Values, Where, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
        where = tl.where(x > best, i, where)
        best = tl.maximum(x, best)
    value, at = tl.reduce((best, where), 0, _larger)
    tl.store(Values + row, value)
    tl.store(Where + row, at)


def argmax_rows(x, values, where, block=1024, num_warps=4):
    """The largest element of each row and its first place."""
    _argmax_rows[(x.shape[0],)](x, values, where, x.shape[1], BLOCK=block, num_warps=num_warps)
