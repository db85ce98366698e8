"""A wrong launch gives one message, which names the argument and points at the parameter and at the line of the launch."""

from __future__ import annotations

import linecache
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import KernelError, LaunchError

HERE = str(pathlib.Path(__file__).resolve())


pytestmark = pytest.mark.usefixtures("fresh_cache")


@blocknb.kernel
def scale(x, out, n, factor, BLOCK: tl.constexpr = 64):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) * factor, mask=mask)


X, OUT = np.zeros(100, np.float32), np.zeros(100, np.float32)


def refused(launch: Callable[[], Any]) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        launch()
    return caught.value


def pointed_at(error: KernelError) -> str:
    """The source text under the carets of an error."""
    loc = error.loc
    assert loc is not None
    return linecache.getline(loc.file, loc.line)[loc.column : loc.end_column]


def test_missing_arguments_are_all_named_with_an_example_of_the_launch() -> None:
    error = refused(lambda: scale[2,](X, OUT))
    assert "`n` and `factor`" in error.message
    assert "scale[grid](x, out, n, factor)" in (error.hint or "")
    assert pointed_at(error) == "n"


def test_an_error_names_the_line_that_launched() -> None:
    error = refused(lambda: scale[2,](X, OUT))
    caller = error.loc and error.loc.caller
    assert caller is not None
    assert caller.file == HERE
    assert "scale[2,](X, OUT)" in linecache.getline(caller.file, caller.line)
    assert "called from" in str(error)


def test_an_unknown_keyword_gets_the_nearest_name() -> None:
    error = refused(lambda: scale[2,](X, OUT, 100, 2.0, BLOK=64))
    assert "`BLOK`" in error.message
    assert "`BLOCK`" in (error.hint or "")


def test_an_argument_by_position_and_by_name_is_rejected() -> None:
    error = refused(lambda: scale[2,](X, OUT, 100, 2.0, x=X))
    assert "two values for `x`" in error.message
    assert pointed_at(error) == "x"


def test_too_many_arguments_are_counted() -> None:
    assert "takes 5 arguments, and 6 were given" in refused(lambda: scale[2,](X, OUT, 100, 2.0, 64, 1)).message


@pytest.mark.parametrize("grid", [(1, 1, 1, 1), [1, 2, 3, 4], ()], ids=["tuple", "list", "empty"])
def test_a_grid_has_one_to_three_axes(grid: Any) -> None:
    error = refused(lambda: scale[grid](X, OUT, 100, 2.0))
    assert f"{len(grid)} axes" in error.message


@pytest.mark.parametrize("size", [2.0, -1, "2", None, True])
def test_a_grid_holds_natural_numbers(size: Any) -> None:
    error = refused(lambda: scale[size,](X, OUT, 100, 2.0))
    assert repr(size) in error.message


def test_the_error_for_a_float_in_the_grid_suggests_cdiv() -> None:
    assert "cdiv" in (refused(lambda: scale[100 / 64,](X, OUT, 100, 2.0)).hint or "")


def test_a_wrong_result_of_a_grid_function_is_reported() -> None:
    assert "2.5" in refused(lambda: scale[lambda meta: (meta["n"] / 40,)](X, OUT, 100, 2.0)).message


def test_the_error_for_a_call_without_a_grid_shows_a_launch() -> None:
    error = refused(lambda: scale(X, OUT, 100, 2.0))
    assert "without a grid" in error.message
    assert "scale[grid](...)" in (error.hint or "")


@pytest.mark.parametrize("value", [[1.0, 2.0], {"a": 1}, 1j, object()], ids=["list", "dict", "complex", "object"])
def test_a_value_that_is_neither_array_nor_number_is_named(value: Any) -> None:
    error = refused(lambda: scale[2,](value, OUT, 100, 2.0))
    assert "argument `x`" in error.message
    assert type(value).__name__ in error.message
    assert pointed_at(error) == "x"


@pytest.mark.parametrize("dtype", ["complex64", "object", "U4", "datetime64[s]"])
def test_the_error_for_an_unsupported_dtype_names_it(dtype: str) -> None:
    array = np.zeros(100, dtype)
    error = refused(lambda: scale[2,](array, OUT, 100, 2.0))
    assert array.dtype.name in error.message
    assert "argument `x`" in error.message


def test_the_error_for_a_complex_array_suggests_its_real_view() -> None:
    assert "x.view(float32)" in (refused(lambda: scale[2,](X.astype("c8"), OUT, 100, 2.0)).hint or "")


def test_an_array_in_the_byte_order_of_another_machine_is_rejected() -> None:
    swapped = X.astype(X.dtype.newbyteorder())
    assert "byte order" in refused(lambda: scale[2,](swapped, OUT, 100, 2.0)).message


def test_an_array_with_gaps_whose_elements_are_not_aligned_is_rejected() -> None:
    shifted = np.zeros(801, np.uint8)[1:].view(np.float32)[::2]
    assert "not a multiple of the 4 bytes" in refused(lambda: scale[2,](shifted, OUT, 100, 2.0)).message


def test_a_masked_array_is_rejected() -> None:
    assert "mask" in refused(lambda: scale[2,](np.ma.masked_array(X), OUT, 100, 2.0)).message


def test_an_integer_beyond_64_bits_is_rejected() -> None:
    assert str(2**64) in refused(lambda: scale[2,](X, OUT, 2**64, 2.0)).message


@pytest.mark.parametrize("warps", [3, 0, 64, 2.0, True])
def test_num_warps_is_a_power_of_two_up_to_32(warps: Any) -> None:
    assert f"num_warps is {warps!r}" in refused(lambda: scale[2,](X, OUT, 100, 2.0, num_warps=warps)).message


def test_an_array_cannot_be_a_constant() -> None:
    error = refused(lambda: scale[2,](X, OUT, 100, 2.0, BLOCK=X))
    assert "`BLOCK`" in error.message
    assert "constant" in error.message


def test_a_read_only_array_may_be_read() -> None:
    frozen = np.arange(100, dtype=np.float32)
    frozen.flags.writeable = False
    out = np.full(100, np.nan, np.float32)
    scale[2,](frozen, out, 100, 2.0)
    np.testing.assert_array_equal(out, 2 * frozen)


def test_a_store_to_a_read_only_array_is_rejected_and_leaves_it_unchanged() -> None:
    frozen = np.ones(100, np.float32)
    frozen.flags.writeable = False
    error = refused(lambda: scale[2,](X, frozen, 100, 2.0))
    assert "stores through `out`" in error.message
    assert pointed_at(error) == "out"
    assert (frozen == 1).all()


def test_the_error_for_an_unknown_pass_names_the_optional_passes() -> None:
    error = refused(lambda: scale.trace(X, OUT, 100, 2.0, without={"colesce"}))
    assert "colesce" in error.message
    assert "coalesce" in error.message


def test_the_error_for_an_unknown_target_names_the_targets() -> None:
    with pytest.raises(KernelError, match="sm_90a"):
        scale.trace(X, OUT, 100, 2.0, target="sm_91")


def test_the_error_for_an_unknown_decorator_option_names_it() -> None:
    assert "num_warp" in refused(lambda: blocknb.kernel(num_warp=4)(lambda: None)).message


def test_a_class_cannot_be_a_kernel() -> None:
    assert "decorates a function" in refused(lambda: blocknb.kernel(type("Thing", (), {}))).message


def test_an_empty_grid_launches_nothing_and_still_checks_the_arguments() -> None:
    out = np.full(100, 7, np.float32)
    scale[0,](X, out, 100, 2.0)
    scale[4, 0](X, out, 100, 2.0)
    assert (out == 7).all()
    refused(lambda: scale[0,](X, [1], 100, 2.0))


def test_after_a_bad_launch_a_good_one_works() -> None:
    out = np.full(100, np.nan, np.float32)
    refused(lambda: scale[2,](X, out))
    scale[2,](X + 1, out, 100, 3.0)
    assert (out == 3).all()
