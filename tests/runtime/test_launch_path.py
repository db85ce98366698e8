"""First and repeated GPU launches behave the same: the arguments of the driver, and errors."""

from __future__ import annotations

import linecache
import math
import threading
import weakref

import numpy as np
import pytest
import seeds
from pretend_gpu import CupyArray, TorchTensor, pretend

import blocknb
import blocknb.language as bl
from blocknb.errors import KernelError, LaunchError
from blocknb.runtime import launch_context
from blocknb.runtime.launch_context import interpreted, recording_device, this_thread, unobserved

LIBRARIES = (CupyArray, TorchTensor)


@pytest.fixture
def gpu(monkeypatch):
    return pretend(monkeypatch)


def body(x, out, n, factor, BLOCK: bl.constexpr, bias=None):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    value = bl.load(x + at, mask=at < n) * factor
    if bias is not None:
        value += bl.load(bias)
    bl.store(out + at, value, mask=at < n)


@pytest.fixture
def scale():
    return blocknb.kernel(body)


def warm(kernel, *args, **kwargs):
    """Launches until the fast path recognises the launch."""
    for _ in range(3):
        kernel[(1,)](*args, **kwargs)
    assert kernel._launch.__name__ == "_launch"


def refuse(*args, **kwargs):
    raise AssertionError("this launch should have been recognised")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_repeated_launch_passes_its_arguments_to_the_driver(gpu, scale, library, monkeypatch):
    for number in range(6):
        x, out, bias = library(), library(), library(offset=4)
        gpu.streams = {"": 20 + number, "torch": 40 + number}
        if number == 3:
            monkeypatch.setattr(scale, "_general", refuse)
        scale[(5 + number,)](x, out, 100 + 2 * number, 0.5 * number, bias=bias, BLOCK=64, num_warps=2)
        found = gpu.launches[-1]
        assert found.arguments == {
            "x": x.address,
            "out": out.address,
            "bias": bias.address,
            "n": 100 + 2 * number,
            "factor": 0.5 * number,
        }
        assert (found.grid, found.block, found.device) == ((5 + number, 1, 1), (64, 1, 1), 0)
        assert found.stream == (20 if library is CupyArray else 40) + number
        assert scale.latest is found.compiled
    assert len(gpu.launches) == 6
    assert gpu.calls["free"] == 0


CALLS = [
    (library, dtype, offset, n, factor, BLOCK, bias)
    for library in LIBRARIES
    for dtype, offset in ((np.float32, 0), (np.float32, 4), (np.float64, 8))
    for n in (1, 16, 17, 2**31 - 1, 2**40 + 1)
    for factor in (1.5, math.nan, 2, True)
    for BLOCK in (32, 64)
    for bias in (False, True)
]


def test_alternating_launches_pass_the_same_arguments_as_first_launches(gpu, scale):
    rng, seen = seeds.rng(), {}
    chosen = [CALLS[i] for i in rng.integers(0, len(CALLS), 14)]
    for number in rng.integers(0, len(chosen), 400):
        for _ in range(int(rng.integers(1, 4))):
            library, dtype, offset, n, factor, BLOCK, with_bias = chosen[number]
            x, out = library(dtype, offset), library(dtype, offset)
            bias = library(dtype) if with_bias else None
            scale[(3,)](x, out, n, factor, BLOCK=BLOCK, bias=bias)
            last = gpu.launches[-1]
            given = {"x": x, "out": out, "bias": bias, "n": n, "factor": factor}
            for name, value in last.arguments.items():
                expected = getattr(given[name], "address", given[name])
                assert value == expected or (value != value and expected != expected)
            signature, constants = last.compiled.trace.signature, last.compiled.trace.constants
            short = "fp32" if dtype is np.float32 else "fp64"
            assert signature["x"] == f"*{short}" + ":16" * (offset == 0)
            wide = "i64" if n > 2**31 else "i32"
            assert constants.get("n") == 1 if n == 1 else signature["n"] == wide + ":16" * (n == 16)
            assert signature["factor"] == {float: "fp32", int: "i32", bool: "i1"}[type(factor)]
            assert constants["BLOCK"] == BLOCK
            assert ("bias" in constants) is (not with_bias)
            assert last.stream == (7 if library is CupyArray else 9)
            seen[id(last.compiled)] = last.compiled
    assert len(seen) > 3


def test_arrays_of_two_libraries_run_on_torchs_stream(gpu, scale):
    for _ in range(4):
        scale[(1,)](CupyArray(), TorchTensor(), 64, 2.0, 64)
        assert gpu.launches[-1].stream == 9


def test_repeated_launches_reject_tensors_without_memory(gpu, scale):
    x = TorchTensor()
    warm(scale, x, x, 64, 2.0, 64)
    before = len(gpu.launches)
    with pytest.raises(LaunchError, match="negated"):
        scale[(1,)](TorchTensor(negated=True), x, 64, 2.0, 64)
    gone = TorchTensor()
    gone.address = -1
    with pytest.raises(LaunchError, match="no memory of its own"):
        scale[(1,)](x, gone, 64, 2.0, 64)
    for offset in (4, 8):
        warm(scale, x, TorchTensor(offset=offset), 64, 2.0, 64)
        before += 3
        with pytest.raises(LaunchError, match="not a multiple of the 4 bytes"):
            scale[(1,)](x, TorchTensor(offset=2), 64, 2.0, 64)
    with pytest.raises(LaunchError, match="lies on a GPU"):
        scale[(1,)](x, np.zeros(64, np.float32), 64, 2.0, 64)
    assert len(gpu.launches) == before


@pytest.mark.parametrize("library", LIBRARIES)
def test_launches_run_on_the_device_of_their_arrays_whichever_is_current(monkeypatch, scale, library):
    gpu = pretend(monkeypatch, count=2)
    for number in range(24):
        device, current = number // 2 % 2, number // 4 % 2
        x = library(device=device)
        with gpu.on(current):
            scale[(1,)](x, x, 64, 2.0, BLOCK=64)
            assert gpu.thread.device == current
        found = gpu.launches[-1]
        assert (found.device, found.arguments["x"]) == (device, x.address)
        assert found.stream == (7 if library is CupyArray else 9) + 100 * device
    with pytest.raises(LaunchError, match="lies on GPU 0 and"):
        scale[(1,)](library(device=0), library(device=1), 64, 2.0, BLOCK=64)


def test_a_launch_queries_the_current_device_only_with_several_gpus(gpu, scale):
    x = CupyArray()
    warm(scale, x, x, 64, 2.0, 64)
    before = gpu.calls["getDevice"]
    scale[(1,)](x, x, 64, 2.0, 64)
    assert gpu.calls["getDevice"] == before


def test_an_error_of_the_driver_is_explained_and_the_next_launch_works(gpu, scale):
    x = CupyArray()
    warm(scale, x, x, 64, 2.0, 64)
    before = len(gpu.launches)
    gpu.failures = [RuntimeError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many")] * 2
    with pytest.raises(KernelError, match="refuses to launch body") as caught:
        scale[(1,)](x, x, 64, 2.0, 64)
    assert caught.value.__context__.__context__ is None, "the driver's error is told once"
    gpu.failures.clear()
    for n in (32, 48):
        scale[(1,)](x, x, n, 2.0, 64)
    assert [launched.arguments["n"] for launched in gpu.launches[before:]] == [32, 48]


def test_a_thread_without_a_context_gets_one(gpu, scale):
    x = CupyArray()
    warm(scale, x, x, 64, 2.0, 64)
    before = len(gpu.launches)

    def launch():
        gpu.thread.context = False
        scale[(1,)](x, x, 96, 2.0, 64)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert [launched.arguments["n"] for launched in gpu.launches[before:]] == [96]
    assert gpu.calls["free"] == 1


def test_a_number_beyond_fp32_is_infinite(gpu, scale):
    x = CupyArray()
    for factor in (2.0, 2.0, 2.0, -1e39, 1e300, 3.0):
        scale[(1,)](x, x, 64, factor, 64)
        expected = math.copysign(math.inf, factor) if abs(factor) > 1e38 else factor
        assert gpu.launches[-1].arguments["factor"] == expected


def test_concurrent_launches_do_not_mix_their_arguments(gpu, scale):
    arrays = [CupyArray() for _ in range(6)]
    warm(scale, arrays[0], arrays[0], 64, 2.0, 64)
    gpu.seconds = 0.0005
    before = len(gpu.launches)

    def work(number):
        for i in range(40):
            scale[(number + 1,)](arrays[number], arrays[number], 32 * (i + 1), float(number), 64)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = gpu.launches[before:]
    assert len(found) == 240
    for number, array in enumerate(arrays):
        own = [launched.arguments for launched in found if launched.grid[0] == number + 1]
        assert [one["n"] for one in own] == [32 * (i + 1) for i in range(40)]
        assert all(one["x"] == one["out"] == array.address and one["factor"] == number for one in own)


# -- grids


def test_every_form_of_a_grid_gives_its_sizes(gpu, scale):
    x = CupyArray()
    forms = [
        (5, (5, 1, 1)),
        ((5,), (5, 1, 1)),
        ([5, 2], (5, 2, 1)),
        ((5, 2), (5, 2, 1)),
        ((5, 2, 3), (5, 2, 3)),
        ((2**31 - 1, 65535, 65535), (2**31 - 1, 65535, 65535)),
        ((np.int64(6), 2), (6, 2, 1)),
        (np.int32(6), (6, 1, 1)),
        (lambda given: blocknb.cdiv(given["n"], given["BLOCK"]), (2, 1, 1)),
        (lambda given: (given["num_warps"], given["n"]), (2, 100, 1)),
        (lambda given: [4], (4, 1, 1)),
    ]
    for grid, sizes in forms * 3:
        scale[grid](x, x, 100, 2.0, BLOCK=64, num_warps=2)
        assert gpu.launches[-1].grid == sizes
    assert len(gpu.launches) == 3 * len(forms)


def test_a_grid_without_programs_launches_nothing(gpu, scale):
    x = CupyArray()
    warm(scale, x, x, 64, 2.0, 64)
    before = len(gpu.launches)
    for grid in (0, (0,), (3, 0), (0, 3, 1), lambda given: (0,)):
        assert scale[grid](x, x, 64, 2.0, 64) is scale.latest
    assert len(gpu.launches) == before


def test_repeated_launches_reject_wrong_grids(gpu, scale):
    x, calls = CupyArray(), []
    warm(scale, x, x, 64, 2.0, 64)
    before = len(gpu.launches)
    wrong = [
        ((-1,), "not a number of programs"),
        ((True,), "not a number of programs"),
        ((2, True), "not a number of programs"),
        ((1.5,), "not an int"),
        (1.5, "not an int"),
        (None, "not an int"),
        ((2, "3"), "not an int"),
        ((), "0 axes"),
        ((1, 2, 3, 4), "4 axes"),
        ((1, 65536), "too large"),
        ((1, 1, 65536), "too large"),
        ((2**31,), "too large"),
        (lambda given: calls.append(given) or (1.5,), "not an int"),
    ]
    for grid, message in wrong:
        with pytest.raises(LaunchError, match=message) as caught:
            scale[grid](x, x, 64, 2.0, 64)
        assert caught.value.loc.caller.file == __file__, "the line that launches"
    assert len(calls) == 1
    assert len(gpu.launches) == before


def test_a_grid_function_is_called_once_with_every_argument(gpu, scale):
    x, y, seen = CupyArray(), CupyArray(), []
    for _ in range(4):
        scale[lambda given: seen.append(given) or (1,)](x, out=y, n=64, factor=2.0, BLOCK=64)
    assert len(seen) == 4
    for given in seen:
        assert given == {"x": x, "out": y, "n": 64, "factor": 2.0, "BLOCK": 64, "bias": None}
        with pytest.raises(KeyError, match="the grid's function asks for `BLOK`"):
            given["BLOK"]
    with pytest.raises(ZeroDivisionError):
        scale[lambda given: 1 // 0](x, out=y, n=64, factor=2.0, BLOCK=64)


# -- ways of calling


def test_alternating_forms_of_call_are_distinguished(gpu, scale):
    x, y, bias = CupyArray(), CupyArray(), CupyArray()
    calls = [
        ((x, y, 64, 2.0, 64), {}),
        ((x, y, 64, 2.0), {"BLOCK": 64}),
        ((x, y), {"BLOCK": 64, "factor": 2.0, "n": 64}),
        ((x, y), {"n": 64, "factor": 2.0, "BLOCK": 64}),
        ((), {"x": x, "out": y, "n": 64, "factor": 2.0, "BLOCK": 64}),
        ((x, y, 64, 2.0, 64, None), {}),
        ((x, y, 64, 2.0, 64, bias), {}),
        ((x, y, 64, 2.0, 64), {"bias": bias}),
        ((x, y, 64, 2.0, 64), {"num_warps": 8}),
        ((x, y, 64, 2.0, 64), {"num_warps": 4}),
        ((x, y, 64, 2.0, 64), {"num_ctas": 1}),
    ]
    rng = seeds.rng()
    for number in rng.integers(0, len(calls), 300):
        args, kwargs = calls[number]
        scale[(1,)](*args, **kwargs)
        last = gpu.launches[-1]
        with_bias = bias in args or "bias" in kwargs
        assert last.arguments == {"x": x.address, "out": y.address, "n": 64, "factor": 2.0} | (
            {"bias": bias.address} if with_bias else {}
        )
        assert last.block == (32 * kwargs.get("num_warps", 4), 1, 1)
    with pytest.raises(LaunchError, match="misses the argument `BLOCK`"):
        scale[(1,)](x, y, 64, 2.0)
    with pytest.raises(LaunchError, match="two values for `n`"):
        scale[(1,)](x, y, 64, 2.0, 64, n=3)
    with pytest.raises(LaunchError, match="takes 6 arguments, and 7 were given"):
        scale[(1,)](x, y, 64, 2.0, 64, None, 7)
    with pytest.raises(LaunchError, match="no parameter `BLOK`"):
        scale[(1,)](x, y, 64, 2.0, BLOK=64)


def test_parameters_may_have_any_name(gpu):
    @blocknb.kernel
    def odd(_0, grid, type, _kernel, launch, _launch, __more, len: bl.constexpr, dict=None, tried=5):
        at = bl.arange(0, len)
        total = bl.load(grid + at) + type + _kernel + launch + _launch + __more + tried
        bl.store(_0 + at, total)

    x, y = CupyArray(), CupyArray()
    for number in range(5):
        given = dict(
            zip(("type", "_kernel", "launch", "_launch", "__more", "tried"), range(number + 2, 99), strict=False)
        )
        odd[lambda named: (named["launch"],)](x, grid=y, len=32, **given)
        expected = {"_0": x.address, "grid": y.address, **given}
        assert gpu.launches[-1].arguments == {n: expected[n] for n in gpu.launches[-1].arguments}
        assert gpu.launches[-1].grid == (given["launch"], 1, 1)
    for name in ("x", "_0"):
        with pytest.raises(LaunchError, match="no parameter|two values"):
            odd[(1,)](x, y, 2, 2, 2, 2, 2, 32, **{name: x})


def test_a_stored_launcher_uses_changed_values(gpu, scale):
    x = CupyArray()
    early = scale[(3,)]
    warm(scale, x, x, 64, 2.0, 64)
    late = scale[(4,)]
    other = CupyArray(np.float64)
    for launch, size in ((early, 3), (late, 4)) * 2:
        for array in (x, other):
            launch(array, array, 64, 2.0, 64)
            assert (gpu.launches[-1].grid[0], gpu.launches[-1].arguments["x"]) == (size, array.address)
    scale.src = "def body(x, out, n, factor, BLOCK: bl.constexpr, bias=None):\n    bl.store(out, n)\n"
    for launch in (early, late) * 3:
        launch(x, x, 64, 2.0, 64)
        assert "bl.store(out, n)" in gpu.launches[-1].compiled.trace.source


def test_launches_keep_no_reference_to_arrays(gpu, scale, collect):
    x = CupyArray()
    warm(scale, x, x, 64, 2.0, 64, x)
    alive = weakref.ref(x)
    del x
    gpu.launches.clear()
    collect()
    assert alive() is None


# -- what changes around a launch


def test_every_form_of_launch_uses_a_redefined_helper(gpu):
    space = {"blocknb": blocknb, "bl": bl}

    def define(name, text):
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), space)

    helper = "@blocknb.kernel\ndef helper(v):\n    return v + {}\n"
    define("<helper a>", helper.format(1))
    define(
        "<its user>",
        "@blocknb.kernel\ndef k(x, n):\n    at = bl.arange(0, 4)\n    bl.store(x + at, helper(bl.load(x + at)) + n)\n",
    )
    x, k = CupyArray(), space["k"]
    kept = k[(1,)]
    for number in (1, 2, 3):
        define(f"<helper {number}>", helper.format(number))
        for n in (16, 7, 16, 7):
            for launch in (k[(1,)], kept):
                launch(x, n)
                reached = gpu.launches[-1].compiled.reached
                assert any(f"v + {number}" in source.text for each in reached for source in each.sources)
                assert not gpu.launches[-1].compiled.stale()


def test_launches_use_a_changed_captured_value(gpu):
    amount = 5

    @blocknb.kernel
    def k(x):
        bl.store(x, amount)

    x = CupyArray()
    for amount in (5, 5, 5, 6, 6, 6):
        k[(1,)](x)
        assert not gpu.launches[-1].compiled.stale()
    assert len({id(launched.compiled) for launched in gpu.launches}) == 2


def test_observers_see_repeated_launches(monkeypatch, scale):
    seen = []
    x = np.zeros(64, np.float32)
    warm(scale, x, x, 64, 2.0, 64)
    kept = scale[(1,)]
    monkeypatch.setattr(launch_context, "observers", [seen.append])
    for launch in (scale[(1,)], kept, lambda *a: scale.run(*a, grid=(1,))):
        launch(x, x, 64, 2.0, 64)
    assert len(seen) == 3
    with unobserved():
        scale[(1,)](x, x, 64, 2.0, 64)
    assert len(seen) == 3
    monkeypatch.setattr(launch_context, "observers", [])
    taken = []
    with launch_context.captured(taken.append):
        x[:] = 1
        scale[(1,)](x, x, 64, 2.0, 64)
    assert len(taken) == 1
    assert (x == 1).all(), "nothing ran"
    with recording_device():
        assert this_thread.device is None
        scale[(1,)](x, x, 64, 2.0, 64)
        assert this_thread.device == -1
    with interpreted() as counted:
        scale[(1,)](x, x, 64, 2.0, 64)
    assert counted == {"body": 1}
    scale[(1,)](x, x, 64, 2.0, 64)
    assert (x == 8).all()
    assert type(scale[(1,)](x, x, 64, 2.0, 64, interpret=True)).__name__ == "Run"


def test_options_of_a_cell_apply_to_repeated_launches(monkeypatch, scale):
    x = np.zeros(64, np.float32)
    warm(scale, x, x, 64, 2.0, 64)
    assert scale[(1,)](x, x, 64, 2.0, 64).options["checked"] is None
    monkeypatch.setitem(launch_context.enforced, "checked", False)
    for _ in range(3):
        assert scale[(1,)](x, x, 64, 2.0, 64).options["checked"] is False
    monkeypatch.delitem(launch_context.enforced, "checked")
    assert scale[(1,)](x, x, 64, 2.0, 64).options["checked"] is None
    scale.interpreted = True
    assert type(scale[(1,)](x, x, 64, 2.0, 64)).__name__ == "Run"
