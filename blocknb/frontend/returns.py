"""Translates branches and returns to structured control flow.

A branch on a constant visits only the taken arm. A branch on a run-time value visits both arms into blocks of an `if`. Every name that
differs between the arms becomes a result of the `if`.

Structured IR has no jumps. A `return` under a run-time `if` therefore moves the rest of the function into the arm that continues. If
both arms may continue, the front end copies the rest into both. The number of copies is limited, because it grows with the number of
paths. Beyond the limit the front end uses a flag: the `if` also yields whether the function has returned, and its result. The
statements up to the next `return` go under another `if` on that flag. The arm that returned yields zeros for names that it does not
define, and no op reads them.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blocknb.errors import SyntaxUnsupported, TypeMismatch
from blocknb.frontend.expressions import condition
from blocknb.frontend.merge import NEVER, Disagreement, identical, merge_arms
from blocknb.frontend.scope import ConditionalReturn, Frame, Outcome, Returned, Undefined, statement
from blocknb.ir.core import Op, Value

MAX_DEPTH = 32  # nesting depth of blocks from early returns, before flags are used
MAX_COPIES = 4  # copies of the statements after a branch that may return or continue
NOWHERE = Undefined("is not assigned")


@dataclass(frozen=True)
class Arm:
    """A visited arm of a branch: its statements and ops, the names at its end, and how it ended the function."""

    statements: Sequence[ast.stmt]
    ops: Sequence[Op]
    names: dict[str, Any]
    outcome: Outcome

    @property
    def flag(self) -> Any:
        """Whether the function has returned at the arm's end: a bool, or a Value."""
        return self.outcome.flag if isinstance(self.outcome, ConditionalReturn) else self.outcome is not None

    @property
    def value(self) -> Any:
        return NEVER if self.outcome is None else self.outcome.value


@statement(ast.Return)
def visit_return(frame: Frame, node: ast.Return, rest: deque) -> Returned:
    if frame.loops:
        raise SyntaxUnsupported(
            "`return` inside a loop is not supported in a kernel",
            frame.loc(node),
            "let the condition of a `while` end the loop, and return after it",
        )
    value = frame.expr(node.value) if node.value is not None else None
    return Returned(value if frame.parent is not None else None)  # the result of a kernel is dropped, as in Triton


@statement(ast.If)
def visit_if(frame: Frame, node: ast.If, rest: deque[ast.stmt]) -> Outcome:
    test = condition(frame, node.test)
    if not isinstance(test, Value):
        rest.extendleft(reversed(node.body if test else node.orelse))
        return None
    if not contains_return(node) or frame.loops:
        join_names(frame, node, test, visit_arm(frame, node.body), visit_arm(frame, node.orelse))
        return None
    forks = bool(rest) and not ends(node.body) and not ends(node.orelse)
    if frame.flagged or frame.emit.depth >= MAX_DEPTH or frame.copies * (1 + forks) > MAX_COPIES:
        return flag_returns(frame, node, test, rest)
    frame.copies *= 1 + forks
    try:
        arms = [visit_arm(frame, [*body, *rest]) for body in (node.body, node.orelse)]
    finally:
        frame.copies //= 1 + forks
    arms = [replace(arm, outcome=arm.outcome or Returned(None)) for arm in arms]  # nothing follows the function's end
    return join(frame, node, test, *arms)


def visit_arm(frame: Frame, statements: Sequence[ast.stmt]) -> Arm:
    """Visits statements into a block of their own."""
    saved, frame.names = frame.names, dict(frame.names)
    try:
        with frame.emit.block() as block:
            outcome = frame.run(statements)
        return Arm(statements, block.done.ops, frame.names, outcome)
    finally:
        frame.names = saved


def contains_return(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def ends(statements: Sequence[ast.stmt]) -> bool:
    """Whether every path through the statements ends the function."""
    match statements[-1:]:
        case [ast.Return() | ast.Raise()]:
            return True
        case [ast.If(body=body, orelse=orelse)]:
            return ends(body) and ends(orelse)
    return False


# -- returns by a flag ---------------------------------------------------------------------------------------------------------


def flag_returns(frame: Frame, node: ast.If, test: Value, rest: deque[ast.stmt]) -> Outcome:
    """Emits a run-time branch that returns on some paths and continues on others."""
    outer, frame.flagged = frame.flagged, True
    try:
        outcome = flagged(frame, node, test, rest)
    finally:
        frame.flagged = outer
    if isinstance(outcome, ConditionalReturn) and not outer:  # an arm that continues reaches the end of the function
        if outcome.value is not None:
            raise differs(frame, node, Disagreement("a value, and None at the end of the function"))
        return Returned(None)
    return outcome


def flagged(frame: Frame, node: ast.If, test: Value, rest: deque[ast.stmt]) -> Outcome:
    bodies, goes_on = [node.body, node.orelse], [not ends(node.body), not ends(node.orelse)]
    if frame.emit.depth < MAX_DEPTH and sum(goes_on) == 1:  # the remaining statements belong to one arm
        bodies[goes_on.index(True)] = [*bodies[goes_on.index(True)], *rest]
        rest.clear()
    outcome = join(frame, node, test, *(visit_arm(frame, body) for body in bodies))
    while isinstance(outcome, ConditionalReturn) and rest:
        part = [rest.popleft()]
        while rest and not contains_return(part[-1]):
            part.append(rest.popleft())
        returned = Arm((), (), frame.names, Returned(outcome.value))
        outcome = join(frame, node, outcome.flag, returned, visit_arm(frame, part))
    return outcome


# -- what two arms become --------------------------------------------------------------------------------------------------------


def join(frame: Frame, node: ast.If, test: Value, then: Arm, other: Arm) -> Outcome:
    """Emits the `if` of two arms, at least one of which returns, and sets the names after it.

    Returns how the `if` ended the function.
    """
    if then.outcome is None and other.outcome is None:  # the returns are in arms that are not taken
        join_names(frame, node, test, then, other)
        return None
    flags = then.flag, other.flag
    known = flags in ((True, False), (False, True))
    value, *flag = join_names(frame, node, test, then, other, (then.value, other.value), *([] if known else [flags]))
    if isinstance(value, Disagreement):
        raise differs(frame, node, value)
    if known:
        return ConditionalReturn(test if flags[0] else frame.emit.unary("not", test), value)
    return ConditionalReturn(flag[0], value) if isinstance(flag[0], Value) else Returned(value)


def differs(frame: Frame, node: ast.If, why: Disagreement) -> TypeMismatch:
    return TypeMismatch(
        f"`{frame.source.name}` returns different types from the arms of this branch: {why}",
        frame.loc(node.test),
        "return values of the same type in all arms",
    ).in_triton("Inconsistent return types")


def join_names(frame: Frame, node: ast.If, test: Value, then: Arm, other: Arm, *more: tuple[Any, Any]) -> list[Any]:
    """Emits the `if` of two arms, sets the names after it, and returns the merged trees of the further pairs."""
    pairs = pairs_of_names(frame, then, other)
    joined = {n: pair for n, pair in pairs.items() if not any(isinstance(x, Undefined) for x in pair)}
    every = [*joined.values(), *more]
    merged = merge_arms(frame.emit, test, then.ops, [a for a, _ in every], other.ops, [b for _, b in every])
    for name, (a, b) in pairs.items():
        if name in joined:
            continue
        if a is NEVER or b is NEVER:
            frame.names[name] = b if a is NEVER else a
        else:
            frame.names[name] = Undefined(
                f"is assigned only in the `{'else' if isinstance(a, Undefined) else 'if'}` arm of the branch at line {node.lineno}",
                f"assign `{name}` before the branch, or in both arms",
            )
    for name, value in zip(joined, merged, strict=False):
        if isinstance(value, Disagreement):
            disagree(frame, node, name, value)
        else:
            frame.assign(name, value, frame.where.get(name, node))
    return merged[len(joined) :]


def pairs_of_names(frame: Frame, then: Arm, other: Arm) -> dict[str, tuple[Any, Any]]:
    """The names whose values differ between two arms, with both values. Values on which both arms agree are set at once."""
    gone = then.flag is True, other.flag is True  # an arm that ended the function does not affect names
    if all(gone):
        return {}
    found = {}
    for name in frame.ordered(stored_names([*then.statements, *other.statements])):
        before = frame.names.get(name, NOWHERE)
        a, b = (NEVER if g else arm.names.get(name, NOWHERE) for arm, g in zip((then, other), gone, strict=True))
        if all(x is before or x is NEVER for x in (a, b)):
            continue
        if identical(a, b):
            frame.names[name] = a
        else:
            found[name] = a, b
    return found


def stored_names(statements: Sequence[ast.stmt]) -> dict[str, None]:
    """The names that the statements assign."""
    nodes = (node for root in statements for node in ast.walk(root))
    return {n.id: None for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def disagree(frame: Frame, node: ast.If, name: str, why: Disagreement) -> None:
    """Handles a name with two types. If it existed before the branch, that is an error; otherwise it is undefined after the branch."""
    text = f"is of different types after the arms of the branch at line {node.lineno}: {why}"
    hint = "give it the same type in both arms, for example with .to(...) or tl.full(...)"
    triton = f"Mismatched type for {name} between then block and else block"
    if name in frame.names and not isinstance(frame.names[name], Undefined):
        raise TypeMismatch(f"`{name}` {text}", frame.loc(frame.where.get(name, node)), hint).in_triton(triton)
    frame.names[name] = Undefined(text, hint, triton)
