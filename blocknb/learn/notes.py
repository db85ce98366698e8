"""Notes about right answers: what blocknb defines and Triton does not.

`tl.load` with a mask and without `other` gives 0 in the lanes that the mask turns off. Triton leaves them undefined. So a kernel whose
result needs these zeros is right here, and wrong in Triton on some day.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

from blocknb.learn.exercise import CheckFinding
from blocknb.learn.repairs import EACH, changed_answer, elements_of
from blocknb.learn.running import Attempt, attempt

OTHER = 101  # of lanes that are off: no sum, maximum or product of small numbers stays what it was
UNDEFINED = "Triton leaves lanes that a mask turns off undefined: write other=0.0 where the result needs 0"


def notes_of(attempts: Sequence[Attempt]) -> Iterator[CheckFinding]:
    """A note about the first load that lacks `other`, if another number in its masked lanes makes the result of the smallest case wrong."""
    made = min(attempts, key=elements_of)
    base = made.answer.base
    if made.answer.kernel is not base or made.exercise.grid is None:
        return
    loads = list(_without_other(base.source.node))
    if loads and _matter(made, loads):
        line = next((load.lineno for load in loads if _matter(made, [load])), loads[0].lineno)
        yield CheckFinding(UNDEFINED, "note", False, line)


def _matter(made: Attempt, loads: Sequence[ast.Call]) -> bool:
    """Whether the result is wrong with another number in the lanes that the masks of some loads turn off."""
    function = made.answer.base.source.node
    for load in loads:
        load.keywords.append(ast.keyword("other", ast.Constant(OTHER)))
    try:
        answer = changed_answer(made, copy.deepcopy(function))
    finally:
        for load in loads:
            load.keywords.pop()
    if answer is None:
        return False
    again = attempt(made.exercise, answer, made.case, made.seed, "interpreted", EACH)
    return bool(again.wrong) and again.raised is None


def _without_other(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """The loads of a kernel that have a mask and no `other`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
            names = {keyword.arg for keyword in node.keywords}
            if ("mask" in names or len(node.args) == 2) and "other" not in names:
                yield node
