"""Expressions that magics evaluate in the user's namespace, either directly or on copies of the arrays that they name.

An expression is compiled when the magic line is parsed, so that a syntax error stops the cell at once. Its text is registered with the
shell, so that a traceback shows the line.
"""

from __future__ import annotations

import ast
from typing import Any

from IPython.core.error import UsageError


class Expression:
    """A Python expression on a magic line. Raises UsageError for a syntax error."""

    def __init__(self, text: str, shell: Any):
        self.text, self.shell = text, shell
        name = shell.compile.cache(text, shell.execution_count, raw_code=text)
        try:
            tree = ast.parse(text, name, mode="eval")
        except SyntaxError as error:
            raise UsageError(f"{text!r} is not an expression: {error.msg}") from None
        self.code = compile(tree, name, "eval")
        self.names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def __call__(self) -> Any:
        return eval(self.code, self.shell.user_global_ns, self.shell.user_ns)

    def evaluate(self, text: str) -> Any:
        """Evaluates a part of the expression, given as source."""
        return eval(compile(text, "<check>", "eval"), self.shell.user_global_ns, self.shell.user_ns)

    def arrays(self) -> dict[str, Any]:
        """The arrays that the expression names, from the user's namespace."""
        from blocknb.runtime.memory import owner_and_view

        space = self.shell.user_ns
        return {n: space[n] for n in sorted(self.names) if n in space and owner_and_view(space[n]) is not None}

    def on_copies(self) -> Any:
        """A function without arguments that evaluates the expression on copies of its arrays, so that the user's arrays do not change."""
        from blocknb.runtime.launch_snapshot import scratch

        space = {**self.shell.user_ns, **scratch(self.arrays())}
        return lambda: eval(self.code, space)
