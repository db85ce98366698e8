"""Pointers that may come from several arrays: each access is held to the array that its pointer came from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bounds.ways import ACTIONS, SAID, WAYS

from blocknb import AccessError
from blocknb.errors import KernelError

SIZE, BLOCK = 16, 32
SCALAR_ONLY = {"cas"}
TILES = ("swapped_tiles", "lanes", "carried_lanes", "gathered", "concatenated", "joined", "integer_tile", "loaded_tile")
CASES = [(name, action) for name in WAYS for action in ACTIONS if not (action == "cas" and name in TILES)]


class Memory:
    """Arrays that lie side by side in one buffer, between numbers that no kernel may see or change."""

    def __init__(self, readonly: str = ""):
        rng = np.random.default_rng()
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


@pytest.mark.parametrize("chosen", ["x", "y"])
@pytest.mark.parametrize(("name", "action"), CASES)
def test_a_mask_off_by_one_is_an_error_of_the_array_that_was_chosen(name, action, chosen):
    for run in (launch, interpret):
        memory = Memory()
        held(failed(run, name, memory.arguments(chosen, 0, SIZE + 1, action)), chosen, SIZE, action)
        memory.unchanged(but=chosen)


@pytest.mark.parametrize(("name", "action"), CASES)
def test_a_right_program_computes_what_numpy_computes(name, action):
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
