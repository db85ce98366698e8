"""Divisor specialization: which arguments it applies to, and that a launch selects the version for its values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as bl
from blocknb.runtime.plan import parse_type


@blocknb.kernel
def wrapped_rows(rows, count, other):
    return rows % count + other


@blocknb.kernel
def deeper(rows, size):
    return wrapped_rows(rows, other=2, count=size)


@blocknb.kernel
def endless(n, m):
    if n > 0:
        endless(n - 1, m)
    return n % m


@blocknb.kernel
def asks(a, b, c, d, e, f, g, BLOCK: bl.constexpr):
    x = bl.program_id(0) % a
    x %= b
    x += wrapped_rows(x, c, d) + deeper(x, e) + f // 2 + (x % BLOCK) + x % 3
    return x * g


def test_moduli_are_the_parameters_by_which_a_kernel_takes_remainders() -> None:
    assert asks.source.moduli == {"a", "b", "c", "e", "BLOCK"}
    assert wrapped_rows.source.moduli == {"count"} and deeper.source.moduli == {"size"}
    assert endless.source.moduli == {"m"}


@blocknb.kernel
def rotate(x, out, m, n, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(out + at, bl.load(x + at % m) + n)


def versions(kernel: Any) -> str:
    return kernel.latest.trace.signature["m"] + kernel.latest.trace.signature["n"]


NUMBERS = {
    2: "i32",
    20: "i32",
    8: "i32:8",
    40: "i32:8",
    16: "i32:16",
    48: "i32:16",
    64: "i32:64",
    192: "i32:64",
    128: "i32:128",
    256: "i32:256",
    512: "i32:256",
}


def test_every_repetition_selects_the_version_for_its_multiples() -> None:
    """The third launch of a Kind takes the fast path, which must reject launches of other Kinds."""
    rotate_again = blocknb.kernel(rotate.fn)
    order = [m for m, _ in itertools.product(NUMBERS, range(3))] + list(NUMBERS) * 3
    for m in order:
        x, out = np.arange(m, dtype=np.float32), np.zeros(512, np.float32)
        rotate_again[8](x, out, m, 64, BLOCK=64)
        np.testing.assert_array_equal(out, np.resize(x, 512) + 64)
        assert versions(rotate_again) == NUMBERS[m] + "i32:16"  # nothing is divided by n


@pytest.mark.parametrize("m", [np.int32(128), np.int64(256), np.int16(64)])
def test_numpy_integers_are_specialized_on_divisors(m: Any) -> None:
    out = np.zeros(512, np.float32)
    for _ in range(3):
        rotate[8](np.arange(int(m), dtype=np.float32), out, m, 64, BLOCK=64)
        assert rotate.latest.trace.signature["m"].endswith(f":{int(m)}")
    np.testing.assert_array_equal(out, np.resize(np.arange(int(m)), 512) + 64)


def test_do_not_specialize_excludes_divisors() -> None:
    plainly = blocknb.kernel(do_not_specialize=["m"])(rotate.fn)
    plainly[8](np.arange(128, dtype=np.float32), np.zeros(512, np.float32), 128, 64, BLOCK=64)
    assert versions(plainly) == "i32i32:16"


def test_type_texts_name_the_multiples() -> None:
    made = rotate.trace("*fp32:16", "*fp32:16", "i32:128", 3, BLOCK=64, target="cpu")
    assert made.signature["m"] == "i32:128"
    assert made.stages[0].after.hints[2].divisibility == 128
    assert parse_type("i32:32") is parse_type("*fp32:128") is None
