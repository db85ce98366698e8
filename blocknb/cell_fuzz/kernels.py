"""Correct kernels with known results, from which the generator builds cells and which it mutates.

A Template is text with the fields of `fill`. The `check` is an expression that is true if the launch had the right effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Template:
    """The source of a kernel, the cells' data, a launch, and the check of its result.

    `constants` are its compile-time arguments with values that a sweep may try. The texts have these fields. {k} and {helper} are the names
    of the kernel and of a helper. {n} is a size, {f} a number, and {B} a tile size.
    """

    name: str
    source: str
    data: str
    launch: str
    check: str
    constants: str = "BLOCK"


@dataclass(frozen=True)
class Filled:
    """A `template` with its fields filled: texts of cells."""

    kernel: str
    source: str
    data: str
    launch: str
    check: str
    template: Template


VECTOR = "x = np.arange({n}, dtype=np.float32) % 17; y = x[::-1].copy(); out = np.full_like(x, 777); n = x.size"
GRID = "lambda meta: (blocknb.cdiv(n, meta['BLOCK']),)"

TEMPLATES = (
    Template(
        "axpy",
        """@blocknb.kernel
def {k}(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = {f} * tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, value, mask=inside)
""",
        VECTOR,
        "{k}[" + GRID + "](x, y, out, n, BLOCK={B})",
        "np.array_equal(out, np.float32({f}) * x + y)",
    ),
    Template(
        "helper",
        """@blocknb.kernel
def {helper}(v, w):
    return tl.maximum(v, w) + {f}

@blocknb.kernel
def {k}(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, {helper}(tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)), mask=at < n)
""",
        VECTOR,
        "{k}[" + GRID + "](x, y, out, n, BLOCK={B})",
        "np.array_equal(out, np.maximum(x, y) + np.float32({f}))",
    ),
    Template(
        "captured",
        """FACTOR_{k} = tl.constexpr({f})

@blocknb.kernel
def {k}(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * FACTOR_{k}, mask=at < n)
""",
        VECTOR,
        "{k}[" + GRID + "](x, out, n, BLOCK={B})",
        "np.array_equal(out, x * np.float32({f}))",
    ),
    Template(
        "rows",
        """@blocknb.kernel
def {k}(x, out, columns, stride, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + at, v / tl.sum(v, axis=0), mask=at < columns)
""",
        "x = np.sin(np.arange(6 * {w}, dtype=np.float32)).reshape(6, {w}); out = np.full_like(x, 777); n = x.shape[1]",
        "{k}[(6,)](x, out, n, n, BLOCK=128)",
        "np.allclose(out, np.exp(x) / np.exp(x).sum(1, keepdims=True), 1e-5)",
    ),
    Template(
        "loop",
        """@blocknb.kernel
def {k}(x, out, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < n, other=0)
    tl.store(out, tl.sum(total))
""",
        "x = np.arange({n}, dtype=np.int32) - 9; out = np.full(1, -1, np.int32); n = x.size",
        "{k}[(1,)](x, out, n, BLOCK={B})",
        "out[0] == x.sum()",
    ),
    Template(
        "counts",
        """@blocknb.kernel
def {k}(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.atomic_add(out + tl.load(x + at, mask=inside, other=0), 1, mask=inside)
""",
        "x = (np.arange({n}) * 7 % 11).astype(np.int64); out = np.zeros(11, np.int32); n = x.size",
        "{k}[" + GRID + "](x, out, n, BLOCK={B})",
        "out.sum() >= n and np.array_equal(out, np.bincount(x, minlength=11) * (out.sum() // n))",
    ),
    Template(
        "product",
        """@blocknb.kernel
def {k}(x, y, out, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    a, b = tl.load(x + i * BLOCK + j), tl.load(y + i * BLOCK + j)
    tl.store(out + i * BLOCK + j, tl.dot(a, b) * {f})
""",
        "x = (np.arange(1024).reshape(32, 32) % 7).astype(np.float32); y = x.T.copy(); out = np.full_like(x, 777); n = 32",
        "{k}[1](x, y, out, BLOCK=32)",
        "np.array_equal(out, x @ y * np.float32({f}))",
        "",
    ),
    Template(
        "collatz",
        """@blocknb.kernel
def {k}(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    value, steps = tl.load(x + i), 0
    while value > 1:
        if value % 2 == 0:
            value = value // 2
        else:
            value = 3 * value + 1
        steps += 1
    tl.store(out + i, steps)
""",
        "x = np.arange(1, 28, dtype=np.int32); out = np.full_like(x, -1); n = x.size",
        "{k}[(n,)](x, out, n, BLOCK={B})",
        "out[26] == 111 and out[0] == 0 and out[7] == 3",
        "",
    ),
    Template(
        "scan",
        """@blocknb.kernel
def {k}(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.where(at < n, tl.load(x + at, mask=at < n, other=0), 0)
    tl.store(out + at, tl.cumsum(v, 0), mask=at < n)
""",
        "x = np.arange({w}, dtype=np.int32); out = np.full_like(x, -1); n = x.size",
        "{k}[1](x, out, n, BLOCK=128)",
        "np.array_equal(out, np.cumsum(x))",
        "",
    ),
    Template(
        "tuned",
        """@blocknb.autotune([blocknb.Config({{"BLOCK": 64}}), blocknb.Config({{"BLOCK": 128}}, num_warps=2)], key=["n"])
@blocknb.kernel
def {k}(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) - {f}, mask=at < n)
""",
        VECTOR,
        "{k}[" + GRID + "](x, out, n)",
        "np.array_equal(out, x - np.float32({f}))",
        "",
    ),
)


def fill(rng: Random, template: Template | None = None, kernel: str = "") -> Filled:
    """A template with random fields; the kernel's name is one of few, so that later cells redefine earlier kernels."""
    template = template or rng.choice(TEMPLATES)
    fields = {
        "k": kernel or rng.choice(("k", "k", "k2", "kernel", "größe")),
        "n": rng.choice(("1", "17", "100", "1000", "1000", "4096")),
        "w": rng.choice(("1", "7", "100", "128")),
        "f": rng.choice(("2.0", "0.5", "3.0", "-1.0", "8.0")),
        "B": rng.choice(("16", "64", "128", "256")),
        "helper": rng.choice(("helper", "f", "larger")),
    }
    source, data, launch, check = (
        text.format(**fields) for text in (template.source, template.data, template.launch, template.check)
    )
    return Filled(fields["k"], source, data, launch, check, template)
