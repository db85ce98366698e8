"""Expressions that magics evaluate in the user's namespace: as they stand, or on copies of the arrays that they name.

An expression is compiled when the magic line is read, so that a mistake in it stops the cell at once; its text is known to the shell,
so that an error shows the line.
"""

from __future__ import annotations

import ast
from typing import Any

from IPython.core.error import UsageError


class Expression:
    """A Python expression of a magic line. Raises UsageError when it is none."""

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

    def arrays(self) -> dict[str, Any]:
        """The arrays that the expression names, from the user's namespace."""
        from blocknb.runtime.memory import place_of

        space = self.shell.user_ns
        return {n: space[n] for n in sorted(self.names) if n in space and place_of(space[n]) is not None}

    def on_copies(self) -> Any:
        """A function of nothing that evaluates the expression on copies of the arrays it names: whatever it writes to these, the
        user's own arrays stay as they are."""
        from blocknb.runtime.launch_snapshot import scratch

        space = {**self.shell.user_ns, **scratch(self.arrays())}
        return lambda: eval(self.code, space)
