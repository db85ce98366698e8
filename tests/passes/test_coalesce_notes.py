"""The notes of `coalesce` on narrow accesses name what is known and a change that mends them, and the change does."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.frontend.parse import ArgType, parse
from blocknb.language import types as t
from blocknb.passes.support import vector_obstacles
from blocknb.passes.support.vector_obstacles import KINDS
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


def load_note(kernel: Any, divisor: int = 1, aligned: int = 16) -> str:
    """The note on the load of a kernel whose `n` is a multiple of a divisor."""
    pointer = ArgType(t.Tile(t.Pointer(t.float32)), 16)
    given = {"x": ArgType(pointer.type, aligned), "out": pointer, "n": ArgType(t.Tile(t.int32), divisor)}
    func = parse(kernel.source, given, {"num_warps": 4, "num_stages": 3})
    (stage,) = (one for one in passes.run(func, Target.parse("sm_80"))[1] if one.name == "coalesce")
    (text,) = (note.text for note in stage.notes if note.text.startswith("load"))
    return text


def test_a_mask_names_the_argument_and_a_cure_that_works() -> None:
    cure = "as `n` is not known to be a multiple of 4: pass a multiple of 16, or write `n = tl.multiple_of(n, 4)` if that holds"
    assert load_note(copy).endswith(f"the mask may change after 1 element, {cure}")
    assert "4 x fp32 (16 bytes)" in load_note(copy, 16) and "not wider" not in load_note(copy, 16)
    assert "4 x fp32 (16 bytes)" in load_note(promised)


@blocknb.kernel
def strided(x, out, n):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + i * n, mask=i < n), mask=i < n)


def test_a_note_names_all_obstacles_of_the_next_width() -> None:
    text = load_note(copy, aligned=4)
    assert "multiple of 4 bytes, as `x` does not start at a multiple of 16 bytes: pass an array that does" in text
    assert "; and the mask may change after 1 element, as `n` is not known to be a multiple of 4" in text
    text = load_note(strided, aligned=4)
    assert "the stride is not known to be 1, so only 1 consecutive address is proved" in text
    assert "; and the address is only known to be a multiple of 4 bytes" in text
    assert "; and the mask may change after 1 element, as `n` is not known" in text
    assert "multiple of 4 bytes" not in load_note(strided)


def test_the_page_on_the_card_has_a_cure_for_each_kind_of_obstacle() -> None:
    text = (Path(blocknb.__file__).parents[1] / "docs" / "card.md").read_text()
    section = text.split("### Why is my load not vectorised?")[1].split("\n## ")[0]
    assert [line.split("*")[1] for line in section.splitlines() if line.startswith("- *")] == list(KINDS.values())


def test_every_obstacle_of_the_code_has_a_kind() -> None:
    made = ast.walk(ast.parse(Path(vector_obstacles.__file__).read_text()))
    calls = [x for x in made if isinstance(x, ast.Call) and getattr(x.func, "id", "") == "VectorObstacle"]
    assert {ast.literal_eval(call.args[0]) for call in calls} == set(KINDS)


@pytest.mark.parametrize("divisor", [1, 16])
def test_a_mask_that_no_multiple_mends_has_no_cure(divisor: int) -> None:
    assert load_note(squares, divisor).endswith("the mask may change after 1 element")


def test_a_stride_of_2_says_how_far_neighbours_are_apart() -> None:
    assert "neighbouring elements are 2 elements apart in memory: pass a contiguous array" in load_note(every_second)


@blocknb.kernel
def rows(x, out, n):
    i = tl.arange(0, 1024)
    tl.store(out + tl.program_id(0) * 1024 + i, tl.load(x + tl.program_id(0) * n + i))


@blocknb.kernel
def shifted(x, out, n):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + i + 1))


@pytest.mark.parametrize(
    ("kernel", "aligned", "cause"),
    [
        (rows, 16, "as `n` is not known to be a multiple of 16: pass one, for a row stride by padding the rows"),
        (shifted, 16, "because of an offset that the kernel adds: let arrays, row strides and offsets be multiples"),
        (shifted, 4, "because of an offset that the kernel adds"),
        (promised, 4, "as `x` does not start at a multiple of 16 bytes: pass an array that does, such as a copy"),
    ],
)
def test_a_note_on_the_address_names_its_cause(kernel: Any, aligned: int, cause: str) -> None:
    assert f"the address is only known to be a multiple of 4 bytes, {cause}" in load_note(kernel, aligned=aligned)
