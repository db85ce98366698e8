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

    def holds() -> bool:
        return bool(np.all(to_numpy(expression())))

    ok, found.check = holds(), holds
    checks = [LaunchCheck.of(record.kernel, made) for made in list(record.specialisations.values())[-2:]]
    found.ok, found.checked = ok and all(check.right for check in checks), expression.text
    said = "✗ WRONG" if not ok else "correct" if found.ok else "correct in this run, but the launch has errors"
    found.facts.append(("check", f"{said}: `{expression.text}`"))
    if not ok:
        found.facts += _explained(expression, checks)
    found.facts += list(dict.fromkeys(fact for check in checks for fact in check.facts()))


def _explained(expression: Expression, checks: list[Any]) -> list[tuple[str, str]]:
    """The wrong element and the program that made it, if the expression compares two arrays, and possible causes."""
    both = sides(expression.text, expression.evaluate)
    if both is None:
        return [fact for check in checks for fact in check.causes(None, ())]
    values = expression.evaluate(both.left), expression.evaluate(both.right)
    wrong = compare(both, *values)
    if not isinstance(wrong, WrongElement):
        return [("first wrong", wrong)] if wrong else []
    number, name = _maker(wrong, values, checks) or (-1, "")
    made = checks[number].made_by(name, wrong.index, "; ") if name else ""
    facts = [("first wrong", wrong.text + made)]
    for i, check in enumerate(checks):
        facts += check.causes(name, (wrong.index, wrong.worst)) if i == number else check.causes(None, ())
    return facts


def _maker(wrong: WrongElement, values: Any, checks: list[Any]) -> tuple[int, str] | None:
    """The number of the check and the name of the argument that a compared array was in a launch."""
    for value in values:
        for number, check in reversed(list(enumerate(checks))):
            name = argument_of(value, check.given)
            if name is not None and tuple(value.shape) == wrong.shape and check.made_by(name, wrong.index):
                return number, name
    return None


OPTION = Option(
    "--check",
    {
        "metavar": "EXPR",
        "nargs": "+",
        "help": "Evaluate this expression after the body. The result is correct if it is true (an array: if all elements are). The card "
        "and the kernel's history show the outcome. They also show faults of the launch: races, elements that no program stores, and "
        "results that depend on the order of the programs. Example: --check np.allclose(out, np.sort(x))",
    },
    after,
    prepare,
)
