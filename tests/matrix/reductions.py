"""Reductions and scans along every axis, with every keyword; softmax; products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

import blocknb
import blocknb.language as tl
from blocknb.language import types as t
from matrix.entry import (
    ANY,
    BOOL,
    FLOATS,
    FLOATS8,
    INTEGERS,
    NUMBERS,
    WIDE,
    Case,
    X,
    anything,
    at_least_fp32,
    between,
    distinct,
    entry,
    exact,
    over,
    summed,
    wild,
)

SHAPES = ((64,), (4, 16), (2, 4, 16), (2, 2, 4, 8))
ALONG = tuple(
    case
    for shape in SHAPES
    for axis in (*range(len(shape)), -1, None)
    for case in over(shape, axis=[axis], keep=[axis != 0 and axis != -1])
) + over((1,), (64,), axis=[0], keep=[True])
EACH = tuple(c for c in ALONG if c.fields["axis"] is not None)


def reducing(name: str, code: str, reference: Any, cases: Any = ALONG, **rest: Any) -> None:
    entry(name, code, reference, **{"cases": cases, "domain": exact} | rest)


def numeric(a: np.ndarray) -> np.ndarray:
    return a.astype(np.int64) if a.dtype == bool else a


def summing(a: np.ndarray, axis: Any, keep: bool) -> np.ndarray:
    return np.asarray(
        np.sum(
            numeric(a),
            axis,
            dtype=None if a.dtype.kind == "f" else a.dtype if a.itemsize > 2 else np.int64,
            keepdims=keep,
        )
    )


reducing("sum", "tl.sum(a, {axis}, keep_dims={keep})", summing, gives=(summed,))
reducing("tensor.sum", "a.sum({axis}, {keep})", summing, gives=(summed,))
reducing("sum dtype", "tl.sum(a, {axis}, {keep}, dtype=tl.float64)", summing, dtypes=ANY, gives=(t.float64,))


def whole_range(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    return [wild(rng, d, n) for d, n in zip(dtypes, sizes, strict=True)]


reducing(
    "sum wraps",
    "tl.sum(a, {axis}, keep_dims={keep})",
    lambda a, axis, keep: np.sum(a, axis, dtype=a.dtype, keepdims=keep),
    dtypes=(t.int32, t.uint32, t.int64, t.uint64),
    domain=whole_range,
    refuses=False,
)


def best_dtype(x: Any) -> Any:
    return (t.float32 if x.is_float else t.int32) if x.bits < 32 else x


def with_nan(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """NaN and infinities among numbers; extrema ignore NaN."""
    return [anything(rng, [d], [n])[0] for d, n in zip(dtypes, sizes, strict=True)]


for _name, _fn in (("max", np.fmax), ("min", np.fmin)):
    _reference = lambda a, axis, keep, f=_fn: np.asarray(f.reduce(numeric(a), axis, keepdims=keep))  # noqa: E731
    reducing(
        _name,
        f"tl.{_name}(a, {{axis}}, keep_dims={{keep}})",
        _reference,
        dtypes=ANY,
        gives=(best_dtype,),
        domain=with_nan,
        zeros=False,
    )
    reducing(
        f"tensor.{_name}",
        f"a.{_name}({{axis}}, keep_dims={{keep}})",
        _reference,
        dtypes=ANY,
        gives=(best_dtype,),
        domain=with_nan,
        zeros=False,
    )


def argument(a: np.ndarray, axis: Any, keep: bool, largest: bool) -> np.ndarray:
    found = (np.argmax if largest else np.argmin)(a, axis, keepdims=keep)
    return np.asarray(found)


def fp32_if_bf16(x: Any) -> Any:
    return t.float32 if x == t.bfloat16 or x in FLOATS8 else t.int32 if x == t.int1 else x


for _name, _largest in (("max", True), ("min", False)):
    for _label, _code in (
        (f"arg{_name}", f"tl.arg{_name}(a, {{axis}}, keep_dims={{keep}})"),
        (f"tensor.arg{_name}", f"a.arg{_name}({{axis}}, True, {{keep}})"),
    ):
        reducing(
            _label,
            _code,
            lambda a, axis, keep, f=_largest: argument(a, axis, keep, f),
            EACH,
            dtypes=ANY,
            gives=(t.int32,),
            zeros=False,
        )
    reducing(
        f"{_name} return_indices",
        f"tl.{_name}(a, {{axis}}, return_indices=True, keep_dims={{keep}})",
        lambda a, axis, keep, f=_largest: (
            np.asarray((np.max if f else np.min)(a, axis, keepdims=keep)),
            argument(a, axis, keep, f),
        ),
        dtypes=ANY,
        gives=(fp32_if_bf16, t.int32),
    )
    reducing(
        f"arg{_name} tie_break_left",
        f"tl.arg{_name}(a, {{axis}}, tie_break_left=False, keep_dims={{keep}})",
        lambda a, axis, keep, f=_largest: argument(a, axis, keep, f),
        over((32,), (4, 16), axis=[-1], keep=[False]),
        dtypes=NUMBERS,
        gives=(t.int32,),
        domain=distinct,
        refuses=False,
    )

for _name, _fn in (("xor_sum", np.bitwise_xor), ("reduce_or", np.bitwise_or)):
    for _label, _code in (
        (_name, f"tl.{_name}(a, {{axis}}, {{keep}})"),
        (f"tensor.{_name}", f"a.{_name}({{axis}}, keep_dims={{keep}})"),
    ):
        reducing(
            _label,
            _code,
            lambda a, axis, keep, f=_fn: np.asarray(
                f.reduce(a, axis, keepdims=keep)
                if axis is not None
                else f.reduce(a.ravel()).reshape((1,) * a.ndim if keep else ())
            ),
            dtypes=(*BOOL, *INTEGERS),
            domain=whole_range,
        )

# -- custom combine functions ----------------------------------------------------------------------------------------------------------


@blocknb.kernel
def plus(a, b):
    return a + b


@blocknb.kernel
def larger(a, i, b, j):
    """The larger of two numbers and its index; the first of equal ones."""
    first = (a > b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@blocknb.kernel
def linear(a, b, c, d):
    """x -> a x + b and then x -> c x + d."""
    return a * c, b * c + d


NAMES = {"plus": plus, "larger": larger, "linear": linear}


def own_sum(a: np.ndarray, axis: Any, keep: bool) -> np.ndarray:
    if a.dtype == bool:
        return np.asarray(np.logical_xor.reduce(a, axis, keepdims=keep))
    return np.asarray(np.sum(a, axis, dtype=a.dtype, keepdims=keep))


def in_order(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    a, b = exact(rng, dtypes, sizes)
    return [a, np.arange(b.size).astype(b.dtype)]


for _label, _code in (
    ("reduce", "tl.reduce(a, {axis}, plus, keep_dims={keep})"),
    ("tensor.reduce", "a.reduce({axis}, plus, {keep})"),
):
    reducing(_label, _code, own_sum, names=NAMES)
PAIRS = tuple(Case(c.shapes * 2, c.fields) for c in EACH)
reducing(
    "reduce tuple",
    "tl.reduce((a, b), {axis}, larger, {keep})",
    lambda a, b, axis, keep: (
        np.asarray(np.max(a, axis, keepdims=keep)),
        np.asarray(
            np.take_along_axis(b, np.argmax(a, axis, keepdims=True), axis).reshape(np.max(a, axis, keepdims=keep).shape)
        ),
    ),
    PAIRS,
    takes=(X, t.int32),
    gives=(X, t.int32),
    domain=in_order,
    names=NAMES,
    dtypes=NUMBERS,
    refuses=False,
)

# -- scans ---------------------------------------------------------------------------------------------------------------------

SCANS = tuple(c for shape in SHAPES for c in over(shape, axis=sorted({0, len(shape) - 1}), reverse=[False, True]))


def running(f: Any, a: np.ndarray, axis: int, reverse: bool, dtype: Any = None) -> np.ndarray:
    x = np.flip(a, axis) if reverse else a
    out = f.accumulate(x, axis, dtype=dtype)
    return np.flip(out, axis) if reverse else out


def running_dtype(x: Any) -> Any:
    return t.float32 if x == t.bfloat16 else summed(x)


def held(a: np.ndarray) -> Any:
    return a.dtype if a.dtype.kind == "f" or a.itemsize > 2 else np.int64


def powers(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """Factors whose products are exact: signs of one, and a few twos."""
    found = []
    for d, n in zip(dtypes, sizes, strict=True):
        x = np.ones(n) if d.kind in ("uint", "bool") else rng.choice([1, -1], n)
        x[rng.integers(0, n, 3)] *= 1 if d.kind == "bool" else 2
        found.append(x.astype(d.numpy))
    return found


for _label, _code in (
    ("cumsum", "tl.cumsum(a, {axis}, {reverse})"),
    ("tensor.cumsum", "a.cumsum({axis}, reverse={reverse})"),
):
    reducing(
        _label,
        _code,
        lambda a, axis, reverse: running(np.add, a, axis, reverse, held(a)),
        SCANS,
        gives=(running_dtype,),
    )
reducing(
    "cumsum dtype",
    "tl.cumsum(a, {axis}, {reverse}, dtype=tl.int64)",
    lambda a, axis, reverse: running(np.add, a.astype(np.int64), axis, reverse),
    SCANS,
    dtypes=ANY,
    gives=(t.int64,),
)
for _label, _code in (
    ("cumprod", "tl.cumprod(a, {axis}, {reverse})"),
    ("tensor.cumprod", "a.cumprod({axis}, reverse={reverse})"),
):
    reducing(
        _label,
        _code,
        lambda a, axis, reverse: running(np.multiply, a, axis, reverse, held(a)),
        SCANS,
        gives=(running_dtype,),
        domain=powers,
    )
for _label, _code in (
    ("associative_scan", "tl.associative_scan(a, {axis}, plus, reverse={reverse})"),
    ("tensor.associative_scan", "a.associative_scan({axis}, plus, {reverse})"),
):
    reducing(
        _label,
        _code,
        lambda a, axis, reverse: running(np.logical_xor if a.dtype == bool else np.add, a, axis, reverse, a.dtype),
        SCANS,
        names=NAMES,
    )


def linear_scan(a: np.ndarray, b: np.ndarray, axis: int, reverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """A sequential scan of (a, b) by `linear`."""
    x, y = (np.moveaxis(np.flip(v, axis) if reverse else v, axis, 0).copy() for v in (a, b))
    for i in range(1, len(x)):
        x[i], y[i] = x[i - 1] * x[i], y[i - 1] * x[i] + y[i]
    return tuple(np.flip(np.moveaxis(v, 0, axis), axis) if reverse else np.moveaxis(v, 0, axis) for v in (x, y))  # type: ignore[return-value]


def signs(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    return [
        rng.choice([1] if d.kind == "uint" else [1, -1], n).astype(d.numpy) for d, n in zip(dtypes, sizes, strict=True)
    ]


reducing(
    "associative_scan tuple",
    "tl.associative_scan((a, b), {axis}, linear, {reverse})",
    linear_scan,
    tuple(Case(c.shapes * 2, c.fields) for c in SCANS),
    takes=(X, X),
    gives=(X, X),
    dtypes=NUMBERS,
    domain=signs,
    names=NAMES,
    refuses=False,
)

# -- softmax ---------------------------------------------------------------------------------------------------------------------


def softmax(a: np.ndarray, dim: Any, keep: bool = False) -> np.ndarray:
    axis = 0 if dim is None else dim
    x = np.exp(a - np.max(a, axis, keepdims=True))
    return x / np.sum(x, axis, keepdims=True)


for _label, _code in (
    ("softmax", "tl.softmax(a, {dim})"),
    ("tensor.softmax", "a.softmax(dim={dim})"),
    ("softmax keep_dims", "tl.softmax(a, {dim}, True, ieee_rounding=True)"),
):
    entry(
        _label,
        _code,
        lambda a, dim: softmax(a.astype(np.float64) if a.dtype.kind != "f" else a, dim),
        FLOATS,
        gives=(at_least_fp32,),
        cases=over((64,), (4, 16), (2, 4, 16), dim=[None, -1]),
        domain=between(-8, 8),
        ulps=64,
        refuses=False,
    )

# -- dot -------------------------------------------------------------------------------------------------------------------------

MATRICES = (t.float16, t.bfloat16, t.float32, t.float64, t.int8, *FLOATS8)


def accumulator(x: Any) -> Any:
    return {t.int8: t.int32, t.float64: t.float64}.get(x, t.float32)


def product(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
    wide = np.int64 if a.dtype.kind == "i" else a.dtype
    return a.astype(wide) @ b.astype(wide) + (c[0] if c else 0)


SIZES = over(
    ((16, 16), (16, 16)),
    ((32, 16), (16, 64)),
    ((2, 32), (32, 4)),
    ((2, 16, 16), (2, 16, 16)),
    ((4, 16, 32), (4, 32, 16)),
)
entry("dot", "tl.dot(a, b)", product, MATRICES, (X, X), (accumulator,), SIZES, exact)
for _keyword in (
    'input_precision="ieee"',
    'input_precision="tf32x3"',
    "allow_tf32=False",
    "allow_tf32=True",
    "max_num_imprecise_acc=16",
):
    entry(
        f"dot {_keyword}", f"tl.dot(a, b, {_keyword})", product, MATRICES, (X, X), (accumulator,), SIZES[1:4:2], exact
    )
for _first, _second in ((True, False), (False, True), (True, True)):

    def _turned(a: np.ndarray, b: np.ndarray, first: bool = _first, second: bool = _second) -> np.ndarray:
        return product(np.swapaxes(a, -1, -2) if first else a, np.swapaxes(b, -1, -2) if second else b)

    _turn = tuple(
        Case(tuple((*n[:-2], n[-1], n[-2]) if x else n for n, x in zip(c.shapes, (_first, _second), strict=True)))
        for c in SIZES[1:4]
    )
    _keywords = f"trans_a={_first}, trans_b={_second}"
    entry(f"dot {_keywords}", f"tl.dot(a, b, {_keywords})", _turned, MATRICES, (X, X), (accumulator,), _turn, exact)
for _dtype in (t.float32, t.int32, t.float64, t.float16):
    _takes = tuple(
        d for d in MATRICES if accumulator(d) == _dtype or (_dtype == t.float16 and (d == t.float16 or d in FLOATS8))
    )
    _name = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}.get(_dtype.name, _dtype.name)
    _cases = tuple(Case((*c.shapes, (*c.shapes[0][:-1], c.shapes[1][-1]))) for c in SIZES)
    entry(
        f"dot acc {_dtype}",
        "tl.dot(a, b, acc=c)" if _dtype != t.float16 else "tl.dot(a, b, c, out_dtype=tl.float16)",
        product,
        _takes,
        (X, X, _dtype),
        (_dtype,),
        _cases,
        exact,
        refuses=False,
    )

    def _given(x: t.DType, asked: t.DType = _dtype) -> t.DType:
        """`out_dtype` has an effect for fp16 and fp8 only."""
        return asked if x == t.float16 or x in FLOATS8 else accumulator(x)

    entry(
        f"dot out_dtype {_dtype}",
        f"tl.dot(a, b, out_dtype=tl.{_name})",
        product,
        tuple(d for d in MATRICES if d in _takes or _given(d) == accumulator(d)),
        (X, X),
        (_given,),
        SIZES[:4],
        exact,
    )


def any_numbers(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    return [rng.uniform(0.5, 1, n).astype(d.numpy) for d, n in zip(dtypes, sizes, strict=True)]


entry(
    "dot rounds fp32 to tf32 at most",
    "tl.dot(a, b)",
    product,
    (t.float32,),
    (X, X),
    (X,),
    SIZES[1:4:2],
    any_numbers,
    ulps=2**13,
    refuses=False,
)
entry(
    "dot ieee is exact to fp32",
    'tl.dot(a, b, input_precision="ieee")',
    product,
    WIDE,
    (X, X),
    (X,),
    SIZES[1:4:2],
    any_numbers,
    ulps=32,
    refuses=False,
)
