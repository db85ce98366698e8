"""What a page requests for a card: errors say what is wrong and what to write, without options that the user did not type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.notebook import card, live
from blocknb.runtime import launch_context


@blocknb.kernel
def shifted(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


class Page:
    """A live card of a launch, its arrays, and the answers of its kernel."""

    def __init__(self) -> None:
        self.arrays = np.ones(1000, np.float32), np.zeros(1000, np.float32)
        grid = lambda meta: (blocknb.cdiv(1000, meta["BLOCK"]),)  # noqa: E731
        self.live = live.register(card.card_of(observed(lambda: shifted[grid](*self.arrays, 1000, BLOCK=128))))
        self.sent: list[dict[str, Any]] = []

    def send(self, content: dict[str, Any]) -> None:
        self.sent.append(content)

    def measure(self, view: str, **content: str) -> dict[str, Any]:
        live._answer(self, self.live, {"id": 1, "what": "measure", "view": view, **content})
        return self.sent[-1]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    return Page()


def test_a_sweep_is_measured_again_with_the_values_that_the_user_typed(page: Page) -> None:
    assert page.measure("sweep", axis="BLOCK", values="64, 128")["document"]["sweep"]["values"] == [64, 128]
    assert page.measure("sweep", axis="BLOCK", values="64..256")["document"]["sweep"]["values"] == [64, 128, 256]
    assert not launch_context.observers


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("128, abc", "`128, abc` cannot be read: name 'abc' is not defined. "),
        ("128,, 4", "`128,, 4` cannot be read: '128,, 4' is not an expression: invalid syntax. "),
        ("4..", "`4..` cannot be read: '' is not an expression: invalid syntax. "),
        (
            "0..4",
            "`0..4` cannot be read: FIRST..LAST doubles its values from 1 or more; FIRST..LAST..STEP counts in steps. ",
        ),
        (" ", "There are no values. "),
    ],
)
def test_values_that_cannot_be_read_give_one_sentence_on_what_is_wrong_and_one_on_what_to_write(
    page: Page, values: str, why: str
) -> None:
    hint = "Write the values of BLOCK separated by commas, such as 64, 128, 256, or a range, such as 64..1024."
    assert page.measure("sweep", axis="BLOCK", values=values)["error"] == why + hint


@pytest.mark.parametrize("view", ["sweep", "bench"])
def test_after_another_cell_has_bound_the_names_of_the_arrays_the_error_names_the_cure(
    page: Page, view: str, collect: Callable[[], int]
) -> None:
    page.arrays = np.ones(4, np.float32), np.ones(4, np.float32)
    collect()
    error = page.measure(view, axis="BLOCK", values="64, 128", baseline="")["error"]
    assert error == (
        "The arrays of this launch of shifted no longer exist: their names were deleted or hold other arrays now. "
        "Run the cell again, then measure."
    )
