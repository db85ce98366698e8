"""Debugging a kernel that runs as Python: values, lines, and a debugger in the failing program."""

from __future__ import annotations

import io
import pdb
import re
import sys
import traceback

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import AccessError, HintError, KernelError, LaunchError, TypeMismatch


def line_of(kernel, text):
    """The line of this file that contains a text of a kernel."""
    return next(i for i, line in enumerate(kernel.source.lines, kernel.source.first_line) if text in line)


@blocknb.kernel
def scaled(v, by):
    product = v * by
    return product  # noqa: RET504


@blocknb.kernel
def running_total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(3):
        acc += scaled(tl.load(x + at, mask=mask), k)
    tl.store(out + at, acc, mask=mask)


@pytest.fixture
def arrays():
    x = np.arange(10, dtype=np.float32)
    return x, np.full_like(x, np.nan)


# -- print ----------------------------------------------------------------------------------------------------------------


def test_print_shows_tiles_and_scalars_of_every_program_in_order(arrays, capsys):
    @blocknb.kernel
    def k(x, BLOCK: tl.constexpr):
        pid = tl.program_id(0)
        v = tl.load(x + pid * BLOCK + tl.arange(0, BLOCK))
        print("program", pid, v, f"{tl.sum(v):.1f} {v:.0f} {BLOCK}")

    k.interpret((2, 1))(arrays[0], BLOCK=4)
    assert capsys.readouterr().out == (
        "program 0 [0. 1. 2. 3.] 6.0 [0 1 2 3] 4\nprogram 1 [4. 5. 6. 7.] 22.0 [4 5 6 7] 4\n"
    )


def test_repr_of_a_tile_has_its_dtype_and_of_a_pointer_its_array(arrays, capsys):
    @blocknb.kernel
    def k(x, n):
        p = x + 2 * tl.arange(0, 4)
        print(repr(tl.load(p)), repr(p), x, repr(n), repr(n > 3), [n, 1])

    k.interpret(1)(arrays[0], 7)
    assert capsys.readouterr().out == (
        "fp32 (4,): array([0., 2., 4., 6.], dtype=float32) pointer<fp32> (4,): x + [0 2 4 6] pointer<fp32>: x + 0 7 True (7, 1)\n"
    )


def test_static_print_shows_types_and_only_once(arrays, capsys):
    @blocknb.kernel
    def k(x, BLOCK: tl.constexpr):
        v = tl.load(x + tl.arange(0, BLOCK))
        tl.static_print("v is", v, BLOCK)

    k.interpret(3)(arrays[0], BLOCK=4)
    assert capsys.readouterr().out == "v is tile<4xf32> 4\n"


def test_an_interpreted_kernel_may_contain_any_python(arrays):
    seen = {}

    def note(*values):
        seen.setdefault("noted", []).append([np.asarray(v).tolist() for v in values])

    @blocknb.kernel
    def k(x, out, n):
        import math

        collected = []
        for i in range(n):
            if i == 2:
                continue
            try:
                collected.append(math.sqrt(tl.load(x + i)))
            except ValueError:
                collected.append(-1.0)
            if i == 4:
                break
        seen["roots"] = [round(c, 3) for c in collected]
        v = tl.load(x + tl.arange(0, 4))
        note(v, v.numpy().max(), [e for e in v.numpy() if e > 1.5])
        seen["numpy"] = (np.asarray(v) + 1).tolist(), np.exp(v).dtype.name, int(n) in {9, 10}, v.type.shape, len(v)
        tl.store(out, len(collected))

    x, out = arrays
    x[3] = -9.0
    k.interpret(1)(x, out, 10)
    assert seen["roots"] == [0, 1, -1, 2] and out[0] == 4
    assert seen["noted"] == [[[0, 1, 2, -9], 2.0, [2.0]]]
    assert seen["numpy"] == ([1, 2, 3, -8], "float32", True, (4,), 4)


# -- breakpoints -----------------------------------------------------------------------------------------------------------


def test_a_breakpoint_stops_in_the_kernels_own_frame_at_its_own_line(arrays, monkeypatch):
    stops = []

    def hook():
        frame = sys._getframe(1)
        stops.append((frame.f_code.co_filename, frame.f_lineno, dict(frame.f_locals)))

    @blocknb.kernel
    def k(x, out, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        total = tl.sum(tl.load(x + at))
        if tl.program_id(0) == 1:
            breakpoint()
        tl.store(out + tl.program_id(0), total)

    monkeypatch.setattr(sys, "breakpointhook", hook)
    k.interpret(2)(*arrays, 10, BLOCK=8)
    ((file, line, names),) = stops
    assert (file, line) == (__file__, line_of(k, "breakpoint()"))
    assert names["BLOCK"] == 8 and names["n"] == 10 and float(names["total"]) == 28
    np.testing.assert_array_equal(names["at"].data, np.arange(8))


def test_the_debugger_steps_from_line_to_line_into_helpers_and_not_into_blocknb(arrays, monkeypatch):
    @blocknb.kernel
    def k(x, out):
        v = tl.load(x + tl.arange(0, 4))
        breakpoint()
        w = scaled(v, 3)
        tl.store(out + tl.arange(0, 4), w + 1)

    answer = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO("list\nstep\nstep\nstep\nstep\nnext\np tl.sum(w), w + v\nc\n"))
    monkeypatch.setattr(sys, "stdout", answer)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.setattr(pdb.Pdb, "prompt", "")
    k.interpret(1)(*arrays)
    text = answer.getvalue()
    assert re.findall(r"^-> (.*)", text, re.MULTILINE) == [
        "w = scaled(v, 3)",
        "def scaled(v, by):",
        "product = v * by",
        "return product  # noqa: RET504",
        "return product  # noqa: RET504",
        "tl.store(out + tl.arange(0, 4), w + 1)",
    ]
    assert "(18.0, fp32 (4,): array([ 0.,  4.,  8., 12.], dtype=float32))" in text
    assert "v = tl.load(x + tl.arange(0, 4))" in text  # of `list`
    np.testing.assert_array_equal(arrays[1][:4], [1, 4, 7, 10])


# -- values that are kept ------------------------------------------------------------------------------------------------------


def test_record_keeps_every_value_of_one_program(arrays):
    run = running_total.interpret(3, record=1)(*arrays, 10, BLOCK=4)
    assert run.programs == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    v = np.arange(4, 8, dtype=np.float32)
    lines = [line_of(running_total, "acc = "), *[line_of(running_total, "acc +=")] * 3]
    assert [line for line, _ in run["acc"]] == lines
    np.testing.assert_array_equal([value for _, value in run["acc"]], [0 * v, 0 * v, v, 3 * v])
    np.testing.assert_array_equal(run.at(line_of(running_total, "acc +="))["acc"], 3 * v)
    assert [int(value) for _, value in run["k"]] == [0, 1, 2]
    assert [a.function for a in run.of("product")] == ["scaled"] * 3
    assert run["BLOCK"] == [(line_of(running_total, "def running_total"), 4)]
    assert {a.program for a in run.assigned} == {(1, 0, 0)}


def test_watch_keeps_the_values_of_some_names_in_all_programs(arrays):
    run = running_total.interpret(3, watch=["mask"])(*arrays, 10, BLOCK=4)
    assert [a.program[0] for a in run.of("mask")] == [0, 1, 2]
    ((line, mask),) = run["mask", 2]
    assert line == line_of(running_total, "mask = ") and mask.tolist() == [True, True, False, False]
    assert {a.name for a in run.assigned} == {"mask"}
    with pytest.raises(KeyError, match="`acc` was not recorded; there is mask"):
        run["acc"]


def test_selected_programs_run_alone_in_the_given_order(arrays):
    run = running_total.interpret(3, programs=[2, (0, 0, 0)])(*arrays, 10, BLOCK=4)
    assert run.programs == [(2, 0, 0), (0, 0, 0)]
    assert np.isnan(arrays[1][4:8]).all() and not np.isnan(arrays[1][[0, 9]]).any()
    assert running_total.interpret(3, program=1)(*arrays, 10, BLOCK=4).programs == [(1, 0, 0)]
    with pytest.raises(LaunchError, match="has no program"):
        running_total.interpret(3, program=3)(*arrays, 10, BLOCK=4)


# -- errors ----------------------------------------------------------------------------------------------------------------------


@blocknb.kernel
def reads_beyond(x, start):
    at = tl.arange(0, 8) + start + tl.program_id(0)
    value = tl.load(x + at)
    tl.store(x + at, value)


def test_an_out_of_bounds_access_names_program_element_line_and_columns(arrays):
    with pytest.raises(AccessError) as caught:
        reads_beyond.interpret(5)(arrays[0], 1)
    error = caught.value
    assert (error.program, error.index) == ((2, 0, 0), 10)
    assert "program (2, 0, 0) loads element 10 of `x`, which has 10 elements" in error.message
    assert error.loc.line == line_of(reads_beyond, "tl.load")
    source, carets = error.loc.excerpt().split("\n")
    assert source[carets.index("^") : carets.rindex("^") + 1] == "tl.load(x + at)"


def test_after_an_error_the_debugger_opens_in_the_program_that_failed(arrays):
    with pytest.raises(AccessError) as caught:
        reads_beyond.interpret(5)(arrays[0], 1)
    frame, line = list(traceback.walk_tb(caught.value.__traceback__))[-1]
    assert (frame.f_code.co_name, line) == ("reads_beyond", line_of(reads_beyond, "tl.load"))
    assert frame.f_locals["at"].numpy().tolist() == list(range(3, 11))
    answer = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p at\np tl.sum(at)\nq\n"), stdout=answer)
    debugger.reset()
    debugger.interaction(None, caught.value.__traceback__)
    assert "int32 (8,): array([ 3,  4,  5,  6,  7,  8,  9, 10], dtype=int32)" in answer.getvalue()


def test_an_error_in_a_helper_shows_the_calls(arrays):
    @blocknb.kernel
    def helper(v, w):
        return v + w

    @blocknb.kernel
    def k(x):
        v = tl.load(x + tl.arange(0, 4))
        helper(v, tl.arange(0, 2))

    with pytest.raises(TypeMismatch) as caught:
        k.interpret(1)(arrays[0])
    loc = caught.value.loc
    assert (loc.function, loc.line) == ("helper", line_of(helper, "v + w"))
    assert (loc.caller.function, loc.caller.line) == ("k", line_of(k, "helper(v"))


def test_errors_of_python_have_the_kernels_line(arrays):
    @blocknb.kernel
    def k(x, n):
        table = {0: 1}
        tl.store(x, table[int(n)])

    with pytest.raises(KeyError) as caught:
        k.interpret(1)(arrays[0], 5)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].lineno == line_of(k, "table[")


def test_a_promise_that_does_not_hold_is_an_error(arrays):
    @blocknb.kernel
    def k(x, n):
        at = tl.multiple_of(n * 4, 16)
        tl.store(x + at, 1.0)

    k.interpret(1)(arrays[0], 0)
    with pytest.raises(HintError, match=r"multiple_of\(.*, 16\)` does not hold .*: the value is 8"):
        k.interpret(1)(arrays[0], 2)

    @blocknb.kernel
    def assumed(x, n):
        tl.assume((n > 3) & (tl.arange(0, 4) < n))
        tl.store(x, 1.0)

    assumed.interpret(1)(arrays[0], 4)
    with pytest.raises(HintError, match="`tl.assume` does not hold in program"):
        assumed.interpret(1)(arrays[0], 2)


def test_an_interrupt_stops_the_launch_in_the_current_program(arrays):
    @blocknb.kernel
    def k(x):
        tl.store(x + tl.program_id(0), -1.0)
        if tl.program_id(0) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        k.interpret(5)(arrays[0])
    assert arrays[0].tolist() == [-1, -1, -1, *range(3, 10)]
    with pytest.raises(KernelError, match="only inside a kernel"):  # nothing goes on being interpreted
        tl.sum(3)


@blocknb.kernel
def wrong_mask(x, n):
    tl.load(x + tl.arange(0, 8), mask=tl.arange(0, 8))


@blocknb.kernel
def changed_type(x, n):
    acc = 0
    for _i in range(n):
        acc += tl.load(x)


@blocknb.kernel
def tile_condition(x, n):
    if tl.arange(0, 4) > n:
        tl.store(x, 1)


@blocknb.kernel
def tile_in_while(x, n):
    while tl.arange(0, 4) > n and n > 3:
        n += 1


@blocknb.kernel
def run_time_size(x, n):
    tl.arange(0, n)


@blocknb.kernel
def constant_of_a_value(x, n):
    size: tl.constexpr = n + 1
    tl.arange(0, size)


@blocknb.kernel
def misspelt(x, n):
    tl.arange(0, 8).summ()


@blocknb.kernel
def misspelt_function(x, n):
    tl.aranges(0, 8)


@blocknb.kernel
def misspelt_keyword(x, n):
    tl.load(x, mesk=n > 3)


@blocknb.kernel
def unequal_arms(x, n):
    tl.store(x, 1 if n > 3 else tl.arange(0, 4))


@blocknb.kernel
def unknown_name(x, n):
    tl.store(x, N)  # noqa: F821


@blocknb.kernel
def none_operand(x, n, scale=None):
    tl.store(x, n * scale)


@blocknb.kernel
def matrix_product(x, n):
    tl.dot(tl.zeros((16, 16), tl.float32), tl.zeros((32, 16), tl.float32))


@blocknb.kernel
def float_bounds(x, n):
    for i in range(n / 2):
        tl.store(x, i)


@blocknb.kernel
def static_failure(x, n):
    tl.static_assert(x.dtype.element_ty == tl.float16, "half only")


@blocknb.kernel
def too_large(x, n):
    tl.zeros((16,), tl.uint8) + 300


@blocknb.kernel
def unequal_shapes_in_a_chain(x, n):
    tl.store(x, tl.sum((0 < tl.arange(0, 8) < tl.arange(0, 4)).to(tl.int32)))


WRONG = (
    wrong_mask, changed_type, tile_condition, tile_in_while, run_time_size, constant_of_a_value, misspelt, misspelt_function,
    misspelt_keyword, unequal_arms, unknown_name, none_operand, matrix_product, float_bounds, static_failure, too_large,
    unequal_shapes_in_a_chain,
)  # fmt: skip


@pytest.mark.parametrize("kernel", WRONG, ids=lambda k: k.__name__)
def test_errors_are_those_of_the_compiler(kernel, arrays):
    with pytest.raises(KernelError) as compiled:
        kernel.trace("*fp32", "i32", target="cpu")
    with pytest.raises(KernelError) as interpreted:
        kernel.interpret(1)(arrays[0], 4)
    mine, theirs = interpreted.value, compiled.value
    assert (mine.message, mine.hint, mine.title) == (theirs.message, theirs.hint, theirs.title)
    assert str(mine.loc.line) == str(theirs.loc.line)
    assert str(mine) == str(theirs)


def test_device_prints_and_assertions_appear_while_the_kernel_runs(capsys):
    @blocknb.kernel
    def k(x, n):
        i = tl.arange(0, 4)
        tl.device_print("at", i + tl.program_id(0))
        tl.device_assert(i < n, "too far")

    k.interpret(1)(np.zeros(4, np.float32), 4)
    assert capsys.readouterr().out.splitlines()[-1].endswith("at: 3")
    with pytest.raises(KernelError, match="too far") as caught:
        k.interpret(1)(np.zeros(4, np.float32), 3)
    assert caught.value.loc.line == k.source.first_line + 4
    assert "at: 0" in capsys.readouterr().out
