"""What Triton's language tests expect beyond names: causes of errors, kernels from texts, tensors of microscaling."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

import blocknb
import blocknb.compat
import blocknb.language as tl
from blocknb.compat.host import type_canonicalisation_dict
from blocknb.errors import CompilationError, LaunchError

SUITE = Path(__file__).resolve().parents[2] / "scripts" / "triton_suite.py"


@pytest.fixture
def as_triton():
    blocknb.compat.install()
    yield
    blocknb.compat.uninstall()


@blocknb.kernel
def misnamed_axis(x, CASE: tl.constexpr):
    i = tl.arange(0, 16)
    if CASE == "axis":
        tl.expand_dims(i, -3)
    elif CASE == "twice":
        tl.expand_dims(i, (0, -3))
    elif CASE == "program":
        tl.program_id(20)
    elif CASE == "range":
        tl.arange(0, 7)
    else:
        tl.make_tensor_descriptor(x, [4, 4], [4, 1], [2, 2])


PHRASES = {
    "axis": "invalid axis -3",
    "twice": "duplicate axes, normalized axes = [0, 0]",
    "program": "program_id axis must be 0, 1, or 2 but got 20",
    "range": "arange's range must be a power of 2",
    "descriptor": "Descriptor block shape must have at least 16 bytes in the last dimension",
}


@pytest.mark.parametrize("case", PHRASES)
def test_the_cause_of_an_error_has_tritons_words(as_triton, case):
    with pytest.raises(CompilationError) as caught:
        misnamed_axis[(1,)](np.zeros(16, np.int32), CASE=case)
    assert str(caught.value.__cause__) == PHRASES[case]
    assert f"Triton: {PHRASES[case]}" in str(caught.value)


def test_errors_have_no_such_cause_without_triton():
    with pytest.raises(CompilationError, match="no axis -3") as caught:
        misnamed_axis[(1,)](np.zeros(16, np.int32), CASE="axis")
    assert caught.value.__cause__ is None


@blocknb.kernel
def nothing(x, n):
    pass


def test_errors_of_a_launch_are_of_tritons_classes():
    x = np.zeros(4, np.float32)
    with pytest.raises(OverflowError, match="does not fit in 64 bits") as caught:
        nothing[(1,)](x, 2**64)
    assert isinstance(caught.value, LaunchError) and caught.value.loc is not None
    with pytest.raises(AssertionError, match="must be a power of 2") as caught:
        nothing[(1,)](x, 1, num_warps=3)
    assert isinstance(caught.value, LaunchError)


def test_the_name_of_a_compilation_is_the_one_that_repr_gives():
    kernel = blocknb.jit(repr=lambda s: f"nothing_{s.signature['n']}_{s.constants}")(nothing.fn)
    x = np.zeros(4, np.float32)
    assert kernel[(1,)](x, 5).name.startswith("nothing_i32_")
    assert kernel[(1,)](x, 2**40).name.startswith("nothing_i64")


def test_a_kernel_from_a_text_ignores_names_that_its_function_assigns_later():
    @blocknb.kernel
    def kernel(x):
        STATEMENT  # noqa: F821
        tl.store(x, z)

    kernel._unsafe_update_src(kernel.src.replace("STATEMENT", "z = tl.load(x) + 1"))
    x = np.zeros(1, np.int32)
    kernel[(1,)](x)
    z = x.tolist()
    assert z == [1]


@blocknb.kernel
def drawn(x, seed):
    tl.store(x, tl.rand(seed, 0))


def test_a_seed_is_an_integer():
    x = np.zeros(1, np.float32)
    with pytest.raises(CompilationError, match="the seed must be an integer"):
        drawn[(1,)](x, 2.5)
    drawn[(1,)](x, 2)
    assert 0 < x[0] < 1


@blocknb.kernel
def parity(x, out, N: tl.constexpr):
    bits = tl.load(x + tl.arange(0, N)) != 0
    tl.store(out, tl.sum(bits, dtype=tl.int1).to(tl.int32))
    tl.store(out + 1, tl.sum(bits))


@pytest.mark.parametrize("ones", [0, 3, 8])
def test_a_sum_of_bits_is_a_parity_in_int1_and_a_count_otherwise(ones):
    x, out = np.zeros(16, np.int32), np.zeros(2, np.int32)
    x[:ones] = 1
    parity[(1,)](x, out, N=16)
    assert out.tolist() == [ones % 2, ones]


@blocknb.kernel
def reassigned_descriptor(a, M, N, WIDE: tl.constexpr, FIRST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    stride = FIRST if FIRST else N
    desc = tl.make_tensor_descriptor(a, [M, N], [stride, 1], [BM, BN])
    for i in range(0, N, BN):
        if i % (2 * BN) == 0:
            size = N.to(tl.int64) if WIDE else N
            desc = tl.make_tensor_descriptor(a, [M, size], [N, 1], [BM, BN])
        desc.store([0, i], desc.load([0, i]) + i)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("first", [0, 64], ids=["run-time stride", "constant stride"])
def test_a_loop_carries_a_descriptor_that_it_makes_again(wide, first):
    a = np.zeros((8, 64), np.float32)
    reassigned_descriptor[(1,)](a, 8, 64, WIDE=wide, FIRST=first, BM=8, BN=16)
    assert (a == np.repeat(np.arange(0, 64, 16), 16)).all()


def test_signatures_name_the_dtypes_of_numpy_and_torch():
    names = ("float32", "float8_e4m3fn", "int32", "uint8", "bool", "bfloat16")
    assert [type_canonicalisation_dict[n] for n in names] == ["fp32", "fp8e4nv", "i32", "u8", "i1", "bf16"]
    assert [tl.str_to_ty(type_canonicalisation_dict[n], None).name for n in names[:2]] == ["fp32", "fp8e4nv"]


def test_tensors_of_microscaling_round_and_pack():
    torch = pytest.importorskip("torch")
    from blocknb.compat.mxfp import MXFP4Tensor, MXScaleTensor

    every = MXFP4Tensor(torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.0]))
    assert every.to(torch.float32).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 0] and every.data[-1] == 8
    drawn = MXFP4Tensor(size=(4, 6)).random()
    packed = drawn.to_packed_tensor(dim=1)
    assert packed.shape == (4, 3) and torch.equal(packed[:, 0], drawn.data[:, 0] | (drawn.data[:, 1] << 4))
    assert torch.equal(drawn.unpack_packed_tensor(packed, 1, (4, 6)), drawn.data)
    scales = MXScaleTensor(torch.tensor([2.0**-127, 0.5, 3.0, 0.0, math.inf, math.nan]))
    assert scales.data.tolist() == [0, 126, 128, 255, 255, 255]
    assert MXScaleTensor(size=64).random(0.5, 4.0).data.unique().tolist() == [126, 127, 128, 129]


def test_the_suite_tells_failures_at_texts_from_wrong_results(tmp_path):
    spec = importlib.util.spec_from_file_location("triton_suite", SUITE)
    assert spec is not None and spec.loader is not None
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    file = tmp_path / "test_core.py"
    file.write_text("def test_a(k):\n    assert (\n        'mma' in k.asm['ptx']\n    )\n    assert k.result == 1\n")
    for line, at_text in ((3, True), (5, False)):
        traceback = f'  File "{file}", line {line}, in test_a\n  File "/usr/lib/other.py", line 1, in f\nAssertionError'
        assert suite.stops_at_own_text(traceback, tmp_path) is at_text
