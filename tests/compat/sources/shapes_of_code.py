"""Ways of writing kernels that real projects use and on which simple loaders fail."""

import numpy as np
import triton
import triton.language as tl
from triton.language import exp2 as raise_two

FAST = False

if FAST:

    @triton.jit
    def scale(x): return x * 3  # fmt: skip
else:

    @triton.jit
    def scale(x): return x * 2  # fmt: skip


class Ops:
    @staticmethod
    @triton.jit
    def twice(x):
        return x + x

    @triton.jit
    def kernel(x, out, n, type: tl.constexpr, BLOCK: tl.constexpr = 32):
        "Ein Häkchen — ✓ — in der Beschreibung."
        range_ = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = range_ < n
        "a bare string"
        v = tl.load(x + range_, mask=inside)
        if type == "scale":
            v = scale(v)
        elif type == "twice":
            v = Ops.twice(v)
        else:
            v = raise_two(v)
        tl.store(out + range_, v, mask=inside)

    def __call__(self, x, type):
        out = np.empty_like(x)
        self.kernel[triton.cdiv(x.size, 32),](x, out, x.size, type=type)
        return out


def plain(x, n: tl.constexpr):
    tl.store(x + tl.arange(0, n), 1.0)


jitted = triton.jit(plain)


@triton.jit()
def with_brackets(x, n, num_warps: tl.constexpr, stride):
    tl.store(x + tl.arange(0, 16) * stride, num_warps + n)


def factory(amount):
    @triton.jit
    def inner(x):
        tl.store(x, amount)

    return inner
