"""Rewrites the AST of a kernel where Python's meaning differs from the language's, and compiles it with its own file and lines.

Operators stay, because tiles define them. Other constructs call `HELPER`, a hidden name for the interpreter. An assignment converts a
number to a run-time scalar. `and`, `or`, `not` and chained comparisons work on tiles. Conditions must be scalar. A `range` counts in
int32. Names from outside give the plain values of constexprs, and calls look up the builtins of the language. Every new node has the
place of the node that it replaces. Tracebacks, `breakpoint()` and a debugger's `list` therefore show the original lines.
"""

from __future__ import annotations

import ast
import copy
import types
import weakref
from dataclasses import dataclass
from typing import Any

from blocknb.frontend.calls import COMPILER_KEYWORDS
from blocknb.frontend.source import MISSING, Source, is_annotation
from blocknb.language.constants import constexpr

HELPER = "__blocknb__"


@dataclass(frozen=True)
class Rewritten:
    """The code of a rewritten function, and the original AST of its conditional expressions."""

    code: types.CodeType
    ternaries: tuple[ast.IfExp, ...]


_made: weakref.WeakKeyDictionary[Any, Rewritten] = weakref.WeakKeyDictionary()


def rewritten(source: Source) -> Rewritten:
    """The rewritten function, computed once. Raises SyntaxUnsupported if it cannot be a kernel (`*args`, no source)."""
    found = _made.get(source.function)
    if found is None:
        found = _made[source.function] = _rewrite(source)
    return found


def instantiate(source: Source, helper: Any) -> types.FunctionType:
    """The rewritten function, with the globals and the closure of the original and `helper` for the hidden name."""
    code, original = rewritten(source).code, source.function
    cells = {**source.closure, HELPER: types.CellType(helper)}
    missing = types.CellType()  # a name that Python has optimized away in the original
    made = types.FunctionType(
        code, original.__globals__, original.__name__, None, tuple(cells.get(n, missing) for n in code.co_freevars)
    )
    defaults = {p.name: p.default for p in source.parameters if p.default is not MISSING}
    keywords = {p.name for p in source.parameters if p.keyword_only}
    made.__defaults__ = tuple(v for n, v in defaults.items() if n not in keywords)
    made.__kwdefaults__ = {n: v for n, v in defaults.items() if n in keywords}
    made.__qualname__, made.__module__ = original.__qualname__, original.__module__
    return made


def _rewrite(source: Source) -> Rewritten:
    rewriter = EagerRewriter(source)
    definition = copy.deepcopy(source.node)
    definition.decorator_list = []
    definition.returns = None
    arguments = definition.args
    arguments.posonlyargs, arguments.args = [], [*arguments.posonlyargs, *arguments.args]
    for argument in (*arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    arguments.defaults, arguments.kw_defaults = [], [None] * len(arguments.kwonlyargs)  # instantiate gives them
    definition.body = [rewriter.entry(definition), *rewriter.body(definition.body)]
    outer: Any = ast.parse(f"def outer({', '.join([*source.closure, HELPER])}): pass").body[0]
    # Not a name of `outer`, so that a recursive call finds the global name.
    outer.body = [definition] if definition.name in source.closure else [ast.Global([definition.name]), definition]
    module = ast.fix_missing_locations(ast.Module([outer], []))
    code = compile(module, source.file, "exec", dont_inherit=True)
    for name in ("outer", definition.name):
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    return Rewritten(code, tuple(rewriter.ternaries))


def names_of(target: ast.expr) -> Any:
    """The names of an assignment's target, in its tuple structure. None for a target that is not a name."""
    match target:
        case ast.Name(id=name):
            return name
        case ast.Tuple(elts=parts) | ast.List(elts=parts) if not any(isinstance(p, ast.Starred) for p in parts):
            return tuple(map(names_of, parts))
    return None


class EagerRewriter(ast.NodeTransformer):
    def __init__(self, source: Source):
        self.source = source
        self.parameters = {p.name for p in source.parameters}
        self.ternaries: list[ast.IfExp] = []
        self.branches = 0

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            found += result if isinstance(result, list) else [result]
        return found

    def call(self, at: Any, method: str, *args: Any) -> ast.Call:
        """`HELPER.method(args)` at the place of the node `at`. Plain values become constants."""
        nodes = [a if isinstance(a, ast.expr) else ast.Constant(a) for a in args]
        function = ast.Attribute(ast.Name(HELPER, ast.Load()), method, ast.Load())
        made = ast.Call(function, nodes, [])
        for node in (made, function, function.value, *(n for n in nodes if not hasattr(n, "lineno"))):
            ast.copy_location(node, at)
        return made

    def entry(self, definition: ast.FunctionDef) -> ast.stmt:
        """The statement that tells the interpreter the parameters of a call. It has the place of the first statement, so that a debugger
        does not stop there."""
        first, names = definition.body[0], [p.name for p in self.source.parameters]
        values = ast.Dict([ast.Constant(n) for n in names], [ast.Name(n, ast.Load()) for n in names])
        for node in ast.walk(values):
            ast.copy_location(node, first)
        return ast.copy_location(ast.Expr(self.call(first, "entered", values, definition.lineno)), first)

    # -- assignments

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        targets = [self.visit(t) for t in node.targets]
        value = self.call(node.value, "settle", self.visit(node.value), tuple(map(names_of, node.targets)), node.lineno)
        return ast.copy_location(ast.Assign(targets, value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name):
            return self.generic_visit(node)  # type: ignore[return-value]
        old = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        sum = ast.copy_location(ast.BinOp(self.visit(old), node.op, self.visit(node.value)), node)
        value = self.call(node, "settle", sum, (node.target.id,), node.lineno)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        names, value = (names_of(node.target),), self.visit(node.value)
        method = "constant" if self.is_constexpr(node.annotation) else "settle"
        made = ast.Assign([self.visit(node.target)], self.call(node.value, method, value, names, node.lineno))
        return ast.copy_location(made, node)

    def is_constexpr(self, annotation: ast.expr) -> bool:
        if isinstance(annotation, ast.Constant):
            return is_annotation(annotation.value, constexpr)
        return is_annotation(ast.unparse(annotation), constexpr)

    # -- control

    def assigned_parameters(self, *bodies: list[ast.stmt]) -> list[str]:
        found = {
            n.id: None
            for body in bodies
            for statement in body
            for n in ast.walk(statement)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in self.parameters
        }
        return list(found)

    def visit_If(self, node: ast.If) -> Any:
        """A parameter that a run-time branch may assign is not a constant after the branch."""
        changed = self.assigned_parameters(node.body, node.orelse)
        test: ast.expr = self.call(node.test, "test", self.visit(node.test))
        after: list[ast.stmt] = []
        if changed:
            self.branches += 1
            flag = f"{HELPER}if_{self.branches}"
            test = self.call(node.test, "branch", self.visit(node.test))
            test = ast.Subscript(ast.NamedExpr(ast.Name(flag, ast.Store()), test), ast.Constant(0), ast.Load())
            for n in ast.walk(test):
                if not hasattr(n, "lineno"):
                    ast.copy_location(n, node.test)
            for name in changed:
                value = self.call(node.test, "joined", self.load(name, node), self.load(flag, node))
                after.append(ast.copy_location(ast.Assign([self.store(name, node)], value), node.test))
        made = ast.If(test, self.body(node.body), self.body(node.orelse))
        return [ast.copy_location(made, node), *after]

    def load(self, name: str, at: ast.AST) -> ast.Name:
        return ast.copy_location(ast.Name(name, ast.Load()), at)

    def store(self, name: str, at: ast.AST) -> ast.Name:
        return ast.copy_location(ast.Name(name, ast.Store()), at)

    def carried(self, node: Any) -> list[ast.stmt]:
        """Makes the parameters that a run-time loop assigns run-time values before the loop."""
        return [
            ast.copy_location(ast.Assign([self.store(n, node)], self.call(node, "carried", self.load(n, node))), node)
            for n in self.assigned_parameters(node.body)
        ]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        test = self.call(node.test, "test", self.visit(node.test))
        made = ast.While(test, self.body(node.body), self.body(node.orelse))
        return [*self.carried(node), ast.copy_location(made, node)]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        before: list[ast.stmt] = []
        if isinstance(node.iter, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.iter.args):
            name = ast.unparse(node.iter.func).rpartition(".")[2]
            if name != "static_range":
                before = self.carried(node)
            places = {}
            for statement in node.body:
                for n in ast.walk(statement):
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                        places[n.id] = (n.lineno, n.col_offset, n.end_lineno, n.end_col_offset)
            iterator = self.call(
                node.iter, "loop", self.visit(node.iter.func), tuple(places.items()), names_of(node.target), node.lineno
            )
            iterator = ast.Call(
                iterator, list(map(self.visit, node.iter.args)), list(map(self.visit, node.iter.keywords))
            )
            ast.copy_location(iterator, node.iter)
        else:
            iterator = self.visit(node.iter)
        made = ast.For(self.visit(node.target), iterator, self.body(node.body), self.body(node.orelse))
        return [*before, ast.copy_location(made, node)]

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        test = self.call(node.test, "test", self.visit(node.test))
        return ast.copy_location(ast.Assert(test, self.visit(node.msg) if node.msg else None), node)

    # -- expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id not in self.source.local_names:
            return self.call(node, "outside", node, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.ctx, ast.Load):
            return self.call(node, "attribute", self.visit(node.value), node.attr)
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        keywords = [k for k in node.keywords if k.arg not in COMPILER_KEYWORDS]
        function = self.call(node.func, "callable", self.visit(node.func))
        made = ast.Call(function, list(map(self.visit, node.args)), list(map(self.visit, keywords)))
        return ast.copy_location(made, node)

    def visit_List(self, node: ast.List) -> ast.expr:
        """A list becomes a tuple, as in the compiler. An empty list stays, because the code may append to it."""
        if isinstance(node.ctx, ast.Load) and node.elts:
            return ast.copy_location(ast.Tuple(list(map(self.visit, node.elts)), ast.Load()), node)
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """`x and y` becomes result(first("and", x) or then(y)). Each step returns whether the result is decided."""
        word = "and" if isinstance(node.op, ast.And) else "or"
        first, *rest = node.values
        steps = [self.call(node, "first", word, self.visit(first))]
        steps += [self.call(node, "then", self.visit(value)) for value in rest]
        return self.call(node, "result", ast.copy_location(ast.BoolOp(ast.Or(), steps), node))  # type: ignore[arg-type]

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operators = [type(op).__name__ for op in node.ops]
        operands = [self.visit(x) for x in (node.left, *node.comparators)]
        if len(operators) == 1:
            plain = operators[0] not in ("Is", "IsNot", "In", "NotIn")
            if plain and not any(isinstance(x, ast.List) for x in (node.left, *node.comparators)):
                return ast.copy_location(ast.Compare(operands[0], node.ops, operands[1:]), node)
            return self.call(node, "compare", operators[0], *operands)
        steps = [self.call(node, "start", operators[0], *operands[:2])]
        steps += [self.call(node, "step", op, x) for op, x in zip(operators[1:], operands[2:], strict=True)]
        return self.call(node, "result", ast.copy_location(ast.BoolOp(ast.Or(), steps), node))  # type: ignore[arg-type]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            return self.call(node, "negate", self.visit(node.operand))
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Both arms must have the same type, so the arm that runs needs the type of the other: `arm(value, which ternary, taken)`."""
        number = len(self.ternaries)
        self.ternaries.append(copy.deepcopy(node))
        test = self.call(node.test, "choose", self.visit(node.test))
        arms = [
            self.call(node, "arm", self.visit(arm), number, taken)
            for arm, taken in ((node.body, True), (node.orelse, False))
        ]
        return ast.copy_location(ast.IfExp(test, *arms), node)
