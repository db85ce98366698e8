"""`--check EXPR`: whether the result of the cell was right, which its card and the kernel's history then show.

Whatever the expression says, the launch is examined as well (`launch_check`): its footprint, its programs in random orders, and poisoned
outputs. If the expression compares two arrays and is false, the card names the first wrong element and the program that stored it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.notebook.check_compare import WrongElement, argument_of, compare, sides, to_numpy
from blocknb.notebook.expressions import Expression
from blocknb.notebook.options import Found, Option, unquoted


def prepare(words: Any, shell: Any) -> Expression | None:
    return Expression(unquoted(words), shell, "--check") if words else None


def after(expression: Expression | None, record: Any, shell: Any, found: Found) -> None:
    """Checks the result: an array or a tensor is right if all its elements are true, any other value if it is true itself."""
    if expression is None:
        return
    from blocknb.notebook.launch_check import LaunchCheck

    ok = bool(np.all(to_numpy(expression())))
    checks = [LaunchCheck.of(record.kernel, made) for made in list(record.specialisations.values())[-2:]]
    found.ok, found.checked = ok and all(check.right for check in checks), expression.text
    said = "✗ WRONG" if not ok else "correct" if found.ok else "correct in this run, but the launch has errors"
    found.facts.append(("check", f"{said}: `{expression.text}`"))
    if not ok and (text := _difference(expression, checks)):
        found.facts.append(("first wrong", text))
    found.facts += list(dict.fromkeys(fact for check in checks for fact in check.facts()))


def _difference(expression: Expression, checks: list[Any]) -> str:
    """Which element is wrong, and which program made it; empty if the expression does not compare two arrays."""
    both = sides(expression.text, expression.evaluate)
    if both is None:
        return ""
    left, right = expression.evaluate(both.left), expression.evaluate(both.right)
    wrong = compare(both, left, right)
    if not isinstance(wrong, WrongElement):
        return wrong or ""
    made = (
        check.made_by(name, wrong.index, "; ")
        for value in (left, right)
        for check in reversed(checks)
        if (name := argument_of(value, check.given)) is not None and tuple(value.shape) == wrong.shape
    )
    return wrong.text + next(filter(None, made), "")


OPTION = Option(
    "--check",
    {
        "metavar": "EXPR",
        "nargs": "+",
        "help": "Evaluate this expression after the body. The result is correct if it is true (an array: if all elements are). The card "
        "and the kernel's history show the outcome, and what is wrong with the launch: races, elements that no program stores, results "
        "that depend on the order of the programs. --check np.allclose(out, np.sort(x))",
    },
    after,
    prepare,
)
