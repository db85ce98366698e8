"""Assigns values to the targets of an assignment: a name, or a nested tuple of names."""

from __future__ import annotations

import ast
from typing import Any

from blocknb.errors import SyntaxUnsupported, TypeMismatch
from blocknb.frontend.emitter import describe, is_pointer
from blocknb.frontend.scope import Frame


def assign_target(frame: Frame, target: ast.expr, value: Any) -> None:
    """Assigns a value to the target of an assignment, a loop or a comprehension.

    Raises TypeMismatch if the value cannot be unpacked, and SyntaxUnsupported if the target is not a name or a tuple.
    """
    match target:
        case ast.Name(id=name):
            frame.assign(name, value, target)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            if not isinstance(value, tuple):
                raise TypeMismatch(
                    f"{describe(value)} cannot be unpacked into {len(targets)} names",
                    frame.loc(target),
                    "only tuples can be unpacked; tl.split(x) splits a last axis of size two into two tiles",
                )
            if starred := next((element for element in targets if isinstance(element, ast.Starred)), None):
                raise frame.unsupported(starred)
            if len(value) != len(targets):
                names = [ast.unparse(element) for element in targets[: len(value)]]
                names += ["_"] * (len(value) - len(names))
                raise TypeMismatch(
                    f"{len(value)} values for {len(targets)} names",
                    frame.loc(target),
                    f"write as many names as values: {', '.join(names)} = ...",
                )
            for element, part in zip(targets, value, strict=True):
                assign_target(frame, element, part)
        case ast.Subscript() if is_pointer(frame.expr(target.value)):
            pointer, at = ast.unparse(target.value), ast.unparse(target.slice)
            raise SyntaxUnsupported(
                "a pointer has no elements to assign",
                frame.loc(target),
                f"write to memory: tl.store({pointer} + {at}, ...)",
            )
        case ast.Subscript():
            raise SyntaxUnsupported(
                "elements of a tile cannot be assigned",
                frame.loc(target),
                "make a new tile with tl.where(condition, new, old), or write to memory with tl.store",
            )
        case _:
            raise SyntaxUnsupported(
                "only names can be assigned in a kernel", frame.loc(target), "keep values in plain variables and tuples"
            )
