"""Operators, promotion and broadcasting follow Triton's rules."""

import numpy as np
import pytest
from frontend_helpers import evaluate, failure, kernel, kind, place, text

import blocknb.language as tl
from blocknb.errors import TypeMismatch
from blocknb.frontend.parse import Constant, parse


def result_dtype(x, op, y):
    """The dtype of `load(x) op y`, where x is a pointer's text and y a scalar's or a constant."""
    seen = []

    def record(dtype):
        seen.append(dtype)

    @kernel
    def probe(x, y, OP: tl.constexpr):
        a = tl.load(x)
        if OP == "+":
            record((a + y).dtype)
        elif OP == "/":
            record((a / y).dtype)
        elif OP == "//":
            record((a // y).dtype)
        elif OP == "%":
            record((a % y).dtype)
        elif OP == "&":
            record((a & y).dtype)
        else:
            record((a < y).dtype)

    parse(probe.source, {"x": kind(x), "y": kind(y) if isinstance(y, str) else Constant(y), "OP": Constant(op)}, {})
    return seen[0]


@pytest.mark.parametrize(
    ("x", "op", "y", "expected"),
    [
        ("*f16", "+", 0.5, tl.float16),  # Python numbers are weak
        ("*f16", "+", 2, tl.float16),
        ("*bf16", "+", 0.5, tl.bfloat16),
        ("*i32", "+", 0.5, tl.float32),
        ("*i8", "+", 5, tl.int8),
        ("*i64", "+", 5, tl.int64),
        ("*u8", "+", 255, tl.uint8),
        ("*f32", "+", 1e-50, tl.float32),
        ("*i32", "+", 1e-50, tl.float64),
        ("*f16", "+", "f32", tl.float32),  # run-time scalars take part in promotion
        ("*i32", "+", "i64", tl.int64),
        ("*i32", "+", "u32", tl.uint32),
        ("*i64", "+", "u32", tl.int64),
        ("*i8", "+", "u8", tl.uint8),
        ("*f16", "+", "bf16", tl.float16),
        ("*f32", "+", "f64", tl.float64),
        ("*i64", "+", "f16", tl.float16),
        ("*bf16", "+", "i32", tl.float32),
        ("*i1", "+", "i32", tl.int32),
        ("*i1", "+", 3, tl.int32),
        ("*i32", "/", "i32", tl.float32),
        ("*i64", "/", 2, tl.float32),
        ("*f16", "/", "f16", tl.float32),  # / and % of 16-bit floats happen in fp32
        ("*bf16", "/", 2.0, tl.float32),
        ("*f16", "%", 2.0, tl.float32),
        ("*f64", "/", "f32", tl.float64),
        ("*i32", "//", 3, tl.int32),
        ("*i16", "%", "i32", tl.int32),
        ("*i1", "&", "i1", tl.int1),
        ("*i8", "&", 7, tl.int8),
        ("*f32", "<", 0, tl.int1),
    ],
)
def test_promotion_follows_triton(x, op, y, expected):
    assert result_dtype(x, op, y) == expected


@pytest.mark.parametrize(
    ("x", "op", "y", "said"),
    [
        ("*u8", "+", 300, "300 does not fit in uint8"),
        ("*u32", "+", -1, "-1 does not fit in uint32"),
        ("*i32", "//", "u32", "one is signed, the other is not"),
        ("*f32", "&", 1, "works on integers and conditions"),
        ("*i64", "%", "u64", "one is signed"),
    ],
)
def test_operands_without_a_common_type_are_refused(x, op, y, said):
    with pytest.raises(TypeMismatch, match=said):
        result_dtype(x, op, y)


def test_constants_divide_like_python_and_run_time_integers_like_c():
    @kernel
    def k(out, x, C: tl.constexpr):
        a = tl.load(x)
        tl.store(out, a // 2)
        tl.store(out + 1, a % 4)
        tl.store(out + 2, C // 2)
        tl.store(out + 3, C % 4)

    out = evaluate(k, np.int32, (4,), x=np.array([-7], np.int32), C=-7)
    assert out.tolist() == [-3, -3, -4, 1]


def test_true_division_of_integers_is_fp32():
    @kernel
    def k(out, x):
        tl.store(out, tl.load(x) / 2)

    assert evaluate(k, np.float32, x=np.array([7], np.int32)) == 3.5


def test_bools_add_modulo_two_and_promote_with_integers():
    @kernel
    def k(out, x):
        m = tl.load(x + tl.arange(0, 4)) > 0
        tl.store(out + tl.arange(0, 4), (m + m) + 10 * m + (m * m))

    x = np.array([1, -1, 2, -2], np.int32)
    assert evaluate(k, np.int32, (4,), x=x).tolist() == [11, 0, 11, 0]


def test_and_or_not_on_tiles_are_bitwise_conditions():
    @kernel
    def k(out, x):
        v = tl.load(x + tl.arange(0, 4))
        tl.store(out + tl.arange(0, 4), (v and v > 1) or not v)

    assert evaluate(k, np.int32, (4,), x=np.array([0, 1, 2, 3], np.int32)).tolist() == [1, 0, 1, 1]


def test_comparisons_chain():
    @kernel
    def k(out, x):
        v = tl.load(x + tl.arange(0, 8))
        tl.store(out + tl.arange(0, 8), 0 < v <= 5)

    assert evaluate(k, np.int32, (8,), x=np.arange(8, dtype=np.int32)).tolist() == [0, 1, 1, 1, 1, 1, 0, 0]


def test_comparing_signed_with_unsigned_of_equal_width_is_unsigned():
    @kernel
    def k(out, x, y):
        tl.store(out, tl.load(x) < tl.load(y))

    assert evaluate(k, np.int32, x=np.array([-1], np.int32), y=np.array([5], np.uint32)) == 0


def test_shapes_broadcast_with_leading_axes():
    @kernel
    def k(out):
        i, j = tl.arange(0, 2), tl.arange(0, 4)
        tl.store(out + i[:, None] * 4 + j, 10 * i[:, None] + j[None, :])

    assert evaluate(k, np.int32, (2, 4)).tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_error_of_incompatible_shapes_names_both():
    @kernel
    def k(out):
        tl.store(out + tl.arange(0, 8), tl.arange(0, 8) + tl.arange(0, 4))

    error = failure(k, TypeMismatch, out="*i32")
    assert "(8,) and (4,)" in error.message
    assert "[:, None]" in error.hint


def test_pointers_move_by_any_integer_in_both_directions():
    @kernel
    def k(out, x, n):
        p = x + 3
        p -= 1
        q = n + p
        q = q - n
        u = tl.load(x + tl.arange(0, 1)).to(tl.uint8)
        tl.store(out, tl.load(q) + tl.sum(tl.load(q - u)))

    assert evaluate(k, np.int32, x=np.array([1, 20, 300], np.int32), n=np.int64(2)) == 320


def test_a_pointer_does_not_move_by_floats():
    @kernel
    def k(x, n):
        tl.store(x + n / 2, 0.0)

    error = failure(k, TypeMismatch, x="*f32", n="i32")
    assert error.message == "a pointer moves by whole elements, but the offset is fp32"
    assert place(k, error) == (2, "x + n / 2")
    assert "//" in error.hint


def test_two_pointers_do_not_add():
    @kernel
    def k(x):
        tl.store(x + x, 0.0)

    assert failure(k, TypeMismatch, x="*f32").message == "`+` cannot combine a pointer to fp32 and a pointer to fp32"


def test_a_plain_assignment_makes_a_constant_a_run_time_scalar():
    """`half` is fp32 from here on, so the product is fp32, while a literal would be weak."""

    @kernel
    def k(out, x):
        half = 0.5
        weak: tl.constexpr = 0.5
        tl.static_assert((tl.load(x) * half).dtype == tl.float32)
        tl.static_assert((tl.load(x) * weak).dtype == tl.float16)
        tl.store(out, half.to(tl.float16))

    assert evaluate(k, np.float16, x=np.ones(1, np.float16)) == 0.5


def test_scalar_from_a_constant_is_accepted_where_a_constant_is_needed():
    @kernel
    def k(out):
        B = 4
        tl.store(out + tl.arange(0, B), tl.arange(0, B))

    assert evaluate(k, np.int32, (4,)).tolist() == [0, 1, 2, 3]


def test_bool_pointers_are_bytes_tested_against_zero():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        tl.static_assert(x.dtype.element_ty == tl.int1)
        v = tl.load(x + i, mask=i < 3, other=True)
        tl.static_assert(v.dtype == tl.int1)
        tl.store(out + i, not v)

    x = np.array([0, 2, 1, 0], np.int8).view(bool)
    assert evaluate(k, bool, (4,), x=x).tolist() == [True, False, False, False]


def test_stores_cast_to_the_pointers_element_type():
    @kernel
    def k(out, x):
        tl.store(out + tl.arange(0, 2), tl.load(x + tl.arange(0, 2)))

    assert evaluate(k, np.int16, (2,), x=np.array([1.9, -1.9], np.float32)).tolist() == [1, -1]


def test_literals_become_tile_constants():
    @kernel
    def k(out):
        tl.store(out + tl.arange(0, 4), tl.arange(0, 4) + 1)

    assert text(k, out="*i32") == "\n".join(
        [
            "%0 = arange 0 4 : tile<4xi32>",
            "%1 = splat %out : tile<4xptr<i32>>",
            "%2 = ptradd %1, %0 : tile<4xptr<i32>>",
            "%3 = arange 0 4 : tile<4xi32>",
            "%4 = const 1 : tile<4xi32>",
            "%5 = add %3, %4 : tile<4xi32>",
            "store %2, %5",
        ]
    )


def test_where_promotes_and_broadcasts_all_three():
    @kernel
    def k(out, x):
        i, j = tl.arange(0, 2), tl.arange(0, 4)
        tl.store(out + i[:, None] * 4 + j[None, :], tl.where(j < 2, tl.load(x), i[:, None]))

    assert evaluate(k, np.float32, (2, 4), x=np.array([0.5], np.float32)).tolist() == [
        [0.5, 0.5, 0, 0],
        [0.5, 0.5, 1, 1],
    ]


def test_operators_may_be_called_by_the_names_of_their_methods():
    @kernel
    def k(out, x):
        v = tl.load(x)
        tl.store(out, v.__lshift__(4).to(tl.int8).__rshift__(4))
        tl.store(out + 1, v.__and__(6).__eq__(4).to(tl.int32))
        tl.store(out + 2, v.__mul__(3).__sub__(1))

    assert evaluate(k, np.int32, (3,), x=np.array([13], np.int32)).tolist() == [-3, 1, 38]


def test_an_operator_method_takes_one_value():
    @kernel
    def k(out, x):
        tl.store(out, tl.load(x).__add__(1, 2))

    error = failure(k, TypeMismatch, out="*i32", x="*i32")
    assert "the operator `+` takes one value, not 2" in str(error)
    assert place(k, error)[1] == "tl.load(x).__add__(1, 2)"


def test_a_pointer_is_a_condition_and_null_is_false():
    @kernel
    def k(out, x, table):
        if x:
            tl.store(out, 1)
        null = tl.load(table).to(tl.pointer_type(tl.float32))
        tl.store(out + 1, 3 if null else 2)

    x, table = np.zeros(1, np.float32), np.zeros(1, np.int64)
    assert evaluate(k, np.int32, (2,), x=x, table=table).tolist() == [1, 2]


def test_a_dtype_may_be_named_by_a_string_built_at_compile_time():
    @kernel
    def k(out, x):
        word: tl.constexpr = tl.dtype(f"uint{x.dtype.element_ty.primitive_bitwidth}")
        tl.store(out, tl.load(x).to(word, bitcast=True))

    assert evaluate(k, np.uint32, x=np.array([-2.0], np.float32)) == 0xC0000000

    @kernel
    def unknown(out):
        tl.store(out, tl.full((), 1, tl.dtype("uint7")))

    assert "must be a dtype of the language, not the constant 'uint7'" in str(
        failure(unknown, TypeMismatch, out="*i32")
    )
