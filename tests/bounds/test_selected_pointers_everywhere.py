"""CPU code, the interpreter and checked GPU code report the same about pointers that may come from several arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fuzz import reports
from kernels.base import Case

from blocknb import AccessError
from blocknb.errors import KernelError
from blocknb.ir import interp
from bounds.selected_pointer_kernels import FOREIGN, RESOLVED, WAYS
from bounds.test_selected_pointers import BLOCK, CASES, SIZE, Memory, held


def lowered(name: str, arguments: dict[str, Any], **options: Any) -> Any:
    return Case(name, WAYS[name], lambda rng: {}, lambda a: {}).lower(arguments, "sm_90a", **options)


def parsed(name: str, arguments: dict[str, Any]) -> None:
    """The IR of the front end."""
    func = lowered(name, arguments)[1][0].before
    interp.run(func, [arguments[hint.name] for hint in func.hints], 1)


def checked(name: str, arguments: dict[str, Any]) -> None:
    """The IR after the pass `bounds_checks`."""
    (stage,) = [stage for stage in lowered(name, arguments, checked=True)[1] if stage.name == "bounds_checks"]
    interp.run(stage.after, [arguments[hint.name] for hint in stage.after.hints], 1)


def simulated(name: str, arguments: dict[str, Any]) -> None:
    """The code of a GPU in checked mode, run by NumPy."""
    func, _ = lowered(name, arguments, checked=True, num_warps=1)
    arrays = [array for array in arguments.values() if isinstance(array, np.ndarray)]
    said = reports.run(func, arguments, (1, 1, 1), reachable=arrays)
    if said.error is not None:
        raise said.error


def error_of(run: Any, name: str, arguments: dict[str, Any]) -> AccessError | None:
    found: list[KernelError] = []
    try:
        run(name, arguments)
    except KernelError as error:
        found.append(error)
    assert all(isinstance(error, AccessError) for error in found), found
    return next((error for error in found if isinstance(error, AccessError)), None)


PLACES = [parsed, checked, simulated]
#: Every kernel with one action, in turn; the others run with --full.
FEW = [
    pytest.param(
        *case, marks=() if i % 6 == 0 or case in ((FOREIGN[0], "store"), (FOREIGN[1], "load")) else pytest.mark.full
    )
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize("run", PLACES, ids=lambda run: run.__name__)
@pytest.mark.parametrize(("name", "action"), FEW)
def test_mask_off_by_one_is_reported(name, action, run):
    for chosen in "xy":
        memory = Memory()
        error = error_of(run, name, memory.arguments(chosen, 0, SIZE + 1, action))
        assert error is not None
        held(error, chosen, SIZE, action)
        memory.unchanged(but=chosen)
        if run is simulated and action in ("store", "atomic"):  # all but the one that is outside
            at = slice(2 * SIZE, 3 * SIZE) if chosen == "x" else slice(3 * SIZE, 4 * SIZE)
            i = np.arange(SIZE) + 100
            np.testing.assert_array_equal(memory.whole[at], i if action == "store" else memory.before[at] + i)


@pytest.mark.parametrize("run", PLACES, ids=lambda run: run.__name__)
@pytest.mark.parametrize(("name", "action"), FEW)
def test_correct_program_reports_nothing(name, action, run):
    memory = Memory()
    assert error_of(run, name, memory.arguments("y", 0, SIZE, action)) is None
    memory.unchanged(but="y")
    if action == "load":
        np.testing.assert_array_equal(memory.out[:SIZE], memory.before[3 * SIZE : 4 * SIZE])


@pytest.mark.parametrize("run", [parsed, simulated], ids=lambda run: run.__name__)
@pytest.mark.parametrize("name", ["conditional", "swapped_tiles", "lanes", "integer", "loaded_tile"])
def test_offsets_that_wrap_the_address_space_are_reported(name, run):
    memory = Memory()
    for off in (2**40, 2**62, 2**63 - 1, -(2**62), -(2**63), -(memory.views["x"].ctypes.data // 4) - 1):
        error = error_of(run, name, memory.arguments("x", off, SIZE, "store"))
        assert error is not None
        held(error, "x", max(-(2**60), min(2**60, off)), "store")
    memory.unchanged()


def test_address_outside_all_arrays_is_reported():
    other, memory = np.full(SIZE, 3, np.int32), Memory()
    memory.views["y"] = other[:0]
    error = error_of(simulated, "summed_integers", memory.arguments("y", 2, SIZE, "store"))
    assert error is not None
    address = other.ctypes.data + 8
    assert error.message.split(";")[0] == (
        f"program (0, 0, 0) stores to address {address:#x}, which is outside all arrays of this launch"
    )
    assert (other == 3).all()


# -- notes -----------------------------------------------------------------------------------------------------------------


def notes_of(name: str, target: str) -> list[Any]:
    memory = Memory()
    return list(WAYS[name].trace(**memory.arguments("x", 0, SIZE, "load"), target=target, checked=True).notes)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("name", WAYS)
def test_notes_count_the_accesses_that_are_checked_and_name_the_others(name, target):
    notes = notes_of(name, target)
    (count,) = [note.text for note in notes if "accesses checked" in note.text]
    missed = [note for note in notes if note.text.startswith("the load is not checked")]
    total = 3 if name in FOREIGN else 2
    assert count == f"{total - len(missed)} of {total} accesses checked against the bounds of the arrays"
    assert len(missed) == (name in FOREIGN)
    for note in missed:
        assert note.kind == "missed"
        assert "tl.load(p" in note.loc.excerpt()
        assert note.text.endswith("if its address lies in no array argument: its pointer was made from an integer")
    assert set(FOREIGN) < set(RESOLVED)
    assert BLOCK > SIZE
