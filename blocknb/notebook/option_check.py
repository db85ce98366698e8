"""`--check EXPR`: whether the result of the cell was right, which its card and the kernel's history then show."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.notebook.expressions import Expression
from blocknb.notebook.options import Found, Option, unquoted


def prepare(words: Any, shell: Any) -> Expression | None:
    return Expression(unquoted(words), shell) if words else None


def after(expression: Expression | None, record: Any, shell: Any, found: Found) -> None:
    """Checks the result: an array or a tensor is right if all its elements are true, any other value if it is true itself."""
    if expression is None:
        return
    value = expression()
    if hasattr(value, "get") and hasattr(value, "dtype"):
        value = value.get()  # CuPy
    elif hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    found.ok, found.checked = bool(np.all(value)), expression.text
    found.facts.append(("check", f"{'correct' if found.ok else '✗ WRONG'}: `{expression.text}`"))


OPTION = Option(
    "--check",
    {
        "metavar": "EXPR",
        "nargs": "+",
        "help": "Evaluate this expression after the body. The result is correct if it is true (an array: if all elements are). The card "
        "and the kernel's history show the outcome: --check np.allclose(out, np.sort(x))",
    },
    after,
    prepare,
)
