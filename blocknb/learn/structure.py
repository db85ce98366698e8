"""How alike two kernels are, as sources: they are compared after their local names are replaced by what they stand for.

Two wrong answers often give the same wrong numbers. Then the structure of the learner's kernel decides which one it is. Each expression
becomes a node of a shared table. There, sums, differences and products have no order, and `a > b` is `b < a`. A local name stands for the
expression that it was assigned. A kernel is the multiset of its nodes.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from blocknb.learn.cell import Answer, WrongCell, matching

MIRRORED = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
UNORDERED = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)


class Nodes:
    """The table of expressions. The same expression has the same number in all kernels."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, *parts: Any) -> int:
        return self.numbers.setdefault(parts, len(self.numbers))

    def first(self, changed: Counter[int]) -> set[int]:
        """The innermost of some changed nodes: those that are changed themselves, and not only by an operand."""
        operands = {number: set(_numbers(parts)) for parts, number in self.numbers.items() if number in changed}
        return {number for number, inner in operands.items() if not inner & changed.keys()}

    def of(self, answer: Answer, arguments: Mapping[str, Any]) -> Counter[int]:
        """The nodes of a kernel. Parameters have the names of the exercise's arguments."""
        try:
            names = matching(answer, arguments)
        except WrongCell:
            names = {}
        walk = _Walk(self, {own: self.number("argument", name) for own, name in names.items()})
        walk.statements(answer.base.source.node.body)
        return walk.found


class _Walk:
    """Collects the nodes of one kernel. `known` maps local names to the numbers of their values."""

    def __init__(self, nodes: Nodes, known: dict[str, int]):
        self.nodes, self.known = nodes, known
        self.found: Counter[int] = Counter()

    def keep(self, *parts: Any) -> int:
        number = self.nodes.number(*parts)
        self.found[number] += 1
        return number

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                self.known[name] = self.expression(node.value)
            case ast.AugAssign(target=ast.Name(id=name)):
                operands = sorted([self.expression(node.target), self.expression(node.value)])
                self.known[name] = self.keep(type(node.op).__name__, *operands)
            case ast.For() | ast.While():
                for name in sorted(_assigned(node)):
                    self.known[name] = self.nodes.number("carried", self.known.get(name, -1))
                head = node.iter if isinstance(node, ast.For) else node.test
                self.keep(type(node).__name__, self.expression(head))
                self.statements(node.body)
            case ast.If():
                self.keep("If", self.expression(node.test))
                self.statements(node.body)
                self.statements(node.orelse)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case _:
                values = [self.expression(c) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
                self.keep(type(node).__name__, *values)

    def expression(self, node: ast.expr) -> int:
        match node:
            case ast.Name(id=name):
                return self.known.get(name, self.nodes.number("name", name))
            case ast.Constant(value=value):
                return self.nodes.number("constant", repr(value))
            case ast.Attribute(attr=name):
                inner = node.value
                module = isinstance(inner, ast.Name) and inner.id not in self.known
                return (
                    self.nodes.number("attribute", name)
                    if module
                    else self.keep("member", self.expression(inner), name)
                )
            case ast.Compare(ops=[op]) if type(op) in MIRRORED:
                sides = self.expression(node.comparators[0]), self.expression(node.left)
                return self.keep(MIRRORED[type(op)].__name__, *sides)
            case ast.BinOp() if isinstance(node.op, UNORDERED):
                return self.keep(type(node.op).__name__, *sorted(self.terms(node, type(node.op))))
            case ast.BinOp(op=ast.Sub()):
                return self.keep("Add", *sorted(self.terms(node, ast.Add)))
            case ast.Call():
                options = sorted((k.arg or "", self.expression(k.value)) for k in node.keywords)
                return self.keep("call", self.expression(node.func), *map(self.expression, node.args), *options)
        children = list(ast.iter_child_nodes(node))
        parts = [self.expression(c) if isinstance(c, ast.expr) else type(c).__name__ for c in children]
        return self.keep(type(node).__name__, *parts)

    def terms(self, node: ast.expr, op: type, negative: bool = False) -> list[int]:
        """The operands of a chain of one operator. A difference is a sum with a negative operand, so `a + (b - c)` is `a + b - c`."""
        if isinstance(node, ast.BinOp) and op is ast.Add and isinstance(node.op, ast.Sub):
            return [*self.terms(node.left, op, negative), *self.terms(node.right, op, not negative)]
        if isinstance(node, ast.BinOp) and type(node.op) is op:
            return [*self.terms(node.left, op, negative), *self.terms(node.right, op, negative)]
        number = self.expression(node)
        return [self.nodes.number("negative", number) if negative else number]


def _assigned(loop: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _numbers(parts: Any) -> list[int]:
    """The numbers of the operands of a node, also those of a call's options."""
    if isinstance(parts, tuple):
        return [number for part in parts for number in _numbers(part)]
    return [parts] if isinstance(parts, int) else []


def contradicts(own: Counter[int], wrong: Counter[int], right: Counter[int], nodes: Nodes) -> bool:
    """Whether a source still has all that the step from a right kernel to a wrong one replaces, and nothing of the replacement. Then it
    did not take this step, although its numbers may be the same."""
    added, removed = nodes.first(wrong - right), nodes.first(right - wrong)
    return bool(removed) and all(own[n] >= right[n] for n in removed) and not any(own[n] > right[n] for n in added)


def similarity(a: Counter[int], b: Counter[int]) -> float:
    """How alike two kernels are, from 0 to 1."""
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0


def evidence(own: Counter[int], wrong: Counter[int], right: Counter[int]) -> float:
    """How much closer a source is to a wrong kernel than to the right one, from 0 to 1. At 1, it has all nodes that only the wrong kernel
    has, and none that only the right one has."""
    added, removed = wrong - right, right - wrong
    taken = ((own - right) & added).total() + ((right - own) & removed).total()
    return taken / max(1, added.total() + removed.total())
