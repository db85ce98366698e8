"""Tiles of pointers into several arrays, in vectors of each machine."""

import numpy as np
import pytest
from bounds.selected_pointer_kernels import WAYS
from bounds.test_selected_pointers import SIZE, Memory, two_halves
from frontend_helpers import argument, kernel, parse
from native import TARGETS, compile_native, launch_native

import blocknb.language as tl
from blocknb import AccessError, passes
from blocknb.codegen import cpu
from blocknb.codegen.cpu import outlining
from blocknb.target import Target

CPU = Target.parse("cpu")


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_of_every_width_are_checked(target):
    """A vector may hold only two lanes: fp64 with SSE2."""
    for dtype in (np.float64, np.int8):
        x, y, out = (np.arange(n).astype(dtype) for n in (32, 31, 64))
        arguments = {"x": x, "y": y, "out": out, "n": 32, "m": 31, "BLOCK": 64}
        func = parse(two_halves.source, {n: argument(two_halves, n, v) for n, v in arguments.items()}, {})
        native = compile_native(func, target)
        values = [arguments[hint.name] for hint in func.hints]
        launch_native(native, values, 1)
        np.testing.assert_array_equal(x, np.arange(0, 64, 2).astype(dtype))
        values = [(arguments | {"m": 32})[hint.name] for hint in func.hints]
        with pytest.raises(AccessError, match="element 31 of `y`"):
            launch_native(native, values, 1)


@pytest.mark.parametrize("name", ["conditional", "carried_lanes", "loaded", "loaded_tile", "summed_integers"])
def test_outlined_functions_of_a_long_kernel_check_bounds(name, monkeypatch):
    monkeypatch.setattr(outlining, "LINES", 12)
    for action in ("load", "store"):
        memory = Memory()
        arguments = memory.arguments("x", 0, SIZE, action)
        func = parse(WAYS[name].source, {n: argument(WAYS[name], n, v) for n, v in arguments.items()}, {})
        module = cpu.generate(passes.run(func, CPU, passes.optional())[0], CPU)
        assert "@run.part1(" in module.text
        native = compile_native(func)
        values = [arguments[hint.name] for hint in func.hints]
        launch_native(native, values, 1)
        after = memory.whole[2 * SIZE : 3 * SIZE]
        np.testing.assert_array_equal(
            after, np.arange(SIZE) + 100 if action == "store" else memory.before[2 * SIZE : 3 * SIZE]
        )
        values = [(arguments | {"n": SIZE + 1})[hint.name] for hint in func.hints]
        with pytest.raises(AccessError, match=f"element {SIZE} of `x`"):
            launch_native(native, values, 1)


@kernel
def copy_and_store(x, y, a, b, c, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(b + i, tl.load(a + i))
    tl.store((x if c > 1 else y) + i, 1, mask=i < n)


def test_the_code_for_overlapping_arrays_has_the_same_checks():
    data, memory = np.arange(33, dtype=np.int32), Memory()
    arguments = {**memory.views, "a": data[:-1], "b": data[1:], "c": 2, "n": SIZE, "BLOCK": 32}
    func = parse(copy_and_store.source, {n: argument(copy_and_store, n, v) for n, v in arguments.items()}, {})
    module = cpu.generate(passes.run(func, CPU, passes.optional())[0], CPU)
    assert "@run.overlapping(" in module.text
    native = compile_native(func)
    launch_native(native, [arguments[hint.name] for hint in func.hints], 1)
    np.testing.assert_array_equal(data, [0, *range(32)])
    for c, chosen in ((2, "x"), (1, "y")):
        values = [(arguments | {"n": SIZE + 1, "c": c})[hint.name] for hint in func.hints]
        with pytest.raises(AccessError, match=f"stores to element {SIZE} of `{chosen}`"):
            launch_native(native, values, 1)
    memory.views["x"][:] = memory.before[2 * SIZE : 3 * SIZE]
    memory.unchanged(but="y")


@pytest.mark.parametrize(
    ("name", "action", "by_lane"),
    [
        ("loaded", "load", False),
        ("loaded", "store", True),
        ("conditional", "store", False),
        ("summed_integers", "store", False),
    ],
)
def test_only_stores_to_memory_of_no_argument_are_checked_lane_by_lane(name, action, by_lane):
    """Only for them do the ends of a row not determine whether a read-only array lies between."""
    arguments = Memory().arguments("x", 0, SIZE, action)
    func = parse(WAYS[name].source, {n: argument(WAYS[name], n, v) for n, v in arguments.items()}, {})
    text = cpu.generate(passes.run(func, CPU, passes.optional())[0], CPU).text
    assert ("@llvm.cttz" in text) is by_lane
