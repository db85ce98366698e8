"""The specialization of a launch: dtype, divisibility by 16, the value 1, constants by value, and an array's device."""

from __future__ import annotations

import ctypes
import enum
import struct
from typing import Any

import numpy as np
import pytest

from blocknb.errors import LaunchError
from blocknb.language import constexpr
from blocknb.language import types as t
from blocknb.runtime import arguments, kinds
from blocknb.runtime.arguments import describer
from blocknb.runtime.extents import UNBOUNDED, extent
from blocknb.runtime.kinds import ANYWHERE, HOST, ONE, constant_kind
from blocknb.runtime.plan import parse_type
from blocknb.runtime.summary import summary


def describe(value: Any) -> tuple[kinds.Kind, Any]:
    return describer(value)(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "i32:16"),
        (7, "i32"),
        (-32, "i32:16"),
        (2**31 - 1, "i32"),
        (2**31, "i64:16"),
        (-(2**31) - 1, "i64"),
        (2**63, "u64:16"),
        (2**64 - 1, "u64"),
        (1.0, "fp32"),
        (True, "i1"),
        (np.int64(5), "i64"),
        (np.uint8(32), "u8:16"),
        (np.float16(1), "fp16"),
        (np.float64(1), "fp32"),  # a Python float by inheritance, and what NumPy functions of scalars return
        (np.bool_(False), "i1"),
    ],
)
def test_numbers_have_the_type_that_triton_gives_them(value: Any, text: str) -> None:
    kind, raw = describe(value)
    assert str(kind) == text
    assert raw == value


@pytest.mark.parametrize("value", [1, np.int64(1)])
def test_an_integer_equal_to_one_is_a_constant(value: Any) -> None:
    assert describe(value)[0] is ONE


def test_an_enumeration_of_integers_counts_as_an_integer() -> None:
    assert str(describe(enum.IntEnum("Mode", {"A": 32}).A)[0]) == "i32:16"


def test_equal_arguments_give_the_same_kind_object() -> None:
    a, b = np.zeros(64, np.float32), np.ones((8, 8), np.float32)
    assert describe(a)[0] is describe(b)[0]
    assert describe(17)[0] is describe(33)[0]
    assert constant_kind([1, 2]) is constant_kind((1, 2))


def test_constants_that_compare_equal_have_different_kinds() -> None:
    values = [1, 1.0, True, np.float32(1), 0.0, -0.0, (1, 0.0), (1, -0.0), (1.0, 0.0), (True, 0.0)]
    kinds = [constant_kind(v) for v in values]
    assert kinds[1] is kinds[3]  # a NumPy number counts as Python's
    assert len({id(k) for k in kinds}) == len(values) - 1


def test_a_constexpr_has_the_kind_of_its_value() -> None:
    assert constant_kind(constexpr(16)) is constant_kind(16)


@pytest.mark.parametrize("dtype", [d for d in t.DTYPES if d != t.float8e4b15], ids=str)
def test_every_dtype_of_the_language_has_a_pointer(dtype: t.DType) -> None:
    kind, address = describe(np.zeros(4, dtype.numpy))
    assert kind.type == t.Pointer(dtype)
    assert kind.device == HOST
    assert address % dtype.bytes == 0


def test_a_bf16_array_of_ml_dtypes_is_a_pointer_to_bf16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert describe(np.zeros(4, ml_dtypes.bfloat16))[0].type == t.Pointer(t.bfloat16)
    assert str(describe(ml_dtypes.bfloat16(2))[0]) == "bf16"
    kind, raw = describe(ml_dtypes.float8_e5m2(1.75))
    assert (str(kind), raw) == ("fp32", 1.75)


def test_the_address_decides_whether_an_array_is_aligned_to_16_bytes() -> None:
    base = np.zeros(64 + 4, np.float32)
    start = (-base.ctypes.data % 16) // 4
    for shift in range(4):
        kind, address = describe(base[start + shift :])
        assert kind.divisibility == (1 if shift else 16)
        assert address == base[start + shift :].ctypes.data


def test_the_direct_address_equals_numpys_for_views_and_empty_arrays() -> None:
    base = np.zeros((6, 8), np.int64)
    for array in (base, base[2:, 3:], base[::-1], base.T, base[:0], np.zeros((), np.int8), np.zeros(3)[::-2]):
        assert arguments.numpy_address(array) == array.ctypes.data


def test_the_extent_of_a_view_is_the_bytes_of_its_elements() -> None:
    base = np.zeros((6, 8), np.int64)
    for array in (base, base[2:, 3:5], base[::-1, ::-2], base.T, base[1], base[::2]):
        address = array.ctypes.data
        assert extent(array, address) == np.lib.array_utils.byte_bounds(array)


def test_the_extent_of_an_array_without_elements_is_empty() -> None:
    array = np.zeros((0, 5), np.float32)
    low, high = extent(array, array.ctypes.data)
    assert low == high


def test_torch_tensors_of_the_cpu_are_host_pointers_with_extents() -> None:
    torch = pytest.importorskip("torch")
    base = torch.zeros(6, 8, dtype=torch.bfloat16)
    for tensor in (base, base[2:, 3:5], base.t(), base[1:1]):
        kind, address = describe(tensor)
        assert (kind.type, kind.device) == (t.Pointer(t.bfloat16), HOST)
        assert address == tensor.data_ptr()
    assert extent(base, base.data_ptr()) == (base.data_ptr(), base.data_ptr() + 96)
    part = base[2:, 3:5]
    assert extent(part, part.data_ptr()) == (part.data_ptr(), part.data_ptr() + (3 * 8 + 2) * 2)
    assert describe(torch.nn.Parameter(torch.zeros(4)))[0].type == t.Pointer(t.float32)


def test_a_tensor_on_the_meta_device_is_rejected() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(LaunchError, match="meta"):
        describe(torch.zeros(4, device="meta"))


def test_an_object_with_an_address_and_a_dtype_is_a_pointer_of_unknown_device() -> None:
    class Buffer:
        dtype = np.dtype("int32")

        def data_ptr(self) -> int:
            return 4096

    buffer = Buffer()
    kind, address = describe(buffer)
    assert (str(kind), kind.device, address) == ("*i32:16", ANYWHERE, 4096)
    assert extent(buffer, address) == UNBOUNDED


def test_dlpack_memory_of_the_host_is_used_in_place() -> None:
    array = np.arange(8, dtype=np.float32)

    class Exported:
        def __dlpack__(self, **options: Any) -> Any:
            return array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return array.__dlpack_device__()

    kind, address = describe(Exported())
    assert kind.type == t.Pointer(t.float32)
    assert ctypes.c_float.from_address(address + 12).value == 3


def test_read_only_arrays_have_a_different_kind() -> None:
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    assert describe(frozen)[0].readonly
    assert not describe(frozen.copy())[0].readonly


def test_type_texts_stand_for_kinds() -> None:
    assert parse_type("*fp32") is kinds.pointer_kind(t.float32, False, ANYWHERE)
    assert parse_type("*f16:16") is kinds.pointer_kind(t.float16, True, ANYWHERE)
    assert parse_type("i32:16") is kinds.scalar_kind(t.int32, True)
    assert parse_type("*bool") is kinds.pointer_kind(t.int1, False, ANYWHERE)
    assert parse_type("float33") is None
    assert parse_type("*fp8e4nv:16") is kinds.pointer_kind(t.float8e4nv, True, ANYWHERE)
    assert parse_type("*fp8e5") is parse_type("*float8_e5m2") is kinds.pointer_kind(t.float8e5, False, ANYWHERE)
    assert parse_type("fp8e5") is None  # no parameter is a single fp8
    assert parse_type("*fp32:8") is None


def test_a_summary_has_shape_and_bytes_but_no_array() -> None:
    array = np.broadcast_to(np.zeros((1, 8), np.float32), (5, 8))
    found = summary(array, describe(array)[0])
    assert (found["shape"], found["bytes"]) == ((5, 8), 32)  # the five rows are the same bytes
    assert not any(isinstance(v, np.ndarray) for v in found.values())
    assert summary(3.5, describe(3.5)[0]) == {"kind": "scalar", "type": "fp32", "value": 3.5}


@pytest.mark.parametrize(
    "value", [3.4028234663852886e38, 3.4028235677973362e38, 3.4028235677973366e38, 2.0**128, 1e300]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_floats_around_the_largest_fp32_number_round_as_numpy_rounds(value: float, sign: int) -> None:
    with np.errstate(over="ignore"):
        expected = np.float32(sign * value)
    assert struct.unpack("f", struct.pack("f", arguments.fp32_or_infinity(sign * value))) == (expected,)
