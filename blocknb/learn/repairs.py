"""The cause of a wrong result by a repair: one small change of the learner's kernel after which every case is right.

A repair is a mutant in reverse. The search changes one place of the kernel: a comparison, a number, an operator, a name, or an option of a
call. It interprets the changed kernel on the smallest case that fails, then on all others. The changed place is the cause: the cases of an
exercise refuse every other kernel. This is program repair by generate and validate, with one change instead of many. Source: Weimer et al.,
"Automatically finding patches using genetic programming", ICSE 2009.
"""

from __future__ import annotations

import ast
import copy
import itertools
import linecache
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from blocknb.learn.cell import Answer
from blocknb.learn.exercise import CheckFinding
from blocknb.learn.generic_causes import of_accesses
from blocknb.learn.mutants import replaced
from blocknb.learn.running import Attempt, attempt
from blocknb.runtime.kernel import Kernel

SECONDS = 2.0  # of this thread, for all changes together
EACH = 1.0  # of one launch
LONGEST = 60  # characters of an expression that a sentence shows
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
#: Operators that stand for one another, and functions.
OPERATORS: tuple[tuple[type[ast.operator], ...], ...] = (
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.FloorDiv, ast.Mod),
    (ast.BitAnd, ast.BitOr),
)
FUNCTIONS = (
    ("sum", "max", "min"),
    ("argmax", "argmin"),
    ("minimum", "maximum"),
    ("exp", "exp2"),
    ("log", "log2"),
    ("cumsum", "cumprod"),
    ("atomic_add", "atomic_max", "atomic_min", "atomic_xchg"),
    ("float32", "float16", "bfloat16"),
)
_NUMBERS = itertools.count(1)
Change = tuple[ast.AST, ast.AST]  # a node, and what replaces it


def repaired(attempts: Sequence[Attempt]) -> Iterator[CheckFinding]:
    """The sentence about the first change after which all cases give the right result, if there is one. `attempts` are those of one
    device, and the first one that fails has no error but an address outside of an array."""
    first = min((made for made in attempts if not made.passed), key=elements_of)
    base = first.answer.base
    if first.answer.kernel is not base or first.exercise.grid is None:
        return
    node = base.source.node
    deadline = time.thread_time() + SECONDS
    for old, new in changes(node, [p.name for p in base.source.parameters], _arrays(first)):
        if time.thread_time() > deadline:
            return
        other = changed_answer(first, replaced(node, old, new))
        if other is not None and _is_right(first, other, attempts):
            yield _finding(node, old, new)
            return


def elements_of(made: Attempt) -> int:
    """The elements of all arrays of a launch."""
    return sum(value.size for value in made.given.values() if isinstance(value, np.ndarray))


def _arrays(made: Attempt) -> list[str]:
    """The parameters that are arrays."""
    return [own for own, name in made.names.items() if isinstance(made.given[name], np.ndarray)]


def _is_right(first: Attempt, other: Answer, attempts: Sequence[Attempt]) -> bool:
    """Whether a kernel is right in the first failing case, follows the rules about memory there, and is right in all other cases."""
    exercise, seeds = first.exercise, {made.case.name: made.seed for made in attempts}
    made = attempt(exercise, other, first.case, first.seed, "interpreted", EACH)
    if not made.passed or any(True for _ in of_accesses(made)):  # such as a sum with what an output held
        return False
    if any(True for rule in exercise.rules if not rule.once for _ in rule.check(made)):
        return False
    rest = [case for case in exercise.cases if case.name != first.case.name]
    return all(attempt(exercise, other, c, seeds.get(c.name, first.seed), "interpreted", EACH).passed for c in rest)


def changed_answer(made: Attempt, node: ast.FunctionDef) -> Answer | None:
    """The kernel of a changed function, or None if Python or blocknb refuse it."""
    base = made.answer.base
    node.decorator_list = []
    source = ast.unparse(ast.fix_missing_locations(node)) + "\n"
    file = f"<{made.exercise.name}, repair {next(_NUMBERS)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = dict(base.source.function.__globals__)
    try:
        exec(compile(source, file, "exec"), names)
        kernel = Kernel(names[node.name], **{k: v for k, v in base.options.items() if v is not None})
    except Exception:  # what the search makes up is no error of the learner
        return None
    finally:
        del linecache.cache[file]
    return replace(made.answer, kernel=kernel, names=names)


def _finding(function: ast.FunctionDef, old: ast.AST, new: ast.AST) -> CheckFinding:
    """The sentence: the option of a call that changes, or the smallest expression that says where the change is."""
    line = getattr(old, "lineno", None)
    if isinstance(old, ast.Call) and isinstance(new, ast.Call) and len(old.keywords) + len(new.keywords) > 0:
        before, after = (", ".join(ast.unparse(k) for k in _other_options(a, b)) for a, b in ((old, new), (new, old)))
        if not before:
            text = f"`{after}` is missing in `{ast.unparse(old.func)}`: with it"
            return CheckFinding(f"{text}, every case gives the right result", "generic", True, line)
    else:
        while (outer := _parent(function, old)) is not None and len(ast.unparse(outer)) <= LONGEST:
            old, new = outer, replaced(outer, old, new)
        before, after = (" ".join(ast.unparse(node).split()) for node in (old, new))
    instead = f"with `{after}` instead" if after else "without it"
    return CheckFinding(f"`{before}` is the cause: {instead}, every case gives the right result", "generic", True, line)


def _other_options(call: ast.Call, other: ast.Call) -> list[ast.keyword]:
    """The options of a call that another call does not have in the same words."""
    known = {ast.unparse(keyword) for keyword in other.keywords}
    return [keyword for keyword in call.keywords if ast.unparse(keyword) not in known]


def _parent(function: ast.AST, node: ast.AST) -> ast.AST | None:
    """The expression or statement that directly holds a node."""
    for outer in ast.walk(function):
        if any(inner is node for inner in ast.iter_child_nodes(outer)):
            return outer if isinstance(outer, ast.expr | ast.keyword | ast.Assign | ast.AugAssign) else None
    return None


def changes(function: ast.FunctionDef, parameters: Sequence[str], arrays: Sequence[str]) -> Iterator[Change]:
    """All changes of one place of a kernel, the likely ones first. They begin with the removal of superfluous operands and conversions, and
    with other comparisons, numbers and operators. Then come other options and functions of calls, and last other names."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    masks = {ast.unparse(node.value): node for node in nodes if isinstance(node, ast.keyword) and node.arg == "mask"}
    groups = _groups(nodes, parameters, arrays)
    in_loops = {id(inner) for node in nodes if isinstance(node, ast.For | ast.While) for inner in ast.walk(node)}
    for round_ in (_remove_superfluous, _change_comparison, _change_operation, _change_options):
        yield from ((node, new) for node in nodes for new in round_(node))
    for node in nodes:
        yield from ((node, new) for new in _change_masks(node, list(masks.values())))
        if id(node) in in_loops:
            yield from ((node, new) for new in _change_sums(node))
    for node in nodes:
        yield from ((node, new) for new in _change_names(node, groups))


def _groups(nodes: Sequence[ast.AST], parameters: Sequence[str], arrays: Sequence[str]) -> list[list[str]]:
    """Names that stand for one another: arrays, numbers, and what the kernel assigns."""
    assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [list(arrays), [name for name in parameters if name not in arrays], list(dict.fromkeys(assigned))]


def _remove_superfluous(node: ast.AST) -> Iterator[ast.AST]:
    """Removes what is often superfluous: a constant operand such as the 1 of `n - 1`, and a conversion."""
    match node:
        case ast.BinOp(left=left, right=ast.Constant()):
            yield left
        case ast.BinOp(left=ast.Constant(), right=right):
            yield right
        case ast.Call(func=ast.Attribute(value=inner, attr="to")):
            yield inner


def _change_comparison(node: ast.AST) -> Iterator[ast.AST]:
    """Another comparison."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in ORDERS:
            yield from (
                ast.Compare(node.left, [other()], node.comparators) for other in ORDERS if other is not type(op)
            )


def _change_operation(node: ast.AST) -> Iterator[ast.AST]:
    """Other numbers, operands left out or exchanged, and another operator."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield ast.Constant(value - 1)
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield from (ast.Constant(other) for other in (0.0, 1.0) if other != value)
        case ast.UnaryOp(op=ast.USub()):
            yield node.operand
        case ast.BinOp():
            yield from _change_operands(node)


def _change_operands(node: ast.BinOp) -> Iterator[ast.AST]:
    """One operand or name alone, another operator, the operands exchanged, 1 less, and a division rounded up."""
    yield node.left
    yield node.right
    inner = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    yield from (ast.Name(name, ast.Load()) for name in dict.fromkeys(inner))
    for group in OPERATORS:
        if type(node.op) in group:
            yield from (ast.BinOp(node.left, op(), node.right) for op in group if op is not type(node.op))
    if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv):
        yield ast.BinOp(node.right, node.op, node.left)
    if isinstance(node.op, ast.Sub):
        yield ast.BinOp(node, ast.Sub(), ast.Constant(1))
    if isinstance(node.op, ast.FloorDiv):
        yield ast.Call(ast.parse("tl.cdiv", mode="eval").body, [node.left, node.right], [])


def _change_options(node: ast.AST) -> Iterator[ast.AST]:
    """Another function or dtype of a group, another axis, and a call without one of its options."""
    match node:
        case ast.Attribute(value=ast.Name(), attr=name):
            for group in FUNCTIONS:
                if name in group:
                    yield from (ast.Attribute(node.value, other, node.ctx) for other in group if other != name)
        case ast.Subscript(slice=ast.Tuple(elts=[first, second])):
            yield ast.Subscript(node.value, ast.Tuple([second, first], ast.Load()), node.ctx)
        case ast.Call():
            for keyword in node.keywords:
                kept = [k for k in node.keywords if k is not keyword]
                yield ast.Call(node.func, node.args, kept)
                if keyword.arg == "other":
                    for value in ("0.0", '-float("inf")'):
                        other = ast.keyword("other", ast.parse(value, mode="eval").body)
                        yield ast.Call(node.func, node.args, [*kept, other])


def _change_masks(node: ast.AST, masks: Sequence[ast.keyword]) -> Iterator[ast.AST]:
    """A mask of another access, for a load, a store or an atomic."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("tl.load", "tl.store", "tl.atomic")):
        kept = [k for k in node.keywords if k.arg != "mask"]
        yield from (ast.Call(node.func, node.args, [copy.deepcopy(mask), *kept]) for mask in masks)


def _change_sums(node: ast.AST) -> Iterator[ast.AST]:
    """A loop that adds to a name, or overwrites it."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            yield ast.AugAssign(ast.Name(name, ast.Store()), ast.Add(), node.value)
        case ast.AugAssign(target=ast.Name(id=name)):
            yield ast.Assign([ast.Name(name, ast.Store())], node.value)


def _change_names(node: ast.AST, groups: Sequence[Sequence[str]]) -> Iterator[ast.AST]:
    """Another name of the same group. A number may stand for a parameter, and a new tl.arange for what the kernel has assigned."""
    _, scalars, assigned = groups
    names: list[str] = []
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            names = [other for group in groups if name in group for other in group if other != name]
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and value > 1:
            names = list(scalars)
        case ast.Call(func=ast.Attribute(attr="num_programs")):
            names = list(scalars)
        case ast.Call(func=ast.Attribute(attr="arange")):
            names = list(assigned)
    yield from (ast.Name(name, ast.Load()) for name in names)
