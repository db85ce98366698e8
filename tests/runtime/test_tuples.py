"""Tuples as kernel arguments, with arrays, numbers, None and constants, nested, with or without names."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import LaunchError, TypeMismatch
from blocknb.runtime import cache
from blocknb.runtime import compile as compiler
from blocknb.runtime import kernel as runtime
from blocknb.runtime.arguments import describer
from blocknb.runtime.kernel import Launch
from blocknb.runtime.kinds import tuple_kind
from blocknb.runtime.launch_context import observers


class Array(NamedTuple):
    ptr: Any
    shape: tuple
    stride: tuple


Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cache.Cache(tmp_path)
    monkeypatch.setattr(cache, "shared", lambda: own)


def array(x: np.ndarray) -> Array:
    return Array(x, x.shape, tuple(s // x.itemsize for s in x.strides))


@blocknb.kernel
def twice(x):
    return x * 2


@blocknb.kernel
def element(a, i, j):
    return a.ptr + i * a.stride[0] + j * a.stride[1]


@blocknb.kernel
def scaled(source, target, numbers, BLOCK: tl.constexpr):
    """target = function(source) * scale + shift + bias, where bias may be None."""
    function, (scale, shift), bias = numbers
    i, j = tl.program_id(0), tl.arange(0, BLOCK)
    mask = j < source.shape[1]
    x = tl.load(element(source, i, j), mask=mask)
    x = function(x) * scale + shift
    if bias is not None:
        x += tl.load(bias + j, mask=mask)
    tl.store(element(target, i, j), x, mask=mask & (i < target.shape[0]))


def launch(kernel: Any, how: str, grid: tuple, *args: Any, **kwargs: Any) -> None:
    kernel[grid](*args, interpret=how == "interpreter", **kwargs)


@pytest.mark.parametrize("how", ["compiled", "interpreter"])
@pytest.mark.parametrize("bias", [None, np.arange(5, dtype=np.float32)], ids=["without", "with"])
def test_nested_tuples_may_hold_arrays_numbers_functions_and_none(how: str, bias: np.ndarray | None) -> None:
    x, y = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32), np.zeros((3, 8), np.float32)
    launch(scaled, how, (3,), array(x), array(y), (twice, (1.5, 7), bias), BLOCK=8)
    np.testing.assert_allclose(y[:, :5], x * 3 + 7 + (0 if bias is None else bias), rtol=1e-6)
    assert not y[:, 5:].any()


@pytest.mark.parametrize("how", ["compiled", "interpreter"])
def test_elements_of_a_tuple_are_indexed_and_unpacked_as_in_python(how: str) -> None:
    @blocknb.kernel
    def k(out, numbers, others):
        total = 0 * numbers[-1]
        for i in tl.static_range(len(numbers)):
            total += numbers[i]
        for n in others[1:]:
            total += n
        joined = numbers + (100,)  # noqa: RUF005
        tl.store(out, total + joined[-1])

    out = np.zeros(1, np.int64)
    launch(k, how, (1,), out, (1, 2, 2**40), (7, 16, 1))
    assert out[0] == 1 + 2 + 2**40 + 16 + 1 + 100


@pytest.mark.parametrize("how", ["compiled", "interpreter"])
def test_a_named_tuple_keeps_its_names_through_branches_loops_and_helpers(how: str) -> None:
    @blocknb.kernel
    def swapped(pair):
        return Pair(pair.second, first=pair.first) if False else Pair(second=pair.first, first=pair.second)

    @blocknb.kernel
    def k(out, pair, n):
        pair = swapped(pair)
        if n > 2:
            pair = Pair(pair.first + 1, pair.second)
        for i in range(n):
            pair = Pair(pair.first, pair.second + i)
        tl.store(out, pair.first)
        tl.store(out + 1, pair.second)

    out = np.zeros(2, np.int32)
    launch(k, how, (1,), out, Pair(40, 5), 4)
    assert out.tolist() == [6, 46]


def test_each_element_is_specialized_like_an_argument() -> None:
    @blocknb.kernel
    def k(x, more, N: tl.constexpr):
        n, one, flag, y = more
        i = tl.arange(0, N)
        tl.store(y + i, tl.load(x + i) + n * one, mask=flag & (i < n))

    trace = k.trace("*fp32:16", ("i32:16", 1, True, "*fp32:16"), 32, target="cpu")
    assert trace.signature == {"x": "*fp32:16", "more.0": "i32:16", "more.2": "i1", "more.3": "*fp32:16"}
    assert trace.constants == {"more.1": 1, "N": 32}
    hints = {hint.name: hint.divisibility for hint in trace.stages[0].after.hints}
    assert hints == {"x": 16, "more.0": 16, "more.2": 1, "more.3": 16}

    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    assert k[(1,)](x, (16, 1, True, y), 32) is k[(1,)](x, (32, 1, False, y), 32)
    assert k[(1,)](x, (16, 2, True, y), 32) is not k[(1,)](x, (16, 1, True, y), 32)
    assert k[(1,)](x, (17, 1, False, y), 32) is not k[(1,)](x, (16, 1, True, y), 32)
    assert y.tolist() == [i + 16 if i < 16 else 0 for i in range(32)]


def test_do_not_specialize_applies_to_elements() -> None:
    @blocknb.kernel(do_not_specialize=["sizes"])
    def k(out, sizes):
        tl.store(out, sizes[0] + sizes[1])

    out = np.zeros(1, np.int32)
    found = {k[(1,)](out, sizes) for sizes in ((1, 16), (3, 5), (16, 1))}
    assert len(found) == 1
    assert out[0] == 17


def test_equal_tuples_have_one_kind_per_class() -> None:
    kinds = [describer(x)(x)[0] for x in ((1, 2.0), (1, 3.0), Pair(1, 2.0), (1, (2.0,)))]
    assert kinds[0] is kinds[1]
    assert len(set(map(id, kinds))) == 3
    assert str(kinds[0]) == "(1, fp32)"
    assert kinds[2] is tuple_kind(kinds[0].type.parts, Pair)


def test_a_tuple_for_a_constexpr_is_a_constant_and_keeps_its_names() -> None:
    @blocknb.kernel
    def k(out, SIZES: tl.constexpr):
        tl.store(out + tl.arange(0, SIZES.second[0]), SIZES.first)

    out = np.zeros(8, np.int32)
    k[(1,)](out, SIZES=Pair(3, (4,)))
    assert out.tolist() == [3] * 4 + [0] * 4


def test_a_constexpr_in_a_tuple_is_a_constant() -> None:
    @blocknb.kernel
    def k(out, sizes):
        tl.store(out + tl.arange(0, sizes[0]), sizes[1])

    out = np.zeros(8, np.int32)
    compiled = k[(1,)](out, (tl.constexpr(4), 5))
    assert out.tolist() == [5] * 4 + [0] * 4
    assert compiled.trace.constants == {"sizes.0": 4}


def test_tuples_may_hold_tensor_descriptors() -> None:
    @blocknb.kernel
    def k(pair, n):
        pair[1].store([n, 0], pair[0].load([0, n]))

    x, y = np.arange(128, dtype=np.float32).reshape(4, 32), np.zeros((8, 8), np.float32)
    for how in ("compiled", "interpreter"):
        y[:] = 0
        a, b = (blocknb.TensorDescriptor.from_tensor(t, [4, 8]) for t in (x, y))
        launch(k, how, (1,), (a, b), 2)
        assert (y[2:6] == x[:, 2:10]).all()
        assert not y[:2].any()


def test_the_disk_cache_distinguishes_tuples(own_cache: None) -> None:
    @blocknb.kernel
    def k(out, x):
        tl.store(out, x[0] + len(x))

    out = np.zeros(1, np.int32)
    for x, expected in (((5, 6), 7), ((5, 6, 7), 8), ((5, None), 7), ((5, (6, 7)), 7), (Pair(5, 6), 7)):
        for found in (False, True):  # compiled, and then found on the disk
            assert k[(1,)](out, x).trace.from_cache is found
            assert out[0] == expected
            compiler.forget()
            k._bindings.clear()


def test_an_observer_sees_the_elements_and_may_repeat_the_launch() -> None:
    seen: list[Launch] = []
    x, y = np.arange(8, dtype=np.float32), np.zeros((1, 8), np.float32)
    observers.append(seen.append)
    try:
        scaled[(1,)](array(x[None]), array(y), (twice, (1.5, 7), None), BLOCK=8)
    finally:
        observers.remove(seen.append)
    (launched,) = seen
    assert launched.arguments["source.0"]["shape"] == (1, 8)
    assert launched.arguments["numbers.1.0"]["value"] == 1.5
    assert launched.compiled.stored == {"target.0"}
    given = launched.snapshot.arguments(launched.compiled.stored)
    assert given["numbers"] == (twice, (1.5, 7), None)
    assert isinstance(given["target"], Array)
    assert set(given) == {"source", "target", "numbers", "BLOCK"}
    y[:] = -1
    scaled[(1,)](**given)
    assert (given["target"].ptr == x * 3 + 7).all()
    assert (y == -1).all()


def test_warmup_takes_types_in_tuples() -> None:
    source = Array("*fp32", (3, 5), (5, 1))
    assert scaled.warmup(
        source, Array(np.dtype(np.float32), (3, 5), (8, 1)), (twice, (1.5, 7), None), BLOCK=8, grid=(1,)
    )


def test_a_launch_without_tuples_does_not_look_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    @blocknb.kernel
    def k(out, n):
        tl.store(out, n)

    out = np.zeros(1, np.int32)
    k[(1,)](out, 5)
    monkeypatch.setattr(runtime, "flat", None)
    plan = next(iter(next(iter(k._bindings.values())).plans.values()))
    k[(1,)](out, 6)
    assert out[0] == 6
    assert not hasattr(plan.start, "keep")  # the launcher itself, with nothing around it


# -- what is wrong with one is told at the element


@blocknb.kernel
def three(out, values):
    a, b, c = values
    tl.store(out, a + b + c)


def test_a_tuple_of_another_length_than_the_kernel_unpacks() -> None:
    with pytest.raises(TypeMismatch, match="2 values for 3 names") as caught:
        three[(1,)](np.zeros(1), (1.0, 2.0))
    assert "a, b" in str(caught.value)


def test_the_error_for_a_wrong_element_names_it() -> None:
    with pytest.raises(LaunchError, match=r"the argument `values` .*: element 1: element 0: a set is neither an array"):
        three[(1,)](np.zeros(1), (1.0, ({2},), 3.0))


def test_the_error_for_a_list_suggests_a_tuple() -> None:
    with pytest.raises(LaunchError, match="a list is neither an array nor a number") as caught:
        three[(1,)](np.zeros(1), [1.0, 2.0, 3.0])
    assert "a tuple, whose elements are arguments" in str(caught.value)


def test_a_constexpr_tuple_cannot_hold_an_array() -> None:
    @blocknb.kernel
    def k(out, values: tl.constexpr):
        tl.store(out, values[0])

    with pytest.raises(LaunchError, match="a value of type tuple cannot be a constant") as caught:
        k[(1,)](np.zeros(1), (1.0, np.zeros(3)))
    assert "parameters without tl.constexpr" in str(caught.value)


def test_a_tuple_where_the_kernel_computes_with_a_number() -> None:
    @blocknb.kernel
    def k(out, n):
        tl.store(out, n + 1)

    with pytest.raises(TypeMismatch, match="`\\+` cannot combine a tuple and the constant 1"):
        k[(1,)](np.zeros(1), (1, 2))


def test_an_index_past_the_end_and_an_unknown_name_are_errors() -> None:
    @blocknb.kernel
    def k(out, values, INDEX: tl.constexpr):
        if INDEX:
            tl.store(out, values[INDEX])
        else:
            tl.store(out, values.third)

    with pytest.raises(TypeMismatch, match="index 2 is out of range for a tuple of 2 elements"):
        k[(1,)](np.zeros(1), Pair(1.5, 2.5), 2)
    with pytest.raises(TypeMismatch, match="has no `third`"):
        k[(1,)](np.zeros(1), Pair(1.5, 2.5), 0)


def test_a_store_to_a_read_only_array_in_a_tuple_is_rejected() -> None:
    @blocknb.kernel
    def k(pair):
        tl.store(pair[1][0], 1.0)

    y = np.zeros(4)
    y.flags.writeable = False
    with pytest.raises(LaunchError, match=r"stores through `pair\[1\]\[0\]`"):
        k[(1,)]((3, (y,)))


def test_an_access_error_names_the_element_of_a_tuple() -> None:
    @blocknb.kernel
    def k(pair, n):
        tl.store(pair[1] + n, 1.0)

    for how in ("compiled", "interpreter"):
        with pytest.raises(blocknb.errors.AccessError, match=r"pair\.1"):
            launch(k, how, (1,), (np.zeros(3), np.zeros(4)), 4)
