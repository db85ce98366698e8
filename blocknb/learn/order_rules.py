"""Two rules of the units on reductions and on order: the result is the same in any order of the programs, and an input is loaded once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from blocknb.errors import KernelError
from blocknb.learn.cell import matched
from blocknb.learn.exercise import CheckFinding, Rule
from blocknb.learn.running import Attempt
from blocknb.runtime.footprints import memory_launch
from blocknb.runtime.reordered import check_orders

__all__ = ["any_order", "loaded_once"]

ORDERS = 20
SECONDS = 2.0


@dataclass(frozen=True)
class _CopiedArguments:
    """The arguments of a launch, which `check_orders` copies before each run."""

    given: Mapping[str, Any]

    def arguments(self, copied: Sequence[str]) -> dict[str, Any]:
        """The arguments, with copies of the arrays named."""
        return {
            name: value.copy() if name in copied and isinstance(value, np.ndarray) else value
            for name, value in self.given.items()
        }


def _any_order(made: Attempt) -> Iterator[CheckFinding]:
    kernel, arguments = made.answer.base, matched(made.answer, made.fresh())
    try:
        launch = memory_launch(kernel, made.grid, (), arguments)
        found = check_orders(kernel, made.grid, cast(Any, _CopiedArguments(arguments)), launch, ORDERS, SECONDS)
    except KernelError as error:
        yield CheckFinding(error.message, "rule")
        return
    if (different := found.difference) is not None:
        first, second = different.orders
        yield CheckFinding(
            f"the result depends on the order of the programs: `{different.name}`[{different.index}] is {different.first:.6g} "
            f"in {first} and {different.second:.6g} in {second}",
            "rule",
            True,
        )


any_order = Rule("any_order", f"The result is the same in {ORDERS} random orders of the programs.", _any_order)


def loaded_once(name: str) -> Rule:
    """The rule that the programs together load each element of an input once at most."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        seen = made.footprint
        if seen is None or seen.sampled:
            return
        own = next(n for n, value in matched(made.answer, made.given).items() if value is made.given[name])
        loads = seen.arrays[own].loads
        if loads and loads.issued > loads.elements:
            often = loads.issued / loads.elements
            yield CheckFinding(
                f"`{own}` is loaded {often:.3g} times: load each element once, and keep it in a variable", "rule", True
            )

    return Rule("loaded_once", f"The programs load each element of `{name}` once.", check)
