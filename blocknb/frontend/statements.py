"""Statements: assignments, branches, returns. Loops stand in loops.py.

A branch on a constant visits the taken arm only. A branch on a run-time value visits both into blocks of an `if`, and every name on
which they differ becomes a result of it. There is no jump in structured IR, so a `return` under a run-time `if` moves the rest of
the function into the arms that do not return.
"""

from __future__ import annotations

import ast
from typing import Any

from blocknb.errors import KernelError, SyntaxUnsupported, TypeMismatch
from blocknb.frontend.calls import compile_time
from blocknb.frontend.debug import device_assert
from blocknb.frontend.emitter import NUMBERS, Mismatch, describe, is_pointer
from blocknb.frontend.expressions import SYMBOLS, condition
from blocknb.frontend.merge import Disagreement, identical, merge_arms
from blocknb.frontend.scope import Frame, Returned, Undefined, statement
from blocknb.frontend.source import _is_constexpr
from blocknb.ir.core import Value

MAX_DEPTH = 64  # early returns one after another: each puts what follows into an arm of a branch
MAX_COPIES = 64  # of what follows, when returns stand in branches of branches that may also go on


@statement(ast.Pass)
def visit_pass(frame: Frame, node: ast.Pass, rest: list) -> None:
    return None


@statement(ast.Expr)
def visit_expression(frame: Frame, node: ast.Expr, rest: list) -> None:
    if not isinstance(node.value, ast.Constant):  # a docstring or a stray constant says nothing
        frame.expr(node.value)


# -- assignments -------------------------------------------------------------------------------------------------------------


def settle(frame: Frame, value: Any) -> Any:
    """What a plain assignment stores: numbers become run-time scalars, as in Triton, and are weak no longer."""
    if isinstance(value, NUMBERS):
        return frame.emit.runtime(value)
    if isinstance(value, tuple):
        return tuple(settle(frame, element) for element in value)
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


def assign_target(frame: Frame, target: ast.expr, value: Any) -> None:
    match target:
        case ast.Name(id=name):
            frame.assign(name, value, target)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            if not isinstance(value, tuple):
                raise TypeMismatch(
                    f"{describe(value)} cannot be unpacked into {len(targets)} names",
                    frame.loc(target),
                    "only tuples can be unpacked; tl.split(x) takes a last axis of two apart",
                )
            if starred := next((element for element in targets if isinstance(element, ast.Starred)), None):
                raise frame.unsupported(starred)
            if len(value) != len(targets):
                names = [ast.unparse(element) for element in targets[: len(value)]]
                names += ["_"] * (len(value) - len(names))
                raise TypeMismatch(
                    f"{len(value)} values for {len(targets)} names",
                    frame.loc(target),
                    f"there must be as many names as values: {', '.join(names)} = ...",
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
        try:
            value = compile_time(value, frame)
        except Mismatch as error:
            error.loc, error.hint = frame.loc(node.value), "drop the annotation; the value is computed at run time"
            raise
        assert isinstance(node.target, ast.Name)
        frame.assign(node.target.id, value, node.target)
    else:
        assign_target(frame, node.target, settle(frame, value))


def is_constexpr(frame: Frame, annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Constant):
        return _is_constexpr(annotation.value)
    if isinstance(annotation, ast.Name) and annotation.id in frame.names:
        return False
    return _is_constexpr(ast.unparse(annotation))


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
        "this line is reached with the constants of this launch; nothing raises at run time, so only conditions on constants can guard it",
    )


# -- return and if -------------------------------------------------------------------------------------------------------------


@statement(ast.Return)
def visit_return(frame: Frame, node: ast.Return, rest: list) -> Returned:
    if frame.loops:
        raise SyntaxUnsupported(
            "`return` inside a loop cannot stand in a kernel",
            frame.loc(node),
            "let the condition of a `while` end the loop, and return after it",
        )
    value = frame.expr(node.value) if node.value is not None else None
    return Returned(value if frame.parent is not None else None)  # what a kernel returns goes nowhere, as in Triton


@statement(ast.If)
def visit_if(frame: Frame, node: ast.If, rest: list) -> Returned | None:
    test = condition(frame, node.test)
    if not isinstance(test, Value):
        return run_through(frame, node.body if test else node.orelse, rest)
    if contains_return(node) and not frame.loops:
        return branch_and_return(frame, node, test, rest)
    (then_ops, then, _), (else_ops, other, _) = visit_arm(frame, node.body), visit_arm(frame, node.orelse)
    assigned = frame.ordered(n for n in stored_names([*node.body, *node.orelse]) if n in then or n in other)
    same = {n: then[n] for n in assigned if n in then and n in other and identical(then[n], other[n])}
    frame.names.update(same)  # both arms may give a name the same new meaning
    names = [n for n in assigned if n not in same]
    both = [
        n
        for n in names
        if n in then and n in other and not isinstance(then[n], Undefined) and not isinstance(other[n], Undefined)
    ]
    merged = merge_arms(frame.emit, test, then_ops, [then[n] for n in both], else_ops, [other[n] for n in both])
    for name in names:
        if name not in both:
            arm = "if" if name in then and not isinstance(then[name], Undefined) else "else"
            frame.names[name] = Undefined(
                f"is assigned only in the `{arm}` arm of the branch at line {node.lineno}",
                f"assign `{name}` before the branch, or in both arms",
            )
    for name, value in zip(both, merged, strict=True):
        if isinstance(value, Disagreement):
            disagree(frame, node, name, value)
        else:
            frame.assign(name, value, frame.where.get(name, node))
    return None


def stored_names(statements: list[ast.stmt]) -> dict[str, None]:
    """The names that the statements assign."""
    nodes = (node for root in statements for node in ast.walk(root))
    return {n.id: None for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def disagree(frame: Frame, node: ast.If, name: str, why: Disagreement) -> None:
    """A name that lived before the branch must keep its type; one made in it only cannot be used afterwards."""
    text = f"is of different types after the arms of the branch at line {node.lineno}: {why}"
    hint = "give it one type in both arms, for example with .to(...) or tl.full(...)"
    if name in frame.names and not isinstance(frame.names[name], Undefined):
        raise TypeMismatch(f"`{name}` {text}", frame.loc(frame.where.get(name, node)), hint)
    frame.names[name] = Undefined(text, hint)


def visit_arm(frame: Frame, statements: list[ast.stmt]) -> tuple[tuple, dict[str, Any], Returned | None]:
    """Visits statements into a block of their own: its ops, what the names stand for at its end, and whether it returned."""
    saved, frame.names = frame.names, dict(frame.names)
    try:
        with frame.emit.block() as block:
            returned = frame.run(statements)
        return block.done.ops, frame.names, returned
    finally:
        frame.names = saved


def contains_return(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def run_through(frame: Frame, body: list[ast.stmt], rest: list[ast.stmt]) -> Returned | None:
    """Statements that stand in place of one before `rest`. With a return among them, which may be under a run-time branch, they and
    the rest are one sequence, for that branch to move into its arms."""
    last = any(isinstance(node, ast.Return) for node in body)  # whatever happens, nothing follows
    if frame.loops or last or not any(map(contains_return, body)):
        return frame.run(body)
    return frame.run([*body, *rest]) or Returned(None)


def ends(statements: list[ast.stmt]) -> bool:
    """Whether every way through the statements ends the function."""
    match statements[-1:]:
        case [ast.Return() | ast.Raise()]:
            return True
        case [ast.If(body=body, orelse=orelse)]:
            return ends(body) and ends(orelse)
    return False


def branch_and_return(frame: Frame, node: ast.If, test: Value, rest: list[ast.stmt]) -> Returned:
    """A run-time branch with a return in it: the statements after it move into the arms, which then end the function."""
    twice = bool(rest) and not ends(node.body) and not ends(node.orelse)
    if frame.emit.depth >= MAX_DEPTH or frame.copies * (1 + twice) > MAX_COPIES:
        what = f"{frame.emit.depth} branches deep" if not twice else f"in more than {MAX_COPIES} copies"
        raise SyntaxUnsupported(
            f"with one more early return, what follows would stand {what}",
            frame.loc(node),
            "join the conditions of early returns into one: if (a > 0) | (b > 0): return",
        )
    frame.copies *= 1 + twice
    try:
        arms = [visit_arm(frame, [*body, *rest]) for body in (node.body, node.orelse)]
    finally:
        frame.copies //= 1 + twice
    values = [returned.value if returned is not None else None for _, _, returned in arms]
    merged = merge_arms(frame.emit, test, arms[0][0], [values[0]], arms[1][0], [values[1]])[0]
    if isinstance(merged, Disagreement):
        raise TypeMismatch(
            f"`{frame.source.name}` returns different types from the arms of this branch: {merged}",
            frame.loc(node.test),
            "return values of one type everywhere",
        )
    return Returned(merged)
