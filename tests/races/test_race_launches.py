"""Where race checks are asked for, what they say, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from races import plain_races, right_kernels


@blocknb.kernel(checked="race")
def decorated(out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.program_id(0))


@blocknb.kernel
def counted(count, out):
    pid = tl.program_id(0)
    if tl.atomic_add(count, 1) == tl.num_programs(0) - 1:
        tl.store(out, pid)


@blocknb.kernel
def store_row(out, offset):
    tl.store(out + tl.program_id(0) + offset, 1.0)


@blocknb.kernel
def helper_is_named(x, out, B: tl.constexpr):
    write(out, tl.arange(0, B), 1.0)


@blocknb.kernel
def write(out, i, value):
    tl.store(out + i, value)


def test_the_decorator_asks_for_race_checks():
    with pytest.raises(blocknb.RaceError, match="both store to element 0 of `out`"):
        decorated[(2,)](np.zeros(4, np.int32), B=4)
    decorated[(2,)](np.zeros(4, np.int32), B=4, checked=True)


def test_the_message_names_both_lines_once_each_and_counts_the_elements():
    with pytest.raises(blocknb.RaceError) as caught:
        plain_races.right_neighbour_in_place[(8,)](np.zeros(264, np.float32), B=32, checked="race")
    text = str(caught.value)
    assert "program (1, 0, 0) stores to element 32 of `x`, and program (0, 0, 0) loads it without an order" in text
    assert text.count("\n  at ") == 1
    assert text.count("\n  and at ") == 1
    assert "7 elements have races" in text


def test_one_line_is_named_once():
    with pytest.raises(blocknb.RaceError) as caught:
        plain_races.stride_too_small[(8,)](np.zeros(1024, np.float32), B=128, checked="race")
    assert "and at" not in str(caught.value)


def test_a_race_in_a_helper_has_the_chain_of_calls():
    with pytest.raises(blocknb.RaceError) as caught:
        helper_is_named[(2,)](np.zeros(4, np.float32), np.zeros(4, np.float32), B=4, checked="race")
    assert "called from" in str(caught.value)
    assert caught.value.loc.outermost.line == helper_is_named.source.first_line + 2


def test_race_checks_include_bounds_checks():
    with pytest.raises(blocknb.AccessError, match="element 8 of `out`"):
        store_row[(8,)](np.zeros(8, np.float32), 1, checked="race")


@pytest.mark.parametrize("checked", ["rac", "", "race init", 3, ["race"]])
def test_an_unknown_check_is_named(checked):
    with pytest.raises(blocknb.LaunchError, match="checked is"):
        store_row[(1,)](np.zeros(8, np.float32), 0, checked=checked)


def test_too_much_shadow_memory_is_refused(monkeypatch):
    monkeypatch.setenv("BLOCKNB_SHADOW_BYTES", "100000")
    out = np.zeros(1 << 16, np.float32)
    with pytest.raises(blocknb.LaunchError, match=r"bytes of shadow memory, more than the limit of 100000"):
        store_row[(8,)](out, 0, checked="race")
    assert not out.any()


def test_vector_clocks_have_a_limit_of_programs():
    count, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    counted[(4000,)](count, out, checked="race")
    with pytest.raises(
        blocknb.LaunchError, match="orders at most 4096 programs by vector clocks, and the grid has 5000"
    ):
        counted[(5000,)](count, out, checked="race")
    store_row[(5000,)](np.zeros(5000, np.float32), 0, checked="race")


def test_programs_of_all_axes_are_named():
    with pytest.raises(blocknb.RaceError) as caught:
        plain_races.grid_with_an_unused_axis[(4, 4)](np.zeros(256, np.float32), B=16, checked="race")
    assert {caught.value.program, caught.value.other_program} == {(0, 0, 0), (0, 3, 0)}


def test_an_empty_array_and_an_empty_grid_are_right():
    right_kernels.each_its_own_block[(1,)](np.zeros(0, np.float32), np.zeros(0, np.float32), 0, B=32, checked="race")
    right_kernels.each_its_own_block[(0,)](np.zeros(4, np.float32), np.zeros(4, np.float32), 4, B=32, checked="race")


def test_a_launch_with_the_option_as_a_constant_of_a_cell_is_checked(monkeypatch):
    from blocknb.runtime.launch_context import enforced

    monkeypatch.setitem(enforced, "checked", "race")
    with pytest.raises(blocknb.RaceError):
        store_row[(2, 2)](np.zeros(4, np.float32), 0)


@blocknb.kernel
def sum_of_rows(x, out, n, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for k in range(n):
        total += tl.load(x + k * B + tl.arange(0, B))
    tl.store(out + tl.program_id(0) * B + tl.arange(0, B), total)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_loads_of_an_array_that_the_kernel_does_not_store_to_have_no_notes(target):
    def calls(*without):
        trace = sum_of_rows.trace("*fp32", "*fp32", "i32", B=128, target=target, checked="race", without=without)
        return trace.llvm.count("shadow.mark(") - 1  # the definition

    assert (calls(), calls("unshared_loads")) == (1, 2)


def test_arrays_that_overlap_are_compared_at_each_launch():
    base = np.zeros(1024, np.float32)
    for _ in range(2):
        sum_of_rows[(4,)](base[:512], base[512:], 4, B=128, checked="race")
        with pytest.raises(blocknb.RaceError, match="stores to element 0 of `out`") as caught:
            sum_of_rows[(4,)](base[:512], base[384:], 4, B=128, checked="race")
        assert {caught.value.loc.line, caught.value.other_loc.line} == {
            sum_of_rows.source.first_line + 4,
            sum_of_rows.source.first_line + 5,
        }


@blocknb.kernel
def through_a_table(table, out):
    target = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(target, tl.program_id(0).to(tl.float32))
    tl.store(out + tl.program_id(0), 1.0)


def test_a_race_through_a_pointer_from_memory_is_found_in_the_arrays_of_the_launch():
    out = np.zeros(8, np.float32)
    with pytest.raises(blocknb.RaceError, match="both store to element 3 of `out`"):
        through_a_table[(2,)](np.array([out.ctypes.data + 12], np.int64), out, checked="race")
