"""Error messages of the front end: one message, the exact place, and what to write instead."""

import numpy as np
import pytest
from frontend_helpers import evaluate, failure, ir, kernel, kind, place

import blocknb.language as tl
from blocknb.errors import SyntaxUnsupported, TypeMismatch, Unsupported
from blocknb.frontend.parse import parse
from blocknb.frontend.source import Source

WEIGHTS = np.arange(4)


@kernel
def unknown_name(out):
    tl.store(out, offsts)  # noqa: F821


@kernel
def unknown_function(out):
    tl.stoer(out, 1)


@kernel
def unknown_method(out):
    tl.store(out, tl.arange(0, 4).summ(0))


@kernel
def wrong_shapes(out):
    i = tl.arange(0, 8)
    tl.store(out + i, tl.zeros((4,), tl.int32))


@kernel
def mask_shape(out):
    tl.store(out + tl.arange(0, 8), 1, mask=tl.arange(0, 16) < 3)


@kernel
def odd_arange(out):
    tl.store(out + tl.arange(0, 100), 1)


@kernel
def odd_zeros(out):
    tl.store(out, tl.sum(tl.zeros((4, 3), tl.float32)))


@kernel
def run_time_arange(out, n):
    tl.store(out + tl.arange(0, n), 1)


@kernel
def missing_argument(out):
    tl.store(out)


@kernel
def unknown_argument(out):
    tl.load(out, maks=None)


@kernel
def too_many(out):
    tl.program_id(0, 1)


@kernel
def float_index(out):
    tl.load(out + 0.5)


@kernel
def subscript(out):
    tl.store(out, out[0])


@kernel
def store_to_constant(out):
    tl.store(3, 1)


@kernel
def store_to_value(out, n):
    tl.store(n, 1)


@kernel
def assign_element(out):
    x = tl.arange(0, 4)
    x[0] = 1


@kernel
def too_large(out):
    tl.store(out, tl.sum(tl.zeros((2048, 1024), tl.float32)))


@kernel
def int_mask(out, n):
    tl.load(out, mask=n)


@kernel
def other_without_mask(out):
    tl.load(out, other=0)


@kernel
def grid_axis(out):
    tl.store(out, tl.program_id(3))


@kernel
def bad_axis(out):
    tl.store(out, tl.sum(tl.arange(0, 4), axis=1))


@kernel
def scalar_reduction(out, n):
    tl.store(out, tl.sum(n))


@kernel
def inner_sizes(out):
    tl.dot(tl.zeros((16, 32), tl.float16), tl.zeros((16, 32), tl.float16))


@kernel
def mixed_dot(out):
    tl.dot(tl.zeros((16, 16), tl.float16), tl.zeros((16, 16), tl.float32))


@kernel
def vector_dot(out):
    tl.dot(tl.arange(0, 16), tl.arange(0, 16))


@kernel
def not_a_dtype(out):
    tl.zeros((4,), 32)


@kernel
def bad_reshape(out):
    tl.arange(0, 8).reshape(4, 4)


@kernel
def global_array(out):
    tl.store(out, WEIGHTS)


@kernel
def none_arithmetic(out, bias=None):
    tl.store(out, tl.load(bias + 1))


@kernel
def tile_index(out):
    tl.store(out, tl.arange(0, 4)[2])


@kernel
def unpack(out):
    a, b = tl.arange(0, 4), 1, 2  # noqa: F841


@kernel
def constexpr_of_runtime(out, n):
    B: tl.constexpr = n * 2
    tl.store(out + tl.arange(0, B), 0.0)


@kernel
def asserts(out, N: tl.constexpr = 3):
    tl.static_assert(N % 2 == 0, f"N is {N}")


@kernel
def divides_by_zero(out, N: tl.constexpr = 0):
    tl.store(out, 4 // N)


@kernel
def power(out, n):
    tl.store(out, n**2)


@kernel
def early(out):
    tl.store(out, late)  # noqa: F821
    late = 1  # noqa: F841


@pytest.mark.parametrize(
    ("k", "line", "carets", "message", "hint"),
    [
        (unknown_name, 2, "offsts", "unknown name `offsts`", None),
        (unknown_function, 2, "tl.stoer", "module `blocknb.language` has no `stoer`", "`store`"),
        (unknown_method, 2, "tl.arange(0, 4).summ", "int32 of shape (4,) has no `summ`", "`sum`"),
        (wrong_shapes, 3, "tl.zeros((4,), tl.int32)", "`value` has shape (4,), but the pointers have shape (8,)", None),
        (mask_shape, 2, "tl.arange(0, 16) < 3", "the mask has shape (16,), but the pointers have shape (8,)", None),
        (odd_arange, 2, "100", "arange(0, 100) has 100 elements, which is not a power of two", "64 or 128"),
        (odd_zeros, 2, "(4, 3)", "the size 3 in the shape (4, 3) is not a power of two", "2 or 4"),
        (
            run_time_arange,
            2,
            "n",
            "`end` must be known at compile time, but `n` is an argument of the kernel (int32)",
            "tl.constexpr",
        ),
        (
            missing_argument,
            2,
            "tl.store(out)",
            "the call of `store` lacks the argument `value`",
            "pointer, value, mask",
        ),
        (unknown_argument, 2, "None", "`load` has no parameter `maks`", "`mask`"),
        (too_many, 2, "tl.program_id(0, 1)", "`program_id` takes 1 positional arguments, not 2", "(axis)"),
        (float_index, 2, "out + 0.5", "a pointer moves by whole elements, but the offset is fp32", "//"),
        (
            subscript,
            2,
            "0",
            "a pointer cannot be indexed with numbers or slices; only `:` and None are allowed",
            "tl.load(out + 0)",
        ),
        (store_to_constant, 2, "3", "`store` needs a pointer, not the constant 3", "assign to it"),
        (store_to_value, 2, "n", "`store` needs a pointer, not int32", "assign to it"),
        (assign_element, 3, "x[0]", "elements of a tile cannot be assigned", "tl.where"),
        (
            too_large,
            2,
            "(2048, 1024)",
            "a tile of shape (2048, 1024) has 2097152 elements; the maximum is 1048576",
            "loop",
        ),
        (int_mask, 2, "n", "the mask must be a condition, not int32", "mask != 0"),
        (other_without_mask, 2, "0", "`other` is given without a mask", "mask=offsets < n"),
        (grid_axis, 2, "3", "the grid has axes 0, 1 and 2, not 3", None),
        (bad_axis, 2, "1", "a tile with 1 axis has no axis 1", "the last axis is 0"),
        (scalar_reduction, 2, "n", "a scalar cannot be reduced", None),
        (
            inner_sizes,
            2,
            "tl.zeros((16, 32), tl.float16)",
            "dot of shapes (16, 32) and (16, 32): the inner sizes 32 and 16 differ",
            "tl.trans(b)",
        ),
        (
            mixed_dot,
            2,
            "tl.zeros((16, 16), tl.float32)",
            "dot of fp16 and fp32: both operands need the same dtype",
            ".to(tl.float16)",
        ),
        (vector_dot, 2, "tl.arange(0, 16)", "`dot` multiplies matrices, not int32 of shape (16,)", "x[:, None]"),
        (not_a_dtype, 2, "32", "`dtype` must be a dtype of the language, not the constant 32", "tl.float32"),
        (bad_reshape, 2, "4", "a tile of shape (8,) (8 elements) cannot take the shape (4, 4) (16 elements)", None),
        (global_array, 2, "WEIGHTS", "`WEIGHTS` is an array from outside the kernel", "argument"),
        (none_arithmetic, 2, "bias + 1", "`+` cannot combine None and the constant 1", "is not None"),
        (
            tile_index,
            2,
            "2",
            "a tile cannot be indexed with numbers or slices; only `:` and None are allowed",
            "tl.where",
        ),
        (unpack, 2, "a, b", "3 values for 2 names", None),
        (
            constexpr_of_runtime,
            3,
            "B",
            "`end` must be known at compile time, but `B` is int32 computed at run time",
            "tl.constexpr",
        ),
        (asserts, 2, 'tl.static_assert(N % 2 == 0, f"N is {N}")', "static_assert failed: N is 3", None),
        (divides_by_zero, 2, "4 // N", "4 // 0 divides by zero", None),
        (power, 2, "n**2", "`**` works on constants only", "x * x"),
        (early, 2, "late", "`late` is used before it is assigned", "every path"),
    ],
    ids=lambda x: x.source.name if isinstance(x, kernel) else "",
)
def test_each_mistake_has_its_message_place_and_hint(k, line, carets, message, hint):
    arguments = {"out": "*f32"} | ({"n": "i32"} if any(p.name == "n" for p in k.source.parameters) else {})
    error = failure(k, TypeMismatch if k is not assign_element else SyntaxUnsupported, **arguments)
    assert error.message == message
    assert place(k, error) == (line, carets)
    if hint:
        assert hint in error.hint


def test_close_names_are_suggested():
    @kernel
    def k(out):
        offsets = tl.arange(0, 4)
        tl.store(out + offsts, offsets)  # noqa: F821

    assert failure(k, TypeMismatch, out="*i32").hint == "did you mean `offsets`?"


# -- how a report reads --------------------------------------------------------------------------------------------------------


def test_the_report_shows_lines_carets_calls_and_hint():
    @kernel
    def inner(p):
        tl.store(p + tl.arange(0, 6), 0)

    @kernel
    def k(out):
        inner(out)

    report = str(failure(k, TypeMismatch, out="*f32"))
    expected = [
        "arange(0, 6) has 6 elements, which is not a power of two",
        f", line {inner.source.first_line + 2}, in inner",
        "        tl.store(p + tl.arange(0, 6), 0)",
        "^",
        f"called from {__file__}, line {k.source.first_line + 2}, in k",
        "        inner(out)",
        "        ^^^^^^^^^^",
        "  hint: take 4 or 8 elements and mask the surplus; blocknb.next_power_of_2 rounds up",
    ]
    at = -1
    for part in expected:
        found = report.find(part, at + 1)
        assert found > at, (part, report)
        at = found


def test_a_missing_argument_of_the_kernel_is_named():
    with pytest.raises(TypeMismatch, match="the argument `n` of `power` is missing"):
        parse(power.source, {"out": kind("*f32")}, {})


def test_star_parameters_are_refused():
    def k(*arrays):
        pass

    with pytest.raises(SyntaxUnsupported, match=r"`k` takes \*arrays"):
        _ = Source(k).parameters


def test_columns_are_right_after_non_ascii_text():
    @kernel
    def k(out):
        """Größe."""
        tl.store(out, "ü" + größe)  # noqa: F821

    error = failure(k, TypeMismatch, out="*f32")
    assert error.message == "unknown name `größe`"
    line, carets = error.loc.excerpt().splitlines()
    assert line[carets.index("^") : carets.rindex("^") + 1] == "größe"


def test_an_exception_of_a_host_function_is_reported_at_its_call():
    def refuse(n):
        raise RuntimeError(f"not {n}")

    @kernel
    def k(out):
        tl.store(out, refuse(3))

    error = failure(k, TypeMismatch, out="*f32")
    assert error.message == "`refuse`, called while compiling, raised RuntimeError: not 3"
    assert place(k, error) == (2, "refuse(3)")


def test_static_print_prints_constants_and_types_once(capsys):
    @kernel
    def k(out, n, N: tl.constexpr):
        for i in range(n):
            tl.static_print("N", N, i, tl.arange(0, N))
            n = n

    ir(k, out="*f32", n="i32", N=4)
    assert capsys.readouterr().out == "N 4 i32 tile<4xi32>\n"


def test_unprintable_value_is_refused_with_an_alternative():
    @kernel
    def k(out, n):
        tl.device_print("the dtype", out.dtype, n)

    assert "static_print" in failure(k, TypeMismatch, out="*f32", n="i32").hint


@kernel
def unlabelled(out, n):
    tl.device_print(n)


@kernel
def separated(out, n):
    print("n", n, sep=", ")


@kernel
def unspoken(out, n):
    tl.device_assert(n > 0, n)


@kernel
def talkative(a, b):
    tl.device_print("a", a)
    return a + b


@kernel
def combined(out, n):
    tl.store(out, tl.reduce(tl.arange(0, 4), 0, talkative))


@pytest.mark.parametrize(
    ("k", "error", "message", "hint"),
    [
        (unlabelled, TypeMismatch, "the prefix of `device_print` must be a string known at compile time", "label"),
        (separated, TypeMismatch, "takes no `sep`", "on its own line"),
        (unspoken, TypeMismatch, "the msg of `device_assert` must be a string known at compile time", "device_assert"),
        (combined, Unsupported, "`device_print` is not supported in a function on elements", "on the result"),
    ],
    ids=["prefix", "sep", "message", "combine"],
)
def test_invalid_prints_and_assertions_give_a_reason(k, error, message, hint):
    found = failure(k, error, out="*f32", n="i32")
    assert message in found.message
    assert hint in found.hint or hint in found.message
    assert found.loc is not None


def test_raise_in_a_reached_arm_reports_its_text():
    @kernel
    def k(out, N: tl.constexpr):
        if N > 4:
            raise ValueError(f"N is {N}")
        tl.store(out, N)

    assert evaluate(k, np.int32, N=3) == 3
    assert failure(k, TypeMismatch, out="*i32", N=5).message == "the kernel raises: N is 5"
