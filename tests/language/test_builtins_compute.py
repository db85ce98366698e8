"""Every builtin of the language, in a kernel, against NumPy: parsed, verified, interpreted."""

import math

import ml_dtypes
import numpy as np
import pytest
from frontend_helpers import evaluate, failure, ir, kernel, launch

import blocknb.language as tl
from blocknb.errors import TypeMismatch

RNG = np.random.default_rng(1)
POSITIVE = (RNG.random(8) + 0.1).astype(np.float32)
SIGNED = RNG.standard_normal(8).astype(np.float32)
ERF = np.vectorize(math.erf)


@pytest.mark.parametrize(
    ("name", "x", "reference"),
    [
        ("exp", SIGNED, np.exp),
        ("exp2", SIGNED, np.exp2),
        ("log", POSITIVE, np.log),
        ("log2", POSITIVE, np.log2),
        ("sqrt", POSITIVE, np.sqrt),
        ("sqrt_rn", POSITIVE, np.sqrt),
        ("rsqrt", POSITIVE, lambda x: 1 / np.sqrt(x)),
        ("sin", SIGNED, np.sin),
        ("cos", SIGNED, np.cos),
        ("tanh", SIGNED, np.tanh),
        ("erf", SIGNED, ERF),
        ("floor", 3 * SIGNED, np.floor),
        ("ceil", 3 * SIGNED, np.ceil),
        ("abs", SIGNED, np.abs),
        ("sigmoid", SIGNED, lambda x: 1 / (1 + np.exp(-x))),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_pointwise_functions_take_every_float_and_keep_its_dtype(name, x, reference, dtype):
    function = getattr(tl, name)

    @kernel
    def k(out, x):
        i = tl.arange(0, 8)
        v = function(tl.load(x + i))
        tl.static_assert(v.dtype == x.dtype.element_ty)
        tl.store(out + i, v)

    x = x.astype(dtype)
    found = evaluate(k, dtype, (8,), x=x).astype(np.float64)
    expected = reference(x.astype(np.float64))
    tolerance = {2: 2e-2 if dtype == ml_dtypes.bfloat16 else 2e-3, 4: 1e-6, 8: 1e-13}[np.dtype(dtype).itemsize]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_tiles_have_the_functions_as_methods():
    @kernel
    def k(out, x):
        i = tl.arange(0, 8)
        v = tl.load(x + i)
        tl.store(
            out + i,
            v.abs().sqrt().exp() + v.sum() + v.max(axis=0) + v.to(tl.int32, bitcast=True).to(tl.float32, bitcast=True),
        )

    expected = np.exp(np.sqrt(np.abs(SIGNED))) + SIGNED.sum() + SIGNED.max() + SIGNED
    np.testing.assert_allclose(evaluate(k, np.float32, (8,), x=SIGNED), expected, rtol=1e-5)


def test_math_functions_are_aliases():
    @kernel
    def k(out, x):
        tl.store(out, tl.math.exp2(tl.load(x)) + tl.math.fma(2.0, tl.load(x), 1.0))

    assert evaluate(k, np.float32, x=np.array([3.0], np.float32)) == 8 + 7


@pytest.mark.parametrize("x", [np.float32([1, np.nan, 3, -2]), np.int32([1, 5, -3, 0])])
def test_extrema_and_clamp_match_numpy(x):
    @kernel
    def k(out, x, y):
        i = tl.arange(0, 4)
        v = tl.load(x + i)
        tl.store(out + i, tl.maximum(v, 1))
        tl.store(out + 4 + i, tl.minimum(v, tl.load(y + i)))
        tl.store(out + 8 + i, tl.clamp(v, -1, 2))

    y = x[::-1].copy()
    expected = np.concatenate([np.fmax(x, 1), np.fmin(x, y), np.fmin(np.fmax(x, -1), 2)])
    np.testing.assert_array_equal(evaluate(k, x.dtype, (12,), x=x, y=y), expected)


def test_extrema_propagate_nan_when_asked():
    @kernel
    def k(out, x):
        v = tl.load(x)
        tl.store(out, tl.maximum(v, 1.0, propagate_nan=tl.PropagateNan.ALL))
        tl.store(out + 1, tl.maximum(v, 1.0))

    found = evaluate(k, np.float32, (2,), x=np.array([np.nan], np.float32))
    assert np.isnan(found[0])
    assert found[1] == 1


@pytest.mark.parametrize(
    ("dtype", "real"), [("f16", tl.float16), ("bf16", tl.bfloat16), ("i8", tl.float32), ("f64", tl.float64)]
)
def test_python_numbers_are_weak_in_extrema_and_fma(dtype, real):
    """As Triton 3.9 has it: `tl.maximum(x, 0.0)` of fp16 is fp16, and the smaller of int8 and 4 is int8."""

    @kernel
    def k(x, REAL: tl.constexpr):
        v = tl.load(x)
        tl.static_assert(tl.maximum(v, 0.0).dtype == REAL)
        tl.static_assert(tl.clamp(v, 0.0, 1.0).dtype == REAL)
        tl.static_assert(tl.fma(v, 2.0, v).dtype == REAL)
        if v.dtype.is_int():
            tl.static_assert(min(v, 4).dtype == tl.int8)

    ir(k, x=f"*{dtype}", REAL=real)


SHAPE = (4, 8, 2)
BLOCK = RNG.standard_normal(SHAPE).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_reductions_over_each_axis_match_numpy(name, axis, keep):
    function = getattr(tl, name)

    @kernel
    def k(out, x, AXIS: tl.constexpr, KEEP: tl.constexpr, N: tl.constexpr, RANK: tl.constexpr):
        v = tl.load(x + tl.arange(0, 64)).reshape(4, 8, 2)
        r = function(v, axis=AXIS, keep_dims=KEEP)
        tl.static_assert(len(r.shape) == RANK)
        tl.store(out + tl.arange(0, N), tl.reshape(r, N) if RANK else r)

    expected = getattr(np, name)(BLOCK, axis=axis, keepdims=keep)
    found = evaluate(
        k, np.float32, (expected.size,), x=BLOCK, AXIS=axis, KEEP=keep, N=expected.size, RANK=expected.ndim
    )
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin_return_the_first_of_equal_elements(name, axis):
    function = getattr(tl, name)

    @kernel
    def k(out, x, AXIS: tl.constexpr, N: tl.constexpr):
        v = tl.load(x + tl.arange(0, 8)[:, None] * 4 + tl.arange(0, 4)[None, :])
        r = function(v, AXIS)
        tl.static_assert(r.dtype == tl.int32)
        tl.store(out + tl.arange(0, N), r)

    x = RNG.integers(0, 3, (8, 4)).astype(np.float32)
    expected = getattr(np, name)(x, axis)
    assert evaluate(k, np.int32, expected.shape, x=x, AXIS=axis, N=expected.size).tolist() == expected.tolist()


def test_extrema_return_indices_with_the_values():
    @kernel
    def k(out, x):
        value, index = tl.max(tl.load(x + tl.arange(0, 8)), 0, return_indices=True)
        tl.store(out, value)
        tl.store(out + 1, index)

    found = evaluate(k, np.float32, (2,), x=SIGNED)
    assert found.tolist() == [SIGNED.max(), np.argmax(SIGNED)]


@pytest.mark.parametrize(
    ("dtype", "total", "largest"),
    [
        ("i1", tl.uint32, tl.int32),
        ("i8", tl.int32, tl.int32),
        ("i16", tl.int32, tl.int32),
        ("u8", tl.uint32, tl.int32),
        ("i64", tl.int64, tl.int64),
        ("bf16", tl.bfloat16, tl.float32),
        ("f16", tl.float16, tl.float32),
        ("f32", tl.float32, tl.float32),
        ("f64", tl.float64, tl.float64),
    ],
)
def test_reductions_widen_as_in_triton(dtype, total, largest):
    @kernel
    def k(x, SUM: tl.constexpr, MAX: tl.constexpr):
        v = tl.load(x + tl.arange(0, 8))
        tl.static_assert(tl.sum(v, 0).dtype == SUM, tl.sum(v, 0).dtype)
        tl.static_assert(tl.max(v, 0).dtype == MAX, tl.max(v, 0).dtype)
        tl.static_assert(tl.sum(v, 0, dtype=tl.float64).dtype == tl.float64)

    ir(k, x=f"*{dtype}", SUM=total, MAX=largest)


@kernel
def larger_with_index(a, i, b, j):
    first = a >= b
    return tl.where(first, a, b), tl.where(first, i, j)


@kernel
def product(a, b):
    return a * b


def test_reductions_with_a_custom_combine_function():
    @kernel
    def k(out, x):
        i = tl.arange(0, 8)
        v = tl.load(x + i)
        tl.store(out, tl.reduce(v, 0, product))
        best, at = tl.reduce((v, i), 0, larger_with_index)
        tl.store(out + 1, best + at)
        tl.store(out + 2, tl.xor_sum(i + 8, 0) + tl.reduce_or(i, 0))

    found = evaluate(k, np.float32, (3,), x=SIGNED)
    np.testing.assert_allclose(found, [SIGNED.prod(), SIGNED.max() + np.argmax(SIGNED), 0 + 7], rtol=1e-5)


def test_shape_functions_match_numpy():
    @kernel
    def k(out):
        i = tl.arange(0, 8)
        m = i.reshape(2, 4)
        tl.static_assert(m.T.shape == (4, 2))
        tl.static_assert(tl.trans(m, 1, 0).shape == (4, 2))
        tl.static_assert(tl.permute(m[None], (2, 0, 1)).shape == (4, 1, 2))
        tl.static_assert(tl.expand_dims(i, (0, 2)).shape == (1, 8, 1))
        tl.static_assert(i[None, :, None].shape == (1, 8, 1))
        tl.static_assert(i[..., None].shape == (8, 1))
        tl.static_assert(tl.broadcast_to(i[None, :], 4, 8).shape == (4, 8))
        tl.static_assert(tl.broadcast(i[:, None], m.view(1, 8))[1].shape == (8, 8))
        tl.static_assert(tl.zeros_like(m).shape == m.shape and m.numel == 8)
        tl.static_assert(tl.full([], 3, tl.int32).shape == ())
        tl.store(out + i, tl.ravel(m.T))

    assert evaluate(k, np.int32, (8,)).tolist() == np.arange(8).reshape(2, 4).T.ravel().tolist()


def test_ravel_of_a_transposed_tile_is_row_major():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        tl.store(out + i, tl.load(x + i).reshape(2, 2).T.reshape(4))

    assert evaluate(k, np.int32, (4,), x=np.arange(4, dtype=np.int32)).tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize(("a", "b"), [(7, 2), (8, 2), (1, 128)])
def test_cdiv_and_swizzle2d_on_constants_and_at_run_time(a, b):
    @kernel
    def k(out, n, A: tl.constexpr, B: tl.constexpr):
        tl.static_assert(tl.cdiv(A, B) == -(-A // B))
        tl.store(out, tl.cdiv(n, B))

    assert evaluate(k, np.int32, n=np.int32(a), A=a, B=b) == -(-a // b)


def test_swizzle2d_visits_every_position_once_in_groups_of_rows():
    @kernel
    def k(out, I: tl.constexpr, J: tl.constexpr, G: tl.constexpr):
        i, j = tl.swizzle2d(tl.program_id(0), tl.program_id(1), I, J, G)
        tl.store(out + i * J + j, tl.program_id(0) * J + tl.program_id(1))

    out = np.full((5, 4), -1, np.int32)
    launch(k, (5, 4), out=out, I=5, J=4, G=2)
    assert out.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15], [16, 17, 18, 19]]


@pytest.mark.parametrize(
    ("dtype", "keywords", "accumulator", "precision"),
    [
        ("f16", {}, tl.float32, None),
        ("bf16", {}, tl.float32, None),
        ("f32", {}, tl.float32, "tf32"),
        ("f32", {"allow_tf32": False}, tl.float32, "ieee"),
        ("f32", {"input_precision": "ieee"}, tl.float32, "ieee"),
        ("f32", {"input_precision": "tf32x3"}, tl.float32, "tf32x3"),
        ("f64", {}, tl.float64, None),
        ("i8", {}, tl.int32, None),
        ("f16", {"out_dtype": tl.float16}, tl.float16, None),
        ("f32", {"out_dtype": tl.float64}, tl.float32, "tf32"),
        ("bf16", {"out_dtype": tl.float16}, tl.float32, None),
        ("i8", {"out_dtype": tl.float32}, tl.int32, None),
    ],
)
def test_dot_accumulates_wide(dtype, keywords, accumulator, precision):
    keyword, value = next(iter(keywords.items()), ("out_dtype", None))

    @kernel
    def k(x, NAME: tl.constexpr, VALUE: tl.constexpr, ACC: tl.constexpr):
        i = tl.arange(0, 16)
        a = tl.load(x + i[:, None] * 16 + i[None, :])
        if NAME == "out_dtype":
            c = tl.dot(a, a, out_dtype=VALUE)
        elif NAME == "allow_tf32":
            c = tl.dot(a, a, allow_tf32=VALUE)
        else:
            c = tl.dot(a, a, input_precision=VALUE)
        tl.static_assert(c.dtype == ACC, c.dtype)
        c = tl.dot(a, a, c, out_dtype=c.dtype)

    func = ir(k, x=f"*{dtype}", NAME=tl.constexpr(keyword), VALUE=tl.constexpr(value), ACC=accumulator)
    dot = next(op for op in func.ops() if op.name == "dot")
    assert dot.attrs.get("precision") == precision


def test_dot_with_bfloat16_result_is_refused():
    @kernel
    def k(x):
        i = tl.arange(0, 16)
        a = tl.load(x + i[:, None] * 16 + i[None, :])
        tl.dot(a, a, out_dtype=tl.bfloat16)

    error = failure(k, TypeMismatch, x="*bf16")
    assert error.message == "a dot of bf16 accumulates in fp32, not in bf16"
    assert error.hint == "use tl.float32 and cast the result"


def test_dot_refuses_an_accumulator_of_another_shape():
    @kernel
    def k(out):
        a = tl.zeros((16, 16), tl.float16)
        tl.dot(a, a, tl.zeros((16, 32), tl.float32))

    error = failure(k, TypeMismatch, out="*f32")
    assert "tl.zeros((16, 16), dtype=tl.float32)" in error.hint


def test_casts_round_truncate_or_reinterpret():
    @kernel
    def k(out, x):
        v = tl.load(x)
        tl.store(out, v.to(tl.int32))
        tl.store(out + 1, tl.cast(v, tl.int8))
        tl.store(out + 2, v.to(tl.int32, bitcast=True))
        tl.store(out + 3, tl.float32(7).to(tl.int32) + tl.to_tensor(2))

    found = evaluate(k, np.int64, (4,), x=np.array([-1.75], np.float32))
    assert found.tolist() == [-1, -1, int(np.float32(-1.75).view(np.int32)), 9]


def test_pointers_can_be_passed_as_integers():
    @kernel
    def k(out, table):
        p = tl.load(table).to(tl.pointer_type(tl.float16))
        tl.static_assert(p.dtype.element_ty == tl.float16)
        tl.store(out, out.to(tl.int64))
        tl.store(p, 1.0)

    assert [op.name for op in ir(k, out="*i64", table="*i64").ops()].count("bitcast") == 2


def test_dtype_attributes_are_compile_time_constants():
    @kernel
    def k(x, ACC: tl.constexpr):
        v = tl.load(x + tl.arange(0, 4))
        tl.static_assert(v.dtype.is_floating() and v.dtype.primitive_bitwidth == 16)
        tl.static_assert(x.dtype.is_ptr() and x.type.element_ty == tl.float16 and x.dtype.element_ty is tl.float16)
        tl.static_assert(v.type.scalar == tl.float16 and v.type.is_block() and v.shape[0] == 4)
        tl.static_assert(ACC.value == ACC and ACC is tl.float32 and ACC != v.dtype)
        tl.static_assert(isinstance(v, tl.tensor) and not isinstance(ACC, tl.tensor))

    ir(k, x="*f16", ACC=tl.float32)


def test_hints_return_their_operand():
    @kernel
    def k(out, n):
        i = tl.max_contiguous(tl.multiple_of(tl.arange(0, 4), 4), 4)
        tl.assume(n > 0)
        tl.store(out + i, i)

    assert evaluate(k, np.int32, (4,), n=3).tolist() == [0, 1, 2, 3]


def test_hints_stay_on_their_ops_and_parameters():
    @kernel
    def k(out, n, stride):
        tl.multiple_of(stride, 24)
        i = tl.max_contiguous(tl.multiple_of(tl.arange(0, 4) % n, 4), (4,))
        tl.store(out + i * stride, i)

    func = ir(k, out="*i32", n="i32", stride="i32")
    assert [(h.name, h.divisibility) for h in func.hints] == [("out", 16), ("n", 1), ("stride", 8)]
    (op,) = [op for op in func.ops() if op.name == "rem"]
    assert dict(op.attrs) == {"multiple_of": (4,), "max_contiguous": (4,)}


def test_loads_and_stores_take_their_keywords():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        v = tl.load(x + i, i < 3, 9, cache_modifier=".cg", eviction_policy="evict_last", volatile=True)
        tl.store(out + i, v, i < 4, cache_modifier=".cs")

    assert evaluate(k, np.float32, (4,), x=np.arange(4, dtype=np.float32)).tolist() == [0, 1, 2, 9]
    load = next(op for op in ir(k, out="*f32", x="*f32").ops() if op.name == "load")
    assert dict(load.attrs) == {"cache": ".cg", "evict": "evict_last", "volatile": True}


def test_masks_may_be_scalars_constants_or_smaller_tiles():
    @kernel
    def k(out, n):
        i, j = tl.arange(0, 2), tl.arange(0, 4)
        at = out + i[:, None] * 4 + j[None, :]
        tl.store(at, 1, mask=True)
        tl.store(at, 2, mask=n > 100)
        tl.store(at, 3, mask=j < 2)

    assert evaluate(k, np.int32, (2, 4), n=5).tolist() == [[3, 3, 1, 1]] * 2


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_casts_round_toward_zero_when_asked(dtype):
    narrow = tl.float16 if dtype == np.float16 else tl.bfloat16

    @kernel
    def k(out, x, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i).to(narrow, fp_downcast_rounding="rtz"))

    x = (RNG.standard_normal(256) * np.exp2(RNG.uniform(-20, 14, 256))).astype(np.float32)
    x[:6] = [0.0, -0.0, np.inf, np.nan, 3.4e38, -3.4e38]
    found = evaluate(k, dtype, (256,), x=x, BLOCK=256).astype(np.float64)
    with np.errstate(all="ignore"):
        nearest = x.astype(dtype)
        inward = np.nextafter(nearest, dtype(0)).astype(np.float64)
        expected = np.where(np.abs(nearest.astype(np.float64)) > np.abs(x), inward, nearest.astype(np.float64))
    np.testing.assert_array_equal(found, expected)


def test_unknown_or_inapplicable_rounding_mode_is_refused():
    @kernel
    def unknown(out, x):
        tl.store(out, tl.load(x).to(tl.float16, fp_downcast_rounding="up"))

    @kernel
    def wider(out, x):
        tl.store(out, tl.load(x).to(tl.float64, fp_downcast_rounding="rtz"))

    assert "'up' does not exist" in str(failure(unknown, TypeMismatch, out="*f32", x="*f32"))
    assert "narrower float" in str(failure(wider, TypeMismatch, out="*f32", x="*f32"))


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
def test_rounding_mode_is_accepted_for_a_cast_to_the_same_dtype(rounding):
    @kernel
    def k(out, x):
        tl.store(out, tl.load(x).to(out.dtype.element_ty, fp_downcast_rounding=rounding))

    assert evaluate(k, np.float32, x=np.array([0.1], np.float32)) == np.float32(0.1)


@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "bf16x3", "bf16x6"])
def test_fp32_products_reach_fp32_accuracy_on_request(precision):
    @kernel
    def k(out, x):
        at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
        tile = tl.load(x + at)
        tl.store(out + at, tl.dot(tile, tile, input_precision=precision))

    x = RNG.standard_normal((16, 16)).astype(np.float32)
    np.testing.assert_allclose(evaluate(k, np.float32, (16, 16), x=x), x.astype(np.float64) @ x, rtol=1e-5, atol=1e-5)
