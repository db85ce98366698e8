"""Translates assignments and assertions. Branches and returns are in returns.py, loops in loops.py."""

from __future__ import annotations

import ast
from typing import Any

from blocknb.errors import KernelError, TypeMismatch
from blocknb.frontend.assignment import assign_target
from blocknb.frontend.debug import device_assert
from blocknb.frontend.emitter import NUMBERS
from blocknb.frontend.expressions import SYMBOLS
from blocknb.frontend.scope import Frame, statement
from blocknb.frontend.source import is_annotation
from blocknb.ir.core import Value
from blocknb.language.constants import constexpr, like


@statement(ast.Pass)
def visit_pass(frame: Frame, node: ast.Pass, rest: list) -> None:
    return None


@statement(ast.Expr)
def visit_expression(frame: Frame, node: ast.Expr, rest: list) -> None:
    if not isinstance(node.value, ast.Constant):  # a docstring or an unused constant has no effect
        frame.expr(node.value)


# -- assignments -------------------------------------------------------------------------------------------------------------


def settle(frame: Frame, value: Any) -> Any:
    """The value that a plain assignment stores. As in Triton, numbers become run-time scalars, which are not weak."""
    if isinstance(value, NUMBERS):
        return frame.emit.runtime(value)
    if isinstance(value, tuple):
        return like(value, (settle(frame, element) for element in value))
    return value


@statement(ast.Assign)
def visit_assign(frame: Frame, node: ast.Assign, rest: list) -> None:
    value = frame.expr(node.value)
    try:
        value = settle(frame, value)
    except KernelError as error:
        error.loc = error.loc or frame.loc(node.value)
        raise
    for target in node.targets:
        assign_target(frame, target, value)


@statement(ast.AugAssign)
def visit_augmented(frame: Frame, node: ast.AugAssign, rest: list) -> None:
    if not isinstance(node.target, ast.Name):
        assign_target(frame, node.target, None)
        return
    try:
        old = frame.lookup(node.target.id)
    except KernelError as error:
        error.loc = error.loc or frame.loc(node.target)
        raise
    value = frame.emit.binary(SYMBOLS[type(node.op)], old, frame.expr(node.value))
    frame.assign(node.target.id, settle(frame, value), node.target)


@statement(ast.AnnAssign)
def visit_annotated(frame: Frame, node: ast.AnnAssign, rest: list) -> None:
    if node.value is None:
        return
    value = frame.expr(node.value)
    if is_constexpr(frame, node.annotation):
        # A value of the run time stays one, as in Triton. It raises an error where only a constant may stand.
        assert isinstance(node.target, ast.Name)
        frame.assign(node.target.id, frame.emit.constant(value), node.target)
    else:
        assign_target(frame, node.target, settle(frame, value))


def is_constexpr(frame: Frame, annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Constant):
        return is_annotation(annotation.value, constexpr)
    if isinstance(annotation, ast.Name) and annotation.id in frame.names:
        return False
    return is_annotation(ast.unparse(annotation), constexpr)


# -- checks ------------------------------------------------------------------------------------------------------------------


@statement(ast.Assert)
def visit_assert(frame: Frame, node: ast.Assert, rest: list) -> None:
    test = frame.emit.constant(frame.expr(node.test))
    if isinstance(test, Value):
        message = frame.expr(node.msg) if node.msg else ""
        frame.emit.loc = frame.loc(node.test)
        device_assert(frame, test, message)
    elif not test:
        raise TypeMismatch(
            f"assertion failed{': ' + str(frame.expr(node.msg)) if node.msg else ''}", frame.loc(node.test)
        )


@statement(ast.Raise)
def visit_raise(frame: Frame, node: ast.Raise, rest: list) -> None:
    text = ""
    if isinstance(node.exc, ast.Call) and node.exc.args:
        text = f": {frame.expr(node.exc.args[0])}"
    elif node.exc is not None:
        text = f": {ast.unparse(node.exc)}"
    raise TypeMismatch(
        f"the kernel raises{text}",
        frame.loc(node),
        "the constants of this launch reach this line; guard it by a condition on constants, because kernels do not raise at run time",
    )
