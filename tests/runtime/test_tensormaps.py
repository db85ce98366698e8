"""Tensor maps and persistent grids at a launch: what the driver receives, caching, and errors for unsupported arrays."""

from __future__ import annotations

import dataclasses
import json
import threading

import numpy as np
import pytest
from pretend_gpu import CupyArray, TorchTensor, pretend

import blocknb
import blocknb.language as bl
from blocknb import TensorDescriptor
from blocknb.codegen import gpu as codegen
from blocknb.codegen import maps
from blocknb.codegen.maps import MapSpec
from blocknb.errors import LaunchError
from blocknb.language import types as t
from blocknb.runtime import cache, footprints, record, tensormaps
from blocknb.runtime import compile as compiler

K, M, PITCH = ("arg", 3), ("arg", 2), ("arg", 4)
#: A row-major M x K array with row pitch PITCH that is read, and a vector, half of which is written.
SPECS = (
    MapSpec(0, t.float32, (64, 32), 128, (M, K), (PITCH,)),
    MapSpec(1, t.float32, (1, 8), 0, (2, ("div", ("add", K, 1), 2)), (("mul", 4, ("max", K, PITCH)),), stored=True),
)


def body(x, out, m, k, pitch):
    at = bl.arange(0, 64)
    bl.store(out + at, bl.load(x + at) * (m + k + pitch))


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A simulated GPU, and a compiler that adds hidden parameters to every kernel (`gpu.hidden`)."""
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    cache.shared.cache_clear()
    compiler.forget()
    made, generate = pretend(monkeypatch), codegen.generate
    made.hidden = {"maps": SPECS}
    monkeypatch.setattr(codegen, "generate", lambda *args: dataclasses.replace(generate(*args), **made.hidden))
    yield made
    compiler.forget()
    cache.shared.cache_clear()


@pytest.fixture
def scale():
    return blocknb.kernel(body, do_not_specialize=("m", "k", "pitch"))


def expected(x, out, m, k, pitch):
    """The tensor maps that SPECS describe for a launch."""
    first = (x.address, 7, 3, (m, k), (4 * pitch if m > 1 else 16,), (64, 32))
    return first, (out.address, 7, 0, (2, (k + 1) // 2), (16 * max(k, pitch),), (1, 8))


def told(launched):
    return tuple(dataclasses.astuple(found) for found in launched.maps)


@pytest.mark.parametrize("library", [CupyArray, TorchTensor])
def test_the_driver_gets_the_maps_of_each_launch(gpu, scale, library):
    arrays = [library() for _ in range(4)]
    for number in range(12):
        x, out, (m, k, pitch) = (
            arrays[number % 4],
            arrays[number % 3],
            (number % 2 + 1, 40 + number, 64 + 4 * (number % 5)),
        )
        scale[(7,)](x, out, m, k, pitch)
        found = gpu.launches[-1]
        assert found.arguments == {"x": x.address, "out": out.address, "m": m, "k": k, "pitch": pitch}
        assert told(found) == expected(x, out, m, k, pitch)
        assert (found.grid, found.programs) == ((7, 1, 1), ())
    assert scale._launch.__name__ == "_launch"


def refuse(*args, **kwargs):
    raise AssertionError("this launch should have been recognised")


def test_a_repeated_launch_encodes_nothing(gpu, scale, monkeypatch):
    x, out, other = CupyArray(), CupyArray(), CupyArray()
    for _ in range(3):
        scale[(1,)](x, out, 128, 64, 64)
    assert gpu.calls["encode"] == 2
    monkeypatch.setattr(scale, "_general", refuse)
    scale[(1,)](x, out, 128, 64, 64)
    assert gpu.calls["encode"] == 2
    scale[(1,)](x, other, 128, 64, 64)  # the map of x is cached
    assert gpu.calls["encode"] == 3
    assert told(gpu.launches[-1]) == expected(x, other, 128, 64, 64)
    scale[(1,)](x, out, 128, 64, 64)
    assert gpu.calls["encode"] == 3


def test_a_thread_without_a_context_gets_one_and_its_map(gpu, scale, monkeypatch):
    encode, answers = gpu.encode, []

    def encoded(*args):
        answers.append(201 if gpu.calls["free"] == 0 else encode(*args))  # CUDA_ERROR_INVALID_CONTEXT
        return answers[-1]

    monkeypatch.setattr(tensormaps, "encode_tiled", lambda: encoded)
    scale[(1,)](CupyArray(), CupyArray(), 64, 32, 32)
    assert answers == [201, 0, 0] and gpu.calls["free"] == 1


def test_only_the_maps_of_the_last_launches_are_kept(gpu, scale, monkeypatch):
    monkeypatch.setattr(tensormaps, "KEPT", 3)
    x, out = CupyArray(), CupyArray()
    for m in (10, 11, 12, 13, 14, 10, 12, 13, 14, 14):
        scale[(1,)](x, out, m, 64, 64)
        assert told(gpu.launches[-1]) == expected(x, out, m, 64, 64)
    assert gpu.calls["encode"] > 7


def test_maps_come_from_the_disk_cache(gpu, scale):
    x, out = CupyArray(), CupyArray()
    scale[(1,)](x, out, 128, 64, 64)
    compiler.forget()
    gpu.hidden = {"maps": ()}  # nothing is compiled again
    again = blocknb.kernel(body, do_not_specialize=("m", "k", "pitch"))
    assert again[(1,)](x, out, 128, 64, 64).trace.from_cache
    assert told(gpu.launches[-1]) == expected(x, out, 128, 64, 64)


@pytest.mark.parametrize(("m", "k"), [(0, 64), (64, 0), (0, 0), (-3, 5)])
def test_an_empty_array_reads_as_zeros(gpu, scale, m, k):
    x, out = CupyArray(), CupyArray()
    for _ in range(3):
        scale[(1,)](x, out, m, k, 64)
        first, second = gpu.launches[-1].maps
        assert first.address in gpu.zeros
        assert (first.dims, first.strides, first.box) == ((1, 1), (16,), (64, 32))
        if k == 0:  # the map of an empty array must not turn stores into zeros of others
            assert second.dims == (1, 1)
            assert second.address not in [*gpu.zeros, out.address, x.address]
        else:
            assert second.address == out.address


def test_an_array_without_memory_is_empty(gpu, scale):
    x, out = TorchTensor(), TorchTensor()
    x.address = 0
    scale[(1,)](x, out, 16, 16, 16)
    assert gpu.launches[-1].maps[0].address in gpu.zeros


@pytest.mark.parametrize(
    ("offset", "sizes", "message"),
    [
        (4, (16, 16, 16), "copies boxes of `x` .* whose address is not a multiple of 16 bytes"),
        (0, (16, 16, 17), "copies boxes of `x` .* with a stride of 68 bytes"),
        (0, (16, 16, -16), "with a stride of -64 bytes"),
        (0, (16, 16, 2**38), "with a stride of 1099511627776 bytes"),
        (0, (2**31 + 1, 16, 16), "with an axis of 2147483649 elements"),
    ],
)
def test_arrays_without_a_tensor_map_are_rejected_with_a_hint(gpu, scale, offset, sizes, message):
    x, out = CupyArray(offset=offset), CupyArray()
    scale[(1,)](CupyArray(offset=offset and 16), out, 16, 16, 16)
    for _ in range(3):
        with pytest.raises(LaunchError, match=message) as caught:
            scale[(1,)](x, out, *sizes)
        assert "warp_specialization" in caught.value.hint
        assert caught.value.loc is not None
    scale[(1,)](x if not offset else out, out, 1, 16, 17)  # a single row needs no stride
    assert gpu.launches[-1].maps[0].strides == (16,)


def test_launches_of_several_threads_have_their_own_maps(gpu, scale, monkeypatch):
    monkeypatch.setattr(tensormaps, "KEPT", 2)
    arrays = [CupyArray() for _ in range(4)]
    scale[(1,)](arrays[0], arrays[0], 16, 16, 16)
    gpu.seconds = 0.0005

    def work(number):
        for i in range(30):
            scale[(number + 1,)](arrays[number], arrays[number], 16 * (i + 1), 64, 64)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gpu.launches) == 121
    for found in gpu.launches[1:]:
        own = arrays[found.grid[0] - 1]
        assert told(found) == expected(own, own, *(found.arguments[name] for name in ("m", "k", "pitch")))


@pytest.mark.parametrize("with_maps", [False, True])
def test_a_persistent_grid_has_as_many_ctas_as_run_at_a_time(gpu, scale, with_maps):
    gpu.hidden = {"persistent": True, "maps": SPECS * with_maps}
    gpu.resident = 2
    x, out = CupyArray(), CupyArray()
    for number, grid in enumerate([(5,), (264,), (265,), (40, 30), (1, 2, 3), (2**31 - 1,), (1, 1, 1), (0,), (3, 0)]):
        before = len(gpu.launches)
        scale[grid](x, out, 64 + number, 64, 64)
        if 0 in grid:
            assert len(gpu.launches) == before
            continue
        found, full = gpu.launches[-1], (*grid, 1, 1)[:3]
        assert (found.grid, found.programs) == ((min(full[0] * full[1] * full[2], 264), 1, 1), full)
        assert told(found) == (expected(x, out, 64 + number, 64, 64) if with_maps else ())
    for _ in range(2):
        with pytest.raises(LaunchError, match="2147483648 programs"):
            scale[(2**16, 2**15)](x, out, 64, 64, 64)


def test_hidden_parameters_have_one_order(gpu, scale, monkeypatch):
    monkeypatch.setattr(footprints, "transfer", lambda *where, back: None)  # there is no GPU to copy from
    gpu.hidden = {"persistent": True, "maps": SPECS}
    x, out = CupyArray(), CupyArray()
    for number in range(1, 4):
        compiled = scale[(300, number)](x, out, 64, 64, 64, checked=True)
        assert (compiled.code.reports, compiled.code.extents) == (True, (0, 1))
        found = gpu.launches[-1]
        assert (found.grid, found.programs) == ((132, 1, 1), (300, number, 1))
        assert told(found) == expected(x, out, 64, 64, 64)
        report, *extents = found.said
        assert extents == [0, 2**64 - 4] * 2  # these arrays have no known end
        assert report in gpu.zeros


def test_a_kernel_with_zero_occupancy_still_gets_ctas(gpu, scale):
    gpu.hidden, gpu.resident = {"persistent": True}, 0
    scale[(500,)](CupyArray(), CupyArray(), 1, 1, 1)
    assert gpu.launches[-1].grid == (132, 1, 1)


def copies(source, target, n):
    at = [bl.program_id(0) * 8, n]
    target.store(at, bl.max(source.load(at)))


@pytest.mark.parametrize("library", [CupyArray, TorchTensor])
def test_descriptors_in_tuples_are_recognised_and_mapped(gpu, library, monkeypatch):
    @blocknb.kernel
    def both(given, target, n):
        source, (extra, scale), bias = given
        at = [bl.program_id(0) * 8, n]
        target.store(at, source.load(at) * scale + bl.load(extra) + (0 if bias is None else 1))

    # given.0, its sizes and its stride, given.1.0, given.1.1, target, ..., n
    gpu.hidden = {"maps": (MapSpec(0, t.float16, (8, 16), 32, (("arg", 1), ("arg", 2)), (("arg", 3),)),)}

    def described(rows, columns, pitch):
        return TensorDescriptor(library(np.float16), [rows, columns], [pitch, 1], [8, 16])

    for number in range(6):
        source, target, extra = described(10 + number, 64, 128), described(9, 64, 64 + 8 * number), library()
        if number == 4:
            monkeypatch.setattr(both, "_general", refuse)
        both[(3,)]((source, (extra, 2.5), None), target, 16 * (number + 2))
        found = gpu.launches[-1]
        assert found.arguments == {
            "given.0": source.base.address, "given.0.shape0": 10 + number, "given.0.shape1": 64, "given.0.stride0": 128,
            "given.1.0": extra.address, "given.1.1": 2.5, "n": 16 * (number + 2), "target": target.base.address,
            "target.shape0": 9, "target.shape1": 64, "target.stride0": 64 + 8 * number,
        }  # fmt: skip
        assert told(found) == ((source.base.address, 6, 1, (10 + number, 64), (256,), (8, 16)),)


def test_a_changed_descriptor_gets_a_new_map(gpu):
    gpu.hidden = {}
    kernel = blocknb.kernel(copies)

    def described(dtype=np.float32, columns=64, block=(8, 16), padding="zero"):
        return TensorDescriptor(CupyArray(dtype), [16, columns], [64, 1], list(block), padding)

    source, target = described(), described()
    for _ in range(3):
        first = kernel[(1,)](source, target, 16)
    others = [described(np.float64), described(columns=63), described(block=(4, 16)), described(padding="nan")]
    found = [kernel[(1,)](other, target, 16) for other in others for _ in range(3)]
    assert len({id(compiled) for compiled in [first, *found]}) == 5
    source.block_shape = [16, 32]
    assert kernel[(1,)](source, target, 16).trace.signature["source"] == "tensordesc<fp32[16,32]>:16"
    source.block_shape = np.array([8, 16])
    assert kernel[(1,)](source, target, 16) is first
    source.base = CupyArray(offset=4)
    with pytest.raises(LaunchError, match="not a multiple of 16 bytes"):
        kernel[(1,)](source, target, 16)


def product(a, b, c, m, n, k, BLOCK: bl.constexpr):
    rows, columns = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK), bl.program_id(1) * BLOCK + bl.arange(0, BLOCK)
    inner, acc = bl.arange(0, 64), bl.zeros((BLOCK, BLOCK), bl.float32)
    for at in range(0, k, 64):
        left = bl.load(a + rows[:, None] * k + at + inner, mask=(rows[:, None] < m) & (at + inner < k), other=0)
        right = bl.load(
            b + (at + inner)[:, None] * n + columns, mask=((at + inner)[:, None] < k) & (columns < n), other=0
        )
        acc = bl.dot(left, right, acc)
    bl.store(c + rows[:, None] * n + columns, acc.to(bl.float16), mask=(rows[:, None] < m) & (columns < n))


def test_the_maps_of_a_product_are_those_of_its_arrays(gpu):
    gpu.hidden, kernel = {}, blocknb.kernel(product)
    a, b, c = (TorchTensor(np.float16) for _ in range(3))
    for m, n, k in ((256, 512, 320), (272, 496, 16), (272, 496, 0), (272, 496, 32)):
        compiled = kernel[(3, 4)](a, b, c, m, n, k, BLOCK=128)
        found = gpu.launches[-1]
        left, right, *_ = found.maps
        if k:
            assert (left.address, left.dims, left.strides, left.swizzle) == (a.address, (m, k), (2 * k,), 3)
            assert (right.address, right.dims, right.strides, right.kind) == (b.address, (k, n), (2 * n,), 6)
        else:
            assert {left.address, right.address} <= set(gpu.zeros)
        assert compiled.code.threads > 32 * compiled.trace.options["num_warps"] == 32 * compiled.metadata.num_warps


EXPRESSIONS = [
    (7, 7),
    (("arg", 0), 23),
    (("sub", ("arg", 0), ("mul", 3, ("arg", 1))), 23 + 15),
    (("div", ("arg", 1), 2), -2),
    (("div", ("arg", 0), -4), -5),
    (("div", ("arg", 0), 0), 0),
    (("rem", ("arg", 1), 3), -2),
    (("rem", ("arg", 0), -4), 3),
    (("min", ("arg", 0), ("max", ("arg", 1), 2)), 2),
    (("select", ("lt", ("arg", 1), 0), ("add", 1, 2), 9), 3),
    (("add", ("ge", ("arg", 0), 23), ("eq", 1, 2)), 1),
    (("cast", "i32", ("mul", ("arg", 0), 2**30)), -(2**30)),
    (("cast", "u8", ("arg", 1)), 251),
    (("cast", "i64", 2**63), -(2**63)),
]


@pytest.mark.parametrize(("expression", "value"), EXPRESSIONS)
def test_expressions_of_maps_have_the_values_of_the_kernel(expression, value):
    assert maps.evaluator(expression, {0: 1, 1: 0})([-5, 23]) == value
    stored = json.loads(json.dumps(record.encode(MapSpec(0, t.float16, (8,), 0, (expression,), ()), [])))
    assert record.decode(stored, []).dims == (expression,)
    assert maps.parameters(expression) == {i for i in (0, 1) if f"('arg', {i})" in str(expression)}


@pytest.mark.parametrize("expression", [
    "__import__('os').getpid()", ("__import__", "os", 1), ("arg", 5), ("arg", "0"), ("arg",), (), [1, 2], None, 1.5, True, ("add", 1),
    ("add", 1, "2"), ("add", 1, 2, 3), ("cast", "f32", 1), ("cast", "i32"), ("cast", 32, 1), ("select", 1, 2), ("p0", 1, 2),
])  # fmt: skip
def test_what_is_no_expression_is_rejected_and_never_run(expression):
    with pytest.raises(ValueError, match="no expression of a tensor map"):
        maps.evaluator(expression, {0: 0, 1: 1})
    with pytest.raises(ValueError, match="no expression of a tensor map"):
        maps.evaluator(("add", 1, expression), {0: 0, 1: 1})
