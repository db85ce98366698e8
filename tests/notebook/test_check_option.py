"""`--check` names the first wrong element and its program, races, results that depend on the order, and elements that no program stores."""

from __future__ import annotations

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from blocknb.notebook import document
from blocknb.notebook.check_compare import WrongElement, argument_of, compare, sides
from blocknb.notebook.register import register

KERNEL = """@blocknb.kernel
def add(x, y, out, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside){}, mask=inside)

x, y = np.random.default_rng(0).random((2, 1000), np.float32)
out = np.zeros_like(x)
add[{},](x, y, out, x.size, STEP={}, BLOCK=128)"""


@pytest.fixture(scope="module")
def shell():
    ip = InteractiveShell()
    register(ip)
    ip.run_cell("import blocknb, blocknb.language as tl, numpy as np")
    return ip


def card(shell, check: str, more: str = "", grid: int = 8, step: int = 128, body: str = KERNEL) -> str:
    """The text of the card of a cell."""
    shown: list[dict] = []
    shell.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)
    result = shell.run_cell(f"%%blockkernel --check {check}\n{body.format(more, grid, step)}", store_history=True)
    assert result.success, result.error_in_exec
    (found,) = [data for data in shown if document.MIME in data]
    assert "footprint" in found["text/html"]
    return found["text/plain"]


def test_a_right_launch_says_what_was_examined_and_accuses_nothing(shell):
    text = card(shell, "np.allclose(out, x + y)")
    assert "correct: `np.allclose(out, x + y)`" in text
    assert "8 programs, from the arguments; run in 5 orders on copies; nothing is wrong" in text
    assert "✗" not in text


def test_a_wrong_result_names_its_first_element_the_count_and_the_program(shell):
    text = card(shell, "np.allclose(out, x + y)", " + tl.program_id(0)")
    assert "✗ WRONG: `np.allclose(out, x + y)`" in text
    assert "`out`[128] is " in text
    assert "872 of 1000 elements are wrong, the largest error is 7 at [" in text
    assert "]; program 1 stores it in line 6" in text


def test_a_grid_that_is_too_small_names_the_elements_that_no_program_stores(shell):
    text = card(shell, "(out == x + y).all()", grid=7)
    assert "`out`[896] is 0, not " in text
    assert "no program stores it" in text
    assert "`out`: 104 of 1000 elements are never stored: 896:1000 (line 6)" in text


def test_a_race_is_an_error_even_if_the_run_was_right(shell):
    text = card(shell, "out.size == 1000", " * (1 + tl.program_id(0))", step=127)
    assert "correct in this run, but the launch has errors" in text
    assert "✗ race: programs 0 and 1 both store element 127 of `out`" in text
    assert "✗ the result depends on the order of the programs: `out`[127] is" in text
    assert "in ascending order and" in text


def test_the_arrays_of_the_cell_do_not_change(shell):
    body = """@blocknb.kernel
def more(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + 1{0})

x = np.zeros(128, np.float32)
more[1,](x, BLOCK=128)  # {1} {2}"""
    assert "correct: `(x == 1).all()`" in card(shell, "(x == 1).all()", body=body)
    assert (shell.user_ns["x"] == 1).all()


def test_a_race_through_memory_depends_on_the_order(shell):
    body = """@blocknb.kernel
def move(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at + 1, mask=at + 1 < n){0}, mask=at < n)

x = np.arange(1000, dtype=np.float32)
move[8,](x, 1000, BLOCK=128)  # {1} {2}"""
    text = card(shell, "x.size", body=body)
    assert "✗ race: program 0 loads element 128 of `x`, which program 1 stores" in text
    assert "depends on the order of the programs: `x`[127] is" in text


def test_atomics_may_round_differently_in_other_orders(shell):
    body = """@blocknb.kernel
def total(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at)){0})

x = np.random.default_rng(0).random(4096, np.float32)
out = np.zeros(1, np.float32)
total[64,](x, out, BLOCK=64)  # {1} {2}"""
    text = card(shell, "np.allclose(out, x.sum())", body=body)
    assert "correct: `" in text
    assert "run in 5 orders" in text
    assert "✗" not in text


def test_poison_finds_unstored_elements_where_data_decide(shell):
    body = """@blocknb.kernel
def follow(links, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(links + at, tl.load(links + at))
    where = tl.load(links + at)
    tl.store(out + where, 1.0{0})

links = np.arange(128, dtype=np.int32) // 2 * 2
out = np.zeros(128, np.float32)
follow[2,](links, out, BLOCK=64)  # {1} {2}"""
    text = card(shell, "out.any()", body=body)
    assert "by a run on copies, because" in text
    assert "`out`: 64 of 128 elements are never stored: 1, 3, 5 and 61 more pieces" in text


def test_a_kernel_that_prints_does_so_once(shell, capfd):
    body = """@blocknb.kernel
def told(x, out, BLOCK: tl.constexpr):
    tl.device_print("seen{0}")
    tl.static_print("compiled")
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))

x, out = np.ones(128, np.float32), np.zeros(128, np.float32)
told[2,](x, out, BLOCK=64)  # {1} {2}"""
    assert "run in 5 orders" in card(shell, "np.array_equal(out, x)", body=body)
    printed = capfd.readouterr().out
    assert printed.count("seen") == 2
    assert printed.count("compiled") <= 2


# ---- the comparison alone ------------------------------------------------------------------------------------------------

NAMES = {"np": np, "out": np.zeros(4), "ref": np.ones(4), "eps": 0.5}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("np.allclose(out, ref)", ("out", "ref", 1e-5, 1e-8)),
        ("np.allclose(out, ref, atol=eps, rtol=0)", ("out", "ref", 0.0, 0.5)),
        ("np.allclose(out, ref, 0.1)", ("out", "ref", 0.1, 1e-8)),
        ("torch.allclose(out, ref)", ("out", "ref", 1e-5, 1e-8)),
        ("(out == ref + 1).all()", ("out", "ref + 1", 0.0, 0.0)),
        ("np.all(out == ref)", ("out", "ref", 0.0, 0.0)),
        ("bool(np.array_equal(out, ref))", ("out", "ref", 0.0, 0.0)),
        ("out.equal(ref)", ("out", "ref", 0.0, 0.0)),
        ("out == ref", ("out", "ref", 0.0, 0.0)),
        ("out.sum() > 3", None),
        ("close(out, ref)", None),
        ("np.allclose(out)", None),
    ],
)
def test_the_sides_of_a_comparison_are_parsed(text, wanted):
    found = sides(text, lambda part: eval(part, dict(NAMES)))
    assert (None if found is None else (found.left, found.right, found.rtol, found.atol)) == wanted


def difference(left, right, text: str = "np.allclose(a, b)"):
    return compare(sides(text, eval), left, right)


def test_a_wrong_element_has_index_values_count_and_largest_error():
    a = np.zeros((3, 5), np.float32)
    b = a.copy()
    b[1, 2], b[2, 4] = 1, -3
    found = difference(a, b)
    assert isinstance(found, WrongElement)
    assert found.index == 7
    assert found.text == "`a`[1, 2] is 0, not 1: 2 of 15 elements are wrong, the largest error is 3 at [2, 4]"


def test_a_nan_is_wrong_and_counted():
    found = difference(np.array([1.0, np.nan, np.inf]), np.array([1.0, 2.0, np.inf]))
    assert found.text == "`a`[1] is nan, not 2: 1 of 3 elements are wrong; 1 are NaN"


def test_other_shapes_are_told_and_equal_arrays_have_no_difference():
    assert difference(np.zeros(3), np.zeros(4)) == "`a` has the shape (3,), and `b` (4,)"
    assert difference(np.zeros(3), 0) is None
    assert difference(np.arange(3), np.arange(3), "(a == b).all()") is None


def test_an_argument_is_found_by_identity_or_by_its_memory():
    x = np.zeros(8)
    assert argument_of(x, {"n": 3, "out": x}) == "out"
    assert argument_of(x[:], {"n": 3, "out": x}) == "out"
    assert argument_of(x[1:], {"n": 3, "out": x}) is None


@pytest.mark.parametrize(("divisor", "holds"), [(8, True), (16, False)])
def test_a_false_hint_is_an_error_at_its_line_even_if_the_run_was_right(shell, divisor, holds):
    body = KERNEL.replace("    inside =", f"    n = tl.multiple_of(n, {divisor})\n    inside =")
    text = card(shell, "np.allclose(out, x + y)", body=body)
    assert ("✗" not in text) == holds
    broken = "✗ the hint `multiple_of(n, 16)` does not hold in program (0, 0, 0): the value is 1000 (line 5)"
    assert (broken in text) != holds
