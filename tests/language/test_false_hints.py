"""A checked launch tests the author's hints, and names the line, the program and the value; other launches rely on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import HintError
from blocknb.ir import interp


@blocknb.kernel
def scalar(x, out, n):
    n = tl.multiple_of(n, 4)
    i = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@blocknb.kernel
def counting(x, out, n):
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, 64) % n, 8), 8)
    tl.store(out + tl.arange(0, 64), tl.load(x + i))


@blocknb.kernel
def steady(x, out, n):
    i = tl.max_constancy(tl.arange(0, 64) // n, 8)
    tl.store(out + tl.arange(0, 64), tl.load(x + i))


@blocknb.kernel
def columns(x, out, n):
    i = (tl.arange(0, 8)[:, None] * n + tl.arange(0, 16)[None, :]) % 128
    i = tl.max_contiguous(tl.multiple_of(i, (1, 8)), (1, 8))
    tl.store(out + tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :], tl.load(x + i))


@blocknb.kernel
def aligned(x, out, n):
    x = tl.multiple_of(x, 16)
    tl.store(out + tl.arange(0, 64), tl.load(x + tl.arange(0, 64)))


@blocknb.kernel
def assumed(x, out, n):
    tl.assume((n > 0) & (n % 4 == 0))
    tl.store(out + tl.arange(0, 64), tl.load(x + tl.arange(0, 64), mask=tl.arange(0, 64) < n))


#: The kernel, an `n` for which its hints hold, one for which they do not, the source of the hint, and the message.
CASES: dict[str, tuple[Any, int, int, str, str]] = {
    "scalar": (scalar, 64, 61, "tl.multiple_of(n", r"`multiple_of\(n, 4\)` does not hold in program .*: the value is 61"),
    "counting": (counting, 16, 12, "tl.max_contiguous(", r"`max_contiguous\(.*, 8\)` does not hold .* for element 12: .* 0\b"),
    "steady": (steady, 16, 4, "tl.max_constancy(", r"`max_constancy\(.*, 8\)` does not hold .* for element 4: .* 1\b"),
    "columns": (columns, 16, 15, "tl.multiple_of(i", r"`multiple_of\(i, \(1, 8\)\)` .* for element \(1, 0\): the value is 15"),
    "assumed": (assumed, 64, 62, "tl.assume(", r"`tl.assume` does not hold"),
}  # fmt: skip


def line_of(kernel: Any, text: str) -> int:
    """The line of this file that contains a text of a kernel."""
    return next(i for i, line in enumerate(kernel.source.lines, kernel.source.first_line) if text in line)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(128, dtype=np.float32), np.zeros(128, np.float32)


@pytest.mark.sampled(2, each=["name", "checked"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("checked", [True, "race"])
def test_a_checked_launch_reports_a_false_hint_at_its_line(name: str, checked: Any) -> None:
    kernel, good, bad, text, message = CASES[name]
    kernel[1](*arrays(), good, checked=checked)
    with pytest.raises(HintError, match=message) as caught:
        kernel[1](*arrays(), bad, checked=checked)
    assert caught.value.loc is not None and caught.value.loc.outermost.line == line_of(kernel, text)


@pytest.mark.parametrize("name", CASES)
def test_the_interpreted_kernel_reports_the_same(name: str) -> None:
    kernel, good, bad, _, message = CASES[name]
    kernel.interpret(1)(*arrays(), good)
    with pytest.raises(HintError, match=message):
        kernel.interpret(1)(*arrays(), bad)


def test_a_pointer_that_is_not_aligned_as_promised_is_reported_with_its_address() -> None:
    x, out = arrays()
    first = (-x.ctypes.data % 16) // 4
    aligned[1](x[first:][:64], out, 1, checked=True)
    with pytest.raises(HintError, match=rf"`multiple_of\(x, 16\)` .* the value is {x[first + 1 :].ctypes.data}"):
        aligned[1](x[first + 1 :][:64], out, 1, checked=True)


@pytest.mark.parametrize("name", CASES)
def test_a_checked_kernel_for_a_gpu_reports_it_after_all_passes(name: str) -> None:
    kernel, good, bad, _, message = CASES[name]
    x, out = arrays()
    func = kernel.trace(x, out, bad, target="sm_80", checked=True).stages[-1].after
    interp.run(func, [x, out, good], 1)
    with pytest.raises(HintError, match=message.split(" does not")[0].split(" .*")[0]):  # warps run in any order
        interp.run(func, [x, out, bad], 1)
    assert "call.uni" in kernel.compile(x, out, bad, target="sm_80", checked=True).asm["ptx"]


def test_a_launch_without_checks_tests_nothing() -> None:
    x, out = arrays()
    func = scalar.trace(x, out, 64, target="sm_80").stages[0].after
    assert not [op for op in func.ops() if op.name == "assert"]
