"""The notes of `coalesce` on narrow accesses name what is known and a change that mends them, and the change does."""

from __future__ import annotations

from typing import Any

import pytest

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.frontend.parse import ArgType, parse
from blocknb.language import types as t
from blocknb.target import Target


@blocknb.kernel
def copy(x, out, n):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@blocknb.kernel
def promised(x, out, n):
    n = tl.multiple_of(n, 4)
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@blocknb.kernel
def squares(x, out, n):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + i, mask=i * i < n), mask=i * i < n)


@blocknb.kernel
def every_second(x, out, n):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + 2 * i))


def load_note(kernel: Any, divisor: int = 1) -> str:
    """The note on the load of a kernel whose `n` is a multiple of a divisor."""
    pointer = ArgType(t.Tile(t.Pointer(t.float32)), 16)
    given = {"x": pointer, "out": pointer, "n": ArgType(t.Tile(t.int32), divisor)}
    func = parse(kernel.source, given, {"num_warps": 4, "num_stages": 3})
    (stage,) = (one for one in passes.run(func, Target.parse("sm_80"))[1] if one.name == "coalesce")
    (text,) = (note.text for note in stage.notes if note.text.startswith("load"))
    return text


def test_a_mask_names_the_argument_and_a_cure_that_works() -> None:
    cure = "as `n` is not known to be a multiple of 4: pass a multiple of 16, or write `n = tl.multiple_of(n, 4)` if that holds"
    assert load_note(copy).endswith(f"the mask may change after 1 element, {cure}")
    assert "4 x fp32 (16 bytes)" in load_note(copy, 16) and "not wider" not in load_note(copy, 16)
    assert "4 x fp32 (16 bytes)" in load_note(promised)


@pytest.mark.parametrize("divisor", [1, 16])
def test_a_mask_that_no_multiple_mends_has_no_cure(divisor: int) -> None:
    assert load_note(squares, divisor).endswith("the mask may change after 1 element")


def test_a_stride_of_2_says_how_far_neighbours_are_apart() -> None:
    assert "neighbouring elements are 2 elements apart in memory: pass a contiguous array" in load_note(every_second)
