"""Pointers that may come from several arrays: each access is checked against the array that its pointer came from."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as tl
from blocknb import AccessError
from blocknb.errors import KernelError, LaunchError
from blocknb.language.types import int32
from blocknb.runtime import extents
from blocknb.runtime.kinds import HOST, pointer_kind
from blocknb.runtime.summary import summary
from bounds.selected_pointer_kernels import ACTIONS, FOREIGN, RESOLVED, SAID, WAYS

SIZE, BLOCK = 16, 32
TILES = (
    "swapped_tiles",
    "lanes",
    "carried_lanes",
    "gathered",
    "concatenated",
    "joined",
    "integer_tile",
    "loaded_tile",
    "split_again",
)
CASES = [(name, action) for name in WAYS for action in ACTIONS if not (action == "cas" and name in TILES)]


class Memory:
    """Adjacent arrays in one buffer, with guard elements around them that no kernel may read or write."""

    def __init__(self, readonly: str = ""):
        rng = seeds.rng()
        self.whole = rng.integers(-50, 50, 6 * SIZE).astype(np.int32)
        self.views = {"x": self.whole[2 * SIZE : 3 * SIZE], "y": self.whole[3 * SIZE : 4 * SIZE]}
        self.table = np.array([self.views[name].ctypes.data for name in "xy"], np.int64)
        self.out = np.full(BLOCK, -7, np.int32)
        self.before = self.whole.copy()
        for name in readonly:
            self.views[name].flags.writeable = False

    def arguments(self, chosen: str, off: int, n: int, action: str) -> dict[str, Any]:
        rest = {"c": 2 if chosen == "x" else 1, "off": off, "n": n, "ACTION": action, "BLOCK": BLOCK}
        return {**self.views, "table": self.table, "out": self.out, **rest}

    def unchanged(self, but: str = "") -> None:
        """Nothing was written, except perhaps in one of the arrays."""
        after = self.whole.copy()
        if but:
            at = slice(2 * SIZE, 3 * SIZE) if but == "x" else slice(3 * SIZE, 4 * SIZE)
            after[at] = self.before[at]
        np.testing.assert_array_equal(after, self.before)


def launch(k: Any, arguments: dict[str, Any]) -> None:
    k[(1,)](**arguments)


def interpret(k: Any, arguments: dict[str, Any]) -> None:
    k.interpret((1,))(**arguments)


def failed(run: Any, name: str, arguments: dict[str, Any]) -> AccessError:
    with pytest.raises(KernelError) as caught:
        run(WAYS[name], arguments)
    assert isinstance(caught.value, AccessError), caught.value
    return caught.value


def held(error: AccessError, chosen: str, index: int, action: str) -> None:
    """The error names the array, the element, the program and the line of the access."""
    said = SAID[action]
    assert error.message.split(";")[0] == (
        f"program (0, 0, 0) {said.verb} element {index} of `{chosen}`, which has {SIZE} elements"
    )
    assert (error.program, error.index) == ((0, 0, 0), index)
    line, carets = error.loc.excerpt().split("\n")
    assert line[carets.index("^") :].startswith(said.text)


@pytest.mark.sampled(3, each=["name", "action"])
@pytest.mark.parametrize("chosen", ["x", "y"])
@pytest.mark.parametrize(("name", "action"), CASES)
def test_mask_off_by_one_is_an_access_error_of_the_selected_array(name, action, chosen):
    for run in (launch, interpret):
        memory = Memory()
        held(failed(run, name, memory.arguments(chosen, 0, SIZE + 1, action)), chosen, SIZE, action)
        memory.unchanged(but=chosen)


@pytest.mark.parametrize(("name", "action"), CASES)
def test_correct_program_gives_numpys_result(name, action):
    for run in (launch, interpret):
        for chosen in "xy":
            memory = Memory()
            run(WAYS[name], memory.arguments(chosen, 0, SIZE, action))
            memory.unchanged(but=chosen)
            at = slice(2 * SIZE, 3 * SIZE) if chosen == "x" else slice(3 * SIZE, 4 * SIZE)
            old, new, i = memory.before[at], memory.whole[at], np.arange(SIZE, dtype=np.int32)
            match action:
                case "load":
                    np.testing.assert_array_equal(memory.out, np.concatenate([old, np.zeros(BLOCK - SIZE, np.int32)]))
                    np.testing.assert_array_equal(new, old)
                case "store":
                    np.testing.assert_array_equal(new, i + 100)
                case "atomic":
                    np.testing.assert_array_equal(new, old + i + 100)
                case "cas":
                    assert memory.out[0] == old[-1]
                    np.testing.assert_array_equal(new, [*old[:-1], 5 if old[-1] == 7 else old[-1]])


# -- large offsets ---------------------------------------------------------------------------------------------------------

OFFSETS = (2**31, 2**40, 2**60, 2**62, 2**63 - 1, -1, -(2**31) - 1, -(2**40), -(2**62), -(2**63))


@pytest.mark.parametrize("name", WAYS)
def test_offsets_that_wrap_the_address_space_are_errors(name):
    """Offsets are elements of 4 bytes: those of 2^62 and more wrap around the address space once or several times."""
    for run in (launch, interpret):
        memory = Memory()
        for chosen in "xy":
            to_zero = -(memory.views[chosen].ctypes.data // 4)
            for off in (*OFFSETS, to_zero, to_zero - 1, to_zero - SIZE):
                index = max(-(2**60), min(2**60, off))
                held(failed(run, name, memory.arguments(chosen, off, SIZE, "store")), chosen, index, "store")
        memory.unchanged()


ORDINARY = """
    import sys
    import numpy as np
    import blocknb, blocknb.language as tl

    @blocknb.kernel(do_not_specialize=["off"])
    def k(x, out, off, BLOCK: tl.constexpr, MASK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        if BLOCK == 1:
            tl.store(out, tl.load(x + off))
        elif MASK:
            tl.store(out + i, tl.load(x + off + i * tl.load(out + i), mask=tl.load(out + i) >= 0))
        else:
            tl.store(out + i, tl.load(x + off + i * tl.load(out + i)))

    found = 0
    for dtype in (np.int32, np.int8):
        x, out = np.ones(64, dtype), np.zeros(64, dtype)
        to_zero = -(x.ctypes.data // x.itemsize)
        for block in (1, 16, 64):
            for off in (to_zero - 1, to_zero, to_zero - block, to_zero - block // 2, 2**45, -2**45):
                for mask in (False, True):
                    try:
                        k[(1,)](x, out, off, BLOCK=block, MASK=mask)
                    except blocknb.AccessError as error:
                        found += error.index == off
    print(found)
"""


def test_address_at_the_end_of_the_address_space_is_out_of_bounds(tmp_path):
    script = tmp_path / "ordinary.py"
    script.write_text(textwrap.dedent(ORDINARY))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "72"), done.stderr[-2000:]


# -- read-only arrays, empty arrays, and memory outside all arguments -----------------------------------------------------


@pytest.mark.parametrize("action", ["store", "atomic", "cas"])
@pytest.mark.parametrize("name", WAYS)
def test_store_to_a_read_only_array_is_an_error(name, action):
    if (name, action) not in CASES:
        return
    for run in (launch, interpret):
        memory = Memory(readonly="x")
        with pytest.raises(KernelError, match="read-only") as caught:
            run(WAYS[name], memory.arguments("x", 0, SIZE, action))
        memory.unchanged()
        if name in RESOLVED:  # only when it runs
            assert isinstance(caught.value, AccessError)
            assert caught.value.message == f"program (0, 0, 0) {SAID[action].verb} `x`, an array that is read-only"
            run(WAYS[name], memory.arguments("y", 0, SIZE, action))
            memory.unchanged(but="y")
        elif run is launch:
            assert isinstance(caught.value, LaunchError)


@pytest.mark.parametrize("name", ["conditional", "lanes", "loaded", "loaded_tile"])
def test_access_to_an_empty_array_is_an_error(name):
    for run in (launch, interpret):
        memory = Memory()
        memory.views["x"] = memory.whole[2 * SIZE : 2 * SIZE]
        run(WAYS[name], memory.arguments("x", 0, 0, "store"))
        run(WAYS[name], memory.arguments("y", 0, SIZE, "store"))
        if name not in RESOLVED:
            error = failed(run, name, memory.arguments("x", 0, 1, "store"))
            assert "element 0 of `x`, which has 0 elements" in error.message
        memory.unchanged(but="y")


class Tensor:
    """An empty tensor of torch: it has no address."""

    shape, dtype = (0,), "int32"

    def data_ptr(self) -> int:
        return 0

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def element_size(self) -> int:
        return 4

    def __dlpack__(self) -> None:
        raise AssertionError("nothing is read")


def test_access_below_an_empty_array_at_address_zero_is_an_error():
    low, high = extents.extent(Tensor(), 0)
    assert low == high > 2**63


@pytest.mark.parametrize("action", ["load", "store", "atomic"])
@pytest.mark.parametrize("name", FOREIGN)
def test_addresses_loaded_from_memory_may_point_outside_all_arguments(name, action):
    memory, other = Memory(), np.arange(SIZE, dtype=np.int32)
    memory.table[0] = other.ctypes.data
    launch(WAYS[name], memory.arguments("x", 0, SIZE, action))
    i = np.arange(SIZE, dtype=np.int32)
    np.testing.assert_array_equal(other, {"load": i, "store": i + 100, "atomic": 2 * i + 100}[action])
    assert action != "load" or (memory.out[:SIZE] == i).all()
    memory.unchanged()


@pytest.mark.parametrize("n", [1, 7, SIZE])
@pytest.mark.parametrize("action", ["store", "atomic", "cas"])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_pointer_may_not_store_into_a_read_only_array(name, action, n):
    if (name, action) not in CASES:
        return
    memory = Memory(readonly="y")
    memory.table[0] = memory.whole.ctypes.data  # before both arrays, and of no argument
    off = 4 * SIZE - n  # the last of n elements is the last of y
    error = failed(launch, name, memory.arguments("x", off, n, action))
    assert error.message.endswith("`y`, an array that is read-only")
    memory.unchanged(but="x")
    if action != "cas":
        launch(WAYS[name], memory.arguments("x", 4 * SIZE, n, action))  # behind it
        assert (memory.whole[4 * SIZE : 4 * SIZE + n] != memory.before[4 * SIZE : 4 * SIZE + n]).all()
        launch(WAYS[name], memory.arguments("x", 3 * SIZE - n, n, action))  # in front of it


@pytest.mark.parametrize("n", [2, 7, SIZE])
@pytest.mark.parametrize("action", ["store", "atomic"])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_row_that_overlaps_a_read_only_array_by_one_element_is_an_error(name, action, n):
    for off in (
        3 * SIZE - n + 1,
        4 * SIZE - 1,
    ):  # its last element is the first of y, or its first element is the last of y
        memory = Memory(readonly="y")
        memory.table[0] = memory.whole.ctypes.data
        error = failed(launch, name, memory.arguments("x", off, n, action))
        assert error.message.endswith("`y`, an array that is read-only")
        np.testing.assert_array_equal(memory.views["y"], memory.before[3 * SIZE : 4 * SIZE])


@pytest.mark.parametrize("name", FOREIGN)
def test_read_only_array_may_have_a_negative_stride(name):
    memory = Memory()
    memory.table[0] = memory.whole.ctypes.data
    memory.views["y"] = memory.views["y"][::-1]
    memory.views["y"].flags.writeable = False
    for off in (3 * SIZE, 4 * SIZE - 1):
        error = failed(launch, name, memory.arguments("x", off, 1, "store"))
        assert error.message.endswith("`y`, an array that is read-only")
    for off in (3 * SIZE - 1, 4 * SIZE):
        launch(WAYS[name], memory.arguments("x", off, 1, "store"))


@blocknb.kernel(do_not_specialize=["n"])
def copied_by_address(x, y, table, n, LANES: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    source = tl.load(table + i * 0 if LANES else table).to(tl.pointer_type(tl.int32))
    target = tl.load(table + 1).to(tl.pointer_type(tl.int32))
    tl.store(target + i, tl.load(source + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("lanes", [False, True])
def test_read_only_array_may_be_loaded_while_stores_use_addresses(lanes):
    memory = Memory(readonly="y")
    memory.table[:] = memory.views["y"].ctypes.data, memory.views["x"].ctypes.data
    copied_by_address[(1,)](**memory.views, table=memory.table, n=SIZE, LANES=lanes, BLOCK=BLOCK)
    np.testing.assert_array_equal(memory.views["x"], memory.views["y"])
    memory.unchanged(but="x")


@pytest.mark.parametrize("name", [name for name in RESOLVED if name not in FOREIGN])
def test_read_only_view_does_not_make_the_writable_array_read_only(name):
    """The owner of an address is the first argument whose array contains it; here that array is writable."""
    memory = Memory()
    memory.views["y"] = memory.views["x"][:]
    memory.views["y"].flags.writeable = False
    launch(WAYS[name], memory.arguments("x", 0, SIZE, "store"))
    np.testing.assert_array_equal(memory.views["x"], np.arange(SIZE) + 100)


@pytest.mark.parametrize("name", FOREIGN)
def test_error_shows_an_address_at_the_end_of_the_address_space(name):
    """Unless an argument holds an address, an access is only refused if no element fits between it and the end of the address space."""
    memory = Memory()
    memory.table[0] = -4
    error = failed(launch, name, memory.arguments("x", 0, 1, "load"))
    assert "loads from address 0xfffffffffffffffc, which is outside all arrays of this launch" in error.message


@blocknb.kernel(do_not_specialize=["off"])
def distance(x, y, out, off, TILE: tl.constexpr):
    p = (y.to(tl.int64) - x.to(tl.int64) + off).to(tl.pointer_type(tl.int8))
    if TILE:
        p += tl.arange(0, 4)
        tl.store(out + tl.arange(0, 4), tl.load(p))
    else:
        tl.store(out, tl.load(p))


@pytest.mark.parametrize("tile", [False, True])
@pytest.mark.parametrize("off", [0, 1, -1, -4, 2**40])
def test_pointer_without_any_array_is_always_out_of_bounds(off, tile):
    """The distance of two addresses is no address: neither is 0, nor the last byte of the address space."""
    x = np.zeros(4, np.int8)
    for run in (launch, interpret):
        with pytest.raises(AccessError):
            run(distance, {"x": x, "y": x, "out": np.zeros(4, np.int8), "off": off, "TILE": tile})


def test_address_computed_from_two_arrays_that_lies_in_neither_is_an_error():
    for run in (launch, interpret):
        memory = Memory()
        other = np.full(SIZE, 3, np.int32)
        memory.views["y"] = other[:0]
        error = failed(run, "summed_integers", memory.arguments("y", 2, SIZE, "store"))
        if run is launch:
            address = other.ctypes.data + 8
            assert (
                error.message
                == f"program (0, 0, 0) stores to address {address:#x}, which is outside all arrays of this launch"
            )
        assert (other == 3).all()
        memory.unchanged()


class Bare:
    """An object that has only an address."""

    dtype = "int32"

    def __init__(self, array: np.ndarray):
        self.array = array

    def data_ptr(self) -> int:
        return self.array.ctypes.data


def test_object_with_only_an_address_has_the_bounds_of_the_array_around_it():
    memory = Memory()
    arguments = memory.arguments("x", 0, SIZE + 1, "store") | {"x": Bare(memory.views["x"]), "y": memory.views["x"]}
    error = failed(launch, "conditional", arguments)
    assert f"element {SIZE} of `x`, which has {SIZE} elements" in error.message
    memory.unchanged(but="x")
    assert extents.adopted(50, [(40, 60), (45, 90), extents.UNBOUNDED, (50, 50)]) == (45, 90)
    assert extents.adopted(90, [(40, 60), (45, 90)]) == extents.UNBOUNDED


# -- tiles of pointers into several arrays ---------------------------------------------------------------------------------


@blocknb.kernel(do_not_specialize=["n", "m"])
def two_halves(x, y, out, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    first = i % 2 == 0
    p = tl.where(first, x + i // 2, y + i // 2)
    mask = i // 2 < tl.where(first, n, m)
    tl.store(out + i, tl.load(p, mask=mask, other=-1))
    tl.store(p, i, mask=mask)


@pytest.mark.parametrize(("n", "m", "array", "index"), [(17, 16, "x", 16), (16, 17, "y", 16), (30, 20, "x", 16)])
def test_each_lane_is_checked_against_its_own_array(n, m, array, index):
    for run in (launch, interpret):
        memory = Memory()
        rest = {"out": np.zeros(64, np.int32), "BLOCK": 64}
        with pytest.raises(AccessError, match=f"element {index} of `{array}`"):
            run(two_halves, {**memory.views, "n": n, "m": m, **rest})
        memory.unchanged()
        run(two_halves, {**memory.views, "n": 16, "m": 15, **rest})
        np.testing.assert_array_equal(memory.views["x"], np.arange(0, 32, 2))
        np.testing.assert_array_equal(memory.views["y"][:15], np.arange(1, 30, 2))
        np.testing.assert_array_equal(rest["out"][:32:2], memory.before[2 * SIZE : 3 * SIZE])
        assert memory.views["y"][15] == memory.before[4 * SIZE - 1]


@blocknb.kernel(do_not_specialize=["c", "n", "step"])
def rows(x, y, out, c, n, step, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    p = x if c > 1 else y
    r, i = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    v = tl.load(p + r[:, None] * step + i[None, :], mask=(i < n)[None, :])
    tl.store(out + r[:, None] * BLOCK + i[None, :], v * 2)
    back = tl.load(p + (ROWS * BLOCK - 1) - (r[:, None] * BLOCK + i[None, :]))
    tl.store(out + r[:, None] * BLOCK + i[None, :], back)


def test_rows_of_a_selected_pointer_are_checked_individually():
    x, y, out = np.arange(8 * 64), np.arange(8 * 64 - 3) * 2, np.zeros((8, 64), np.int64)
    for run in (launch, interpret):
        rest = {"out": out, "n": 61, "step": 64, "ROWS": 8, "BLOCK": 64}
        run(rows, {"x": x, "y": y, "c": 2, **rest})
        np.testing.assert_array_equal(out, x[::-1].reshape(8, 64))
        with pytest.raises(AccessError, match="loads element 511 of `y`, which has 509 elements"):
            run(rows, {"x": x, "y": y, "c": 1, **rest})
        with pytest.raises(AccessError, match="loads element 509 of `y`, which has 509 elements"):
            run(rows, {"x": x, "y": y, "c": 1, **rest, "n": 62})
        with pytest.raises(AccessError, match="loads element -3 of `x`, which has 512 elements"):
            run(rows, {"x": x, "y": y, "c": 2, **rest, "step": -3, "n": 3})


def test_launch_summary_marks_unknown_extents():
    kind = pointer_kind(int32, True, HOST)
    assert summary(Bare(np.zeros(4, np.int32)), kind)["extent"] == "unknown"
    assert "extent" not in summary(np.zeros(4, np.int32), kind)


@blocknb.kernel(do_not_specialize=["c", "n"])
def strided(x, y, out, c, n, off, STEP: tl.constexpr, BLOCK: tl.constexpr):
    p = x if c > 1 else y
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(p + off + i * STEP, mask=i < n))


@pytest.mark.parametrize("dtype", [np.int8, np.float64])
@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_error_of_a_strided_row_names_its_first_element_outside(step, dtype):
    x, out = np.arange(60).astype(dtype), np.zeros(16, dtype)
    for off in (0, 59 - 15 * step) if step > 0 else (59, -15 * step):
        for run in (launch, interpret):
            for n in range(-1, 17):
                rest = {"out": out, "c": 2, "n": n, "off": off, "STEP": step, "BLOCK": 16}
                run(strided, {"x": x[:60], "y": x[:1], **rest})
                np.testing.assert_array_equal(out[: max(n, 0)], x[off + step * np.arange(max(n, 0))])
            inside = [k for k in range(17) if 0 <= off + step + k * step < 60]
            first = off + step + step * (len(inside))
            if first < 0 or first >= 60:
                rest = {"out": out, "c": 2, "n": len(inside) + 1, "off": off + step, "STEP": step, "BLOCK": 16}
                if len(inside) < 16:
                    with pytest.raises(AccessError, match=f"loads element {first} of `x`"):
                        run(strided, {"x": x[:60], "y": x[:1], **rest})
