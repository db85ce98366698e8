"""`--baseline EXPR`: an expression that is measured in turns with the kernel, in the same run."""

from __future__ import annotations

from typing import Any

from blocknb.notebook.expressions import Expression
from blocknb.notebook.options import Found, Option, unquoted


def prepare(given: Any, shell: Any) -> list[Expression]:
    return [Expression(unquoted(words), shell, "--baseline") for words in given or ()]


def after(expressions: list[Expression], record: Any, shell: Any, found: Found) -> None:
    found.baselines |= {expression.text: expression.on_copies() for expression in expressions}


OPTION = Option(
    "--baseline",
    {
        "metavar": "EXPR",
        "nargs": "+",
        "action": "append",
        "help": "Also measure this expression, interleaved with the kernel (both on copies of their arrays): --baseline np.exp(x). "
        "The option can be repeated.",
    },
    after,
    prepare,
)
