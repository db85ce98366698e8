"""Launch snapshots: they suffice to repeat a launch and keep no array; a repetition writes to copies and reads the same values."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from support import OnlyDlpack

import blocknb
import blocknb.language as tl
from blocknb.notebook.observe import Observation
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.grids import keep_grid


@blocknb.kernel
def accumulate(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(out + at, mask=at < n) + tl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def double_tile(source, target):
    target.store([0, 0], 2 * source.load([0, 0]))


def kept(kernel, grid, *args, **kwargs):
    """The LaunchSnapshot of one observed launch."""
    observation = Observation()
    observation.start()
    try:
        kernel[grid](*args, **kwargs)
    finally:
        observation.stop()
    return observation.records[kernel].latest.snapshot


def repeat(kernel, again, written=("out",)):
    given = again.arguments(written)
    assert given is not None
    kernel.launch(again.grid.given(), **given)
    return given


def numpy_array(n=96):
    return np.arange(n, dtype=np.float32)


def torch_tensor(n=96):
    torch = pytest.importorskip("torch")
    return torch.arange(n, dtype=torch.float32)


@pytest.mark.parametrize("make", [numpy_array, torch_tensor])
def test_a_repetition_writes_a_copy_and_leaves_the_original(make):
    x, out = make(), make()
    again = kept(accumulate, (1,), x, out, 96, BLOCK=128)
    before = np.asarray(out).copy()
    given = repeat(accumulate, again)
    np.testing.assert_array_equal(np.asarray(out), before)
    np.testing.assert_array_equal(np.asarray(given["out"]), before + np.arange(96))


def grid_over(x):
    return lambda meta: (x.shape[0] // meta["BLOCK"],)


@pytest.mark.parametrize("make", [numpy_array, torch_tensor])
def test_a_snapshot_keeps_no_array_alive(make, collect):
    x, out = make(), make()
    references = [weakref.ref(x), weakref.ref(out)]
    again = kept(accumulate, grid_over(x), x, out, 96, BLOCK=32)
    assert again.arguments(["out"]) is not None
    del x, out
    collect()
    assert [r() for r in references] == [None, None]
    assert again.arguments(["out"]) is None


def test_a_temporary_view_is_restored_from_its_owner():
    x, out = numpy_array(200), numpy_array(200)
    again = kept(accumulate, (1,), x[3:99], out[::2][:96], 96, BLOCK=128)
    given = repeat(accumulate, again)
    assert given["x"].ctypes.data == x[3:].ctypes.data and np.shares_memory(given["x"], x)
    assert not np.shares_memory(given["out"], out) and given["out"].strides == (8,)


def test_an_array_under_two_names_is_copied_once():
    x = numpy_array()
    given = repeat(accumulate, kept(accumulate, (1,), x, x, 96, BLOCK=128))
    assert given["x"].ctypes.data == given["out"].ctypes.data != x.ctypes.data


def test_copies_of_overlapping_views_overlap():
    x = numpy_array()
    given = repeat(accumulate, kept(accumulate, (1,), x[8:], x[:-8], 88, BLOCK=128))
    assert given["x"].ctypes.data - given["out"].ctypes.data == 32
    np.testing.assert_array_equal(x[:4], [8, 10, 12, 14])  # of the launch itself, and once


@pytest.mark.parametrize("offset", range(5))
def test_a_copy_is_aligned_as_its_original_was(offset):
    x, out = numpy_array(), numpy_array(200)
    given = repeat(accumulate, kept(accumulate, (1,), x, out[offset : offset + 96], 96, BLOCK=128))
    assert (given["out"].ctypes.data - out[offset:].ctypes.data) % 256 == 0


@pytest.mark.parametrize("make", [numpy_array, torch_tensor])
def test_a_tensor_descriptor_is_kept_without_its_array(make, collect):
    source, target = make(64).reshape(8, 8), make(64).reshape(8, 8)
    described = [TensorDescriptor.from_tensor(a, [8, 8]) for a in (source, target)]
    again = kept(double_tile, (1,), *described)
    before = np.asarray(target).copy()
    given = repeat(double_tile, again, ["target"])
    np.testing.assert_array_equal(np.asarray(given["target"].base), 2 * np.asarray(source))
    np.testing.assert_array_equal(np.asarray(target), before)
    alive = weakref.ref(source)
    del described, source, target, given
    collect()
    assert alive() is None and again.arguments(["target"]) is None


def test_scalars_none_and_arrays_without_axes_are_kept():
    @blocknb.kernel
    def fill(out, value, missing):
        if missing is None:
            tl.store(out, value)

    out, value = np.zeros((), np.float32), np.float32(3)
    given = repeat(fill, kept(fill, (1,), out, value, None))
    assert out == 3 and given["out"].shape == () and given["missing"] is None


def test_a_torch_parameter_is_copied_as_a_plain_tensor():
    torch = pytest.importorskip("torch")
    weight, out = torch.nn.Parameter(torch.arange(96.0)), torch.zeros(96)
    given = repeat(accumulate, kept(accumulate, (1,), weight, out, 96, BLOCK=128))
    np.testing.assert_array_equal(given["out"].numpy(), 2 * np.arange(96))


def test_a_launch_that_writes_an_uncopyable_object_cannot_be_repeated():
    x = OnlyDlpack(numpy_array())
    again = kept(accumulate, (1,), x, numpy_array(), 96, BLOCK=128)
    assert again.arguments(["out"]) is None  # the second array is gone
    out = numpy_array()
    again = kept(accumulate, (1,), x, out, 96, BLOCK=128)
    assert again.arguments(["out"])["x"] is x
    assert again.arguments(["x"]) is None


def test_a_grid_function_reads_the_values_of_the_launch(collect):
    space = {"__name__": "__main__", "n": 100, "x": numpy_array(), "cdiv": blocknb.cdiv}
    exec("half = lambda n: n // 2\ngrid = lambda meta: (cdiv(half(n) + x.shape[0], meta['BLOCK']),)", space)
    grid = keep_grid(space["grid"])
    space["n"], space["half"] = 7, None
    assert grid.given()({"BLOCK": 2}) == (73,)
    reference = weakref.ref(space["x"])
    del space["x"]
    collect()
    assert reference() is None


@pytest.mark.parametrize("grid", [3, (2, 3), [4], (np.int64(5), 6)])
def test_a_grid_of_numbers_is_kept_as_numbers(grid):
    expected = grid if isinstance(grid, int) else tuple(grid)
    assert keep_grid(grid).given() == expected


def test_a_grid_method_holds_its_object_weakly(collect):
    class Launcher:
        def __init__(self):
            self.x = numpy_array()

        def grid(self, meta):
            return (self.x.shape[0] // meta["BLOCK"],)

    launcher = Launcher()
    grid = keep_grid(launcher.grid)
    assert grid.given()({"BLOCK": 32}) == (3,)
    reference = weakref.ref(launcher.x)
    del launcher
    collect()
    assert reference() is None
