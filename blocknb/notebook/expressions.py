"""Expressions that magics evaluate in the user's namespace, either directly or on copies of the arrays that they name.

An expression is compiled when the magic line is parsed, so that a syntax error stops the cell at once. Its text is registered with the
shell, so that a traceback shows the line.
"""

from __future__ import annotations

import ast
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from IPython.core.error import UsageError

from blocknb.notebook import errors


class Expression:
    """A Python expression on a magic line; `option` is the option that it belongs to. Raises UsageError for a syntax error."""

    def __init__(self, text: str, shell: Any, option: str = ""):
        self.text, self.shell, self.option = text, shell, option
        name = shell.compile.cache(text, shell.execution_count, raw_code=text)
        try:
            tree = ast.parse(text, name, mode="eval")
        except SyntaxError as error:
            caret = " " * (len(option) + 1 + max((error.offset or 1) - 1, 0)) + "^"
            shown = f"\n  at line 1\n    {option} {text}\n    {caret}" if option else ""
            before = f"{option}: " if option else ""
            raise UsageError(f"{before}{text!r} is not an expression: {error.msg}{shown}") from None
        self.code = compile(tree, name, "eval")
        self.names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def __call__(self) -> Any:
        with self.at_option():
            return eval(self.code, self.shell.user_global_ns, self.shell.user_ns)

    def at_option(self) -> AbstractContextManager[None]:
        """Inside, an error is shown at the option and the part of its expression that raised it."""
        return errors.at_option(self.option, self.text, self.code, self.shell) if self.option else nullcontext()

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

        def evaluate() -> Any:
            with self.at_option():
                return eval(self.code, space)

        return evaluate
