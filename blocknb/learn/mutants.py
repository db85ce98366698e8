"""Wrong answers made from an exercise's solution by machine: mutants of its kernel, and cheats.

A mutant changes one place of the AST. It drops a mask or `other`, moves a number or a bound by one, or exchanges axes, strides or a
comparison. A cheat is an answer that does not do the work: it leaves the output stale, copies an input, or knows one shape only.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from blocknb.learn.cell import Answer
from blocknb.learn.exercise import Exercise

Tree = TypeVar("Tree", bound=ast.AST)
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
#: Functions whose second argument is an axis.
REDUCTIONS = (
    "sum",
    "max",
    "min",
    "argmax",
    "argmin",
    "xor_sum",
    "reduce",
    "cumsum",
    "cumprod",
    "associative_scan",
    "expand_dims",
)


@dataclass(frozen=True)
class Mutant:
    """A changed cell. `text` is "old -> new", the expression before and after, and `line` the number of the changed line, from 1.
    `Exercise.equivalent` lists it by the text, or by the line and the text."""

    text: str
    line: int
    source: str


def mutants(source: str, scalars: tuple[str, ...] = ()) -> Iterator[Mutant]:
    """All mutants of the functions in a cell. `scalars` are the kernel's integer parameters, whose strides are exchanged."""
    tree = ast.parse(source)
    seen = set()
    for function in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
        for statement in function.body:
            axes = {id(a) for call in ast.walk(statement) if isinstance(call, ast.Call) for a in _axes(call)}
            for node in ast.walk(statement):
                if id(node) in axes:
                    continue
                for new in _changes(node, scalars):
                    text = f"{ast.unparse(node)} -> {ast.unparse(new)}"
                    line = getattr(node, "lineno", 0)
                    changed = ast.unparse(ast.fix_missing_locations(replaced(tree, node, new)))
                    if changed not in seen:
                        seen.add(changed)
                        yield Mutant(text, line, changed)


def replaced(tree: Tree, node: ast.AST, new: ast.AST) -> Tree:
    """A copy of a tree in which another node stands for one of its own. The other node may hold the replaced one, or parts of it."""
    node.marked = True  # type: ignore[attr-defined]
    try:
        marked = copy.deepcopy(tree)
    finally:
        del node.marked  # type: ignore[attr-defined]
    return cast(Tree, _Replace(node, copy.deepcopy(new)).visit(marked))


class _Replace(ast.NodeTransformer):
    """Replaces the marked node."""

    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        if getattr(node, "marked", False):
            return self.new
        return super().generic_visit(node)


def _changes(node: ast.AST, scalars: tuple[str, ...]) -> Iterator[ast.AST]:
    match node:
        case ast.Call():
            yield from _of_call(node)
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            new = copy.deepcopy(node)
            new.ops = [COMPARISONS[type(op)]()]
            yield new
            for step in (ast.Add(), ast.Sub()):
                moved = copy.deepcopy(node)
                moved.comparators = [ast.BinOp(moved.comparators[0], step, ast.Constant(1))]
                yield moved
        case ast.Subscript(slice=ast.Tuple(elts=[first, second])) if {_is_none(first), _is_none(second)} == {
            True,
            False,
        }:
            swapped = copy.deepcopy(node)
            swapped.slice = ast.Tuple([second, first], ast.Load())
            yield swapped
        case ast.keyword(arg="axis", value=ast.Constant(value=int(value))):
            yield ast.keyword("axis", ast.Constant(0 if value == 1 else 1))
        case ast.BinOp(op=ast.Mult(), right=ast.Name(id=name)) if name in scalars:
            for other in scalars:
                if other != name:
                    exchanged = copy.deepcopy(node)
                    exchanged.right = ast.Name(other, ast.Load())
                    yield exchanged


def _of_call(node: ast.Call) -> Iterator[ast.AST]:
    if ast.unparse(node.func) == "tl.program_id" and node.args and isinstance(node.args[0], ast.Constant):
        other = copy.deepcopy(node)
        other.args = [ast.Constant(0 if node.args[0].value == 1 else 1)]
        yield other
    for keyword in node.keywords:
        zero = isinstance(keyword.value, ast.Constant) and keyword.value.value == 0
        if keyword.arg == "mask" or (keyword.arg == "other" and not zero):  # masked lanes hold 0 without `other`
            dropped = copy.deepcopy(node)
            dropped.keywords = [k for k in dropped.keywords if k.arg != keyword.arg]
            yield dropped


def _axes(call: ast.Call) -> list[ast.expr]:
    """The constants of a call that are numbers of axes: -1 may be the same axis as 0."""
    named = [keyword.value for keyword in call.keywords if keyword.arg == "axis"]
    name = ast.unparse(call.func).removeprefix("tl.")
    return [
        *named,
        *(call.args if name in ("program_id", "num_programs") else call.args[1:2] if name in REDUCTIONS else []),
    ]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def cheats(exercise: Exercise, answer: Answer) -> Iterator[tuple[str, str]]:
    """(what it does, cell) of answers that do not do the work. `answer` is the solution, whose parameters have the exercise's names."""
    tree = ast.parse(exercise.solution)
    kernel = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == answer.base.__name__)
    arguments = ast.unparse(kernel.args)
    head = f"@blocknb.kernel\ndef {kernel.name}({arguments}):\n"
    yield "stores nothing", head + "    tl.program_id(0)\n"
    yield "calls NumPy", head + f"    np.copyto({exercise.outputs[0]}, {exercise.outputs[0]})\n"
    names = ", ".join(argument.arg for argument in (*kernel.args.args, *kernel.args.kwonlyargs))
    yield "is a Python function", f"def {kernel.name}({names}):\n    {exercise.outputs[0]}[...] = 0\n"
    yield (
        "calls the reference",
        f"from blocknb.learn import exercise\n{head}    exercise({exercise.name!r}).reference({names})\n",
    )
    yield "is an object with NumPy in it", _object(exercise, kernel.name)
    yield "fills the output while heuristics choose constants", _heuristics(exercise, answer, head)
    given = exercise.cases[0].make(np.random.default_rng(0))
    inputs = [n for n, v in given.items() if isinstance(v, np.ndarray) and n not in exercise.outputs]
    for output in exercise.outputs:
        if not any(_stores_to(call, output) for call in ast.walk(tree)):
            continue  # atomics, or a tensor descriptor
        if output not in exercise.updated:
            yield f"stores what `{output}` held", _stores(tree, output, output, keep=False)
        for name in inputs:
            if given[name].shape == given[output].shape and output not in exercise.updated:
                yield f"copies `{name}` to `{output}`", _stores(tree, output, name, keep=False)
            yield f"stores the result to `{name}`, too", _stores(tree, output, name, keep=True)
    if lines := _friendly(exercise, answer):
        changed = copy.deepcopy(tree)
        function = next(n for n in changed.body if isinstance(n, ast.FunctionDef) and n.name == kernel.name)
        function.body[:0] = ast.parse(lines).body
        yield "knows one shape only", ast.unparse(changed)


def _object(exercise: Exercise, name: str) -> str:
    return (
        "class Answer:\n    def __getitem__(self, grid):\n        return self.launch\n"
        f"    def launch(self, **given):\n        given[{exercise.outputs[0]!r}][...] = 0\n"
        f"{name} = Answer()\n"
    )


def _heuristics(exercise: Exercise, answer: Answer, head: str) -> str:
    constants = [p.name for p in answer.base.source.parameters if p.constexpr]
    outputs = "; ".join(f"given[{name!r}][...] = want[{name!r}]" for name in exercise.outputs)
    return (
        "from blocknb.learn import exercise\nfrom blocknb.learn.running import called\n"
        f"def choose(given):\n    want = called(exercise({exercise.name!r}).reference, given)\n    {outputs}\n    return 16\n"
        f"@blocknb.heuristics({{{(constants or ['unused'])[0]!r}: choose}})\n{head}    tl.program_id(0)\n"
    )


def _stores(tree: ast.Module, output: str, name: str, keep: bool) -> str:
    """The cell in which each tl.store to `output` stores to `name` as well (`keep`), or stores what `name` holds there."""

    class Change(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
            call = node.value
            if not (isinstance(call, ast.Call) and _stores_to(call, output)):
                return node
            place = _Rename(output, name).visit(copy.deepcopy(call.args[0]))
            new = copy.deepcopy(call)
            if keep:
                new.args[0] = place
                return [node, ast.Expr(new)]
            masks = [k for k in new.keywords if k.arg == "mask"]
            new.args[1] = ast.Call(ast.parse("tl.load", mode="eval").body, [place], masks)
            return ast.Expr(new)

    return ast.unparse(ast.fix_missing_locations(Change().visit(copy.deepcopy(tree))))


def _stores_to(node: ast.AST, output: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "tl.store"
        and any(_uses(a, output) for a in node.args[:1])
    )


def _uses(node: ast.AST, name: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node))


class _Rename(ast.NodeTransformer):
    def __init__(self, old: str, new: str):
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node


def _friendly(exercise: Exercise, answer: Answer) -> str:
    """Assignments that replace the kernel's numbers by those of the first case, if another case has others."""
    cases = [case.make(np.random.default_rng(0)) for case in exercise.cases]
    names = [p.name for p in answer.base.source.parameters if not p.constexpr and isinstance(cases[0].get(p.name), int)]
    if all(case.get(name) == cases[0][name] for case in cases for name in names):
        return ""
    return "".join(f"{name} = {cases[0][name]}\n" for name in names)
