"""What the newest Triton accepts, and the words of its messages: indices, `hasattr`, constants in tuples, errors."""

import linecache
import textwrap

import numpy as np
import pytest
from frontend_helpers import evaluate, failure, kernel

import blocknb
import blocknb.language as tl
from blocknb.errors import TypeMismatch


def body(text, parameters="out"):
    """A kernel with this body."""
    source, name = f"def k({parameters}):\n{textwrap.indent(text, '    ')}\n", f"<today {text}>"
    linecache.cache[name] = (0, None, source.splitlines(keepends=True), name)
    space = {"tl": tl, "__name__": "cells"}
    exec(compile(source, name, "exec"), space)
    return kernel(space["k"])


# -- indices -----------------------------------------------------------------------------------------------------------------


def test_indices_of_tiles_and_tuples():
    @kernel
    def k(out, sizes: tl.constexpr):
        x, N, first = tl.arange(0, 16), None, slice(None)
        tl.static_assert(x[None].shape == [1, 16])
        tl.static_assert(x[first, None].shape == [16, 1])
        tl.static_assert(x[N, :].shape == [1, 16])
        tl.static_assert(x[None, :, None].shape == [1, 16, 1])
        tl.static_assert(tl.full([], 1, tl.int32)[None, None].shape == [1, 1])
        tl.static_assert(sizes[1:] == (5, 7) and sizes[:-1] == (3, 5) and sizes[::2] == (3, 7) and sizes[-1] == 7)
        tl.store(out, sizes[1:][0] + sizes[-1])

    assert evaluate(k, np.int32, sizes=(3, 5, 7)) == 12


@pytest.mark.parametrize(
    ("index", "phrase", "hint"),
    [
        ("x[0]", "unsupported tensor index: 0", "tl.where"),
        ("x[0:4]", "unsupported tensor index: 0:4", "tl.where"),
        ("x[:, 1]", "unsupported tensor index: 1", "tl.where"),
        ("x[x]", "unsupported tensor index: x", "tl.where"),
        ("out[10:]", "unsupported tensor index: 10:", "tl.load(pointer + index)"),
        ("out[i]", "unsupported tensor index: i", "tl.load(out + i)"),
        ("x[:, :]", "too many indices for tensor of rank 1", "one `:` per axis"),
    ],
)
def test_other_indices_give_tritons_words_after_the_hint(index, phrase, hint):
    error = failure(body(f"i = tl.program_id(0)\nx = tl.arange(0, 16)\n{index}"), TypeMismatch, out="*f32")
    assert error.triton == phrase and hint in error.hint
    assert str(error).splitlines()[-1] == f"  Triton: {phrase}"


# -- known at compile time ---------------------------------------------------------------------------------------------------


def test_hasattr_and_getattr_of_run_time_values():
    @kernel
    def k(out, n):
        x = tl.arange(0, 16)
        tl.static_assert(hasattr(out, "dtype") and hasattr(x, "sum") and hasattr(x, "__add__"))
        tl.static_assert(not hasattr(n, "sizes") and not hasattr(3, "shape") and hasattr("text", "upper"))
        tl.static_assert(getattr(x, "dtype") == tl.int32 and getattr(x, "rank", 7) == 7)
        if hasattr(x, "sizes") and x.sizes[0] == 16:
            tl.store(out, undefined)  # noqa: F821 (the branch is not visited)
        if hasattr(x, "shape") and x.shape[0] == 16:
            tl.store(out, tl.sum(x))

    assert evaluate(k, np.int32, n=4) == 120


def test_a_name_annotated_as_constexpr_takes_a_value_of_the_run_time():
    @kernel
    def k(out, n):
        first: tl.constexpr = n * 2
        total = 0
        for i in range(3):
            last: tl.constexpr = first + i
            total += last
        tl.store(out, total + first)

    assert evaluate(k, np.int32, n=4) == 8 + 9 + 10 + 8


def test_hasattr_of_a_block_pointer():
    @kernel
    def k(out):
        block = tl.make_block_ptr(out, (16,), (1,), (0,), (16,), (0,))
        tl.static_assert(hasattr(block, "advance") and not hasattr(block, "shape"))
        tl.store(block, tl.arange(0, 16))

    np.testing.assert_array_equal(evaluate(k, np.int32, 16), np.arange(16))


def test_sizes_computed_from_assigned_constants_are_known():
    @kernel
    def k(out, sizes: tl.constexpr):
        rows, columns = sizes
        half = rows * columns // 2
        x = tl.reshape(tl.arange(0, rows * columns), (rows, columns))
        tl.store(out + tl.arange(0, rows * columns), tl.reshape(x, (rows * columns,)))
        tl.static_assert(tl.arange(0, half + half - 8).shape == [8])

    np.testing.assert_array_equal(evaluate(k, np.int32, 16, sizes=(2, 8)), np.arange(16))


@blocknb.kernel
def reshaped(out, sizes):
    rows, columns = sizes
    x = tl.reshape(tl.arange(0, 8), (rows, columns))
    tl.store(out + tl.arange(0, 8), tl.reshape(x, (rows * columns,)))


@pytest.mark.parametrize("sizes", [(1, tl.constexpr(8)), (tl.constexpr(2), tl.constexpr(4))])
def test_elements_of_a_tuple_argument_are_constants(sizes):
    out = np.zeros(8, np.int32)
    reshaped[(1,)](out, sizes)
    np.testing.assert_array_equal(out, np.arange(8))


def test_an_element_known_at_run_time_only_is_refused_with_the_tuples_name():
    with pytest.raises(TypeMismatch) as caught:
        reshaped[(1,)](np.zeros(8, np.int32), (2, 4))
    assert "`sizes.0` is an element of a tuple argument" in caught.value.message
    assert "`sizes: tl.constexpr`" in caught.value.hint


# -- Triton's words ----------------------------------------------------------------------------------------------------------

WORDS = [
    (
        "u // i",
        "Cannot use /, #, or % with triton.language.uint32 and triton.language.int32 because they have different",
    ),
    ("tl.full((), 32, tl.int32) + 0xFFFFFFFFFFFFFF", "Scalar 72057594037927935 is out of range for type int32"),
    ("f ^ i", "invalid operands of type triton.language.float32 and triton.language.float32"),
    ("x + 0.5", "invalid operands of type pointer<fp32> and triton.language.float32"),
    ("x * 2", "invalid operands of type pointer<fp32> and triton.language.int32"),
    ("x + x", "invalid operands of type pointer<fp32> and pointer<fp32>"),
    ("-x", "wrong type argument to unary minus (pointer<fp32>)"),
    ("~f", "wrong type argument to unary invert (triton.language.float32)"),
    ("h + h", "unexpected type fp8e5"),
    ("a + tl.arange(0, 8)", "Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 8"),
    ("a[None, :] + tl.zeros((4, 8), tl.int32)", "Cannot make_shape_compatible: incompatible dimensions at index 1"),
    ("tl.expand_dims(a, -3)", "invalid axis -3"),
    ("tl.sum(a, 1)", "invalid axis 1"),
    ("tl.arange(2, 7)", "arange's range must be a power of 2"),
    ("tl.arange(7, 7)", "arange's end argument must be greater than the start argument"),
    ("tl.full((1, 33), 0, tl.int64)", "Shape element 1 must be a power of 2"),
    ("tl.reshape(a, (8,))", "reshape() cannot change total number of elements in tensor"),
    ("tl.permute(a[None, :], (1, 1))", "permute dims must be a permutation of 0, 1, ..., n-1"),
    ("a.to(tl.int8, bitcast=True)", "Cannot bitcast data-type of size 32 to data-type of size 8"),
    ("a.to(tl.float32, 'rtz')", "fp_downcast_rounding should be set only for truncating fp conversions"),
    ("tl.load(x, other=0.0)", "`other` cannot be provided without `mask`"),
    ("tl.load(f)", "Unsupported ptr type"),
    ("tl.store(x, a)", "Value argument cannot be block type if pointer argument is not a block"),
    ("tl.load(x, mask=i)", "Mask must have boolean scalar type"),
    ("tl.load(x, cache_modifier='.xx')", "Cache modifier .xx not supported"),
    ("tl.load(x, eviction_policy='evict_all')", "Eviction policy evict_all not supported"),
]


@pytest.mark.parametrize(("expression", "phrase"), WORDS, ids=[expression for expression, _ in WORDS])
def test_an_error_ends_with_tritons_words(expression, phrase):
    text = f"u, h, a = i.to(tl.uint32), f.to(tl.float8e5), tl.arange(0, 16)\n{expression}"
    error = failure(body(text, "x, i, f"), TypeMismatch, x="*f32", i="i32", f="f32")
    assert error.loc is not None and error.loc.line == 3
    assert str(error).splitlines()[-1].startswith(f"  Triton: {phrase}")


@pytest.mark.parametrize(
    ("name", "written"), [("float8_e4m3fn", "tl.float8e4nv"), ("float8_e5m2", "tl.float8e5"), ("float16", "tl.float16")]
)
def test_a_dtype_of_another_library_is_refused_with_the_languages_name(name, written):
    class Foreign:
        """A dtype as torch spells it."""

        def __repr__(self):
            return f"torch.{name}"

    k = body("tl.arange(0, 16).to(dtype)", "out, dtype: tl.constexpr")
    assert failure(k, TypeMismatch, out="*f32", dtype=Foreign()).hint == f"write {written}"
